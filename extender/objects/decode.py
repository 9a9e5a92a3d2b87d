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
    return gangs.group(source, *group, gpus=gpus) if group else _DECODERS[kind](source, gpus)


_DECODERS: Final[dict[Kind, Callable[[Source, frozenset[str]], Record]]] = {
    "Pod": records.pod,
    "Node": records.node,
    "PodDisruptionBudget": lambda source, gpus: records.pod_disruption_budget(source),
    "PriorityClass": lambda source, gpus: records.priority_class(source),
    "DeviceClass": lambda source, gpus: records.device_class(source),
    "ResourceSlice": lambda source, gpus: records.resource_slice(source),
    "ResourceClaim": lambda source, gpus: records.resource_claim(source),
    "ResourceClaimTemplate": lambda source, gpus: records.resource_claim_template(source),
    "ResourceQuota": lambda source, gpus: records.resource_quota(source),
    "DeviceTaintRule": lambda source, gpus: records.device_taint_rule(source),
    "FailedPod": records.pod,
    "Group": lambda source, gpus: gangs.group(source, gpus=gpus),
}
_CHANGES: Final[dict[Kind, tuple[msgspec.json.Decoder[Any], Callable[[Any, frozenset[str]], Record]]]] = {
    "Pod": (msgspec.json.Decoder(schema.PodChange), records.pod_of),
    "FailedPod": (msgspec.json.Decoder(schema.PodChange), records.pod_of),
    "Node": (msgspec.json.Decoder(schema.NodeChange), records.node_of),
}
