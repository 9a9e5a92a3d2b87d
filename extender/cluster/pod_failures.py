"""Pods that failed on nodes: what is remembered of them, and for whose pods they count.

A tenant is a namespace. What a pod of a tenant did wrong is held against that tenant's pods only: the tenant chooses
the image, the command, the owner and the service account, so it can make its pods fail wherever it likes. A failure
counts for the pods of all tenants in two cases:

- kubelet or the container runtime reports it, and no pod can cause it (extender.objects.pods);
- pods of several independent parties failed on the node lately. Two parties are independent if nothing is common to
  them that may be to blame: namespace, owner, image, service account.

What is remembered is bounded, in failures of one tenant on one node, of one tenant, and of all. Of a tenant that
exceeds its share the node is forgotten on which its latest failure is the oldest; no other tenant loses anything by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from extender.cluster.numbered import take_out

What = Literal["admission", "runtime", "refused", "died"]
OF_NODE: Final = frozenset({"admission", "runtime"})
"""What no pod can cause at will."""

HALF_LIFE_SECONDS: Final = 300.0
LEAST_DOUBT: Final = 0.1  # less than this is none: after 17 minutes for one failure
KEPT: Final = 20  # failures of one tenant on one node that are remembered, and as many that count for all
KEPT_OF_TENANT: Final = 200
KEPT_OF_TENANTS: Final = 2_000
KEPT_OF_NODES: Final = 6_000  # of those that count for all: no tenant causes them
WEIGHED: Final = 64  # different parties of a node that are compared with each other, the latest


@dataclass(frozen=True, slots=True)
class Party:
    """Whose pod it was. `owner`: the controller's uid, else the pod's own; `images`: of its GPU containers."""

    namespace: str
    owner: str
    images: frozenset[str]
    service_account: str

    def independent(self, other: Party) -> bool:
        """Whether nothing that may be to blame is common to the two. A service account is one of its namespace: that
        of the name `default` exists in each. Where images are not known they may be the same."""
        return (
            self.namespace != other.namespace
            and self.owner != other.owner
            and bool(self.images)
            and bool(other.images)
            and self.images.isdisjoint(other.images)
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """One pod that failed on a node. `at`: seconds on the server's clock."""

    at: float
    uid: str
    name: str
    party: Party
    what: What

    @property
    def pod(self) -> str:
        """Namespace and name of the pod."""
        return f"{self.party.namespace}/{self.name}"

    @property
    def key(self) -> str:
        """Against whom it is held: a namespace, or "" for all."""
        return "" if self.what in OF_NODE else self.party.namespace


@dataclass(frozen=True, slots=True)
class FailureLimits:
    """From when on nodes are rejected."""

    count: int = 3
    """Failures within `window`."""
    window: float = 600.0
    """In seconds."""
    parties: int = 2
    """So many independent parties make failures of tenants count for all."""


def doubt(failures: Iterable[Failure], now: float) -> float:
    """Each failure counts half as much every five minutes; 0.0 for none to speak of."""
    total = sum(0.5 ** (max(0.0, now - failure.at) / HALF_LIFE_SECONDS) for failure in failures)
    return total if total >= LEAST_DOUBT else 0.0


def independent(failures: Sequence[Failure], wanted: int) -> bool:
    """Whether pods of so many parties failed that are independent of each other. Parties beyond WEIGHED, and sets that
    are found only by trying all, count as not independent: then the node is not suspected."""
    parties = list(dict.fromkeys(failure.party for failure in reversed(failures)))[:WEIGHED]
    if len({party.namespace for party in parties}) < wanted:
        return False
    for first in parties:
        chosen = [first]
        for other in parties:
            if len(chosen) < wanted and all(other.independent(earlier) for earlier in chosen):
                chosen.append(other)
        if len(chosen) >= wanted:
            return True
    return False


def common(failures: Sequence[Failure]) -> str:
    """What the failed pods have in common, for people: what to suspect first."""
    first = failures[0].party
    parties = [failure.party for failure in failures]
    shared = []
    if all(party.namespace == first.namespace for party in parties):
        shared.append(f"namespace {first.namespace}")
        if len(failures) > 1 and all(party.owner == first.owner for party in parties):
            shared.append("owner")
    if images := frozenset.intersection(*(party.images for party in parties)):
        shared.append(f"image {min(images)}")
    accounts = {(party.namespace, party.service_account) for party in parties}
    if len(accounts) == 1 and first.service_account:
        shared.append(f"service account {first.service_account}")
    return ", ".join(shared) or "nothing"


@dataclass(slots=True)
class Failures:
    """By node, and on it by key: a namespace, or "" for what counts for all. Each list has the oldest first."""

    limits: FailureLimits = field(default_factory=FailureLimits)
    _on: dict[str, dict[str, list[Failure]]] = field(default_factory=dict)
    _of: dict[str, dict[str, None]] = field(default_factory=dict)  # key -> its nodes, the latest failure last
    _counts: dict[str, int] = field(default_factory=dict)  # key -> failures
    _sum: int = 0  # of all keys but ""
    _sound: dict[str, float] = field(default_factory=dict)  # node -> what is older does not count for all

    # -- what is read ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(self._counts.values())

    def nodes(self) -> Iterable[str]:
        """The nodes of which failures are remembered."""
        return self._on.keys()

    def nodes_of(self, key: str) -> Iterable[str]:
        """The nodes with failures of a key, the latest failure last."""
        return self._of.get(key, {}).keys()

    def keys(self, node: str) -> Iterable[str]:
        """The keys of the failures on a node."""
        return self._on.get(node, {}).keys()

    def held(self, node: str, key: str) -> Sequence[Failure]:
        """What is held against a namespace, or ("") against the node, oldest first."""
        return self._on.get(node, {}).get(key, ())

    def on(self, node: str) -> list[Failure]:
        """All that is remembered of a node, oldest first."""
        return sorted((failure for held in self._on.get(node, {}).values() for failure in held), key=_order)

    def for_all(self, node: str, now: float) -> list[Failure]:
        """The failures that count for the pods of all tenants, oldest first."""
        reported = list(self.held(node, ""))
        if not reported and len(self._on.get(node, ())) < self.limits.parties:  # the usual case: one tenant's own
            return reported
        sound = self._sound.get(node, float("-inf"))
        lately = [failure for failure in self.on(node) if now - failure.at < self.limits.window and failure.at >= sound]
        if not independent(lately, self.limits.parties):
            return reported
        return sorted({*reported, *lately}, key=_order)

    def for_tenant(self, node: str, namespace: str, for_all: Sequence[Failure]) -> list[Failure]:
        """The failures that count for a namespace's pods: `for_all`, and its own; oldest first."""
        return sorted({*for_all, *self.held(node, namespace)}, key=_order)

    def counting(self, node: str, now: float, namespace: str) -> Sequence[Failure]:
        """The failures that count for all, or for a namespace's pods if one is named; oldest first."""
        for_all = self.for_all(node, now)
        return self.for_tenant(node, namespace, for_all) if namespace else for_all

    def enough(self, failures: Iterable[Failure], now: float) -> bool:
        """Whether so many of them are recent that the node is rejected."""
        return sum(now - failure.at < self.limits.window for failure in failures) >= self.limits.count

    # -- what is written ------------------------------------------------------------------------------------------

    def add(self, node: str, failure: Failure) -> set[str]:
        """Remember it, once a pod. The nodes whose failures are others now."""
        key = failure.key
        if any(known.uid == failure.uid for known in self.held(node, key)):
            return set()
        held = self._on.setdefault(node, {}).setdefault(key, [])
        held.append(failure)
        held.sort(key=_order)
        nodes = self._of.setdefault(key, {})
        nodes.pop(node, None)
        nodes[node] = None
        self._count(key, 1)
        changed = {node}
        if len(held) > KEPT:
            del held[0]
            self._count(key, -1)
        if self._counts[key] > (KEPT_OF_TENANT if key else KEPT_OF_NODES):
            changed.add(self._forget_oldest(key))
        if self._sum > KEPT_OF_TENANTS:
            changed.add(self._forget_oldest(max((key for key in self._counts if key), key=self._counts.__getitem__)))
        return changed

    def keep(self, node: str, key: str, wanted: Callable[[Failure], bool]) -> bool:
        """Forget the failures of a key that are not wanted. Whether there were any."""
        held = self._on.get(node, {}).get(key, [])
        remaining = [failure for failure in held if wanted(failure)]
        if len(remaining) == len(held):
            return False
        self._count(key, len(remaining) - len(held))
        if remaining:
            self._on[node][key] = remaining
        else:
            self._drop(node, key)
        return True

    def forget(self, node: str) -> bool:
        """All that is remembered of the node. Whether there was anything."""
        keys = list(self.keys(node))
        for key in keys:
            self.keep(node, key, lambda _: False)
        return bool(keys)

    def sound(self, node: str, namespace: str, at: float) -> bool:
        """A GPU pod of the namespace that started `at` has run well: whether anything counts no more.

        It clears its own tenant's failures, and what is reported of the node, where none is newer: kubelet has handed
        out a device. The runtime's errors with pods of other tenants stay: a pod whose `env` asks for no GPU
        (NVIDIA_VISIBLE_DEVICES=void) runs on a node without a driver too. What is held against other tenants stays
        theirs, but does not count for all any more."""
        if node not in self._on:
            return False

        def stays(failure: Failure) -> bool:
            return failure.what == "runtime" and failure.party.namespace != namespace

        changed = [
            self.keep(node, key, stays)
            for key in ("", namespace)
            if (held := self.held(node, key)) and held[-1].at < at
        ]
        if node in self._on and at > self._sound.get(node, float("-inf")):
            self._sound[node] = at
            changed.append(True)
        return any(changed)

    def fade(self, node: str, now: float) -> None:
        """Forget what is too old to count."""
        for key in [key for key in self.keys(node) if not self._counts_for(node, key, now)]:
            self.keep(node, key, lambda _: False)

    def _counts_for(self, node: str, key: str, now: float) -> bool:
        held = self.held(node, key)
        return bool(doubt(held, now)) or now - held[-1].at < self.limits.window

    def _forget_oldest(self, key: str) -> str:
        node = next(iter(self._of[key]))
        oldest = self._on[node][key][0]
        self.keep(node, key, lambda failure: failure is not oldest)
        return node

    def _drop(self, node: str, key: str) -> None:
        take_out(self._on, node, key)
        take_out(self._of, key, node)
        if node not in self._on:
            self._sound.pop(node, None)

    def _count(self, key: str, change: int) -> None:
        self._counts[key] = self._counts.get(key, 0) + change
        if not self._counts[key]:
            del self._counts[key]
        if key:
            self._sum += change


def _order(failure: Failure) -> tuple[float, str]:
    return failure.at, failure.uid


# -- verdicts ----------------------------------------------------------------------------------------------------------


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
class RejectionChange:
    """A node is rejected from now on, or no longer."""

    node: str
    refused: bool
    text: str
    """One sentence for people."""
    namespace: str = ""
    """For whose pods; "" for all."""
    latest: Failure | None = field(default=None, compare=False)
    """The failure that decided."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is held against one namespace's pods on a node, besides what counts for all."""

    doubt: float
    rejected: bool


class NodeRejections:
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
        return sum(standing.rejected for nodes in self._standings.values() for standing in nodes.values())

    def touch(self, node: str) -> None:
        """The node is known from now on: its standings must be written."""
        self.stale_tenants.update(self._tenants_on.get(node, ()))

    def weigh(self, node: str, now: float) -> list[RejectionChange]:
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
            own = doubt([failure for failure in counting if failure not in shared], now)
            alone = not rejected and self.reject != "none" and failures.enough(counting, now)
            standing = Standing(own, alone) if own or alone else None
            if standing == before:
                continue
            self.stale_tenants.add(namespace)
            if standing is not None:
                self._standings.setdefault(namespace, {})[node] = standing
            else:
                take_out(self._standings, namespace, node)
            differs = alone != (before is not None and before.rejected)
            if differs and (alone or not rejected):  # else it is reported as one for all
                changes.append(self._change(node, alone, counting, namespace, now))
        with_standing = tuple(namespace for namespace in tenants if node in self._standings.get(namespace, {}))
        if with_standing:
            self._tenants_on[node] = with_standing
        else:
            self._tenants_on.pop(node, None)
        return changes

    def _tenants(self, node: str, for_all: Sequence[Failure]) -> list[str]:
        """The namespaces of which something may be held against their own pods alone, or was so far."""
        namespaces = {key for key in self._failures.keys(node) if key} | set(self._tenants_on.get(node, ()))
        if self.reject == "namespace":  # what counts for all rejects the node for those whose pods failed
            namespaces |= {failure.party.namespace for failure in for_all}
        return sorted(namespaces)

    def _change(
        self, node: str, rejected: bool, counting: Sequence[Failure], namespace: str, now: float
    ) -> RejectionChange:
        of = f" of namespace {namespace}" if namespace else ""
        if not rejected:
            return RejectionChange(node, False, f"GPU pods{of} may be placed on the node again", namespace)
        failed = [failure for failure in counting if now - failure.at < self._failures.limits.window]
        kinds = [failure.what for failure in failed]
        how = ", ".join(f"{kinds.count(kind)} {words}" for kind, words in _WORDS.items() if kind in kinds)
        minutes = words_of(self._failures.limits.window)
        text = (
            f"{len(failed)} GPU pods failed on the node within {minutes} ({how}; the latest {failed[-1].pod}; "
            f"in common: {common(failed)}): no more{of and ' GPU pods' + of} are placed on it for now"
        )
        return RejectionChange(node, True, text, namespace, failed[-1])


def words_of(seconds: float) -> str:
    """A time span in words: "ten minutes", "90 s"."""
    if seconds == 600.0:
        return "ten minutes"
    return f"{seconds / 60:g} minutes" if seconds >= 120 else f"{seconds:g} s"
