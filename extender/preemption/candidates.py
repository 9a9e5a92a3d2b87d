"""The candidates of a victim search as the kernel reads them: who may go, what is short, which sets of GPUs will do.

Where links are required a table says of each set of free GPUs whether our filter would pass it. It wants to know every
position; a node where some are unknown, or only deduced, is searched in three cases.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ext_core import fit, gather, victims
from ext_core.links import LinkShapes
from extender.cluster.gpus.holdings import Holding
from extender.cluster.view import ClusterView
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.costs.leftover_fragmentation import LeftoverFragmentation
from extender.policy.costs.victims_stranded import VictimsStranded
from extender.preemption.cost_inputs import Rooms, columns
from extender.verbs.decide import Decider

OVERDUE_SECONDS = 30.0  # a pod that should have ended longer ago (a finalizer, a hung unmount) may stay for ever
PROVED, BEST_SO_FAR, UNDECIDED = 1, 2, 3  # statuses of ext_core.victims
NEVER_SHORT = 2**60  # more than any eviction frees
CERTAIN = 2  # of LinkShapes.certain
PRICED_GPUS = 8  # larger machines that are not uniform have too many sets to price

Floor = Callable[[str], Sequence[str] | None] | None


@dataclass(slots=True)
class Inquiry:
    """What one search is asked. `floor`: uids that have to be among the victims on a node, None = any set will do;
    `now`, `wall`: monotonic, and since 1970, seconds; `budget`: search nodes; `ends`: on this thread's clock, in
    nanoseconds, 0 = never; `sets`: search nodes examined so far; `rooms`: what it knows of other places."""

    decider: Decider
    request: PodRequest
    pod: PodRecord
    floor: Floor
    now: float
    wall: float
    budget: int
    ends: int
    sets: int = 0
    rooms: Rooms = field(default_factory=Rooms)

    @property
    def wall_ms(self) -> int:
        return int(self.wall * 1000)


@dataclass(frozen=True, slots=True)
class Eviction:
    """The cheapest sufficient victims on one node. `cost`: one number per term, in order; `at`: which candidate;
    `unknown`: terms that the budget did not allow to compute for these pods; they count as 0 where they are unknown."""

    node: str
    row: int
    pods: tuple[PodRecord, ...]
    cost: tuple[int, ...]
    at: int
    unknown: tuple[str, ...] = ()


class Problem:
    """The candidates of one search, as the kernel reads them. `by_links`: required links are looked at; `split`: some
    nodes are in it thrice."""

    def __init__(self, inquiry: Inquiry, rows: array[int], *, by_links: bool = True) -> None:
        decider, cluster = inquiry.decider, inquiry.decider.cluster
        self.inquiry, self.rows, self.cluster = inquiry, rows, cluster
        self.required = by_links and inquiry.request.links == "required" and inquiry.request.wanted >= 2
        self.proved = True
        self.found: tuple[bool, list[Eviction]] | None = None
        gathered, prices = self._gather()
        blind = self._blind() if self.required else []
        self.split = bool(blind)
        if blind:
            self.rows = rows + array("i", [rows[i] for i in blind for _ in range(2)])
            gathered, prices = self._gather()
            _without_deduction(decider, inquiry.request, self.rows, gathered, len(rows), prices)
        if gathered.some_terminating and self.required:
            _count_ending(cluster, gathered, inquiry.wall)
        seen, self.missing = columns(decider, gathered, prices, inquiry.wall_ms, inquiry.rooms)
        self.terms = [cost.term(seen) for cost in decider.policy.costs]

    def _gather(self) -> tuple[gather.Gathered, list[array[int]]]:
        inquiry, cluster = self.inquiry, self.cluster
        self.gathered = gather.victims(
            cluster.tables.nodes,
            cluster.tables.pods,
            inquiry.request.ask,
            self.rows,
            inquiry.wall_ms,
            _needed(cluster, inquiry.pod, self.rows, inquiry.floor),
        )
        if self.gathered.some_terminating:
            _keep_overdue(cluster, self.gathered, inquiry.wall)
        self.impossible = _floor(cluster, self.rows, inquiry.floor, self.gathered)
        prices = _tables(
            inquiry.decider, inquiry.request, self.rows, self.gathered, self.impossible, required=self.required
        )
        return self.gathered, prices

    def _blind(self) -> list[int]:
        """With a table the search wants to know every position, and keeps what it knows. Where that is not so a node
        is a candidate twice more, see _without_deduction."""
        cluster, unknown = self.cluster, self.gathered.unknown
        return [
            i
            for i, table in enumerate(self.gathered.table)
            if table >= 0 and (unknown[i] or any(_deduced(cluster, cluster.names[self.rows[i]])))
        ]

    def only(self, i: int, chosen: int, must: int) -> None:
        """Leave candidate i one set: of its pods those in the mask `chosen`, which has to hold `must`."""
        gathered, first = self.gathered, self.gathered.start[i]
        if must & ~chosen:
            self.impossible.add(i)
        for k in range(first, gathered.start[i + 1]):
            if chosen >> (k - first) & 1:
                gathered.forced[k] = 1
                continue
            gathered.masks[k] = gathered.unsure[k] = 0
            for r in range(len(self.cluster.resources)):
                gathered.amounts[r, k] = 0

    def give_up(self, eviction: Eviction, *, whole: bool) -> None:
        """Look no more at the candidate that it is of; `whole`: at none that is the same node."""
        self.found = None
        self.impossible.add(eviction.at)
        self.impossible.update(i for i, row in enumerate(self.rows) if whole and row == eviction.row)

    def look(self, every: bool) -> list[Eviction]:
        """As `solve`; what was found already is not searched again."""
        if self.found is None or self.found[0] != every:
            self.found = every, self.solve(every)
        return self.found[1]

    def solve(self, every: bool) -> list[Eviction]:
        """The cheapest first. `every`: the cheapest set of each node; else of the two cheapest nodes."""
        gathered, inquiry = self.gathered, self.inquiry
        if not gathered.pods:
            return []
        for i in self.impossible:
            gathered.short[len(self.cluster.resources) - 1, i] = NEVER_SHORT
        result = victims.cheapest(
            gathered,
            self.terms,
            max(1, inquiry.budget - inquiry.sets),
            not every,
            max(1, inquiry.ends - time.thread_time_ns()) if inquiry.ends else 0,
        )
        inquiry.sets += sum(result.examined)
        self.proved = BEST_SO_FAR not in result.status and UNDECIDED not in result.status
        return self._evictions(result)

    def _evictions(self, result: victims.Victims) -> list[Eviction]:
        gathered, rows, cluster = self.gathered, self.rows, self.cluster
        found: list[Eviction] = []
        for i in [i for i, status in enumerate(result.status) if PROVED <= status <= BEST_SO_FAR]:
            if i in self.impossible:
                continue
            chosen = [k for k in range(gathered.start[i], gathered.start[i + 1]) if result.chosen[k]]
            if chosen:
                pods = tuple(cluster.pods[cluster.pod_rows.uids[gathered.pods[k]]] for k in chosen)
                cost = tuple(result.cost[t * len(rows) + i] for t in range(len(self.terms)))
                unknown = any(gathered.ask[k] in self.missing and not gathered.terminating[k] for k in chosen)
                names = (VictimsStranded.name,) if unknown else ()
                found.append(Eviction(cluster.names[rows[i]], rows[i], pods, cost, i, names))
        found.sort(key=lambda eviction: (eviction.cost, eviction.node))  # and the case, as the sort is stable
        return found


def _needed(cluster: ClusterView, pod: PodRecord, rows: array[int], floor: Floor) -> bytearray:
    """A mark for each pod row that the preemptor's required affinity may need and kube-scheduler did not offer."""
    if not pod.affinity_terms:
        return bytearray()
    needed = bytearray(len(cluster.pod_rows.uids))
    for row in rows:
        offered = (floor(cluster.names[row]) if floor else None) or ()
        for other in cluster.pods_on(cluster.names[row]):
            if other.uid not in offered and pod.may_need(other):
                needed[cluster.pod_rows[other.uid]] = 1
    return needed


def ends(pod: PodRecord, wall: float) -> bool:
    """Whether the pod is going, and not overdue."""
    return pod.terminating and (pod.deletion_at is None or wall - pod.deletion_at <= OVERDUE_SECONDS)


def _keep_overdue(cluster: ClusterView, gathered: gather.Gathered, wall: float) -> None:
    """A pod that should have ended long ago frees nothing: a plan must not rest on it."""
    for k, row in enumerate(gathered.pods):
        if gathered.terminating[k] and not ends(cluster.pods[cluster.pod_rows.uids[row]], wall):
            gathered.masks[k] = 0
            gathered.unsure[k] = 0
            for r in range(len(cluster.resources)):
                gathered.amounts[r, k] = 0


def _count_ending(cluster: ClusterView, gathered: gather.Gathered, wall: float) -> None:
    """Where more free GPUs may be worse ones, those of terminating pods count as free, needed or not: they will be."""
    worse = [not fit.monotone(table) for table in gathered.ok]
    for i, table in enumerate(gathered.table):
        for k in range(gathered.start[i], gathered.start[i + 1]) if table >= 0 and worse[table] else ():
            if gathered.terminating[k] and ends(cluster.pods[cluster.pod_rows.uids[gathered.pods[k]]], wall):
                gathered.forced[k] = 1


def _floor(cluster: ClusterView, rows: array[int], floor: Floor, gathered: gather.Gathered) -> set[int]:
    """Marks the gathered pods that must be among the victims. The candidates where the floor cannot be met."""
    impossible: set[int] = set()
    if floor is None:
        return impossible
    for i, row in enumerate(rows):
        uids = floor(cluster.names[row])
        if uids is None:
            continue
        at = {cluster.pod_rows.uids[gathered.pods[k]]: k for k in range(gathered.start[i], gathered.start[i + 1])}
        for uid in uids:
            if uid in at:
                gathered.forced[at[uid]] = 1
            else:
                impossible.add(i)  # a pod that we do not see there: its room can not be judged
    return impossible


def _tables(
    decider: Decider,
    request: PodRequest,
    rows: array[int],
    gathered: gather.Gathered,
    impossible: set[int],
    *,
    required: bool,
) -> list[array[int]]:
    """Fills `gathered.table`, -1 where counting is enough, and `gathered.ok`. By table: what each mask leaves broken
    up, by LeftoverFragmentation."""
    priced = any(isinstance(cost, LeftoverFragmentation) for cost in decider.policy.costs)
    several = required and request.containers > 1  # then every set of that size has to be linked
    if not required and not priced:
        return []
    nodes, shapes = decider.cluster.tables.nodes, decider.cluster.tables.shapes
    ok = gathered.ok
    prices: list[array[int]] = []
    kind_of, kinds = gather.graphs(nodes, rows)
    table_of: list[int] = []  # by kind; -1: counting is enough, -2: no eviction can help
    known: dict[tuple[int, int], int] = {}
    wanted, resource = request.wanted, request.resource
    for shape, healthy, gpu in kinds:
        bits = healthy.bit_length()
        if not shape or gpu != resource:
            table_of.append(-2 if required else -1)
        elif several and shapes.certain(shape, healthy, wanted, 0, request.containers) != CERTAIN:
            table_of.append(-2)  # the filter calls it hopeless: any pod that ends meanwhile would spoil the set
        elif (not required and bits > PRICED_GPUS) or (
            fit.uniform(shapes, shape, healthy, wanted)
            # A plugin that may crash over some free sets hands out nothing there, linked or not: the filter refuses.
            and not (required and not several and bits <= PRICED_GPUS and _crashes(shapes, shape, bits, wanted))
        ):
            table_of.append(-1)
        else:
            if (shape, bits) not in known:
                known[shape, bits] = len(ok)
                ok.append(
                    fit.link_table(shapes, shape, bits, wanted, request.containers)
                    if required
                    else bytes([1]) * (1 << bits)
                )
                prices.append(
                    decider.policy.leftover(shapes, shape, bits, wanted)
                    if priced and bits <= PRICED_GPUS
                    else array("q", bytes(8 << bits))
                )
            table_of.append(known[shape, bits])
    if required:
        for i, kind in enumerate(kind_of):
            gathered.table[i] = max(table_of[kind], -1)
        if -2 in table_of:
            impossible.update(i for i, kind in enumerate(kind_of) if table_of[kind] == -2)
    elif ok:
        # Where positions are unknown, what an eviction leaves free can not be priced.
        for i, (kind, unknown) in enumerate(zip(kind_of, gathered.unknown, strict=True)):
            gathered.table[i] = -1 if unknown else table_of[kind]
    return prices


def _crashes(shapes: LinkShapes, shape: int, bits: int, wanted: int) -> bool:
    return any(shapes.crash(shape, mask, wanted) for mask in range(1 << bits))


def _deduced(cluster: ClusterView, name: str) -> Iterator[Holding]:
    """Holdings that are sure only because no other set is left."""
    return (one for one in cluster.gpus.ledgers[name].holdings if one.mask and one.how in ("planned", "predicted"))


def _without_deduction(
    decider: Decider,
    request: PodRequest,
    rows: array[int],
    gathered: gather.Gathered,
    nodes: int,
    prices: list[array[int]],
) -> None:
    """Makes three cases of each node that is there thrice (once below `nodes`, then twice in a row).

    Who holds the last set that is left is deduced, and no more once a pod with GPUs is gone: our filter will not know
    which of the GPUs are whose. So either only pods without GPUs go; or all go whose positions nobody states; or, where
    some of them stay, any set of the GPUs that may be free has to be linked."""
    cluster, shapes = decider.cluster, decider.cluster.tables.shapes
    kind_of, kinds = gather.graphs(cluster.tables.nodes, rows)
    known: dict[tuple[int, int], int] = {}
    for i in range(nodes, len(rows)):
        deduced = {one.uid: one for one in _deduced(cluster, cluster.names[rows[i]])}
        for one in deduced.values():
            gathered.free[i] |= one.mask
            gathered.unknown[i] += one.count
        for k in range(gathered.start[i], gathered.start[i + 1]):
            if held := deduced.get(cluster.pod_rows.uids[gathered.pods[k]]):
                gathered.masks[k], gathered.unsure[k] = 0, held.count
        if (i - nodes) % 2:
            shape, healthy, _ = kinds[kind_of[i]]
            bits = healthy.bit_length()
            if (shape, bits) not in known:
                known[shape, bits] = len(gathered.ok)
                gathered.ok.append(fit.link_table(shapes, shape, bits, request.wanted, 0))
                prices.append(array("q", bytes(8 << bits)))  # what stays free is not known
            gathered.table[i] = known[shape, bits]
            gathered.unknown[i] = 0
        elif deduced:
            first = rows.index(rows[i])
            for k in range(gathered.start[first], gathered.start[first + 1]):
                if gathered.gpus[k]:
                    gathered.masks[k] = 0
                    for r in range(len(cluster.resources)):
                        gathered.amounts[r, k] = 0
