"""One pod: its verdict, the nodes by reason, the terms of the score, its ways out, its latest decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from extender.ask.judge import Ranked
from extender.ask.pending import SAVING
from extender.ask.text import LINKED, named_gpus, seconds
from extender.decide.decisions import Decision
from extender.errors import NotFound
from extender.objects.records import PodRecord
from extender.objects.save_request import requested
from extender.web import decisions_page
from extender.web.decisions_page import about_pod, decision_line, preemption_plans
from extender.web.node_pages import Victim, before_and_after, picture, unlinked, victims_of
from extender.web.pages import JSON, Content, Query, pod_of

SHOWN: Final = 10
"""Decisions about the pod, in its view."""
SHOWN_DECISIONS: Final = 5
"""On /debug/explain, where the query states no other number."""
OWN: Final = ("apiVersion", "kind", "pod", "verdict", "node", "gpus", "how", "funnel", "reasons", "nearest", "first",
              "second", "difference", "devices", "evicted", "cost_now", "spared", "not_checked")  # fmt: skip
"""Fields of an explanation that name no other pod, but for the preemptor: an Event on the victim names it, too."""
NOTHING: Final[JSON] = {
    "verdict": "", "sentence": "", "because": "", "why": None, "node": None, "gpus": None, "how": None, "funnel": [],
    "reasons": {}, "nearest": None, "ways_out": [], "first": None, "second": None, "difference": [], "queue": None,
    "devices": None, "evicted": None, "preemption": None, "evictable_by": None, "cost_now": None, "spared": None,
    "not_checked": [],
    "nodes_by_reason": {}, "scores": [], "evictions": [], "preemptor": None,
    "save_request": None, "requires": [],
}  # fmt: skip
"""The fields of the view of a pod of which nothing but records is known."""
LEFT_OUT: Final = {
    "code": "left-out",
    "message": "sentence, ways_out, queue and decisions may name pods of other namespaces; they need the right to list "
    "pods in all namespaces",
}


def page(content: Content, query: Query, own: bool) -> JSON:
    """/debug/explain. `?pod=NAMESPACE/NAME`; `?most=`: how many decisions; `?nodes=`: how many nodes of each.
    `own`: for a reader that may list the pods of this pod's namespace alone. BadRequest, NotFound."""
    name, shown = pod_of(query), decisions_page.asked(query, SHOWN_DECISIONS)
    answer = content.explainer.explain(content.explainer.pod(*name)).as_json()
    if own:
        return _own(answer)
    return answer | decisions_page.fields(content.verbs.decisions.latest(), name, *shown, content.verbs.cluster)


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
    """`?pod=NAMESPACE/NAME`: which. As /debug/explain, with `because`: why the best node is before the second,
    `drawings`: nodes to look at, `nodes_by_reason`: the first nodes of each reason, `scores`: the best two nodes by
    term, `evictions`: each plan that is known, by cost term, `preemptor`: the pod that they are for, where they are of
    a decision, `requires`: what decides beside amounts, and `save_request`: what the pod is asked, which the sentence
    leaves out. A pod that has ended has the verdict "ended", while the records of this server name it. BadRequest,
    NotFound."""
    explainer, verbs = content.explainer, content.verbs
    name = pod_of(query)
    try:
        pod = explainer.pod(*name)
    except NotFound as error:
        return _ended(content, *name, error)
    shown = explainer.explain(pod)
    latest = [
        decision_line(decision, verbs.cluster)
        for decision in islice(about_pod(verbs.decisions.latest(), pod.uid), SHOWN)
    ]
    answer = shown.as_json()
    asked = next((decision for decision in latest if decision["verb"] == "preempt" and decision["cost"]), None)
    return answer | {
        "sentence": shown.sentence,  # without `asked`, which `save_request` states
        "because": explainer.because(shown),
        "gpus_asked": dict(pod.gpus),
        "requires": list(_required(content, pod)),
        "drawings": _drawings(content, pod, answer),
        "nodes_by_reason": {key: list(names) for key, names in sorted(shown.rejected.items())},
        "scores": [_score(ranked) for ranked in shown.best],
        "evictions": preemption_plans(asked) if asked else _ways(answer["ways_out"]),
        "preemptor": asked["pod"] if asked else None,
        "save_request": _save_request(content, pod),
        "decisions": latest,
    }


def _required(content: Content, pod: PodRecord) -> Iterator[str]:
    """What it requires beside amounts, in words."""
    request = content.verbs.claims.request(pod, content.clock.monotonic())
    if request.wanted > 1 and request.links == "required":
        yield "a linked set"
    if request.wanted and request.nics == "required":
        yield "a NIC for each GPU"
    yield from (f"{key}={value}" for key, value in pod.node_selector)
    if pod.node_terms is not None:
        yield "its node affinity"


def _save_request(content: Content, pod: PodRecord) -> JSON | None:
    """The request to save its work that stands on the pod. `by_pod`: whether a pod has that name; `answer`: saved,
    exited, or None where it has not answered yet."""
    request = requested(pod)
    if request is None:
        return None
    namespace, _, name = request.by.partition("/")
    by_pod = content.verbs.cluster.pod(namespace, name) is not None
    answer = request.answer(pod) or None
    return {"by": request.by, "by_pod": by_pod, "at": request.at, "until": request.until, "answer": answer}


def _drawings(content: Content, pod: PodRecord, answer: Mapping[str, Any]) -> list[JSON]:
    """Nodes to look at, each with `what` it is, `text`, and `pictures` (`node_pages`): where the pod is or would be;
    else the pods that are being evicted for it, why free GPUs are not enough, and the first eviction among its ways
    out."""
    node, gpus = answer["node"], answer["gpus"] or ()
    if node:
        what = "placed" if answer["verdict"] in ("runs", "evicted") else "planned"
        return _drawn(what, node, [picture(content, node, "", gpus)])
    drawings = list[JSON]()
    ways = {way["kind"]: way for way in reversed(answer["ways_out"])}
    waited = "saving" if answer["why"] and answer["why"]["reason"] == SAVING else "releasing"
    for kind, what in (("wait", waited), ("evict", "eviction")):
        spec = ways[kind]["spec"] if kind in ways else {}
        if "node" not in spec:
            continue
        evicted = victims_of(spec["victims"]) if kind == "evict" else _awaited(spec["for"])
        if evicted:
            after = content.explainer.gpus_after(pod, spec["node"], {victim.uid for victim in evicted})
            drawings += _drawn(
                what, spec["node"], before_and_after(content, spec["node"], evicted, {_full(pod): after})
            )
            break
    miss = answer["nearest"]
    if miss is not None and answer["verdict"] != "never":
        shown = unlinked(content, miss["node"])
        text = "" if shown is None else _not_linked(shown, miss)
        if text:
            drawings += _drawn("unlinked", miss["node"], [shown], text)
            if drawings[0]["what"] != waited:  # what happens comes first
                drawings.reverse()
        elif not drawings:
            drawings = _drawn("nearest", miss["node"], [picture(content, miss["node"], "")])
    return drawings


def _drawn(what: str, node: str, pictures: Sequence[JSON | None], text: str = "") -> list[JSON]:
    shown = [shown for shown in pictures if shown is not None]
    return [{"what": what, "node": node, "text": text, "pictures": shown}] if shown else []


def _awaited(awaited: Sequence[Mapping[str, Any]]) -> list[Victim]:
    return [Victim(pod["pod"], pod["uid"], ()) for pod in awaited if pod["what"] == "victim"]


def _not_linked(shown: JSON, miss: Mapping[str, Any]) -> str:
    """Why the free GPUs of the drawn node are not enough, where links are what is missing; else ""."""
    linked = next((part for part in miss["missing"] if part["what"] == LINKED), None)
    free = [gpu["index"] for gpu in shown["node"]["gpus"] if gpu["state"] == "free"]
    if linked is None or not free:
        return ""
    most = f"at most {linked['have']} of them are linked" if linked["have"] > 1 else "no two of them are linked"
    are = "is" if len(free) == 1 else "are"
    return f"{named_gpus(free)} {are} free, but {most}; the pod requires a linked set of {linked['need']} GPUs."


def _full(pod: PodRecord) -> str:
    return f"{pod.namespace}/{pod.name}"


# -- a pod that has ended


def _ended(content: Content, namespace: str, name: str, error: NotFound) -> JSON:
    """What the records name of a pod that has ended. NotFound: nothing."""
    verbs = content.verbs
    about = [decision for decision in verbs.decisions.latest() if decision.concerns(namespace, name)]
    pod = verbs.cluster.pod(namespace, name)
    if pod is not None:
        gpus, uid, priority = dict(pod.gpus), pod.uid, pod.priority
    elif about:
        gpus, uid, priority = _recorded(about[0], namespace, name, verbs.cluster.resources)
        about = list(about_pod(about, uid))
    else:
        raise error
    bound = next((decision for decision in about if decision.verb == "bind" and decision.result == "bound"), None)
    node, held = (bound.detail["node"], bound.detail.get("gpus") or []) if bound is not None else (None, None)
    known = node in verbs.cluster.nodes
    phase = f" ({pod.phase})" if pod is not None else ": the cluster no longer has it"
    ago = "" if bound is None else f"; it was bound to {node} {seconds(content.clock.wall() - bound.at)} ago"
    return NOTHING | {
        "pod": {"namespace": namespace, "name": name, "uid": uid, "priority": priority},
        "verdict": "ended",
        "sentence": f"ended{phase}{ago}",
        "node": node if known else None,
        "gpus": held or None,
        "gpus_asked": gpus,
        "drawings": _drawn("was", node, [picture(content, node, "", held or ())]) if known and node else [],
        "decisions": [decision_line(decision, verbs.cluster) for decision in about[:SHOWN]],
    }


def _recorded(
    decision: Decision, namespace: str, name: str, resources: Sequence[str]
) -> tuple[dict[str, int], str, int]:
    """(the GPUs that the pod asked for, its uid, its priority), of a decision about it or with it as a victim."""
    request = decision.request
    if (request.namespace, request.name) == (namespace, name):
        return {resources[resource]: number for resource, number in request.gpus}, request.uid, request.priority
    victim = next(
        pod
        for pod in decision.detail["victims"]
        if not isinstance(pod, str) and (pod["namespace"], pod["name"]) == (namespace, name)
    )
    return {"GPUs": victim["gpu_count"]}, victim["uid"], victim["priority"]


# -- parts of the view


def _score(best: Ranked) -> JSON:
    terms = [{"term": name, "points": round(points, 6)} for name, points in best.terms.items()]
    return {"node": best.node, "points": round(best.score, 6), "terms": terms}


def _ways(ways: Sequence[Mapping[str, Any]]) -> list[JSON]:
    """The evictions among the ways out."""
    return [{"what": way["change"], "cost": way["cost"]} for way in ways if way["kind"] == "evict" and way["cost"]]
