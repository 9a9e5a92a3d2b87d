"""One object of any kind, as its record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from extender.objects import gangs, records
from extender.objects.records import Kind, Record
from extender.objects.schema import Source


def record(kind: Kind, source: Source, gpus: frozenset[str], group: tuple[str, str] | None = None) -> Record:
    """The record of an object whose kind is known. `group`: (API group, kind) of a Group, where it does not state them
    itself. RecordError where a field cannot be read."""
    return gangs.group(source, *group) if group else _DECODERS[kind](source, gpus)


_DECODERS: Final[dict[Kind, Callable[[Source, frozenset[str]], Record]]] = {
    "Pod": records.pod,
    "Node": records.node,
    "PodDisruptionBudget": lambda source, gpus: records.pod_disruption_budget(source),
    "PriorityClass": lambda source, gpus: records.priority_class(source),
    "DeviceClass": lambda source, gpus: records.device_class(source),
    "FailedPod": records.pod,
    "Group": lambda source, gpus: gangs.group(source),
}
