"""What was decided lately: the timeline of decisions, and the preemptions with their cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from extender.ask.pending import saves_until
from extender.cluster.cluster import ClusterView
from extender.decide.decisions import VERBS, Decision
from extender.queue.report import first_names
from extender.reservations.reservations import Reservation
from extender.web.node_pages import one_of
from extender.web.node_pictures import before_and_after, victims
from extender.web.pages import JSON, Content, Query

MOST: Final = 200
"""Decisions that a view shows."""
DRAWN: Final = 10
"""Preemptions that are drawn."""
NAMED: Final = 3
"""Victims that the words of a plan name."""


def entry(decision: Decision, cluster: ClusterView) -> JSON:
    """One decision in a line; `node`: of bind and preempt the answered one, else the best one. Its nodes are in
    /debug/decisions."""
    request, detail, best = decision.request, decision.detail, decision.scored.best
    node = detail.get("node") or (cluster.rows.name_at(best[0], decision.generation) if best else None)
    return {
        "at": round(decision.at, 3),
        "verb": decision.verb,
        "pod": f"{request.namespace}/{request.name}",
        "result": decision.result,
        "error": decision.error or None,
        "candidates": decision.candidates,
        "feasible": decision.feasible,
        "answered": decision.answered,
        "milliseconds": round(sum(decision.stages_us.values()) / 1e3, 3),
        "node": node,
        **{key: detail.get(key) for key in ("victims", "cost", "certificate", "gang")},
    }


def of_pod(decisions: Iterable[Decision], uid: str) -> Iterator[Decision]:
    """Those about one pod, or with it as a victim, in their order."""
    return (decision for decision in decisions if decision.request.uid == uid or decision.evicts(uid))


def decisions_view(content: Content, query: Query) -> JSON:
    """`?verb=`: of one verb. The latest decisions, newest first. BadRequest."""
    verb = one_of(query, "verb", VERBS) if query.get("verb") else ""
    return {"verb": verb, **_latest(content, "decisions", lambda decision: verb in ("", decision.verb))}


def plans(preemption: Mapping[str, Any]) -> list[JSON]:
    """What was answered, and its runner-up where there is one: `what` in words, and the `cost` by term. `preemption`:
    as `entry` has it, with a cost."""
    first = " once it has saved its work" if preemption["result"] == "asking" else ""
    runner_up = (preemption["certificate"] or {}).get("runner_up")
    known = [(preemption, "chosen", first), (runner_up, "runner-up", "")]
    return [
        {"what": f"{what}: evict {_names(plan['victims'])}{_where(plan)}{saved}", "cost": plan["cost"]}
        for plan, what, saved in known
        if plan and plan["cost"]
    ]


def _where(plan: Mapping[str, Any]) -> str:
    domain = plan.get("domain")
    place = plan.get("node") or (f"{domain['level']} {domain['value']}" if domain else "")
    return f" on {place}" if place else ""


def _names(stated: Sequence[Mapping[str, Any] | str]) -> str:
    names = [pod if isinstance(pod, str) else f"{pod['namespace']}/{pod['name']}" for pod in stated]
    return first_names(names, NAMED)


def preemptions_view(content: Content, query: Query) -> JSON:
    """The latest answers that evict pods, newest first, each with its `plans`, the first with `pictures` of the node
    before and after; then the reservations that stand, and whose pods ignore requests to save."""
    verbs = content.verbs
    now, wall = content.times.monotonic(), content.times.wall()
    standing = islice(verbs.reservations.current(now), MOST)
    latest = _latest(content, "preemptions", lambda decision: bool(decision.detail.get("victims")))
    for place, preemption in enumerate(latest["preemptions"]):
        preemption["plans"] = plans(preemption) if preemption["cost"] else []
        preemption["pictures"] = _pictures(content, preemption) if place < DRAWN else []
    return {
        **latest,
        "reservations": [
            _reservation(reservation, verbs.cluster)
            | {"saving_until": saves_until(verbs.cluster, reservation, now, wall)}
            for reservation in standing
        ],
        **content.explainer.ignoring(),
    }


def _pictures(content: Content, preemption: Mapping[str, Any]) -> list[JSON]:
    """Its node before and after; none where the victims are on several nodes, or their names are not kept."""
    evicted = victims(preemption["victims"])
    if not preemption["node"] or not evicted:
        return []
    pod = content.verbs.cluster.pod(*preemption["pod"].split("/"))
    waits = pod is not None and not pod.node and not pod.finished
    uids = {victim.uid for victim in evicted}
    gpus = content.explainer.gpus_after(pod, preemption["node"], uids) if pod is not None and waits else ()
    return before_and_after(content, preemption["node"], evicted, {preemption["pod"]: gpus})


def _latest(content: Content, name: str, which: Callable[[Decision], bool]) -> JSON:
    """The first MOST of those, and how many are left out."""
    chosen = list(filter(which, content.verbs.decisions.latest()))
    entries = [entry(decision, content.verbs.cluster) for decision in chosen[:MOST]]
    return {name: entries, f"{name}_left_out": max(0, len(chosen) - MOST)}


def _reservation(reservation: Reservation, cluster: ClusterView) -> JSON:
    remaining = [pod for uid in reservation.victims if (pod := cluster.pods.get(uid)) is not None]
    return {
        "id": reservation.id,
        "pod": reservation.pod or None,
        "node": reservation.node,
        "priority": reservation.priority,
        "victims": len(reservation.victims),
        "victims_left": [f"{pod.namespace}/{pod.name}" for pod in remaining],
    }
