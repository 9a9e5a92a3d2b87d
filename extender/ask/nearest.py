"""The nearest miss: the node where least is missing, and how much."""

from __future__ import annotations

from array import array
from typing import Any, Final

from ext_core import survey
from extender.ask.judge import Judge, blocks
from extender.ask.nodes import TOO_FEW, JudgedNodes
from extender.ask.ways.request import changed, with_gpus
from extender.policy.rules.links import Links
from extender.preemption.candidates import Preemptor

LINKS: Final = frozenset(reason.code for reason in Links.reasons)
MOST_SIZES: Final = 32
"""Sizes of linked sets that are tried, from the pod's own downward."""
LINKED: Final = "linked GPUs"
UNITS: Final = ("millicores", "bytes", "pods")
Missing = dict[str, Any]


def nearest(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> dict[str, Any] | None:
    """The node where the fewest GPUs are missing, then the least part of CPU, memory and pod slots, then the first by
    name; None where no node that admits the pod lacks only amounts and links. Claims count as taken."""
    linked = _linked(judge, asked, [name for name in nodes.open if nodes.codes[name] in LINKS])
    lacks = [name for name in nodes.open if nodes.codes[name] in TOO_FEW or name in linked or nodes.short.get(name)]
    best: tuple[int, float, str] | None = None
    missing: list[Missing] = []
    cluster = judge.cluster
    for block in blocks(lacks):
        rows = judge.rows(block)
        short_of = array("i", [linked.get(cluster.names[row], -1) for row in rows])
        with judge.claims.of(asked.request, asked.now):
            least = survey.nearest(cluster.tables.nodes, asked.request.ask, rows, short_of)
            if least is not None:
                at, gpus, rest = least
                name = cluster.names[rows[at]]
                if best is None or (gpus, rest, name) < best:
                    best, missing = (gpus, rest, name), _missing(judge, asked, rows[at], linked.get(name))
    return None if best is None else {"node": best[2], "missing": missing}


def _missing(judge: Judge, asked: Preemptor, row: int, linked: int | None) -> list[Missing]:
    """What is missing on a node. `linked`: the most free GPUs that are linked; None: links are not what is missing."""
    resources, request = judge.cluster.resources, asked.request
    free = judge.cluster.tables.nodes.free_of(row)
    missing = [
        {"what": resources[r], "have": max(0, free[r]), "need": wanted, "unit": "GPUs" if r > 2 else UNITS[r]}
        for r, wanted in enumerate(request.amounts)
        if wanted and wanted > free[r]
    ]
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
