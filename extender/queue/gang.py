"""The gangs that wait behind our scheduling gate, as far as their pods exist. A single pod is a gang of one."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgspec.structs import replace

from extender.cluster.cluster import ClusterView
from extender.cluster.gangs import mixes_models
from extender.cluster.slices import STEP, Sliced, Tally, collected, finish, in_order, pauses
from extender.objects import gangs, queueing
from extender.objects.gangs import Ref
from extender.objects.queueing import GATE, Domain, rank_of
from extender.objects.records import GroupRecord, LatePods, PartDomain, PodRecord
from extender.queue.levels import SHORT
from extender.queue.runtimes import RunTimeBounds
from extender.reservations.seats import Seats, absent_uid, is_absent

# -- pods of a gang that do not exist yet: its owner creates them once others of its pods run.
#
# Each is stood in for by a record of its owner's template. So the gang is placed, counted and reserved whole. The uid
# of a stand-in names its gang, role and index: it is the same at every look, and on every instance.


def present(cluster: ClusterView, named: Ref) -> list[PodRecord]:
    """The gang's pods that exist and are neither finished nor terminating, by uid."""
    workloads = cluster.workloads
    uids = (*workloads.gang_pods.get(named, ()), *workloads.gang_cpu_pods.get(named, ()))
    pods_by_uid = {uid: cluster.pods[uid] for uid in uids}
    # Bound pods without GPUs are in the gangs of bound pods alone.
    pods_by_uid.update({pod.uid: pod for pod in cluster.gangs.bound(named) if not pod.gpus and not pod.terminating})
    return [pods_by_uid[uid] for uid in sorted(pods_by_uid)]


class StandIns:
    """The stand-ins of one cluster. They are asked for several times a second, so they are kept, MOST_KEPT of them.
    `remade`: which absent pods need none, because they have ended; `passed_over`: gangs that wait for pods of which the
    latest look made no stand-ins."""

    def __init__(self, cluster: ClusterView, wall: Callable[[], float] | None = None) -> None:
        """`wall`: as for Remade."""
        self.cluster = cluster
        self.remade = Remade(wall)
        self.passed_over: Collection[Ref] = frozenset()
        self._kept: dict[Ref, _Kept] = {}

    def of(self, named: Ref, existing: Sequence[PodRecord]) -> list[PodRecord]:
        """As `steps`, in one go."""
        return finish(self.steps(named, existing))

    def steps(self, named: Ref, existing: Sequence[PodRecord]) -> Sliced[list[PodRecord]]:
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
        again = set(wholly_absent(seats))
        for name in list(seats.absent):
            yield
            named = Ref.of(name)
            existing = present(cluster, named)
            if name not in again or not any(pod.uid in cluster.placements.queued for pod in existing):
                by_uid.update({pod.uid: pod for pod in (yield from self.steps(named, existing))})
                by_uid.update((yield from self._not_taken(named, existing, seats)))
        return by_uid

    def _not_taken(self, named: Ref, existing: Sequence[PodRecord], seats: Seats) -> Sliced[dict[str, PodRecord]]:
        """The stand-ins that have seats still, of pods of the gang that exist."""
        owner = gangs.owner_of(named, self.cluster.gangs.objects)
        new = {rank_of(pod) for pod in existing if not pod.node and seats.of(pod.uid) is None}
        if owner is None or not new:
            return {}
        ranked = yield from self._all(named, owner, min(pod.priority for pod in existing))
        return {pod.uid: pod for pods in ranked for rank, pod in pods if rank in new and seats.of(pod.uid) is not None}

    def _all(self, named: Ref, owner: GroupRecord, priority: int) -> Sliced[_Ranks]:
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


def seated_absent(cluster: ClusterView, seats: Seats) -> dict[str, PodRecord]:
    """As `StandIns.seated`, once and in one go."""
    return finish(StandIns(cluster).seated(seats))


def wholly_absent(seats: Seats) -> list[str]:
    """The gangs whose seats are all of pods that do not exist."""
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


def _ranked(named: Ref, late: LatePods, priority: int) -> Iterator[tuple[tuple[str, int], PodRecord]]:
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
MOST_GANGS: Final = 10_000  # that are remembered


class _QueuedPods(NamedTuple):
    """The pods that wait, by uid, since when, and whether the absent ones have ended."""

    uids: frozenset[str]
    since: float
    settled: bool


class Remade:
    """Whether the pods that wait were remade, and are all that their owner still wants beside those that run."""

    def __init__(self, wall: Callable[[], float] | None = None) -> None:
        """`wall`: seconds since 1970; None: the time is not known, and absent pods count as wanted."""
        self._wall = wall
        self._waits: dict[Ref, _QueuedPods] = {}

    def settled(self, named: Ref, queued: Sequence[PodRecord], others: Sequence[PodRecord]) -> bool:
        """Whether the absent pods of an incomplete gang have ended. `queued`: its pods that wait; `others`: all others.
        Once they have, this holds until a further pod waits, also where the last of `others` has ended meanwhile."""
        if self._wall is None or not queued:
            return False
        now, uids = self._wall(), frozenset(pod.uid for pod in queued)
        waits = self._waits.pop(named, None)
        if waits is None or not uids <= waits.uids:
            waits = _QueuedPods(uids, now, settled=False)
        if not waits.settled:
            if not any(pod.node for pod in others):
                return False
            waits = waits._replace(settled=now - waits.since >= SETTLED_SECONDS)
        if len(self._waits) >= MOST_GANGS:
            del self._waits[next(iter(self._waits))]
        self._waits[named] = waits._replace(uids=uids)
        return waits.settled


# -- the gangs that wait


SINGLE: Final = "pod"
"""The source in the Ref of a single pod."""


class _Pods(NamedTuple):
    """The pods of a gang: behind our gate, stand-ins for those that come later, and all others."""

    queued: Sequence[PodRecord]
    late: Sequence[PodRecord] = ()
    others: Sequence[PodRecord] = ()
    unread: str = ""  # as in WaitingGang

    @property
    def number(self) -> int:
        """How many they are."""
        return len(self.queued) + len(self.late) + len(self.others)


MOST_LATE: Final = 10_000
"""Late pods of one namespace of which a look makes stand-ins. An owner of a few lines states 2,000 of them, which take
20 ms: with thousands of such owners a look would take a minute."""
PASSED_OVER: Final = f"{MOST_LATE:,} such pods of its namespace are looked at together, and older gangs come first"
MOST_SEATS: Final = 5_000
"""Pods of a gang that start together. The seats of a gang are one text of a ConfigMap, which may have 1 MiB: up to 180
bytes for each, by the lengths of names."""


@dataclass(frozen=True, slots=True)
class WaitingGang:
    """A gang with pods that wait, or a single pod: Ref("pod", namespace, name)."""

    ref: Ref
    # those behind our gate, and stand-ins for those that its owner creates later (`StandIns`), by role and rank
    pods: tuple[PodRecord, ...]
    members: tuple[PodRecord, ...]  # those that are bound or released already, by uid, neither finished nor terminating
    other_gates: tuple[str, ...]  # the gates of other controllers on any of its unbound pods
    size: int | None  # how many pods it will have, None where nothing states it
    minimum: int  # how many must start together, `members` counted
    known: bool  # whether anything states the minimum
    priority: int
    created: float  # when the first of its pods was created, seconds since the epoch
    queue: str
    domain: Domain | None
    seconds: float | None  # how long its pods run at most; None: not all of its pods state it
    # when the deadline of its owner ends them, whenever they start; None: not all of its pods state it
    ends_at: float | None
    learned: RunTimeBounds | None = None  # of how long its pods run; None: what is stated counts
    unread: str = ""  # why there are no stand-ins, "" where nothing hinders them
    whole: bool = False  # the gates of all `pods` open, or of none
    apart: str = ""  # the level of which each of its Jobs has a domain of its own, "" for none
    mixes: bool = False  # whether its pods may be on nodes of several GPU models though one has room
    missing: str = ""  # a claim, template or DeviceClass of `pods` that does not exist, "" for none
    part_domains: tuple[PartDomain, ...] = ()  # what its owner requires of parts of its pods
    unchecked: tuple[str, ...] = ()  # what its owner states of the places of its pods and is not read

    @property
    def existing(self) -> list[PodRecord]:
        """Those of `pods` that exist, one or more."""
        return existing(self.pods)

    @property
    def complete(self) -> bool:
        """Whether enough pods exist with what their claims are made of, all of them are read in full, no other
        controller holds one of them back, and not too many of them start together."""
        enough = self.known and len(self.pods) + len(self.members) >= self.minimum
        large = self.minimum > MOST_SEATS and self.too_large  # no call for thousands of pods alone
        hindered = self.other_gates or self.missing or large or any(pod.unread for pod in self.pods)
        return enough and not hindered

    @property
    def too_large(self) -> bool:
        """Whether more pods start together than seats of one gang can be kept."""
        return self.lacking > MOST_SEATS

    @property
    def unread_text(self) -> str:
        """Which of `pods` cannot be read in full, for people; "" for none."""
        return next((pod.unread_text for pod in self.pods if pod.unread), "")

    @property
    def number(self) -> int:
        """How many pods it will have, as far as that is known; else how many there are."""
        return len(self.pods) + len(self.members) if self.size is None else self.size

    @property
    def needed(self) -> int:
        """How many of `pods` must start together; 0: the gang runs, and grows by one pod or more."""
        return len(self.pods) if self.whole else self.lacking

    @property
    def lacking(self) -> int:
        """How many pods it needs beside `members` to run."""
        return max(0, self.minimum - len(self.members))

    @property
    def gpus(self) -> int:
        """How many GPUs `pods` ask for."""
        return sum(pod.gpu_count for pod in self.pods)

    def end(self, start: float) -> float | None:
        """When its pods have ended, seconds since the epoch, as `start` is: at the latest, or as is learned, at the
        confidence that is set; None: it is not known."""
        return self._end(start, self.seconds if self.learned is None else self.learned.most)

    def likely_end(self, start: float) -> float | None:
        """The same with an even chance, where it is learned."""
        return self._end(start, self.seconds if self.learned is None else self.learned.likely())

    def _end(self, start: float, seconds: float | None) -> float | None:
        known = [end for end in (None if seconds is None else start + seconds, self.ends_at) if end is not None]
        return min(known, default=None)


def waits(cluster: ClusterView, stand_ins: StandIns | None = None) -> Sliced[list[WaitingGang]]:
    """All gangs that have pods behind our gate, in no order. Each is as the cluster is at its slices. `stand_ins`:
    those of looks before."""
    stand_ins = stand_ins or StandIns(cluster)
    by_gang: dict[Ref, list[str]] = {}
    for uid, pause in pauses(list(cluster.placements.queued)):
        if pause:
            yield
        if (pod := cluster.pods.get(uid)) is not None:
            by_gang.setdefault(cluster.workloads.gang_of(uid) or _ref_of_single(pod), []).append(uid)
    stand_ins.passed_over = yield from _passed_over(cluster, by_gang)
    waiting_gangs: list[WaitingGang] = []
    tally = Tally()
    for named, uids in by_gang.items():
        if tally.full(len(uids)):
            yield
        if pods := [cluster.pods[uid] for uid in uids if uid in cluster.placements.queued]:
            gangs_now = yield from _gangs(cluster, stand_ins, named, pods)
            waiting_gangs += gangs_now
            if tally.full(sum([len(gang.pods) for gang in gangs_now])):  # stand-ins are made of a few pods
                yield
    return waiting_gangs


def _passed_over(cluster: ClusterView, by_gang: Mapping[Ref, Sequence[str]]) -> Sliced[set[Ref]]:
    """Of each namespace the gangs that come after MOST_LATE late pods of older ones. `by_gang`: uids of pods."""
    late: dict[str, list[tuple[float, Ref, int]]] = {}
    for (named, uids), pause in pauses(by_gang.items()):
        if pause:
            yield
        owner = gangs.owner_of(named, cluster.gangs.objects)
        if owner is not None and (number := sum(pods.end - pods.first for pods in owner.late_pods)):
            created = min(
                [pod.created or 0.0 for uid in uids if (pod := cluster.pods.get(uid)) is not None], default=0.0
            )
            late.setdefault(named.namespace, []).append((created, named, number))
    passed_over: set[Ref] = set()
    for of_namespace in late.values():
        total = 0
        for _, named, number in (yield from in_order(of_namespace)):
            total += number
            if total > MOST_LATE:
                passed_over.add(named)
    return passed_over


def together(
    cluster: ClusterView, uids: Collection[str], name: str = "", stand_ins: StandIns | None = None
) -> Sliced[WaitingGang | None]:
    """The gang of these pods, with all of its pods behind our gate, as if each of these that is not bound were behind
    it too: to place it again. `name`: as in its seats, "": the gang that the first of the pods names; `stand_ins`: as
    for `waits`. None: no such pod is left, and none comes. In slices where the pods are many."""
    placed: list[PodRecord] = []
    for uid, pause in pauses(uids):
        if pause:
            yield
        if (pod := cluster.pods.get(uid)) is not None and not pod.node:
            placed.append(pod)
    if not name and not placed:
        return None
    named = Ref.of(name) if name else _of(cluster, placed[0])
    pods = {pod.uid: pod for pod in placed if not pod.terminating}
    if named.source == SINGLE:
        return (yield from _gang(cluster, named, _Pods(list(pods.values())), (1, 1))) if pods else None
    others: list[PodRecord] = []
    for pod, pause in pauses(present(cluster, named)):
        if pause:
            yield
        if pod.uid in cluster.placements.queued:
            pods[pod.uid] = pod
        elif pod.uid not in pods and pod.uid not in uids:
            others.append(pod)
    stand_ins = stand_ins or StandIns(cluster)
    whole = yield from _whole(stand_ins, named, list(pods.values()), others)
    if not pods and not whole.late:
        return None
    if whole.number >= STEP:
        yield
    return (yield from _gang(cluster, named, whole, _stated(stand_ins, named, whole) or (1, 1)))


def formed(cluster: ClusterView, named: Ref, pods: Sequence[PodRecord]) -> WaitingGang | None:
    """The gang of pods that need not be in the cluster, with its unbound pods that are; the others count as members.
    None: its pods do not depend on each other."""
    own = {pod.uid for pod in pods}
    present_pods = [pod for pod in present(cluster, named) if pod.uid not in own]
    waiting = [*pods, *(pod for pod in present_pods if not pod.node)]
    stand_ins = StandIns(cluster)
    whole = finish(_whole(stand_ins, named, waiting, [pod for pod in present_pods if pod.node]))
    stated = _stated(stand_ins, named, whole)
    return None if stated is None else finish(_gang(cluster, named, whole, stated))


def single(cluster: ClusterView, pod: PodRecord) -> WaitingGang:
    """The gang of one that a pod without a gang is in a queue; it need not be in the cluster."""
    return finish(_gang(cluster, _ref_of_single(pod), _Pods([pod]), (1, 1)))


def stated_seconds(pods: Sequence[PodRecord]) -> float | None:
    """How long the pods of a gang run at most; None: not all of its pods with GPUs state it."""
    return _latest(queueing.duration_of(pod) for pod in [pod for pod in pods if pod.gpus] or pods)


def _ref_of_single(pod: PodRecord) -> Ref:
    return Ref(SINGLE, pod.namespace, pod.name)


def _gangs(
    cluster: ClusterView, stand_ins: StandIns, named: Ref, pods: Sequence[PodRecord]
) -> Sliced[list[WaitingGang]]:
    """One gang, or each pod for itself where the pods do not depend on each other."""
    if named.source == SINGLE:
        return [(yield from _gang(cluster, named, _Pods(pods), (1, 1)))]
    first = _before(cluster, named)
    if first:
        alone = [pod for pod in pods if rank_of(pod)[0] in first]
        pods = [pod for pod in pods if rank_of(pod)[0] not in first]
        completing = yield from _each(cluster, alone)
        return completing + (yield from _gangs_of(cluster, stand_ins, named, pods)) if pods else completing
    return (yield from _gangs_of(cluster, stand_ins, named, pods))


def _gangs_of(
    cluster: ClusterView, stand_ins: StandIns, named: Ref, pods: Sequence[PodRecord]
) -> Sliced[list[WaitingGang]]:
    """As `_gangs`, of pods that belong to the gang."""
    first = _before(cluster, named)
    others = [
        pod
        for pod in present(cluster, named)
        if pod.uid not in cluster.placements.queued and not (first and rank_of(pod)[0] in first)
    ]
    if len(others) + len(pods) >= STEP:
        yield
    passed_over = named in stand_ins.passed_over
    whole = _Pods(pods, (), others) if passed_over else (yield from _whole(stand_ins, named, pods, others))
    if whole.number >= STEP:
        yield
    stated = _stated(stand_ins, named, whole)
    if passed_over and stated is not None:
        gang = yield from _gang(cluster, named, whole, stated)
        return [dataclasses.replace(gang, unread=PASSED_OVER)]
    if stated is None and _tried_as_one(pods):
        return [(yield from _gang(cluster, named, whole, (None, 1)))]
    if stated is not None:
        return [(yield from _gang(cluster, named, whole, stated))]
    return (yield from _each(cluster, pods))


def _of(cluster: ClusterView, pod: PodRecord) -> Ref:
    """The gang of a pod; of a pod without one, and of one that completes before its gang begins, the pod itself."""
    named = cluster.workloads.gang_of(pod.uid)
    return _ref_of_single(pod) if named is None or rank_of(pod)[0] in _before(cluster, named) else named


def _before(cluster: ClusterView, named: Ref) -> tuple[str, ...]:
    """The roles of the gang's owner whose pods complete before the gang begins: each of these pods waits for itself."""
    owner = gangs.owner_of(named, cluster.gangs.objects)
    return () if owner is None else owner.before


def _each(cluster: ClusterView, pods: Sequence[PodRecord]) -> Sliced[list[WaitingGang]]:
    """Each pod for itself."""
    singles = []
    for pod, pause in pauses(pods):
        if pause:
            yield
        singles.append((yield from _gang(cluster, _ref_of_single(pod), _Pods([pod]), (1, 1))))
    return singles


def _whole(stand_ins: StandIns, named: Ref, queued: Sequence[PodRecord], others: Sequence[PodRecord]) -> Sliced[_Pods]:
    """With the stand-ins of those that do not exist."""
    owner = gangs.owner_of(named, stand_ins.cluster.gangs.objects)
    if owner is None or not owner.late:
        return _Pods(queued, (), others)
    late = yield from stand_ins.steps(named, [*queued, *others])
    return _Pods(queued, late, others, owner.unread)


def _stated(stand_ins: StandIns, named: Ref, pods: _Pods) -> tuple[int | None, int | None] | None:
    """(size, how many must start together), each None where nothing states it; None: its pods do not depend on each
    other. Pods that have ended count in neither."""
    members, objects = gangs.Members([*pods.queued, *pods.others]), stand_ins.cluster.gangs.objects
    size, least = gangs.wanted(named, members, objects)
    if least == 0 or (least == 1 and not gangs.SOURCES[named.source].alone):
        return None
    needed = size if least is None else least
    if named in stand_ins.passed_over:
        return size, least
    if needed is not None and needed > pods.number and stand_ins.remade.settled(named, pods.queued, pods.others):
        size, least = None if size is None else pods.number, pods.number
    if size is None:
        return None, least
    # Pods that are created once the others run cannot be waited for: where nothing can stand in for them, they do not
    # count. Nor can more pods be waited for than there will be.
    uncounted = gangs.late(named, objects) if pods.unread else 0
    return size, max(1, min(size if least is None else least, size - uncounted))


def _gang(cluster: ClusterView, named: Ref, whole: _Pods, stated: tuple[int | None, int | None]) -> Sliced[WaitingGang]:
    """Others may run several times while the facts of many pods are read, and never for a few pods."""
    size, least = stated
    many = whole.number >= STEP
    if many:
        yield
    pods = [*whole.queued, *whole.late] if whole.late else whole.queued
    waiting_pods = whole.queued or pods
    ranked = (yield from _in_order(pods)) if len(pods) > 1 else pods
    if many:
        yield
    running_members = [pod for pod in whole.others if not pod.gated]
    gates = {gate for pod in (*waiting_pods, *whole.others) for gate in pod.gates if gate != GATE}
    deciding = [pod for pod in ranked if pod.gpus] or ranked  # a launcher need not state what its workers state
    first = next((pod for pod in deciding if pod.uid in cluster.pods), deciding[0]) if whole.late else deciding[0]
    if many:
        yield
    missing, absent_class = cluster.dra.claims.missing, cluster.dra.absent_class
    owner = gangs.owner_of(named, cluster.gangs.objects)
    domain, apart = yield from _domain(deciding, cluster.settings.topology_levels, owner)
    if many:
        yield
    of_roles = least is not None and least < whole.number
    minima = gangs.role_minima(named, cluster.gangs.objects) if of_roles else {}
    ranked, lacking = yield from _needed_first(ranked, running_members, minima)
    if lacking:  # its other pods cannot stand for those
        least = max(least or 0, len(pods) + len(running_members) + lacking)
    return WaitingGang(
        ref=named,
        pods=tuple(ranked),
        members=tuple(running_members),
        other_gates=tuple(sorted(gates)),
        size=size,
        minimum=len(pods) + len(running_members) if least is None else least,
        known=least is not None,
        priority=min(pod.priority for pod in deciding),
        created=min(pod.created or 0.0 for pod in (*waiting_pods, *running_members)),
        queue=queueing.queue_of(first),
        domain=domain,
        seconds=stated_seconds(deciding),
        ends_at=_latest(_owners_ends(deciding, cluster)),
        unread=whole.unread,
        whole=_tried_as_one(pods),
        apart=apart,
        mixes=named.source == SINGLE or all(mixes_models(pod, cluster.settings.placement) for pod in deciding),
        missing=next(
            (text for pod in whole.queued if pod.claim_refs and (text := missing(pod) or absent_class(pod))), ""
        ),
        part_domains=owner.part_domains if owner is not None else (),
        unchecked=owner.unchecked if owner is not None else (),
    )


def _needed_first(
    ranked: Sequence[PodRecord], members: Iterable[PodRecord], minima: Mapping[str, int | None]
) -> Sliced[tuple[Sequence[PodRecord], int]]:
    """(the pods, those first that the minima of their roles need; how many of these do not exist). Each part is in the
    order given. `members`: those that run."""
    missing = Counter({role: number for role, number in minima.items() if number and number > 0})
    if not missing:
        return ranked, 0
    for pod in members:
        missing[rank_of(pod)[0]] -= 1
    needed: list[PodRecord] = []
    others: list[PodRecord] = []
    for pod, pause in pauses(ranked):
        if pause:
            yield
        role = rank_of(pod)[0]
        (needed if missing[role] > 0 else others).append(pod)
        missing[role] -= 1
    if "" in missing:  # pods without a role may be of any
        return ranked, 0
    return [*needed, *others], sum(number for number in missing.values() if number > 0)


def _in_order(pods: Sequence[PodRecord]) -> Sliced[list[PodRecord]]:
    """By rank; few pods in one go."""
    if len(pods) < STEP:
        return sorted(pods, key=lambda pod: (rank_of(pod), pod.name, pod.uid))
    keys = ((rank_of(pod), pod.name, pod.uid, number, pod) for number, pod in enumerate(pods))
    keyed = yield from collected(keys)
    return [entry[-1] for entry in (yield from in_order(keyed))]


def _tried_as_one(pods: Iterable[PodRecord]) -> bool:
    """Whether kube-scheduler tries the pods together, as those of an in-tree PodGroup: one that is gated holds back all
    of them."""
    return any(pod.group is not None and not pod.group[0] for pod in pods)


def _domain(
    pods: Sequence[PodRecord], levels: Sequence[str], owner: GroupRecord | None
) -> Sliced[tuple[Domain | None, str]]:
    """(the domain of the gang, the level of which each of its Jobs has a domain of its own). Where its pods and its
    owner state several, a required one counts before a preferred one, and of these the closest. `levels`: labels, the
    closest first."""
    stated = {Domain(*owner.domain)} if owner is not None and owner.domain is not None else set[Domain]()
    for pod, pause in pauses(pods):
        if pause:
            yield
        if (domain := queueing.domain_of(pod)) is not None:
            stated.add(domain)
    apart = ""
    if stated and len({job_of(pod) for pod in pods}) > 1:
        # JobSet's annotation keeps each of its Jobs together, and the Jobs apart.
        apart = next((level for pod in pods if (level := pod.annotations.get(queueing.JOBSET_EXCLUSIVE))), "")
        stated -= {Domain(pod.annotations.get(queueing.JOBSET_EXCLUSIVE, ""), True) for pod in pods}
    if len(stated) < 2:
        return next(iter(stated), None), apart
    places = {level: place for place, level in enumerate((*SHORT, *levels))}
    first = min(stated, key=lambda choice: (not choice.required, places.get(choice.level, len(places)), choice.level))
    return first, apart


def job_of(pod: PodRecord) -> Hashable:
    """Which Job of a JobSet the pod is of. A stand-in has no key of its Job."""
    labels = pod.labels
    return rank_of(pod)[0], labels.get(queueing.JOB_INDEX, labels.get(queueing.JOBSET_JOB))


def _owners_ends(pods: Sequence[PodRecord], cluster: ClusterView) -> Iterator[float | None]:
    by_owner = {pod.owner: pod for pod in pods}  # the pods of one owner end alike
    return (gangs.ends_at(pod, cluster.gangs.objects) for pod in by_owner.values())


def _latest(stated: Iterable[float | None]) -> float | None:
    """The latest of them; None where one is not stated."""
    latest = 0.0
    for at in stated:
        if at is None:
            return None
        latest = max(latest, at)
    return latest
