"""The cheapest eviction of running pods. A smaller one costs less, by the cost terms of the settings in their order."""

from __future__ import annotations

from array import array
from typing import Any, Final

from extender.ask.judge import Judge
from extender.ask.nodes import JudgedNodes
from extender.ask.ways import Way
from extender.decide.decisions import LINKS_ONLY
from extender.preemption import certificate
from extender.preemption.search import Eviction, Preemptor, SearchResult
from extender.queue.report import first_names

NAMED: Final = 3
"""Victims that the text names."""


def searched(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> SearchResult:
    """The eviction that preempt would find over all nodes that admit the pod; time does not end the search."""
    with judge.claims.of(asked.request, asked.now):
        return judge.search.find(asked, judge.rows(nodes.open), limited=False)


def above_ceiling(judge: Judge, search: SearchResult) -> str:
    """What the cheapest eviction would cost where every one is above the ceiling; "" else."""
    if search.above is None or search.ceiling is None:
        return ""
    return search.ceiling.above(judge.policy, search.above.cost)


def way(judge: Judge, asked: Preemptor, nodes: JudgedNodes, search: SearchResult) -> Way | None:
    """The way out by the eviction that was found; None: there is none, or the pod may not preempt. To wait is enough
    where all victims are terminating."""
    best = search.best
    if best is None or asked.request.never or all(victim.terminating for victim in best.pods):
        return None
    return _way(judge, asked, nodes, best, proved=search.proved) if _stands(judge, asked, best) else None


def _stands(judge: Judge, asked: Preemptor, best: Eviction) -> bool:
    """Whether our own filter passes the pod without the victims, CPU, memory and other resources looked at."""
    gone = {pod.uid for pod in best.pods}
    with judge.claims.of(asked.request, asked.now), judge.cluster.without(gone, best.node):
        codes = judge.policy.judge(judge.cluster.tables, asked.request, array("i", [best.row]))
        return not codes[0] and not judge.short(asked, best.row)


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
