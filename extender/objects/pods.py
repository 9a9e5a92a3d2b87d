"""Pods."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from sys import intern
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from extender.objects import schema
from extender.objects.devices import ClaimSpec
from extender.objects.limits import QuotaFacts
from extender.objects.nodes import NodeRecord, selects
from extender.objects.parts import NamespacedRecord, Owner, Shared, controller, epoch, metadata, ours, strings
from extender.objects.resources import (
    OF_CLASS,
    UNKNOWN_COUNT,
    asks_devices,
    asks_others,
    class_requests,
    gpu_containers,
    gpus_alone,
    pod_requests,
    quota_amounts,
    resize_status,
    too_many,
)
from extender.objects.schema import Reader, RecordError
from extender.objects.selectors import (
    NodeTerm,
    PodTerm,
    Toleration,
    affinity,
    asks_host_ports,
    crosses_namespaces,
    tolerations,
)

FINISHED: Final = ("Succeeded", "Failed")
"""The phases of a pod that ran to its end."""
UNSCHEDULABLE: Final = "Unschedulable"
"""kube-scheduler's reason in the condition PodScheduled: it tried the pod, and found no node."""
SEAT_TEXT: Final = "the pod's gang was placed as a whole, and the pod lands on its seat alone"
"""What our filter answers for a pod that does not fit on its seat."""
SEAT_REJECTED: Final = "SeatRejected"
"""That answer instead of the reason. kube-scheduler gives its reason SchedulerError to failed calls too, which are no
rejection."""
MOVING_TEXT: Final = "the pod gets another seat, and does not state it yet"
SEAT_MOVES: Final = "SeatMoves"
"""The same for a pod that is to be tried again on its new seat."""

MIRROR: Final = "kubernetes.io/config.mirror"
SOURCE: Final = "kubernetes.io/config.source"
PLACEABLE: Final = "gpu-extender.io/Placeable"
"""A condition of ours on the first pod of a gang that waits: whether it would fit once all pods have ended."""

MOST_IMAGES: Final = 4  # of a pod that are kept, and the characters of each: what failed pods have in common
MOST_OF_IMAGE: Final = 256
MOST_GRACE: Final = 10**9  # seconds, 31 years: a longer grace counts as this, so that what is written can be read back
LONGEST_DEADLINE: Final = 2**31 - 1  # seconds, 68 years: what the API server accepts
NOT_PLACED: Final = "gets no node until it is created again with this corrected"
"""What becomes of a pod that cannot be read in full, and what to do."""
UNREADABLE: Final = "(unreadable)"  # of a gate: no gate has such a name, so no controller opens it
_REQUESTS: Final = "requests."  # with this begin the names of requests in QuotaFacts
_DEFAULT_GRACE: Final = 30  # seconds; the API's own default of terminationGracePeriodSeconds
MOST_SPECS: Final = 2048  # specifications that are kept, and the bytes of all as MessagePack
MOST_OF_SPECS: Final = 2**22
SHORT_SPEC: Final = 2048  # bytes: of a longer one its digest is kept in place of its text
_SpecKey = tuple[bytes, str, frozenset[str]]
_ENCODER: Final = msgspec.msgpack.Encoder()
_numbers: Final = Shared[int]()
_counts: Final = Shared[tuple[tuple[str, int], ...]]()
_asking: Final = Shared[tuple[tuple[str, str, int], ...]]()
_gates: Final = Shared[tuple[str, ...]]()
_facts: Final = Shared[QuotaFacts]()
_selectors: Final = Shared[tuple[tuple[str, str], ...]]()


class PodClaimRef(NamedTuple):
    """One entry of spec.resourceClaims."""

    claim: str  # the name of the ResourceClaim, "" while it is not created
    template: str  # the name of the template that it is created from, "" for none


class PodRecord(NamespacedRecord, frozen=True, gc=False, kw_only=True):
    """A pod. Times are seconds since the epoch, memory is bytes, CPU is thousandths of a core."""

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
    gates: tuple[str, ...] = ()
    """The names of its scheduling gates, in their order; UNREADABLE for one that cannot be read."""
    deadline_seconds: int | None = None
    """spec.activeDeadlineSeconds, LONGEST_DEADLINE at most: it is killed so long after its start."""

    phase: str
    """Pending, Running, Succeeded, Failed, Unknown, or "" when not said."""
    reason: str
    """Why it failed (status.reason), "" when not said."""
    disruption_target: str
    """Reason of a true DisruptionTarget condition, else ""."""
    pod_scheduled: str
    """Reason of a PodScheduled condition that is not true (UNSCHEDULABLE, SchedulingGated), else ""; SEAT_REJECTED or
    SEAT_MOVES where our filter is the reason."""
    placeable: bool = True
    """False while its condition PLACEABLE is false: its gang fits nowhere in the cluster, whatever ends."""
    fault: Fault = ""
    """What kubelet reports of its failure; "" without GPUs."""
    start: float | None
    restarts: int
    """How often its containers (not the init containers) were started again."""

    exited: float | None = None
    """When a container of it ended last, by the clock of its node; None: none has."""

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
    runtime_class: str = ""
    """The name of its RuntimeClass. What that states the API server has added to a pod that exists."""
    held: tuple[tuple[str, str], ...]
    """(resource, device id) that the pod holds, as kubelet reports, each once, sorted."""

    node_selector: tuple[tuple[str, str], ...]
    node_terms: tuple[NodeTerm, ...] | None
    """Required node affinity: one term must match; None when there is none."""
    tolerations: tuple[Toleration, ...]
    host_ports: bool
    volumes: bool
    """Any persistent or ephemeral volume claim."""
    claims: bool
    """Any resource claim (DRA)."""
    claim_refs: tuple[PodClaimRef, ...] = ()
    class_requests: tuple[tuple[str, int], ...] = ()
    """(DeviceClass, count) of what it asks for as the resource that the class always serves."""
    extended_claim: str = ""
    """The ResourceClaim that kube-scheduler made for its extended resources, "" for none."""
    claimed: tuple[tuple[str, int], ...] = ()
    """What the cluster added to `gpus` for its claims (extender.cluster.dra); below 0: what it left out, because an
    allocation counts it already."""
    claim_numbers: tuple[int, ...] = ()
    """How many GPUs its claims may take of a node, the preferred number first, 0 for all of them; () where they take
    `claimed` of any node, which else is the least that they may take."""
    claim_specs: tuple[ClaimSpec, ...] = ()
    """What its claims that are not allocated ask for, while it has no node."""
    claim_node: str = ""
    """The only node where it can use a claim, "" for any: the devices of the claim are there, or another pod that
    names it."""
    devices: tuple[str, ...] = ()
    """The GPUs that its claims hold on its node, as GpuDevice.id; they are in `held` too."""
    keeps_devices: bool = False
    """Whether not all of `devices` are known to be free once it has ended: its eviction would be in vain."""
    first_fit: bool = False
    """Whether what its claims ask for beyond that is any whole GPUs: kube-scheduler takes the first free ones."""
    planned: bool = False
    """Whether the queue allocates the devices of its claims."""
    left_devices: str = ""
    """Why kube-scheduler allocates them though the queue allocates devices, "" for any other pod."""
    allocated: bool = False
    """Whether a claim of it is allocated while it has no node: its node counts these devices as taken."""
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
    quota_facts: QuotaFacts = QuotaFacts()
    unread: str = ""
    """What of the object cannot be read (`decode.py`), for people: that counts as the worst. "": all was read."""

    @property
    def unread_text(self) -> str:
        """Why no node is given to a pod that cannot be read in full, for people; "" for others."""
        name = f"{self.namespace}/{self.name}"
        return f"pod {name} cannot be read in full, and {NOT_PLACED}: {self.unread}" if self.unread else ""

    @property
    def gpu_count(self) -> int:
        """How many GPUs it asks for, of all resources."""
        total = 0
        for _, count in self.gpus:  # a generator would cost three times as much, and thousands of pods are asked
            total += count
        return total

    @property
    def others(self) -> tuple[tuple[str, int], ...]:
        """(resource, amount) of all other resources that it asks for, by name: what the scheduler counts for it."""
        if not self.other_resources:
            return ()
        asked = [
            (name.removeprefix(_REQUESTS), count)
            for name, count in self.quota_facts.amounts
            if name.startswith(_REQUESTS)
        ]
        return tuple([(name, count) for name, count in asked if not name.startswith(OF_CLASS)])

    @property
    def gated(self) -> bool:
        """Whether scheduling gates hold it back."""
        return bool(self.gates)

    @property
    def finished(self) -> bool:
        """Whether it ran to its end: it holds nothing on its node any more."""
        return self.phase in FINISHED

    @property
    def waits(self) -> bool:
        """Whether it is to get a node still: it has none, and is not being deleted."""
        return not self.node and not self.terminating

    def may_need(self, other: PodRecord) -> bool:
        """Whether a required affinity of this pod may be met by the other; its topology is not looked at."""
        return any(term.may_match(other.namespace, other.labels) for term in self.affinity_terms)

    def accepts(self, node: NodeRecord) -> bool:
        """Whether its nodeSelector and required node affinity let it onto the node."""
        return selects(self.node_selector, self.node_terms, node)


def _pod_of(wire: schema.Pod, gpus: frozenset[str]) -> PodRecord:
    """Without a namespace it is in "default", as kubectl has it."""
    meta = metadata(wire.metadata)
    spec = wire.spec or schema.PodSpec()
    status = wire.status or schema.PodStatus()
    namespace = intern(meta.namespace or "default")
    stated = _stated(spec, status, namespace, gpus)
    owner = controller(meta)
    disruption_target, pod_scheduled, placeable = _conditions(status.conditions)
    terminating = meta.deletion_timestamp is not None
    phase = intern(status.phase or "")
    return replace(
        stated,
        uid=meta.uid or "", namespace=namespace, name=meta.name or meta.generate_name or "",
        resource_version=meta.resource_version or "",
        labels=strings(meta.labels), annotations=ours(meta.annotations),
        owner=owner, daemon=owner is not None and owner.kind == "DaemonSet",
        mirror=_is_static(meta.annotations) or (owner is not None and owner.kind == "Node"),
        created=epoch(meta.creation_timestamp),
        terminating=terminating, deletion_at=epoch(meta.deletion_timestamp),
        grace_seconds=_grace(meta.deletion_grace_period_seconds) if terminating else stated.grace_seconds,
        node=intern(spec.node_name or ""), nominated_node=intern(status.nominated_node_name or ""),
        phase=phase, reason=intern(status.reason or ""),
        fault=fault(status, gpus, others=phase == "Failed" and asks_devices(spec, gpus)) if stated.gpus else "",
        disruption_target=disruption_target, pod_scheduled=pod_scheduled, placeable=placeable,
        start=epoch(status.start_time),
        restarts=sum([container.restart_count or 0 for container in status.container_statuses or ()]),
        exited=_exited(stated, status) if status.container_statuses else None,
        held=_held(status, gpus),
        claim_refs=_claim_refs(spec, status) if spec.resource_claims else (),
        extended_claim=_extended(status),
    )  # fmt: skip


pod: Final = Reader(schema.Pod, _pod_of)


def pod_of_template(wire: schema.Pod, namespace: str, gpus: frozenset[str]) -> PodRecord:
    """The record of a pod that is made of the template: without a uid and a name. RecordError where there is no
    specification."""
    if wire.spec is None:
        raise RecordError("spec", "there is no pod template")
    meta = wire.metadata or schema.Metadata()
    stated = _stated(wire.spec, schema.PodStatus(), namespace, gpus)
    return replace(
        stated,
        namespace=namespace,
        labels=strings(meta.labels),
        annotations=ours(meta.annotations),
        node=intern(wire.spec.node_name or ""),
        claim_refs=_claim_refs(wire.spec, schema.PodStatus()),
    )


class _KnownSpecs:
    """What specifications state, as records; the latest used last. In memory a record may be 30 times as large as the
    text. That of a long specification shares most of it with the records of the pods that exist."""

    def __init__(self) -> None:
        self.records: dict[_SpecKey, tuple[int, PodRecord]] = {}  # with the bytes of the text
        self.size = 0

    def get(self, key: _SpecKey) -> PodRecord | None:
        """The record that is kept by this key."""
        known = self.records.pop(key, None)
        if known is None:
            return None
        self.records[key] = known
        return known[1]

    def keep(self, key: _SpecKey, size: int, stated: PodRecord) -> None:
        """Keep another one. `size`: bytes of its text."""
        self.records[key] = size, stated
        self.size += size
        while self.size > MOST_OF_SPECS or len(self.records) > MOST_SPECS:
            self.size -= self.records.pop(next(iter(self.records)))[0]


_known_specs: Final = _KnownSpecs()


def _stated(spec: schema.PodSpec, status: schema.PodStatus, namespace: str, gpus: frozenset[str]) -> PodRecord:
    """A record with the fields that the specification states, its node left out; all others are empty.

    Pods of one template, and the versions of one pod, state the same, and share one such record. That is exact: what
    `_of_spec` makes depends on nothing but its arguments, and of the status only on `resize_status`, never on the node.
    The encoding of the rest of `spec` is equal only where the rest itself is: MessagePack distinguishes 1 from 1.0, has
    infinities, and leaves out nothing but absent fields. Records are immutable.
    """
    node, spec.node_name = spec.node_name, None
    try:
        text = _ENCODER.encode((spec, resize_status(spec, status)))
    except (OverflowError, TypeError):  # from YAML: a whole number of more than 64 bits, or a text of a type of its own
        return _of_spec(spec, status, namespace, gpus)
    finally:
        spec.node_name = node
    key = text if len(text) <= SHORT_SPEC else blake2b(text).digest(), namespace, gpus
    known = _known_specs.get(key)
    if known is None:
        known = _of_spec(spec, status, namespace, gpus)
        _known_specs.keep(key, len(text), known)
    return known


def _of_spec(spec: schema.PodSpec, status: schema.PodStatus, namespace: str, gpus: frozenset[str]) -> PodRecord:
    if unread := too_many(spec):
        spec, status = gpus_alone(spec, gpus), schema.PodStatus()
    if unread and too_many(spec):
        spec.containers = spec.init_containers = spec.overhead = None
        cpu_milli, memory, counts = 0, 0, tuple([(name, UNKNOWN_COUNT) for name in sorted(gpus)])
    else:
        cpu_milli, memory, counts = pod_requests(spec, status, gpus)
    preferred, repelling, near, node_terms = affinity(spec.affinity, namespace)
    asking = gpu_containers(spec, gpus) if counts else ()
    spread = [constraint.when_unsatisfiable for constraint in spec.topology_spread_constraints or ()]
    return PodRecord(
        uid="", namespace="", name="", resource_version="", labels={}, annotations={}, owner=None, created=None,
        terminating=False, deletion_at=None, daemon=False, mirror=False, node="", nominated_node="", phase="",
        reason="", disruption_target="", pod_scheduled="", start=None, restarts=0, held=(),
        grace_seconds=_grace(spec.termination_grace_period_seconds),
        scheduler_name=intern(spec.scheduler_name or "default-scheduler"),
        priority=spec.priority or 0, priority_given=spec.priority is not None,
        priority_class=intern(spec.priority_class_name or ""), never=spec.preemption_policy == "Never",
        gates=() if not spec.scheduling_gates
        else _gates(tuple([gate.name or UNREADABLE for gate in spec.scheduling_gates])),
        deadline_seconds=_deadline(spec.active_deadline_seconds),
        cpu_milli=_numbers(cpu_milli), memory=_numbers(memory),
        gpus=_counts(counts), gpu_containers=_asking(asking),
        images=_images(spec, {name for name, _, _ in asking}) if asking else (),
        service_account=intern(spec.service_account_name or "default"),
        runtime_class=intern(spec.runtime_class_name or ""),
        node_selector=_selectors(tuple(sorted(strings(spec.node_selector).items()))) if spec.node_selector else (),
        node_terms=node_terms, tolerations=tolerations(spec.tolerations), host_ports=asks_host_ports(spec),
        volumes=any(
            volume.persistent_volume_claim is not None or volume.ephemeral is not None for volume in spec.volumes or ()
        ),
        claims=bool(spec.resource_claims), other_resources=asks_others(spec, gpus),
        class_requests=class_requests(spec, status),
        required_affinity=bool(repelling or near), preferred_affinity=preferred,
        anti_affinity_terms=repelling, affinity_terms=near,
        hard_spread="DoNotSchedule" in spread, soft_spread="ScheduleAnyway" in spread,
        group=_group_of(spec), quota_facts=_facts(quota_facts(spec, gpus)), unread=unread,
    )  # fmt: skip


def quota_facts(spec: schema.PodSpec, gpus: frozenset[str]) -> QuotaFacts:
    """What quotas look at besides requests of CPU, memory and GPUs."""
    amounts, unstated, best_effort = quota_amounts(spec, gpus)
    return QuotaFacts(amounts, unstated, best_effort, crosses_namespaces(spec.affinity))


def _deadline(seconds: int | None) -> int | None:
    return None if seconds is None else min(max(seconds, 0), LONGEST_DEADLINE)


def _grace(seconds: int | None) -> int:
    return _DEFAULT_GRACE if seconds is None else min(max(seconds, 0), MOST_GRACE)


def _is_static(notes: Mapping[str, str | None] | None) -> bool:
    """Whether kubelet took the pod from a file or URL of its node: it cannot be evicted."""
    if not notes:
        return False
    return MIRROR in notes or notes.get(SOURCE) in ("file", "http")


def _conditions(wire: Iterable[schema.Condition] | None) -> tuple[str, str, bool]:
    disruption_target = pod_scheduled = ""
    placeable = True
    for condition in wire or ():
        if condition.type == "DisruptionTarget" and condition.status == "True":
            disruption_target = intern(condition.reason or "")
        elif condition.type == "PodScheduled" and condition.status != "True":
            pod_scheduled = _unscheduled(condition.reason or "", condition.message or "")
        elif condition.type == PLACEABLE:
            placeable = condition.status != "False"
    return disruption_target, pod_scheduled, placeable


def _unscheduled(reason: str, message: str) -> str:
    if reason in (UNSCHEDULABLE, "SchedulerError") and "gpu-extender:" in message:
        if MOVING_TEXT in message:
            return SEAT_MOVES
        if SEAT_TEXT in message:
            return SEAT_REJECTED
    return intern(reason)


def _exited(stated: PodRecord, status: schema.PodStatus) -> float | None:
    """When a container ended last: of those with GPUs, where some state them. What runs beside them does no work."""
    last: float | None = None
    statuses = status.container_statuses or ()
    if len(statuses) > 1:
        work = {name for name, _, _ in stated.gpu_containers}
        statuses = [container for container in statuses if container.name in work] or statuses
    for container in statuses:
        for state in (container.state, container.last_state):
            if state is not None and state.terminated is not None:
                ended = epoch(state.terminated.finished_at)
                if ended is not None and (last is None or ended > last):
                    last = ended
    return last


def _held(status: schema.PodStatus, gpus: frozenset[str]) -> tuple[tuple[str, str], ...]:
    held: set[tuple[str, str]] = set()
    for statuses in (status.init_container_statuses, status.container_statuses):
        for container in statuses or ():
            for resource in container.allocated_resources_status or ():
                if resource.name in gpus:
                    name = intern(resource.name)
                    held.update((name, device.resource_id) for device in resource.resources or () if device.resource_id)
    return tuple(sorted(held))


def _claim_refs(spec: schema.PodSpec, status: schema.PodStatus) -> tuple[PodClaimRef, ...]:
    names = {entry.name: entry.resource_claim_name or "" for entry in status.resource_claim_statuses or ()}
    return tuple(
        [
            PodClaimRef(ref.resource_claim_name or names.get(ref.name, ""), ref.resource_claim_template_name or "")
            for ref in spec.resource_claims or ()
        ]
    )


def _extended(status: schema.PodStatus) -> str:
    claim_status = status.extended_resource_claim_status
    return (claim_status.resource_claim_name or "") if claim_status is not None else ""


def _images(spec: schema.PodSpec, names: set[str]) -> tuple[str, ...]:
    containers = (*(spec.init_containers or ()), *(spec.containers or ()))
    stated = {container.image or "" for container in containers if (container.name or "") in names} - {""}
    images = {image[:MOST_OF_IMAGE] for image in stated}
    return tuple([intern(image) for image in sorted(images)[:MOST_IMAGES]])


def _group_of(spec: schema.PodSpec) -> tuple[str, str, str] | None:
    if spec.scheduling_group is not None and spec.scheduling_group.pod_group_name:
        return "", spec.scheduling_group.pod_group_name, ""
    ref = spec.workload_ref
    return (ref.name, ref.pod_group or "", ref.pod_group_replica_key or "") if ref is not None and ref.name else None


# -- what causes a pod's failure, as far as kubelet and the container runtime report it: the node, or perhaps the pod.
#
# A failure counts as the node's only where no pod can cause it at will: it rejects the node for the pods of all
# tenants. Everything else may be the pod's own doing, and is held against pods of its namespace only.
#
# Admission. kubelet writes status.reason UnexpectedAdmissionError (pkg/kubelet/cm/admission/errors.go of 1.37) where
# the device plugin or the device manager fails, but also for what a pod chooses. These messages count as the pod's:
#
# - `requested number of devices unavailable` (cm/devicemanager/manager.go): a pod with spec.nodeName bypasses the
#   scheduler and asks for more GPUs than are free. This check comes before that of the predicates (`OutOf...`);
# - `maximum request size for shared resources` (NVIDIA's device plugin, failRequestsGreaterThanOne);
# - what the CPU manager and the memory manager say (`not enough cpus`, `[memorymanager]`, `pod rejected, ...`);
# - `attempting to recover from admission failure` (lifecycle/predicate.go): a critical pod that finds no room;
# - a resource that is no GPU of ours: another device plugin fails. The error of a plugin's RPC names no resource; where
#   the pod asks for other devices too, it may be theirs.
#
# All other reasons of admission (`OutOf...`, NodeAffinity, TopologyAffinityError, ...) are the pod's: it asks for what
# the node does not offer.
#
# Runtime. The text of a container's state is tenant-written in part: a command that does not exist stands in it word by
# word. So a message counts as the node's only where a known text stands at its very beginning:
#
# - CDI devices that containerd does not find (`CDI device injection failed`): the device plugin names them, no pod
#   does. The same from nvidia-container-runtime (`failed to inject CDI devices`), and `nvidia-container-cli: device
#   error`, follow NVIDIA_VISIBLE_DEVICES, which a pod's own `env` overrides (kubelet_pods.go appends it behind the
#   plugin's);
# - NVML errors of the node's driver from NVIDIA's hook. `requirement error`, `ldcache error` and `mount error` depend
#   on the image, and are left out.
#
# A message that a container writes itself (terminationMessagePath) stands in a state with another reason than those of
# STARTS: the runtime gives those only to a container whose process never ran (containerd: errorStartReason).


Fault = Literal["", "admission", "runtime", "refused"]
"""admission: kubelet could not allocate the devices; runtime: the container runtime could not hand them to a container;
refused: kubelet did not admit the pod, which may be the pod's doing; "": none of these is reported."""

ADMISSION: Final = "UnexpectedAdmissionError"
STARTS: Final = frozenset({"CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun"})
NOT_ADMITTED: Final = frozenset(
    {"NodeAffinity", "NodeName", "NodePorts", "TopologyAffinityError", "SMTAlignmentError", "EmptyPodSharedPoolError"}
)
MOST_TEXT: Final = 4096  # characters of a message that are looked at

_BY_POD: Final = re.compile(
    r"requested number of devices unavailable|maximum request size for shared resources|not enough cpus|"
    r"failed to allocate cpus|\[memorymanager\]|pod rejected, |attempting to recover from admission failure"
)
_RESOURCE: Final = re.compile(
    r"(?:unregistered device|unhealthy devices|unknown Device Plugin|registered resource:|request for resource) "
    r"\"?([a-zA-Z0-9./_-]{1,317}?)\"?(?:, which|\s|$)"
)
_CDI: Final = re.compile(
    r"(?:failed to create containerd container: )?CDI device injection failed: unresolvable CDI devices "
    r"(?:[a-z0-9-]+\.)*(?:nvidia|amd)\.com/"
)
_NVML: Final = re.compile(
    r"(?:failed to create containerd task: )?(?:failed to create task for container: )?"
    r"(?:failed to create shim task: )?OCI runtime create failed: (?:runc create failed: )?"
    r"unable to start container process: (?:error during container init: )?error running (?:[a-zA-Z]+ )?hook #\d+: "
    r"(?:error running hook: )?exit status \d+, stdout: , stderr: (?:Auto-detected mode as '[a-z-]+'\s+)?"
    r"nvidia-container-cli(?:\.real)?: (?:initialization|detection) error: nvml error: "
    r"(?:driver not loaded|driver/library version mismatch|gpu is lost|gpu requires reset)",
    re.IGNORECASE,
)


def fault(status: schema.PodStatus, gpus: frozenset[str], *, others: bool = False) -> Fault:
    """What kubelet reports of a pod that asks for GPUs. `gpus`: the names of the GPU resources; `others`: whether the
    pod asks for devices besides."""
    if status.phase == "Failed" and status.reason == ADMISSION:
        return _admission((status.message or "")[:MOST_TEXT], gpus, others)
    for state in _states(status):
        if state.reason in STARTS and state.message:
            text = state.message[:MOST_TEXT]
            if _CDI.match(text) or _NVML.match(text):
                return "runtime"
    if status.phase == "Failed" and _not_admitted(status.reason or ""):
        return "refused"
    return ""


def _admission(message: str, gpus: frozenset[str], others: bool) -> Fault:
    if _BY_POD.search(message):
        return "refused"
    named = _RESOURCE.search(message)
    if named is None:
        return "refused" if others else "admission"
    return "admission" if named[1] in gpus else "refused"


def _not_admitted(reason: str) -> bool:
    """Reasons of lifecycle/predicate.go and of the resource managers that state what the pod asks for."""
    return reason.startswith("OutOf") or reason in NOT_ADMITTED


def _states(status: schema.PodStatus) -> Iterator[schema.StateDetail]:
    """What keeps each container from running now; how it ended the last time, while it waits for its next start."""
    for container in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        state, last = container.state, container.last_state
        if state is None:
            continue
        for detail in (state.waiting, state.terminated):
            if detail is not None:
                yield detail
        if last is not None and last.terminated is not None and state.waiting is not None:
            yield last.terminated
