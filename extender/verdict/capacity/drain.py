"""The smallest drain that makes nodes whole: which pods would have to move where. It is a plan; nothing is evicted.

A plan empties some nodes of one GPU model of all pods with GPUs, so that each of them finds a place at once on nodes
that are not whole now. A smaller one loses less work (GPU-seconds, as the cost terms count it: all running members of a
gang that breaks lose theirs), then moves fewer pods, then fewer GPUs, then has the first nodes by name. A plan violates
no disruption budget, and moves no pod that is protected from eviction or whose gang requires a domain.

The cost of a set of nodes is never below that of a part of it. So the sets are taken up by cost, the least first, and
the first that can be carried out is the smallest.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple

from ext_core import survey
from extender.cluster.slices import finish
from extender.cluster.view import ClusterView
from extender.objects.progress import lost, saved_ms, start_ms
from extender.objects.queueing import domain_of
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.queue.placing.placement import Choice, JointPlacement, NoPlace, Placed, not_modelled
from extender.reservations.claims import of_others
from extender.verdict.capacity.machines import Look, probe, within
from extender.verdict.judge import Judge, blocks
from extender.verdict.ways.way import term

MOST_NODES: Final = 4
"""Nodes that one plan empties."""
MOST_CANDIDATES: Final = 32
"""Nodes with the lowest costs that are combined."""
MOST_SETS: Final = 512
"""Sets of nodes that are looked at."""
MOST_PLACED: Final = 24
"""Sets of which the pods are placed."""
LOOKED_AT: Final = 8
"""Sets of one slice."""
EMPTIED: Final = 8
"""Nodes that one slice judges without their pods."""


class Cost(NamedTuple):
    """Less is better, in this order. `work_lost`: GPU-seconds; `pods`, `gpus`: that move."""

    work_lost: int
    pods: int
    gpus: int


_Taken = tuple[Cost, int, tuple[int, ...], Cost | None]
"""A set of nodes: its cost, minus how many there are, their places; and the cost of the set without the last, where the
next node after that one is not taken up yet."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`nodes` become whole, in this order; `moves`: (pod, node where it was found to fit), in order; `proved`: no plan
    for so many nodes of the model is smaller."""

    model: str
    nodes: tuple[str, ...]
    moves: tuple[tuple[PodRecord, str], ...]
    cost: Cost
    proved: bool

    def as_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "model": self.model,
            "whole_nodes": len(self.nodes),
            "nodes": list(self.nodes),
            "steps": [
                {"pod": _name(pod), "uid": pod.uid, "gpu_count": _gpus(pod), "from": pod.node, "to": node}
                for pod, node in self.moves
            ],
            "cost": [
                term("work_lost_gpu_seconds", self.cost.work_lost, "GPU-seconds"),
                term("pods", self.cost.pods, "pods"),
                term("gpus_moved", self.cost.gpus, "GPUs"),
            ],
            "proved": self.proved,
            "unmanaged": [_name(pod) for pod, _ in self.moves if pod.owner is None],
            "not_modelled": sorted({what for pod, _ in self.moves for what in not_modelled(pod)}),
        }


def drains(look: Look, model: str, counts: Iterable[int]) -> list[Plan]:
    """The smallest plans that make so many nodes of the model whole, for each of `counts`; those that were found."""
    there, beyond = _candidates(look, model)
    found = []
    for wanted in counts:
        if wanted > len(there):
            continue
        plan = _smallest(_Search(look, there), model, wanted, beyond)
        if plan is not None:
            found.append(plan)
    return found


def _smallest(search: _Search, model: str, wanted: int, beyond: Cost | None) -> Plan | None:
    """`beyond`: the lowest cost of the nodes that the search does not have."""
    placed = 0
    for number, (cost, names) in enumerate(search.sets(wanted)):
        if number >= MOST_SETS or placed >= MOST_PLACED:
            return None
        if len(names) < wanted:
            continue
        placed += 1
        nodes = search.place(names)
        if nodes is not None:
            proved = search.proved and (beyond is None or cost <= beyond)
            return Plan(model, names, tuple((pod, nodes[pod.uid]) for pod in search.moved(names)), cost, proved)
    return None


def _candidates(look: Look, model: str) -> tuple[list[tuple[Cost, str]], Cost | None]:
    """(the nodes of the model that could become whole, the cheapest first, MOST_CANDIDATES at most; the lowest cost of
    those that were left out, None where there are none)."""
    costs: list[tuple[tuple[int, int, int], str]] = []
    for block in blocks([name for name in look.fleet.open(model) if name not in look.whole]):
        costs += _costs(look.judge, block)
    heapify(costs)  # the first few are enough, mostly
    found: list[tuple[Cost, str]] = []
    while costs:
        some = [heappop(costs) for _ in range(min(EMPTIED, len(costs)))]
        whole = _may_be_emptied(look, model, [name for _, name in some])
        for cost, name in some:
            if name not in whole:
                continue
            if len(found) == MOST_CANDIDATES:
                return found, Cost(*cost)
            found.append((Cost(*cost), name))
    return found, None


def _costs(judge: Judge, some: Sequence[str]) -> list[tuple[tuple[int, int, int], str]]:
    """What it costs to move the pods with GPUs of each node, as `cost_of`; of the nodes that have some."""
    cluster, rows = judge.cluster, judge.rows(some)
    names = [cluster.names[row] for row in rows]
    work, pods, gpus, gangs = survey.holders(cluster.tables.pods, rows, cluster.tables.pods.now)
    if any(gangs):
        for at, name in enumerate(names):
            if gangs[at]:
                work[at], pods[at], gpus[at] = cost_of(judge, _holders(judge, name))
    return [(cost, name) for cost, name in zip(zip(work, pods, gpus, strict=True), names, strict=True) if cost[1]]


def _may_be_emptied(look: Look, model: str, names: Sequence[str]) -> set[str]:
    """The nodes where the pods that hold GPUs may all be evicted and start elsewhere, no other pod is on its way there,
    and a pod for all of its GPUs fits without them."""
    judge, resource = look.judge, look.fleet.resource[model]
    cluster, now_ms = judge.cluster, judge.cluster.tables.pods.now
    by_size: dict[int, list[str]] = {}
    for name in names:
        node = cluster.nodes.get(name)
        if node is None or not (gpus := node.gpus.get(resource, 0)):
            continue
        held = _holders(judge, name)
        if not any(
            pod.daemon or pod.mirror or cluster.limits.protected_ms(pod) > now_ms or _is_tied(cluster, pod)
            for pod in held
        ):
            by_size.setdefault(gpus, []).append(name)
    found: set[str] = set()
    for gpus, there in by_size.items():
        _, request = probe(judge, resource, gpus)
        with within(look, request):
            found.update(name for name in there if _is_whole_without(judge, request, name))
    return found


def _is_tied(cluster: ClusterView, pod: PodRecord) -> bool:
    """Whether the pod's gang requires a domain: the queue starts it again beside the members that run, not anywhere."""
    domain = domain_of(pod)
    return domain is not None and domain.required and cluster.gangs.of(pod) is not None


def _is_whole_without(judge: Judge, request: PodRequest, name: str) -> bool:
    """Whether the pod fits without the node's pods that have GPUs; inside of its claims."""
    cluster, row = judge.cluster, judge.cluster.row(name)
    if row < 0:
        return False
    with cluster.without({pod.uid for pod in cluster.pods_on(name) if pod.gpus}, name):
        return not judge.policy.judge(cluster.tables, request, array("i", [row]))[0]


def _holders(judge: Judge, name: str) -> list[PodRecord]:
    """The pods that have to move: those with GPUs that do not end already."""
    return [pod for pod in judge.cluster.pods_on(name) if pod.gpus and not pod.terminating]


def cost_of(judge: Judge, pods: Sequence[PodRecord]) -> Cost:
    """What it costs to move these pods."""
    cluster = judge.cluster
    in_gangs = [(pod, gang) for pod in pods if (gang := cluster.gangs.of(pod)) is not None and gang.minimum]
    work = sum([_lost(cluster, pod) for pod in pods])
    if in_gangs:
        moved, own = Counter(gang.ref for _, gang in in_gangs), {pod.uid for pod in pods}
        broken = {
            one.uid: one
            for pod, gang in in_gangs
            if moved[gang.ref] > gang.allowance
            for one in cluster.gangs.running(pod)
        }
        work += sum(_lost(cluster, one) for uid, one in broken.items() if uid not in own)
    return Cost(work, len(pods), sum([_gpus(pod) for pod in pods]))


def _lost(cluster: ClusterView, pod: PodRecord) -> int:
    """GPU-seconds that an eviction of the pod loses now."""
    restart = cluster.limits.restart_seconds(pod)
    return lost(_gpus(pod), start_ms(pod), saved_ms(pod), restart, cluster.tables.pods.now)


class _Search:
    """The sets of nodes that could be emptied together. `proved`: of each set whose pods found no place it is known
    that there is none.

    The costs of nodes without pods of gangs add up. Of these only the next one is taken up behind a set, because the
    nodes are in the order of their costs; each node with a pod of a gang is."""

    def __init__(self, look: Look, there: Sequence[tuple[Cost, str]]) -> None:
        self._look, self._judge = look, look.judge
        self._names = [name for _, name in there]
        self._costs = [cost for cost, _ in there]
        gangs = look.judge.cluster.gangs
        tied = [any(gangs.of(pod) is not None for pod in _holders(look.judge, name)) for name in self._names]
        self._tied = [at for at, one in enumerate(tied) if one]
        self._free = [at for at, one in enumerate(tied) if not one]
        self._placement = JointPlacement(look.judge.cluster, look.judge.policy)
        self.proved = True

    def moved(self, names: Sequence[str]) -> list[PodRecord]:
        """The pods that these nodes have to lose, those of each node by size and name."""
        return [
            pod
            for name in names
            for pod in sorted(_holders(self._judge, name), key=lambda pod: (-_gpus(pod), _name(pod)))
        ]

    def sets(self, wanted: int) -> Iterator[tuple[Cost, tuple[str, ...]]]:
        """The sets of up to `wanted` nodes, the cheapest first; of equal ones the first by place."""
        heap: list[_Taken] = []
        self._behind(heap, Cost(0, 0, 0), ())
        while heap:
            cost, _, at, before = heappop(heap)
            yield cost, tuple([self._names[i] for i in at])
            if before is not None:
                self._next(heap, before, at[:-1], at[-1])
            if len(at) < wanted:
                self._behind(heap, cost, at)

    def _behind(self, heap: list[_Taken], cost: Cost, at: tuple[int, ...]) -> None:
        """The sets with one more node, behind those that they have. `cost`: of these."""
        last = at[-1] if at else -1
        self._next(heap, cost, at, last)
        for i in self._tied[bisect_right(self._tied, last) :]:
            more = (*at, i)
            heappush(heap, (self._cost(more), -len(more), more, None))

    def _next(self, heap: list[_Taken], cost: Cost, at: tuple[int, ...], last: int) -> None:
        """The set with one more node, the next behind `last` without a pod of a gang."""
        place = bisect_right(self._free, last)
        if place < len(self._free):
            more = (*at, self._free[place])
            heappush(heap, (_sum(cost, self._costs[more[-1]]), -len(more), more, cost))

    def _cost(self, at: tuple[int, ...]) -> Cost:
        """Of a set with a node of `_tied`."""
        tied = [i for i in at if i in self._tied]
        pods = self.moved([self._names[i] for i in tied])
        return reduce(_sum, (self._costs[i] for i in at if i not in self._tied), cost_of(self._judge, pods))

    def place(self, names: Sequence[str]) -> dict[str, str] | None:
        """Where the pods of these nodes find room, by uid; None where they do not, or budgets forbid it."""
        judge, look, pods = self._judge, self._look, self.moved(names)
        if not pods or not _allowed(judge, pods):
            return None
        cluster = judge.cluster
        closed = look.whole.union(names, look.fleet.closed)
        among = set(judge.rows([name for name in cluster.nodes if name not in closed]))
        requests = [judge.claims.alone(pod) for pod in pods]
        own = {pod.uid for pod in pods}
        found = finish(
            self._placement.steps(
                pods,
                requests,
                None,
                (),
                lambda _: of_others(judge.claims, requests[0], look.now, own),
                choice=Choice(among),
            )
        )
        if isinstance(found, NoPlace):
            self.proved = self.proved and found.proved
            return None
        assert isinstance(found, Placed)
        return {pod.uid: node for pod, node in zip(pods, found.nodes, strict=True)}


def _sum(one: Cost, other: Cost) -> Cost:
    return Cost(one.work_lost + other.work_lost, one.pods + other.pods, one.gpus + other.gpus)


def _allowed(judge: Judge, pods: Sequence[PodRecord]) -> bool:
    """Whether the disruption budgets allow that all these pods are evicted."""
    budgets = judge.cluster.budgets
    asked = Counter(key for pod in pods for key in budgets.of(pod))
    return all(count <= budgets.records[key].disruptions_allowed for key, count in asked.items())


def _gpus(pod: PodRecord) -> int:
    return sum([count for _, count in pod.gpus])


def _name(pod: PodRecord) -> str:
    return f"{pod.namespace}/{pod.name}"
