"""The one sentence on a pod that has no node: why, the nearest miss, the cheapest way out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from extender.ask.nearest import LINKED, OTHER_UNITS
from extender.ask.nodes import NOT_LINKED, PASSING, RESERVED, JudgedNodes, deciding
from extender.ask.text import amount, count, gpu_hours, other_amount, seconds
from extender.ask.ways.evict import work_lost
from extender.ask.ways.way import Way
from extender.policy.contracts import PodRequest
from extender.policy.reasons import NICS_HELD, REASONS
from extender.preemption.candidates import Preemptor

OWN: Final = ("smaller", "relax-links", "relax-domain")
"""Kinds of changes of the pod itself."""
ENDING: Final = ", it starts as soon as pods are gone that are ending now"
FUNNEL: Final = {
    "seen": "the cluster has no nodes",
    "admitted": "no node admits it",
    "usable": "no node that admits it offers the GPUs that it asks for, or those fail",
    "enough-gpus": "no node has {gpus} free",
    "linked": "no node has {gpus} free that are certain {certain}",
    "unreserved": "the free GPUs are reserved for other pods",
    "left": "the nodes with free GPUs lack CPU, memory, pod slots or another resource, or a pod there repels it",
}
"""By the first stage that leaves no node."""


def cause(asked: Preemptor, nodes: JudgedNodes, ways: Sequence[Way]) -> str:
    """Why the pod fits on no node now."""
    if ways and ways[0].kind == "wait":
        return ways[0].change.removeprefix("wait ")
    gpus, reason = _gpus(asked), deciding(nodes.reasons)
    if reason in PASSING:
        text = next(known.text for known in REASONS.values() if known.key == reason)
        on = count(nodes.reasons[reason], "node")
        return f"{text.removeprefix('gpu-extender: ')} ({on}; it passes by itself)"
    if reason in NOT_LINKED:
        loose = sum(nodes.reasons[key] for key in NOT_LINKED)
        return f"{count(loose, 'node')} {'has' if loose == 1 else 'have'} {gpus} free but not linked"
    if reason == NICS_HELD.key:
        without = nodes.reasons[reason]
        return f"{count(without, 'node')} {'has' if without == 1 else 'have'} {gpus} free but not each with a NIC"
    if reason in RESERVED:
        return FUNNEL["unreserved"]
    stage = next((stage.stage for stage in nodes.funnel if not stage.nodes), "left")
    text = FUNNEL[stage].format(gpus=gpus, certain=_certain(asked.request))
    if stage == "admitted":
        text += " (" + ", ".join(f"{key} {number}" for key, number in sorted(nodes.reasons.items())) + ")"
    return text


def never(asked: Preemptor, nodes: JudgedNodes) -> str:
    """Why no change of running pods helps."""
    request = asked.request
    linked = f" that are certain {_certain(request)}" if request.by_position else ""
    cpu, memory = request.amounts[:2]
    others = [other_amount(*asked_amount) for asked_amount in request.others]
    wants = _listed([f"{_gpus(asked)}{linked}", amount("cpu", cpu), amount("memory", memory), *others])
    why = ", ".join(f"{key} {number}" for key, number in sorted(nodes.reasons.items()))
    return f"no node takes it, whatever ends there: it asks for {wants} ({why or 'the cluster has no nodes'})"


def whole(why: str, nearest: Mapping[str, Any] | None, ways: Sequence[Way]) -> str:
    """The cause, the nearest miss, and the ways out."""
    near = f"; nearest: {nearest['node']}, {_missing(nearest['missing'])}" if nearest is not None else ""
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
    return first + ("" if own is None else f"; or {own.change}{_price(own)}")


def helped(ways: Sequence[Way]) -> str:
    """The ways out, at the end of a sentence."""
    return cheapest(ways) if ways else "; no single change makes it fit"


def queued(entry: Mapping[str, Any] | None, over: str, length: int) -> str:
    """Where the pod stands in the queue. `over`: why its queue may not hold it, "" where it may."""
    if entry is None:
        return f"it waits behind the gate of the queue{': ' if over else ''}{over}"
    behind = f", behind {entry['blocked_by']}" if entry["blocked_by"] else ""
    start = entry["earliest_start_seconds"]
    soon = "" if start is None else f", it starts within {seconds(start)}" if start else ENDING
    dates = f"; {entry['start']['text']}" if entry.get("start") else ""
    return (
        f"{entry['gang']} is at position {entry['position']} of {length} in the queue{behind} "
        f"({entry['reason']}: {entry['text']}){soon}{dates}"
    )


def _certain(request: PodRequest) -> str:
    """What is required of the GPUs."""
    if request.nics != "required":
        return "to be linked"
    linked = "to be linked and " if request.links == "required" and request.wanted > 1 else ""
    return f"{linked}to have a NIC each"


def _gpus(asked: Preemptor) -> str:
    """The GPUs that the pod asks for."""
    return _listed([amount(*resource_count) for resource_count in asked.pod.gpus])


def _missing(missing: Sequence[Mapping[str, Any]]) -> str:
    loose = [miss for miss in missing if miss["what"] == LINKED]
    amounts = [
        (other_amount if miss["unit"] in OTHER_UNITS else amount)(miss["what"], miss["need"] - miss["have"])
        for miss in missing
        if miss["what"] != LINKED
    ]
    parts = [f"{_listed(amounts)} short"] if amounts else []
    return _listed(parts + [f"{miss['have']} of {miss['need']} GPUs linked" for miss in loose])


def _listed(texts: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _price(way: Way) -> str:
    work = work_lost(way.cost)
    lost = f", {gpu_hours(work)} of work lost" if work is not None else ""
    needs = f" (needs {', '.join(way.needs)})" if way.needs else ""
    return lost + needs
