"""Pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from sys import intern
from typing import Final

import msgspec

from extender.objects import schema
from extender.objects.failure_cause import Fault, fault
from extender.objects.records.nodes import NodeRecord, selects
from extender.objects.records.parts import Owner, controller, epoch, metadata, ours, strings
from extender.objects.records.placement import affinity, asks_host_ports, tolerations
from extender.objects.records.shared import Shared
from extender.objects.resources import asks_devices, asks_others, gpu_containers, pod_requests
from extender.objects.schema import Source, read
from extender.objects.selectors import NodeTerm, PodTerm, Toleration

MIRROR: Final = "kubernetes.io/config.mirror"
SOURCE: Final = "kubernetes.io/config.source"

MOST_IMAGES: Final = 4  # of a pod that are kept, and the characters of each: what failed pods have in common
MOST_OF_IMAGE: Final = 256
MOST_GRACE: Final = 10**9  # seconds, 31 years: a longer grace counts as this, so that what is written can be read back
_DEFAULT_GRACE: Final = 30  # seconds; the API's own default of terminationGracePeriodSeconds
_POD: Final = msgspec.json.Decoder(schema.Pod)
_numbers: Final = Shared[int]()
_counts: Final = Shared[tuple[tuple[str, int], ...]]()
_asking: Final = Shared[tuple[tuple[str, str, int], ...]]()
_selectors: Final = Shared[tuple[tuple[str, str], ...]]()


class PodRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A pod. Times are seconds since the epoch, memory is bytes, CPU is thousandths of a core."""

    uid: str
    namespace: str
    name: str
    resource_version: str
    labels: dict[str, str]
    annotations: dict[str, str]
    """Only ours (``gpu-extender.io/``) and those of FOREIGN."""
    owner: Owner | None
    created: float | None
    terminating: bool
    deletion_at: float | None
    """When its grace ends and it is killed; None when it is not deleted."""
    grace_seconds: int
    """What is granted: by the deletion when there is one, else by its specification; MOST_GRACE at most."""
    daemon: bool
    mirror: bool

    node: str
    """"" until bound."""
    nominated_node: str
    scheduler_name: str
    priority: int
    priority_class: str
    """Its name, "" when there is none."""
    priority_given: bool
    """Whether the number is in the object: the API server writes it there, a manifest names the class only."""
    never: bool
    """preemptionPolicy Never."""
    gated: bool
    """Held back by scheduling gates."""

    phase: str
    """Pending, Running, Succeeded, Failed, Unknown, or "" when not said."""
    reason: str
    """Why it failed (status.reason), "" when not said."""
    disruption_target: str
    """Reason of a true DisruptionTarget condition, else ""."""
    pod_scheduled: str
    """Reason of a PodScheduled condition that is not true (Unschedulable, SchedulingGated), else ""."""
    fault: Fault = ""
    """What kubelet reports of its failure (extender.objects.failure_cause); "" without GPUs."""
    start: float | None
    restarts: int
    """How often its containers (not the init containers) were started again."""

    cpu_milli: int
    memory: int
    gpus: tuple[tuple[str, int], ...]
    """(resource, count) in the order of the names, counts above 0: what the scheduler counts for the pod."""
    gpu_containers: tuple[tuple[str, str, int], ...]
    """(container, resource, count) in the order in which kubelet admits them: init containers first."""
    images: tuple[str, ...] = ()
    """Of the containers that ask for GPUs, each once, sorted; cut to MOST_IMAGES of MOST_OF_IMAGE characters."""
    service_account: str = ""
    """Its name; "" without GPUs."""
    held: tuple[tuple[str, str], ...]
    """(resource, device id) which kubelet says the pod holds, each once, sorted."""

    node_selector: tuple[tuple[str, str], ...]
    node_terms: tuple[NodeTerm, ...] | None
    """Required node affinity: one term must match; None when there is none."""
    tolerations: tuple[Toleration, ...]
    host_ports: bool
    volumes: bool
    """Any persistent or ephemeral volume claim."""
    claims: bool
    """Any resource claim (DRA)."""
    other_resources: bool
    """Asks for a resource besides CPU, memory and GPUs (ephemeral storage, huge pages, other devices)."""
    required_affinity: bool
    """Any required pod affinity or anti-affinity."""
    preferred_affinity: bool
    """Any preferred node or pod (anti-)affinity."""
    hard_spread: bool
    soft_spread: bool
    anti_affinity_terms: tuple[PodTerm, ...]
    affinity_terms: tuple[PodTerm, ...]
    """Required pod affinity: each names pods that it must stand near."""
    group: tuple[str, str, str] | None
    """(Workload or "", pod group, replica key): spec.workloadRef of 1.35, spec.schedulingGroup of 1.36 and later."""
    partial: bool = False
    """Whether the object was read in part only (`tolerant.py`): what could not be read counts as the worst."""

    @property
    def finished(self) -> bool:
        """Whether it ran to its end: it holds nothing on its node any more."""
        return self.phase in ("Succeeded", "Failed")

    def may_need(self, other: PodRecord) -> bool:
        """Whether a required affinity of this pod may be met by the other; its topology is not looked at."""
        return any(term.may_match(other.namespace, other.labels) for term in self.affinity_terms)

    def accepts(self, node: NodeRecord) -> bool:
        """Whether its nodeSelector and required node affinity let it onto the node."""
        return selects(self.node_selector, self.node_terms, node)


def pod(source: Source, gpus: frozenset[str]) -> PodRecord:
    """The record of a Pod. Without a namespace it is in "default", as kubectl has it."""
    return pod_of(read(source, _POD), gpus)


def pod_of(wire: schema.Pod, gpus: frozenset[str]) -> PodRecord:
    """The record of a decoded Pod."""
    meta = metadata(wire.metadata)
    spec = wire.spec or schema.PodSpec()
    status = wire.status or schema.PodStatus()
    namespace = intern(meta.namespace or "default")
    cpu_milli, memory, counts = pod_requests(spec, status, gpus)
    preferred, repelling, near, node_terms = affinity(spec.affinity, namespace)
    asking = gpu_containers(spec, gpus) if counts else ()
    owner = controller(meta)
    disruption_target, pod_scheduled = _conditions(status.conditions)
    terminating = meta.deletion_timestamp is not None
    granted = meta.deletion_grace_period_seconds if terminating else spec.termination_grace_period_seconds
    spread = [one.when_unsatisfiable for one in spec.topology_spread_constraints or ()]
    static = _is_static(meta.annotations or {})
    return PodRecord(
        uid=meta.uid or "", namespace=namespace, name=meta.name or meta.generate_name or "",
        resource_version=meta.resource_version or "",
        labels=strings(meta.labels), annotations=ours(meta.annotations),
        owner=owner, daemon=owner is not None and owner.kind == "DaemonSet",
        mirror=static or (owner is not None and owner.kind == "Node"),
        created=epoch(meta.creation_timestamp),
        terminating=terminating, deletion_at=epoch(meta.deletion_timestamp),
        grace_seconds=_DEFAULT_GRACE if granted is None else min(max(granted, 0), MOST_GRACE),
        node=intern(spec.node_name or ""), nominated_node=intern(status.nominated_node_name or ""),
        scheduler_name=intern(spec.scheduler_name or "default-scheduler"),
        priority=spec.priority or 0, priority_given=spec.priority is not None,
        priority_class=intern(spec.priority_class_name or ""), never=spec.preemption_policy == "Never",
        gated=bool(spec.scheduling_gates),
        phase=intern(status.phase or ""), reason=intern(status.reason or ""),
        fault=fault(status, gpus, others=status.phase == "Failed" and asks_devices(spec, gpus)) if counts else "",
        disruption_target=disruption_target, pod_scheduled=pod_scheduled,
        start=epoch(status.start_time),
        restarts=sum([one.restart_count or 0 for one in status.container_statuses or ()]),
        cpu_milli=_numbers(cpu_milli), memory=_numbers(memory),
        gpus=_counts(counts), gpu_containers=_asking(asking),
        images=_images(spec, {name for name, _, _ in asking}) if asking else (),
        service_account=intern(spec.service_account_name or "default") if counts else "",
        held=_held(status, gpus),
        node_selector=_selectors(tuple(sorted(strings(spec.node_selector).items()))) if spec.node_selector else (),
        node_terms=node_terms, tolerations=tolerations(spec.tolerations), host_ports=asks_host_ports(spec),
        volumes=any(one.persistent_volume_claim is not None or one.ephemeral is not None for one in spec.volumes or ()),
        claims=bool(spec.resource_claims), other_resources=asks_others(spec, gpus),
        required_affinity=bool(repelling or near), preferred_affinity=preferred,
        anti_affinity_terms=repelling, affinity_terms=near,
        hard_spread="DoNotSchedule" in spread, soft_spread="ScheduleAnyway" in spread,
        group=_group_of(spec),
    )  # fmt: skip


def _is_static(notes: Mapping[str, str | None]) -> bool:
    """Whether kubelet took the pod from a file or URL of its node: it cannot be evicted."""
    return MIRROR in notes or notes.get(SOURCE) in ("file", "http")


def _conditions(wire: Iterable[schema.Condition] | None) -> tuple[str, str]:
    disruption_target = pod_scheduled = ""
    for one in wire or ():
        if one.type == "DisruptionTarget" and one.status == "True":
            disruption_target = intern(one.reason or "")
        elif one.type == "PodScheduled" and one.status != "True":
            pod_scheduled = intern(one.reason or "")
    return disruption_target, pod_scheduled


def _held(status: schema.PodStatus, gpus: frozenset[str]) -> tuple[tuple[str, str], ...]:
    found: set[tuple[str, str]] = set()
    for statuses in (status.init_container_statuses, status.container_statuses):
        for container in statuses or ():
            for resource in container.allocated_resources_status or ():
                if resource.name in gpus:
                    name = intern(resource.name)
                    found.update(
                        (name, device.resource_id) for device in resource.resources or () if device.resource_id
                    )
    return tuple(sorted(found))


def _images(spec: schema.PodSpec, names: set[str]) -> tuple[str, ...]:
    containers = (*(spec.init_containers or ()), *(spec.containers or ()))
    found = {one.image[:MOST_OF_IMAGE] for one in containers if one.image and (one.name or "") in names}
    return tuple([intern(image) for image in sorted(found)[:MOST_IMAGES]])


def _group_of(spec: schema.PodSpec) -> tuple[str, str, str] | None:
    if spec.scheduling_group is not None and spec.scheduling_group.pod_group_name:
        return "", spec.scheduling_group.pod_group_name, ""
    ref = spec.workload_ref
    return (ref.name, ref.pod_group or "", ref.pod_group_replica_key or "") if ref is not None and ref.name else None
