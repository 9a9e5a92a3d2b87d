"""Pods of a gang that do not exist yet: its owner creates them once others of its pods run.

Each is stood in for by a record of its owner's template. So the gang is placed, counted and reserved whole. The uid of
a stand-in names its gang, role and index: it is the same at every look, and on every instance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from extender.cluster.cluster import ClusterView
from extender.cluster.slices import Sliced, collected, finish
from extender.objects import gangs
from extender.objects.gangs import Ref
from extender.objects.queueing import rank_of
from extender.objects.records import GroupRecord, LatePods, PodRecord
from extender.reservations.seats import Seats, absent_uid, is_absent


def present(cluster: ClusterView, named: gangs.Ref) -> list[PodRecord]:
    """The gang's pods that exist and are neither finished nor terminating, by uid."""
    workloads = cluster.workloads
    uids = (*workloads.gang_pods.get(named, ()), *workloads.gang_cpu_pods.get(named, ()))
    pods_by_uid = {uid: cluster.pods[uid] for uid in uids}
    # Bound pods without GPUs are in the gangs of bound pods alone.
    pods_by_uid.update({pod.uid: pod for pod in cluster.gangs.bound(named) if not pod.gpus and not pod.terminating})
    return [pods_by_uid[uid] for uid in sorted(pods_by_uid)]


class StandIns:
    """The stand-ins of one cluster. They are asked for several times a second, so they are kept, MOST_KEPT of them.
    `remade`: which absent pods need none, because they have ended."""

    def __init__(self, cluster: ClusterView, wall: Callable[[], float] | None = None) -> None:
        """`wall`: as for Remade."""
        self.cluster = cluster
        self.remade = Remade(wall)
        self._kept: dict[gangs.Ref, _Kept] = {}

    def of(self, named: gangs.Ref, existing: Sequence[PodRecord]) -> list[PodRecord]:
        """As `steps`, in one go."""
        return finish(self.steps(named, existing))

    def steps(self, named: gangs.Ref, existing: Sequence[PodRecord]) -> Sliced[list[PodRecord]]:
        """Of the late pods of the gang those that do not exist. `existing`: its pods that exist. Their priority is the
        lowest of `existing`: a template names a class, and the API server writes the number."""
        objects = self.cluster.gangs.objects
        owner = gangs.owner_of(named, objects)
        if owner is None or not owner.late_pods:
            return []
        ranks = {rank_of(pod) for pod in existing}
        unnumbered = Counter(role for role, index in map(rank_of, existing) if index < 0)
        stand_ins: list[PodRecord] = []
        ranked = yield from self._all(named, owner, min((pod.priority for pod in existing), default=0))
        for late, pods in zip(owner.late_pods, ranked, strict=True):
            missing = [pod for rank, pod in pods if rank not in ranks]
            creator = objects.get(("batch", "Job", named.namespace, late.creator))
            if creator is not None and creator.size is not None:  # what the Job has completed does not come again
                created = sum(pod.owner is not None and pod.owner.name == late.creator for pod in existing)
                missing = missing[: max(0, creator.size - created)]
            role = rank_of(late.template)[0]
            taken = min(unnumbered[role], len(missing))
            unnumbered[role] -= taken
            stand_ins += missing[taken:]
        return stand_ins

    def seated(self, seats: Seats) -> Sliced[dict[str, PodRecord]]:
        """By uid, the stand-ins of all pods that do not exist, and of those that came a moment ago and have not taken
        their seats yet; but for those of gangs that ask for new seats."""
        cluster = self.cluster
        by_uid: dict[str, PodRecord] = {}
        again = set(alone(seats))
        for name in list(seats.absent):
            yield
            named = gangs.Ref.of(name)
            existing = present(cluster, named)
            if name not in again or not any(pod.uid in cluster.placements.queued for pod in existing):
                by_uid.update({pod.uid: pod for pod in (yield from self.steps(named, existing))})
                by_uid.update((yield from self._not_taken(named, existing, seats)))
        return by_uid

    def _not_taken(self, named: gangs.Ref, existing: Sequence[PodRecord], seats: Seats) -> Sliced[dict[str, PodRecord]]:
        """The stand-ins that have seats still, of pods of the gang that exist."""
        owner = gangs.owner_of(named, self.cluster.gangs.objects)
        new = {rank_of(pod) for pod in existing if not pod.node and seats.of(pod.uid) is None}
        if owner is None or not new:
            return {}
        ranked = yield from self._all(named, owner, min(pod.priority for pod in existing))
        return {pod.uid: pod for pods in ranked for rank, pod in pods if rank in new and seats.of(pod.uid) is not None}

    def _all(self, named: gangs.Ref, owner: GroupRecord, priority: int) -> Sliced[_Ranks]:
        """All late pods of the gang, be they created or not; one list for each of `owner.late_pods`."""
        known = self._kept.get(named)
        if known is None or known.owner is not owner or known.priority != priority:
            self._kept.pop(named, None)
            ranks = _Ranks()
            for late in owner.late_pods:
                ranks.append((yield from collected(_ranked(named, late, priority))))
            known = _Kept(owner, priority, ranks)
            number = sum(ranks_kept.number for ranks_kept in (*self._kept.values(), known))
            while self._kept and number > MOST_KEPT:
                number -= self._kept.pop(next(iter(self._kept))).number
            self._kept[named] = known
        return known.ranks


def seated(cluster: ClusterView, seats: Seats) -> dict[str, PodRecord]:
    """As `StandIns.seated`, once and in one go."""
    return finish(StandIns(cluster).seated(seats))


def alone(seats: Seats) -> list[str]:
    """The gangs that have absent seats and no others."""
    return [name for name, uids in seats.absent.items() if len(uids) == len(seats.gangs[name])]


def existing(pods: Iterable[PodRecord]) -> list[PodRecord]:
    """Those that are no stand-ins."""
    return [pod for pod in pods if not is_absent(pod.uid)]


MOST_KEPT: Final = 20_000
"""Stand-ins, about 1 kB each."""
_Ranks = list[list[tuple[tuple[str, int], PodRecord]]]
"""(rank, stand-in)."""


class _Kept(NamedTuple):
    """The stand-ins of a gang, and what they were made of."""

    owner: GroupRecord
    priority: int
    ranks: _Ranks

    @property
    def number(self) -> int:
        """How many they are."""
        return sum(map(len, self.ranks))


def _ranked(named: gangs.Ref, late: LatePods, priority: int) -> Iterator[tuple[tuple[str, int], PodRecord]]:
    creator = f"{late.creator}-{named.part}" if named.part else late.creator  # the group of a LeaderWorkerSet
    for index in range(late.first, late.end):
        labels = late.template.labels | ({late.label: str(index)} if late.label else {})
        pod = replace(late.template, labels=labels, name=f"{creator}-{index}" if late.label else creator)
        rank = rank_of(pod)
        yield rank, replace(pod, uid=absent_uid(named.text, *rank), priority=priority)


# -- pods of a gang that do not exist and do not come any more, where no status of an owner states it
#
# The watch brings no pod that has ended, and a label, an annotation or a Kueue pod group has no status. But a gang that
# runs has been whole, and its owner remakes lost pods at once: what is absent for SETTLED_SECONDS has ended.


SETTLED_SECONDS: Final = 60.0
"""From when the same pods of a gang that runs wait: longer than owners take to remake pods that they lose together."""
MOST_GANGS: Final = 10_000  # gangs


class _Waits(NamedTuple):
    """The pods that wait, by uid, since when, and whether the absent ones have ended."""

    uids: frozenset[str]
    since: float
    settled: bool


class Remade:
    """Whether the pods that wait were remade, and are all that their owner still wants beside those that run."""

    def __init__(self, wall: Callable[[], float] | None = None) -> None:
        """`wall`: seconds since 1970; None: the time is not known, and absent pods count as wanted."""
        self._wall = wall
        self._waits: dict[Ref, _Waits] = {}

    def settled(self, named: Ref, queued: Sequence[PodRecord], others: Sequence[PodRecord]) -> bool:
        """Whether the absent pods of an incomplete gang have ended. `queued`: its pods that wait; `others`: all others.
        Once they have, this holds until a further pod waits, also where the last of `others` has ended meanwhile."""
        if self._wall is None or not queued:
            return False
        now, uids = self._wall(), frozenset(pod.uid for pod in queued)
        waits = self._waits.pop(named, None)
        if waits is None or not uids <= waits.uids:
            waits = _Waits(uids, now, settled=False)
        if not waits.settled:
            if not any(pod.node for pod in others):
                return False
            waits = waits._replace(settled=now - waits.since >= SETTLED_SECONDS)
        if len(self._waits) >= MOST_GANGS:
            del self._waits[next(iter(self._waits))]
        self._waits[named] = waits._replace(uids=uids)
        return waits.settled
