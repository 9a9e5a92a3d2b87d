"""The candidates of a victim search as the kernel reads them: possible victims, what is missing, what must go.

Which sets of free GPUs suffice on a candidate, and what each leaves broken up, are tables over masks of GPUs. Where
links are required a table states of each set of free GPUs whether our filter would pass it. It needs to know every
position; a node where some are unknown, or only deduced, is searched in three cases.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ext_core import columns as row_sets
from ext_core import fit, gather, victims
from ext_core.links import LinkShapes
from extender.cluster.cluster import ClusterView
from extender.cluster.eligibility import MOST_PARTS, TooLong
from extender.cluster.statements import Holding
from extender.cluster.tables import FIRST_GPU, MOST_AMOUNT, by_name
from extender.objects.records import NodeRecord, PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.costs import LeftoverFragmentation, VictimsStranded
from extender.policy.policy import Policy
from extender.preemption.cost_inputs import CostCeiling, NodeInputs, Rooms, SearchTime, columns, terms

OVERDUE_SECONDS = 30.0  # a pod that should have ended longer ago (a finalizer, a hung unmount) may stay for ever
PROVED, BEST_SO_FAR, UNDECIDED = 1, 2, 3  # statuses of ext_core.victims
NEVER_SHORT = 2**60  # more than any eviction frees

Floor = Callable[[str], Sequence[str] | None] | None


class Preemptor(NamedTuple):
    """The pod that victims are sought for, as kube-scheduler sent it, and its request; `now`: seconds on the server's
    monotonic clock; `wall`: seconds since 1970."""

    request: PodRequest
    pod: PodRecord
    now: float
    wall: float


@dataclass(slots=True)
class Inquiry:
    """One search. `floor`: uids that have to be among the victims on a node, None = any set will do; `budget`: search
    nodes; `ends`: on this thread's clock, in nanoseconds, 0 = never; `sets`: search nodes examined so far; `rooms`:
    what it knows of other places; `time`: whether it is over; `ceiling`: sets above it are left out."""

    cluster: ClusterView
    policy: Policy
    preemptor: Preemptor
    floor: Floor
    budget: int
    ends: int
    sets: int = 0
    rooms: Rooms = field(default_factory=Rooms)
    time: SearchTime = field(default_factory=SearchTime)
    ceiling: CostCeiling | None = None

    @property
    def request(self) -> PodRequest:
        """The preemptor's."""
        return self.preemptor.request

    @property
    def pod(self) -> PodRecord:
        """The preemptor."""
        return self.preemptor.pod

    @property
    def wall(self) -> float:
        """Seconds since 1970."""
        return self.preemptor.wall

    @property
    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(self.preemptor.wall * 1000)


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


class VictimProblem:
    """The candidates of one search, as the kernel reads them. `by_links`: required links are looked at; `split`: some
    nodes are in it thrice."""

    def __init__(self, inquiry: Inquiry, rows: array[int], *, by_links: bool = True) -> None:
        self.inquiry, self.rows, self.cluster = inquiry, rows, inquiry.cluster
        self.required = by_links and inquiry.request.links == "required" and inquiry.request.wanted >= 2
        self.proved = True
        self.solved: tuple[bool, list[Eviction]] | None = None
        self._gather()
        lacking = gather.lacking(self.gathered, FIRST_GPU, len(self.cluster.resources))
        blind = self._blind() if self.required else []
        self.split = bool(blind)
        if blind:
            self.rows = rows + array("i", [rows[i] for i in blind for _ in range(2)])
            lacking += array("q", [lacking[i] for i in blind for _ in range(2)])
            self._gather()
            without_deduction(self.cluster, inquiry.request, self.rows, self.gathered, len(rows), self.prices)
        if self.gathered.some_terminating and self.required:
            self._count_ending()
        nodes = NodeInputs(lacking, self.prices)
        seen, self.missing = columns(self.cluster, inquiry.policy, self.gathered, nodes, inquiry.wall_ms, inquiry.rooms)
        self.terms = terms(inquiry.policy, seen, inquiry.ceiling)

    def _gather(self) -> None:
        inquiry, cluster = self.inquiry, self.cluster
        self.gathered = gather.victims(
            cluster.tables.nodes,
            cluster.tables.pods,
            inquiry.request.ask,
            self.rows,
            inquiry.wall_ms,
            _needed(cluster, inquiry.pod, self.rows, inquiry.floor),
        )
        if inquiry.request.others and inquiry.floor is None:  # kube-scheduler has counted them for its offer
            fill_others(cluster, inquiry.request.others, self.rows, self.gathered)
        if self.gathered.some_terminating:
            _keep_overdue(cluster, self.gathered, inquiry.wall)
        self.impossible = _floor(cluster, self.rows, inquiry.floor, self.gathered)
        self.prices, hopeless = set_tables(
            cluster, inquiry.policy, inquiry.request, self.rows, self.gathered, required=self.required
        )
        self.impossible |= hopeless

    def _blind(self) -> list[int]:
        """With a table the search needs to know every position, and keeps what it knows. Where that is not so a node is
        a candidate twice more, see `without_deduction`."""
        cluster, unknown = self.cluster, self.gathered.unknown
        return [
            i
            for i, table in enumerate(self.gathered.table)
            if table >= 0 and (unknown[i] or any(deduced(cluster, cluster.names[self.rows[i]])))
        ]

    def _count_ending(self) -> None:
        """Where more free GPUs may be worse ones, those of pods that are terminating count as free, needed or not."""
        gathered, cluster = self.gathered, self.cluster
        worse = [not fit.monotone(table) for table in gathered.ok]
        for i, table in enumerate(gathered.table):
            for k in range(gathered.start[i], gathered.start[i + 1]) if table >= 0 and worse[table] else ():
                pod = cluster.pods[cluster.pod_rows.uids[gathered.pods[k]]]
                if gathered.terminating[k] and ends(pod, self.inquiry.wall):
                    gathered.forced[k] = 1

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
            for r in range(gathered.resources):
                gathered.amounts[r, k] = 0

    def give_up(self, eviction: Eviction, *, whole: bool) -> None:
        """Look no more at the candidate that it is of; `whole`: at none that is the same node."""
        self.solved = None
        self.impossible.add(eviction.at)
        self.impossible.update(i for i, row in enumerate(self.rows) if whole and row == eviction.row)

    def look(self, every: bool) -> list[Eviction]:
        """As `solve`; what was found already is not searched again."""
        if self.solved is None or self.solved[0] != every:
            self.solved = every, self.solve(every)
        return self.solved[1]

    def solve(self, every: bool) -> list[Eviction]:
        """The cheapest first. `every`: the cheapest set of each node; else of the two cheapest nodes."""
        gathered, inquiry = self.gathered, self.inquiry
        if not gathered.pods:
            return []
        for i in self.impossible:
            gathered.short[len(self.cluster.resources) - 1, i] = NEVER_SHORT
        budget = max(1, inquiry.budget - inquiry.sets)
        result = victims.cheapest(gathered, self.terms, budget, not every, *inquiry.time.left(inquiry.ends))
        inquiry.time.stopped(result.stopped)
        inquiry.sets += sum(result.examined)
        self.proved = BEST_SO_FAR not in result.status and UNDECIDED not in result.status
        return self._evictions(result)

    def _evictions(self, result: victims.Victims) -> list[Eviction]:
        gathered, rows, cluster = self.gathered, self.rows, self.cluster
        evictions: list[Eviction] = []
        for i in [i for i, status in enumerate(result.status) if PROVED <= status <= BEST_SO_FAR]:
            if i in self.impossible:
                continue
            chosen = [k for k in range(gathered.start[i], gathered.start[i + 1]) if result.chosen[k]]
            if chosen:
                pods = tuple(cluster.pods[cluster.pod_rows.uids[gathered.pods[k]]] for k in chosen)
                cost = tuple(result.cost[t * len(rows) + i] for t in range(len(self.terms)))
                unknown = any(gathered.ask[k] in self.missing and not gathered.terminating[k] for k in chosen)
                names = (VictimsStranded.name,) if unknown else ()
                evictions.append(Eviction(cluster.names[rows[i]], rows[i], pods, cost, i, names))
        evictions.sort(key=lambda eviction: (eviction.cost, eviction.node))  # and the case, as the sort is stable
        return evictions


def _needed(cluster: ClusterView, pod: PodRecord, rows: array[int], floor: Floor) -> bytearray:
    """A mark for each pod row that the preemptor's required affinity may need and kube-scheduler did not offer, and
    whose eviction gives it nothing."""
    users = cluster.tables.given.users
    if not pod.affinity_terms and not users:
        return bytearray()
    needed = bytearray(len(cluster.pod_rows.uids))
    for uid in users:
        if (at := cluster.pod_rows.get(uid)) is not None:
            needed[at] = 1
    for row in rows if pod.affinity_terms else ():
        offered = (floor(cluster.names[row]) if floor else None) or ()
        for other in cluster.pods_on(cluster.names[row]):
            if other.uid not in offered and pod.may_need(other):
                needed[cluster.pod_rows[other.uid]] = 1
    return needed


def fill_others(
    cluster: ClusterView, asked: Sequence[tuple[str, int]], rows: array[int], gathered: gather.Gathered
) -> None:
    """Adds what is lacking, and what each pod frees, of resources that are no columns of the tables."""
    names, first, others = [name for name, _ in asked], len(cluster.resources), cluster.placements.others
    gathered.widen(len(names))
    for i, row in enumerate(rows):
        node = cluster.nodes[cluster.names[row]]
        for r, (name, wanted) in enumerate(asked, first):
            gathered.short[r, i] = wanted - others.free(node, name)
    for k, pod_row in enumerate(gathered.pods):
        pod = cluster.pods[cluster.pod_rows.uids[pod_row]]
        for r, amount in enumerate(by_name(pod.others, names) if pod.other_resources else (), first):
            gathered.amounts[r, k] = min(amount, MOST_AMOUNT)


def ends(pod: PodRecord, wall: float) -> bool:
    """Whether the pod is terminating, and not overdue."""
    return pod.terminating and (pod.deletion_at is None or wall - pod.deletion_at <= OVERDUE_SECONDS)


def _keep_overdue(cluster: ClusterView, gathered: gather.Gathered, wall: float) -> None:
    """A pod that should have ended long ago frees nothing: no eviction must rest on it."""
    for k, row in enumerate(gathered.pods):
        if gathered.terminating[k] and not ends(cluster.pods[cluster.pod_rows.uids[row]], wall):
            gathered.masks[k] = 0
            gathered.unsure[k] = 0
            for r in range(gathered.resources):
                gathered.amounts[r, k] = 0


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
                impossible.add(i)  # a pod that we do not see there: its room cannot be judged
    return impossible


# -- which nodes admit a pod -------------------------------------------------------------------------------------------


RELEASE_SECONDS = 60.0  # how long a preemptor waits for pods that terminate anyway, rather than evict


def accepting(cluster: ClusterView, pod: PodRecord, names: Sequence[str]) -> list[str] | None:
    """Those of the nodes that the pod's node selector and required node affinity admit; None where they have more parts
    than can be looked at while it waits."""
    try:
        program = cluster.eligibility.program(pod.node_selector, pod.node_terms, None, MOST_PARTS)
    except TooLong:
        return None
    rows = array("i", map(cluster.row, names))
    return [cluster.names[row] for row in row_sets.kept(rows, cluster.eligibility.rows(program))]


def may_come_back(cluster: ClusterView, request: PodRequest, pod: PodRecord, now: float) -> str:
    """The first node whose device plugin offers nothing for a moment, and on which the pod fits once it does; ""."""
    away = list(cluster.away(now))
    accepted = accepting(cluster, pod, [node.name for node in away]) if away else None
    for node in away:
        if (accepted is None or node.name in accepted) and _would_fit(cluster, request, node):
            return node.name
    return ""


def _would_fit(cluster: ClusterView, request: PodRequest, node: NodeRecord) -> bool:
    """Whether the capacity of a node whose plugin is away, less what is held there, is enough."""
    held = [cluster.amounts(pod) for pod in cluster.pods_on(node.name)]
    return all(
        wanted <= node.gpu_capacity.get(cluster.resources[r], 0) - sum(amounts[r] for amounts in held)
        for r, wanted in request.gpus
    )


def releases(cluster: ClusterView, name: str, wall: float) -> bool:
    """Whether all that terminates on the node has terminated within a minute, so that an eviction is in vain."""
    ends = [pod.deletion_at for pod in cluster.pods_on(name) if pod.terminating]
    return all(end is not None and -OVERDUE_SECONDS <= end - wall <= RELEASE_SECONDS for end in ends)


# -- a table for each set of GPUs ------------------------------------------------------------------------------------

CERTAIN = 2  # of LinkShapes.certain
PRICED_GPUS = 8  # larger machines that are not uniform have too many sets to price
COUNT, HOPELESS = -1, -2  # instead of a table: counting is enough; no eviction helps


def set_tables(
    cluster: ClusterView,
    policy: Policy,
    request: PodRequest,
    rows: array[int],
    gathered: gather.Gathered,
    *,
    required: bool,
) -> tuple[list[array[int]], set[int]]:
    """(by table: what each mask of free GPUs leaves broken up, by LeftoverFragmentation; candidates where no eviction
    helps). Fills `gathered.table`, by candidate, COUNT where counting is enough, and `gathered.ok`: by table, one byte
    for each mask, 1 where it suffices. `required`: the links are looked at."""
    priced = any(isinstance(cost, LeftoverFragmentation) for cost in policy.costs)
    if not required and not priced:
        return [], set()
    graph_kinds = _Kinds(cluster.tables.shapes, policy, request, required=required, priced=priced)
    kind_of, kinds = gather.graphs(cluster.tables.nodes, rows)
    table_of = [graph_kinds.table(*kind) for kind in kinds]
    gathered.ok.extend(graph_kinds.ok)
    impossible: set[int] = set()
    if required:
        for i, kind in enumerate(kind_of):
            gathered.table[i] = max(table_of[kind], COUNT)
        if HOPELESS in table_of:
            impossible.update(i for i, kind in enumerate(kind_of) if table_of[kind] == HOPELESS)
    elif graph_kinds.ok:
        # Where positions are unknown, what an eviction leaves free cannot be priced.
        for i, (kind, unknown) in enumerate(zip(kind_of, gathered.unknown, strict=True)):
            gathered.table[i] = COUNT if unknown else table_of[kind]
    return graph_kinds.prices, impossible


class _Kinds:
    """Makes the tables, one for each kind of machine."""

    def __init__(
        self, shapes: LinkShapes, policy: Policy, request: PodRequest, *, required: bool, priced: bool
    ) -> None:
        self._shapes, self._policy, self._request = shapes, policy, request
        self._required, self._priced = required, priced
        self._several = required and request.containers > 1  # then every set of that size has to be linked
        self._known: dict[tuple[int, int], int] = {}
        self.ok: list[bytes] = []
        self.prices: list[array[int]] = []

    def table(self, shape: int, healthy: int, gpu: int) -> int:
        """The table of a kind (a link shape, its healthy GPUs, their resource); COUNT or HOPELESS instead."""
        request, shapes, bits = self._request, self._shapes, healthy.bit_length()
        if not shape or gpu != request.resource:
            return HOPELESS if self._required else COUNT
        several = 0, request.containers, request.planned
        if self._several and shapes.certain(shape, healthy, request.wanted, *several) != CERTAIN:
            return HOPELESS  # so the filter says too: any pod that ends meanwhile would spoil the set
        if not self._required and bits > PRICED_GPUS:
            return COUNT
        if fit.uniform(shapes, shape, healthy, request.wanted) and not self._may_crash(shape, bits):
            return COUNT
        if (shape, bits) not in self._known:
            self._known[shape, bits] = len(self.ok)
            self.ok.append(self._sufficient(shape, bits))
            self.prices.append(self._prices(shape, bits))
        return self._known[shape, bits]

    def _may_crash(self, shape: int, bits: int) -> bool:
        """A plugin that may crash over some free sets hands out nothing there, linked or not: the filter rejects it."""
        if not self._required or self._several or bits > PRICED_GPUS:
            return False
        return any(self._shapes.crash(shape, mask, self._request.wanted) for mask in range(1 << bits))

    def _sufficient(self, shape: int, bits: int) -> bytes:
        if not self._required:
            return bytes([1]) * (1 << bits)
        request = self._request
        return fit.link_table(self._shapes, shape, bits, request.wanted, request.containers, request.planned)

    def _prices(self, shape: int, bits: int) -> array[int]:
        if self._priced and bits <= PRICED_GPUS:
            return self._policy.leftover(self._shapes, shape, bits, self._request.wanted)
        return array("q", bytes(8 << bits))


def deduced(cluster: ClusterView, name: str) -> Iterator[Holding]:
    """Holdings that are sure only because no other set is left."""
    return (
        holding
        for holding in cluster.gpus.ledgers[name].holdings
        if holding.mask and holding.how in ("planned", "predicted")
    )


def without_deduction(
    cluster: ClusterView,
    request: PodRequest,
    rows: array[int],
    gathered: gather.Gathered,
    nodes: int,
    prices: list[array[int]],
) -> None:
    """Makes three cases of each node that is in `rows` thrice (once below `nodes`, then twice in a row).

    Which pod holds the last set that is left is deduced, and no longer is once a pod with GPUs is gone: our filter will
    not know which of the GPUs are whose. So either only pods without GPUs are evicted; or all whose positions are not
    stated; or, where some of them stay, any set of the GPUs that may be free has to be linked."""
    kind_of, kinds = gather.graphs(cluster.tables.nodes, rows)
    known: dict[tuple[int, int], int] = {}
    for i in range(nodes, len(rows)):
        only_deduced = {holding.uid: holding for holding in deduced(cluster, cluster.names[rows[i]])}
        for holding in only_deduced.values():
            gathered.free[i] |= holding.mask
            gathered.unknown[i] += holding.count
        for k in range(gathered.start[i], gathered.start[i + 1]):
            if held := only_deduced.get(cluster.pod_rows.uids[gathered.pods[k]]):
                gathered.masks[k], gathered.unsure[k] = 0, held.count
        if (i - nodes) % 2:
            shape, healthy, _ = kinds[kind_of[i]]
            bits = healthy.bit_length()
            if (shape, bits) not in known:
                known[shape, bits] = len(gathered.ok)
                gathered.ok.append(fit.link_table(cluster.tables.shapes, shape, bits, request.wanted, 0))
                prices.append(array("q", bytes(8 << bits)))  # what stays free is not known
            gathered.table[i] = known[shape, bits]
            gathered.unknown[i] = 0
        elif only_deduced:
            first = rows.index(rows[i])
            for k in range(gathered.start[first], gathered.start[first + 1]):
                if gathered.gpus[k]:
                    gathered.masks[k] = 0
                    for r in range(gathered.resources):
                        gathered.amounts[r, k] = 0
