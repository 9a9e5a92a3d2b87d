"""Where would this gang go? The one answer of what-if, explain, capacity and the ways out.

The place is the queue's (`queue.places`), on the cluster of the question; where there is none, so is the eviction
(`queue.eviction_plan`). The rules of its queue count for a gang that waits behind our gate. All its pods start, or
none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from extender.ask.judge import Judge
from extender.ask.suppose import SupposedCluster
from extender.ask.text import count
from extender.cluster.cluster import ClusterView
from extender.cluster.slices import Pace, finish
from extender.errors import BadInput
from extender.objects.queueing import QUEUEING, is_queued, opened
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.preemption.gang_plan import GangSearch, GangSearchResult
from extender.preemption.search import Preemptor
from extender.queue.backfill import why_incomplete
from extender.queue.eviction_plan import EvictionPlanner, unsearched
from extender.queue.gang import SINGLE, WaitingGang, seated_absent, together, waits
from extender.queue.placement import GpuAllowance, JointPlacement, NoPlace, Placed
from extender.queue.places import NO_ROWS, GangStart, Places
from extender.queue.plan import Planner, QueueHead
from extender.queue.report import QueueReport, Waiting, first_names
from extender.queue.usage import Models, OverQuota, QueueHoldings
from extender.reservations.claims import Claims
from extender.reservations.seats import Seat, is_absent

LIMIT_MILLISECONDS: Final = 3_000.0
"""CPU time of the eviction search for a live server: then the best plan that is known counts, as not proved."""
MOST_NAMED: Final = 3
"""Nodes that a text names."""
HOLDING: Final = frozenset({"coscheduling", "kubernetes", "kueue", "volcano"})
"""Sources of gangs whose own system holds pods back until all of them can start."""
NEVER: Final = frozenset({"never", "incomplete"})
"""Codes of gangs that keep no guarantee: they fit nowhere, or are not there."""


@dataclass(frozen=True, slots=True)
class QueueLook:
    """What the queue does now."""

    report: QueueReport | None = None
    """Which gangs wait, and why; None: not known."""
    starts: Sequence[GangStart] = ()
    """Those that start, in order. Their seats are not reserved any more."""
    order: Sequence[WaitingGang] = ()
    """Those that start and those that wait, as they are tried."""

    def entry(self, uids: Iterable[str]) -> tuple[int, Waiting] | None:
        """(position from 1, the gang that waits with one of these pods)."""
        own = frozenset(uids)
        for position, waiting in enumerate(() if self.report is None else self.report.waiting, 1):
            if any(pod.uid in own for pod in waiting.gang.pods):
                return position, waiting
        return None

    def start(self, uids: Iterable[str]) -> GangStart | None:
        """The start of the gang of these pods."""
        own = frozenset(uids)
        return next((start for start in self.starts if any(seat.uid in own for seat in start.seats)), None)

    def before(self, uids: Iterable[str]) -> list[GangStart]:
        """The starts that come before the gang of these pods. A gang that does not exist yet comes last; no pods: none
        does."""
        own = frozenset(uids)
        if not own:
            return []
        tried = {gang.ref: at for at, gang in enumerate(self.order)}
        at = next((tried[gang.ref] for gang in self.order if any(pod.uid in own for pod in gang.pods)), len(tried))
        return [start for start in self.starts if tried[start.gang.ref] < at]

    @contextmanager
    def seated(self, claims: Claims, uids: Iterable[str]) -> Iterator[None]:
        """What starts before the gang of these pods counts as taken, as far as its pods are not placed yet."""
        seats = [seat for start in self.before(uids) for seat in start.seats if claims.seats.of(seat.uid) is None]
        claims.seats.reserve(seats)
        try:
            yield
        finally:
            for seat in seats:
                claims.seats.drop(seat.uid)


def where(seats: Iterable[Seat]) -> str:
    """The nodes of a gang that starts, for people."""
    pods = Counter(seat.node for seat in seats)
    if pods.total() == 1:
        return next(iter(pods))
    return first_names([f"{node} ({count(number, 'pod')})" for node, number in sorted(pods.items())], MOST_NAMED)


def look(judge: Judge, now: float, wall: float) -> QueueLook:
    """One look of the queue's planner, as its controller has it."""
    placement = JointPlacement(judge.cluster, judge.policy)
    planner = Planner(judge.cluster, judge.claims, placement, lambda: now, lambda: wall)
    starts = [start for start in planner.looks({}) if start is not None]
    for seat in [seat for start in starts for seat in start.seats]:
        judge.claims.seats.drop(seat.uid)
    return QueueLook(planner.report, starts, planner.order)


@dataclass(frozen=True, slots=True)
class GangCase:
    """A gang on a supposed cluster."""

    supposed: SupposedCluster
    gang: WaitingGang
    """Whole, so that all its pods start together."""
    requests: tuple[PodRequest, ...]
    asked: Preemptor
    """The question for its first pod with GPUs."""
    queued: bool
    """Whether its pods wait behind our gate."""
    queues: QueueHoldings
    """What the queues hold; without rules where those do not count for it."""

    @classmethod
    def of(
        cls, supposed: SupposedCluster, gang: WaitingGang, wall: float, report: QueueReport | None = None
    ) -> GangCase:
        """`report`: of the latest look at the queue. BadInput: none of its pods asks for a GPU."""
        cluster, queued = supposed.cluster, any(map(is_queued, gang.pods))
        gang = replace(gang, pods=tuple(map(opened, gang.pods)), whole=True)
        requests = tuple(map(supposed.claims.alone, gang.pods))
        first = next((at for at, request in enumerate(requests) if request.gpus), None)
        if first is None:  # pods without whole GPUs may ask for parts of one
            first = next((at for at, pod in enumerate(gang.pods) if cluster.dra.asks_gpus(pod)), None)
        if first is None:  # a claim that does not exist may ask for some
            first = next((at for at, pod in enumerate(gang.pods) if cluster.dra.absent(pod)), None)
        if first is None:
            wanted = ", ".join(cluster.resources[3:])
            raise BadInput(f"no pod of it asks for a GPU ({wanted})", path=f"gang {gang.ref}")
        asked = Preemptor(requests[first], gang.pods[first], supposed.now, wall)
        return cls(supposed, gang, requests, asked, queued, _queues(supposed.judge, report, ruled=queued))

    @property
    def allowances(self) -> list[GpuAllowance]:
        """What the quota leaves the gang."""
        return self.queues.allowances(self.queues.quota.more(self.gang.queue))

    @property
    def own(self) -> frozenset[str]:
        """The uids of its pods."""
        return frozenset(pod.uid for pod in (*self.gang.pods, *self.gang.members))

    def changed(self, gang: WaitingGang) -> GangCase:
        """The case of the gang with another specification."""
        return replace(self, gang=gang, requests=tuple(map(self.supposed.claims.alone, gang.pods)))

    def place(
        self,
        pods: int | None = None,
        without: frozenset[str] = frozenset(),
        allowances: Sequence[GpuAllowance] = (),
        gone: Mapping[int, Sequence[str]] = NO_ROWS,
    ) -> Placed | NoPlace:
        """A place for the first `pods` of the gang, None: all. `without`: uids of other pods whose claims do not count;
        `allowances`: as of a `NodeChoice`; `gone`: uids of pods that do not run, by row."""
        judge, gang_pods, requests = self.supposed.judge, self.gang.pods[:pods], self.requests[:pods]
        placement = JointPlacement(judge.cluster, judge.policy)
        places = Places(judge.cluster, judge.claims, placement, lambda: self.supposed.now)
        counted = places.counted(requests, self.own | without, gone)
        return finish(places.steps(self.gang, gang_pods, requests, counted, allowances))

    def evicting(self) -> tuple[Placed | None, tuple[PodRecord, ...], GangSearchResult]:
        """(the place of all pods after the cheapest eviction, its victims, the search)."""
        supposed, judge = self.supposed, self.supposed.judge
        search = GangSearch(judge.cluster, judge.policy, supposed.settings.preemption)
        placement, wall = JointPlacement(judge.cluster, judge.policy), self.asked.wall
        planner = EvictionPlanner(judge.cluster, judge.claims, placement, search, lambda: supposed.now, lambda: wall)
        pace = Pace(0.0, LIMIT_MILLISECONDS) if supposed.live else Pace()
        evicted = finish(planner.cheapest(QueueHead(self.gang, self.queues), self.gang.pods, (), pace))
        return evicted.placed, evicted.victims, evicted.search

    def over(self, placed: Placed) -> OverQuota | None:
        """Why the queue may not hold the gang: on no nodes, or not where it is placed."""
        over = self.queues.over(self.gang)
        return over or self.queues.quota.refused(self.gang.queue, self.gpus(placed))

    def gpus(self, placed: Placed) -> dict[str, int]:
        """GPUs by model that the gang takes where it is placed."""
        by_node: dict[str, int] = {}
        for pod, node in zip(self.gang.pods, placed.nodes, strict=False):
            by_node[node] = by_node.get(node, 0) + pod.gpu_count
        return self.queues.models.of(by_node)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of a gang."""

    placed: Placed | None = None
    """Where its pods go, without the `victims`; None: nowhere."""
    victims: tuple[PodRecord, ...] = ()
    search: GangSearchResult | None = None
    """For victims; None: none was made."""
    none: NoPlace | None = None
    """Why it fits nowhere now."""
    elsewhere: Placed | None = None
    """Where its pods fit now, and its queue may not hold them."""
    over: OverQuota | None = None
    """Why its queue may not hold it."""
    lacks: str = ""
    """Why it cannot start wherever there is room, "" where nothing hinders it."""

    @property
    def starts(self) -> bool:
        """Whether it has a place now, and no pod is evicted for it."""
        return self.placed is not None and not self.victims

    @property
    def proved(self) -> bool:
        """Whether it is known that nothing is better."""
        known = [part.proved for part in (self.placed, self.none, self.elsewhere) if part is not None]
        return all(known) and (self.search is None or self.search.proved)

    @property
    def why(self) -> str:
        """Why it does not start now, for people."""
        over = "" if self.over is None else self.over.text
        return self.lacks or over or ("" if self.none is None else self.none.text)


def outcome(case: GangCase, *, evicts: bool = True) -> Outcome:
    """What becomes of the gang on the cluster as it is. `evicts`: whether pods may be evicted for it."""
    gang, allowances = case.gang, case.allowances
    present = len(gang.pods) + len(gang.members)
    if lacks := gang.unread_text or no_answer(case.supposed.cluster, case.asked.pod):
        return Outcome(lacks=lacks)
    if case.queued and (gang.too_large or not gang.known):
        return Outcome(lacks=why_incomplete(gang))
    if present < gang.minimum:
        return Outcome(lacks=f"{present} of the {gang.minimum} pods that it needs to start are there")
    place = case.place(allowances=allowances)
    if isinstance(place, NoPlace) and allowances:
        place = case.place()
    if isinstance(place, Placed):
        over = case.over(place)
        return Outcome(place) if over is None else Outcome(elsewhere=place, over=over)
    if not evicts or unsearched(gang):
        return Outcome(none=place)
    placed, victims, search = case.evicting()
    over = None if placed is None else case.over(placed)
    if over is not None:
        return Outcome(none=place, over=over)
    return Outcome(placed, victims, search, place)


def asks_gpus(cluster: ClusterView, pod: PodRecord) -> bool:
    """Whether a pod asks for GPUs, or by claims for parts of them, for admin access, or for what another pod uses."""
    return bool(cluster.gpu_amount(pod) or pod.claim_node or cluster.dra.asks_gpus(pod))


def no_answer(cluster: ClusterView, pod: PodRecord) -> str:
    """Why the pod has no place, whatever is free: it asks for GPUs and cannot be read in full, so filter answers an
    Error; or it asks for no GPU that exists, since a claim, template or DeviceClass that it names does not exist. ""
    for others."""
    if asks_gpus(cluster, pod):
        return pod.unread_text
    absent = cluster.dra.absent(pod)
    return f"{absent} does not exist: kube-scheduler does not place it before that" if absent else ""


def by_itself(supposed: SupposedCluster, gang: WaitingGang) -> bool:
    """Whether what kube-scheduler and filter ask of its only pod is all that is asked."""
    first = gang.pods[0]
    if len(gang.pods) > 1 or is_absent(first.uid) or gang.apart or no_answer(supposed.cluster, first):
        return False
    if not gang.known and is_queued(first):
        return False
    bounded = gang.domain is not None and gang.domain.required
    in_gang = gang.ref.source != SINGLE
    return not (bounded and (in_gang or is_queued(first))) and not (is_queued(first) and supposed.settings.queue.queues)


def ungated(cluster: ClusterView, pod: PodRecord) -> WaitingGang | None:
    """The gang of a pod without our gate; None: it has none, or nothing of it waits."""
    named = cluster.workloads.gang_of(pod.uid)
    if named is None:
        return None
    return finish(together(cluster, list(cluster.workloads.gang_pods.get(named, ())), named.text))


def no_gate(cluster: ClusterView, gang: WaitingGang) -> str:
    """That no gate holds the pods of a gang back until all of them have a place, for people; "" where one does, another
    system does, or none is needed. Without a queue only of a domain that is required."""
    space, required = gang.ref.namespace, gang.domain is not None and gang.domain.required
    needed = (required and gang.number > 1) or (cluster.settings.queue.enabled and gang.minimum > 1)
    released = any(is_queued(pod) or pod.gates or pod.nominated_node for pod in gang.pods)
    if not needed or released or gang.ref.source in HOLDING:
        return ""
    exist = any(pod.uid in cluster.pods for pod in gang.pods)
    if not exist and any(cluster.pods[uid].namespace == space for uid in cluster.placements.queued):
        return ""  # so has the namespace the label
    label = f"label namespace {space} {QUEUEING}=enabled, and create them again"
    unless = "" if exist else f" unless namespace {space} has the label {QUEUEING}: enabled"
    level = f", and the domain required:{gang.domain.level} does not hold" if gang.domain and required else ""
    text = f"gang {gang.ref}: no gate holds its pods back until all have a place{unless}: they start one by one{level}"
    return f"{text}; {label}" if exist else text


def not_whole(judge: Judge, asked: Preemptor, gang: WaitingGang) -> str:
    """Of a pod without our gate: why its gang cannot run whole beside it, for people; "" where it can."""
    if gang.lacking < 2 or len(gang.pods) < gang.lacking:
        return ""
    if not (why := gang.unread_text):
        result = GangCase.of(SupposedCluster(judge, asked.now), gang, asked.wall).place()
        if isinstance(result, Placed) or result.most >= gang.lacking:
            return ""
        why = result.text
    return f"its gang {gang.ref} cannot run whole: {why}; without the gate of the queue its pods start one by one"


def _queues(judge: Judge, report: QueueReport | None, *, ruled: bool) -> QueueHoldings:
    """What the queues hold, and what they wait for. `report`: of the latest look, where it is known: a gang that fits
    nowhere, whatever ends, keeps no guarantee."""
    cluster = judge.cluster
    models = finish(Models.read(cluster))
    late = seated_absent(cluster, judge.claims.seats)
    held = finish(models.held({seat.uid: seat.node for seat in judge.claims.seats}, late))
    queues = QueueHoldings(cluster, models, cluster.settings.queue.queues if ruled else {}, held, late)
    never = {entry.gang.ref for entry in (() if report is None else report.waiting) if entry.code in NEVER}
    seated = judge.claims.seats.gangs
    wanting = [gang for gang in finish(waits(cluster)) if gang.ref not in never and gang.ref.text not in seated]
    queues.wanted = finish(models.wanted(wanting))
    return queues
