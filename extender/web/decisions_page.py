"""The latest decisions, newest first: /debug/decisions, and the views of decisions and of preemptions. Names and
sentences are put in when a page is asked for."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from ext_core import runs
from extender.ask.pending import saves_until
from extender.cluster.cluster import ClusterView
from extender.cluster.statements import gpus_of
from extender.decide.decisions import LEFT_OUT, VERBS, Decision
from extender.errors import BadRequest
from extender.policy.contracts import PodRequest
from extender.policy.reasons import NODE_FAILING, NODE_FAILING_NAMESPACE, REASONS, UNKNOWN_NODE, texts
from extender.policy.scorers import Price
from extender.queue.report import first_names
from extender.reservations.reservations import Reservation
from extender.web.node_pages import before_and_after, one_of, victims_of
from extender.web.pages import JSON, Content, Query, pod_of

DECISION_BYTES: Final = 32 << 20
"""Of one answer of /debug/decisions; what does not fit is left out, and counted."""
MOST_DECISIONS: Final = 1_000
MOST_NODES: Final = 20_000
SCOPES: Final = {NODE_FAILING.code: "all", NODE_FAILING_NAMESPACE.code: "namespace"}
"""For whose pods a failing node is rejected."""
GROUPS: Final = {0: 1, LEFT_OUT: 2}  # of codes, after the best few; the other codes are reasons
Shown: TypeAlias = "tuple[int, int, str, int, int]"  # group, place among the best few, name, row, code


def page(content: Content, query: Query) -> JSON:
    """`?pod=NAMESPACE/NAME`: of the latest those about this pod, or with it as a victim; `?most=`: how many decisions;
    `?nodes=`: how many nodes of each. At most DECISION_BYTES. BadRequest."""
    pod = pod_of(query) if "pod" in query else None
    shown = fields(content.verbs.decisions.latest(), pod, *asked(query), content.verbs.cluster)
    return {"apiVersion": "gpu-extender.io/v1", "kind": "DecisionList", "warnings": [], **shown}


def asked(query: Query, default: int = 20) -> tuple[int, int]:
    """How many decisions are shown, and how many nodes of each. BadRequest."""
    most, nodes = _number(query, "most", default), _number(query, "nodes", 100)
    return max(0, min(most, MOST_DECISIONS)), min(nodes, MOST_NODES)


def _number(query: Query, key: str, default: int) -> int:
    text = query.get(key, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise BadRequest("most and nodes are whole numbers", path=key)
    return int(text)


def fields(
    latest: Iterable[Decision], pod: tuple[str, str] | None, most: int, nodes: int, cluster: ClusterView
) -> JSON:
    """Two fields of an object: `decisions`, and `decisions_left_out`: how many of the most are not shown."""
    texts, written, left_out = list[orjson.Fragment](), 0, 0
    about = (decision for decision in latest if pod is None or decision.concerns(*pod))
    for decision in islice(about, most):
        if written >= DECISION_BYTES:
            left_out += 1
            continue
        text = _text(decision, cluster, decision.scored.stamp.weights, nodes)
        texts.append(orjson.Fragment(text))
        written += len(text)
    return {"decisions": texts, "decisions_left_out": left_out}


class _Node(NamedTuple):
    """One node of a decision."""

    name: str
    row: int
    code: int
    place: int
    """Among the best few; -1 = it is none of them."""


def _text(decision: Decision, cluster: ClusterView, weights: Mapping[str, float], most_nodes: int) -> bytes:
    """The JSON text of a decision for /debug/decisions. At most `most_nodes` nodes: the best few first, in order, then
    those that fit by name."""
    request, judged, scored = decision.request, decision.judged, decision.scored
    rows, codes = runs.unpack(decision.nodes)
    rank = {row: place for place, row in enumerate(scored.best)}
    shown = _shown(decision, rows, codes, cluster, rank)[:most_nodes]
    prices = [_price(row, price, decision, cluster) for row, price in zip(scored.best, scored.prices, strict=False)]
    tail = {
        "nodes_left_out": max(0, len(rows) + judged.unknown_count - most_nodes),
        **decision.detail,
        **({"price": prices} if prices else {}),
        "duration_us": {stage: round(spent, 1) for stage, spent in decision.stages_us.items()},
    }
    head = {
        "verb": decision.verb,
        "at": decision.at,
        "generation": decision.generation,
        "settings": scored.stamp.settings,
        "pod": _pod(request, cluster),
        "result": decision.result,
        "error": decision.error or None,
        "candidates": decision.candidates,
        "feasible": decision.feasible,
        "answered": decision.answered,
        "reasons": _reasons(decision, codes),
    }
    nodes = [
        _entry(_Node(name, row, code, rank.get(row, -1)), decision, cluster, weights) for _, _, name, row, code in shown
    ]
    return orjson.dumps({key: value for key, value in head.items() if key not in tail} | {"nodes": nodes} | tail)


def _shown(
    decision: Decision, rows: array[int], codes: array[int], cluster: ClusterView, rank: Mapping[int, int]
) -> list[Shown]:
    """The nodes in the order that they are shown in."""
    known: list[Shown] = [
        (0 if row in rank else GROUPS.get(code, 3), rank.get(row, 0), cluster.rows.name_at(row, decision.generation),
         row, code)
        for row, code in zip(rows, codes, strict=True)
    ]  # fmt: skip
    return sorted(known + [(3, 0, name, -1, UNKNOWN_NODE.code) for name in decision.judged.unknown])


def _reasons(decision: Decision, codes: array[int]) -> dict[str, int]:
    """How many nodes each rule rejected."""
    text = codes.tobytes()
    counts = {reason.key: 0 for reason in REASONS.values()}
    for code, reason in REASONS.items():
        counts[reason.key] += text.count(code)
    counts[UNKNOWN_NODE.key] += decision.judged.unknown_count
    return {key: count for key, count in sorted(counts.items()) if count}


def _price(row: int, price: Price, decision: Decision, cluster: ClusterView) -> dict[str, Any]:
    """What the pod cost on a node when it was decided."""
    slots = [{"type": name, "lost": lost, "cost": cost} for name, lost, cost in price.slots()]
    return {"node": cluster.rows.name_at(row, decision.generation), "cost": price.numbers[0], "slots": slots}


def _pod(request: PodRequest, cluster: ClusterView) -> dict[str, Any]:
    return {
        "namespace": request.namespace,
        "name": request.name,
        "uid": request.uid,
        "priority": request.priority,
        "gpus": {cluster.resources[r]: count for r, count in request.gpus},
        "links": request.links,
        "nics": request.ask.nics,
        "placement": request.placement,
        "siblings": len(request.siblings),  # on nodes, or answered by us; counted for placement spread only
        "group": {"placed": len(request.kin), "to_come": request.to_come} if request.to_come else None,
    }


def _entry(node: _Node, decision: Decision, cluster: ClusterView, weights: Mapping[str, float]) -> dict[str, Any]:
    """What is shown of a node."""
    name, row, code, place = node
    scored = decision.scored
    entry: dict[str, Any] = {"node": name}
    if code in REASONS:
        reason = REASONS[code]
        text = texts(cluster.settings.failing_nodes)[code]
        entry |= {"fits": False, "reason": reason.key, "class": reason.cls.value, "text": text}
        if code in SCOPES:
            entry["scope"] = SCOPES[code]
    else:
        entry["fits"] = True
        if decision.feasible:  # bind judges one node and scores none
            entry["answered"] = code != LEFT_OUT
        if place >= 0 and scored.values:
            entry["scores"] = {}
            for c, scorer in enumerate(scored.scorers, start=1):
                raw, weight = scored.column(c)[place], weights[scorer]
                entry["scores"][scorer] = {"raw": raw, "weight": weight, "weighted": raw * weight}
            entry["score"] = scored.column(0)[place]
        if place >= 0:
            entry["gpus"] = list(gpus_of(scored.gpus[place]))
        if _by_dra(cluster, name, row, decision.request):
            entry["served_by"] = "DRA"  # kube-scheduler allocates devices: `gpus` is what we expect at most
        if 0 <= place < len(scored.points):
            entry["points"] = scored.points[place]
    if failures := cluster.health.failures_for(name, decision.request.namespace):
        entry["failures"] = [{"pod": failure.pod, "what": failure.what} for failure in failures]
    return entry


def _by_dra(cluster: ClusterView, name: str, row: int, request: PodRequest) -> bool:
    """Whether a node that fits serves the pod by DRA: no device plugin offers a requested resource. As of now."""
    if cluster.row(name) != row:
        return False  # gone, or back in another place
    alloc = cluster.tables.nodes.alloc_of(row)
    devices = cluster.nodes[name].devices
    served = bool(devices is not None and devices.gpus and not devices.plugin[0])
    return served or any(alloc[resource] == 0 for resource, _ in request.gpus)


# -- the views of the page: the timeline of decisions, and the preemptions with their cost

MOST_LINES: Final = 200
"""Decisions that a view shows."""
DRAWN: Final = 10
"""Preemptions that are drawn."""
MOST_NAMED: Final = 3
"""Victims that the words of a plan name."""


def decision_line(decision: Decision, cluster: ClusterView) -> JSON:
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
        "milliseconds": round(decision.spent_us / 1e3, 3),
        "node": node,
        **{key: detail.get(key) for key in ("victims", "cost", "certificate", "gang")},
    }


def about_pod(decisions: Iterable[Decision], uid: str) -> Iterator[Decision]:
    """Those about one pod, or with it as a victim, in their order."""
    return (decision for decision in decisions if decision.request.uid == uid or decision.evicts(uid))


def decisions_view(content: Content, query: Query) -> JSON:
    """`?verb=`: of one verb. The latest decisions, newest first. BadRequest."""
    verb = one_of(query, "verb", VERBS) if query.get("verb") else ""
    return {"verb": verb, **_latest_lines(content, "decisions", lambda decision: verb in ("", decision.verb))}


def preemption_plans(preemption: Mapping[str, Any]) -> list[JSON]:
    """What was answered, and its runner-up where there is one: `what` in words, and the `cost` by term. `preemption`:
    as `decision_line` has it, with a cost."""
    first = " once it has saved its work" if preemption["result"] == "asking" else ""
    runner_up = (preemption["certificate"] or {}).get("runner_up")
    known = [(preemption, "chosen", first), (runner_up, "runner-up", "")]
    return [
        {"what": f"{what}: evict {_named_victims(plan['victims'])}{_place(plan)}{saved}", "cost": plan["cost"]}
        for plan, what, saved in known
        if plan and plan["cost"]
    ]


def _place(plan: Mapping[str, Any]) -> str:
    domain = plan.get("domain")
    place = plan.get("node") or (f"{domain['level']} {domain['value']}" if domain else "")
    return f" on {place}" if place else ""


def _named_victims(stated: Sequence[Mapping[str, Any] | str]) -> str:
    names = [pod if isinstance(pod, str) else f"{pod['namespace']}/{pod['name']}" for pod in stated]
    return first_names(names, MOST_NAMED)


def preemptions_view(content: Content, query: Query) -> JSON:
    """The latest answers that evict pods, newest first, each with its `plans`, the first with `pictures` of the node
    before and after; then the reservations that stand, and whose pods ignore requests to save."""
    verbs = content.verbs
    now, wall = content.clock.monotonic(), content.clock.wall()
    standing = islice(verbs.reservations.current(now), MOST_LINES)
    latest = _latest_lines(content, "preemptions", lambda decision: bool(decision.detail.get("victims")))
    for place, preemption in enumerate(latest["preemptions"]):
        preemption["plans"] = preemption_plans(preemption) if preemption["cost"] else []
        preemption["pictures"] = _pictures(content, preemption) if place < DRAWN else []
    return {
        **latest,
        "reservations": [
            _reservation_line(reservation, verbs.cluster)
            | {"saving_until": saves_until(verbs.cluster, reservation, now, wall)}
            for reservation in standing
        ],
        **content.explainer.ignoring(),
    }


def _pictures(content: Content, preemption: Mapping[str, Any]) -> list[JSON]:
    """Its node before and after; none where the victims are on several nodes, or their names are not kept."""
    evicted = victims_of(preemption["victims"])
    if not preemption["node"] or not evicted:
        return []
    pod = content.verbs.cluster.pod(*preemption["pod"].split("/"))
    waits = pod is not None and not pod.node and not pod.finished
    uids = {victim.uid for victim in evicted}
    gpus = content.explainer.gpus_after(pod, preemption["node"], uids) if pod is not None and waits else ()
    return before_and_after(content, preemption["node"], evicted, {preemption["pod"]: gpus})


def _latest_lines(content: Content, name: str, which: Callable[[Decision], bool]) -> JSON:
    """The first MOST_LINES of those, and how many are left out."""
    chosen = list(filter(which, content.verbs.decisions.latest()))
    entries = [decision_line(decision, content.verbs.cluster) for decision in chosen[:MOST_LINES]]
    return {name: entries, f"{name}_left_out": max(0, len(chosen) - MOST_LINES)}


def _reservation_line(reservation: Reservation, cluster: ClusterView) -> JSON:
    remaining = [pod for uid in reservation.victims if (pod := cluster.pods.get(uid)) is not None]
    return {
        "id": reservation.id,
        "pod": reservation.pod or None,
        "node": reservation.node,
        "priority": reservation.priority,
        "victims": len(reservation.victims),
        "victims_left": [f"{pod.namespace}/{pod.name}" for pod in remaining],
    }
