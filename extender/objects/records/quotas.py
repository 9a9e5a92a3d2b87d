"""ResourceQuotas."""

from __future__ import annotations

from sys import intern
from typing import Final, NamedTuple

import msgspec

from extender.objects import schema
from extender.objects.quantity import QuantityError, milli, value
from extender.objects.records.parts import metadata
from extender.objects.schema import Source, read

PRIORITY_CLASS: Final = "PriorityClass"
"""The scope whose tests compare the names of PriorityClasses."""
_CPU: Final = frozenset(["cpu", "requests.cpu", "limits.cpu"])
_QUOTA: Final = msgspec.json.Decoder(schema.Quota)


class QuotaFacts(NamedTuple):
    """What ResourceQuotas look at and nothing else does. `amounts`: what they count besides requests of CPU, memory and
    GPUs, by the name that a quota has for it; `unstated`: the amounts of CPU and memory that not every container
    states; `best_effort`: its QoS class; `crosses_namespaces`: whether an affinity names other namespaces."""

    amounts: tuple[tuple[str, int], ...] = ()
    unstated: tuple[str, ...] = ()
    best_effort: bool = False
    crosses_namespaces: bool = False


class QuotaScope(NamedTuple):
    """One test of the pods that a quota counts. `operator`: In, NotIn, Exists or DoesNotExist."""

    name: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()


class QuotaRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A ResourceQuota. Amounts of CPU are thousandths of a core, all others whole units; both by name, sorted.

    ``unreadable``: (name, text) of limits that are no quantities; ``used``: as the quota controller wrote it, empty
    where it did not.
    """

    uid: str
    namespace: str
    name: str
    resource_version: str
    hard: tuple[tuple[str, int], ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()
    used: tuple[tuple[str, int], ...] = ()
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
    for one in (spec.scope_selector.match_expressions if spec.scope_selector else None) or ():
        values = tuple([intern(text) for text in one.values or ()])
        scopes.append(QuotaScope(intern(one.scope_name or ""), intern(one.operator or ""), values))
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
    found: list[tuple[str, int]] = []
    unreadable: list[tuple[str, str]] = []
    for name, text in sorted((wire or {}).items()):
        try:
            found.append((intern(name), milli(text or 0) if name in _CPU else value(text or 0)))
        except QuantityError:
            unreadable.append((name, str(text)))
    return tuple(found), tuple(unreadable)
