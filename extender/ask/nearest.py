"""The nearest miss: the node where least is missing, and how much."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

from ext_core import survey
from extender.ask.judge import Judge
from extender.ask.nodes import TOO_FEW, JudgedNodes
from extender.ask.text import LINKED, is_bytes
from extender.ask.ways.request import changed, with_gpus
from extender.policy.rules import Links
from extender.preemption.search import OTHER, Preemptor, others_short

LINKS: Final = frozenset(reason.code for reason in Links.reasons)
MOST_SIZES: Final = 32
"""Sizes of linked sets that are tried, from the pod's own downward."""
UNITS: Final = ("millicores", "bytes", "pods")
OTHER_UNITS: Final = ("units", "bytes of the resource")
"""Of resources that are no columns of the tables: in numbers, in bytes."""
Missing = dict[str, Any]


def nearest(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> dict[str, Any] | None:
    """The node where the fewest GPUs are missing, then the least part of CPU, memory and pod slots, then the first by
    name; None where no node that admits the pod lacks only amounts and links. Claims count as taken."""
    linked = _linked(judge, asked, [name for name in nodes.open if nodes.codes[name] in LINKS])
    lacks = [name for name in nodes.open if nodes.codes[name] in TOO_FEW or name in linked or nodes.short.get(name)]
    best: tuple[int, float, str] | None = None
    missing: list[Missing] = []
    cluster, rows = judge.cluster, judge.rows(lacks)
    short_of = array("i", [linked.get(cluster.names[row], -1) for row in rows])
    with judge.claims.of(asked.request, asked.now):
        least = survey.nearest(cluster.tables.nodes, asked.request.ask, rows, short_of)
        if least is not None:
            at, gpus, rest = least
            name = cluster.names[rows[at]]
            best, missing = (gpus, rest, name), _missing(judge, asked, rows[at], linked.get(name))
    for name in lacks if asked.request.others else ():
        offered = cluster.nodes[name].gpus
        if nodes.short.get(name) != (OTHER,) or not all(offered.get(gpu) for gpu, _ in asked.pod.gpus):
            continue
        with judge.claims.of(asked.request, asked.now):
            short = others_short(cluster, asked.request, name)
        rest = sum((wanted - max(0, free)) / wanted for _, free, wanted in short)
        if best is None or (0, rest, name) < best:
            best, missing = (0, rest, name), _others(short)
    return None if best is None else {"node": best[2], "missing": missing}


def _others(short: Sequence[tuple[str, int, int]]) -> list[Missing]:
    return [
        {"what": what, "have": max(0, free), "need": wanted, "unit": OTHER_UNITS[is_bytes(what)]}
        for what, free, wanted in short
    ]


def _missing(judge: Judge, asked: Preemptor, row: int, linked: int | None) -> list[Missing]:
    """What is missing on a node. `linked`: the most free GPUs that are linked; None: links are not what is missing."""
    resources, request = judge.cluster.resources, asked.request
    free = judge.cluster.tables.nodes.free_of(row)
    missing = [
        {"what": resources[r], "have": max(0, free[r]), "need": wanted, "unit": "GPUs" if r > 2 else UNITS[r]}
        for r, wanted in enumerate(request.amounts)
        if wanted and wanted > free[r]
    ]
    missing += _others(others_short(judge.cluster, request, judge.cluster.names[row]))
    if linked is not None:
        missing.append({"what": LINKED, "have": linked, "need": request.wanted, "unit": "GPUs"})
    return missing


def _linked(judge: Judge, asked: Preemptor, names: list[str]) -> dict[str, int]:
    """By node: for how many GPUs, fewer than the pod asks for, the rules pass it."""
    linked: dict[str, int] = {}
    if with_gpus(asked.pod, 1) is None:
        return linked
    most = asked.request.wanted - 1
    unlinked = names
    for size in range(most, max(0, most - MOST_SIZES), -1):
        pod = with_gpus(asked.pod, size)
        assert pod is not None
        passed = judge.passed(changed(judge, asked, pod), unlinked)
        linked.update(dict.fromkeys(passed, size))
        unlinked = [name for name in unlinked if name not in linked]
        if not unlinked:
            break
    return linked
