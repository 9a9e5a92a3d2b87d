"""How many pods of each size fit in one domain of each level."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from extender.cluster.slices import finish
from extender.queue.placing.rooms import Room, rooms
from extender.verdict.capacity.machines import Fleet, Look, probe, within

SIZES: Final = (1, 2, 4, 8, 16)
"""GPUs of a pod; beside these the GPUs of the largest machine."""


def gangs(look: Look) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(how many pods of a size fit in the domain of each level that takes most; how many fit in all the cluster).
    Links are preferred, not required; of several resources the one of which more pods fit counts."""
    judge, fleet = look.judge, look.fleet
    best: dict[tuple[int, str], Room] = {}
    for resource in sorted(set(fleet.resource.values())):
        sizes = _sizes(fleet, resource)
        pods = [probe(judge, resource, size) for size in sorted(sizes, reverse=True)]
        if not pods:
            continue
        found = finish(rooms(judge.cluster, judge.policy, pods, fleet.closed, partial(within, look, pods[0][1])))
        for size, by_level in zip(sorted(sizes, reverse=True), found, strict=True):
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


def _sizes(fleet: Fleet, resource: str) -> set[int]:
    names = (name for model in fleet.models if fleet.resource[model] == resource for name in fleet.models[model])
    most = max(map(fleet.gpus.__getitem__, names), default=0)
    return {size for size in SIZES if size <= most} | ({most} if most else set())
