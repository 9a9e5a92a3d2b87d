"""The verdict on one pod, as programs read it; and that on a pod that has a node: which GPUs it holds, how that is
known, and why it is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ext_core import survey
from ext_core.link_sets import LinkSets
from extender.ask.fleet import SIZES
from extender.ask.judge import Judge, Ranked
from extender.ask.node_reasons import REMEDIES, counted_reasons
from extender.ask.nodes import NOT_LINKED, PASSING_REASONS, RESERVED, JudgedNodes, Stage, deciding
from extender.ask.text import LINKED, amount, count, gpu_hours, joined, named_gpus, needs, other_amount
from extender.ask.ways import Way
from extender.ask.ways.pod import OTHER_UNITS
from extender.cluster.cluster import ClusterView
from extender.decide.decisions import Decision
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.reasons import NICS_HELD, REASONS, TOO_FEW_GPUS
from extender.preemption.search import Preemptor
from extender.queue.report import Why

BETTER: Final = {
    "bad_nodes": "fewer GPU pods failed there lately",
    "hazard": "its device plugin cannot fail the pod",
    "whole": "its GPUs are whole, not shares",
    "gpu_model": "its GPU model suits the pod's group",
    "spread": "fewer pods of the same owner are there or in its rack",
    "topology_level": "it is nearer to the other pods of its group",
    "links": "the GPUs there have more link bandwidth",
    "nics": "more of the GPUs there have a NIC of their own",
    "fragmentation": "it leaves more room for the pods that usually come",
    "leftover": "it keeps more linked sets of GPUs for later pods",
    "packing": "it is fuller",
}
"""Of the first node, by the scorer that decides."""
Verdict = Literal["runs", "fits", "waits", "gated", "never", "evicted"]
"""`runs`: it has a node; `gated`: a scheduling gate holds it back; `fits`: a node has room now; `never`: no change of
running pods lets it fit; `waits`: something else can; `evicted`: it is being evicted, or was."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdict on a pod. Fields without a text: see docs/explain.md."""

    pod: PodRecord
    verdict: Verdict
    sentence: str = ""
    asked: str = ""
    """What a pod is asked that runs: to save its work. The last clause of the sentence, where it is printed whole."""
    node: str | None = None
    gpus: tuple[int, ...] | None = None
    """Indices, None where they are not known."""
    how: str | None = None
    """By what they are known, a key of `text.HOW`; None where it holds none."""
    funnel: Sequence[Stage] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)
    """How many nodes are rejected, by reason."""
    rejected: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The first rejected nodes by name, by reason; for the page."""
    nearest: Mapping[str, Any] | None = None
    ways: Sequence[Way] = ()
    best: Sequence[Ranked] = ()
    """The best nodes where it fits, or where it fitted when it was placed."""
    queue: Mapping[str, Any] | None = None
    """The gang that it waits with, as /debug/queue has it."""
    why: Why | None = None
    """Why it waits, as `top` counts it; None where it does not."""
    devices: Mapping[str, Any] | None = None
    """Which devices its claims have, and what allocates them; None where it has none for GPUs."""
    evicted: Mapping[str, Any] | None = None
    preemption: Mapping[str, Any] | None = None
    evictable_by: Sequence[Mapping[str, Any]] | None = None
    """The PriorityClasses that may evict it where it runs with GPUs."""
    cost_now: Sequence[Mapping[str, Any]] | None = None
    """What its eviction would cost now."""
    spared: Mapping[str, Any] | None = None
    """Why no pod may evict it now where it runs with GPUs, as of `why_spared`."""
    not_checked: Sequence[str] = ()
    """What it asks for that only kube-scheduler looks at."""
    warnings: Sequence[Mapping[str, str]] = ()

    def as_json(self) -> dict[str, Any]:
        """`kind: Explanation`, without the decisions."""
        pod = self.pod
        return {
            "apiVersion": "gpu-extender.io/v1",
            "kind": "Explanation",
            "warnings": list(self.warnings),
            "pod": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "priority": pod.priority},
            "verdict": self.verdict,
            "sentence": "; ".join(filter(None, (self.sentence, self.asked))),
            "why": None if self.why is None else self.why.as_json(),
            "node": self.node,
            "gpus": None if self.gpus is None else list(self.gpus),
            "how": self.how,
            "funnel": [stage._asdict() for stage in self.funnel],
            "reasons": dict(sorted(self.reasons.items())),
            "nearest": self.nearest,
            "ways_out": [way.as_json() for way in self.ways],
            "first": _points(self.best, 0),
            "second": _points(self.best, 1),
            "difference": difference(self.best),
            "queue": self.queue,
            "devices": self.devices,
            "evicted": self.evicted,
            "preemption": self.preemption,
            "evictable_by": self.evictable_by,
            "cost_now": self.cost_now,
            "spared": self.spared,
            "not_checked": list(self.not_checked),
        }


def difference(best: Sequence[Ranked]) -> list[dict[str, Any]]:
    """By how many points the first node is before the second, by term of the score, in the order of the settings."""
    if len(best) < 2:
        return []
    first, second = best[0].terms, best[1].terms
    return [{"term": name, "points": round(first[name] - second[name], 6)} for name in first]


def _points(best: Sequence[Ranked], at: int) -> dict[str, Any] | None:
    return {"node": best[at].node, "points": round(best[at].score, 6)} if at < len(best) else None


# -- a pod that has a node


def runs(pod: PodRecord, cluster: ClusterView, asked: Decision | None, weights: Mapping[str, float]) -> Explanation:
    """`asked`: the latest filter decision about the pod that found a node; `weights`: of the scorers."""
    held = cluster.gpus.holding(pod.node, pod.uid)
    best = [] if asked is None else ranked(asked, cluster, weights)
    if best and best[0].node != pod.node:
        best = []  # kube-scheduler, or a person, chose another node
    if held is None:
        gpus = ""
    elif held.gpus is None:
        gpus = f", {count(held.count, 'GPU')}, unknown which"
    else:
        gpus = f", {named_gpus(held.gpus)} ({held.how})"
    verb = "is terminating" if pod.terminating else "runs"
    return Explanation(
        pod,
        "runs",
        f"{verb} on {pod.node}{gpus}{_because(best)}",
        node=pod.node,
        gpus=None if held is None else held.gpus,
        how=None if held is None else held.how,
        best=best,
    )


def ranked(decision: Decision, cluster: ClusterView, weights: Mapping[str, float]) -> list[Ranked]:
    """The best two nodes of a decision, as it kept them."""
    scored = decision.scored
    if not scored.values:
        return []
    scores = scored.column(0)
    columns = {name: scored.column(c) for c, name in enumerate(scored.scorers, 1)}
    return [
        Ranked(
            cluster.rows.name_at(row, decision.generation),
            scores[at],
            {name: column[at] * weights.get(name, 0.0) for name, column in columns.items()},
        )
        for at, row in enumerate(scored.best[:2])
    ]


def latest(decisions: Iterable[Decision], pod: PodRecord) -> tuple[Decision | None, Decision | None]:
    """(the latest decision about the pod; the latest of filter that found a node), of decisions that come newest
    first; None where none is kept."""
    first: Decision | None = None
    for decision in decisions:
        if decision.request.uid == pod.uid:
            first = first or decision
            if decision.verb == "filter" and len(decision.scored.best):
                return first, decision
    return first, None


def _because(best: list[Ranked]) -> str:
    """Why it is there and not on the second node: the terms that decided."""
    if not best:
        return ""
    if len(best) < 2:
        return ", the only node where it fitted"
    return f", {before(best)}"


def decisive(best: Sequence[Ranked]) -> tuple[str, str] | None:
    """The term by which the first node gains most on the second, and that in words; None where no term differs."""
    most = max(difference(best), key=lambda term: term["points"])
    term = most["term"]
    return (term, BETTER[term]) if most["points"] > 0 else None


def before(best: Sequence[Ranked]) -> str:
    """What the first node has that the second has not."""
    decided = decisive(best)
    return (
        f"as good as {best[1].node}, and first by name" if decided is None else f"before {best[1].node}: {decided[1]}"
    )


ROOM: Final = ("fragmentation", "leftover")
"""Terms that count what stays free."""
Kept = Mapping[int, tuple[int, int]]
"""By size: the linked sets that are free on a node without the pod and with it; empty where that is not known."""


def because(best: Sequence[Ranked], kept: Sequence[Kept] = ()) -> str:
    """The sentence; "" without a second node. `kept`: of the two nodes, where that is known."""
    if len(best) < 2:
        return ""
    first, second = best[0].node, best[1].node
    if (decided := decisive(best)) is None:
        return f"{first} is as good as {second}, and first by name."
    term, why = decided
    known = term in ROOM and len(kept) == 2 and all(kept)
    for size in sorted(SIZES, reverse=True) if known else ():
        (before, after), (other_before, other_after) = kept[0][size], kept[1][size]
        broken, other_broken = before - after, other_before - other_after
        if broken < other_broken:
            sets = f"{count(broken, 'linked set')}" if broken else "no linked set"
            why = f"it takes {sets} of {size} GPUs from later pods, {second} would take {other_broken}"
            break
    return f"{first} beat {second}: {why}."


def kept_sets(judge: Judge, asked: Preemptor, names: Sequence[str]) -> list[Kept]:
    """Of each node; empty where its links, the GPUs that the pod would get, or those that are held are not known."""
    sets, rows = LinkSets(judge.cluster.tables.shapes), judge.rows(names)
    masks = [judge.planned(asked, name) for name in names]
    with judge.claims.of(asked.request, asked.now):
        _, _, shapes, free = survey.stock(judge.cluster.tables.nodes, rows)
    return [
        {size: (sets.most(shape, mask, size), sets.most(shape, mask & ~gpus, size)) for size in SIZES if shape and gpus}
        for shape, mask, gpus in zip(shapes, free, masks, strict=True)
    ]


# -- the sentence on a pod that has no node: why, the nearest miss, the cheapest way out


OWN: Final = ("smaller", "relax-links", "relax-domain")
"""Kinds of changes of the pod itself."""
FUNNEL: Final = {
    "seen": "the cluster has no nodes",
    "admitted": "no node admits it",
    "usable": "no node that admits it offers the GPUs that it asks for, or those fail",
    "enough-gpus": "no node has {gpus} free",
    "unreserved": "the free GPUs are reserved for other pods",
    "linked": "no node has {gpus} free that are certain {certain}",
    "left": "the nodes with free GPUs lack CPU, memory, pod slots or another resource, or a pod there repels it",
}
"""By the first stage that leaves no node."""


def cause(asked: Preemptor, nodes: JudgedNodes, ways: Sequence[Way]) -> str:
    """Why the pod fits on no node now."""
    if ways and ways[0].kind == "wait":
        return ways[0].change.removeprefix("wait ")
    gpus, reason = _gpus(asked), deciding(nodes.reasons)
    if reason in PASSING_REASONS:
        text = next(known.text for known in REASONS.values() if known.key == reason)
        on = count(nodes.reasons[reason], "node")
        return f"{text.removeprefix('gpu-extender: ')} ({on}; it passes by itself)"
    if reason in NOT_LINKED:
        loose = sum(nodes.reasons[key] for key in NOT_LINKED)
        return f"{count(loose, 'node')} {'has' if loose == 1 else 'have'} enough free GPUs, but no linked set of {gpus}"
    if reason == NICS_HELD.key:
        without = nodes.reasons[reason]
        have = "has" if without == 1 else "have"
        return f"{count(without, 'node')} {have} enough free GPUs, but not {gpus} with a NIC each"
    if reason in RESERVED:
        return FUNNEL["unreserved"]
    stage = next((stage.stage for stage in nodes.funnel if not stage.nodes), "left")
    text = FUNNEL[stage].format(gpus=gpus, certain=_certain(asked.request))
    return f"{text} ({counted_reasons(nodes.reasons)})" if stage == "admitted" else text


def never(cluster: ClusterView, asked: Preemptor, nodes: JudgedNodes) -> str:
    """Why no change of running pods helps."""
    request = asked.request
    if not nodes.reasons:
        return FUNNEL["seen"]
    if not nodes.codes:
        return f"{FUNNEL['admitted']} ({counted_reasons(nodes.reasons)})"
    if set(nodes.codes.values()) == {TOO_FEW_GPUS.code} and len(asked.pod.gpus) == 1:
        return _too_large(cluster, asked, nodes)
    linked = f" that are certain {_certain(request)}" if request.by_position else ""
    others = [other_amount(*asked_amount) for asked_amount in request.others]
    amounts = [amount(what, asks) for what, asks in zip(("cpu", "memory"), request.amounts, strict=False) if asks]
    wants = joined([f"{_gpus(asked)}{linked}", *amounts, *others])
    return f"no node takes it, whatever ends there: it asks for {wants} ({counted_reasons(nodes.reasons)})"


def _too_large(cluster: ClusterView, asked: Preemptor, nodes: JudgedNodes) -> str:
    """That no node has as many GPUs as the pod asks for, and what helps."""
    ((resource, _),) = asked.pod.gpus
    most = max(cluster.nodes[name].gpus.get(resource, 0) for name in nodes.codes)
    larger = any(node.gpus.get(resource, 0) > most for node in cluster.nodes.values())
    node = "the largest node that admits it" if larger else "the largest node"
    return f"it asks for {_gpus(asked)}, and {node} has {most:,} in all: make it a gang of smaller pods"


def whole(why: str, nearest: Mapping[str, Any] | None, ways: Sequence[Way], nodes: JudgedNodes) -> str:
    """The cause, the nearest miss, and the ways out; without any where no node admits it, what most nodes wait for."""
    near = f"; nearest: {nearest['node']}, {_missing(nearest['missing'])}" if nearest is not None else ""
    most = max(nodes.reasons, key=lambda key: (nodes.reasons[key], key), default="")
    if not ways and not nodes.codes and (remedy := REMEDIES.get(most)):
        return f"{why}; {remedy[:1].lower()}{remedy[1:].rstrip('.')}"
    return f"{why}{near}{helped(ways)}"


def cheapest(ways: Sequence[Way], *, caused: bool = True) -> str:
    """The cheapest way out, and the cheapest change of the request; "" without any. `caused`: a wait is the cause that
    the sentence begins with."""
    if not ways:
        return ""
    first = "" if caused and ways[0].kind == "wait" else f"; cheapest way out: {ways[0].change}{_price(ways[0])}"
    own = next((way for way in ways[1:] if way.kind in OWN), None)
    if own is None and not first:
        own = next(iter(ways[1:]), None)
    return first + ("" if own is None else f"; {'or' if first else 'sooner:'} {own.change}{_price(own)}")


def helped(ways: Sequence[Way]) -> str:
    """The ways out, at the end of a sentence."""
    return cheapest(ways) if ways else "; no single change makes it fit"


def queued(entry: Mapping[str, Any] | None, over: str, length: int) -> str:
    """Where the pod stands in the queue. `over`: why its queue may not hold it, "" where it may."""
    if entry is None:
        return f"it waits behind the gate of the queue{': ' if over else ''}{over}"
    behind = f", behind {entry['blocked_by']}" if entry["blocked_by"] else ""
    dates = f"; {entry['start']['text']}" if entry.get("start") else ""
    return (
        f"{entry['gang']} is at position {entry['position']} of {length} in the queue{behind} ({entry['text']}){dates}"
    )


def _certain(request: PodRequest) -> str:
    """What is required of the GPUs."""
    if request.nics != "required":
        return "to be linked"
    linked = "to be linked and " if request.links == "required" and request.wanted > 1 else ""
    return f"{linked}to have a NIC each"


def _gpus(asked: Preemptor) -> str:
    """The GPUs that the pod asks for; of several resources by name."""
    gpus = asked.pod.gpus
    return joined([amount(name, number) if len(gpus) == 1 else f"{number:,} x {name}" for name, number in gpus])


def _missing(missing: Sequence[Mapping[str, Any]]) -> str:
    loose = [miss for miss in missing if miss["what"] == LINKED]
    amounts = [
        (other_amount if miss["unit"] in OTHER_UNITS else amount)(miss["what"], miss["need"] - miss["have"])
        for miss in missing
        if miss["what"] != LINKED
    ]
    parts = [f"{joined(amounts)} short"] if amounts else []
    return joined(parts + [f"a linked set of {miss['have']} instead of {count(miss['need'], 'GPU')}" for miss in loose])


def _price(way: Way) -> str:
    work = next((term["value"] for term in way.cost or () if term["term"] == "work_lost_gpu_seconds"), None)
    lost = f", {gpu_hours(work)} of work lost" if work is not None else ""
    return lost + needs(way.needs)
