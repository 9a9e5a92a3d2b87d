"""For whose pods a node is rejected, as of the failures on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from extender.cluster.health import pod_failures
from extender.cluster.health.pod_failures import Failure, Failures, What

YOUNG_SECONDS: Final = 60.0
"""A pod that dies sooner after its binding may have died of the node."""
Reject = Literal["all", "namespace", "none"]
"""Whose pods a node may be rejected for: those of all and of one namespace; of one namespace only; of none."""
_WORDS: Final[dict[What, str]] = {
    "admission": "at kubelet's admission",
    "runtime": "as the container runtime had no GPU for them",
    "refused": "refused by kubelet",
    "died": f"within {YOUNG_SECONDS:.0f} s of being bound",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A node is rejected from now on, or no longer. `text`: one sentence for people; `namespace`: whose pods it is
    rejected for, "" for all; `latest`: the failure that decided."""

    node: str
    refused: bool
    text: str
    namespace: str = ""
    latest: Failure | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Standing:
    """What is held against one namespace's pods on a node, besides what counts for all."""

    doubt: float
    rejected: bool


class Verdicts:
    """For whom each node is rejected. `stale_tenants`: the namespaces whose standings have changed since the caller
    cleared it."""

    def __init__(self, failures: Failures, reject: Reject) -> None:
        self.stale_tenants: set[str] = set()
        self.reject = reject
        self._failures = failures
        self._refused: set[str] = set()
        self._standings: dict[str, dict[str, Standing]] = {}  # namespace -> node -> standing
        self._tenants_on: dict[str, tuple[str, ...]] = {}  # node -> namespaces with a standing

    def refused(self) -> list[str]:
        """The nodes that are rejected for all pods now, by name."""
        return sorted(self._refused)

    def standings(self, namespace: str) -> dict[str, Standing]:
        """By node: what counts against the namespace's pods alone."""
        return self._standings.get(namespace, {})

    def tenant_rejections(self) -> int:
        """Pairs of a namespace and a node that is rejected for its pods alone."""
        return sum(one.rejected for nodes in self._standings.values() for one in nodes.values())

    def touch(self, node: str) -> None:
        """The node is known from now on: its standings must be written."""
        self.stale_tenants.update(self._tenants_on.get(node, ()))

    def weigh(self, node: str, now: float) -> list[Change]:
        """Bring up to date for whom the node is rejected; what has changed."""
        failures, changes = self._failures, []
        for_all = failures.for_all(node, now)
        shared = set(for_all)
        rejected = self.reject == "all" and failures.enough(for_all, now)
        if rejected != (node in self._refused):
            changes.append(self._change(node, rejected, for_all, "", now))
            (self._refused.add if rejected else self._refused.discard)(node)
        tenants = self._tenants(node, for_all)
        for namespace in tenants:
            before = self._standings.get(namespace, {}).get(node)
            counting = failures.for_tenant(node, namespace, for_all)
            own = pod_failures.doubt([one for one in counting if one not in shared], now)
            alone = not rejected and self.reject != "none" and failures.enough(counting, now)
            standing = Standing(own, alone) if own or alone else None
            if standing == before:
                continue
            self.stale_tenants.add(namespace)
            _put(self._standings, namespace, node, standing)
            differs = alone != (before is not None and before.rejected)
            if differs and (alone or not rejected):  # else it is told as one for all
                changes.append(self._change(node, alone, counting, namespace, now))
        kept = tuple(namespace for namespace in tenants if node in self._standings.get(namespace, {}))
        if kept:
            self._tenants_on[node] = kept
        else:
            self._tenants_on.pop(node, None)
        return changes

    def _tenants(self, node: str, for_all: Sequence[Failure]) -> list[str]:
        """The namespaces of which something may be held against their own pods alone, or was so far."""
        found = {key for key in self._failures.keys(node) if key} | set(self._tenants_on.get(node, ()))
        if self.reject == "namespace":  # what counts for all rejects the node for those whose pods failed
            found |= {one.party.namespace for one in for_all}
        return sorted(found)

    def _change(self, node: str, rejected: bool, counting: Sequence[Failure], namespace: str, now: float) -> Change:
        of = f" of namespace {namespace}" if namespace else ""
        if not rejected:
            return Change(node, False, f"GPU pods{of} may be placed on the node again", namespace)
        failed = [one for one in counting if now - one.at < self._failures.limits.window]
        kinds = [one.what for one in failed]
        how = ", ".join(f"{kinds.count(what)} {words}" for what, words in _WORDS.items() if what in kinds)
        minutes = words_of(self._failures.limits.window)
        text = (
            f"{len(failed)} GPU pods failed on the node within {minutes} ({how}; the latest {failed[-1].pod}; "
            f"in common: {pod_failures.common(failed)}): no more{of and ' GPU pods' + of} are placed on it for now"
        )
        return Change(node, True, text, namespace, failed[-1])


def words_of(seconds: float) -> str:
    """A time span in words: "ten minutes", "90 s"."""
    if seconds == 600.0:
        return "ten minutes"
    return f"{seconds / 60:g} minutes" if seconds >= 120 else f"{seconds:g} s"


def _put(table: dict[str, dict[str, Standing]], namespace: str, node: str, standing: Standing | None) -> None:
    inner = table.setdefault(namespace, {})
    if standing is not None:
        inner[node] = standing
    else:
        inner.pop(node, None)
        if not inner:
            del table[namespace]
