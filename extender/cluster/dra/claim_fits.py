"""Whether a node has the devices that the claims of a pod ask for, and which ones kube-scheduler would allocate.

A claim for a number of any whole GPUs is counted with all other GPUs (`store.py`) and needs no look at each device:
`tests/cluster/dra/test_claim_fits.py` compares. All other claims are allocated here, as kube-scheduler does.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple

from ext_core.fit import UNSEEN
from extender.cluster.dra.allocator import Allocation, Taken, allocate, value_of
from extender.cluster.dra.claims import EXTENDED, ResourceClaims, extended, is_plain
from extender.cluster.dra.pools import Candidate, NodePools, Pool
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
MOST_ALIKE: Final = 4096
"""Different kinds of devices of nodes of which the answers for the same claims are kept."""
READ_IN_A_STEP: Final = 16
"""Devices that are compared in the time of a step."""
Specs = tuple[ClaimSpec, ...]


class PodClaims(NamedTuple):
    """The claims of a pod that are not allocated. `names`: of the claim, or of its template. A claim that several pods
    share counts for each."""

    names: tuple[str, ...]
    specs: Specs


class _Answer(NamedTuple):
    """Of nodes with devices of one kind. `number`: of the kind; `places`: the pool and the number of each device."""

    number: int
    allocation: Allocation
    places: list[list[tuple[int, int]]]


class _OfNode(NamedTuple):
    """`kind`: the number of the kind of its devices, -1 where they were not looked at."""

    labels: Mapping[str, str]
    allocation: Allocation
    kind: int = -1


class _Answers:
    """For the same claims. `spent`: the steps of `by_node`; `alike`: by kind of devices; `column`: of
    `ClaimFits.column`; `dropped`: names of nodes whose entries in it do not count any more."""

    def __init__(self) -> None:
        self.by_node: dict[str, _OfNode] = {}
        self.column: array[int] = array("I")
        self.dropped: set[str] = set()
        self.spent = 0
        self.alike: dict[Hashable, _Answer] = {}


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
        serving: Mapping[str, str],
    ) -> None:
        """`classes`: by name; `every`: those that select every whole GPU of their driver; `serving`: by resource the
        one class that serves it. All are kept up to date by the caller."""
        self._pools, self._claims, self._classes, self._every = pools, claims, classes, every
        self._serving = serving
        self._kept: dict[Specs, _Answers] = {}
        self._numbers = count()
        self._latest: tuple[str, Mapping[str, str], tuple[Pool, ...]] = ("", {}, ())

    def of(self, pod: PodRecord) -> PodClaims | None:
        """The claims of a pod that are to be allocated, None where all are counted."""
        if not (pod.claim_refs or pod.class_requests):
            return None
        claims = self.all_of(pod)
        return None if all(is_plain(spec, self._every) for spec in claims.specs) else claims

    def all_of(self, pod: PodRecord, served: str = "") -> PodClaims:
        """All claims of a pod that are not allocated. `served`: as of `serves`."""
        wanted = [
            (claim.name if claim is not None else name, spec)
            for claim, name, spec in self._claims.named_by(pod)
            if claim is None or claim.allocated is None
        ]
        own = dict(pod.gpus).get(served, 0) - max(0, dict(pod.claimed).get(served, 0)) if served else 0
        if own > 0:
            wanted.append((EXTENDED, extended(((self._serving[served], own),))))
        return PodClaims(tuple([name for name, _ in wanted]), tuple([spec for _, spec in wanted]))

    def serves(self, node: NodeRecord) -> str:
        """The resource whose GPUs kube-scheduler allocates on the node as devices of a class, "" for none. Where
        several classes serve it, that is not known."""
        devices = node.devices
        if devices is None or not devices.served or devices.plugin[0]:
            return ""
        return devices.resource if devices.resource in self._serving else ""

    def on(self, node: NodeRecord, claims: PodClaims) -> Allocation:
        """The devices of the node for these claims."""
        return self._of_node(node, claims).allocation

    def kind(self, node: NodeRecord, claims: PodClaims) -> int:
        """A number that is equal for nodes that allocate these claims alike, -1 where that is not known."""
        return self._of_node(node, claims).kind

    def column(self, specs: Specs, row_of: Callable[[str], int]) -> array[int]:
        """What the caller has noted of these claims, uint32 by row; UNSEEN where something of the node has changed
        since. `row_of`: of a name, -1 for none."""
        kept = self._answers(specs)
        for row in map(row_of, kept.dropped):
            if 0 <= row < len(kept.column):
                kept.column[row] = UNSEEN
        kept.dropped.clear()
        return kept.column

    def _answers(self, specs: Specs) -> _Answers:
        kept = self._kept.get(specs)
        if kept is None:
            if len(self._kept) >= MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            kept = self._kept[specs] = _Answers()
        return kept

    def _of_node(self, node: NodeRecord, claims: PodClaims) -> _OfNode:
        kept = self._answers(claims.specs)
        entry = kept.by_node.get(node.name)
        if entry is None or entry.labels is not node.labels:
            kept.spent -= 0 if entry is None else entry.allocation.steps
            costly = kept.spent > max(MOST_SPENT, FEW_STEPS * len(kept.by_node))
            entry = _OfNode(node.labels, TOO_COSTLY) if costly else self._allocated(node, claims.specs, kept.alike)
            kept.spent += entry.allocation.steps
            kept.by_node[node.name] = entry
        return entry

    def _allocated(self, node: NodeRecord, specs: Specs, alike: dict[Hashable, _Answer]) -> _OfNode:
        """Allocated once for nodes with devices of one kind."""
        pools = self.pools(node)
        kind, steps = self._kind(pools, specs)
        answer = alike.get(kind)
        if answer is None:
            allocation = self.allocate(pools, self._claims, specs)
            place = {
                candidate.id: (at, number)
                for at, pool in enumerate(pools)
                for number, candidate in enumerate(pool.devices)
            }
            if len(alike) >= MOST_ALIKE:
                alike.clear()
            places = [[place[result.candidate.id] for result in of_claim] for of_claim in allocation.results or ()]
            answer = alike[kind] = _Answer(next(self._numbers), allocation, places)
            return _OfNode(node.labels, allocation._replace(steps=allocation.steps + steps), answer.number)
        allocation = answer.allocation._replace(steps=steps)
        if allocation.results is not None:
            of_claims = [
                [
                    result._replace(candidate=pools[at].devices[number])
                    for result, (at, number) in zip(of_claim, places, strict=True)
                ]
                for of_claim, places in zip(allocation.results, answer.places, strict=True)
            ]
            allocation = allocation._replace(results=tuple(map(tuple, of_claims)))
        return _OfNode(node.labels, allocation, answer.number)

    def pools(self, node: NodeRecord) -> tuple[Pool, ...]:
        """Of the node, as the allocator reads them; the latest are kept for claims of other pods."""
        name, labels, pools = self._latest
        if name != node.name or labels is not node.labels:
            pools = self._pools.of(node.name, node.labels)
            self._latest = node.name, node.labels, pools
        return pools

    def allocate(self, pools: Sequence[Pool], taken: Taken, specs: Specs) -> Allocation:
        """The devices of these pools for the claims, beside what is taken."""
        return allocate(pools, taken, specs, self._judge)

    def _kind(self, pools: Sequence[Pool], specs: Specs) -> tuple[Hashable, int]:
        """(what an allocation depends on: devices of which it is equal allocate the same claims alike; its steps)."""
        taken = self._claims
        choices = list(
            dict.fromkeys(choice for spec in specs for request in spec.requests for choice in request.choices)
        )
        selectors = [self._selectors(choice) for choice in choices]
        attributes = sorted({constraint.attribute for spec in specs for constraint in spec.constraints})
        numbers: dict[Hashable, int] = {}  # of the values of attributes: allocations depend on which are equal
        kind: list[Hashable] = []
        read = 0
        for pool in pools:
            kind.append((pool.driver, pool.closed and (pool.name, pool.closed), tuple(pool.counters.items())))
            for candidate in pool.devices:
                device = candidate.device
                values: list[Hashable] = []
                for name in attributes:
                    value = value_of(candidate, name)
                    number = numbers.setdefault((name, value), len(numbers)) if value is not None else None
                    values.append((number, value is not None and bool(value.kind)))
                parts = taken.parts(candidate.id)
                kind.append(
                    (
                        taken.alone(candidate.id),
                        None if parts is None else tuple(sorted(parts.items())),
                        (candidate.here, device.shared, candidate.taints, device.consumes, device.capacity),
                        (*values, *[cel.judged(by, candidate.properties) for by in selectors]),
                    )
                )
            read += len(pool.devices) * (1 + len(choices) + len(attributes))
            for candidate in pool.others:
                held = taken.alone(candidate.id) or taken.parts(candidate.id) is not None
                kind.append((held, candidate.device.consumes))
        return tuple(kind), 1 + read // READ_IN_A_STEP

    def rejects(self, node: NodeRecord, claims: PodClaims) -> str:
        """UNMET where the node does not have the devices, "" where it has them or that is not known."""
        allocation = self.on(node, claims)
        return "" if allocation.results is not None or allocation.unknown else UNMET

    def unknown_on(self, pod: PodRecord) -> list[str]:
        """The nodes of which it is not known whether they meet the pod's claims, by name; of those that were looked
        at."""
        claims = self.of(pod)
        kept = None if claims is None else self._kept.get(claims.specs)
        return [] if kept is None else sorted([name for name, of in kept.by_node.items() if of.allocation.unknown])

    def changed(self, nodes: Iterable[str] | None) -> None:
        """What is published or allocated there has changed, or what the node states; None: anywhere."""
        self._latest = "", {}, ()
        if nodes is None:
            self._kept.clear()
            return
        for name in nodes:
            for kept in self._kept.values():
                if kept.column:
                    kept.dropped.add(name)
                if len(kept.dropped) > len(kept.column):  # nodes come and go, and no pod asks
                    kept.column, kept.dropped = array("I"), set()
                if (entry := kept.by_node.pop(name, None)) is not None:
                    kept.spent -= entry.allocation.steps

    def changed_pools(self, keys: Iterable[PoolKey]) -> None:
        """Devices of these pools were allocated or returned."""
        self.changed(self._pools.nodes_of(keys))

    def _judge(self, choice: DeviceChoice, candidate: Candidate) -> Verdict:
        return cel.judged(self._selectors(choice), candidate.properties)

    def _selectors(self, choice: DeviceChoice) -> Sequence[cel.Judge]:
        record = self._classes.get(choice.device_class)
        if record is None:
            absent = Verdict(None, fails=True, reason=f"DeviceClass {choice.device_class} does not exist")
            return [lambda _: absent]
        return cel.judges((*record.selectors, *choice.selectors))
