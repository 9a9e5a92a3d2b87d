"""The victim search over candidate nodes: what preempt answers, what-if tells and an eviction controller would do.

Only the two cheapest nodes are searched to the end (of equals the first by name): the others are left as soon as it is
proved that they can not be among them. The budget in sets decides, so that the same cluster gives the same answer; the
budget in time is a second stop. Whatever ends early is answered as the best found, and said to be unproved.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ext_core import fit, gather, scout, victims
from ext_core.links import LinkShapes
from extender import gangs
from extender.cluster import Cluster
from extender.contracts import Groups, PodRequest, Victims
from extender.costs.highest_priority import FREE
from extender.costs.leftover_fragmentation import LeftoverFragmentation
from extender.costs.victims_stranded import VictimsStranded
from extender.decide import Decider
from extender.ledger import Holding
from extender.progress import lost, restart_seconds, saved_ms, start_ms
from extender.records import PodRecord

LOWEST = -(2**63)  # what the search answers for the maximum over no victims
OVERDUE_SECONDS = 30.0  # a pod that should have ended longer ago (a finalizer, a hung unmount) may stay for ever
PROVED, BEST_SO_FAR, UNDECIDED = 1, 2, 3  # statuses of ext_core.victims
NEVER_SHORT = 2**60  # more than any eviction frees
IMPOSSIBLE = 2**63 - 1  # ext_core.scout's bound where no set of victims frees enough
FEW = 128  # candidates that are all searched; of more, those which the bounds leave
FIRST = 32  # with the lowest bounds: they are searched first
FEW_PODS = 10  # of a node, all of whose sets are judged where the search and our filter disagree
TRIES = 4  # searches that leave early; then all candidates are searched to the end
CERTAIN = 2  # of LinkShapes.certain
PRICED_GPUS = 8  # larger machines that are not uniform have too many sets to price

Floor = Callable[[str], Sequence[str] | None] | None


@dataclass(frozen=True, slots=True)
class Eviction:
    """The cheapest sufficient victims on one node. `cost`: one number per term, in order; `at`: which candidate."""

    node: str
    row: int
    pods: tuple[PodRecord, ...]
    cost: tuple[int, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Found:
    """`evictions`: the cheapest first, the second is the runner-up; `proved`: no other node or set is cheaper;
    `sets`: search nodes examined."""

    evictions: tuple[Eviction, ...] = ()
    proved: bool = True
    nodes: int = 0
    sets: int = 0

    @property
    def best(self) -> Eviction | None:
        return self.evictions[0] if self.evictions else None

    @property
    def runner_up(self) -> Eviction | None:
        return self.evictions[1] if len(self.evictions) > 1 else None


def find(
    decider: Decider,
    request: PodRequest,
    pod: PodRecord,
    rows: array[int],
    floor: Floor,
    now: float,
    wall: float,
    *,
    limited: bool = True,
) -> Found:
    """The cheapest eviction over these nodes (in the order of their names) after which our own filter passes the pod.

    `floor`: uids that have to be among the victims on a node, None = any set will do; `limited`: whether time ends the
    search too. The caller's claims count as taken."""
    search = _Search(decider, request, pod, floor, now, wall, limited)
    found, refused = search.among(search.hopeful(rows) if len(rows) > FEW else _Problem(search, rows))
    if refused and len(rows) > FEW:  # what was left out was dearer than a set that our filter refuses
        found, _ = search.among(_Problem(search, rows))
    return replace(found, nodes=len(rows), sets=search.sets)


class _Search:
    """One call of `find`. `sets`: search nodes examined so far."""

    def __init__(
        self,
        decider: Decider,
        request: PodRequest,
        pod: PodRecord,
        floor: Floor,
        now: float,
        wall: float,
        limited: bool,
    ) -> None:
        self.decider, self.request, self.pod, self.floor = decider, request, pod, floor
        self.now, self.wall, self.wall_ms = now, wall, int(wall * 1000)
        self.amounts = array("q", request.amounts)
        settings = decider.settings.preemption
        self.budget = settings.search_budget
        self.ends = time.thread_time_ns() + int(settings.budget_milliseconds * 1e6) if limited else 0
        self.sets = 0

    def hopeful(self, rows: array[int]) -> _Problem:
        """Those that may hold one of the two cheapest sets: two are found where the bounds are lowest, and nodes
        whose bounds are above the second are out."""
        request, tables = self.request, self.decider.cluster.tables
        kinds = [cost.floor for cost in self.decider.policy.costs]
        priority, work = scout.bounds(
            tables.nodes,
            tables.pods,
            rows,
            self.amounts,
            request.resource,
            request.priority,
            self.wall_ms,
            FREE,
            "priority" in kinds[: kinds.index("work")] if "work" in kinds else False,
        )
        floors = {"": array("q", bytes(8 * len(rows))), "priority": priority, "work": work}
        columns = [floors[kind] for kind in kinds]
        first = _Problem(self, array("i", [rows[i] for i in scout.least(columns, len(rows), FIRST)]))
        two = _one_each(first.look(every=False))[:2]
        second = two[1].cost if len(two) == 2 else (IMPOSSIBLE,) * len(columns)
        near = scout.within(columns, len(rows), second)
        kept = array("i", [rows[i] for i in near if priority[i] < IMPOSSIBLE])
        return first if set(kept).issubset(first.rows) else _Problem(self, kept)

    def among(self, problem: _Problem) -> tuple[Found, bool]:
        """(the cheapest, whether our filter refused a set that the search took for enough)."""
        judged: list[Eviction] = []  # the best sets of nodes that were given up, known to suffice
        best: Eviction | None = None
        proved, open_end = True, False
        for tried in range(len(problem.rows) + 1):
            every = tried >= TRIES or problem.split
            for eviction in sorted([*problem.look(every), *judged], key=lambda one: (one.cost, one.node)):
                if best is not None and eviction.row == best.row:
                    continue
                # A count says of the runner-up what the filter would; of links it does not.
                sure = eviction in judged or (best is not None and self.request.links != "required")
                if sure or self._suffices(eviction):
                    if best is not None:
                        return Found((best, eviction), proved), tried > 0
                    best, proved = eviction, problem.proved and not open_end
                    continue
                other, complete = self._one_by_one(eviction.row)
                problem.give_up(eviction, whole=complete)
                judged += [other] if other is not None else []
                open_end = open_end or not complete
                break  # and look again
            else:
                break
        if best is not None:
            return Found((best,), proved), tried > 0
        return Found((), problem.proved and not open_end), tried > 0

    def _one_by_one(self, row: int) -> tuple[Eviction | None, bool]:
        """(the node's cheapest set of victims that our filter passes, whether there is none cheaper): where the filter
        refuses what the search takes for enough, it is asked about every set, the cheapest first."""
        one = _Problem(self, array("i", [row]), by_links=False)
        pods = len(one.gathered.pods)
        if pods > FEW_PODS:
            return None, False
        must = sum(1 << k for k in range(pods) if one.forced[k])
        problem = _Problem(self, array("i", [row]) * ((1 << pods) - 1), by_links=False)
        for i in range(len(problem.rows)):
            problem.only(i, i + 1, must)
        sets = problem.solve(every=True)
        for eviction in sorted(sets, key=lambda one: (one.cost, len(one.pods))):
            if self.ends and time.thread_time_ns() > self.ends:
                return None, False
            if self._suffices(eviction):
                return eviction, problem.proved
        return None, problem.proved

    def _suffices(self, eviction: Eviction) -> bool:
        """Whether our own filter would pass the pod, before the pods that are ending have gone, and after."""
        gone = {one.uid for one in eviction.pods}
        ways = [gone]
        if self.request.links == "required":
            there = self.decider.cluster.pods_on(eviction.node)
            later = gone.union(pod.uid for pod in there if ends(pod, self.wall))
            ways += [later] if later != gone else []
        return all(fits_without(self.decider, self.request, eviction.row, way, self.now) for way in ways)


def _one_each(evictions: Sequence[Eviction]) -> list[Eviction]:
    """The first of each node: where positions are unknown a node is searched in several cases."""
    first: dict[int, Eviction] = {}
    for one in evictions:
        first.setdefault(one.row, one)
    return list(first.values())


class _Problem:
    """The candidates of one search, as the kernel reads them. `by_links`: required links are looked at; `split`: some
    nodes are in it thrice."""

    def __init__(self, search: _Search, rows: array[int], *, by_links: bool = True) -> None:
        decider, cluster = search.decider, search.decider.cluster
        self.search, self.rows, self.cluster = search, rows, cluster
        self.required = by_links and search.request.links == "required" and search.request.wanted >= 2
        self.proved = True
        self.found: tuple[bool, list[Eviction]] | None = None
        gathered, prices = self._gather()
        blind = self._blind() if self.required else []
        self.split = bool(blind)
        if blind:
            self.rows = rows + array("i", [rows[i] for i in blind for _ in range(2)])
            gathered, prices = self._gather()
            _without_deduction(decider, search.request, self.rows, gathered, len(rows), self.table_of, self.ok, prices)
        if gathered.some_go and self.required:
            _count_ending(cluster, gathered, self.table_of, self.ok, search.wall, self.forced)
        columns = _columns(decider, gathered, prices, search.wall_ms)
        self.terms = [cost.term(columns) for cost in decider.policy.costs]

    def _gather(self) -> tuple[gather.Gathered, list[array[int]]]:
        search, cluster = self.search, self.cluster
        self.gathered = gather.victims(
            cluster.tables.nodes,
            cluster.tables.pods,
            self.rows,
            search.amounts,
            search.request.resource,
            search.request.priority,
            search.wall_ms,
            _needed(cluster, search.pod, self.rows, search.floor),
        )
        if self.gathered.some_go:
            _keep_overdue(cluster, self.gathered, search.wall)
        self.forced, self.impossible = _floor(cluster, self.rows, search.floor, self.gathered)
        self.table_of, self.ok, prices = _tables(
            search.decider, search.request, self.rows, self.gathered, self.impossible, required=self.required
        )
        return self.gathered, prices

    def _blind(self) -> list[int]:
        """With a table the search wants to know every position, and keeps what it knows. Where that is not so a node
        is a candidate twice more, see _without_deduction."""
        cluster, unknown = self.cluster, self.gathered.unknown
        return [
            i
            for i, table in enumerate(self.table_of)
            if table >= 0 and (unknown[i] or any(_deduced(cluster, cluster.names[self.rows[i]])))
        ]

    def only(self, i: int, chosen: int, must: int) -> None:
        """Leave candidate i one set: of its pods those in the mask `chosen`, which has to hold `must`."""
        gathered, first = self.gathered, self.gathered.start[i]
        if must & ~chosen:
            self.impossible.add(i)
        for k in range(first, gathered.start[i + 1]):
            if chosen >> (k - first) & 1:
                self.forced[k] = 1
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
        gathered, search = self.gathered, self.search
        if not gathered.pods:
            return []
        for i in self.impossible:
            gathered.short[len(self.cluster.resources) - 1, i] = NEVER_SHORT
        result = victims.cheapest(
            gathered.start,
            gathered.short,
            gathered.amounts,
            gathered.masks,
            gathered.free,
            gathered.unknown,
            gathered.unsure,
            self.table_of,
            self.ok,
            self.forced,
            self.terms,
            max(1, search.budget - search.sets),
            not every,
            max(1, search.ends - time.thread_time_ns()) if search.ends else 0,
        )
        search.sets += sum(result.examined)
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
                pods = tuple(cluster.pods[cluster.uid_of_row[gathered.pods[k]]] for k in chosen)
                cost = tuple(result.cost[t * len(rows) + i] for t in range(len(self.terms)))
                found.append(Eviction(cluster.names[rows[i]], rows[i], pods, cost, i))
        found.sort(key=lambda eviction: (eviction.cost, eviction.node))  # and the case, as the sort is stable
        return found


def fits_without(decider: Decider, request: PodRequest, row: int, uids: set[str], now: float) -> bool:
    """Whether our own filter would pass the pod on the node, were these pods gone. Claims of the caller are dropped for
    it and made anew."""
    cluster = decider.cluster
    cluster.tables.nodes.drop_claims()
    with cluster.without(uids, cluster.names[row]):
        decider.claim(request, now)
        return not decider.policy.judge(cluster.tables, request, array("i", [row]))[0]


def amounts_short(cluster: Cluster, request: PodRequest, row: int) -> tuple[int, ...]:
    """The resources (by index) of which too little is free on the node, claims taken."""
    node = cluster.tables.nodes.node(row)
    alloc, used, claim = node["alloc"], node["used"], node["claim"]
    assert isinstance(alloc, tuple)
    assert isinstance(used, tuple)
    assert isinstance(claim, tuple)
    columns = zip(request.amounts, alloc, used, claim, strict=True)
    return tuple(r for r, (wanted, has, held, taken) in enumerate(columns) if wanted and wanted > has - held - taken)


def _needed(cluster: Cluster, pod: PodRecord, rows: array[int], floor: Floor) -> bytearray:
    """A mark for each pod row that the preemptor's required affinity may need and kube-scheduler did not offer."""
    if not pod.affinity_terms:
        return bytearray()
    needed = bytearray(len(cluster.uid_of_row))
    for row in rows:
        offered = (floor(cluster.names[row]) if floor else None) or ()
        for other in cluster.pods_on(cluster.names[row]):
            if other.uid not in offered and pod.may_need(other):
                needed[cluster.pod_rows[other.uid]] = 1
    return needed


def ends(pod: PodRecord, wall: float) -> bool:
    """Whether the pod is going, and not overdue."""
    return pod.terminating and (pod.deletion_at is None or wall - pod.deletion_at <= OVERDUE_SECONDS)


def _keep_overdue(cluster: Cluster, gathered: gather.Gathered, wall: float) -> None:
    """A pod that should have ended long ago frees nothing: a plan must not rest on it."""
    for k, row in enumerate(gathered.pods):
        if gathered.going[k] and not ends(cluster.pods[cluster.uid_of_row[row]], wall):
            gathered.masks[k] = 0
            gathered.unsure[k] = 0
            for r in range(len(cluster.resources)):
                gathered.amounts[r, k] = 0


def _count_ending(
    cluster: Cluster, gathered: gather.Gathered, tables: array[int], ok: list[bytes], wall: float, forced: array[int]
) -> None:
    """Where more free GPUs may be worse ones, those of whoever ends count as free, needed or not: they will be."""
    worse = [not fit.monotone(table) for table in ok]
    for i, table in enumerate(tables):
        for k in range(gathered.start[i], gathered.start[i + 1]) if table >= 0 and worse[table] else ():
            if gathered.going[k] and ends(cluster.pods[cluster.uid_of_row[gathered.pods[k]]], wall):
                forced[k] = 1


def _floor(cluster: Cluster, rows: array[int], floor: Floor, gathered: gather.Gathered) -> tuple[array[int], set[int]]:
    """(1 for each gathered pod that must be among the victims, candidates where the floor can not be met)."""
    forced = array("B", bytes(len(gathered.pods)))
    impossible: set[int] = set()
    if floor is None:
        return forced, impossible
    for i, row in enumerate(rows):
        uids = floor(cluster.names[row])
        if uids is None:
            continue
        at = {cluster.uid_of_row[gathered.pods[k]]: k for k in range(gathered.start[i], gathered.start[i + 1])}
        for uid in uids:
            if uid in at:
                forced[at[uid]] = 1
            else:
                impossible.add(i)  # a pod that we do not see there: its room can not be judged
    return forced, impossible


def _tables(
    decider: Decider,
    request: PodRequest,
    rows: array[int],
    gathered: gather.Gathered,
    impossible: set[int],
    *,
    required: bool,
) -> tuple[array[int], list[bytes], list[array[int]]]:
    """(table per candidate, -1 where counting is enough; per table: which masks of free GPUs will do; what each mask
    leaves broken up, by LeftoverFragmentation)."""
    tables = array("i", [-1] * len(rows))
    priced = any(isinstance(cost, LeftoverFragmentation) for cost in decider.policy.costs)
    several = required and request.containers > 1  # then every set of that size has to be linked
    if not required and not priced:
        return tables, [], []
    nodes, shapes = decider.cluster.tables.nodes, decider.cluster.tables.shapes
    ok: list[bytes] = []
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
        tables = array("i", [table_of[kind] for kind in kind_of])
        if -2 in table_of:
            impossible.update(i for i, table in enumerate(tables) if table == -2)
            tables = array("i", [max(table, -1) for table in tables])
    elif ok:
        # Where positions are unknown, what an eviction leaves free can not be priced.
        pairs = zip(kind_of, gathered.unknown, strict=True)
        tables = array("i", [-1 if unknown else table_of[kind] for kind, unknown in pairs])
    return tables, ok, prices


def _crashes(shapes: LinkShapes, shape: int, bits: int, wanted: int) -> bool:
    return any(shapes.crash(shape, mask, wanted) for mask in range(1 << bits))


def _deduced(cluster: Cluster, name: str) -> Iterator[Holding]:
    """Holdings that are sure only because no other set is left."""
    return (one for one in cluster.ledgers[name].holdings if one.mask and one.how in ("planned", "predicted"))


def _without_deduction(
    decider: Decider,
    request: PodRequest,
    rows: array[int],
    gathered: gather.Gathered,
    nodes: int,
    tables: array[int],
    ok: list[bytes],
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
            if held := deduced.get(cluster.uid_of_row[gathered.pods[k]]):
                gathered.masks[k], gathered.unsure[k] = 0, held.count
        if (i - nodes) % 2:
            shape, healthy, _ = kinds[kind_of[i]]
            bits = healthy.bit_length()
            if (shape, bits) not in known:
                known[shape, bits] = len(ok)
                ok.append(fit.link_table(shapes, shape, bits, request.wanted, 0))
                prices.append(array("q", bytes(8 << bits)))  # what stays free is not known
            tables[i] = known[shape, bits]
            gathered.unknown[i] = 0
        elif deduced:
            first = rows.index(rows[i])
            for k in range(gathered.start[first], gathered.start[first + 1]):
                if gathered.gpus[k]:
                    gathered.masks[k] = 0
                    for r in range(len(cluster.resources)):
                        gathered.amounts[r, k] = 0


# ---- what the cost terms see


def _columns(decider: Decider, gathered: gather.Gathered, prices: list[array[int]], now_ms: int) -> Victims:
    cluster = decider.cluster
    stranded = array("q", bytes(8 * len(gathered.pods)))
    if any(isinstance(cost, VictimsStranded) for cost in decider.policy.costs):
        rooms = {ask: _room(cluster, ask) for ask in gather.distinct(gathered.ask, gathered.going)}
        stranded = gather.stranded(cluster.tables.pods, gathered.pods, gathered.ask, gathered.going, rooms)
    return Victims(
        gathered.pods,
        gathered.priority,
        gathered.start_ms,
        gathered.saved_ms,
        gathered.restart_s,
        gathered.grace_s,
        gathered.gpus,
        gathered.going,
        now_ms,
        _budgets(cluster, gathered),
        *_gangs(cluster, gathered, now_ms),
        stranded,
        prices,
    )


def _room(cluster: Cluster, ask: int) -> tuple[int, int]:
    amounts, selector, terms, tolerations = cluster.asks[ask]
    return gather.room(cluster.tables.nodes, array("q", amounts), cluster.admitted(selector, terms, tolerations))


def _budgets(cluster: Cluster, gathered: gather.Gathered) -> Groups:
    """PodDisruptionBudgets as groups. A pod that goes already, or that a budget has counted already, costs nothing."""
    sets = gather.distinct(gathered.budgets, gathered.going)
    keys = sorted({key for one in sets for key in cluster.budget_sets[one]})
    index = {key: g for g, key in enumerate(keys)}
    members = {one: tuple(index[key] for key in cluster.budget_sets[one]) for one in sets}
    allowance = array("q", [max(0, cluster.budgets[key].disruptions_allowed) for key in keys])
    names = tuple(f"{namespace}/{name}" for namespace, name in keys)
    return Groups(*gather.memberships(gathered.budgets, gathered.going, members), allowance, names)


def _gangs(cluster: Cluster, gathered: gather.Gathered, now_ms: int) -> tuple[Groups, array[int]]:
    """(gangs as groups, the work in GPU-seconds that all running members of each lose when it breaks)."""
    present = gather.distinct(gathered.gang, gathered.going)
    members: dict[int, tuple[int, ...]] = {gang: (g,) for g, gang in enumerate(present)}
    work = gather.gangs(cluster.tables.pods, len(cluster.gang_refs), now_ms)[1] if present else array("q")
    found = [gang for one in present if (gang := cluster.gang_of_id[one]) is not None]
    assert len(found) == len(present)
    price = array("q", [work[one] for one in present])
    for one in cluster.strays.keys() & members.keys():
        price[members[one][0]] += sum(_lost(cluster, pod, now_ms) for pod in cluster.strays[one])
    allowance = array("q", [gang.allowance for gang in found])
    names = tuple([gang.ref.name for gang in found])
    return Groups(*gather.memberships(gathered.gang, gathered.going, members), allowance, names), price


def _lost(cluster: Cluster, pod: PodRecord, now_ms: int) -> int:
    return lost(sum(cluster.amounts(pod)[3:]), start_ms(pod), saved_ms(pod), restart_seconds(pod), now_ms)


# ---- in words


def important(pods: Iterable[PodRecord]) -> list[PodRecord]:
    """As kube-scheduler orders victims: higher priority first, then the earlier start."""
    return sorted(pods, key=lambda pod: (-pod.priority, pod.start or 0.0, pod.uid))


def violations(cluster: Cluster, pods: Sequence[PodRecord]) -> int:
    """NumPDBViolations of these victims, counted as kube-scheduler counts it."""
    inside = [() if pod.terminating else cluster.budgets_of(pod) for pod in pods]
    keys = sorted({key for one in inside for key in one})
    index = {key: g for g, key in enumerate(keys)}
    allowance = [max(0, cluster.budgets[key].disruptions_allowed) for key in keys]
    return victims.kube_pdb_violations(range(len(pods)), [[index[key] for key in one] for one in inside], allowance)


def victim(cluster: Cluster, pod: PodRecord) -> dict[str, Any]:
    """A victim as the answers tell it."""
    holding = next((h for h in cluster.ledgers[pod.node].holdings if h.uid == pod.uid), None)
    gang = None if pod.terminating else cluster.gang_of(pod)
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "priority": pod.priority,
        "gpu_count": holding.count if holding else 0,
        "gpus": list(holding.gpus) if holding and holding.gpus is not None else None if holding else [],
        "gang": gang.name if gang is not None else None,
        "pdbs": [f"{namespace}/{name}" for namespace, name in cluster.budgets_of(pod)],
        "terminating": pod.terminating,
    }


def cost_of(decider: Decider, eviction: Eviction) -> list[dict[str, Any]]:
    return [
        {"term": cost.name, "value": None if value in (LOWEST, FREE) else value, "unit": cost.unit}
        for cost, value in zip(decider.policy.costs, eviction.cost, strict=True)
    ]


def certificate(decider: Decider, found: Found) -> dict[str, Any]:
    """What the answer rests on."""
    best, other = found.best, found.runner_up
    names = [cost.name for cost in decider.policy.costs]
    told = None
    lost_on = None
    if best is not None and other is not None:
        told = {
            "node": other.node,
            "victims": [victim(decider.cluster, pod) for pod in important(other.pods)],
            "cost": cost_of(decider, other),
        }
        pairs = zip(names, best.cost, other.cost, strict=True)
        lost_on = next((name for name, a, b in pairs if a != b), "node name")
    return {
        "proved": found.proved,
        "nodes_examined": found.nodes,
        "sets_examined": found.sets,
        "runner_up": told,
        "lost_on": lost_on,
    }


def warnings(cluster: Cluster, pods: Iterable[PodRecord]) -> list[dict[str, str]]:
    """What is not certain about these victims."""
    found = {
        gang.ref: gang for pod in pods if not pod.terminating and (gang := cluster.gang_of(pod)) and not gang.known
    }
    return [
        {
            "code": "gang-minimum-unknown",
            "message": f"how many pods of {ref.source} gang {ref} must run can not be read ({gangs.SAYS[ref.source]}): "
            f"all {len(gang.members)} running members are taken to be needed",
        }
        for ref, gang in sorted(found.items())
    ]
