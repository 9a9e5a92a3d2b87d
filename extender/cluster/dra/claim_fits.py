"""Whether a node has the devices that the claims of a pod ask for, and which ones kube-scheduler would allocate; and
how many pods of several roles its devices meet together.

A claim for a number of any whole GPUs is counted with all other GPUs (`store.py`) and needs no look at each device:
`tests/cluster/dra/test_claim_fits.py` compares. All other claims are allocated here, as kube-scheduler does.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple

from ext_core.fit import UNSEEN
from extender.cluster.dra.allocator import Allocation, Amounts, Taken, added, allocate, value_of
from extender.cluster.dra.claims import EXTENDED, ResourceClaims, extended, is_plain
from extender.cluster.dra.node_gpus import tolerances
from extender.cluster.dra.resource_slices import Candidate, NodePools, Pool, PoolKey
from extender.objects import cel
from extender.objects.cel import Verdict
from extender.objects.cel.values import EVERYTHING, Place
from extender.objects.devices import Attribute, ClaimSpec, DeviceChoice, DeviceClassRecord
from extender.objects.records import NodeRecord, PodRecord

UNMET: Final = "claim-unmet"
"""Why a node is rejected whose devices do not meet the claims of a pod."""
MOST_KEPT: Final = 64
"""Different sets of claims of which the answers are kept."""
MOST_SPENT: Final = 50_000
"""Steps that the answers for the same claims may take, about half a second, unless they take few for each node."""
FEW_STEPS: Final = 64
MOST_ALIKE: Final = 4096
"""Different kinds of devices of nodes of which the answers for the same claims are kept."""
READ_IN_A_STEP: Final = 16
"""Devices that are compared in the time of a step."""
READ_STEPS: Final = 16
"""Steps in the time in which the devices of a node are read, or compared."""
MOST_AT_ONCE: Final = 4_096
"""Steps in which a verb looks at nodes, less than a tenth of a second; at the others it looks in the next call."""
Specs = tuple[ClaimSpec, ...]


class PodClaims(NamedTuple):
    """The claims of a pod that are not allocated. `names`: of the claim, or of its template. A claim that several pods
    share counts for each."""

    names: tuple[str, ...]
    specs: Specs


class _NodeDevices(NamedTuple):
    """What of a node matters to claims. `kind`: a number that is equal for nodes whose devices differ in their names
    and in the values of their attributes alone; `values`: by name of an attribute as stated, of each device, None where
    it does not state it; `ids`: GpuDevice.id of each device."""

    labels: Mapping[str, str]
    kind: int
    values: dict[str, tuple[Attribute | None, ...]]
    ids: tuple[str, ...]


class _Answer(NamedTuple):
    """Of nodes with devices of one kind. `number`: of the kind, -1 where they were not looked at; `places`: the number
    of each device among all of the node."""

    number: int
    allocation: Allocation
    places: Sequence[Sequence[int]] = ()


TOO_COSTLY: Final = _Answer(-1, Allocation(None, why="it takes too many steps", unknown=True))


class _OfNode(NamedTuple):
    labels: Mapping[str, str]
    answer: _Answer
    steps: int = 0


class _Answers:
    """For the same claims. `spent`: the steps of `by_node`; `alike`: by kind of devices; `by_values`: by the values of
    the attributes that matter; `column`: of `ClaimFits.column`; `dropped`: names of nodes whose entries in it do not
    count any more."""

    def __init__(self, specs: Specs) -> None:
        self.by_node: dict[str, _OfNode] = {}
        self.column: array[int] = array("I")
        self.dropped: set[str] = set()
        self.spent = 0
        self.alike: dict[Hashable, _Answer] = {}
        self.by_values: dict[Hashable, _Answer] = {}
        named = (constraint.attribute.partition("/") for spec in specs for constraint in spec.constraints)
        self._reads = frozenset((False, domain, name) for domain, _, name in named)
        self._names = _stated(self._reads)

    def note(self, reads: Iterable[Place]) -> None:
        """The selectors of these claims have read these properties so far."""
        if not self._reads.issuperset(reads):
            self._reads = self._reads.union(reads)
            self._names = _stated(self._reads)
            self.by_values.clear()

    def key(self, devices: _NodeDevices) -> Hashable:
        """Equal for nodes that allocate these claims alike."""
        if EVERYTHING in self._reads:
            return (devices.kind, *devices.values.items())
        return (devices.kind, *map(devices.values.get, self._names))


def _stated(reads: Iterable[Place]) -> list[str]:
    """Under which names devices may state these attributes. Capacities belong to the kind of the devices."""
    return sorted({of for capacity, domain, name in reads if not capacity for of in (f"{domain}/{name}", domain, name)})


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
        self._asked: tuple[Specs | None, _Answers] = None, _Answers(())  # the latest of them
        self._devices: dict[str, _NodeDevices] = {}  # by node
        self._kinds: dict[Hashable, int] = {}  # of `_NodeDevices`
        self._columns: dict[Hashable, tuple[Attribute | None, ...]] = {}  # of its values: many nodes have the same
        self._numbers = count()
        self.spent = 0
        """Steps of all looks so far."""
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
        of = self._of_node(node, claims.specs)
        allocation = of.answer.allocation._replace(steps=of.steps)
        if allocation.results is None:
            return allocation
        candidates = [candidate for pool in self.pools(node) for candidate in pool.devices]
        of_claims = [
            tuple([result._replace(candidate=candidates[at]) for result, at in zip(of_claim, places, strict=True)])
            for of_claim, places in zip(allocation.results, of.answer.places, strict=True)
        ]
        return allocation._replace(results=tuple(of_claims))

    def given(self, node: NodeRecord, specs: Specs) -> list[str] | None:
        """The devices (GpuDevice.id) that these claims get there for themselves; None: none, or that is not known."""
        answer = self._of_node(node, specs).answer
        if not answer.allocation.results:
            return None
        ids = self._read(node).ids
        of_claims = zip(answer.allocation.results, answer.places, strict=True)
        return [
            ids[at]
            for results, places in of_claims
            for result, at in zip(results, places, strict=True)
            if not result.admin
        ]

    def kind(self, node: NodeRecord, claims: PodClaims) -> int:
        """A number that is equal for nodes that allocate these claims alike, -1 where that is not known."""
        return self._of_node(node, claims.specs).answer.number

    def column(self, specs: Specs, row_of: Callable[[str], int]) -> array[int]:
        """What the caller has noted of these claims, uint32 by row; UNSEEN where something of the node has changed
        since. `row_of`: of a name, -1 for none."""
        kept = self._answers(specs)
        for row in map(row_of, kept.dropped):
            if 0 <= row < len(kept.column):
                kept.column[row] = UNSEEN
        kept.dropped.clear()
        return kept.column

    def leave(self, node: NodeRecord, specs: Specs) -> bool:
        """Leave a node of the column to the next call. Whether it is left: it is not where the answer is known from a
        node like it."""
        kept, devices = self._answers(specs), self._devices.get(node.name)
        if node.name in kept.by_node or (devices is not None and kept.key(devices) in kept.by_values):
            return False
        kept.dropped.add(node.name)
        return True

    def left(self, specs: Specs) -> Collection[str]:
        """The names of the nodes that were left since `column` was called."""
        return self._answers(specs).dropped

    def _answers(self, specs: Specs) -> _Answers:
        if specs is self._asked[0]:  # it is asked about one node after the other, and a hash takes long
            return self._asked[1]
        kept = self._kept.get(specs)
        if kept is None:
            if len(self._kept) >= MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            kept = self._kept[specs] = _Answers(specs)
        self._asked = specs, kept
        return kept

    def _of_node(self, node: NodeRecord, specs: Specs) -> _OfNode:
        kept = self._answers(specs)
        entry = kept.by_node.get(node.name)
        if entry is None or entry.labels is not node.labels:
            kept.spent -= 0 if entry is None else entry.steps
            devices = self._read(node)
            answer, steps = kept.by_values.get(kept.key(devices)), 0
            if answer is None and kept.spent > max(MOST_SPENT, FEW_STEPS * len(kept.by_node)):
                answer = TOO_COSTLY
            elif answer is None:
                answer, steps = self._allocated(node, devices, specs, kept)
                if len(kept.by_values) >= MOST_ALIKE:
                    kept.by_values.clear()
                kept.by_values[kept.key(devices)] = answer
            entry = kept.by_node[node.name] = _OfNode(node.labels, answer, steps)
            kept.spent += steps
        return entry

    def _allocated(self, node: NodeRecord, devices: _NodeDevices, specs: Specs, kept: _Answers) -> tuple[_Answer, int]:
        """(what the node has for these claims, the steps). Allocated once for nodes with devices of one kind."""
        pools = self.pools(node)
        kind, steps = self._kind(devices, pools, specs, kept)
        answer = kept.alike.get(kind)
        if answer is None:
            allocation = self.allocate(pools, self._claims, specs)
            steps += allocation.steps
            number = {device: at for at, device in enumerate(devices.ids)}
            if len(kept.alike) >= MOST_ALIKE:
                kept.alike.clear()
            places = [[number[result.candidate.id] for result in of_claim] for of_claim in allocation.results or ()]
            answer = kept.alike[kind] = _Answer(next(self._numbers), allocation, places)
        self.spent += READ_STEPS + steps
        return answer, steps

    def _read(self, node: NodeRecord) -> _NodeDevices:
        """The devices of the node, which are kept for all claims."""
        devices = self._devices.get(node.name)
        if devices is None or devices.labels is not node.labels:
            self.spent += READ_STEPS
            pools = self.pools(node)
            candidates = [candidate for pool in pools for candidate in pool.devices]
            stated: dict[str, list[Attribute | None]] = {}
            for at, candidate in enumerate(candidates):
                for name, attribute in candidate.device.attributes:
                    stated.setdefault(name, [None] * len(candidates))[at] = attribute
            for table in (self._kinds, self._columns):
                if len(table) >= MOST_ALIKE:
                    table.clear()
            kind = self._kinds.setdefault(self._kind_of_devices(pools), next(self._numbers))
            columns = ((name, tuple(of)) for name, of in stated.items())
            values = {name: self._columns.setdefault(of, of) for name, of in columns}
            ids = tuple([candidate.id for candidate in candidates])
            devices = self._devices[node.name] = _NodeDevices(node.labels, kind, values, ids)
        return devices

    def _kind_of_devices(self, pools: Sequence[Pool]) -> Hashable:
        """What an allocation depends on beside the attributes of the devices."""
        taken = self._claims
        kind: list[Hashable] = []
        for pool in pools:
            kind.append((pool.driver, pool.closed and (pool.name, pool.closed), tuple(pool.counters.items())))
            for candidate in pool.devices:
                device, parts = candidate.device, taken.parts(candidate.id)
                kind.append(
                    (
                        taken.alone(candidate.id),
                        None if parts is None else tuple(sorted(parts.items())),
                        (candidate.here, device.shared, candidate.taints, device.consumes, device.capacity),
                        candidate.properties.readable,
                    )
                )
            for candidate in pool.others:
                held = taken.alone(candidate.id) or taken.parts(candidate.id) is not None
                kind.append((held, candidate.device.consumes))
        return tuple(kind)

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

    def _kind(self, devices: _NodeDevices, pools: Sequence[Pool], specs: Specs, kept: _Answers) -> tuple[Hashable, int]:
        """(what an allocation depends on: devices of which it is equal allocate the same claims alike; its steps)."""
        choices = list(dict.fromkeys(choice for spec in specs for choice in spec.choices))
        selectors = [self._selectors(choice) for choice in choices]
        attributes = sorted({constraint.attribute for spec in specs for constraint in spec.constraints})
        numbers: dict[Hashable, int] = {}  # of the values of attributes: allocations depend on which are equal
        kind: list[Hashable] = [devices.kind]
        for candidate in (candidate for pool in pools for candidate in pool.devices):
            values: list[Hashable] = []
            for name in attributes:
                value = value_of(candidate, name)
                number = numbers.setdefault((name, value), len(numbers)) if value is not None else None
                values.append((number, value is not None and bool(value.kind)))
            kind.append((*values, *[cel.judged(by, candidate.properties) for by in selectors]))
        kept.note({place for of_choice in selectors for selector in of_choice for place in selector.reads})
        return tuple(kind), 1 + len(devices.ids) * (1 + len(choices) + len(attributes)) // READ_IN_A_STEP

    def rejects(self, node: NodeRecord, claims: PodClaims) -> str:
        """UNMET where the node does not have the devices, "" where it has them or that is not known."""
        allocation = self._of_node(node, claims.specs).answer.allocation
        return "" if allocation.results is not None or allocation.unknown else UNMET

    def unknown_on(self, pod: PodRecord) -> list[str]:
        """The nodes of which it is not known whether they meet the pod's claims, by name; of those that were looked
        at."""
        claims = self.of(pod)
        kept = None if claims is None else self._kept.get(claims.specs)
        by_node = {} if kept is None else kept.by_node
        return sorted([name for name, of in by_node.items() if of.answer.allocation.unknown])

    def changed(self, nodes: Iterable[str] | None) -> None:
        """What is published or allocated there has changed, or what the node states; None: anywhere."""
        self._latest = "", {}, ()
        if nodes is None:
            self._asked = None, _Answers(())
            self._kept.clear()
            self._devices.clear()
            return
        for name in nodes:
            self._devices.pop(name, None)
            for kept in self._kept.values():
                if kept.column:
                    kept.dropped.add(name)
                if len(kept.dropped) > len(kept.column):  # nodes come and go, and no pod asks
                    kept.column, kept.dropped = array("I"), set()
                if (entry := kept.by_node.pop(name, None)) is not None:
                    kept.spent -= entry.steps

    def changed_pools(self, keys: Iterable[PoolKey]) -> None:
        """Devices of these pools were allocated or returned."""
        self.changed(self._pools.nodes_of(keys))

    def _judge(self, choice: DeviceChoice, candidate: Candidate) -> Verdict:
        if choice.device_class not in self._classes:
            return Verdict(None, fails=True, reason=f"DeviceClass {choice.device_class} does not exist")
        return cel.judged(self._selectors(choice), candidate.properties)

    def _selectors(self, choice: DeviceChoice) -> Sequence[cel.Selector]:
        """None where the DeviceClass does not exist: no two devices differ by it then."""
        record = self._classes.get(choice.device_class)
        stated = () if record is None else (*record.selectors, *choice.selectors)
        return [cel.selector(expression) for expression in stated]


# -- how many pods of several roles the devices of a node meet together.
#
# kube-scheduler allocates the claims of one pod after the other, to each the first devices that do. So what a node
# takes depends on the order of the pods, which nothing fixes: all orders are tried, and orders after which the same
# devices are taken count as one.


MOST_TRIED: Final = 512
"""Allocations that are tried for nodes with equal devices; of more pods the answer is not known."""
MOST_COUNTS: Final = 8_192
"""Numbers of pods that are looked at for one answer."""
Counts = tuple[int, ...]
"""A number of pods of each role."""


class RefusedCounts(NamedTuple):
    """Numbers of pods of each role that a node does not take together. `claims`, `at`: of the pod that is not met, and
    why; `unknown`: it may take them."""

    counts: Counts
    claims: PodClaims
    at: Allocation
    unknown: bool = False


class _Beside:
    """As `allocator.Taken`: what is allocated, and what pods before this one take."""

    def __init__(self, taken: Taken, before: Iterable[tuple[str, Amounts | None]]) -> None:
        self._taken = taken
        self._alone = {device for device, amounts in before if amounts is None}
        self._parts: dict[str, list[Amounts]] = {}
        for device, amounts in before:
            if amounts is not None:
                self._parts.setdefault(device, []).append(amounts)

    def alone(self, device: str) -> bool:
        """A claim has it alone."""
        return device in self._alone or self._taken.alone(device)

    def parts(self, device: str) -> Amounts | None:
        """What claims have of it."""
        own, others = self._parts.get(device), self._taken.parts(device)
        if own is None:
            return others
        return added(own if others is None else [*own, others])


class _State(NamedTuple):
    """What pods before have taken. `key`: equal where that is the same."""

    key: Hashable
    taken: tuple[tuple[str, Amounts | None], ...]


_NOTHING: Final = _State(frozenset(), ())


class _Devices:
    """The devices of one node, and what was tried on them."""

    def __init__(self, fits: ClaimFits, pools: Sequence[Pool], taken: Taken) -> None:
        self._fits, self._pools, self._taken = fits, pools, taken
        self._after: dict[tuple[Hashable, Specs], tuple[Allocation, _State]] = {}

    @property
    def tried(self) -> int:
        """How many allocations were tried."""
        return len(self._after)

    def after(self, state: _State, specs: Specs) -> tuple[Allocation, _State] | None:
        """(the devices of one more pod, what is taken then); None: too many were tried."""
        known = self._after.get((state.key, specs))
        if known is None:
            if len(self._after) >= MOST_TRIED:
                return None
            at = self._fits.allocate(self._pools, _Beside(self._taken, state.taken), specs)
            more = [
                (result.candidate.id, result.amounts)
                for of_claim in at.results or ()
                for result in of_claim
                if not result.admin
            ]
            taken = (*state.taken, *more)
            parts = sorted((device, sorted(amounts.items())) for device, amounts in taken if amounts is not None)
            key = frozenset(device for device, amounts in taken if amounts is None), str(parts)
            known = self._after[state.key, specs] = at, _State(key, taken)
        return known


class ClaimsTogether:
    """The roles of a gang. `pods`: one of each."""

    def __init__(self, fits: ClaimFits, taken: Taken, pods: Sequence[PodRecord]) -> None:
        self._fits, self._taken, self._pods = fits, taken, pods
        self._claims: dict[str, list[PodClaims]] = {}  # by resource that a class serves: of each role
        self._devices: dict[Hashable, _Devices] = {}
        self._answers: dict[Hashable, tuple[RefusedCounts, ...]] = {}
        self._tried = 0
        # Where a role tolerates taints, their GPUs are counted for all roles: one pod of another is looked at too.
        self._least = 1 if any(tolerances(pod.claim_specs) for pod in pods) else 2

    @property
    def tried(self) -> int:
        """How many allocations were tried."""
        return self._tried

    def read(self, node: NodeRecord) -> None:
        """Read the devices of the node once for all roles."""
        for of in self._of(node)[1]:
            if of.specs:
                self._fits.kind(node, of)

    def _of(self, node: NodeRecord) -> tuple[str, list[PodClaims]]:
        """(the resource that a class serves on the node, the claims of each role there)."""
        served = self._fits.serves(node)
        claims = self._claims.get(served)
        if claims is None:
            claims = self._claims[served] = [self._fits.all_of(pod, served) for pod in self._pods]
        return served, claims

    def refused(self, node: NodeRecord, most: Counts, *, in_any_order: bool) -> Sequence[RefusedCounts]:
        """The smallest numbers of pods up to `most` that the node does not take together; none where it takes all.
        `in_any_order`: it takes what it takes in whatever order the pods come, else in one."""
        served, claims = self._of(node)
        if sum(bool(of.specs) and number for of, number in zip(claims, most, strict=True)) < self._least:
            return ()
        kind = served, tuple([self._fits.kind(node, of) if of.specs else 0 for of in claims])
        if -1 in kind[1]:
            kind = node.name, ()
        if kind not in self._devices:
            self._devices[kind] = _Devices(self._fits, self._fits.pools(node), self._taken)
        asking = tuple([number if of.specs else 0 for of, number in zip(claims, most, strict=True)])
        answer = self._answers.get((kind, asking, in_any_order))
        if answer is None:
            devices = self._devices[kind]
            before = devices.tried
            answer = tuple(_search(devices, claims, asking, in_any_order=in_any_order))
            self._tried += devices.tried - before
            self._answers[kind, asking, in_any_order] = answer
        return answer


def _search(
    devices: _Devices, claims: Sequence[PodClaims], most: Counts, *, in_any_order: bool
) -> Iterator[RefusedCounts]:
    """Layer by layer, each with one pod more: all that may be taken by then."""
    layer: Mapping[Counts, Mapping[Hashable, _State]] = {(0,) * len(most): {_NOTHING.key: _NOTHING}}
    refused: list[Counts] = []
    looked_at = 0
    while layer:
        grown: dict[Counts, dict[Hashable, _State]] = {}
        failed: dict[Counts, RefusedCounts] = {}
        for counts, states in layer.items():
            for c, of in enumerate(claims):
                more = (*counts[:c], counts[c] + 1, *counts[c + 1 :])
                if counts[c] == most[c] or any(covers(more, other) for other in refused):
                    continue
                looked_at += 1
                for state in states.values():
                    tried = devices.after(state, of.specs)
                    if tried is None or looked_at > MOST_COUNTS:
                        yield RefusedCounts(more, of, Allocation(None, why="it takes too long"), unknown=True)
                        return
                    at, then = tried
                    if at.results is not None:
                        grown.setdefault(more, {})[then.key] = then
                    elif more not in failed or (failed[more].unknown and not at.unknown):
                        failed[more] = RefusedCounts(more, of, at, at.unknown)
        for more, refusal in failed.items():
            if in_any_order or more not in grown:
                grown.pop(more, None)
                refused.append(more)
                yield refusal
        layer = grown


def covers(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether no number of `a` is below that of `b`."""
    return all(x >= y for x, y in zip(a, b, strict=True))
