"""One object of any kind, or one watch event about it, as its record; and what can be read of one that cannot be read
in full."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
import orjson

from ext_core import prune
from extender.objects import devices, gangs, limits, pods, records, schema
from extender.objects.pods import UNREADABLE
from extender.objects.records import GroupRecord, Identity, Kind, Page, PdbRecord, PodRecord, Record
from extender.objects.resources import LARGEST, UNKNOWN_COUNT, QuantityError, quantity, value
from extender.objects.schema import RecordError, Source
from extender.objects.selectors import PodTerm, Requirement, Selector, selector


class WatchChange(NamedTuple):
    """What a watch event states."""

    type: str  # ADDED, MODIFIED or DELETED
    record: Record


def change(kind: Kind, line: bytes, gpus: frozenset[str]) -> WatchChange | None:
    """A watch event about an object of the kind, in one pass over its bytes. None where one pass is not enough: the
    kind is rare, the event is another (BOOKMARK, ERROR), or something cannot be read. Then the object is taken out of
    the event and read for itself, which finds what is wrong with it."""
    known = _CHANGES.get(kind)
    if known is None:
        return None
    decoder, record_of = known
    try:
        wire = decoder.decode(line)
        return WatchChange(wire.type, record_of(wire.object, gpus))
    except Exception:  # RecordError, and whatever else the bytes of a hostile object may lead to
        return None


class BriefChange(NamedTuple):
    """What a watch event states of where a pod is."""

    type: str
    identity: Identity
    place: tuple[str, str, bool, bool]
    """Its uid, its node, whether it has terminated, and whether it is being deleted."""


def brief(line: bytes) -> BriefChange | None:
    """A watch event, at a fraction of what `change` costs. The place of an object that is no pod has no meaning. None:
    it is not about an object, or cannot be read."""
    try:
        try:
            wire = _BRIEF.decode(line)
        except RecursionError:
            wire = _BRIEF.decode(prune.prune(line, 4))
    except ValueError:  # what msgspec and prune raise, too
        return None
    pod = wire.object
    meta, node, phase = pod.metadata, pod.spec and pod.spec.node_name, pod.status and pod.status.phase
    which = Identity(meta.namespace or "default", meta.name or "", meta.uid or "", meta.resource_version or "")
    place = which.uid, node or "", phase in pods.FINISHED, meta.deletion_timestamp is not None
    return BriefChange(wire.type, which, place) if which.name and which.uid else None


def place(pod: PodRecord) -> tuple[str, str, bool, bool]:
    """The same of a pod that is known."""
    return pod.uid, pod.node, pod.finished, pod.terminating


def record(kind: Kind, source: Source, gpus: frozenset[str], group: tuple[str, str] | None = None) -> Record:
    """The record of an object whose kind is known. `group`: (API group, kind) of a Group, where it does not state them
    itself. RecordError where a field cannot be read."""
    return gangs.group(source, *(group or ()), gpus=gpus) if kind == "Group" else _READERS[kind](source, gpus)


_READERS: Final[dict[Kind, Callable[[Source, frozenset[str]], Record]]] = {
    "Pod": records.pod, "FailedPod": records.pod, "Node": records.node,
    "PodDisruptionBudget": limits.pod_disruption_budget, "PriorityClass": limits.priority_class,
    "ResourceQuota": limits.resource_quota, "DeviceClass": devices.device_class,
    "ResourceSlice": devices.resource_slice, "ResourceClaim": devices.resource_claim,
    "ResourceClaimTemplate": devices.resource_claim_template, "DeviceTaintRule": devices.device_taint_rule,
}  # fmt: skip
_BRIEF: Final = msgspec.json.Decoder(schema.BriefPodChange)
_CHANGES: Final[dict[Kind, tuple[msgspec.json.Decoder[Any], Callable[[Any, frozenset[str]], Record]]]] = {
    "Pod": (msgspec.json.Decoder(schema.PodChange), records.pod.of),
    "FailedPod": (msgspec.json.Decoder(schema.PodChange), records.pod.of),
    "Node": (msgspec.json.Decoder(schema.NodeChange), records.node.of),
}


# -- what can be read of an object that cannot be read in full: an invalid object affects only itself
#
# Theory of operation. `record` reads exactly; only where it fails does `read_invalid` read the object, in three steps:
# 1. What is nested deeper than any field that we use becomes null, and the object is read again: then it counts in
#    full.
# 2. Each field that cannot be read becomes null, one after the other, until the rest can be read.
# 3. What is missing then counts as the worst. The rule of each kind:
# - Pod: its GPUs are held. A count that cannot be read is more than any node has, so filter gives none of them out and
#   preempt never states that a pod fits beside it; the pod stays a possible victim. It costs no lost work: a field that
#   cannot be read protects no pod. Only a pod without a readable uid or priority is never a victim. An affinity that
#   cannot be read may repel every pod. A scheduling gate that cannot be read is one that stays closed.
# - Node: what it offers and cannot be read is 0.
# - PodDisruptionBudget: a selector does not become narrower by what cannot be read of it, and a budget whose number
#   cannot be read allows no disruption. So no unreadable version drops a protection that the one before gave.
# - Group: all of its pods must run, as for any minimum that cannot be read.
# - ResourceQuota: what cannot be read of it limits no pod; without readable scopes it limits none.
# - ResourceSlice: a device without a readable name does not exist; nothing is known of an attribute that cannot be
#   read.
# - ResourceClaim: the last readable version counts where its allocation or its pods cannot be read.
# - PriorityClass, DeviceClass, ResourceClaimTemplate, DeviceTaintRule, FailedPod: the last readable version counts.
# Any bytes are answered. Names and messages are cut, since tenants write them.


DEEPEST: Final = 32  # levels of an object; what we read lies in 10 at most
MOST_STEPS: Final = 32  # fields that are left out one by one; of an object with more only the skeleton is read
NEVER_A_VICTIM: Final = 2**31 - 1  # the priority of a bound pod that may not be evicted by what we know
LONGEST_NAME: Final = 320  # characters: a namespace (63), a slash, and a name (253)
LONGEST_MESSAGE: Final = 300

ANY_POD: Final = PodTerm("", Selector(), None)
EVERYTHING: Final = Selector((Requirement("", "DoesNotExist"),))  # no label has an empty key
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")

Reason = Literal["too-deep", "partial", "unreadable"]
REASONS: Final[tuple[Reason, ...]] = ("too-deep", "partial", "unreadable")
"""too-deep: all that we use of it was read; partial: some of it was; unreadable: at most its name was."""

_W = TypeVar("_W")
_Path = tuple[str | int, ...]


class TolerantReading(NamedTuple):
    """What was read of an invalid object."""

    record: Record | None  # None where nothing of it counts
    identity: Identity
    reason: Reason
    message: str  # what is wrong with it, and what counts instead


def read_invalid(
    kind: Kind, source: Source, gpus: frozenset[str], error: str, group: tuple[str, str] = ("", "")
) -> TolerantReading:
    """An object that `record` rejects with `error`. Never raises. `group`: (API group, kind) of a Group."""
    unknown, plain = Identity("", "", "", ""), None
    try:
        shallow: Source = source
        if not isinstance(source, Mapping):
            raw = source.encode() if isinstance(source, str) else bytes(source)
            shallow = prune.prune(raw, DEEPEST)
            if shallow != raw and (record_of_shallow := _exact(kind, shallow, gpus, group)) is not None:
                message = f"nested deeper than {DEEPEST} levels; what is deeper is left out, all else counts"
                return TolerantReading(record_of_shallow, _identity_of(record_of_shallow), "too-deep", message)
        plain = _plain(shallow)
        if not isinstance(plain, dict):
            return TolerantReading(None, unknown, "unreadable", "not an object; it does not count")
        unknown = _identity(plain)
        record, effect = _PARTIAL_READERS[kind](plain, gpus, group)
    except Exception as worse:  # whatever a hostile object leads to, RecursionError and MemoryError included
        record, effect = _last_resort(kind, plain, gpus)
        error = error or repr(worse)
    if isinstance(record, PodRecord):
        unknown = unknown._replace(name=record.name, namespace=record.namespace, uid=record.uid)
        record = msgspec.structs.replace(record, unread=error[:LONGEST_MESSAGE])
    reason: Reason = "unreadable" if record is None else "partial"
    return TolerantReading(record, unknown, reason, f"{error[:LONGEST_MESSAGE]}; {effect}")


def page(source: bytes) -> Page:
    """A list, as records.page reads it; where one object keeps it from that, its items are found by their brackets.
    RecordError: it is no list."""
    try:
        return records.page(source)
    except RecordError as error:
        try:
            members = prune.members(source)
            start, end = members.get(b"items", (0, 0))
            spans = prune.elements(source, start, end) if source[start:end] not in (b"", b"null") else []
            head = records.page(prune.prune(source[:start] + b"[]" + source[end:] if end else source, DEEPEST))
        except ValueError:
            raise error from None
        return head._replace(items=[msgspec.Raw(source[a:b]) for a, b in spans])


def name_of(which: Identity) -> str:
    """NAMESPACE/NAME for people, of bounded length; the uid where there is no name."""
    name = "/".join(part for part in (which.namespace, which.name or which.uid) if part)
    return name[:LONGEST_NAME] or "(without a name)"


def invalid(source: bytes, message: str) -> Invalid:
    """An object of any kind for people, by as much of its kind and name as can be read."""
    plain: Any = None
    with suppress(Exception):
        plain = _plain(source)
    known = plain if isinstance(plain, dict) else {}
    kind = known.get("kind")
    return Invalid(kind[:63] if isinstance(kind, str) and kind else "Object", name_of(_identity(known)), message)


def merged(before: PodRecord, now: PodRecord) -> PodRecord:
    """A pod whose new version was read in part and whose last was read in full: what only the last one states stays
    (the GPUs, labels and affinity of a pod do not change), what may change is taken over where it was read."""
    return msgspec.structs.replace(
        before,
        resource_version=now.resource_version,
        node=now.node or before.node,
        nominated_node=now.nominated_node,
        phase=now.phase or before.phase,
        reason=now.reason or before.reason,
        terminating=now.terminating or before.terminating,
        deletion_at=now.deletion_at if now.terminating else before.deletion_at,
        grace_seconds=now.grace_seconds if now.terminating else before.grace_seconds,
        start=now.start if now.start is not None else before.start,
        held=now.held or before.held,
        annotations=now.annotations or before.annotations,
        gates=before.gates if UNREADABLE in now.gates else now.gates,
        deadline_seconds=before.deadline_seconds if now.deadline_seconds is None else now.deadline_seconds,
    )


def bare(pod: PodRecord) -> PodRecord:
    """A pod reduced to what it is, where it is and what it holds: what else it states has led to a defect."""
    return msgspec.structs.replace(
        pod,
        labels={},
        annotations={},
        owner=None,
        group=None,
        created=None,
        start=None,
        anti_affinity_terms=(ANY_POD,),
        affinity_terms=(),
        unread="what else it states has led to a defect of gpu-extender",
    )


def _exact(kind: Kind, source: Source, gpus: frozenset[str], group: tuple[str, str]) -> Record | None:
    try:
        return record(kind, source, gpus, group)
    except RecordError:
        return None


def _identity_of(record: Record) -> Identity:
    return Identity(*records.key_of(record), record.uid, record.resource_version)


def _identity(plain: Mapping[str, Any]) -> Identity:
    meta = plain.get("metadata")
    fields = meta if isinstance(meta, dict) else {}
    texts = [fields.get(key) for key in ("namespace", "name", "uid", "resourceVersion")]
    return Identity(*[text if isinstance(text, str) else "" for text in texts])


def _plain(source: Source) -> Any:
    """The object as dicts and lists. Bytes that are no UTF-8, and halves of surrogate pairs, become U+FFFD."""
    if isinstance(source, Mapping):
        return msgspec.to_builtins(source)
    raw = source.encode() if isinstance(source, str) else bytes(source)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return orjson.loads(_SURROGATE.sub(rb"\\ufffd", raw.decode(errors="replace").encode()))


# ---- step 2: what cannot be read is left out


def _strip(plain: Any, wanted: type[_W]) -> tuple[_W, set[str]]:
    """(the struct, the fields that were left out for it: "spec.containers.ports", without indices)."""
    left_out: set[str] = set()
    for _ in range(MOST_STEPS):
        try:
            return msgspec.convert(plain, wanted), left_out
        except msgspec.ValidationError as error:
            path = _steps(str(error).rpartition(" - at `")[2].rstrip("`").removeprefix("$"))
            if not path:
                break
            left_out.add(_without(plain, path))
    return msgspec.convert(_skeleton(plain), wanted), {"spec", "status", "metadata.labels", "metadata.annotations"}


def _steps(text: str) -> _Path:
    """`.spec.containers[0].limits[...]` as ("spec", "containers", 0, "limits"): of a map, the whole map."""
    steps: list[str | int] = []
    for step in _STEP.finditer(text):
        if step[0] == "[...]":
            break
        steps.append(step[1] or int(step[2]))
    return tuple(steps)


def _without(plain: Any, path: _Path) -> str:
    """Takes out what `path` names, or what it lies in where it is null already (a field that must not be)."""
    while True:
        *above, last = path
        parent = plain
        for step in above:
            parent = parent[step]
        if isinstance(parent, list):
            del parent[int(last)]
            break
        if parent.get(last) is not None or not above:
            parent[last] = None
            break
        path = tuple(above)
    return ".".join(step for step in path if isinstance(step, str))


def _skeleton(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The few fields that must not be missed, each for itself."""
    skeleton: dict[str, Any] = {}
    for part, key, kind in (
        ("metadata", "uid", str), ("metadata", "name", str), ("metadata", "namespace", str),
        ("metadata", "resourceVersion", str), ("spec", "nodeName", str), ("spec", "priority", int),
        ("status", "phase", str),
    ):  # fmt: skip
        inside = plain.get(part)
        stated = inside.get(key) if isinstance(inside, dict) else None
        if type(stated) is kind and (not isinstance(stated, int) or -(2**31) <= stated < 2**31):
            skeleton.setdefault(part, {})[key] = stated
    return skeleton


# ---- step 3: what is missing counts as the worst

_LAST_VERSION: Final = "the last version that could be read counts, if there is one"
_Read = tuple[Record | None, str]


def _pod(plain: dict[str, Any], gpus: frozenset[str], group: tuple[str, str]) -> _Read:
    wire, left_out = _strip(plain, schema.Pod)
    meta = wire.metadata or schema.Metadata()
    spec = wire.spec or schema.PodSpec()
    status = wire.status or schema.PodStatus()
    if not (meta.name or meta.generate_name):
        meta.name = f"uid:{meta.uid}" if meta.uid else None
    wire.metadata, wire.spec, wire.status = meta, spec, status
    counted = _mend_quantities(spec, status, gpus) and not any(map(_hides_gpus, left_out))
    try:
        record = records.pod.of(wire, gpus)
    except RecordError as error:
        if not error.path.startswith("spec.affinity"):
            raise
        spec.affinity = None
        left_out.add("spec.affinity")
        record = records.pod.of(wire, gpus)
    changes: dict[str, Any] = {}
    if not record.node and left_out & {"spec", "spec.schedulingGates"}:
        changes["gates"] = (*record.gates, UNREADABLE)
    if any(path == "spec" or path.startswith("spec.affinity") for path in left_out):
        changes |= {"anti_affinity_terms": (*record.anti_affinity_terms, ANY_POD), "required_affinity": True}
    if not record.uid:
        changes["uid"] = f"unknown:{record.namespace}/{record.name}"
    if not record.uid or (left_out & {"spec", "spec.priority"} and not record.priority_given):
        changes["priority"] = NEVER_A_VICTIM if record.node else -(2**31)
    effect = "what could be read of it counts"
    if not counted:
        held = tuple((name, UNKNOWN_COUNT) for name in sorted(gpus)) if record.node else ()
        changes |= {"gpus": held, "gpu_containers": (), "start": None}
        if record.node:
            effect = f"how many GPUs it holds cannot be read: every GPU of node {record.node[:253]} counts as held"
    return msgspec.structs.replace(record, **changes), effect


def _last_resort(kind: Kind, plain: Any, gpus: frozenset[str]) -> _Read:
    """Of a Pod that led to a defect of this reading: where it is, and that the number of its GPUs is unknown."""
    with suppress(Exception):
        if kind == "Pod" and isinstance(plain, dict):
            bones = _skeleton(plain)
            bones.setdefault("spec", {})["containers"] = "unreadable"  # a wrong type: its GPUs count as unknown
            return _pod(bones, gpus, ("", ""))
    return None, _LAST_VERSION


def _hides_gpus(path: str) -> bool:
    """Whether a field that was left out may have stated GPUs."""
    if path == "spec":
        return True
    steps = path.split(".")
    return steps[:2] in (["spec", "containers"], ["spec", "initContainers"]) and steps[2:3] not in (["ports"], ["name"])


def _mend_quantities(spec: schema.PodSpec, status: schema.PodStatus, gpus: frozenset[str]) -> bool:
    """Leaves out what is no quantity, and rounds parts of a GPU up. Whether all GPUs that are asked for were read."""
    all_read = True
    statuses = [*(status.container_statuses or ()), *(status.init_container_statuses or ())]
    containers = [*(spec.containers or ()), *(spec.init_containers or ())]
    stated = [container.resources for container in containers if container.resources]
    asked = [amounts for resources in stated for amounts in (resources.requests, resources.limits)]
    asked.append(spec.overhead)
    others = [status.allocated_resources, *(container_status.allocated_resources for container_status in statuses)]
    for part in (spec.resources, status.resources, *(container_status.resources for container_status in statuses)):
        others += [part.requests, part.limits] if part else []
    for resources in asked:
        all_read = _mend(resources, gpus) and all_read
    for resources in others:
        _mend(resources, gpus)
    return all_read


def _mend(resources: schema.Resources, gpus: frozenset[str]) -> bool:
    all_read = True
    for name in [name for name in resources or {} if name in gpus or name in ("cpu", "memory", "pods")]:
        assert resources is not None
        try:
            quantity(resources, name, "")
        except RecordError:
            text = resources.pop(name)
            if name in gpus:
                try:
                    count = value(text) if text is not None else 0
                except QuantityError:
                    count = LARGEST
                if count < LARGEST:
                    resources[name] = count
                else:  # clamped, by the API server too: it accepts 1e30 GPUs
                    all_read = False
    return all_read


def _node(plain: dict[str, Any], gpus: frozenset[str], group: tuple[str, str]) -> _Read:
    wire, left_out = _strip(plain, schema.Node)
    status = wire.status = wire.status or schema.NodeStatus()
    if left_out & {"status", "status.allocatable"}:
        status.allocatable = {}  # else its capacity would count
    for offered in (status.allocatable, status.capacity):
        _mend(offered, gpus)
    record = records.node.of(wire, gpus)
    if left_out & {"spec", "spec.unschedulable"}:
        record = msgspec.structs.replace(record, unschedulable=True)
    return record, "what it offers and cannot be read counts as 0"


def _budget(plain: dict[str, Any], gpus: frozenset[str], group: tuple[str, str]) -> _Read:
    wire, left_out = _strip(plain, schema.Pdb)
    widened = any(path.split(".")[0] == "spec" for path in left_out)
    stated = wire.spec.selector if wire.spec else None
    if stated is not None and stated.match_expressions:
        valid = [test for test in stated.match_expressions if _is_selector(schema.LabelSelector(None, [test]))]
        widened = widened or len(valid) < len(stated.match_expressions)
        stated.match_expressions = valid
    record: PdbRecord = limits.pod_disruption_budget.of(wire, gpus)
    if widened and (record.selector.nothing or record.selector.empty):
        record = msgspec.structs.replace(record, selector=EVERYTHING)
    return record, "what cannot be read of its selector does not narrow it, and no number allows no disruption"


def _is_selector(wire: schema.LabelSelector) -> bool:
    try:
        selector(wire, "")
    except RecordError:
        return False
    return True


def _group(plain: dict[str, Any], gpus: frozenset[str], group: tuple[str, str]) -> _Read:
    named, _ = _strip({"metadata": plain.get("metadata")}, schema.Named)
    texts = {key: text for key in ("apiVersion", "kind") if isinstance(text := plain.get(key), str)}
    bare = texts | {"metadata": msgspec.to_builtins(named.metadata)}
    record: GroupRecord = gangs.group(bare, *group)
    return msgspec.structs.replace(record, minimum=-1), "all of its pods must run"


def _last(plain: dict[str, Any], gpus: frozenset[str], group: tuple[str, str]) -> _Read:
    return None, _LAST_VERSION


def _quota(plain: dict[str, Any], gpus: frozenset[str], group: tuple[str, str]) -> _Read:
    wire, left_out = _strip(plain, schema.Quota)
    if wire.spec is not None and any(path.startswith("spec.scope") for path in left_out):
        wire.spec.hard = None
    return limits.resource_quota.of(wire, gpus), "what cannot be read of it limits no pod"


def _slice(plain: dict[str, Any], gpus: frozenset[str], group: tuple[str, str]) -> _Read:
    reader = devices.resource_slice
    return reader.of(_strip(plain, reader.wire)[0], gpus), "what could be read of it counts"


def _claim(plain: dict[str, Any], gpus: frozenset[str], group: tuple[str, str]) -> _Read:
    wire, left_out = _strip(plain, devices.resource_claim.wire)
    if any(path == "status" or path.startswith(("status.allocation", "status.reservedFor")) for path in left_out):
        return None, _LAST_VERSION
    return devices.resource_claim.of(wire, gpus), "what could be read of it counts"


_PARTIAL_READERS: Final = {
    "Pod": _pod, "FailedPod": _last, "Node": _node, "PodDisruptionBudget": _budget, "PriorityClass": _last,
    "DeviceClass": _last, "ResourceSlice": _slice, "ResourceClaim": _claim, "ResourceClaimTemplate": _last,
    "DeviceTaintRule": _last, "ResourceQuota": _quota, "Group": _group,
}  # fmt: skip


# ---- what is reported


class Invalid(NamedTuple):
    """An object that was not read in full, for people."""

    kind: str
    name: str
    message: str

    def warning(self) -> dict[str, str]:
        """As our JSON answers have it."""
        return {"code": "invalid-object", "message": f"{self.kind} {self.name}: {self.message}"}


class ObjectFaults(NamedTuple):
    """What a source of cluster state could not read in full."""

    invalid: Sequence[Invalid] = ()  # the objects, as far as they are kept by name
    rejected: Mapping[tuple[str, str], int] = {}  # how often since the start, by kind and reason
    defects: Mapping[str, int] = {}  # the unexpected exceptions, by kind


def warnings(invalid: Sequence[Invalid], most: int = 20) -> list[dict[str, str]]:
    """At most `most` of them, and how many more there are."""
    shown = [entry.warning() for entry in invalid[:most]]
    more = len(invalid) - most
    return [*shown, {"code": "invalid-object", "message": f"and {more} more"}] if more > 0 else shown


def all_of(
    kind: Kind, items: Iterable[Source], gpus: frozenset[str], group: tuple[str, str] | None, invalid: list[Invalid]
) -> Iterator[Record]:
    """The records of `items`, each as far as it can be read; what is wrong with one is added to `invalid`."""
    for raw in items:
        try:
            yield record(kind, raw, gpus, group)
        except Exception as error:
            reading = read_invalid(kind, raw, gpus, str(error), group or ("", ""))
            invalid.append(Invalid(group[1] if group else kind, name_of(reading.identity), reading.message))
            if reading.record is not None:
                yield reading.record
