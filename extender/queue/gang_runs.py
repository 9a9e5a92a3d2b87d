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

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import inf
from operator import is_
from typing import Final, NamedTuple

from extender.cluster.cluster import ClusterView
from extender.cluster.slices import RUN, STEP, Sliced, Tally, collected, in_order, pauses
from extender.cluster.tables import FIRST_GPU
from extender.objects import gangs
from extender.objects.gangs import Ref
from extender.objects.pods import SEAT_REJECTED, UNSCHEDULABLE
from extender.objects.queueing import duration_of, queue_of
from extender.objects.records import Owner, PodRecord
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


class _KnownRun(NamedTuple):
    """What a look has read of a gang."""

    pods: tuple[PodRecord, ...]
    gang: GangRun


class GangRuns:
    """Reads them. What is the same as before is not read again."""

    def __init__(self, cluster: ClusterView, seats: Seats, times: RunTimes) -> None:
        self._cluster, self._seats, self._times = cluster, seats, times
        self._known: dict[tuple[Ref, str], _KnownRun] = {}  # by gang, of a single pod by its uid
        self._ends: dict[str, tuple[GangRun, LearnedEnd | None, float]] = {}  # by name, with when it was read
        self._bounds_of: dict[tuple[RunClass, float | None, float], tuple[RunTimeBounds | None, float]] = {}
        self._waiting: dict[Ref, tuple[int, float | None, RunTimeBounds | None, float]] = {}  # pods, what is declared

    def read(self, now: float) -> Sliced[list[GangRun]]:
        """All that hold GPUs on nodes that are known, then those with seats whose pods are not bound. `now`: seconds
        since 1970, when a pod begins that has not."""
        cluster, before = self._cluster, self._known
        pods: dict[tuple[Ref, str], list[PodRecord]] = {}
        tally = Tally()
        for node in list(cluster.gpus.topologies):
            seen = 0
            for pod in cluster.pods_on(node) if cluster.row(node) >= 0 else ():
                seen += 1
                if pod.gpus:
                    named = None if cluster.gangs.of(pod) is None else cluster.workloads.gang_of(pod.uid)
                    pods.setdefault((NO_GANG, pod.uid) if named is None else (named, ""), []).append(pod)
            if tally.full(seen):
                yield
        known: dict[tuple[Ref, str], _KnownRun] = {}
        for key, own in pods.items():
            old, seen = before.get(key), len(own)
            if old is not None and len(old.pods) == len(own) and all(map(is_, own, old.pods)):
                known[key] = old
            else:
                known[key] = _KnownRun(tuple(own), self._run(key[0], own, now))
                seen += STEP // MANY
            if tally.full(seen):
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
        before, tally = self._ends, Tally()
        runs = yield from self.read(now)
        self._ends = {}
        for run in runs:
            known, seen = before.get(run.name), len(run.uids)
            if known is None or known[0] is not run or not _is_fresh(known[1], known[2], now):
                known = run, self.learned_end(run, now), now
                seen += STEP // MANY
            self._ends[run.name] = known
            if known[1] is not None:
                ends.update(dict.fromkeys(run.uids, known[1]))
            if tally.full(seen):
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
        before, tally, known_gangs = self._waiting, Tally(), list[WaitingGang]()
        self._waiting = {}
        for gang in waiting_gangs:
            pods, known, seen = len(gang.pods) + len(gang.members), before.get(gang.ref), 1
            if known is None or known[:2] != (pods, gang.seconds) or not 0.0 <= now - known[3] < FRESH_SECONDS:
                kind = class_of([*gang.pods, *gang.members], self._cluster.gangs.objects)
                known = pods, gang.seconds, self._bounds(kind, gang.seconds, now), now
                seen += STEP // MANY + pods
            self._waiting[gang.ref] = known
            known_gangs.append(gang if known[2] is None else replace(gang, learned=known[2]))
            if tally.full(seen):
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


# -- when running pods end, as far as that is declared


NO_GANG: Final = Ref("", "", "")
OVERRUN_SECONDS: Final = 30.0
"""For so long a pod that is past its stated end counts as ending now: its containers have their grace, which is 30 s by
default. Otherwise the seats that are reserved after it would go to others at the moment at which they become free."""


class LearnedEnd(NamedTuple):
    """When a gang that runs ends with an even chance, as it is learned."""

    gang: str  # for people
    at: float  # seconds since the epoch
    late: bool  # it has run for longer than gangs like it do, at the confidence that is set


class Ending(NamedTuple):
    """A pod that holds GPUs."""

    uid: str
    row: int  # of its node
    # when it has ended at the latest, seconds since the epoch; None: nothing states it, or it runs longer than is
    # stated
    at: float | None
    gang: Ref | None = None  # those of one gang without a time end together; None: it ends alone
    rejected: bool = False  # kube-scheduler rejects it on its seat, so that it is not known when it starts
    learned: LearnedEnd | None = None  # by which `at` is; None: by what is stated


NONE_LEARNED: Final[Mapping[str, LearnedEnd]] = {}


class _Known(NamedTuple):
    """What a look has read of a pod."""

    pod: PodRecord
    deadline: float  # of its owner
    at: float  # inf = it has no time
    start: float  # when it began
    ending: Ending
    learned: LearnedEnd | None


class Endings:
    """Reads when the running pods of a cluster end. What is the same as before is not read again."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._known: dict[str, _Known] = {}
        self._order: list[Ending] = []  # of the known pods

    def read(self, now: float, learned: Mapping[str, LearnedEnd] = NONE_LEARNED) -> Sliced[list[Ending]]:
        """All bound GPU pods on nodes that are known: by the time at which they end, then those without one, the oldest
        gangs first. `now`: seconds since the epoch; `learned`: ends by uid that count in place of what is stated."""
        cluster, before = self._cluster, self._known
        by_uid: dict[str, _Known] = {}
        deadlines: dict[tuple[str, Owner], float] = {}  # of the owners: the pods of one owner are many
        same, tally = True, Tally()
        for node in list(cluster.gpus.topologies):
            row, seen = cluster.row(node), 0
            if row < 0:
                continue
            for pod in cluster.pods_on(node):
                if not pod.gpus:
                    continue
                seen += 1
                deadline = inf if pod.owner is None else _of_owner(pod, pod.owner, deadlines, cluster)
                known = before.get(pod.uid)
                end = learned.get(pod.uid) if learned else None
                if known is None or known.learned is not end or not _stands(known, pod, row, deadline, cluster, now):
                    known, same = _read(pod, row, deadline, cluster, now, end), False
                by_uid[pod.uid] = known
            if tally.full(seen):
                yield
        if not same or len(by_uid) != len(before):
            self._order = yield from _in_order(list(by_uid.values()))
        self._known = by_uid
        yield
        return list(self._order)


def stated(
    cluster: ClusterView, now: float, nodes: Iterable[str] | None = None
) -> Iterator[tuple[PodRecord, float | None]]:
    """Each bound GPU pod on a node that is known, and when it has ended at the latest, as `Ending.at`. In the order of
    the nodes. `now`: seconds since the epoch; `nodes`: None: all."""
    deadlines: dict[tuple[str, Owner], float] = {}
    for node in cluster.gpus.topologies if nodes is None else nodes:
        for pod in cluster.pods_on(node) if cluster.row(node) >= 0 else ():
            if pod.gpus:
                deadline = inf if pod.owner is None else _of_owner(pod, pod.owner, deadlines, cluster)
                at = _end(pod, deadline, now)
                yield pod, at if at < inf else None


def without_gpus(cluster: ClusterView, now: float) -> Sliced[list[Ending]]:
    """The bound pods without GPUs on the nodes with GPUs, but those that never end: of a DaemonSet, and static ones. In
    no order. `now`: seconds since the epoch."""
    plain: list[Ending] = []
    tally = Tally()
    for node in list(cluster.gpus.topologies):
        row, seen = cluster.row(node), 0
        for pod in cluster.pods_on(node) if row >= 0 else ():
            seen += 1
            if not (pod.gpus or pod.daemon or pod.mirror):
                at = _end(pod, _or_never(gangs.ends_at(pod, cluster.gangs.objects)), now)
                plain.append(Ending(pod.uid, row, at if at < inf else None))
        if tally.full(seen):
            yield
    return plain


def _of_owner(pod: PodRecord, owner: Owner, deadlines: dict[tuple[str, Owner], float], cluster: ClusterView) -> float:
    key = (pod.namespace, owner)
    deadline = deadlines.get(key)
    if deadline is None:
        deadline = deadlines[key] = _or_never(gangs.ends_at(pod, cluster.gangs.objects))
    return deadline


def _stands(known: _Known, pod: PodRecord, row: int, deadline: float, cluster: ClusterView, now: float) -> bool:
    """Whether what was read of a pod is so still."""
    ending = known.ending
    same = known.pod is pod and known.deadline == deadline and ending.row == row
    if not same or known.at <= now or pod.start is None:
        return False
    return ending.at is not None or ending.gang == cluster.workloads.gang_of(pod.uid)


def _read(
    pod: PodRecord, row: int, deadline: float, cluster: ClusterView, now: float, learned: LearnedEnd | None
) -> _Known:
    start = now if pod.start is None else pod.start
    if learned is not None and not pod.terminating:
        at = max(now, learned.at)
        return _Known(pod, deadline, at, start, Ending(pod.uid, row, at, learned=learned), learned)
    at = _end(pod, deadline, now)
    gang = None if at < inf else cluster.workloads.gang_of(pod.uid)
    return _Known(pod, deadline, at, start, Ending(pod.uid, row, at if at < inf else None, gang), learned)


def _in_order(known_pods: Sequence[_Known]) -> Sliced[list[Ending]]:
    oldest: dict[Ref, float] = {}  # when the first pod of a gang began
    for known, pause in pauses(known_pods, RUN):
        if pause:
            yield
        if (gang := known.ending.gang) is not None:
            oldest[gang] = min(known.start, oldest.get(gang, inf))

    def key(known: _Known) -> tuple[float, float, Ref, str, Ending]:
        gang = known.ending.gang
        start, name = (known.start, NO_GANG) if gang is None else (oldest[gang], gang)
        return known.at, start, name, known.ending.uid, known.ending

    order = []
    keyed = yield from in_order((yield from collected(map(key, known_pods), RUN)))
    keyed.reverse()
    while keyed:  # each is freed in its slice, not all at the end
        order.append(keyed.pop()[-1])
        if len(order) % RUN == 0:
            yield
    return order


def is_rejected(pod: PodRecord) -> bool:
    """Whether kube-scheduler rejects the pod on its seat. That it could not ask us is no rejection."""
    return pod.pod_scheduled in (UNSCHEDULABLE, SEAT_REJECTED)


def is_schedulable(node: str, cluster: ClusterView) -> bool:
    """Whether the node exists and is not cordoned."""
    record = cluster.nodes.get(node)
    return record is not None and not record.unschedulable


def seated(pod: PodRecord, row: int, cluster: ClusterView, now: float, learned: LearnedEnd | None = None) -> Ending:
    """The ending of a pod that has a seat and is not bound yet: it counts as started now."""
    if learned is not None:
        return Ending(pod.uid, row, max(now, learned.at), rejected=is_rejected(pod), learned=learned)
    at = _end(pod, _or_never(gangs.ends_at(pod, cluster.gangs.objects)), now)
    if at == inf:
        return Ending(pod.uid, row, None, cluster.workloads.gang_of(pod.uid))
    return Ending(pod.uid, row, at, rejected=is_rejected(pod))


def put(order: list[Ending], new: Iterable[Ending]) -> Sliced[None]:
    """Put the endings of pods that start now into an order of `endings`: the youngest are last where times are equal,
    or not known. The pods of a gang, which end together, are put there together."""
    for number, (at, together) in enumerate(groupby(new, lambda ending: ending.at), 1):
        place = bisect_right(order, _or_never(at), key=lambda ending: _or_never(ending.at))
        order[place:place] = together
        if number % STEP == 0:
            yield


def _end(pod: PodRecord, deadline: float, now: float) -> float:
    """When a bound pod has ended at the latest, seconds since the epoch, not before `now`; inf: not known. One that is
    past its duration for OVERRUN_SECONDS has overrun it."""
    at = stated_end(pod, deadline, now)
    return max(now, at) if pod.terminating or at > now - OVERRUN_SECONDS else inf


def stated_end(pod: PodRecord, deadline: float, now: float) -> float:
    """When a pod has ended at the latest by what is stated, seconds since the epoch; inf: nothing states it. One that
    has not started counts as started now. `deadline`: of its owner, inf: none."""
    if pod.terminating:
        return pod.deletion_at or now
    seconds = duration_of(pod)
    return deadline if seconds is None else min(deadline, (now if pod.start is None else pod.start) + seconds)


def _or_never(at: float | None) -> float:
    return inf if at is None else at


def prefixes(order: Sequence[Ending]) -> Sliced[list[int]]:
    """How many of the endings have come at each moment that there is: all that end at one time come together, and of
    those without a time the pods of one gang."""
    counts = []
    for count, pause in pauses(range(1, len(order) + 1), RUN):
        if pause:
            yield
        if count == len(order) or not _together(order[count - 1], order[count]):
            counts.append(count)
    return counts


def _together(ending: Ending, other: Ending) -> bool:
    return ending.at == other.at and (ending.at is not None or (ending.gang is not None and ending.gang == other.gang))
