"""What fits now, by our own filter: the largest single pod of each GPU model, whole nodes, and how many pods of each
size fit in one domain of each level."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from ext_core import fit, survey
from extender.ask.capacity.machines import Fleet, Look, probe, within
from extender.ask.judge import blocks
from extender.cluster.gpus import MOST_GPUS
from extender.cluster.slices import finish
from extender.queue.rooms import DomainRoom, rooms

LINKS: Final = (("any", "preferred"), ("required", "required"))
POD_SLOTS: Final = 2
MOST_LARGE: Final = 64
"""Larger sizes that are tried."""


def largest(look: Look) -> list[dict[str, Any]]:
    """Of each model, with and without linked GPUs: the most GPUs that one pod gets now, and on how many nodes."""
    entries = []
    for model in sorted(look.fleet.models):
        for links, stated in LINKS:
            gpus, nodes = _largest(look, model, stated)
            entries.append({"model": model, "links": links, "gpus": gpus, "nodes": nodes})
    return entries


def whole_nodes(look: Look) -> dict[str, int]:
    """Of each model how many nodes have all GPUs free, claims taken, and take a pod for all of them."""
    fleet, by_model = look.fleet, dict[str, int]()
    for model in sorted(fleet.models):
        by_size: dict[int, list[str]] = {}
        for name in fleet.open(model):
            if (size := fleet.gpus[name]) > 0:
                by_size.setdefault(size, []).append(name)
        resource = fleet.resource[model]
        by_model[model] = sum(len(_passed(look, resource, size, "preferred", names)) for size, names in by_size.items())
    return by_model


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
    large = sorted((gpus for gpus in free if gpus > MOST_GPUS), reverse=True)[:MOST_LARGE]
    return {*range(1, min(most, MOST_GPUS) + 1), *large}


def _passed(look: Look, resource: str, size: int, links: str, names: list[str]) -> list[str]:
    """Those of the nodes where a pod of this size fits now."""
    judge, fitting = look.judge, list[str]()
    _, request = probe(judge, resource, size, links)
    cluster = judge.cluster
    for block in blocks(names):
        rows = judge.rows(block)
        with within(look, request):
            passed = fit.passed(rows, judge.policy.judge(cluster.tables, request, rows))
            slots = survey.free(cluster.tables.nodes, POD_SLOTS, passed)
        fitting += [cluster.names[row] for row, free_slots in zip(passed, slots, strict=True) if free_slots > 0]
    return fitting


SIZES: Final = (1, 2, 4, 8, 16)
"""GPUs of a pod; beside these the GPUs of the largest machine."""


def gangs(look: Look) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(how many pods of a size fit in the domain of each level that takes most; how many fit in all the cluster).
    Links are preferred, not required; of several resources the one of which more pods fit counts."""
    judge, fleet = look.judge, look.fleet
    best: dict[tuple[int, str], DomainRoom] = {}
    for resource in sorted(set(fleet.resource.values())):
        sizes = _pod_sizes(fleet, resource)
        pods = [probe(judge, resource, size) for size in sorted(sizes, reverse=True)]
        if not pods:
            continue
        rooms_by_size = finish(
            rooms(judge.cluster, judge.policy, pods, fleet.closed, partial(within, look, pods[0][1]))
        )
        for size, by_level in zip(sorted(sizes, reverse=True), rooms_by_size, strict=True):
            for room in by_level:
                key = size, room.level
                if key not in best or room.pods > best[key].pods:
                    best[key] = room
    ordered = sorted(best, key=lambda key: key[0])  # levels stay in their order, the closest first
    inside = [
        {"pod_gpus": size, "level": level, "pods": best[size, level].pods, "domain": best[size, level].value or None}
        for size, level in ordered
        if level
    ]
    return inside, [{"pod_gpus": size, "pods": best[size, level].pods} for size, level in ordered if not level]


def _pod_sizes(fleet: Fleet, resource: str) -> set[int]:
    names = (name for model in fleet.models if fleet.resource[model] == resource for name in fleet.models[model])
    most = max(map(fleet.gpus.__getitem__, names), default=0)
    return {size for size in SIZES if size <= most} | ({most} if most else set())
