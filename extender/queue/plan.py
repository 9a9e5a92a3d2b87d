"""Which gang starts next, and why each other one waits: the order, the quota and backfill over the joint placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice, repeat
from math import inf
from typing import Final

from extender.cluster.cluster import Cluster, ClusterView
from extender.cluster.demand import is_particular
from extender.cluster.slices import RUN, STEP, Sliced, Tally, collected, pauses
from extender.objects import gangs
from extender.objects.advance import START_AT, starts_at
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.pod_request import wants_of
from extender.policy.roles import LabelClasses
from extender.queue.backfill import (
    HeadReservation,
    QueueSituation,
    StartDecision,
    TakenSeats,
    Trial,
    Waits,
    schedule,
)
from extender.queue.gang import StandIns, WaitingGang, together, waits, wholly_absent
from extender.queue.gang_runs import (
    Ending,
    Endings,
    GangRuns,
    LearnedEnd,
    is_rejected,
    is_schedulable,
    put,
    seated,
    started_ends,
    without_gpus,
)
from extender.queue.placement import GpuAllowance, JointPlacement, NoPlace, Placed, whatever_ends
from extender.queue.places import Counted, GangStart, Part, Places, Starts
from extender.queue.report import QueueReport, Waiting, first_names
from extender.queue.runtimes import RunTimes
from extender.queue.usage import (
    PLAIN,
    DecayedUse,
    FoundPlace,
    Models,
    OverQuota,
    QueueHoldings,
    fair_shares,
    in_turn,
    least,
    order,
    would_hold,
)
from extender.reservations.advance import AdvanceReservations
from extender.reservations.claims import Claims
from extender.reservations.seats import Seat, is_absent
from extender.times import rfc3339

NO_PAUSES: Final[Mapping[str, str]] = {}
NO_GPUS: Final[Mapping[str, int]] = {}
TOGETHER: Final = 64
"""Single pods of one kind that are placed together: the tables are read once for them."""
ABLE_SECONDS: Final = 30.0
"""For as long it counts whether a gang fits once all pods have ended."""
MOST_ASKED: Final = 4
"""Kinds of gangs of which one look finds whether they fit once all pods have ended, behind the head."""
MOST_NAMED: Final = 5  # pods in a text


@dataclass(frozen=True, slots=True)
class QueueHead:
    """The first gang in order that can start and has no place now, and what the queues hold."""

    gang: WaitingGang
    queues: QueueHoldings


class _Look:
    """What one look has found. `queues`: what they hold; `ready`: places of single pods that were found together with
    others; `requests`: of the pods of large gangs."""

    def __init__(
        self, queues: QueueHoldings, seated: Collection[str], classes: LabelClasses, advance: AdvanceReservations
    ) -> None:
        """`seated`: names of gangs with seats of their own, which count for all others."""
        self._seated, self._classes, self._advance = seated, classes, advance
        self.ready: dict[gangs.Ref, Placed] = {}
        self.requests: dict[gangs.Ref, list[PodRequest]] = {}
        self.queues = queues
        self._kinds: dict[gangs.Ref, Hashable] = {}
        self._singles: dict[Hashable, dict[gangs.Ref, WaitingGang]] = {}  # by kind, in order

    def read(self, in_order: Sequence[WaitingGang]) -> Generator[None, None, None]:
        """Of which kind each gang is."""
        tally = Tally()
        for gang in in_order:
            if tally.full(len(gang.pods)):
                yield
            kind = gang.ref if gang_name(gang) in self._seated else _kind(gang, self._classes)
            if self._advance and kind is not gang.ref:
                kind = kind, self._held_for(gang)
            self._kinds[gang.ref] = kind
            if len(gang.pods) == 1 and not gang.members and gang.complete:
                self._singles.setdefault(kind, {})[gang.ref] = gang

    def over(self, gang: WaitingGang, place: FoundPlace) -> OverQuota | None:
        """Why the queue may not hold what was found."""
        return self.queues.quota.refused(gang.queue, place.gpus(self.queues.models))

    def _held_for(self, gang: WaitingGang) -> Hashable:
        own = name_of_date(gang)
        return own if self._advance.of(own) is not None else frozenset(map(self._advance.kind, gang.pods))

    def kind(self, gang: WaitingGang) -> Hashable:
        """Gangs of one kind have a place, or not, alike."""
        return self._kinds[gang.ref]

    def peers(self, gang: WaitingGang) -> Sequence[WaitingGang]:
        """The single pod and others of its kind that were not given yet, at most TOGETHER; none where it is no single
        pod, or the only one."""
        if gang.ref in self.ready:
            return [gang]
        others = self._singles.get(self.kind(gang), {})
        if others.pop(gang.ref, None) is None or not others:
            return ()
        return [gang, *(others.pop(ref) for ref in list(islice(others, TOGETHER - 1)))]


Looks = Generator[GangStart | None, None, None]


class Planner:
    """Looks at the queue. `clock`: seconds on the server's clock, `wall`: since 1970."""

    def __init__(
        self,
        cluster: Cluster,
        claims: Claims,
        placement: JointPlacement,
        clock: Callable[[], float],
        wall: Callable[[], float],
        times: RunTimes | None = None,
    ) -> None:
        """`times`: what is learned of run times; None: nothing."""
        self._cluster, self._claims, self._placement = cluster, claims, placement
        self._clock, self._wall = clock, wall
        self._places = Places(cluster, claims, placement, clock)
        self.starts = Starts(cluster, claims, placement, clock)
        self._endings, self.stand_ins = Endings(cluster), StandIns(cluster, wall)
        self._dated_endings = Endings(cluster)  # of `place_at`, which may run between the slices of a look
        self._runs = GangRuns(cluster, claims.seats, times or RunTimes())
        self._models: Models | None = None
        self._use = DecayedUse()
        # by kind: why it does not fit once all has ended, None: it does; and when that was found
        self._able: dict[Hashable, tuple[str | None, float]] = {}
        self.report = QueueReport()
        self.order: Sequence[WaitingGang] = ()  # the gangs that the latest look could start
        self.head: QueueHead | None = None

    def begin(self) -> None:
        """Another instance may have released gangs since the latest look: what queues held meanwhile is not known."""
        self._use.pause()

    def hold(self, seats: Sequence[Seat], staying: Collection[str] = ()) -> Sliced[bool]:
        """As `Starts.hold`."""
        return self.starts.hold(seats, self.stand_ins, staying)

    def looks(self, paused: Mapping[str, str], paused_namespaces: Mapping[str, str] = NO_PAUSES) -> Looks:
        """The gangs that start, in order, each with its seats reserved, and None where others may run. At its end the
        report and the head are of this look. `paused`: names of gangs that do not start now, and why;
        `paused_namespaces`: of namespaces, none of whose gangs does."""
        wall, settings = self._wall(), self._cluster.settings.queue
        waiting_gangs = yield from self._runs.waiting((yield from waits(self._cluster, self.stand_ins)), wall)
        queues = yield from self._queues()
        use = self._use.of(queues.held, self._clock(), settings.use_half_life_seconds)
        shares = fair_shares(use, queues.models.capacity, self._cluster.settings.queue.queues)
        yield None
        sorted_gangs = yield from order(waiting_gangs, shares, now=wall, patience=settings.patience_seconds)

        def pause_of(gang: WaitingGang) -> Waits | None:
            """Why it is not started now, whatever the order."""
            why = paused.get(gang_name(gang)) or paused_namespaces.get(gang.ref.namespace)
            return self._before_its_date(gang, wall) if why is None else Waits("incomplete", why)

        self.order = to_place = yield from self._left(sorted_gangs, pause_of)
        running = (yield from self._running(wall)) if to_place else []
        look = _Look(queues, frozenset(self._claims.seats.absent), LabelClasses(self._cluster), self._claims.advance)
        oldest = self._clock() - ABLE_SECONDS
        self._able = {kind: known for kind, known in self._able.items() if known[1] > oldest}
        yield from look.read(to_place)
        yield None
        yield from self._want(to_place, running, look)
        situation = QueueSituation(
            to_place,
            running,
            wall,
            settings.strict,
            over_quota=queues.over,
            kind=look.kind,
            before=self.report.head,
            plain=lambda: without_gpus(self._cluster, wall),
            lent=lambda gang: queues.ever_over(gang, waiting=True),
            needs_positions=_needs_positions,
            guaranteed=partial(_guaranteed, queues),
            limits_of_dates=lambda gang: self._claims.limits_of_dates(
                map(self._claims.alone, gang.pods), self._clock()
            ),
        )
        decision = yield from self._schedule(situation, running, look, lambda queue: self._share(queue, use, queues))
        yield from self._hopeless(decision, to_place, running, look)
        if decision.head is not None:
            decision.head = yield from self._delayed(decision.head, decision.waits, to_place, look)
            decision.head = replace(decision.head, displaced=(yield from self._displaced()))
        self.head = None if decision.head is None else QueueHead(decision.head.gang, queues)
        del running, situation, look  # what is large is freed a part at a time
        yield None
        if self.order is not to_place:
            sorted_gangs = _as_tried(sorted_gangs, self.order)
        listed = yield from self._listed(sorted_gangs, decision, pause_of)
        numbers = yield from self._numbers(queues, use, listed)
        before = list(self.report.waiting)
        self.report = QueueReport(wall, tuple(listed), numbers, head=decision.head)
        while before:
            yield None
            del before[-STEP:]

    def _running(self, wall: float) -> Sliced[list[Ending]]:
        """When the pods end that hold GPUs, or have seats, and what is held for dates."""
        learned = yield from self._runs.ends(wall)
        running = yield from self._endings.read(wall, learned)
        yield from put(running, (yield from self._ends(list(self._claims.seats), wall, learned)))
        for held in self._claims.advance:
            rows = [(seat.uid, self._cluster.row(seat.node)) for seat in held.seats if held.until > wall]
            yield from put(running, [Ending(uid, row, held.until) for uid, row in rows if row >= 0])
        return running

    def _listed(
        self, in_order: Sequence[WaitingGang], decision: StartDecision, pause_of: Callable[[WaitingGang], Waits | None]
    ) -> Sliced[list[Waiting]]:
        """The gangs that wait, in order, those that are not complete last, and why. Those that are being released do
        not."""
        listed: list[Waiting] = []
        for gang, pause in pauses(in_order):
            if pause:
                yield
            if gang.ref in decision.waits:
                listed.append(_waiting(self._cluster, gang, decision))
            elif gang_name(gang) not in self._claims.seats.gangs and (why := pause_of(gang)) is not None:
                listed.append(Waiting(gang, why.code, why.text))
        return [waiting for last in (False, True) for waiting in listed if (waiting.code == "incomplete") is last]

    def _queues(self) -> Sliced[QueueHoldings]:
        yield
        models = self._models = yield from Models.read(self._cluster, self._models)
        yield
        pods, seats = self._cluster.pods, self._claims.seats
        late = yield from self.stand_ins.seated(seats)
        held = yield from models.held(
            {
                seat.uid: seat.node
                for seat in seats
                if seat.uid in late or ((pod := pods.get(seat.uid)) is not None and not pod.node)
            },
            late,
        )
        return QueueHoldings(self._cluster, models, self._cluster.settings.queue.queues, held, late)

    def _hopeless(
        self, decision: StartDecision, gangs: Sequence[WaitingGang], running: Sequence[Ending], look: _Look
    ) -> Sliced[None]:
        """Of the gangs without a place within their quotas, state which have none, whatever ends. MOST_ASKED kinds of
        them are asked about in one look; for ABLE_SECONDS that counts for the looks after it."""
        asked = 0
        for gang, pause in pauses(gangs):
            if pause:
                yield
            waits = decision.waits.get(gang.ref)
            if waits is None or waits.code not in ("place", "quota"):
                continue
            if waits.code == "quota" and look.queues.ever_over(gang, waiting=True) is not None:
                continue  # more quota is its way out
            if not self._known_able(gang, look):
                if asked == MOST_ASKED:
                    continue
                asked += 1
            if (why := (yield from self._unable_to_start(gang, running, look))) is not None:
                decision.waits[gang.ref] = Waits("never", whatever_ends(why or waits.text))

    def _want(self, gangs: Sequence[WaitingGang], running: Sequence[Ending], look: _Look) -> Sliced[None]:
        """Read what queues wait for within their guarantees, as far as another queue waits too: also of what they hold
        now, since their pods may end before those of others do. A gang that fits nowhere, whatever ends, keeps no
        guarantee."""
        queues = look.queues
        by_queue: dict[str, list[WaitingGang]] = {}
        for gang, pause in pauses(gangs):
            if pause:
                yield
            if gang.complete:
                by_queue.setdefault(gang.queue, []).append(gang)
        if len(by_queue) < 2 or not queues.ruled:
            return
        for queue, of_queue in by_queue.items():
            guaranteed = queues.rules.get(queue, PLAIN).guaranteed_gpus
            for gang in of_queue:
                wanted = queues.wanted.get(queue, {})
                if all(wanted.get(model, 0) >= count for model, count in guaranteed.items()):
                    break
                yield
                if (yield from self._unable_to_start(gang, running, look)) is None:
                    queues.waits(gang)

    def _delayed(
        self, head: HeadReservation, waits: Mapping[gangs.Ref, Waits], in_order: Sequence[WaitingGang], look: _Look
    ) -> Sliced[HeadReservation]:
        """The reservation with what is foreseen to delay it. `waits`: why gangs wait. Of those that may start before a
        head that borrows MOST_ASKED kinds are placed as early as they can be, beside each other; of more it is not
        known."""
        if head.start is None or not look.queues.ruled:
            return head
        earlier: list[Ending] = []
        for ending, pause in pauses(head.gone, RUN):
            if pause:
                yield
            if ending.at is not None and ending.at < head.start:
                earlier.append(ending)
        quota = yield from look.queues.changed(head.gone)
        before = quota.before(head.gang.queue, head.seats.gpus(look.queues.models))
        kinds: set[Hashable] = set()
        taken: tuple[TakenSeats, ...] = ()
        for gang, pause in pauses(in_order if before else ()):
            if pause:
                yield
            if gang.queue not in before or gang.ref not in waits or not gang.complete or look.kind(gang) in kinds:
                continue
            if len(kinds) == MOST_ASKED:
                return replace(head, after=before)
            kinds.add(look.kind(gang))
            seats = yield from self._place(gang, Trial(earlier, taken), look)
            if not isinstance(seats, FoundPlace) or not (
                yield from _guaranteed(look.queues, TakenSeats(gang, seats), earlier)
            ):
                continue
            taken += (TakenSeats(gang, seats),)
            if not isinstance((yield from self._place(head.gang, Trial(head.gone, taken), look)), FoundPlace):
                return replace(head, after=[gang.queue])
        return head

    def _displaced(self) -> Sliced[Sequence[str]]:
        """The released gangs with pods that cannot land on their seats."""
        cluster, gangs = self._cluster, set[str]()
        for seat, pause in pauses(list(self._claims.seats)):
            if pause:
                yield
            pod = cluster.pods.get(seat.uid)
            if pod is not None and not pod.node and (is_rejected(pod) or not is_schedulable(seat.node, cluster)):
                gangs.add(seat.gang)
        return sorted(gangs)

    def _known_able(self, gang: WaitingGang, look: _Look) -> bool:
        """Whether it was found lately whether the gang is able to start."""
        known, now = self._able.get(look.kind(gang)), self._clock()
        return known is not None and known[1] <= now < known[1] + ABLE_SECONDS

    def _unable_to_start(self, gang: WaitingGang, running: Sequence[Ending], look: _Look) -> Sliced[str | None]:
        """Why the gang does not fit within the rules of its queue once all pods have ended, "" where these rules alone
        are why; None: it fits. What an earlier look has found counts for ABLE_SECONDS."""
        if look.queues.ever_over(gang, waiting=False) is not None:
            return ""
        kind = look.kind(gang)
        if not self._known_able(gang, look):
            pods = gang.pods[: max(1, gang.needed)]
            requests = (yield from self._requests(gang, look))[: len(pods)]
            allowances = look.queues.allowances(look.queues.empty(waiting=False).more(gang.queue))
            placed = yield from self._steps(gang, pods, requests, Trial(), allowances)
            if isinstance(placed, NoPlace):
                plain = yield from without_gpus(self._cluster, self._wall())
                placed = yield from self._steps(gang, pods, requests, Trial([*running, *plain]), allowances)
            self._able[kind] = placed.text if isinstance(placed, NoPlace) else None, self._clock()
        return self._able[kind][0]

    def _left(
        self, in_order: Sequence[WaitingGang], pause_of: Callable[[WaitingGang], Waits | None]
    ) -> Sliced[list[WaitingGang]]:
        """The gangs that may start, in order."""
        may_start: list[WaitingGang] = []
        # Of a gang that has absent seats alone, pods came that take none of these over: it is placed again.
        seated = self._claims.seats.gangs.keys() - set(wholly_absent(self._claims.seats))
        for gang, pause in pauses(in_order):
            if pause:
                yield
            name = gang_name(gang)
            if (name not in seated or self._joins(gang)) and pause_of(gang) is None:
                may_start.append(gang)
        return may_start

    def _joins(self, gang: WaitingGang) -> bool:
        """Whether its pods join an in-tree group that was released: they hold it back, so they do not wait for it."""
        return gang.whole and not any(self._claims.seats.of(pod.uid) for pod in gang.pods)

    def _share(self, queue: str, use: Mapping[str, Mapping[str, float]], queues: QueueHoldings) -> float:
        """The share of a queue, with what has started in this look."""
        held = use.get(queue)
        return fair_shares({queue: held}, queues.models.capacity, queues.rules)[queue] if held else 0.0

    def _schedule(
        self, situation: QueueSituation, ends: list[Ending], look: _Look, share: Callable[[str], float]
    ) -> Generator[GangStart | None, None, StartDecision]:
        """The starts of `looks`. `ends`: those of the situation, to which the pods that start are added; `share`: of a
        queue, as `in_turn` asks for it."""
        gangs = yield from self._at_their_dates(situation, ends, look)
        if len({gang.queue for gang in gangs}) > 1:
            left, patience = {gang.ref for gang in gangs}, self._cluster.settings.queue.patience_seconds
            turns = yield from in_turn(gangs, share, now=situation.now, patience=patience)
            self.order = tried = [gang for gang in self.order if gang.ref not in left]
            situation = replace(situation, gangs=_noted(turns, tried))
        else:
            situation = replace(situation, gangs=gangs)
        steps = schedule(situation, lambda gang, trial: self._place(gang, trial, look))
        started: bool | None = None
        while True:
            try:
                held = steps.send(started)
            except StopIteration as end:
                decision: StartDecision = end.value
                return decision
            started = None
            if held is None:
                yield None
                continue
            start = yield from self._begin(held, situation, ends, look)
            started = start is not None
            if start is not None:
                yield start

    def _begin(
        self, held: TakenSeats, situation: QueueSituation, ends: list[Ending], look: _Look
    ) -> Sliced[GangStart | None]:
        """Reserve the seats of a gang; None: they do not stand any more."""
        start = yield from self.starts.begin(held.gang, held.seats.pods, held.seats.placed)
        if start is not None:
            if len(start.seats) >= STEP:
                yield
            look.queues.take(start.gang, held.seats.gpus(look.queues.models))
            learned = started_ends(start.gang, [seat.uid for seat in start.seats], situation.now)
            yield from put(ends, (yield from self._ends(start.seats, situation.now, learned)))
        return start

    def _at_their_dates(
        self, situation: QueueSituation, ends: list[Ending], look: _Look
    ) -> Generator[GangStart | None, None, Sequence[WaitingGang]]:
        """Start the gangs that fit on GPUs that are held for them since a date, whatever the order. The other ones."""
        if not self._claims.advance:
            return list(situation.gangs)
        others: list[WaitingGang] = []
        full: set[Hashable] = set()  # kinds of gangs that do not fit
        for gang, pause in pauses(situation.gangs):
            if pause:
                yield None
            start, tried = None, gang.complete and situation.over_quota(gang) is None and look.kind(gang) not in full
            if tried and (found := (yield from self._held_for(gang, look))) is not None:
                start = yield from self._begin(TakenSeats(gang, found), situation, ends, look)
            if start is not None:
                yield start
                continue
            others.append(gang)
            full.add(look.kind(gang))
        return others

    def _held_for(self, gang: WaitingGang, look: _Look) -> Sliced[FoundPlace | None]:
        """A place for the gang on GPUs that are held for it; None: it does not fit on them alone."""
        requests, now = (yield from self._requests(gang, look)), self._clock()
        kinds = {(request.owner, request.amounts): request for request in requests}
        rows = frozenset[int]().union(*(self._claims.held_rows(request, now) for request in kinds.values()))
        if (own := self._claims.advance.of(name_of_date(gang))) is not None:
            rows |= {self._cluster.row(seat.node) for seat in own.seats}
        if not rows:
            return None
        allowances = yield from self._allowed(gang, Trial(), look)
        counted = yield from self._counted(gang, requests, Trial())
        placed = yield from self._places.enough(gang, requests, counted, allowances, rows)
        return _of_the_first(gang, requests, placed) if isinstance(placed, Placed) else None

    def _ends(self, seats: Sequence[Seat], wall: float, learned: Mapping[str, LearnedEnd]) -> Sliced[list[Ending]]:
        """When the pods of seats end, as if they started now. Of those that do not exist it is known only where it is
        learned. `learned`: ends by uid."""
        cluster = self._cluster
        endings: list[Ending] = []
        for seat, pause in pauses(seats):
            if pause:
                yield
            pod, row = cluster.pods.get(seat.uid), cluster.row(seat.node)
            end = learned.get(seat.uid)
            if row >= 0 and seat.absent:
                endings.append(Ending(seat.uid, row, None if end is None else end.at, learned=end))
            elif row >= 0 and pod is not None and not pod.node:
                endings.append(seated(pod, row, cluster, wall, end))
        return endings

    def again(
        self, name: str, seats: Sequence[Seat], fixed: Collection[str] = ()
    ) -> Generator[None, None, tuple[Seat, ...] | str]:
        """Other seats for the pods of a gang that has lost some, all that are not bound, beside those that are; else
        why there are none. Pods that replace deleted ones are placed with them, and those that do not exist yet.
        `fixed`: uids of pods that keep their seats. Yields where others may run."""
        kept_seats = tuple([seat for seat in seats if seat.uid in fixed])
        seats = [seat for seat in seats if seat.uid not in fixed]
        existing = [pod for seat in seats if (pod := self._cluster.pods.get(seat.uid)) is not None]
        seated = {seat.uid for seat in seats}
        gang = yield from together(self._cluster, seated, name, self.stand_ins)
        if gang is None:
            return "no pod of it waits"
        if len(seats) >= STEP:
            yield
        if kept_seats:
            gang = _beside(gang, fixed, self._cluster)
        waits = [pod for pod in gang.pods if pod.uid in seated]
        others = sorted((pod for pod in gang.pods if pod.uid not in seated), key=lambda pod: is_absent(pod.uid))
        deleted = sum(not seat.absent for seat in seats) - sum(not pod.terminating for pod in existing)
        if deleted > len(others) and len(gang.members) + len(waits) + len(others) < gang.minimum:
            return "a pod of it is deleted"
        own = seated | {pod.uid for pod in others[:deleted]}
        pods = [pod for pod in gang.pods if pod.uid in own]
        if not pods:
            return "no pod of it waits"
        if len(pods) >= STEP:
            yield
        requests = yield from self._alone(pods)
        allowances = yield from self._allowed_again(gang, [seat for seat in seats if seat.uid in own])
        counted = self._places.counted(requests, own)
        placed = yield from self._places.steps(gang, pods, requests, counted, allowances)
        if isinstance(placed, NoPlace):
            return f"{placed.text}, within the quota of queue {gang.queue}" if allowances else placed.text
        if not (yield from self.starts.fit(pods, placed, own)):
            return "its new place was taken meanwhile"
        # One release, however often it is placed again.
        return kept_seats + (yield from self.starts.seats(name, pods, placed, seats[0].at))

    def _allowed_again(self, gang: WaitingGang, moves: Sequence[Seat]) -> Sliced[Sequence[GpuAllowance]]:
        """What the own rules of its queue leave a gang of which these seats are given up. What others wait for does not
        count: it started within its quota, and is not left in half."""
        if not QueueHoldings(self._cluster, Models(self._cluster), self._cluster.settings.queue.queues, {}).ruled:
            return ()
        queues = yield from self._queues()
        queues.give_up(moves)
        return queues.allowances(queues.quota.more(gang.queue))

    # -- a date of a gang ------------------------------------------------------------------------------------------

    def _before_its_date(self, gang: WaitingGang, wall: float) -> Waits | None:
        date = date_of(gang)
        if date is None or date <= wall:
            return None
        held = "; GPUs are held for it" if self._claims.advance.of(name_of_date(gang)) else ""
        return Waits("date", f"it starts from {rfc3339(date)} on ({START_AT}){held}")

    def dated(self) -> Sliced[list[tuple[WaitingGang, float]]]:
        """The gangs that wait and state a date, which has not come."""
        waiting_gangs = yield from waits(self._cluster, self.stand_ins)
        dates = [(gang, date_of(gang)) for gang in waiting_gangs if gang.complete and not gang.members]
        return [(gang, date) for gang, date in dates if date is not None and date > self._wall()]

    def place_at(
        self, gang: WaitingGang, date: float, reserved: Mapping[str, int]
    ) -> Sliced[tuple[tuple[Seat, ...], dict[str, int]] | str]:
        """(seats for all pods of the gang, its GPUs by model) at a date, when what is declared to end before has ended;
        else why there are none. `reserved`: what is held for dates of its queue, GPUs by model."""
        wall, queues = self._wall(), (yield from self._queues())
        running = yield from self._dated_endings.read(wall)
        gone = [ending for ending in running if ending.at is not None and ending.at <= date]
        requests = yield from self._alone(gang.pods)
        # What the first in order waits for is not held for a date before its own pods have ended.
        head = self.report.head
        ends = None if head is None or head.start is None else head.gang.end(head.start)
        waits_for = head if head is not None and head.gang.ref != gang.ref and (ends is None or ends > date) else None
        kept = () if waits_for is None else (TakenSeats(waits_for.gang, waits_for.seats),)
        counted = yield from self._counted(gang, requests, Trial(gone, kept), date - wall)
        placed = yield from self._places.steps(gang, gang.pods, requests, counted)
        if isinstance(placed, NoPlace):
            return placed.text
        gpus = FoundPlace(gang.pods, requests, placed).gpus(queues.models)
        if why := _over_limit(queues, gang.queue, gpus, reserved):
            return why
        return (yield from self.starts.seats(gang_name(gang), gang.pods, placed, self._clock())), gpus

    def over_limit(self, queue: str, reserved: Mapping[str, int]) -> Sliced[str]:
        """Why the queue may not have so many GPUs held for dates beside what it holds now; "" where it may."""
        return _over_limit((yield from self._queues()), queue, reserved)

    # -- one gang -------------------------------------------------------------------------------------------------

    def _place(
        self, gang: WaitingGang, trial: Trial, look: _Look
    ) -> Generator[None, None, FoundPlace | str | OverQuota]:
        """As `backfill.Place`."""
        allowances = yield from self._allowed(gang, trial, look)
        now = not trial.gone and not trial.kept
        if now and (peers := look.peers(gang)):
            place = yield from self._prepared(gang, allowances, look, peers)
            if place is not None and not look.over(gang, place):
                return place
        requests = yield from self._requests(gang, look)
        counted = yield from self._counted(gang, requests, trial)
        placed = yield from self._places.enough(gang, requests, counted, allowances)
        if isinstance(placed, Placed):
            return _of_the_first(gang, requests, placed)
        if now and allowances:
            least = max(1, gang.needed)
            anywhere = yield from self._places.steps(gang, gang.pods[:least], requests[:least], counted)
            if isinstance(anywhere, Placed):
                return look.over(gang, _of_the_first(gang, requests, anywhere)) or placed.text
        return placed.text

    def _allowed(self, gang: WaitingGang, trial: Trial, look: _Look) -> Sliced[Sequence[GpuAllowance]]:
        """What the quota of its queue leaves the gang in a trial."""
        queues = look.queues
        if not queues.ruled:
            return ()
        taken = [(held.gang.queue, held.seats) for held in trial.kept]
        if not trial.later and not taken:
            return queues.allowances((yield from queues.changed(trial.gone)).more(gang.queue))
        bounds = [(yield from queues.changed(trial.gone or trial.later, taken)).more(gang.queue)]
        if trial.later:
            before = yield from queues.changed(trial.later)
            bounds.append(queues.quota.more(gang.queue))
            bounds += [before.lends(queue, seats.gpus(queues.models), gang.queue) for queue, seats in taken]
        return queues.allowances(least(bounds))

    def _requests(self, gang: WaitingGang, look: _Look) -> Sliced[Sequence[PodRequest]]:
        """Of its pods, one each. Those of many pods are kept for the look: the gang may be placed several times."""
        requests = look.requests.get(gang.ref)
        if requests is None:
            requests = yield from self._alone(gang.pods)
            if len(requests) >= STEP:
                look.requests[gang.ref] = requests
        return requests

    def _alone(self, pods: Sequence[PodRecord]) -> Sliced[list[PodRequest]]:
        """The requests of the pods, one each."""
        return (yield from collected(map(self._claims.alone, pods)))

    def _prepared(
        self, gang: WaitingGang, allowances: Sequence[GpuAllowance], look: _Look, peers: Sequence[WaitingGang]
    ) -> Generator[None, None, FoundPlace | None]:
        """A place for a single pod, found together with those of its `peers`; None: they do not all fit."""
        ref, requests = gang.ref, [self._claims.alone(gang.pods[0])]
        if ref not in look.ready:
            pods = [peer.pods[0] for peer in peers]
            together = yield from self._steps(gang, pods, requests * len(pods), Trial(), allowances)
            if isinstance(together, NoPlace):
                return None
            for at, peer in enumerate(peers):
                row, gpus, node = together.rows[at], together.gpus[at], together.nodes[at]
                look.ready[peer.ref] = Placed((row,), (gpus,), None, proved=False, nodes=(node,))
        return FoundPlace(gang.pods, requests, look.ready.pop(ref))

    def _steps(
        self,
        gang: WaitingGang,
        pods: Sequence[PodRecord],
        requests: Sequence[PodRequest],
        trial: Trial,
        allowances: Sequence[GpuAllowance] = (),
    ) -> Generator[None, None, Placed | NoPlace]:
        """The search on the tables of the trial, which it reads a portion of the nodes after the other."""
        counted = yield from self._counted(gang, requests, trial)
        return (yield from self._places.steps(gang, pods, requests, counted, allowances))

    def _counted(
        self, gang: WaitingGang, requests: Sequence[PodRequest], trial: Trial, starts_within: float = 0.0
    ) -> Sliced[Counted]:
        """The tables of the trial. `requests`: of pods of the gang; `starts_within`: it starts then, or once the pods
        of the trial have ended."""
        gone: dict[int, list[str]] = {}  # uids by row
        latest, wall = -inf, self._wall()
        for ending, pause in pauses(trial.gone, RUN):
            if pause:
                yield
            gone.setdefault(ending.row, []).append(ending.uid)
            latest = max(latest, inf if ending.at is None else ending.at)
        taken = [Part(held.seats.requests, held.seats.placed) for held in trial.kept]
        starts_within = max(starts_within, latest - wall)
        return self._places.counted(requests, self.starts.own(gang), gone, taken, starts_within)

    def _numbers(
        self, queues: QueueHoldings, use: Mapping[str, Mapping[str, float]], listed: Iterable[Waiting]
    ) -> Sliced[tuple[Mapping[str, object], ...]]:
        """Of each queue by name, with what has started, as in the JSON form. `listed`: the gangs that wait."""
        waiting = Counter([entry.gang.queue for entry in listed])
        shares = fair_shares(use, queues.models.capacity, self._cluster.settings.queue.queues)
        names = sorted({*self._cluster.settings.queue.queues, *queues.held, *queues.wanted, *waiting})
        return tuple((yield from collected(self._queue(name, queues, shares, waiting[name]) for name in names)))

    def _queue(
        self, name: str, queues: QueueHoldings, shares: Mapping[str, float], waiting: int
    ) -> Mapping[str, object]:
        """What a queue holds and may hold, as in the JSON form. `waiting`: how many of its gangs wait."""
        rules = self._cluster.settings.queue.queues.get(name, PLAIN)
        return {
            "name": name,
            "weight": rules.weight,
            "share": round(shares.get(name, 0.0), 6),
            "guaranteed_gpus": dict(rules.guaranteed_gpus),
            "limit_gpus": dict(rules.limit_gpus),
            "used_gpus": dict(queues.held.get(name, {})),
            "waiting": waiting,
        }


def _as_tried(gangs: Sequence[WaitingGang], tried: Sequence[WaitingGang]) -> list[WaitingGang]:
    """The gangs, with those of `tried` in this order in their places."""
    turns, places = iter(tried), {gang.ref for gang in tried}
    return [next(turns) if gang.ref in places else gang for gang in gangs]


def _noted(gangs: Iterable[WaitingGang], tried: list[WaitingGang]) -> Iterator[WaitingGang]:
    """The gangs, each of which is added to `tried` once it is asked for."""
    for gang in gangs:
        tried.append(gang)
        yield gang


def _of_the_first(gang: WaitingGang, requests: Sequence[PodRequest], placed: Placed) -> FoundPlace:
    """The place of as many pods of the gang as it is for. `requests`: of all its pods."""
    pods = len(placed.rows)
    return FoundPlace(gang.pods[:pods], requests[:pods], placed)


def _over_limit(
    queues: QueueHoldings, queue: str, gpus: Mapping[str, int], reserved: Mapping[str, int] = NO_GPUS
) -> str:
    """Why so many GPUs cannot be held for dates of the queue, by model, beside what it holds now and what is `reserved`
    for other dates of it; "" where they can."""
    rules, held = queues.rules.get(queue, PLAIN), queues.held.get(queue, NO_GPUS)
    for model, count in sorted(gpus.items()):
        guaranteed = rules.guaranteed_gpus.get(model, 0)
        of_others = any(rule.guaranteed_gpus.get(model) for name, rule in queues.rules.items() if name != queue)
        most = guaranteed if of_others else rules.limit_gpus.get(model, guaranteed)  # what others may claim is not held
        if not most:
            what = "guarantee" if of_others else "limit"
            return f"no GPUs are held for dates of queue {queue}: it has no {what} for model {model} (queue.queues)"
        total = held.get(model, 0) + reserved.get(model, 0) + count
        if total > most:
            what = "guarantee" if of_others or model not in rules.limit_gpus else "limit"
            return f"{would_hold(queue, total, model)}, its {what} is {most:,}"
    return ""


def _needs_positions(gang: WaitingGang) -> bool:
    """As of a `QueueSituation`."""
    return any(map(is_particular, gang.pods))


def _guaranteed(queues: QueueHoldings, held: TakenSeats, gone: Sequence[Ending]) -> Sliced[bool]:
    """As of a `QueueSituation`."""
    quota = yield from queues.changed(gone)
    return quota.within_guarantee(held.gang.queue, held.seats.gpus(queues.models))


def _beside(gang: WaitingGang, fixed: Collection[str], cluster: ClusterView) -> WaitingGang:
    """The gang, with waiting pods that keep their seats as members."""
    members = {pod.uid: pod for pod in gang.members}
    members |= {uid: pod for uid in fixed if (pod := cluster.pods.get(uid)) is not None}
    pods = tuple([pod for pod in gang.pods if pod.uid not in fixed])
    return replace(gang, pods=pods, members=tuple(members.values()))


def date_of(gang: WaitingGang) -> float | None:
    """The date that the gang states, seconds since 1970: that of its first pod."""
    return starts_at(gang.pods[0]) if gang.pods else None


def name_of_date(gang: WaitingGang) -> str:
    """The name of what is held for the date of the gang; no operator's entry has a space in its name."""
    return f"gang {gang.ref.text}"


def gang_name(gang: WaitingGang) -> str:
    """The name of a gang in the seats, and for people."""
    return gang.ref.text


def pod_names(pods: Iterable[PodRecord]) -> str:
    """The first of these pods by name, and how many there are, for people; "" for none."""
    return first_names(sorted(f"{pod.namespace}/{pod.name}" for pod in pods), MOST_NAMED)


def unread(gang: WaitingGang) -> str:
    """What it means for the gang that the templates of its late pods cannot be read, for people."""
    return f"no seats are reserved for the pods that its owner creates later: {gang.unread}"


def _kind(gang: WaitingGang, classes: LabelClasses) -> Hashable:
    if gang.members or gang.part_domains or any(pod.anti_affinity_terms or pod.nominated_node for pod in gang.pods):
        return gang.ref  # a nomination counts for all pods but its own
    if any(pod.claim_numbers or pod.claim_node for pod in gang.pods) or _shares(gang):
        return gang.ref
    labels = map(classes.of, gang.pods) if classes else repeat(())
    keys = groupby(zip(map(_key, gang.pods), labels, strict=False))
    return (
        gang.needed,
        gang.domain,
        gang.apart,
        gang.queue,
        tuple([(key, sum(1 for _ in equal)) for key, equal in keys]),
    )


def _shares(gang: WaitingGang) -> bool:
    """Whether two of its pods name one claim."""
    claims = [(pod.namespace, ref.claim) for pod in gang.pods for ref in pod.claim_refs if ref.claim]
    return len(set(claims)) < len(claims)


def _key(pod: PodRecord) -> Hashable:
    """What the place of a pod without anti-affinity depends on, beside the anti-affinity of others."""
    return wants_of(pod), pod.priority, pod.namespace, pod.node_selector, pod.node_terms, pod.tolerations


def _waiting(cluster: ClusterView, gang: WaitingGang, decision: StartDecision) -> Waiting:
    """Why a gang did not start."""
    waits = decision.waits[gang.ref]
    texts, start, head = [waits.text], None, decision.head
    if head is not None and head.gang is gang:
        start = head.stated
        if head.after:
            texts.append(
                f"gangs of other queues that are within their guarantees may start first: {', '.join(head.after)}"
            )
        if head.displaced:
            texts.append(f"gangs that lost seats get others first: {first_names(head.displaced, MOST_NAMED)}")
        if head.late:
            texts.append(f"it waits for gangs that run longer than is learned: {first_names(head.late, MOST_NAMED)}")
        if plain := _plain(cluster, head):
            texts.append(f"pods without GPUs hold CPU, memory or pod slots that it needs: {plain}")
    if gang.unread:
        texts.append(unread(gang))
    return Waiting(gang, waits.code, "; ".join(texts), "" if waits.behind is None else str(waits.behind), start)


def _plain(cluster: ClusterView, head: HeadReservation) -> str:
    """The pods without GPUs that the head waits for, for people; "" for none."""
    rows, pods = frozenset(head.seats.rows), cluster.pods
    waits_for = [pod for ending in head.plain if ending.row in rows and (pod := pods.get(ending.uid)) is not None]
    return pod_names(waits_for)
