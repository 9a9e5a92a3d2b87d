"""Whether a node has the devices that the claims of a pod ask for, and which ones kube-scheduler would allocate.

A claim for a number of any whole GPUs is counted with all other GPUs (`store.py`) and needs no look at each device:
`tests/cluster/dra/test_claim_fits.py` compares. All other claims are allocated here, as kube-scheduler does.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from extender.cluster.dra.allocator import Allocation, allocate
from extender.cluster.dra.claims import ResourceClaims, is_plain
from extender.cluster.dra.pools import Candidate, NodePools
from extender.cluster.dra.resource_slices import PoolKey
from extender.objects import cel
from extender.objects.cel import Verdict
from extender.objects.records import ClaimSpec, DeviceChoice, DeviceClassRecord, NodeRecord, PodRecord

UNMET: Final = "claim-unmet"
"""Why a node is rejected whose devices do not meet the claims of a pod."""
MOST_KEPT: Final = 64
"""Different sets of claims of which the answers are kept."""
MOST_SPENT: Final = 50_000
"""Steps that the answers for the same claims may take, about half a second, unless they take few for each node."""
FEW_STEPS: Final = 64
TOO_COSTLY: Final = Allocation(None, why="it takes too many steps", unknown=True)
MOST_LOOKED_AT: Final = 64
"""Nodes that tell whether the claims of two pods exclude each other."""
Specs = tuple[ClaimSpec, ...]


class PodClaims(NamedTuple):
    """The claims of a pod that are not allocated. `names`: of the claim, or of its template. A claim that several pods
    share counts for each."""

    names: tuple[str, ...]
    specs: Specs


def unmet(claims: PodClaims, allocation: Allocation) -> str:
    """Which request of which claim it is about."""
    request = f"request {allocation.request} of " if allocation.request else ""
    return f"{request}claim {claims.names[allocation.claim]}"


class ClaimFits:
    """The answers for pods and nodes; each is kept until something of the node changes."""

    def __init__(
        self,
        pools: NodePools,
        claims: ResourceClaims,
        classes: Mapping[str, DeviceClassRecord],
        every: Container[str],
    ) -> None:
        """`classes`: by name; `every`: those that select every whole GPU of their driver. All are kept up to date by
        the caller."""
        self._pools, self._claims, self._classes, self._every = pools, claims, classes, every
        self._spent: dict[Specs, int] = {}  # of each that is in `_kept`
        self._kept: dict[Specs, dict[str, tuple[Mapping[str, str], Allocation]]] = {}

    def of(self, pod: PodRecord) -> PodClaims | None:
        """The claims of a pod that are to be allocated, None where all are counted."""
        if not (pod.claim_refs or pod.class_requests):
            return None
        claims = self.all_of(pod)
        return None if all(is_plain(spec, self._every) for spec in claims.specs) else claims

    def all_of(self, pod: PodRecord) -> PodClaims:
        """All claims of a pod that are not allocated."""
        wanted = [
            (claim.name if claim is not None else name, spec)
            for claim, name, spec in self._claims.named_by(pod)
            if claim is None or claim.allocated is None
        ]
        return PodClaims(tuple([name for name, _ in wanted]), tuple([spec for _, spec in wanted]))

    def on(self, node: NodeRecord, claims: PodClaims) -> Allocation:
        """The devices of the node for these claims."""
        kept = self._kept.get(claims.specs)
        if kept is None:
            if len(self._kept) >= MOST_KEPT:
                oldest = next(iter(self._kept))
                del self._kept[oldest], self._spent[oldest]
            kept = self._kept[claims.specs] = {}
            self._spent[claims.specs] = 0
        entry = kept.get(node.name)
        if entry is None or entry[0] is not node.labels:
            spent = self._spent[claims.specs] - (0 if entry is None else entry[1].steps)
            if spent > max(MOST_SPENT, FEW_STEPS * len(kept)):
                entry = node.labels, TOO_COSTLY
                self._spent[claims.specs] = spent
            else:
                pools = self._pools.of(node.name, node.labels)
                entry = node.labels, allocate(pools, self._claims, claims.specs, self._judge)
                self._spent[claims.specs] = spent + entry[1].steps
            kept[node.name] = entry
        return entry[1]

    def rejects(self, node: NodeRecord, claims: PodClaims) -> str:
        """UNMET where the node does not have the devices, "" where it has them or that is not known."""
        allocation = self.on(node, claims)
        return "" if allocation.results is not None or allocation.unknown else UNMET

    def unknown_on(self, pod: PodRecord) -> list[str]:
        """The nodes of which it is not known whether they meet the pod's claims, by name; of those that were looked
        at."""
        claims = self.of(pod)
        kept = {} if claims is None else self._kept.get(claims.specs, {})
        return sorted([name for name, (_, allocation) in kept.items() if allocation.unknown])

    def exclude_each_other(
        self, first: PodClaims | None, second: PodClaims | None, nodes: Iterable[NodeRecord]
    ) -> bool:
        """Whether the claims of two pods are met alone and never together, on the first nodes that meet either. Where
        some nodes meet both, another node may not: kube-scheduler rejects it."""
        if first is None or second is None:
            return False
        both = PodClaims(first.names + second.names, first.specs + second.specs)
        either = (node for node in nodes if not (self.rejects(node, first) or self.rejects(node, second)))
        looked_at = [self.rejects(node, both) for node in islice(either, MOST_LOOKED_AT)]
        return bool(looked_at) and all(looked_at)

    def changed(self, nodes: Iterable[str] | None) -> None:
        """What is published or allocated there has changed; None: anywhere."""
        if nodes is None:
            self._kept.clear()
            self._spent.clear()
            return
        for name in nodes:
            for specs, kept in self._kept.items():
                if (entry := kept.pop(name, None)) is not None:
                    self._spent[specs] -= entry[1].steps

    def changed_pools(self, keys: Iterable[PoolKey]) -> None:
        """Devices of these pools were allocated or returned."""
        self.changed(self._pools.nodes_of(keys))

    def _judge(self, choice: DeviceChoice, candidate: Candidate) -> Verdict:
        record = self._classes.get(choice.device_class)
        if record is None:
            return Verdict(None, fails=True, reason=f"DeviceClass {choice.device_class} does not exist")
        return cel.judge((*record.selectors, *choice.selectors), candidate.properties)
