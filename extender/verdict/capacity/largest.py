"""The largest single pod that fits now, by GPU model: our own filter is asked about each size, the largest first."""

from __future__ import annotations

from typing import Any, Final

from ext_core import fit, survey
from extender.cluster.gpus.store import MOST_GPUS
from extender.verdict.capacity.machines import Look, probe, within
from extender.verdict.judge import blocks

LINKS: Final = (("any", "preferred"), ("required", "required"))
POD_SLOTS: Final = 2
MOST_LARGE: Final = 64
"""Larger sizes that are tried."""


def largest(look: Look) -> list[dict[str, Any]]:
    """Of each model, with and without linked GPUs: the most GPUs that one pod gets now, and on how many nodes."""
    found = []
    for model in sorted(look.fleet.models):
        for links, stated in LINKS:
            gpus, nodes = _largest(look, model, stated)
            found.append({"model": model, "links": links, "gpus": gpus, "nodes": nodes})
    return found


def whole_nodes(look: Look) -> dict[str, list[str]]:
    """Of each model the nodes of which all GPUs are free, claims taken, and which take a pod for all of them."""
    fleet, found = look.fleet, dict[str, list[str]]()
    for model in sorted(fleet.models):
        by_size: dict[int, list[str]] = {}
        for name in fleet.open(model):
            if (size := fleet.gpus[name]) > 0:
                by_size.setdefault(size, []).append(name)
        there: list[str] = []
        for size, names in by_size.items():
            there += _passed(look, fleet.resource[model], size, "preferred", names)
        found[model] = sorted(there)
    return found


def _largest(look: Look, model: str, links: str) -> tuple[int, int]:
    names, resource = look.fleet.open(model), look.fleet.resource[model]
    for size in sorted(_sizes(look, resource, names), reverse=True):
        if links == "required" and size > MOST_GPUS:
            continue
        passed = _passed(look, resource, size, links, names)
        if passed:
            return size, len(passed)
    return 0, 0


def _sizes(look: Look, resource: str, names: list[str]) -> set[int]:
    """The sizes that may be the largest. Beyond those of which links are known only a count decides, so it is what is
    free on one of the nodes."""
    cluster, index = look.judge.cluster, look.judge.cluster.resources.index(resource)
    _, request = probe(look.judge, resource, 1)
    free: set[int] = set()
    for block in blocks(names):
        rows = look.judge.rows(block)
        with within(look, request):
            free.update(survey.free(cluster.tables.nodes, index, rows))
    most = max(free, default=0)
    large = sorted((one for one in free if one > MOST_GPUS), reverse=True)[:MOST_LARGE]
    return {*range(1, min(most, MOST_GPUS) + 1), *large}


def _passed(look: Look, resource: str, size: int, links: str, names: list[str]) -> list[str]:
    """Those of the nodes where a pod of this size fits now."""
    judge, found = look.judge, list[str]()
    _, request = probe(judge, resource, size, links)
    cluster = judge.cluster
    for block in blocks(names):
        rows = judge.rows(block)
        with within(look, request):
            passed = fit.passed(rows, judge.policy.judge(cluster.tables, request, rows))
            slots = survey.free(cluster.tables.nodes, POD_SLOTS, passed)
        found += [cluster.names[row] for row, left in zip(passed, slots, strict=True) if left > 0]
    return found
