"""Kubernetes objects as slim records: only the fields that we use, decoded straight from JSON.

Two kinds of structs live here. The private ``_Wire`` ones mirror the API's own shape: msgspec fills them and skips what
they do not name, and null is taken for absent. The public records are what the rest of the program sees: flat,
immutable, compared by value and, as none refers back to another, outside the garbage collector.

A field of a wrong type or an impossible quantity is a ``RecordError`` that says where. Every function takes the bytes
of one object, or the same as a dict (from YAML); ``gpus`` are the names of the resources that count as GPUs.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from sys import intern
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, cast

import msgspec

from extender.quantity import QuantityError, milli, value
from extender.selectors import NOTHING, NodeTerm, Operator, PodTerm, Requirement, Selector, Taint, Toleration

Kind = Literal["Pod", "Node", "PodDisruptionBudget", "PriorityClass", "DeviceClass"]
KINDS: Final[tuple[Kind, ...]] = ("Pod", "Node", "PodDisruptionBudget", "PriorityClass", "DeviceClass")
OURS: Final = "gpu-extender.io/"
MIRROR: Final = "kubernetes.io/config.mirror"

_DEFAULT_GRACE: Final = 30  # seconds; the API's own default of terminationGracePeriodSeconds


class RecordError(ValueError):
    """An object that cannot be read. ``path`` is the field (``spec.nodeName``), "" for the whole object."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


# ---- the records


class Owner(NamedTuple):
    """The controlling owner of a pod."""

    kind: str
    name: str
    uid: str


class PodRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A pod. Times are seconds since the epoch, memory is bytes, CPU is thousandths of a core."""

    uid: str
    namespace: str
    name: str
    resource_version: str
    labels: dict[str, str]
    annotations: dict[str, str]
    """Only ours (``gpu-extender.io/``)."""
    owner: Owner | None
    created: float | None
    terminating: bool
    deletion_at: float | None
    """When its grace ends and it is killed; None when nobody deleted it."""
    grace_seconds: int
    """What is granted: by the deletion when there is one, else by its specification."""
    daemon: bool
    mirror: bool

    node: str
    """"" until bound."""
    nominated_node: str
    scheduler_name: str
    priority: int
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
    start: float | None

    cpu_milli: int
    memory: int
    gpus: tuple[tuple[str, int], ...]
    """(resource, count) in the order of the names, counts above 0: what the scheduler counts for the pod."""
    gpu_containers: tuple[tuple[str, str, int], ...]
    """(container, resource, count) in the order in which kubelet admits them: init containers first."""
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
    required_affinity: bool
    """Any required pod affinity or anti-affinity."""
    preferred_affinity: bool
    """Any preferred node or pod (anti-)affinity."""
    hard_spread: bool
    soft_spread: bool
    anti_affinity_terms: tuple[PodTerm, ...]

    @property
    def finished(self) -> bool:
        """Whether it ran to its end: it holds nothing on its node any more."""
        return self.phase in ("Succeeded", "Failed")

    def may_repel(self, other: PodRecord) -> bool:
        """Whether a required anti-affinity of this pod may speak of the other; its topology is not looked at."""
        return any(term.may_match(other.namespace, other.labels) for term in self.anti_affinity_terms)

    def accepts(self, node: NodeRecord) -> bool:
        """Whether its nodeSelector and required node affinity let it onto the node."""
        labels = node.labels
        if any(labels.get(key) != wanted for key, wanted in self.node_selector):
            return False
        return self.node_terms is None or any(term.matches(node.name, labels) for term in self.node_terms)


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


Record = PodRecord | NodeRecord | PdbRecord | PriorityClassRecord | DeviceClassRecord


# ---- the shapes on the wire


class _Wire(msgspec.Struct, rename="camel", gc=False):
    pass


_Text = str | None
_Flag = bool | None
_Quantity = str | int | float | None
_Resources = dict[str, _Quantity] | None
_Map = dict[str, str | None] | None
_Time = datetime.datetime | None
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] | None


class _OwnerReference(_Wire):
    kind: _Text = None
    name: _Text = None
    uid: _Text = None
    controller: _Flag = None


class _Metadata(_Wire):
    uid: _Text = None
    name: _Text = None
    generate_name: _Text = None
    namespace: _Text = None
    resource_version: _Text = None
    labels: _Map = None
    annotations: _Map = None
    owner_references: list[_OwnerReference] | None = None
    creation_timestamp: _Time = None
    deletion_timestamp: _Time = None
    deletion_grace_period_seconds: int | None = None


class _Requirements(_Wire):
    requests: _Resources = None
    limits: _Resources = None


class _Port(_Wire):
    host_port: int | None = None


class _Container(_Wire):
    name: _Text = None
    resources: _Requirements | None = None
    ports: list[_Port] | None = None
    restart_policy: _Text = None


class _Present(_Wire):
    """An object whose presence is all we ask."""


class _Volume(_Wire):
    persistent_volume_claim: _Present | None = None
    ephemeral: _Present | None = None


class _Expression(_Wire):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: list[str] | None = None


class _LabelSelector(_Wire):
    match_labels: _Map = None
    match_expressions: list[_Expression] | None = None


class _PodAffinityTerm(_Wire):
    topology_key: str = ""
    label_selector: _LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: _LabelSelector | None = None


class _PodAffinity(_Wire):
    required: list[_PodAffinityTerm] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[_Present] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class _NodeTerm(_Wire):
    match_expressions: list[_Expression] | None = None
    match_fields: list[_Expression] | None = None


class _NodeSelector(_Wire):
    node_selector_terms: list[_NodeTerm] | None = None


class _NodeAffinity(_Wire):
    required: _NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: list[_Present] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class _Affinity(_Wire):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _Spread(_Wire):
    when_unsatisfiable: _Text = None


class _Toleration(_Wire):
    key: _Text = None
    operator: Literal["", "Equal", "Exists", "Lt", "Gt"] | None = None
    value: _Text = None
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class _PodSpec(_Wire):
    node_name: _Text = None
    scheduler_name: _Text = None
    priority: _Int32 = None
    preemption_policy: _Text = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    overhead: _Resources = None
    resources: _Requirements | None = None
    host_network: _Flag = None
    volumes: list[_Volume] | None = None
    resource_claims: list[_Present] | None = None
    affinity: _Affinity | None = None
    node_selector: _Map = None
    tolerations: list[_Toleration] | None = None
    topology_spread_constraints: list[_Spread] | None = None
    scheduling_gates: list[_Present] | None = None
    termination_grace_period_seconds: int | None = None


class _Condition(_Wire):
    type: _Text = None
    status: _Text = None
    reason: _Text = None


class _Device(_Wire):
    resource_id: _Text = msgspec.field(default=None, name="resourceID")


class _DeviceStatus(_Wire):
    name: _Text = None
    resources: list[_Device] | None = None


class _ContainerStatus(_Wire):
    name: _Text = None
    resources: _Requirements | None = None
    allocated_resources: _Resources = None
    allocated_resources_status: list[_DeviceStatus] | None = None


class _PodStatus(_Wire):
    phase: _Text = None
    reason: _Text = None
    nominated_node_name: _Text = None
    start_time: _Time = None
    conditions: list[_Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None


class _Pod(_Wire):
    metadata: _Metadata | None = None
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


class _Taint(_Wire):
    key: str
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    value: _Text = None


class _NodeSpec(_Wire):
    unschedulable: _Flag = None
    taints: list[_Taint] | None = None


class _NodeStatus(_Wire):
    allocatable: _Resources = None
    capacity: _Resources = None


class _Node(_Wire):
    metadata: _Metadata | None = None
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


class _PdbSpec(_Wire):
    selector: _LabelSelector | None = None


class _PdbStatus(_Wire):
    disruptions_allowed: _Int32 = None
    disrupted_pods: dict[str, _Time] | None = None


class _Pdb(_Wire):
    metadata: _Metadata | None = None
    spec: _PdbSpec | None = None
    status: _PdbStatus | None = None


class _PriorityClass(_Wire):
    value: _Int32
    metadata: _Metadata | None = None
    preemption_policy: _Text = None
    global_default: _Flag = None


class _DeviceClassSpec(_Wire):
    extended_resource_name: _Text = None


class _DeviceClass(_Wire):
    metadata: _Metadata | None = None
    spec: _DeviceClassSpec | None = None


class _ListMetadata(_Wire):
    resource_version: _Text = None
    continue_: _Text = msgspec.field(default=None, name="continue")


class _List(_Wire):
    kind: _Text = None
    metadata: _ListMetadata | None = None
    items: list[msgspec.Raw] | None = None


class _Kinded(_Wire):
    kind: _Text = None


class _Named(_Wire):
    metadata: _Metadata | None = None


# ---- from bytes to the wire


_Object = bytes | bytearray | memoryview | msgspec.Raw | str | Mapping[str, Any]
_W = TypeVar("_W")

_POD: Final = msgspec.json.Decoder(_Pod)
_NODE: Final = msgspec.json.Decoder(_Node)
_PDB: Final = msgspec.json.Decoder(_Pdb)
_PRIORITY_CLASS: Final = msgspec.json.Decoder(_PriorityClass)
_DEVICE_CLASS: Final = msgspec.json.Decoder(_DeviceClass)
_LIST: Final = msgspec.json.Decoder(_List)
_KINDED: Final = msgspec.json.Decoder(_Kinded)
_NAMED: Final = msgspec.json.Decoder(_Named)


def _read(source: _Object, decoder: msgspec.json.Decoder[_W]) -> _W:
    try:
        if isinstance(source, Mapping):
            return msgspec.convert(source, decoder.type)
        return decoder.decode(source)
    except msgspec.ValidationError as error:
        message, _, path = str(error).rpartition(" - at `$")
        raise RecordError(path.rstrip("`").lstrip("."), message) if message else RecordError("", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError("", f"not JSON: {error}") from error


# ---- from the wire to records


def pod(source: _Object, gpus: frozenset[str]) -> PodRecord:
    """The record of a Pod. Without a namespace it is in "default", as kubectl has it."""
    wire = _read(source, _POD)
    meta = _metadata(wire.metadata)
    spec = wire.spec or _PodSpec()
    status = wire.status or _PodStatus()
    namespace = intern(meta.namespace or "default")
    cpu_milli, memory, counts = _pod_requests(spec, status, gpus)
    required, preferred, repelling, node_terms = _affinity(spec.affinity, namespace)
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
        grace_seconds=_DEFAULT_GRACE if granted is None else max(granted, 0),
        daemon=owner is not None and owner.kind == "DaemonSet",
        mirror=MIRROR in (meta.annotations or ()),
        node=intern(spec.node_name or ""),
        nominated_node=intern(status.nominated_node_name or ""),
        scheduler_name=intern(spec.scheduler_name or "default-scheduler"),
        priority=spec.priority or 0,
        never=spec.preemption_policy == "Never",
        gated=bool(spec.scheduling_gates),
        phase=intern(status.phase or ""),
        reason=intern(status.reason or ""),
        disruption_target=disruption_target,
        pod_scheduled=pod_scheduled,
        start=_epoch(status.start_time),
        cpu_milli=cpu_milli,
        memory=memory,
        gpus=counts,
        gpu_containers=_gpu_containers(spec, gpus) if counts else (),
        held=_held(status, gpus),
        node_selector=tuple(sorted(_strings(spec.node_selector).items())),
        node_terms=node_terms,
        tolerations=_tolerations(spec.tolerations),
        host_ports=_asks_host_ports(spec),
        volumes=any(one.persistent_volume_claim is not None or one.ephemeral is not None for one in spec.volumes or ()),
        claims=bool(spec.resource_claims),
        required_affinity=required,
        preferred_affinity=preferred,
        hard_spread="DoNotSchedule" in spread,
        soft_spread="ScheduleAnyway" in spread,
        anti_affinity_terms=repelling,
    )


def node(source: _Object, gpus: frozenset[str]) -> NodeRecord:
    """The record of a Node. Where a node does not say what is allocatable, that is its capacity, as the API has it."""
    wire = _read(source, _NODE)
    meta = _metadata(wire.metadata)
    spec = wire.spec or _NodeSpec()
    status = wire.status or _NodeStatus()
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
        cpu_milli=_quantity(allocatable, "cpu", path),
        memory=_quantity(allocatable, "memory", path),
        pods=_quantity(allocatable, "pods", path),
        gpus={name: _quantity(allocatable, name, path) for name in sorted(gpus) if name in allocatable},
        gpu_capacity={name: _quantity(capacity, name, "status.capacity") for name in sorted(gpus) if name in capacity},
    )


def pod_disruption_budget(source: _Object) -> PdbRecord:
    """The record of a PodDisruptionBudget. Without a status nothing may be disrupted yet."""
    wire = _read(source, _PDB)
    meta = _metadata(wire.metadata)
    status = wire.status or _PdbStatus()
    return PdbRecord(
        uid=meta.uid or "",
        namespace=intern(meta.namespace or "default"),
        name=meta.name or "",
        resource_version=meta.resource_version or "",
        selector=_selector(wire.spec.selector if wire.spec else None, "spec.selector"),
        disruptions_allowed=status.disruptions_allowed or 0,
        disrupted_pods=frozenset(status.disrupted_pods or ()),
    )


def priority_class(source: _Object) -> PriorityClassRecord:
    """The record of a PriorityClass."""
    wire = _read(source, _PRIORITY_CLASS)
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


def device_class(source: _Object) -> DeviceClassRecord:
    """The record of a DeviceClass."""
    wire = _read(source, _DEVICE_CLASS)
    meta = _metadata(wire.metadata)
    return DeviceClassRecord(
        uid=meta.uid or "",
        name=meta.name or "",
        resource_version=meta.resource_version or "",
        extended_resource_name=(wire.spec.extended_resource_name if wire.spec else None) or "",
    )


def record(kind: Kind, source: _Object, gpus: frozenset[str]) -> Record:
    """The record of an object whose kind is known."""
    return _DECODERS[kind](source, gpus)


_DECODERS: Final[dict[Kind, Callable[[_Object, frozenset[str]], Record]]] = {
    "Pod": pod,
    "Node": node,
    "PodDisruptionBudget": lambda source, gpus: pod_disruption_budget(source),
    "PriorityClass": lambda source, gpus: priority_class(source),
    "DeviceClass": lambda source, gpus: device_class(source),
}


class Identity(NamedTuple):
    """Which object it is, and which version of it."""

    namespace: str
    """"" for what has none."""
    name: str
    uid: str
    resource_version: str


def identity(source: _Object) -> Identity:
    """Which object it is, of any kind: what can still be said of one whose other fields are unreadable."""
    meta = _read(source, _NAMED).metadata or _Metadata()
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
    wire = _read(source, _LIST)
    meta = wire.metadata or _ListMetadata()
    if wire.kind is None or not wire.kind.endswith("List"):
        raise RecordError("kind", f"not a list: {wire.kind!r}")
    return Page(wire.kind.removesuffix("List"), meta.resource_version or "", meta.continue_ or "", wire.items or [])


def items(source: bytes, gpus: frozenset[str]) -> Iterator[tuple[str, Record | None]]:
    """(kind, record) of each object of a list, as ``kubectl get -o json`` prints it; None for kinds we do not know."""
    listed = page(source)
    for index, raw in enumerate(listed.items):
        try:
            kind = _read(raw, _KINDED).kind or listed.kind
            yield kind, record(kind, raw, gpus) if kind in _DECODERS else None
        except RecordError as error:
            raise RecordError(f"items[{index}]" + (f".{error.path}" if error.path else ""), error.message) from error


# ---- the parts of an object


def _metadata(wire: _Metadata | None) -> _Metadata:
    if wire is None or not (wire.name or wire.generate_name):
        raise RecordError("metadata.name", "the object has no name")
    return wire


def _strings(wire: Mapping[str, str | None] | None) -> dict[str, str]:
    # Interned: fleets repeat a few thousand keys and values millions of times.
    return {intern(key): intern(text or "") for key, text in wire.items()} if wire else {}


def _ours(wire: Mapping[str, str | None] | None) -> dict[str, str]:
    return {intern(key): text or "" for key, text in wire.items() if key.startswith(OURS)} if wire else {}


def _epoch(moment: datetime.datetime | None) -> float | None:
    if moment is None:
        return None
    if moment.tzinfo is None:  # a YAML timestamp without a zone is UTC (YAML 1.1, timestamp type)
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()


def _controller(meta: _Metadata) -> Owner | None:
    for one in meta.owner_references or ():
        if one.controller:
            return Owner(intern(one.kind or ""), one.name or "", one.uid or "")
    return None


def _conditions(wire: Iterable[_Condition] | None) -> tuple[str, str]:
    disruption_target = pod_scheduled = ""
    for one in wire or ():
        if one.type == "DisruptionTarget" and one.status == "True":
            disruption_target = intern(one.reason or "")
        elif one.type == "PodScheduled" and one.status != "True":
            pod_scheduled = intern(one.reason or "")
    return disruption_target, pod_scheduled


def _quantity(resources: Mapping[str, _Quantity], name: str, path: str) -> int:
    """CPU in thousandths, all else in whole units; absent and null are 0. GPUs and other devices must be whole."""
    text = resources.get(name)
    if text is None:
        return 0
    try:
        if name == "cpu":
            return milli(text)
        found = value(text)
        if "/" in name and milli(text) != found * 1000:
            raise QuantityError(f"not a whole number: {text!r}")
        return found
    except QuantityError as error:
        raise RecordError(f"{path}.{name}", str(error)) from error


# ---- requests


_Requests = dict[str, int]


def _requests_of(resources: _Requirements | None, gpus: frozenset[str], path: str) -> _Requests:
    """CPU, memory and GPUs of one container; a limit stands for a request that is missing, as the API defaults it."""
    found: _Requests = {}
    if resources is None:
        return found
    for part, source in (("requests", resources.requests), ("limits", resources.limits)):
        for name in source or ():
            if name not in found and (name == "cpu" or name == "memory" or name in gpus):
                found[name] = _quantity(cast(Mapping[str, _Quantity], source), name, f"{path}.{part}")
    return found


def _add(into: _Requests, more: _Requests) -> None:
    for name, count in more.items():
        into[name] = into.get(name, 0) + count


def _raise_to(into: _Requests, least: _Requests) -> None:
    for name, count in least.items():
        if into.get(name, -1) < count:
            into[name] = count


def _pod_requests(
    spec: _PodSpec, status: _PodStatus, gpus: frozenset[str]
) -> tuple[int, int, tuple[tuple[str, int], ...]]:
    """What the scheduler counts, as component-helpers' ``resource.PodRequests`` (Kubernetes 1.37).

    max(sum of containers + all sidecars, largest init step with the sidecars started before it), then the pod-level
    CPU and memory instead where given, then the overhead.
    """
    resized = _resized(status, gpus)
    total: _Requests = {}
    for index, one in enumerate(spec.containers or ()):
        _add(total, _container_requests(one, resized, gpus, f"spec.containers[{index}].resources"))
    if spec.init_containers:
        sidecars: _Requests = {}
        largest: _Requests = {}
        for index, one in enumerate(spec.init_containers):
            step = _container_requests(one, resized, gpus, f"spec.initContainers[{index}].resources")
            if one.restart_policy == "Always":
                _add(total, step)
                _add(sidecars, step)
                step = sidecars
            else:
                step = dict(step)
                _add(step, sidecars)
            _raise_to(largest, step)
        _raise_to(total, largest)
    if spec.resources is not None:
        _pod_level(total, spec.resources)
    for name in spec.overhead or ():
        if name == "cpu" or name == "memory" or name in gpus:
            overhead = cast(Mapping[str, _Quantity], spec.overhead)
            _add(total, {name: _quantity(overhead, name, "spec.overhead")})
    counts = tuple(sorted([(intern(name), count) for name, count in total.items() if name in gpus and count]))
    return total.get("cpu", 0), total.get("memory", 0), counts


def _pod_level(total: _Requests, resources: _Requirements) -> None:
    none: frozenset[str] = frozenset()
    asked = _requests_of(_Requirements(requests=resources.requests), none, "spec.resources")
    limits = _requests_of(_Requirements(limits=resources.limits), none, "spec.resources")
    for name, count in limits.items():
        # A pod-level limit alone: the API takes what the containers ask for, and only without that the limit.
        asked.setdefault(name, total.get(name, count))
    total.update(asked)


def _container_requests(
    container: _Container, resized: Mapping[str, _Requests], gpus: frozenset[str], path: str
) -> _Requests:
    found = _requests_of(container.resources, gpus, path)
    if resized and (actual := resized.get(container.name or "")):
        _raise_to(found, actual)
    return found


def _resized(status: _PodStatus, gpus: frozenset[str]) -> dict[str, _Requests]:
    """What containers have while a resize in place is under way: the larger of wanted and had is counted."""
    found: dict[str, _Requests] = {}
    for where, statuses in (
        ("containerStatuses", status.container_statuses),
        ("initContainerStatuses", status.init_container_statuses),
    ):
        for index, one in enumerate(statuses or ()):
            if one.resources is None and one.allocated_resources is None:
                continue
            path = f"status.{where}[{index}]"
            actual = _requests_of(one.resources and _Requirements(one.resources.requests), gpus, f"{path}.resources")
            allocated = _Requirements(one.allocated_resources)
            _raise_to(actual, _requests_of(allocated, gpus, f"{path}.allocatedResources"))
            found[one.name or ""] = actual
    return found


def _gpu_containers(spec: _PodSpec, gpus: frozenset[str]) -> tuple[tuple[str, str, int], ...]:
    found: list[tuple[str, str, int]] = []
    for where, containers in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, one in enumerate(containers or ()):
            asked = _requests_of(one.resources, gpus, f"spec.{where}[{index}].resources")
            found += [(intern(one.name or ""), intern(name), asked[name]) for name in sorted(gpus) if asked.get(name)]
    return tuple(found)


def _held(status: _PodStatus, gpus: frozenset[str]) -> tuple[tuple[str, str], ...]:
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


def _asks_host_ports(spec: _PodSpec) -> bool:
    for containers in (spec.containers, spec.init_containers):
        for one in containers or ():
            if one.ports and (spec.host_network or any(port.host_port for port in one.ports)):
                return True
    return False


def _requirements(wire: Iterable[_Expression] | None, path: str) -> Iterator[Requirement]:
    for index, one in enumerate(wire or ()):
        values = tuple(one.values or ())
        # An empty In matches nothing and an empty NotIn everything: the API refuses them, so do we.
        wrong = not values if one.operator in ("In", "NotIn") else bool(values) if "Exist" in one.operator else False
        if wrong:
            raise RecordError(f"{path}[{index}].values", f"{len(values)} values for operator {one.operator}")
        yield Requirement(intern(one.key), intern(one.operator), values)  # type: ignore[arg-type]


def _selector(wire: _LabelSelector | None, path: str) -> Selector:
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
    wire: _Affinity | None, namespace: str
) -> tuple[bool, bool, tuple[PodTerm, ...], tuple[NodeTerm, ...] | None]:
    """(any required pod term, any preferred term, required anti-affinity, required node affinity)."""
    if wire is None:
        return False, False, (), None
    nodes, near, apart = wire.node_affinity, wire.pod_affinity, wire.pod_anti_affinity
    repelling = tuple(
        _pod_term(one, namespace, f"spec.affinity.podAntiAffinity.requiredDuringScheduling[{index}]")
        for index, one in enumerate((apart and apart.required) or ())
    )
    required = bool(repelling or (near and near.required))
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
    return required, preferred, repelling, terms


def _pod_term(wire: _PodAffinityTerm, namespace: str, path: str) -> PodTerm:
    # Neither namespaces nor a selector of them: the pod's own. Both: their union, of which we know a part only.
    named = None if wire.namespace_selector is not None else frozenset(wire.namespaces or (namespace,))
    return PodTerm(intern(wire.topology_key), _selector(wire.label_selector, f"{path}.labelSelector"), named)


@lru_cache(maxsize=4096)
def _taint(key: str, text: str, effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]) -> Taint:
    return Taint(intern(key), intern(text), effect)


def _tolerations(wire: Iterable[_Toleration] | None) -> tuple[Toleration, ...]:
    return _share(tuple([(one.key, one.operator, one.value, one.effect) for one in wire or ()]))


@lru_cache(maxsize=4096)
def _share(all_of_one_pod: tuple[tuple[Any, Any, Any, Any], ...]) -> tuple[Toleration, ...]:
    # Nearly every pod has the same two, so nearly all share one tuple.
    return tuple(
        Toleration(key or "", operator or "Equal", text or "", effect or "")
        for key, operator, text, effect in all_of_one_pod
    )
