"""The victim search over candidate nodes, for preempt, the eviction controller and what-if.

Only the two cheapest nodes are searched to the end (of equals the first by name): the others are left as soon as it is
proved that they cannot be among them. The budget in sets decides, so that the same cluster gives the same answer; the
budget in time is a second stop. Whatever ends early is answered as the best found, and said to be unproved.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from ext_core import scout
from extender.cluster.cluster import Cluster, ClusterView
from extender.cluster.tables import FIRST_GPU
from extender.objects import gangs
from extender.objects.records import PodRecord
from extender.policy import pod_request
from extender.policy.contracts import PodRequest
from extender.policy.costs import FreedBeyond, LeftoverFragmentation
from extender.policy.policy import Policy
from extender.preemption.candidates import Eviction, Floor, Inquiry, Preemptor, VictimProblem, ends
from extender.preemption.cost_inputs import CostCeiling, Rooms, SearchTime, ceiling_of, stopped, work_lost
from extender.settings import PreemptionSettings as Limits

LOWEST = -(2**63)  # what the search answers for the maximum over no victims
IMPOSSIBLE = 2**63 - 1  # ext_core.scout's bound where no set of victims frees enough
FEW = 128  # candidates that are all searched; of more, those which the bounds leave
FIRST = 32  # with the lowest bounds: they are searched first
FEW_PODS = 10  # of a node, all of whose sets are judged where the search and our filter disagree
TRIES = 4  # searches that leave early; then all candidates are searched to the end


@dataclass(frozen=True, slots=True)
class SearchResult:
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
        priority, columns = self._bounds(preemptor, rows)
        return array("i", [rows[i] for i in scout.least(columns, len(rows), FIRST) if priority[i] < IMPOSSIBLE])

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
        priority, columns = self._bounds(inquiry.preemptor, rows)
        first = VictimProblem(inquiry, array("i", [rows[i] for i in scout.least(columns, len(rows), FIRST)]))
        two = _one_each(first.look(every=False))[:2]
        second = two[1].cost if len(two) == 2 else (IMPOSSIBLE,) * len(columns)
        near = scout.within(columns, len(rows), second)
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
    columns = zip(request.amounts, cluster.tables.nodes.free_of(row), strict=True)
    short = tuple(r for r, (wanted, free) in enumerate(columns) if wanted and wanted > free)
    return (*short, OTHER) if others_short(cluster, request, cluster.names[row]) else short


OTHER: Final = -1
"""Among the resources by index: one that is no column of the tables."""


def others_short(cluster: ClusterView, request: PodRequest, name: str) -> list[tuple[str, int, int]]:
    """(resource, what is left, what is asked for) of those that are no columns, where the node has too little."""
    return cluster.placements.others.short(cluster.nodes[name], request.others) if request.others else []


# -- the price of evictions that nothing searched ---------------------------------------------------------------------


HIGHEST_PRIORITY: Final = 2**31 - 1
"""Of any pod: the API server accepts no more."""
OF_PREEMPTOR: Final = (FreedBeyond.name, LeftoverFragmentation.name)
"""Terms that depend on what the preemptor asks for."""


def price_alone(cluster: Cluster, policy: Policy, pod: PodRecord, wall: float) -> Eviction | None:
    """The eviction of this pod and no other, by an imaginary preemptor of a higher priority. None: it is no possible
    victim (DaemonSet, static and protected pods), or holds no GPUs. `wall`: seconds since 1970."""
    row = cluster.row(pod.node)
    request = pod_request.read(pod, cluster)
    if row < 0 or not request.gpus or pod.priority >= HIGHEST_PRIORITY:
        return None
    above = msgspec.structs.replace(request, priority=pod.priority + 1, links="ignore", nics="ignore", most_wait=0)
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
