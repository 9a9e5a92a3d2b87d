"""The gangs and single pods that hold GPUs, or have seats, as far as it matters when they end.

Theory of operation
-------------------
1. What a gang states of its end counts, unless the setting `queue.backfillConfidence` is set and enough is known of its
   class (`runtimes.py`). Then the learned end counts: of a gang that runs the one with an even chance, of one that
   waits the one at that confidence. So a gang passes the head only if it ends, at that confidence, before the head is
   as likely to start as not.
2. A learned end is read anew after FRESH_SECONDS, and once it has passed: a gang that has run for so long runs on for
   as long as those of its class do that ran so long. What waits for it starts later then, and is stated to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from operator import is_
from typing import Final, NamedTuple

from extender.cluster.cluster import ClusterView
from extender.cluster.slices import STEP, Sliced, pauses
from extender.cluster.tables import FIRST_GPU
from extender.objects import gangs
from extender.objects.gangs import Ref
from extender.objects.queueing import queue_of
from extender.objects.records import PodRecord
from extender.queue.endings import NO_GANG, NONE_LEARNED, LearnedEnd, stated_end
from extender.queue.gang import WaitingGang, stated_seconds
from extender.queue.runtimes import RunClass, RunTimeBounds, RunTimes, class_of
from extender.reservations.seats import Seat, Seats

MANY: Final = 8  # gangs that are read anew between two pauses: one costs what many that are known do
FRESH_SECONDS: Final = 60.0
MOST_BOUNDS: Final = 4_096  # that are kept, of gangs that are alike


class GangRun(NamedTuple):
    """A gang, or a single pod: (namespace, name) without a gang that breaks."""

    name: str  # for people
    kind: RunClass
    begun: float  # when its first pod began, seconds since 1970
    declared: float | None  # how long its pods run at most, seconds; None: not all of them state it
    most: float  # the same, by the deadline of its owner; inf: there is none
    stated: float  # when it has ended by what is stated, seconds since 1970; inf: not all of its pods state it
    gpus: Mapping[str, int]  # by node
    queue: str
    uids: tuple[str, ...]  # of its pods


class _Known(NamedTuple):
    """What a look has read of a gang."""

    pods: tuple[PodRecord, ...]
    gang: GangRun


class GangRuns:
    """Reads them. What is the same as before is not read again."""

    def __init__(self, cluster: ClusterView, seats: Seats, times: RunTimes) -> None:
        self._cluster, self._seats, self._times = cluster, seats, times
        self._known: dict[tuple[Ref, str], _Known] = {}  # by gang, of a single pod by its uid
        self._ends: dict[str, tuple[GangRun, LearnedEnd | None, float]] = {}  # by name, with when it was read
        self._bounds_of: dict[tuple[RunClass, float | None, float], tuple[RunTimeBounds | None, float]] = {}
        self._waiting: dict[Ref, tuple[int, float | None, RunTimeBounds | None, float]] = {}  # pods, what is declared

    def read(self, now: float) -> Sliced[list[GangRun]]:
        """All that hold GPUs on nodes that are known, then those with seats whose pods are not bound. `now`: seconds
        since 1970, when a pod begins that has not."""
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
        return [entry.gang for entry in known.values()] + (yield from self._released(now))

    def _run(self, named: Ref, pods: Sequence[PodRecord], now: float) -> GangRun:
        cluster, gpus = self._cluster, dict[str, int]()
        for pod in pods:
            gpus[pod.node] = gpus.get(pod.node, 0) + pod.gpu_count
        begun = min([now if pod.start is None else pod.start for pod in pods])
        first = pods[0]
        deadline = gangs.ends_at(first, cluster.gangs.objects)
        ends = first.deletion_at if first.terminating else deadline
        return GangRun(
            f"{first.namespace}/{first.name}" if named == NO_GANG else str(named),
            class_of(pods, cluster.gangs.objects),
            begun,
            stated_seconds(pods),
            inf if ends is None else max(0.0, ends - begun),
            max([stated_end(pod, inf if deadline is None else deadline, now) for pod in pods]),
            gpus,
            queue_of(first),
            tuple([pod.uid for pod in pods]),
        )

    def _released(self, now: float) -> Sliced[list[GangRun]]:
        """The gangs with seats whose pods are not bound: they count as started now."""
        by_gang: dict[str, list[Seat]] = {}
        for seat, pause in pauses(list(self._seats)):
            if pause:
                yield
            pod = self._cluster.pods.get(seat.uid)
            if pod is None or not pod.node:
                by_gang.setdefault(seat.gang, []).append(seat)
        return [self.released(name, seats, now) for name, seats in by_gang.items()]

    def released(self, name: str, seats: Sequence[Seat], now: float) -> GangRun:
        """A gang with these seats that begins `now`."""
        pods: list[PodRecord] = [pod for seat in seats if (pod := self._cluster.pods.get(seat.uid)) is not None]
        ref, gpus = Ref.of(name), gpus_of(seats)
        kind = class_of(pods, self._cluster.gangs.objects) if pods else RunClass(ref.namespace, sum(gpus.values()))
        queue = queue_of(pods[0]) if pods else ref.namespace
        declared = stated_seconds(pods) if pods else None
        stated, uids = inf if declared is None else now + declared, tuple([seat.uid for seat in seats])
        return GangRun(str(ref), kind, now, declared, inf, stated, gpus, queue, uids)

    # -- learned ends

    def ends(self, now: float) -> Sliced[Mapping[str, LearnedEnd]]:
        """The learned ends of pods, by uid; none where the setting is not set. `now`: seconds since 1970."""
        if self._cluster.settings.queue.backfill_confidence is None:
            return NONE_LEARNED
        ends: dict[str, LearnedEnd] = {}
        before, seen = self._ends, 0
        runs = yield from self.read(now)
        self._ends = {}
        for run in runs:
            seen += len(run.uids)
            known = before.get(run.name)
            if known is None or known[0] is not run or not _is_fresh(known[1], known[2], now):
                known = run, self.learned_end(run, now), now
                seen += STEP // MANY
            self._ends[run.name] = known
            if known[1] is not None:
                ends.update(dict.fromkeys(run.uids, known[1]))
            if seen >= STEP:
                seen = 0
                yield
        return ends

    def learned_end(self, run: GangRun, now: float) -> LearnedEnd | None:
        """When a gang ends as it is learned; None: what it states counts."""
        bounds = self._bounds(run.kind, run.declared, now)
        if bounds is None:
            return None
        elapsed = max(0.0, now - run.begun)
        at = run.begun + min(max(elapsed, run.most), bounds.likely(elapsed))
        return LearnedEnd(run.name, at, bounds.outlived(elapsed))

    def waiting(self, waiting_gangs: Sequence[WaitingGang], now: float) -> Sliced[Sequence[WaitingGang]]:
        """The gangs that wait, with what is learned of them; as they are where the setting is not set."""
        if self._cluster.settings.queue.backfill_confidence is None:
            return waiting_gangs
        before, seen, known_gangs = self._waiting, 0, list[WaitingGang]()
        self._waiting = {}
        for gang in waiting_gangs:
            pods, known = len(gang.pods) + len(gang.members), before.get(gang.ref)
            seen += 1
            if known is None or known[:2] != (pods, gang.seconds) or not 0.0 <= now - known[3] < FRESH_SECONDS:
                kind = class_of([*gang.pods, *gang.members], self._cluster.gangs.objects)
                known = pods, gang.seconds, self._bounds(kind, gang.seconds, now), now
                seen += STEP // MANY + pods
            self._waiting[gang.ref] = known
            known_gangs.append(gang if known[2] is None else replace(gang, learned=known[2]))
            if seen >= STEP:
                seen = 0
                yield
        return known_gangs

    def _bounds(self, kind: RunClass, declared: float | None, now: float) -> RunTimeBounds | None:
        confidence = self._cluster.settings.queue.backfill_confidence
        if confidence is None:
            return None
        key = kind, declared, confidence
        known = self._bounds_of.get(key)
        if known is None or not 0.0 <= now - known[1] < FRESH_SECONDS:
            if len(self._bounds_of) == MOST_BOUNDS:
                self._bounds_of.clear()
            known = self._bounds_of[key] = self._times.bounds(kind, now, declared, confidence), now
        return known[0]


def gpus_of(seats: Iterable[Seat]) -> dict[str, int]:
    """GPUs of seats, by node."""
    gpus: dict[str, int] = {}
    for seat in seats:
        gpus[seat.node] = gpus.get(seat.node, 0) + sum(seat.amounts[FIRST_GPU:])
    return gpus


def _is_fresh(end: LearnedEnd | None, read: float, now: float) -> bool:
    return 0.0 <= now - read < FRESH_SECONDS and (end is None or end.at > now)


def started_ends(gang: WaitingGang, uids: Iterable[str], now: float) -> Mapping[str, LearnedEnd]:
    """The learned ends of a gang of these pods that starts now, by uid."""
    at = None if gang.learned is None else gang.likely_end(now)
    return NONE_LEARNED if at is None else dict.fromkeys(uids, LearnedEnd(gang.ref.text, at, late=False))
