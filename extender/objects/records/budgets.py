"""PodDisruptionBudgets."""

from __future__ import annotations

from sys import intern
from typing import Final

import msgspec

from extender.objects import schema
from extender.objects.records.parts import metadata
from extender.objects.records.placement import selector
from extender.objects.schema import Source, read
from extender.objects.selectors import Selector

_PDB: Final = msgspec.json.Decoder(schema.Pdb)


class PdbRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A PodDisruptionBudget. ``disrupted_pods`` are names that ``disruptions_allowed`` has already paid for."""

    uid: str
    namespace: str
    name: str
    resource_version: str
    selector: Selector
    disruptions_allowed: int
    disrupted_pods: frozenset[str]


def pod_disruption_budget(source: Source) -> PdbRecord:
    """The record of a PodDisruptionBudget. Without a status nothing may be disrupted yet."""
    return budget_of(read(source, _PDB))


def budget_of(wire: schema.Pdb) -> PdbRecord:
    """The record of a decoded PodDisruptionBudget."""
    meta = metadata(wire.metadata)
    status = wire.status or schema.PdbStatus()
    return PdbRecord(
        uid=meta.uid or "",
        namespace=intern(meta.namespace or "default"),
        name=meta.name or "",
        resource_version=meta.resource_version or "",
        selector=selector(wire.spec.selector if wire.spec else None, "spec.selector"),
        disruptions_allowed=status.disruptions_allowed or 0,
        disrupted_pods=frozenset(status.disrupted_pods or ()),
    )
