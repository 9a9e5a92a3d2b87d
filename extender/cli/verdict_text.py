"""An Explanation for people: the sentence, the funnel, the ways out, then the decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from extender.cli.decision_text import lines as decision_lines
from extender.offline.text import count
from extender.verdict.text import NO_PRIORITY

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
    if answer["funnel"]:
        parts = [f"{one['nodes']} {STAGES.get(one['stage'], one['stage'])}" for one in answer["funnel"]]
        yield f"  nodes: {', '.join(parts)}"
    if answer["reasons"]:
        yield "  rejected: " + ", ".join(f"{number} x {key}" for key, number in answer["reasons"].items())
    if answer["ways_out"]:
        yield "  ways out, the cheapest first, each verified by the filter:"
        for number, one in enumerate(answer["ways_out"], 1):
            yield f"    {number}. {way(one)}"
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
    if left := answer.get("decisions_left_out"):
        yield f"and {count(left, 'decision')} more"


def way(stated: Mapping[str, Any]) -> str:
    """A way out with what it needs and costs."""
    cost = ", ".join(_term(one) for one in stated["cost"] or () if one["value"] not in (0, NO_PRIORITY))
    needs = ", ".join(stated["spec"].get("needs", ()))
    return f"{stated['change']}{f' (needs {needs})' if needs else ''}{f': {cost}' if cost else ''}"


def _term(term: Mapping[str, Any]) -> str:
    """A term of a cost; its name may say the unit."""
    unit = "" if term["unit"].lower() in term["term"].replace("_", "-") else f" {term['unit']}"
    return f"{term['term']} {_number(term['value'])}{unit}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"
