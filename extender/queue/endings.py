"""When running pods end, as far as that is declared."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import Final, NamedTuple

from extender.cluster.cluster import ClusterView
from extender.cluster.slices import RUN, STEP, Sliced, collected, in_order, pauses
from extender.objects import gangs
from extender.objects.gangs import Ref
from extender.objects.queueing import duration_of
from extender.objects.records import SEAT_REJECTED, UNSCHEDULABLE, Owner, PodRecord

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
        same, seen = True, 0
        for node in list(cluster.gpus.topologies):
            row = cluster.row(node)
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
            if seen >= STEP:
                seen = 0
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
    seen = 0
    for node in list(cluster.gpus.topologies):
        row = cluster.row(node)
        for pod in cluster.pods_on(node) if row >= 0 else ():
            seen += 1
            if not (pod.gpus or pod.daemon or pod.mirror):
                at = _end(pod, _or_never(gangs.ends_at(pod, cluster.gangs.objects)), now)
                plain.append(Ending(pod.uid, row, at if at < inf else None))
        if seen >= STEP:
            seen = 0
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
