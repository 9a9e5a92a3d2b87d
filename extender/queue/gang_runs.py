"""The gangs and single pods that hold GPUs, as far as it matters when they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from operator import is_
from typing import Final, NamedTuple

from extender.cluster.cluster import ClusterView
from extender.cluster.slices import STEP, Sliced
from extender.objects import gangs
from extender.objects.gangs import Ref
from extender.objects.queueing import queue_of
from extender.objects.records import PodRecord
from extender.queue.endings import NO_GANG
from extender.queue.gang import stated_seconds
from extender.queue.runtimes import RunClass, class_of

MANY: Final = 8  # gangs that are read anew between two pauses: one costs what many that are known do


class GangRun(NamedTuple):
    """A gang, or a single pod: (namespace, name) without a gang that breaks."""

    name: str  # for people
    kind: RunClass
    begun: float  # when its first pod began, seconds since 1970
    declared: float | None  # how long its pods run at most, seconds; None: not all of them state it
    most: float  # the same, by the deadline of its owner; inf: there is none
    gpus: Mapping[str, int]  # by node
    queue: str


class _Known(NamedTuple):
    """What a look has read of a gang."""

    pods: tuple[PodRecord, ...]
    gang: GangRun


class GangRuns:
    """Reads them. What is the same as before is not read again."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._known: dict[tuple[Ref, str], _Known] = {}  # by gang, of a single pod by its uid

    def read(self, now: float) -> Sliced[list[GangRun]]:
        """All that hold GPUs on nodes that are known. `now`: seconds since 1970, when a pod begins that has not."""
        cluster, before = self._cluster, self._known
        pods: dict[tuple[Ref, str], list[PodRecord]] = {}
        seen = 0
        for node in list(cluster.gpus.topologies):
            for pod in cluster.pods_on(node) if cluster.row(node) >= 0 else ():
                seen += 1
                if pod.gpus:
                    named = None if cluster.gangs.of(pod) is None else cluster.workloads.gang_of(pod.uid)
                    pods.setdefault((NO_GANG, pod.uid) if named is None else (named, ""), []).append(pod)
            if seen >= STEP:
                seen = 0
                yield
        known: dict[tuple[Ref, str], _Known] = {}
        for key, own in pods.items():
            old = before.get(key)
            seen += len(own)
            if old is not None and len(old.pods) == len(own) and all(map(is_, own, old.pods)):
                known[key] = old
            else:
                known[key] = _Known(tuple(own), self._run(key[0], own, now))
                seen += STEP // MANY
            if seen >= STEP:
                seen = 0
                yield
        self._known = known
        return [entry.gang for entry in known.values()]

    def _run(self, named: Ref, pods: Sequence[PodRecord], now: float) -> GangRun:
        cluster, gpus = self._cluster, dict[str, int]()
        for pod in pods:
            gpus[pod.node] = gpus.get(pod.node, 0) + pod.gpu_count
        begun = min([now if pod.start is None else pod.start for pod in pods])
        first = pods[0]
        ends = first.deletion_at if first.terminating else gangs.ends_at(first, cluster.gangs.objects)
        return GangRun(
            f"{first.namespace}/{first.name}" if named == NO_GANG else str(named),
            class_of(pods, cluster.gangs.objects),
            begun,
            stated_seconds(pods),
            inf if ends is None else max(0.0, ends - begun),
            gpus,
            queue_of(first),
        )
