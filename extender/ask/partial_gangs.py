"""Gangs of which fewer pods run than must, while others of them wait: their GPUs are held and do no work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from extender.cluster.cluster import ClusterView
from extender.objects import gangs
from extender.objects.records import PodRecord

PARTIAL_SECONDS: Final = 300.0
"""For which a gang may be partial before it is reported: pods of one gang do not start at the same moment."""
MOST_NAMED: Final = 20
"""Such gangs that an answer names, those that hold the most GPUs."""


class PartialGang(NamedTuple):
    """A gang of which too few pods run."""

    ref: gangs.Ref
    running: tuple[PodRecord, ...]
    """Its pods that have a node, by name."""
    waiting: int
    """How many of its GPU pods have none."""
    minimum: int
    """How many must run."""
    gpus: int
    """How many GPUs the running pods hold."""
    seconds: float | None
    """For how long this has been so, None where the times are not known."""

    @property
    def text(self) -> str:
        """What is wrong, for people."""
        return (
            f"{len(self.running)} of the {self.minimum} pods that must run together have a node and hold {self.gpus} "
            f"GPUs, while {self.waiting} wait"
        )

    def as_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "gang": str(self.ref),
            "source": self.ref.source,
            "running": len(self.running),
            "waiting": self.waiting,
            "min": self.minimum,
            "held_gpus": self.gpus,
            "seconds": None if self.seconds is None else round(self.seconds, 3),
        }


def partial_gangs(cluster: ClusterView, wall: float) -> list[PartialGang]:
    """The gangs that have been partial for PARTIAL_SECONDS, or for a time that is not known; those that hold the most
    GPUs first. `wall`: seconds since 1970."""
    waiting: dict[gangs.Ref, list[PodRecord]] = {}
    for uid in [*cluster.placements.queued, *cluster.placements.waiting]:
        pod = cluster.pods.get(uid)
        named = None if pod is None or pod.node else cluster.gangs.ref(pod)
        if pod is not None and named is not None:
            waiting.setdefault(named, []).append(pod)
    partials = []
    for named, pods in waiting.items():
        gang = _partial(cluster, named, pods, wall)
        if gang is not None and (gang.seconds is None or gang.seconds >= PARTIAL_SECONDS):
            partials.append(gang)
    return sorted(partials, key=lambda gang: (-gang.gpus, gang.ref))


def shown(partials: Sequence[PartialGang]) -> dict[str, Any]:
    """Two fields of an answer: the first of them, and how many are left out."""
    return {
        "partial_gangs": [gang.as_json() for gang in partials[:MOST_NAMED]],
        "partial_gangs_left_out": max(0, len(partials) - MOST_NAMED),
    }


def _partial(cluster: ClusterView, named: gangs.Ref, waiting: list[PodRecord], wall: float) -> PartialGang | None:
    """The gang, where it is partial. It is from when its first pod ran and the first of those that wait existed."""
    running = sorted(
        [pod for pod in cluster.gangs.bound(named) if not pod.terminating and not pod.finished],
        key=lambda pod: (pod.name, pod.uid),
    )
    minimum = cluster.gangs.together(named)
    gpus = sum(sum(cluster.amounts(pod)[3:]) for pod in running)
    if minimum is None or not gpus or len(running) >= minimum:
        return None
    starts = [pod.start for pod in running if pod.start is not None]
    created = [pod.created for pod in waiting if pod.created is not None]
    seconds = wall - max(min(starts), min(created)) if starts and created else None
    return PartialGang(named, tuple(running), len(waiting), minimum, gpus, seconds)
