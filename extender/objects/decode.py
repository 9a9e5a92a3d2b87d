"""One object of any kind, or one watch event about it, as its record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from ext_core import prune
from extender.objects import gangs, records, schema
from extender.objects.records import Identity, Kind, PodRecord, Record
from extender.objects.schema import Source


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
    place = which.uid, node or "", phase in records.FINISHED, meta.deletion_timestamp is not None
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
    "PodDisruptionBudget": records.pod_disruption_budget, "PriorityClass": records.priority_class,
    "ResourceQuota": records.resource_quota, "DeviceClass": records.device_class,
    "ResourceSlice": records.resource_slice, "ResourceClaim": records.resource_claim,
    "ResourceClaimTemplate": records.resource_claim_template, "DeviceTaintRule": records.device_taint_rule,
}  # fmt: skip
_BRIEF: Final = msgspec.json.Decoder(schema.BriefPodChange)
_CHANGES: Final[dict[Kind, tuple[msgspec.json.Decoder[Any], Callable[[Any, frozenset[str]], Record]]]] = {
    "Pod": (msgspec.json.Decoder(schema.PodChange), records.pod.of),
    "FailedPod": (msgspec.json.Decoder(schema.PodChange), records.pod.of),
    "Node": (msgspec.json.Decoder(schema.NodeChange), records.node.of),
}
