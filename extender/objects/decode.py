"""One object of any kind, or one watch event about it, as its record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from extender.objects import gangs, records, schema
from extender.objects.records import Kind, Record
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
_CHANGES: Final[dict[Kind, tuple[msgspec.json.Decoder[Any], Callable[[Any, frozenset[str]], Record]]]] = {
    "Pod": (msgspec.json.Decoder(schema.PodChange), records.pod.of),
    "FailedPod": (msgspec.json.Decoder(schema.PodChange), records.pod.of),
    "Node": (msgspec.json.Decoder(schema.NodeChange), records.node.of),
}
