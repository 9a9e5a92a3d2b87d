"""The cheapest eviction of running pods. A smaller one costs less, by the cost terms of the settings in their order."""

from __future__ import annotations

from array import array
from heapq import nsmallest
from operator import itemgetter
from typing import Any, Final

from ext_core import gather
from extender.ask.judge import Judge, blocks
from extender.ask.nodes import JudgedNodes
from extender.ask.ways.machines import some_linked
from extender.ask.ways.way import Way
from extender.decide.decisions import LINKS_ONLY
from extender.preemption import certificate
from extender.preemption.candidates import Eviction, Preemptor
from extender.queue.report import first_names

CHUNK: Final = 128
"""Nodes that one search looks at."""
NAMED: Final = 3
"""Victims that the text names."""
Bound = tuple[tuple[int, ...], str]
"""What an eviction on a node costs at least, and the node."""


def evict(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> tuple[Way | None, str]:
    """(the eviction that preempt would find over all nodes that admit the pod, None where there is none or the pod may
    not preempt; what it would cost, where every eviction is above the ceiling, else "")."""
    if asked.request.never:
        return None, ""
    best: Eviction | None = None
    above: tuple[tuple[tuple[int, ...], str], str] | None = None
    proved = True
    bounds = _bounds(judge, asked, nodes.open)
    first = nsmallest(CHUNK, bounds)
    others = sorted(set(bounds).difference(first), key=itemgetter(1))
    for some in (first, *(others[at : at + CHUNK] for at in range(0, len(others), CHUNK))):
        names = sorted([name for cost, name in some if best is None or (cost, name) < (best.cost, best.node)])
        if not names:
            continue
        with judge.claims.of(asked.request, asked.now):
            result = judge.search.find(asked, judge.rows(names), limited=False)
        proved = proved and result.proved
        eviction, other = result.best, result.above
        if other is not None and result.ceiling is not None and (above is None or (other.cost, other.node) < above[0]):
            above = (other.cost, other.node), result.ceiling.above(judge.policy, other.cost)
        if eviction is not None and (best is None or (eviction.cost, eviction.node) < (best.cost, best.node)):
            best = eviction
    if best is None:
        return None, "" if above is None else above[1]
    return found_way(judge, asked, nodes, best, proved=proved), ""


def _linkable(judge: Judge, asked: Preemptor, rows: array[int]) -> array[int]:
    """The rows where some free GPUs would be certain to be linked, if the pod requires that."""
    if asked.request.links != "required" or asked.request.wanted < 2:
        return rows
    kind_of, kinds = gather.graphs(judge.cluster.tables.nodes, rows)
    linked = [shape > 0 and some_linked(judge, asked, shape, healthy) for shape, healthy, _ in kinds]
    return array("i", [row for row, kind in zip(rows, kind_of, strict=True) if linked[kind]])


def _bounds(judge: Judge, asked: Preemptor, names: list[str]) -> list[Bound]:
    """Of the nodes where an eviction may help. What is found on a node does not come before its bound: where the best
    one known comes before that, the node is not searched."""
    bounds: list[Bound] = []
    for block in blocks(names):
        rows = _linkable(judge, asked, judge.rows(block))
        with judge.claims.of(asked.request, asked.now):
            costs = judge.search.bounds(asked, rows)
        row_costs = zip(rows, costs, strict=True)
        bounds += [(cost, judge.cluster.names[row]) for row, cost in row_costs if cost is not None]
    return bounds


def found_way(judge: Judge, asked: Preemptor, nodes: JudgedNodes, best: Eviction, *, proved: bool) -> Way | None:
    """The way out by an eviction that was found, where it stands by the tables as they are now. To wait is enough where
    all victims are terminating."""
    if all(victim.terminating for victim in best.pods):
        return None
    return _way(judge, asked, nodes, best, proved=proved) if _stands(judge, asked, best) else None


def _stands(judge: Judge, asked: Preemptor, best: Eviction) -> bool:
    """Whether our own filter passes the pod without the victims, by the tables as they are now."""
    cluster, row = judge.cluster, judge.cluster.row(best.node)
    if row < 0 or any(cluster.pods.get(pod.uid) is not pod for pod in best.pods):
        return False
    gone = {pod.uid for pod in best.pods}
    with judge.claims.of(asked.request, asked.now):
        if not judge.search.fits_without(asked.request, row, gone):
            return False
        with cluster.without(gone, best.node):
            return not judge.short(asked, row)


def _way(judge: Judge, asked: Preemptor, nodes: JudgedNodes, best: Eviction, *, proved: bool) -> Way:
    cluster, settings = judge.cluster, judge.cluster.settings
    victims = certificate.important(best.pods)
    cost = certificate.cost_of(judge.policy, best)
    names = [f"{pod.namespace}/{pod.name}" for pod in victims]
    needs: tuple[str, ...] = ()
    if asked.pod.gated:
        needs = ("eviction-by-hand",)  # neither kube-scheduler nor the queue evicts for a pod behind a gate
    elif (
        LINKS_ONLY[nodes.codes[best.node]] and not settings.evictable_as_failed_nodes and not settings.evictions.enabled
    ):
        needs = ("evictions.enabled",)
    return Way(
        "evict",
        f"evict {first_names(names, NAMED)} on {best.node}{certificate.breaks(cluster, victims)}",
        {"node": best.node, "victims": [certificate.victim(cluster, pod) for pod in victims], "proved": proved},
        cost,
        tuple(map(float, best.cost)),
        needs,
    )


def work_lost(cost: Any) -> float | None:
    """GPU-seconds of a cost; None where it does not count them."""
    return next((term["value"] for term in cost or () if term["term"] == "work_lost_gpu_seconds"), None)
