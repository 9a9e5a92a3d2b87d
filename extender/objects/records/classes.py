"""PriorityClasses and DeviceClasses."""

from __future__ import annotations

from typing import Final

import msgspec

from extender.objects import schema
from extender.objects.records.parts import metadata
from extender.objects.schema import RecordError, Source, read

SYSTEM_CLASSES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""The values of the classes that every cluster has."""
_PRIORITY_CLASS: Final = msgspec.json.Decoder(schema.PriorityClass)


class PriorityClassRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A PriorityClass."""

    uid: str
    name: str
    resource_version: str
    value: int
    never: bool
    global_default: bool


class _Expression(schema.Wire):
    expression: str | None = None


class _Selector(schema.Wire):
    cel: _Expression | None = None


class _DeviceClassSpec(schema.Wire):
    extended_resource_name: str | None = None
    selectors: list[_Selector] | None = None


class _DeviceClass(schema.Wire):
    metadata: schema.Metadata | None = None
    spec: _DeviceClassSpec | None = None


_DEVICE_CLASS: Final = msgspec.json.Decoder(_DeviceClass)


class DeviceClassRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A DeviceClass. ``extended_resource_name`` is the resource that it also serves, "" for none; ``selectors``: the
    CEL expressions that a device must all match."""

    uid: str
    name: str
    resource_version: str
    extended_resource_name: str
    selectors: tuple[str, ...] = ()


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
    spec = wire.spec or _DeviceClassSpec()
    return DeviceClassRecord(
        uid=meta.uid or "",
        name=meta.name or "",
        resource_version=meta.resource_version or "",
        extended_resource_name=spec.extended_resource_name or "",
        selectors=tuple([(one.cel.expression if one.cel else None) or "" for one in spec.selectors or ()]),
    )
