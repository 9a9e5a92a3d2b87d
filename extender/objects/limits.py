"""What limits pods beside nodes: PodDisruptionBudgets, ResourceQuotas and PriorityClasses."""

from __future__ import annotations

from sys import intern
from typing import Final, NamedTuple

from extender.objects import schema
from extender.objects.parts import NamespacedRecord, ObjectRecord, metadata, named, namespaced
from extender.objects.resources import QuantityError, milli, value
from extender.objects.schema import Reader, RecordError
from extender.objects.selectors import Selector, selector

# -- PodDisruptionBudgets


class PdbRecord(NamespacedRecord, frozen=True, gc=False, kw_only=True):
    """A PodDisruptionBudget."""

    selector: Selector
    disruptions_allowed: int
    disrupted_pods: frozenset[str]  # names that `disruptions_allowed` has already paid for


def _budget_of(wire: schema.Pdb, _: frozenset[str]) -> PdbRecord:
    """Without a status nothing may be disrupted yet."""
    meta = metadata(wire.metadata)
    status = wire.status or schema.PdbStatus()
    return PdbRecord(
        **namespaced(meta),
        selector=selector(wire.spec.selector if wire.spec else None, "spec.selector"),
        disruptions_allowed=status.disruptions_allowed or 0,
        disrupted_pods=frozenset(status.disrupted_pods or ()),
    )


pod_disruption_budget: Final = Reader(schema.Pdb, _budget_of)


# -- ResourceQuotas


PRIORITY_CLASS: Final = "PriorityClass"
"""The scope whose tests compare the names of PriorityClasses."""
_CPU: Final = frozenset(["cpu", "requests.cpu", "limits.cpu"])


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


class QuotaRecord(NamespacedRecord, frozen=True, gc=False, kw_only=True):
    """A ResourceQuota. Amounts of CPU are thousandths of a core, all others whole units; both by name, sorted."""

    hard: tuple[tuple[str, int], ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()  # (name, text) of limits that are no quantities
    used: tuple[tuple[str, int], ...] = ()  # as the quota controller wrote it, empty where it did not
    scopes: tuple[QuotaScope, ...] = ()

    @property
    def text(self) -> str:
        """Which quota it is, for people."""
        return f"{self.namespace}/{self.name}"


def _quota_of(wire: schema.Quota, _: frozenset[str]) -> QuotaRecord:
    """A limit that is no quantity ends nothing: the API server would not have it."""
    meta = metadata(wire.metadata)
    spec = wire.spec or schema.QuotaSpec()
    hard, unreadable = _amounts(spec.hard)
    scopes = [QuotaScope(intern(name)) for name in spec.scopes or ()]
    for expression in (spec.scope_selector.match_expressions if spec.scope_selector else None) or ():
        values = tuple([intern(text) for text in expression.values or ()])
        scopes.append(QuotaScope(intern(expression.scope_name or ""), intern(expression.operator or ""), values))
    return QuotaRecord(
        **namespaced(meta),
        hard=hard,
        unreadable=unreadable,
        used=_amounts(wire.status.used if wire.status else None)[0],
        scopes=tuple(scopes),
    )


resource_quota: Final = Reader(schema.Quota, _quota_of)


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


class PriorityClassRecord(ObjectRecord, frozen=True, gc=False, kw_only=True):
    """A PriorityClass."""

    value: int
    never: bool
    global_default: bool


def _priority_class_of(wire: schema.PriorityClass, _: frozenset[str]) -> PriorityClassRecord:
    meta = metadata(wire.metadata)
    if wire.value is None:
        raise RecordError("value", "a PriorityClass needs one")
    return PriorityClassRecord(
        **named(meta),
        value=wire.value,
        never=wire.preemption_policy == "Never",
        global_default=bool(wire.global_default),
    )


# -- how pods answer requests to save


class SaveAnswersRecord(ObjectRecord, frozen=True, gc=False, kw_only=True):
    """What is remembered of how the pods of a namespace answer requests to save their work (extender.act.saving).
    No object of Kubernetes: the writer of the memory applies it as one, so that all that reads the cluster has it.
    `name`: the namespace."""

    ignores: int
    """How likely a pod of an owner that is not named ignores a request, in thousandths."""
    owners: dict[str, int]
    """The same by owner, as `gangs.top_owner` names it."""


priority_class: Final = Reader(schema.PriorityClass, _priority_class_of)
