"""PriorityClasses and DeviceClasses."""

from __future__ import annotations

from typing import Final

import msgspec

from extender.objects import schema
from extender.objects.records.parts import metadata
from extender.objects.schema import RecordError, Source, read

_PRIORITY_CLASS: Final = msgspec.json.Decoder(schema.PriorityClass)
_DEVICE_CLASS: Final = msgspec.json.Decoder(schema.DeviceClass)


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


def priority_class(source: Source) -> PriorityClassRecord:
    """The record of a PriorityClass."""
    wire = read(source, _PRIORITY_CLASS)
    meta = metadata(wire.metadata)
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
    meta = metadata(wire.metadata)
    return DeviceClassRecord(
        uid=meta.uid or "",
        name=meta.name or "",
        resource_version=meta.resource_version or "",
        extended_resource_name=(wire.spec.extended_resource_name if wire.spec else None) or "",
    )
