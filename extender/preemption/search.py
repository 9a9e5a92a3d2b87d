"""The victim search over candidate nodes: what preempt answers, what-if tells and an eviction controller would do.

Only the two cheapest nodes are searched to the end (of equals the first by name): the others are left as soon as it is
proved that they can not be among them. The budget in sets decides, so that the same cluster gives the same answer; the
budget in time is a second stop. Whatever ends early is answered as the best found, and said to be unproved.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ext_core import scout
from extender.cluster.view import ClusterView
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.preemption.candidates import Eviction, Floor, Inquiry, Problem, ends
from extender.preemption.cost_inputs import Rooms
from extender.verbs.decide import Decider

LOWEST = -(2**63)  # what the search answers for the maximum over no victims
IMPOSSIBLE = 2**63 - 1  # ext_core.scout's bound where no set of victims frees enough
FEW = 128  # candidates that are all searched; of more, those which the bounds leave
FIRST = 32  # with the lowest bounds: they are searched first
FEW_PODS = 10  # of a node, all of whose sets are judged where the search and our filter disagree
TRIES = 4  # searches that leave early; then all candidates are searched to the end


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
    settings = decider.settings.preemption
    begun, budget = time.thread_time_ns(), int(settings.budget_milliseconds * 1e6)
    until, half = (begun + budget, begun + budget // 2) if limited else (0, 0)
    inquiry = Inquiry(decider, request, pod, floor, now, wall, settings.search_budget, until, rooms=Rooms(half))
    found, refused = _among(inquiry, _hopeful(inquiry, rows) if len(rows) > FEW else Problem(inquiry, rows))
    if refused and len(rows) > FEW:  # what was left out was dearer than a set that our filter refuses
        found, _ = _among(inquiry, Problem(inquiry, rows))
    return replace(found, nodes=len(rows), sets=inquiry.sets)


def nearest(decider: Decider, request: PodRequest, rows: array[int], wall: float) -> array[int]:
    """The FIRST of these rows with the lowest bounds on what a preemption costs; rows where no victims suffice are
    left out. Nodes that do not admit the pod are among them."""
    priority, columns = _bounds(decider, request, rows, int(wall * 1000))
    return array("i", [rows[i] for i in scout.least(columns, len(rows), FIRST) if priority[i] < IMPOSSIBLE])


def _bounds(
    decider: Decider, request: PodRequest, rows: array[int], wall_ms: int
) -> tuple[array[int], list[array[int]]]:
    """(the lowest possible highest priority of the victims, the bounds of every cost term in order), a number a row."""
    tables = decider.cluster.tables
    kinds = [cost.floor for cost in decider.policy.costs]
    priority, work = scout.bounds(
        tables.nodes,
        tables.pods,
        request.ask,
        rows,
        wall_ms,
        "priority" in kinds[: kinds.index("work")] if "work" in kinds else False,
    )
    floors = {"": array("q", bytes(8 * len(rows))), "priority": priority, "work": work}
    return priority, [floors[kind] for kind in kinds]


def _hopeful(inquiry: Inquiry, rows: array[int]) -> Problem:
    """Those that may hold one of the two cheapest sets: two are found where the bounds are lowest, and nodes
    whose bounds are above the second are out."""
    priority, columns = _bounds(inquiry.decider, inquiry.request, rows, inquiry.wall_ms)
    first = Problem(inquiry, array("i", [rows[i] for i in scout.least(columns, len(rows), FIRST)]))
    two = _one_each(first.look(every=False))[:2]
    second = two[1].cost if len(two) == 2 else (IMPOSSIBLE,) * len(columns)
    near = scout.within(columns, len(rows), second)
    kept = array("i", [rows[i] for i in near if priority[i] < IMPOSSIBLE])
    return first if set(kept).issubset(first.rows) else Problem(inquiry, kept)


def _among(inquiry: Inquiry, problem: Problem) -> tuple[Found, bool]:
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
            sure = eviction in judged or (best is not None and inquiry.request.links != "required")
            if sure or _suffices(inquiry, eviction):
                if best is not None:
                    return Found((best, eviction), proved), tried > 0
                # What is not known of other sets counts as 0: only what is not known of this one can be wrong.
                best, proved = eviction, problem.proved and not open_end and not eviction.unknown
                continue
            other, complete = _one_by_one(inquiry, eviction.row)
            problem.give_up(eviction, whole=complete)
            judged += [other] if other is not None else []
            open_end = open_end or not complete
            break  # and look again
        else:
            break
    if best is not None:
        return Found((best,), proved), tried > 0
    return Found((), problem.proved and not open_end), tried > 0


def _one_by_one(inquiry: Inquiry, row: int) -> tuple[Eviction | None, bool]:
    """(the node's cheapest set of victims that our filter passes, whether there is none cheaper): where the filter
    refuses what the search takes for enough, it is asked about every set, the cheapest first."""
    one = Problem(inquiry, array("i", [row]), by_links=False)
    pods = len(one.gathered.pods)
    if pods > FEW_PODS:
        return None, False
    must = sum(1 << k for k in range(pods) if one.gathered.forced[k])
    problem = Problem(inquiry, array("i", [row]) * ((1 << pods) - 1), by_links=False)
    for i in range(len(problem.rows)):
        problem.only(i, i + 1, must)
    sets = problem.solve(every=True)
    for eviction in sorted(sets, key=lambda one: (one.cost, len(one.pods))):
        if inquiry.ends and time.thread_time_ns() > inquiry.ends:
            return None, False
        if _suffices(inquiry, eviction):
            return eviction, problem.proved
    return None, problem.proved


def _suffices(inquiry: Inquiry, eviction: Eviction) -> bool:
    """Whether our own filter would pass the pod, before the pods that are ending have gone, and after."""
    gone = {one.uid for one in eviction.pods}
    ways = [gone]
    if inquiry.request.links == "required":
        there = inquiry.decider.cluster.pods_on(eviction.node)
        later = gone.union(pod.uid for pod in there if ends(pod, inquiry.wall))
        ways += [later] if later != gone else []
    return all(fits_without(inquiry.decider, inquiry.request, eviction.row, way, inquiry.now) for way in ways)


def _one_each(evictions: Sequence[Eviction]) -> list[Eviction]:
    """The first of each node: where positions are unknown a node is searched in several cases."""
    first: dict[int, Eviction] = {}
    for one in evictions:
        first.setdefault(one.row, one)
    return list(first.values())


def fits_without(decider: Decider, request: PodRequest, row: int, uids: set[str], now: float) -> bool:
    """Whether our own filter would pass the pod on the node, were these pods gone. Claims of the caller are dropped for
    it and made anew."""
    cluster = decider.cluster
    cluster.tables.nodes.drop_claims()
    with cluster.without(uids, cluster.names[row]):
        decider.claim(request, now)
        return not decider.policy.judge(cluster.tables, request, array("i", [row]))[0]


def amounts_short(cluster: ClusterView, request: PodRequest, row: int) -> tuple[int, ...]:
    """The resources (by index) of which too little is free on the node, claims taken."""
    columns = zip(request.amounts, cluster.tables.nodes.free_of(row), strict=True)
    return tuple(r for r, (wanted, free) in enumerate(columns) if wanted and wanted > free)
