"""One pod: its verdict, the nodes by reason, the terms of the score, its ways out, its latest decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from extender.ask.explain import Explainer
from extender.ask.judge import Ranked
from extender.cluster.view import ClusterView
from extender.decide.decisions import Decisions
from extender.objects.records import PodRecord
from extender.web.page.history import entry, of_pod

SHOWN: Final = 10
"""Decisions about the pod."""
JSON = dict[str, Any]


def pod_view(explainer: Explainer, pod: PodRecord, recorded: Decisions, cluster: ClusterView) -> JSON:
    """As /debug/explain, with `nodes_by_reason`: the first nodes of each reason, `scores`: the best two nodes by term,
    and `evictions`: each plan that is known, by cost term."""
    shown = explainer.explain(pod)
    about = of_pod(list(recorded.latest()), pod)
    decisions = [entry(decision, cluster) for decision in islice(about, SHOWN)]
    answer = shown.as_json()
    asked = next((decision for decision in decisions if decision["verb"] == "preempt" and decision["cost"]), None)
    return answer | {
        "gpus_asked": dict(pod.gpus),
        "nodes_by_reason": {key: list(names) for key, names in sorted(shown.rejected.items())},
        "scores": [_score(ranked) for ranked in shown.best],
        "evictions": [*_ways(answer["ways_out"]), *_plans(asked)],
        "decisions": decisions,
    }


def _score(best: Ranked) -> JSON:
    terms = [{"term": name, "points": round(points, 6)} for name, points in best.terms.items()]
    return {"node": best.node, "points": round(best.score, 6), "terms": terms}


def _ways(ways: Sequence[Mapping[str, Any]]) -> list[JSON]:
    """The evictions among the ways out."""
    return [{"what": way["change"], "cost": way["cost"]} for way in ways if way["kind"] == "evict" and way["cost"]]


def _plans(asked: Mapping[str, Any] | None) -> list[JSON]:
    """What the latest preempt call answered, and its runner-up."""
    if asked is None:
        return []
    plans = [{"what": f"answered: evict {_names(asked['victims'])} on {asked['node']}", "cost": asked["cost"]}]
    second = (asked["certificate"] or {}).get("runner_up")
    if second:
        text = f"runner-up: evict {_names(second['victims'])} on {second['node']}"
        plans.append({"what": text, "cost": second["cost"]})
    return plans


def _names(victims: Sequence[Mapping[str, Any] | str]) -> str:
    return ", ".join(
        victim if isinstance(victim, str) else f"{victim['namespace']}/{victim['name']}" for victim in victims
    )
