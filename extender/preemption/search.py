"""The victim search over candidate nodes, for preempt, the eviction controller and what-if.

Only the two cheapest nodes are searched to the end (of equals the first by name): the others are left as soon as it is
proved that they cannot be among them. The budget in sets decides, so that the same cluster gives the same answer; the
budget in time is a second stop. Whatever ends early is answered as the best found, and said to be unproved.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from ext_core import columns as row_sets
from ext_core import fit, gather, scout, victims
from ext_core.links import LinkShapes
from extender.cluster.cluster import Cluster, ClusterView
from extender.cluster.eligibility import MOST_PARTS, TooLong
from extender.cluster.statements import Holding
from extender.cluster.tables import FIRST_GPU, MOST_AMOUNT, by_name
from extender.objects import gangs
from extender.objects.records import NodeRecord, PodRecord
from extender.policy import pod_request
from extender.policy.contracts import PodRequest
from extender.policy.costs import freed_beyond_gpus, leftover_fragmentation, victims_stranded
from extender.policy.policy import Policy
from extender.policy.reasons import GPUS_RELEASING
from extender.preemption.cost_inputs import (
    CostCeiling,
    NodeInputs,
    Rooms,
    SearchTime,
    ceiling_of,
    columns,
    stopped,
    terms,
    work_lost,
)
from extender.settings import PreemptionSettings as Limits

# -- the candidates of a search as the kernel reads them: possible victims, what is missing, what must go
#
# Which sets of free GPUs suffice on a candidate, and what each leaves broken up, are tables over masks of GPUs. Where
# links are required a table states of each set of free GPUs whether our filter would pass it. It needs to know every
# position; a node where some are unknown, or only deduced, is searched in three cases.


OVERDUE_SECONDS = 30.0  # a pod that should have ended longer ago (a finalizer, a hung unmount) may stay for ever
PROVED, BEST_SO_FAR, UNDECIDED = 1, 2, 3  # statuses of ext_core.victims
NEVER_SHORT = 2**60  # more than any eviction frees

Floor = Callable[[str], Sequence[str] | None] | None


class Preemptor(msgspec.Struct, frozen=True, gc=False):
    """The pod that victims are sought for, as kube-scheduler sent it, and its request; `now`: seconds on the server's
    monotonic clock; `wall`: seconds since 1970."""

    request: PodRequest
    pod: PodRecord
    now: float
    wall: float


class Inquiry(msgspec.Struct):
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
    rooms: Rooms = msgspec.field(default_factory=Rooms)
    time: SearchTime = msgspec.field(default_factory=SearchTime)
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


class Eviction(msgspec.Struct, frozen=True):
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
            else:
                _frees_nothing(gathered, k)

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
        pods_by_uid, uids = cluster.pods, cluster.pod_rows.uids
        evictions: list[Eviction] = []
        for i in [i for i, status in enumerate(result.status) if PROVED <= status <= BEST_SO_FAR]:
            if i in self.impossible:
                continue
            chosen = [k for k in range(gathered.start[i], gathered.start[i + 1]) if result.chosen[k]]
            if chosen:
                pods = tuple([pods_by_uid[uids[gathered.pods[k]]] for k in chosen])
                cost = tuple(result.cost[i :: len(rows)])
                unknown = self.missing and any(
                    gathered.ask[k] in self.missing and not gathered.terminating[k] for k in chosen
                )
                names = (victims_stranded.name,) if unknown else ()
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
            _frees_nothing(gathered, k)


def _frees_nothing(gathered: gather.Gathered, k: int) -> None:
    """Let the eviction of a gathered pod free no GPU and no amount."""
    gathered.masks[k] = gathered.unsure[k] = 0
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


def waits_on(
    cluster: Cluster, preemptor: Preemptor, rows: array[int], codes: Sequence[int], best: Eviction | None
) -> str:
    """The first of these nodes with pods that terminate, for which the preemptor waits: no pod is evicted for it; "":
    none. `codes`: our filter's, of each row; `best`: the cheapest eviction, None where none helps. By the claims that
    stand."""
    if best is not None and all(pod.terminating for pod in best.pods):
        return ""
    waiting = (GPUS_RELEASING.code,) if best is None else (GPUS_RELEASING.code, 0)
    if not any(code in codes for code in waiting):  # nearly always
        return ""
    near = (row for row, code in zip(rows, codes, strict=True) if code in waiting)
    return next((cluster.names[row] for row in near if _fits_soon(cluster, preemptor, row)), "")


def _fits_soon(cluster: Cluster, preemptor: Preemptor, row: int) -> bool:
    """Whether the node has what the pod asks for, by number, once the pods that are terminating there have terminated,
    all within a minute. Links are judged then: nothing is evicted for them while GPUs come free anyway."""
    name = cluster.names[row]
    ending = [pod for pod in cluster.pods_on(name) if pod.terminating]
    if not ending or not all(_ends_soon(pod, preemptor.wall) for pod in ending):
        return False
    with cluster.without({pod.uid for pod in ending}, name):
        return not amounts_short(cluster, preemptor.request, row)


def _ends_soon(pod: PodRecord, wall: float) -> bool:
    """Whether a terminating pod ends within RELEASE_SECONDS, and is not overdue. It has its grace period at most, also
    where our clock is behind that of the API server, which writes when it ends."""
    if pod.deletion_at is None or not ends(pod, wall):
        return False
    return min(pod.deletion_at - wall, pod.grace_seconds) <= RELEASE_SECONDS


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
    """(by table: what each mask of free GPUs leaves broken up, by leftover_fragmentation; candidates where no eviction
    helps). Fills `gathered.table`, by candidate, COUNT where counting is enough, and `gathered.ok`: by table, one byte
    for each mask, 1 where it suffices. `required`: the links are looked at."""
    priced = leftover_fragmentation in policy.costs
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


# -- the search


LOWEST = -(2**63)  # what the search answers for the maximum over no victims
IMPOSSIBLE = 2**63 - 1  # ext_core.scout's bound where no set of victims frees enough
FEW = 128  # candidates that are all searched; of more, those which the bounds leave
FIRST = 32  # with the lowest bounds: they are searched first
FEW_PODS = 10  # of a node, all of whose sets are judged where the search and our filter disagree
TRIES = 4  # searches that leave early; then all candidates are searched to the end


class SearchResult(msgspec.Struct, frozen=True):
    """What a search found."""

    evictions: tuple[Eviction, ...] = ()
    """Lowest cost first; the second is the runner-up."""
    proved: bool = True
    """No other node or set of victims has a lower cost."""
    nodes: int = 0
    """Nodes examined."""
    sets: int = 0
    """Search nodes examined."""
    above: Eviction | None = None
    """The eviction with the lowest cost, where all are above the `ceiling`."""
    ceiling: CostCeiling | None = None
    waits_on: str = ""
    """In answers to questions: the node of `waits_on`; preempt evicts no pod then."""

    @property
    def best(self) -> Eviction | None:
        """The eviction with the lowest cost; None where no eviction helps."""
        return self.evictions[0] if self.evictions else None

    @property
    def runner_up(self) -> Eviction | None:
        """The eviction with the second lowest cost; None where there is none."""
        return self.evictions[1] if len(self.evictions) > 1 else None


class VictimSearch:
    """Searches over one cluster, by one policy. Claims are the caller's: it searches inside of `Claims.of`."""

    def __init__(self, cluster: Cluster, policy: Policy, limits: Limits, time: SearchTime | None = None) -> None:
        """`limits`: the settings of preemption: budgets in sets and in time; `time`: whether that is over."""
        self._cluster, self._policy, self._limits = cluster, policy, limits
        self.time = time or SearchTime()

    def find(
        self, preemptor: Preemptor, rows: array[int], floor: Floor = None, *, limited: bool = True
    ) -> SearchResult:
        """The cheapest eviction over these nodes (in the order of their names) after which our own filter passes the
        pod.

        `floor`: uids that have to be among the victims on a node, None = any set will do; `limited`: whether time ends
        the search too."""
        if not preemptor.request.gpus:  # other devices alone are allocated to claims: no eviction frees them for sure
            return SearchResult(nodes=len(rows))
        limits = self._limits
        begun, budget = time.thread_time_ns(), int(limits.budget_milliseconds * 1e6)
        until, half = (begun + budget, begun + budget // 2) if limited else (0, 0)
        rooms = Rooms(half, self.time)
        inquiry = Inquiry(
            self._cluster, self._policy, preemptor, floor, limits.search_budget, until, rooms=rooms, time=self.time,
            ceiling=ceiling_of(limits, (preemptor.pod,), sum(preemptor.request.amounts[FIRST_GPU:])),
        )  # fmt: skip
        result = self._found(inquiry, rows)
        if result.best is None and inquiry.ceiling is not None:
            open_inquiry = replace(inquiry, ceiling=None, sets=0)
            best = self._found(open_inquiry, rows).best
            result = replace(result, above=best, ceiling=inquiry.ceiling)
        return result

    def _found(self, inquiry: Inquiry, rows: array[int]) -> SearchResult:
        """The cheapest eviction of one inquiry."""
        result, rejected = self._among(
            inquiry, self._hopeful(inquiry, rows) if len(rows) > FEW else VictimProblem(inquiry, rows)
        )
        if rejected and len(rows) > FEW:  # what was left out costs more than a set that our filter rejects
            result, _ = self._among(inquiry, VictimProblem(inquiry, rows))
        return replace(result, nodes=len(rows), sets=inquiry.sets)

    def nearest(self, preemptor: Preemptor, rows: array[int]) -> array[int]:
        """The FIRST of these rows with the lowest bounds on what a preemption costs; rows where no victims suffice are
        left out. Nodes that do not admit the pod are among them."""
        priority, bounds = self._bounds(preemptor, rows)
        return array("i", [rows[i] for i in scout.least(bounds, len(rows), FIRST) if priority[i] < IMPOSSIBLE])

    def fits_without(self, request: PodRequest, row: int, uids: set[str]) -> bool:
        """Whether our own filter would pass the pod on the node, were these pods gone."""
        cluster = self._cluster
        with cluster.without(uids, cluster.names[row]):
            return not self._policy.judge(cluster.tables, request, array("i", [row]))[0]

    def _bounds(self, preemptor: Preemptor, rows: array[int]) -> tuple[array[int], list[array[int]]]:
        """(the lowest possible highest priority of the victims, the bounds of every cost term in order), one number for
        each row."""
        tables, request = self._cluster.tables, preemptor.request
        kinds = [cost.floor for cost in self._policy.costs]
        priority, work = scout.bounds(
            tables.nodes,
            tables.pods,
            request.ask,
            rows,
            int(preemptor.wall * 1000),
            "priority" in kinds[: kinds.index("work")] if "work" in kinds else False,
        )
        floors = {"": array("q", bytes(8 * len(rows))), "priority": priority, "work": work}
        return priority, [floors[kind] for kind in kinds]

    def _hopeful(self, inquiry: Inquiry, rows: array[int]) -> VictimProblem:
        """Those that may hold one of the two cheapest sets: two are found where the bounds are lowest, and nodes
        whose bounds are above the second are out."""
        priority, bounds = self._bounds(inquiry.preemptor, rows)
        first = VictimProblem(inquiry, array("i", [rows[i] for i in scout.least(bounds, len(rows), FIRST)]))
        two = _one_each(first.look(every=False))[:2]
        second = two[1].cost if len(two) == 2 else (IMPOSSIBLE,) * len(bounds)
        near = scout.within(bounds, len(rows), second)
        near_rows = array("i", [rows[i] for i in near if priority[i] < IMPOSSIBLE])
        return first if set(near_rows).issubset(first.rows) else VictimProblem(inquiry, near_rows)

    def _among(self, inquiry: Inquiry, problem: VictimProblem) -> tuple[SearchResult, bool]:
        """(the cheapest, whether our filter refused a set that the search took for enough)."""
        judged: list[Eviction] = []  # the best sets of nodes that were given up, known to suffice
        best: Eviction | None = None
        proved, open_end = True, False
        for tried in range(len(problem.rows) + 1):
            every = tried >= TRIES or problem.split
            for eviction in sorted(
                [*problem.look(every), *judged], key=lambda eviction: (eviction.cost, eviction.node)
            ):
                if best is not None and eviction.row == best.row:
                    continue
                # A count says of the runner-up what the filter would; of links and NICs it does not.
                sure = eviction in judged or (best is not None and not inquiry.request.by_position)
                if sure or self._suffices(inquiry, eviction):
                    if best is not None:
                        return SearchResult((best, eviction), proved), tried > 0
                    # What is not known of other sets counts as 0: only what is not known of this one can be wrong.
                    best, proved = eviction, problem.proved and not open_end and not eviction.unknown
                    continue
                other, complete = self._one_by_one(inquiry, eviction.row)
                problem.give_up(eviction, whole=complete)
                judged += [other] if other is not None else []
                open_end = open_end or not complete
                break  # and look again
            else:
                break
        if best is not None:
            return SearchResult((best,), proved), tried > 0
        return SearchResult((), problem.proved and not open_end), tried > 0

    def _one_by_one(self, inquiry: Inquiry, row: int) -> tuple[Eviction | None, bool]:
        """(the node's cheapest set of victims that our filter passes, whether there is none cheaper): where the filter
        refuses what the search takes for enough, it is asked about every set, the cheapest first."""
        single = VictimProblem(inquiry, array("i", [row]), by_links=False)
        pods = len(single.gathered.pods)
        if pods > FEW_PODS:
            return None, False
        must = sum(1 << k for k in range(pods) if single.gathered.forced[k])
        problem = VictimProblem(inquiry, array("i", [row]) * ((1 << pods) - 1), by_links=False)
        for i in range(len(problem.rows)):
            problem.only(i, i + 1, must)
        sets = problem.solve(every=True)
        for eviction in sorted(sets, key=lambda eviction: (eviction.cost, len(eviction.pods))):
            if inquiry.time.over(inquiry.ends):
                return None, False
            if self._suffices(inquiry, eviction):
                return eviction, problem.proved
        return None, problem.proved

    def _suffices(self, inquiry: Inquiry, eviction: Eviction) -> bool:
        """Whether our own filter would pass the pod, before the pods that are ending have gone, and after."""
        gone = {victim.uid for victim in eviction.pods}
        ways = [gone]
        if inquiry.request.by_position:
            pods_on_node = self._cluster.pods_on(eviction.node)
            later = gone.union(pod.uid for pod in pods_on_node if ends(pod, inquiry.wall))
            ways += [later] if later != gone else []
        return all(self.fits_without(inquiry.request, eviction.row, way) for way in ways)


def _one_each(evictions: Sequence[Eviction]) -> list[Eviction]:
    """The first of each node: where positions are unknown a node is searched in several cases."""
    first: dict[int, Eviction] = {}
    for eviction in evictions:
        first.setdefault(eviction.row, eviction)
    return list(first.values())


def amounts_short(cluster: ClusterView, request: PodRequest, row: int) -> tuple[int, ...]:
    """The resources (by index, and OTHER) of which too little is free on the node, claims taken."""
    amounts = zip(request.amounts, cluster.tables.nodes.free_of(row), strict=True)
    short = tuple(r for r, (wanted, free) in enumerate(amounts) if wanted and wanted > free)
    return (*short, OTHER) if others_short(cluster, request, cluster.names[row]) else short


OTHER: Final = -1
"""Among the resources by index: one that is no column of the tables."""


def others_short(cluster: ClusterView, request: PodRequest, name: str) -> list[tuple[str, int, int]]:
    """(resource, what is left, what is asked for) of those that are no columns, where the node has too little."""
    return cluster.placements.others.short(cluster.nodes[name], request.others) if request.others else []


# -- the price of evictions that nothing searched ---------------------------------------------------------------------


HIGHEST_PRIORITY: Final = 2**31 - 1
"""Of any pod: the API server accepts no more."""
OF_PREEMPTOR: Final = (freed_beyond_gpus.name, leftover_fragmentation.name)
"""Terms that depend on what the preemptor asks for."""


def price_alone(cluster: Cluster, policy: Policy, pod: PodRecord, wall: float) -> Eviction | None:
    """The eviction of this pod and no other, by an imaginary preemptor of a higher priority. None: it is no possible
    victim (DaemonSet, static and protected pods), or holds no GPUs. `wall`: seconds since 1970."""
    row = cluster.row(pod.node)
    request = pod_request.read(pod, cluster)
    if row < 0 or not request.gpus or pod.priority >= HIGHEST_PRIORITY:
        return None
    above = replace(request, priority=pod.priority + 1, links="ignore", nics="ignore", most_wait=0)
    inquiry = Inquiry(cluster, policy, Preemptor(above, pod, 0.0, wall), None, 1 << 20, 0)
    problem = VictimProblem(inquiry, array("i", [row]), by_links=False)
    gathered, uids = problem.gathered, cluster.pod_rows.uids
    at = next((k for k, pod_row in enumerate(gathered.pods) if uids[pod_row] == pod.uid), -1)
    if at < 0:
        return None
    for k in range(len(gathered.pods)):
        gathered.forced[k] = k == at
        if k != at:
            gathered.masks[k] = gathered.unsure[k] = 0
    for r in range(gathered.resources):
        gathered.short[r, 0] = 0
    gathered.table[0] = -1
    problem.impossible.clear()
    alone = next(
        (eviction for eviction in problem.solve(every=True) if [victim.uid for victim in eviction.pods] == [pod.uid]),
        None,
    )
    if alone is None:
        return None
    return replace(alone, unknown=(*alone.unknown, *OF_PREEMPTOR))


class Loss(NamedTuple):
    """What the eviction of some pods loses."""

    victims: int = 0
    """Pods, without those that are terminating anyway."""
    priority: int | None = None
    """The highest; None: no victim."""
    broken: Mapping[gangs.Ref, str] = MappingProxyType({})
    """Gangs of which fewer than their minimum stay, as of `Gang.why_broken`."""
    work: int = 0
    """GPU-seconds lost by the victims and by all running members of broken gangs."""

    @property
    def gangs(self) -> int:
        """How many gangs break."""
        return len(self.broken)


def loss(cluster: ClusterView, pods: Iterable[PodRecord], wall: float) -> Loss:
    """The cost of evicting these bound pods at `wall`, seconds since 1970."""
    evicted = [pod for pod in pods if not pod.terminating]
    if not evicted:
        return Loss()
    broken, losing = stopped(cluster, evicted)
    work = sum(work_lost(cluster, pod, int(wall * 1000)) for pod in losing.values())
    return Loss(len(evicted), max(pod.priority for pod in evicted), broken, work)
