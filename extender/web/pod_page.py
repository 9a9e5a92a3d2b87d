"""One pod: its verdict, the nodes by reason, the terms of the score, its ways out, its latest decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

import orjson

from extender.ask.judge import Ranked
from extender.ask.nearest import LINKED
from extender.ask.text import ids
from extender.web import decisions_page
from extender.web.history import entry, of_pod
from extender.web.node_pages import drawing
from extender.web.pages import JSON, Content, Query, pod_of

SHOWN: Final = 10
"""Decisions about the pod, in its view."""
SHOWN_DECISIONS: Final = 5
"""On /debug/explain, where the query states no other number."""
OWN: Final = ("apiVersion", "kind", "pod", "verdict", "node", "gpus", "how", "funnel", "reasons", "nearest", "first",
              "second", "difference", "devices", "evicted", "cost_now", "not_checked")  # fmt: skip
"""Fields of an explanation that name no other pod, but for the preemptor: an Event on the victim names it, too."""
LEFT_OUT: Final = {
    "code": "left-out",
    "message": "sentence, ways_out, queue and decisions may name pods of other namespaces; they need the right to list "
    "pods in all namespaces",
}


def page(content: Content, query: Query, own: bool) -> Iterator[bytes]:
    """/debug/explain. `?pod=NAMESPACE/NAME`; `?most=`: how many decisions; `?nodes=`: how many nodes of each.
    `own`: for a reader that may list the pods of this pod's namespace alone. BadRequest, NotFound."""
    name, shown = pod_of(query), decisions_page.asked(query, SHOWN_DECISIONS)
    answer = content.explainer.explain(content.explainer.pod(*name)).as_json()
    if own:
        return iter((orjson.dumps(_own(answer)),))
    about = decisions_page.fields(content.verbs.decisions.latest(), name, *shown, content.verbs.cluster)
    return chain((orjson.dumps(answer)[:-1] + b",",), about, (b"}",))


def _own(answer: Mapping[str, Any]) -> JSON:
    """What of an explanation names no pod of another namespace."""
    classes = [dict(above, pods=None) for above in answer["evictable_by"] or ()]  # those that wait may be of others
    empty: JSON = {
        "sentence": "", "why": None, "ways_out": [], "queue": None, "decisions": [], "decisions_left_out": 0
    }  # fmt: skip
    return {
        **{field: answer[field] for field in OWN},
        **empty,
        "evictable_by": None if answer["evictable_by"] is None else classes,
        "preemption": None if answer["preemption"] is None else {**answer["preemption"], "lower": None},
        "warnings": [LEFT_OUT],
    }


# -- the view of the page


def pod_view(content: Content, query: Query) -> JSON:
    """`?pod=NAMESPACE/NAME`: which. As /debug/explain, with `shown_on`: the node of the verdict, `nodes_by_reason`: the
    first nodes of each reason, `scores`: the best two nodes by term, and `evictions`: each plan that is known, by cost
    term."""
    explainer, verbs = content.explainer, content.verbs
    pod = explainer.pod(*pod_of(query))
    shown = explainer.explain(pod)
    latest = [entry(decision, verbs.cluster) for decision in islice(of_pod(verbs.decisions.latest(), pod), SHOWN)]
    answer = shown.as_json()
    asked = next((decision for decision in latest if decision["verb"] == "preempt" and decision["cost"]), None)
    return answer | {
        "gpus_asked": dict(pod.gpus),
        "shown_on": _shown_on(content, answer),
        "nodes_by_reason": {key: list(names) for key, names in sorted(shown.rejected.items())},
        "scores": [_score(ranked) for ranked in shown.best],
        "evictions": [*_ways(answer["ways_out"]), *_plans(asked)],
        "decisions": latest,
    }


def _shown_on(content: Content, answer: Mapping[str, Any]) -> JSON | None:
    """The node where the pod is or would be, else that of the first eviction among its ways out, else the nearest: as
    `NodeMap` has it. `what`: which of these it is; `marks`: of each GPU "chosen", "victim" or None; `free_text`: why
    its free GPUs are not enough, None where links are not the reason."""
    eviction = next(
        (way["spec"] for way in answer["ways_out"] if way["kind"] == "evict" and "node" in way["spec"]), None
    )
    if answer["node"]:
        what, name = "placed" if answer["verdict"] in ("runs", "evicted") else "planned", answer["node"]
    elif eviction is not None:
        what, name = "eviction", eviction["node"]
    elif answer["nearest"] is not None and answer["verdict"] != "never":
        what, name = "nearest", answer["nearest"]["node"]
    else:
        return None
    drawn = drawing(content, name)
    if drawn is None:
        return None
    view, _ = drawn
    chosen = set(answer["gpus"] or ()) if what in ("placed", "planned") else set()
    victims = {_name(victim) for victim in eviction["victims"]} if what == "eviction" and eviction else set()

    def mark(gpu: Mapping[str, Any]) -> str | None:
        if gpu["index"] in chosen:
            return "chosen"
        return "victim" if any(pod["pod"] in victims for pod in gpu["pods"]) else None

    free = [gpu["index"] for gpu in view["gpus"] if gpu["state"] == "free"]
    return {
        "what": what,
        "node": view,
        "marks": [mark(gpu) for gpu in view["gpus"]],
        "free_text": _why_not_free(free, answer["nearest"], name),
    }


def _why_not_free(free: list[int], miss: Mapping[str, Any] | None, node: str) -> str | None:
    """Why the free GPUs of the drawn node are not enough, where links are what is missing."""
    if miss is None or miss["node"] != node:
        return None
    linked = next((part for part in miss["missing"] if part["what"] == LINKED), None)
    if linked is None or not free:
        return None
    return f"GPUs {ids(free)} are free. At most {linked['have']} of them are linked; the pod asks for {linked['need']}."


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
    return ", ".join(map(_name, victims))


def _name(victim: Mapping[str, Any] | str) -> str:
    return victim if isinstance(victim, str) else f"{victim['namespace']}/{victim['name']}"
