"""Kubernetes objects as slim records: only the fields that we use, decoded straight from JSON.

Records are what the rest of the program sees of Kubernetes: flat, immutable, compared by value and, as none refers back
to another, outside the garbage collector. A field of a wrong type or an impossible quantity is a ``RecordError`` that
says where; `tolerant.py` reads the rest of such an object. Every function takes the bytes of one object, or the
same as a dict (from YAML); ``gpus`` are the names of the resources that count as GPUs.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from sys import intern
from typing import Any, Final, Literal, NamedTuple

import msgspec

from extender.objects import schema
from extender.objects.failure_cause import Fault, fault
from extender.objects.resources import asks_devices, asks_others, gpu_containers, pod_requests, quantity
from extender.objects.schema import RecordError, Source, read
from extender.objects.selectors import NOTHING, NodeTerm, Operator, PodTerm, Requirement, Selector, Taint, Toleration

__all__ = [
    "GROUPS", "KINDS", "OURS", "DeviceClassRecord", "GroupRecord", "Identity", "Kind", "NodeRecord", "Owner", "Page",
    "PdbRecord", "PodRecord", "PriorityClassRecord", "Record", "RecordError", "Source", "device_class", "group",
    "identity", "is_group", "items", "node", "page", "pod", "pod_disruption_budget", "priority_class", "record",
    "selects",
]  # fmt: skip

Kind = Literal["Pod", "FailedPod", "Node", "PodDisruptionBudget", "PriorityClass", "DeviceClass", "Group"]
"""FailedPod: a Pod that holds nothing any more, and tells how it ended. Group: one of GROUPS, an object that says how
many pods of a group must run."""
KINDS: Final[tuple[Kind, ...]] = ("Pod", "Node", "PodDisruptionBudget", "PriorityClass", "DeviceClass")
OURS: Final = "gpu-extender.io/"
FOREIGN: Final = frozenset(
    {
        "scheduling.k8s.io/group-name",  # Volcano
        "scheduling.volcano.sh/group-name",
        "kueue.x-k8s.io/pod-group-total-count",
        "leaderworkerset.sigs.k8s.io/size",
    }
)
"""Other people's annotations that we read (extender.objects.gangs)."""
GROUPS: Final = frozenset(
    {
        ("scheduling.k8s.io", "PodGroup"),
        ("scheduling.k8s.io", "Workload"),
        ("scheduling.x-k8s.io", "PodGroup"),
        ("scheduling.volcano.sh", "PodGroup"),
        ("batch", "Job"),
        ("jobset.x-k8s.io", "JobSet"),
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
        ("ray.io", "RayCluster"),
        *(
            ("kubeflow.org", kind)
            for kind in ("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob", "MXJob")
        ),
    }
)
"""(API group, kind) of the objects that say how many pods of a group must run."""
MIRROR: Final = "kubernetes.io/config.mirror"
SOURCE: Final = "kubernetes.io/config.source"

MOST_IMAGES: Final = 4  # of a pod that are kept, and the characters of each: what failed pods have in common
MOST_OF_IMAGE: Final = 256
MOST_GRACE: Final = 10**9  # seconds, 31 years: a longer grace counts as this, so that what is written can be read back
_SHARED_TOLERATIONS: Final = 16  # of one pod, that are kept for other pods with the same
_SHARED: Final = 1024  # characters of their keys and values
_DEFAULT_GRACE: Final = 30  # seconds; the API's own default of terminationGracePeriodSeconds


# ---- the records


class Owner(NamedTuple):
    """The controlling owner of a pod."""

    kind: str
    name: str
    uid: str
    api: str = ""
    """Its API group; "" for the core group, or when it is not said."""


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
    """When its grace ends and it is killed; None when nobody deleted it."""
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

    def may_repel(self, other: PodRecord) -> bool:
        """Whether a required anti-affinity of this pod may speak of the other; its topology is not looked at."""
        return any(term.may_match(other.namespace, other.labels) for term in self.anti_affinity_terms)

    def may_need(self, other: PodRecord) -> bool:
        """Whether a required affinity of this pod may be met by the other; its topology is not looked at."""
        return any(term.may_match(other.namespace, other.labels) for term in self.affinity_terms)

    def accepts(self, node: NodeRecord) -> bool:
        """Whether its nodeSelector and required node affinity let it onto the node."""
        return selects(self.node_selector, self.node_terms, node)


class NodeRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A node. ``gpus`` are allocatable, ``gpu_capacity`` counts unhealthy ones too."""

    uid: str
    name: str
    resource_version: str
    labels: dict[str, str]
    annotations: dict[str, str]
    unschedulable: bool
    taints: tuple[Taint, ...]
    cpu_milli: int
    memory: int
    pods: int
    gpus: dict[str, int]
    gpu_capacity: dict[str, int]


def selects(
    node_selector: tuple[tuple[str, str], ...], node_terms: tuple[NodeTerm, ...] | None, node: NodeRecord
) -> bool:
    """Whether a nodeSelector and a required node affinity let a pod onto the node."""
    labels = node.labels
    if any(labels.get(key) != wanted for key, wanted in node_selector):
        return False
    return node_terms is None or any(term.matches(node.name, labels) for term in node_terms)


class PdbRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A PodDisruptionBudget. ``disrupted_pods`` are names that ``disruptions_allowed`` has already paid for."""

    uid: str
    namespace: str
    name: str
    resource_version: str
    selector: Selector
    disruptions_allowed: int
    disrupted_pods: frozenset[str]


class PriorityClassRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A PriorityClass."""

    uid: str
    name: str
    resource_version: str
    value: int
    never: bool
    global_default: bool


class DeviceClassRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A DeviceClass. ``extended_resource_name`` is the resource that it also serves, "" for none."""

    uid: str
    name: str
    resource_version: str
    extended_resource_name: str


class GroupRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An object of GROUPS. ``minimum``: how many of its pods must run, None when it does not say (0: none must;
    below 0, or above gangs.MOST: what it says can not be meant, or not be read);
    ``parts``: the same by the name of a part, where it has named parts; ``owner``: its controller, where that is one of
    GROUPS too (a JobSet owns Jobs)."""

    uid: str
    api: str
    kind: str
    namespace: str
    name: str
    resource_version: str
    minimum: int | None
    parts: tuple[tuple[str, int | None], ...]
    owner: Owner | None = None


Record = PodRecord | NodeRecord | PdbRecord | PriorityClassRecord | DeviceClassRecord | GroupRecord


_POD: Final = msgspec.json.Decoder(schema.Pod)
_NODE: Final = msgspec.json.Decoder(schema.Node)
_PDB: Final = msgspec.json.Decoder(schema.Pdb)
_PRIORITY_CLASS: Final = msgspec.json.Decoder(schema.PriorityClass)
_DEVICE_CLASS: Final = msgspec.json.Decoder(schema.DeviceClass)
_GROUP: Final = msgspec.json.Decoder(schema.Group)
_LIST: Final = msgspec.json.Decoder(schema.List)
_KINDED: Final = msgspec.json.Decoder(schema.Kinded)
_NAMED: Final = msgspec.json.Decoder(schema.Named)


# ---- from the wire to records


def pod(source: Source, gpus: frozenset[str]) -> PodRecord:
    """The record of a Pod. Without a namespace it is in "default", as kubectl has it."""
    return pod_of(read(source, _POD), gpus)


def pod_of(wire: schema.Pod, gpus: frozenset[str]) -> PodRecord:
    """The record of a decoded Pod."""
    meta = _metadata(wire.metadata)
    spec = wire.spec or schema.PodSpec()
    status = wire.status or schema.PodStatus()
    namespace = intern(meta.namespace or "default")
    cpu_milli, memory, counts = pod_requests(spec, status, gpus)
    preferred, repelling, near, node_terms = _affinity(spec.affinity, namespace)
    asking = gpu_containers(spec, gpus) if counts else ()
    owner = _controller(meta)
    disruption_target, pod_scheduled = _conditions(status.conditions)
    terminating = meta.deletion_timestamp is not None
    granted = meta.deletion_grace_period_seconds if terminating else spec.termination_grace_period_seconds
    spread = [one.when_unsatisfiable for one in spec.topology_spread_constraints or ()]
    return PodRecord(
        uid=meta.uid or "",
        namespace=namespace,
        name=meta.name or meta.generate_name or "",
        resource_version=meta.resource_version or "",
        labels=_strings(meta.labels),
        annotations=_ours(meta.annotations),
        owner=owner,
        created=_epoch(meta.creation_timestamp),
        terminating=terminating,
        deletion_at=_epoch(meta.deletion_timestamp),
        grace_seconds=_DEFAULT_GRACE if granted is None else min(max(granted, 0), MOST_GRACE),
        daemon=owner is not None and owner.kind == "DaemonSet",
        mirror=_is_static(meta.annotations or {}) or (owner is not None and owner.kind == "Node"),
        node=intern(spec.node_name or ""),
        nominated_node=intern(status.nominated_node_name or ""),
        scheduler_name=intern(spec.scheduler_name or "default-scheduler"),
        priority=spec.priority or 0,
        priority_class=intern(spec.priority_class_name or ""),
        priority_given=spec.priority is not None,
        never=spec.preemption_policy == "Never",
        gated=bool(spec.scheduling_gates),
        phase=intern(status.phase or ""),
        reason=intern(status.reason or ""),
        fault=fault(status, gpus, others=status.phase == "Failed" and asks_devices(spec, gpus)) if counts else "",
        disruption_target=disruption_target,
        pod_scheduled=pod_scheduled,
        start=_epoch(status.start_time),
        restarts=sum([one.restart_count or 0 for one in status.container_statuses or ()]),
        cpu_milli=cpu_milli,
        memory=memory,
        gpus=counts,
        gpu_containers=asking,
        images=_images(spec, {name for name, _, _ in asking}) if asking else (),
        service_account=intern(spec.service_account_name or "default") if counts else "",
        held=_held(status, gpus),
        node_selector=tuple(sorted(_strings(spec.node_selector).items())),
        node_terms=node_terms,
        tolerations=_tolerations(spec.tolerations),
        host_ports=_asks_host_ports(spec),
        volumes=any(one.persistent_volume_claim is not None or one.ephemeral is not None for one in spec.volumes or ()),
        claims=bool(spec.resource_claims),
        other_resources=asks_others(spec, gpus),
        required_affinity=bool(repelling or near),
        preferred_affinity=preferred,
        hard_spread="DoNotSchedule" in spread,
        soft_spread="ScheduleAnyway" in spread,
        anti_affinity_terms=repelling,
        affinity_terms=near,
        group=_group_of(spec),
    )


def node(source: Source, gpus: frozenset[str]) -> NodeRecord:
    """The record of a Node. Where a node does not say what is allocatable, that is its capacity, as the API has it."""
    return node_of(read(source, _NODE), gpus)


def node_of(wire: schema.Node, gpus: frozenset[str]) -> NodeRecord:
    """The record of a decoded Node."""
    meta = _metadata(wire.metadata)
    spec = wire.spec or schema.NodeSpec()
    status = wire.status or schema.NodeStatus()
    capacity = status.capacity or {}
    where, allocatable = ("capacity", capacity) if status.allocatable is None else ("allocatable", status.allocatable)
    path = f"status.{where}"
    return NodeRecord(
        uid=meta.uid or "",
        name=intern(meta.name or ""),
        resource_version=meta.resource_version or "",
        labels=_strings(meta.labels),
        annotations=_ours(meta.annotations),
        unschedulable=bool(spec.unschedulable),
        taints=tuple([_taint(one.key, one.value or "", one.effect) for one in spec.taints or ()]),
        cpu_milli=quantity(allocatable, "cpu", path),
        memory=quantity(allocatable, "memory", path),
        pods=quantity(allocatable, "pods", path),
        gpus={name: quantity(allocatable, name, path) for name in sorted(gpus) if name in allocatable},
        gpu_capacity={name: quantity(capacity, name, "status.capacity") for name in sorted(gpus) if name in capacity},
    )


def pod_disruption_budget(source: Source) -> PdbRecord:
    """The record of a PodDisruptionBudget. Without a status nothing may be disrupted yet."""
    return budget_of(read(source, _PDB))


def budget_of(wire: schema.Pdb) -> PdbRecord:
    """The record of a decoded PodDisruptionBudget."""
    meta = _metadata(wire.metadata)
    status = wire.status or schema.PdbStatus()
    return PdbRecord(
        uid=meta.uid or "",
        namespace=intern(meta.namespace or "default"),
        name=meta.name or "",
        resource_version=meta.resource_version or "",
        selector=_selector(wire.spec.selector if wire.spec else None, "spec.selector"),
        disruptions_allowed=status.disruptions_allowed or 0,
        disrupted_pods=frozenset(status.disrupted_pods or ()),
    )


def priority_class(source: Source) -> PriorityClassRecord:
    """The record of a PriorityClass."""
    wire = read(source, _PRIORITY_CLASS)
    meta = _metadata(wire.metadata)
    if wire.value is None:
        raise RecordError("value", "a PriorityClass needs one")
    return PriorityClassRecord(
        uid=meta.uid or "",
        name=meta.name or "",
        resource_version=meta.resource_version or "",
        value=wire.value,
        never=wire.preemption_policy == "Never",
        global_default=bool(wire.global_default),
    )


def device_class(source: Source) -> DeviceClassRecord:
    """The record of a DeviceClass."""
    wire = read(source, _DEVICE_CLASS)
    meta = _metadata(wire.metadata)
    return DeviceClassRecord(
        uid=meta.uid or "",
        name=meta.name or "",
        resource_version=meta.resource_version or "",
        extended_resource_name=(wire.spec.extended_resource_name if wire.spec else None) or "",
    )


def group(source: Source, api: str = "", kind: str = "") -> GroupRecord:
    """The record of an object of GROUPS; ``api`` and ``kind`` where the object does not say them (typed lists)."""
    wire = read(source, _GROUP)
    meta = _metadata(wire.metadata)
    api = _api_group(wire.api_version) or api
    kind = wire.kind or kind
    spec, status = wire.spec or schema.GroupSpec(), wire.status or schema.GroupStatus()
    owner = _controller(meta)
    parts: tuple[tuple[str, int | None], ...] = ()
    minimum: int | None = None
    if kind == "Workload":
        named = [*(spec.pod_groups or ()), *(spec.pod_group_templates or ())]
        parts = tuple((one.name or "", _policy(one.policy or one.scheduling_policy)) for one in named)
    elif kind == "PodGroup":
        minimum = spec.min_member if spec.min_member is not None else _policy(spec.scheduling_policy)
    elif kind == "Job":
        minimum = _job(spec.parallelism, spec.completions, status.succeeded)
    elif kind == "JobSet":
        jobs = [(one.replicas, one.template.spec if one.template else None) for one in spec.replicated_jobs or ()]
        if jobs:
            minimum = sum(
                (1 if count is None else count) * (_job(job.parallelism, job.completions, None) if job else 1)
                for count, job in jobs
            )
    elif kind == "LeaderWorkerSet":
        minimum = spec.leader_worker_template.size if spec.leader_worker_template else None
    elif kind == "RayCluster":
        minimum = _ray(spec)
    else:
        minimum = _training(spec)
    return GroupRecord(
        uid=meta.uid or "",
        api=api,
        kind=kind,
        namespace=intern(meta.namespace or "default"),
        name=meta.name or "",
        resource_version=meta.resource_version or "",
        minimum=minimum,
        parts=parts,
        owner=owner if owner is not None and (owner.api, owner.kind) in GROUPS else None,
    )


def is_group(source: Source) -> bool:
    """Whether an object is one of GROUPS, by its apiVersion and kind."""
    kinded = read(source, _KINDED)
    return (_api_group(kinded.api_version), kinded.kind or "") in GROUPS


def _api_group(api_version: str | None) -> str:
    return (api_version or "").rpartition("/")[0]


def _policy(wire: schema.SchedulingPolicy | None) -> int | None:
    """gang: its minCount; basic: the pods are independent, so none must run; neither: not known."""
    if wire is None:
        return None
    return wire.gang.min_count if wire.gang is not None else 0 if wire.basic is not None else None


def _job(parallelism: int | None, completions: int | None, succeeded: int | None) -> int:
    """Pods that a Job runs at once: parallelism (default 1), at most what is left to complete."""
    left = None if completions is None else max(0, completions - (succeeded or 0))
    wanted = 1 if parallelism is None else parallelism
    return wanted if left is None else min(wanted, left)


def _ray(spec: schema.GroupSpec) -> int:
    """The head, and all hosts of each group of workers: with the autoscaler as many as it always keeps."""
    least = bool(spec.enable_in_tree_autoscaling)
    return 1 + sum(
        ((group.min_replicas if least or group.replicas is None else group.replicas) or 0)
        * (1 if group.num_of_hosts is None else group.num_of_hosts)
        for group in spec.worker_group_specs or ()
    )


def _training(spec: schema.GroupSpec) -> int | None:
    """minAvailable, else (elastic) minReplicas, else all replicas."""
    policy = spec.run_policy.scheduling_policy if spec.run_policy else None
    if policy is not None and policy.min_available is not None:
        return policy.min_available
    roles = [
        role
        for specs in (
            spec.pytorch_replica_specs,
            spec.tf_replica_specs,
            spec.mpi_replica_specs,
            spec.xgb_replica_specs,
            spec.paddle_replica_specs,
            spec.jax_replica_specs,
            spec.mx_replica_specs,
        )
        for role in (specs or {}).items()
    ]
    if not roles:
        return None
    elastic = spec.elastic_policy.min_replicas if spec.elastic_policy else None
    return sum(
        min(elastic, count) if elastic is not None and name == "Worker" else count
        for name, count in ((name, 1 if one.replicas is None else one.replicas) for name, one in roles)
    )


def record(kind: Kind, source: Source, gpus: frozenset[str]) -> Record:
    """The record of an object whose kind is known."""
    return _DECODERS[kind](source, gpus)


_DECODERS: Final[dict[Kind, Callable[[Source, frozenset[str]], Record]]] = {
    "Pod": pod,
    "Node": node,
    "PodDisruptionBudget": lambda source, gpus: pod_disruption_budget(source),
    "PriorityClass": lambda source, gpus: priority_class(source),
    "DeviceClass": lambda source, gpus: device_class(source),
    "FailedPod": pod,
    "Group": lambda source, gpus: group(source),
}


class Identity(NamedTuple):
    """Which object it is, and which version of it."""

    namespace: str
    """"" for what has none."""
    name: str
    uid: str
    resource_version: str


def identity(source: Source) -> Identity:
    """Which object it is, of any kind: what can still be said of one whose other fields are unreadable."""
    meta = read(source, _NAMED).metadata or schema.Metadata()
    return Identity(meta.namespace or "", meta.name or "", meta.uid or "", meta.resource_version or "")


# ---- lists


class Page(NamedTuple):
    """One answer to a list request: its objects, still bytes, and where the rest is.

    The objects point into the answer's own bytes, so a page is to be used up and dropped.
    """

    kind: str
    """Of one item; "" for a List of mixed kinds."""
    resource_version: str
    continue_token: str
    """"" on the last page."""
    items: list[msgspec.Raw]


def page(source: bytes) -> Page:
    """A ``PodList``, ``NodeList`` ... or ``List``, with its objects not yet decoded."""
    wire = read(source, _LIST)
    meta = wire.metadata or schema.ListMetadata()
    if wire.kind is None or not wire.kind.endswith("List"):
        raise RecordError("kind", f"not a list: {wire.kind!r}")
    return Page(wire.kind.removesuffix("List"), meta.resource_version or "", meta.continue_ or "", wire.items or [])


def items(source: bytes, gpus: frozenset[str]) -> Iterator[tuple[str, Record | None]]:
    """(kind, record) of each object of a list, as ``kubectl get -o json`` prints it; None for kinds we do not know."""
    listed = page(source)
    for index, raw in enumerate(listed.items):
        try:
            kind = read(raw, _KINDED).kind or listed.kind
            yield kind, record(kind, raw, gpus) if kind in _DECODERS else None
        except RecordError as error:
            raise RecordError(f"items[{index}]" + (f".{error.path}" if error.path else ""), error.message) from error


# ---- the parts of an object


def _metadata(wire: schema.Metadata | None) -> schema.Metadata:
    if wire is None or not (wire.name or wire.generate_name):
        raise RecordError("metadata.name", "the object has no name")
    return wire


def _strings(wire: Mapping[str, str | None] | None) -> dict[str, str]:
    # Interned: fleets repeat a few thousand keys and values millions of times.
    return {intern(key): intern(text or "") for key, text in wire.items()} if wire else {}


def _ours(wire: Mapping[str, str | None] | None) -> dict[str, str]:
    if not wire:
        return {}
    return {intern(key): text or "" for key, text in wire.items() if key.startswith(OURS) or key in FOREIGN}


def _epoch(moment: datetime.datetime | None) -> float | None:
    if moment is None:
        return None
    if moment.tzinfo is None:  # a YAML timestamp without a zone is UTC (YAML 1.1, timestamp type)
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()


def _controller(meta: schema.Metadata) -> Owner | None:
    for one in meta.owner_references or ():
        # Files written by hand leave `controller` out; these two kinds own pods in no other way.
        if one.controller or (one.controller is None and one.kind in ("DaemonSet", "Node")):
            return Owner(intern(one.kind or ""), one.name or "", one.uid or "", intern(_api_group(one.api_version)))
    return None


def _is_static(notes: Mapping[str, str | None]) -> bool:
    """Whether kubelet took the pod from a file or URL of its node: nobody can evict it."""
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


# ---- placement


def _asks_host_ports(spec: schema.PodSpec) -> bool:
    for containers in (spec.containers, spec.init_containers):
        for one in containers or ():
            if one.ports and (spec.host_network or any(port.host_port for port in one.ports)):
                return True
    return False


def _requirements(wire: Iterable[schema.Expression] | None, path: str) -> Iterator[Requirement]:
    for index, one in enumerate(wire or ()):
        values = tuple(one.values or ())
        # An empty In matches nothing and an empty NotIn everything: the API refuses them, so do we.
        wrong = not values if one.operator in ("In", "NotIn") else bool(values) if "Exist" in one.operator else False
        if wrong:
            raise RecordError(f"{path}[{index}].values", f"{len(values)} values for operator {one.operator}")
        yield Requirement(intern(one.key), intern(one.operator), values)  # type: ignore[arg-type]


def _selector(wire: schema.LabelSelector | None, path: str) -> Selector:
    if wire is None:
        return NOTHING
    equal: Operator = "In"
    found = [Requirement(key, equal, (text,)) for key, text in sorted(_strings(wire.match_labels).items())]
    for one in _requirements(wire.match_expressions, f"{path}.matchExpressions"):
        if one.operator in ("Gt", "Lt"):
            raise RecordError(f"{path}.matchExpressions", f"operator {one.operator} is for nodes only")
        found.append(one)
    return Selector(tuple(found))


def _affinity(
    wire: schema.Affinity | None, namespace: str
) -> tuple[bool, tuple[PodTerm, ...], tuple[PodTerm, ...], tuple[NodeTerm, ...] | None]:
    """(any preferred term, required anti-affinity, required pod affinity, required node affinity)."""
    if wire is None:
        return False, (), (), None
    nodes, near, apart = wire.node_affinity, wire.pod_affinity, wire.pod_anti_affinity
    repelling, attracting = (
        tuple(
            _pod_term(one, namespace, f"spec.affinity.{field}.requiredDuringScheduling[{index}]")
            for index, one in enumerate((part and part.required) or ())
        )
        for field, part in (("podAntiAffinity", apart), ("podAffinity", near))
    )
    preferred = any(part is not None and part.preferred for part in (nodes, near, apart))
    terms: tuple[NodeTerm, ...] | None = None
    if nodes is not None and nodes.required is not None:
        path = "spec.affinity.nodeAffinity"
        terms = tuple(
            NodeTerm(
                tuple(_requirements(one.match_expressions, f"{path}.matchExpressions")),
                tuple(_requirements(one.match_fields, f"{path}.matchFields")),
            )
            for one in nodes.required.node_selector_terms or ()
        )
    return preferred, repelling, attracting, terms


def _images(spec: schema.PodSpec, names: set[str]) -> tuple[str, ...]:
    containers = (*(spec.init_containers or ()), *(spec.containers or ()))
    found = {one.image[:MOST_OF_IMAGE] for one in containers if one.image and (one.name or "") in names}
    return tuple([intern(image) for image in sorted(found)[:MOST_IMAGES]])


def _group_of(spec: schema.PodSpec) -> tuple[str, str, str] | None:
    if spec.scheduling_group is not None and spec.scheduling_group.pod_group_name:
        return "", spec.scheduling_group.pod_group_name, ""
    ref = spec.workload_ref
    return (ref.name, ref.pod_group or "", ref.pod_group_replica_key or "") if ref is not None and ref.name else None


def _pod_term(wire: schema.PodAffinityTerm, namespace: str, path: str) -> PodTerm:
    # Neither namespaces nor a selector of them: the pod's own. Both: their union, of which we know a part only.
    named = None if wire.namespace_selector is not None else frozenset(wire.namespaces or (namespace,))
    return PodTerm(intern(wire.topology_key), _selector(wire.label_selector, f"{path}.labelSelector"), named)


@lru_cache(maxsize=4096)  # of nodes: the API server bounds a taint to 400 characters, so all together are below 4 MB
def _taint(key: str, text: str, effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]) -> Taint:
    return Taint(intern(key), intern(text), effect)


def _tolerations(wire: Iterable[schema.Toleration] | None) -> tuple[Toleration, ...]:
    found = tuple([(one.key, one.operator, one.value, one.effect) for one in wire or ()])
    if len(found) <= _SHARED_TOLERATIONS and sum([len(one[0] or "") + len(one[2] or "") for one in found]) <= _SHARED:
        return _share(found)
    return _made(found)


def _made(all_of_one_pod: tuple[tuple[Any, Any, Any, Any], ...]) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(key or "", operator or "Equal", text or "", effect or "")
        for key, operator, text, effect in all_of_one_pod
    )


# Nearly every pod has the same two, so nearly all share one tuple. Tenants write them: what one pod may leave here is
# short (16 tolerations of 1,024 characters in all, below 10 kB), so all together are below 10 MB.
_share = lru_cache(maxsize=1024)(_made)
