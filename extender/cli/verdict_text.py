"""An Explanation for people: the sentence, the funnel, the ways out, then the decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from extender.ask.text import HOW, count, label
from extender.cli.decisions import lines as decision_lines

STAGES: Final = {
    "seen": "seen",
    "admitted": "admit the pod",
    "usable": "offer its GPUs",
    "enough-gpus": "have enough free",
    "linked": "linked",
    "unreserved": "not reserved",
    "left": "left",
}
"""The stages of the funnel in words."""


def lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """The lines of an Explanation."""
    pod = answer["pod"]
    yield f"{pod['namespace']}/{pod['name']} {answer['sentence']}"
    if why := answer.get("why"):
        yield f"  waits for: {why['reason']} ({why['text']})"
    if how := answer.get("how"):  # a server of an older version does not state it
        yield f"  {how}: {HOW.get(how, how)}"
    if answer["funnel"]:
        parts = [f"{stage['nodes']} {STAGES.get(stage['stage'], stage['stage'])}" for stage in answer["funnel"]]
        yield f"  nodes: {', '.join(parts)}"
    if answer["reasons"]:
        yield "  rejected: " + ", ".join(f"{number} x {key}" for key, number in answer["reasons"].items())
    yield from _evictions(answer)
    if answer["ways_out"]:
        yield "  ways out, the cheapest first, each verified by the filter:"
        for number, way_out in enumerate(answer["ways_out"], 1):
            yield f"    {number}. {way(way_out)}"
    elif (gang := answer["queue"]) and gang["pods"] > 1:
        asked = f"{pod['namespace']}/{pod['name']}"
        yield f"  what helps its gang of {gang['pods']} pods: gpu-extender whatif --pod {asked}"
    for warning in answer["warnings"]:
        yield f"  warning: {warning['message']}"
    if answer["decisions"]:
        yield ""
        yield "decisions, the latest first:"
    for decision in answer["decisions"]:
        yield ""
        yield from decision_lines(decision)
    if hidden := answer.get("decisions_left_out"):
        yield f"and {count(hidden, 'decision')} more"


def _evictions(answer: Mapping[str, Any]) -> Iterator[str]:
    """What evicted the pod at what cost, or what may evict it. A server of an older version does not state it."""
    if (evicted := answer.get("evicted")) and evicted["cost"] is not None:
        pods = count(evicted["victims"], "pod")
        yield f"  cost of the eviction of {pods}, by term: {terms(evicted['cost']) or 'nothing'}"
    above, cost = answer.get("evictable_by"), answer.get("cost_now")
    if above is None:
        return
    if cost is None:
        yield "  no pod may evict it now: it is protected, a static pod or of a DaemonSet"
        return
    named = ", ".join(_class(priority_class) for priority_class in above)
    yield f"  may be evicted by pods of: {named or 'no PriorityClass that is known'}"
    counted = [term for term in cost if term["value"] is not None]
    yield f"  its eviction alone would cost now: {terms(counted) or 'nothing'}"


def _class(above: Mapping[str, Any]) -> str:
    name = above["priority_class"] or f"priority {above['priority']}"
    return f"{name} ({above['pods']} waiting)" if above["pods"] else name


def terms(cost: Sequence[Mapping[str, Any]]) -> str:
    """The terms of a cost that count something."""
    return ", ".join(_term(term) for term in cost if term["value"] != 0 and not no_victim_counts(term))


def no_victim_counts(term: Mapping[str, Any]) -> bool:
    """Whether the term has no value because all victims are terminating already; else no value is an unknown one."""
    return term["term"] == "highest_victim_priority" and term["value"] is None


def way(stated: Mapping[str, Any]) -> str:
    """A way out with what it needs and costs."""
    cost = terms(stated["cost"] or ())
    needs = ", ".join(stated["spec"].get("needs", ()))
    return f"{stated['change']}{f' (needs {needs})' if needs else ''}{f': {cost}' if cost else ''}"


def _term(term: Mapping[str, Any]) -> str:
    """A term of a cost; its label may name the unit."""
    name = label(term["term"])
    unit = "" if term["value"] is None or term["unit"].lower() in name.lower().split() else f" {term['unit']}"
    return f"{name} {_number(term['value'])}{unit}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"
