"""What limits pods beside nodes: PodDisruptionBudgets, ResourceQuotas and PriorityClasses."""

from __future__ import annotations

from sys import intern
from typing import Final, NamedTuple

import msgspec

from extender.objects import schema
from extender.objects.parts import metadata
from extender.objects.resources import QuantityError, milli, value
from extender.objects.schema import RecordError, Source, read
from extender.objects.selectors import Selector, selector

# -- PodDisruptionBudgets


_PDB: Final = msgspec.json.Decoder(schema.Pdb)


class PdbRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A PodDisruptionBudget."""

    uid: str
    namespace: str
    name: str
    resource_version: str
    selector: Selector
    disruptions_allowed: int
    disrupted_pods: frozenset[str]  # names that `disruptions_allowed` has already paid for


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


# -- ResourceQuotas


PRIORITY_CLASS: Final = "PriorityClass"
"""The scope whose tests compare the names of PriorityClasses."""
_CPU: Final = frozenset(["cpu", "requests.cpu", "limits.cpu"])
_QUOTA: Final = msgspec.json.Decoder(schema.Quota)


class QuotaFacts(NamedTuple):
    """What ResourceQuotas look at and nothing else does."""

    # what they count besides requests of CPU, memory and GPUs, by the name that a quota has for it
    amounts: tuple[tuple[str, int], ...] = ()
    unstated: tuple[str, ...] = ()  # the amounts of CPU and memory that not every container states
    best_effort: bool = False  # its QoS class
    crosses_namespaces: bool = False  # whether an affinity names other namespaces


class QuotaScope(NamedTuple):
    """One test of the pods that a quota counts."""

    name: str
    operator: str = "Exists"  # In, NotIn, Exists or DoesNotExist
    values: tuple[str, ...] = ()


class QuotaRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A ResourceQuota. Amounts of CPU are thousandths of a core, all others whole units; both by name, sorted."""

    uid: str
    namespace: str
    name: str
    resource_version: str
    hard: tuple[tuple[str, int], ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()  # (name, text) of limits that are no quantities
    used: tuple[tuple[str, int], ...] = ()  # as the quota controller wrote it, empty where it did not
    scopes: tuple[QuotaScope, ...] = ()

    @property
    def text(self) -> str:
        """Which quota it is, for people."""
        return f"{self.namespace}/{self.name}"


def resource_quota(source: Source) -> QuotaRecord:
    """The record of a ResourceQuota. A limit that is no quantity ends nothing: the API server would not have it."""
    return quota_of(read(source, _QUOTA))


def quota_of(wire: schema.Quota) -> QuotaRecord:
    """The record of a decoded ResourceQuota."""
    meta = metadata(wire.metadata)
    spec = wire.spec or schema.QuotaSpec()
    hard, unreadable = _amounts(spec.hard)
    used, _ = _amounts(wire.status.used if wire.status else None)
    scopes = [QuotaScope(intern(name)) for name in spec.scopes or ()]
    for expression in (spec.scope_selector.match_expressions if spec.scope_selector else None) or ():
        values = tuple([intern(text) for text in expression.values or ()])
        scopes.append(QuotaScope(intern(expression.scope_name or ""), intern(expression.operator or ""), values))
    return QuotaRecord(
        uid=meta.uid or "",
        namespace=intern(meta.namespace or "default"),
        name=meta.name or "",
        resource_version=meta.resource_version or "",
        hard=hard,
        unreadable=unreadable,
        used=used,
        scopes=tuple(scopes),
    )


def _amounts(wire: schema.Resources) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, str], ...]]:
    """(what can be read, what is no quantity)."""
    readable: list[tuple[str, int]] = []
    unreadable: list[tuple[str, str]] = []
    for name, text in sorted((wire or {}).items()):
        try:
            readable.append((intern(name), milli(text or 0) if name in _CPU else value(text or 0)))
        except QuantityError:
            unreadable.append((name, str(text)))
    return tuple(readable), tuple(unreadable)


# -- PriorityClasses


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
