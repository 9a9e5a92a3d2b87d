"""Kubernetes objects as the API writes them, reduced to the fields that we use.

msgspec fills these structs from JSON and skips what they do not name. Null is the same as absent everywhere, because
Go's encoders write either. Nothing but `records.py` and `resources.py` reads them: they are its first step.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, get_args

import msgspec


class RecordError(ValueError):
    """An object that cannot be read. ``path`` is the field (``spec.nodeName``), "" for the whole object."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


class Wire(msgspec.Struct, rename="camel", gc=False, omit_defaults=True):
    """One object or part of one. None of them refers back, so the garbage collector need not know them. Encoded again,
    two are equal bytes only where they are equal; absent fields take no room."""


_Text = str | None
_Flag = bool | None
Quantity = str | int | float | None
Resources = dict[str, Quantity] | None
_Map = dict[str, str | None] | None
_Time = datetime.datetime | None
_Test = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
_Tolerates = Literal["", "Equal", "Exists", "Lt", "Gt"]
_Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
MOST_ENTRIES: Final = 1024
"""In one field of a pod or of an owner, which cannot be read where it has more (`decode.py`). In memory an entry of a
pod is up to 20 times as large as its text."""
_AtMost = msgspec.Meta(max_length=MOST_ENTRIES)
_PodMap = Annotated[dict[str, str | None], _AtMost] | None
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] | None


class OwnerReference(Wire):
    """metadata.ownerReferences."""

    api_version: _Text = None
    kind: _Text = None
    name: _Text = None
    uid: _Text = None
    controller: _Flag = None


class Metadata(Wire):
    """metadata of any object."""

    uid: _Text = None
    name: _Text = None
    generate_name: _Text = None
    namespace: _Text = None
    resource_version: _Text = None
    labels: _Map = None
    annotations: _Map = None
    owner_references: list[OwnerReference] | None = None
    creation_timestamp: _Time = None
    deletion_timestamp: _Time = None
    deletion_grace_period_seconds: int | None = None


class Requirements(Wire):
    """resources of a container or pod."""

    requests: Resources = None
    limits: Resources = None


class Port(Wire):
    """A port of a container."""

    host_port: int | None = None


class Container(Wire):
    """A container or init container."""

    name: _Text = None
    image: _Text = None
    resources: Requirements | None = None
    ports: list[Port] | None = None
    restart_policy: _Text = None


class Present(Wire):
    """An object whose presence is all we ask."""


class Volume(Wire):
    """A volume of a pod: only the kinds that bind it to a node."""

    persistent_volume_claim: Present | None = None
    ephemeral: Present | None = None


class Expression(Wire):
    """A test of a label or field."""

    key: str
    operator: _Test
    values: list[str] | None = None


class LabelSelector(Wire):
    """metav1.LabelSelector."""

    match_labels: _Map = None
    match_expressions: list[Expression] | None = None


class PodAffinityTerm(Wire):
    """A term of pod affinity or anti-affinity."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class PreferredTerm(Wire):
    """A preferred term of pod affinity or anti-affinity: only quotas look at what it names, if it can be read."""

    term: Any = msgspec.field(default=None, name="podAffinityTerm")


class PodAffinity(Wire):
    """spec.affinity.podAffinity or podAntiAffinity."""

    required: Annotated[list[PodAffinityTerm], _AtMost] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[PreferredTerm] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class NodeTerm(Wire):
    """A node selector term."""

    match_expressions: list[Expression] | None = None
    match_fields: list[Expression] | None = None


class NodeSelector(Wire):
    """A node selector."""

    node_selector_terms: Annotated[list[NodeTerm], _AtMost] | None = None


class NodeAffinity(Wire):
    """spec.affinity.nodeAffinity."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: list[Present] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Wire):
    """spec.affinity."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Spread(Wire):
    """A topology spread constraint."""

    when_unsatisfiable: _Text = None


class Toleration(Wire):
    """A toleration of a pod."""

    key: _Text = None
    operator: _Tolerates | None = None
    value: _Text = None
    effect: Literal[""] | _Effect | None = None


class WorkloadRef(Wire):
    """spec.workloadRef of Kubernetes 1.35."""

    name: _Text = None
    pod_group: _Text = None
    pod_group_replica_key: _Text = None


class SchedulingGroup(Wire):
    """spec.schedulingGroup of Kubernetes 1.36 and later."""

    pod_group_name: _Text = None


class Gate(Wire):
    """A scheduling gate."""

    name: _Text = None


class PodClaim(Wire):
    """A claim of a Pod, as its spec or its status names it."""

    name: _Text = None
    resource_claim_name: _Text = None
    resource_claim_template_name: _Text = None


class PodSpec(Wire):
    """spec of a Pod."""

    node_name: _Text = None
    priority_class_name: _Text = None
    workload_ref: WorkloadRef | None = None
    scheduling_group: SchedulingGroup | None = None
    scheduler_name: _Text = None
    runtime_class_name: _Text = None
    service_account_name: _Text = None
    priority: _Int32 = None
    preemption_policy: _Text = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: Resources = None
    resources: Requirements | None = None
    host_network: _Flag = None
    volumes: list[Volume] | None = None
    resource_claims: Annotated[list[PodClaim], _AtMost] | None = None
    affinity: Affinity | None = None
    node_selector: _PodMap = None
    tolerations: Annotated[list[Toleration], _AtMost] | None = None
    topology_spread_constraints: list[Spread] | None = None
    scheduling_gates: Annotated[list[Gate], _AtMost] | None = None
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None


class Condition(Wire):
    """A condition of a Pod."""

    type: _Text = None
    status: _Text = None
    reason: _Text = None
    message: _Text = None


class Device(Wire):
    """A device that a container holds."""

    resource_id: _Text = msgspec.field(default=None, name="resourceID")


class DeviceStatus(Wire):
    """The devices of one resource that a container holds."""

    name: _Text = None
    resources: list[Device] | None = None


class StateDetail(Wire):
    """Of a container that waits or has terminated."""

    reason: _Text = None
    message: _Text = None
    finished_at: _Time = None


class ContainerState(Wire):
    """The state of a container."""

    waiting: StateDetail | None = None
    terminated: StateDetail | None = None


class ContainerStatus(Wire):
    """The status of a container."""

    name: _Text = None
    restart_count: int | None = None
    state: ContainerState | None = None
    last_state: ContainerState | None = None
    resources: Requirements | None = None
    allocated_resources: Resources = None
    allocated_resources_status: list[DeviceStatus] | None = None


class PodStatus(Wire):
    """status of a Pod."""

    phase: _Text = None
    resources: Requirements | None = None
    allocated_resources: Resources = None
    reason: _Text = None
    message: _Text = None
    nominated_node_name: _Text = None
    start_time: _Time = None
    conditions: list[Condition] | None = None
    resource_claim_statuses: list[PodClaim] | None = None
    extended_resource_claim_status: PodClaim | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class Pod(Wire):
    """A Pod, or a pod template."""

    metadata: Metadata | None = None
    spec: PodSpec | None = None
    status: PodStatus | None = None


class Taint(Wire):
    """A taint of a node."""

    key: str
    effect: _Effect
    value: _Text = None


class NodeSpec(Wire):
    """spec of a Node."""

    unschedulable: _Flag = None
    taints: list[Taint] | None = None


class NodeStatus(Wire):
    """status of a Node."""

    allocatable: Resources = None
    capacity: Resources = None


class Node(Wire):
    """A Node."""

    metadata: Metadata | None = None
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class PdbSpec(Wire):
    """spec of a PodDisruptionBudget."""

    selector: LabelSelector | None = None


class PdbStatus(Wire):
    """status of a PodDisruptionBudget."""

    disruptions_allowed: _Int32 = None
    disrupted_pods: dict[str, _Time] | None = None


class Pdb(Wire):
    """A PodDisruptionBudget."""

    metadata: Metadata | None = None
    spec: PdbSpec | None = None
    status: PdbStatus | None = None


class PriorityClass(Wire):
    """A PriorityClass."""

    value: _Int32
    metadata: Metadata | None = None
    preemption_policy: _Text = None
    global_default: _Flag = None


class QuotaScope(Wire):
    """A test of spec.scopeSelector of a ResourceQuota."""

    scope_name: _Text = None
    operator: _Text = None
    values: list[str] | None = None


class QuotaSelector(Wire):
    """spec.scopeSelector of a ResourceQuota."""

    match_expressions: list[QuotaScope] | None = None


class QuotaSpec(Wire):
    """spec of a ResourceQuota."""

    hard: Resources = None
    scopes: list[str] | None = None
    scope_selector: QuotaSelector | None = None


class QuotaStatus(Wire):
    """status of a ResourceQuota."""

    used: Resources = None


class Quota(Wire):
    """A ResourceQuota."""

    metadata: Metadata | None = None
    spec: QuotaSpec | None = None
    status: QuotaStatus | None = None


_Change = Literal["ADDED", "MODIFIED", "DELETED"]


class PodChange(Wire):
    """A watch event about a Pod."""

    type: _Change
    object: Pod


class BriefMetadata(Wire):
    """What names a version of an object, and whether it is being deleted."""

    uid: _Text = None
    name: _Text = None
    namespace: _Text = None
    resource_version: _Text = None
    deletion_timestamp: _Text = None


class BriefSpec(Wire):
    """The node of a Pod."""

    node_name: _Text = None


class BriefStatus(Wire):
    """Whether a Pod has terminated."""

    phase: _Text = None


class BriefPod(Wire):
    """What decides whether a Pod holds GPUs."""

    metadata: BriefMetadata
    spec: BriefSpec | None = None
    status: BriefStatus | None = None


class BriefPodChange(Wire):
    """A watch event, read as little of as can be."""

    type: _Change
    object: BriefPod


class NodeChange(Wire):
    """A watch event about a Node."""

    type: _Change
    object: Node


class ListMetadata(Wire):
    """metadata of a list."""

    resource_version: _Text = None
    continue_: _Text = msgspec.field(default=None, name="continue")


class List(Wire):
    """A list of objects, which stay bytes."""

    kind: _Text = None
    metadata: ListMetadata | None = None
    items: list[msgspec.Raw] | None = None


class Kinded(Wire):
    """The kind of any object."""

    kind: _Text = None
    api_version: _Text = None


class Named(Wire):
    """The metadata of any object."""

    metadata: Metadata | None = None


# ---- from bytes to these

_WORDS = {
    "int": "a whole number", "float": "a number that is not whole, or too large", "str": "text", "array": "a list",
    "object": "an object", "bool": "true or false", "null": "nothing", "datetime": "a time",
}  # fmt: skip
_EXPECTED = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_TOO_LONG = re.compile(r"Expected `(?:array|object)` of length <= (\d+)")
_WRONG_WORD = re.compile(r"Invalid enum value (.*)")


def _plain(message: str, path: str) -> str:
    """What msgspec found, for people: types in words, and which words are allowed."""
    if match := _EXPECTED.fullmatch(message):
        wanted = [_WORDS.get(word, word) for word in match[1].split(" | ") if word != "null"]
        return f"expected {' or '.join(wanted)}, not {_WORDS.get(match[2], match[2])}"
    if match := _TOO_LONG.fullmatch(message):
        return f"it has more than {int(match[1]):,} entries"
    if match := _WRONG_WORD.fullmatch(message):
        field = path.rpartition(".")[2]
        allowed = get_args(_Effect if field == "effect" else _Tolerates if ".tolerations[" in path else _Test)
        return f"{match[1][:100]} is not one of " + ", ".join(word for word in allowed if word)
    return message


Source = bytes | bytearray | memoryview | msgspec.Raw | str | Mapping[str, Any]
_W = TypeVar("_W")
_R = TypeVar("_R", covariant=True)


class Reader(Generic[_W, _R]):
    """Reads the objects of one kind. `wire`: the struct of its JSON; `of`: its record from that."""

    def __init__(self, wire: type[_W], of: Callable[[_W, frozenset[str]], _R]) -> None:
        self.wire, self.of = wire, of
        self._decoder = msgspec.json.Decoder(wire)

    def __call__(self, source: Source, gpus: frozenset[str] = frozenset()) -> _R:
        """The record. `gpus`: the names of the resources that count as GPUs, for kinds that ask for them or offer them.
        RecordError where a field cannot be read."""
        return self.of(read(source, self._decoder), gpus)


def read(source: Source, decoder: msgspec.json.Decoder[_W]) -> _W:
    """The bytes, or a dict from YAML, as the decoder's struct. Raises RecordError, which says where."""
    try:
        if isinstance(source, Mapping):
            return msgspec.convert(source, decoder.type)
        return decoder.decode(source)
    except UNREADABLE as error:
        raise record_error(error) from error


UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises."""


def record_error(error: Exception, path: str = "") -> RecordError:
    """The same for people. `path`: of what was read."""
    if isinstance(error, RecursionError):  # msgspec recurses even over what it skips
        return RecordError(path, "nested too deep")
    if not isinstance(error, msgspec.ValidationError):
        return RecordError(path, f"not JSON: {error}")
    message, _, below = str(error).rpartition(" - at `$")
    path = f"{path}{below.rstrip('`') if message else ''}".lstrip(".")
    return RecordError(path, _plain(message or str(error), path))
