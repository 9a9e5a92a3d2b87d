"""Which gang starts now: EASY backfill with places.

The first gang in order that is complete, within its quota, and fits some day is the head. If it fits now, it starts.
Else it gets a reservation: the seats that it can have at the earliest moment at which enough running pods have ended.
Pods that do not state when they end count as ending last, the oldest first, and then the head's start is not known. A
gang behind the head may start if it cannot delay it:
- it has ended before the head starts, if both times are known; or
- it fits beside the head's seats, unless the head requires links: then positions count, which are not certain; or
- with it the head still fits at the same moment, on other seats.
In each case what the queues hold then leaves both within their quotas. A gang within the guarantee of its queue starts
before a head that borrows: the head is then reserved other seats. Where that is foreseen and delays the head, its start
is not stated (`Reservation.stated`). It is not stated either while a released gang has lost seats: that gang is placed
again before the head, wherever there is room.
Of the gangs behind the head those with the highest response are tried first (`usage.behind`).

So what the head waits for becomes never more by the queue's own doing: it starts at the latest once the pods before
which it waits have ended (Mu'alem and Feitelson, IEEE TPDS 2001, for a machine without places).

Pods without GPUs are not among the endings: most of them run for ever. Only a gang that does not fit once all GPU pods
have ended waits for them too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import attrgetter
from typing import Final, Literal, NamedTuple

from extender.cluster.slices import RUN, Sliced, Tally, at_once, pauses
from extender.objects.gangs import OUR_SIZE, Ref
from extender.queue.gang import MOST_SEATS, WaitingGang
from extender.queue.gang_runs import Ending, LearnedEnd, prefixes
from extender.queue.placement import whatever_ends
from extender.queue.usage import FoundPlace, OverQuota, behind

MOST_DATES: Final = 8
"""Dates before which a start is searched apart from those after them."""
NEAR: Final = 64  # the last endings of a reservation, by which the next search finds where it begins
Code = Literal["incomplete", "quota", "never", "head", "order", "place", "delays", "depth", "date"]
"""Why a gang waits. `incomplete`: pods are missing, or held back by others; `quota`: its queue may hold no more;
`never`: it fits nowhere, whatever ends; `head`: it is first, and waits for its place; `order`: the mode is strict and
it is not first; `place`: no place now; `delays`: it would delay the head; `depth`: too many gangs are ahead of it;
`date`: the date that it states has not come."""


class TakenSeats(NamedTuple):
    """Seats that a gang takes."""

    gang: WaitingGang
    seats: FoundPlace


class Trial(NamedTuple):
    """The tables as they would be, and what queues hold then."""

    gone: Sequence[Ending] = ()  # without these pods
    kept: tuple[TakenSeats, ...] = ()  # with these seats taken
    # the pods that have ended when the gangs of `kept` start: queues are judged both now and then
    later: Sequence[Ending] = ()


Place = Callable[[WaitingGang, Trial], Generator[None, None, FoundPlace | str | OverQuota]]
"""Places a gang, at least as many pods as it needs, on the tables of a trial, within its quota; or states why it does
not fit. OverQuota: there is a place now, and its quota keeps it from there. It yields where others may run."""


@dataclass(frozen=True, slots=True)
class HeadReservation:
    """The seats that the head gets once the pods of `gone` have ended: the fewest, in the order of the endings."""

    gang: WaitingGang
    seats: FoundPlace
    gone: Sequence[Ending]
    # when they have ended at the latest, seconds since the epoch; None: not all of them state it, or have their place
    start: float | None
    plain: Sequence[Ending] = ()  # those of them that hold no GPU
    # queues with gangs that may start before it, within their guarantees, so that it has no place then
    after: Sequence[str] = ()
    displaced: Sequence[str] = ()  # released gangs that get other seats before it
    # names of gangs of them that run longer than is learned; None: their ends are the stated ones
    late: Sequence[str] | None = None

    @property
    def stated(self) -> float | None:
        """The latest start, where nothing that is foreseen delays it. By learned ends it is not known."""
        return None if self.after or self.displaced or self.late is not None else self.start

    @property
    def blocked_by(self) -> tuple[str, ...]:
        """Uids of those of them that are on the nodes of its seats."""
        return tuple(ending.uid for ending in self.gone if ending.row in self.seats.rows)


@dataclass(frozen=True, slots=True)
class QueueSituation:
    """What is decided about. What is planned for the gangs is not certain before it is observed."""

    gangs: Iterable[WaitingGang]  # in order, which what has started may change
    endings: Sequence[Ending]  # of running pods, as `endings` orders them
    now: float  # seconds since the epoch
    strict: bool = False  # no gang starts before the head
    depth: int = 500  # the most gangs behind the head that are tried
    kind: Callable[[WaitingGang], Hashable] = attrgetter("ref")  # gangs of one kind have a place, or not, alike
    # why the limit or guarantee of its queue keeps a gang from starting, by what is held at the moment
    over_quota: Callable[[WaitingGang], OverQuota | None] = lambda gang: None
    # the reservation of the look before this one, where the search for that of this look begins
    before: HeadReservation | None = None
    plain: Callable[[], Sliced[Sequence[Ending]]] = lambda: at_once(())  # reads the endings of pods without GPUs
    # why the guarantees of other queues leave a gang no place, whatever ends
    lent: Callable[[WaitingGang], OverQuota | None] = lambda gang: None
    # whether a gang requires links or NICs, so that it matters which GPUs of its nodes others hold
    needs_positions: Callable[[WaitingGang], bool] = lambda gang: False
    # whether a gang is within the guarantee of its queue on its seats, once some pods have ended
    guaranteed: Callable[[TakenSeats, Sequence[Ending]], Sliced[bool]] = lambda held, gone: at_once(False)
    # the moments, in order, after which a start of the gang leaves it fewer GPUs: it would run into those of a date
    limits_of_dates: Callable[[WaitingGang], Sequence[float]] = lambda gang: ()


@dataclass(frozen=True, slots=True)
class Waits:
    """Why a gang does not start now."""

    code: Code
    text: str  # for people
    behind: Ref | None = None  # the gang that it waits for, if it is one


@dataclass(slots=True)
class StartDecision:
    """What a look decides about the gangs that wait."""

    head: HeadReservation | None = None  # the reservation of the first gang in order that has to wait
    waits: dict[Ref, Waits] = field(default_factory=dict)  # why each gang waits


Verdict = Generator[None, None, TakenSeats | Waits]
Starts = Generator[TakenSeats | None, bool | None, StartDecision]


def schedule(situation: QueueSituation, place: Place) -> Starts:
    """All gangs that start now, one after the other, and None where `place` yields. The caller takes the seats of each
    before it goes on: `place`, `over_quota` and `endings` then count them. Where they do not stand any more it sends
    False, and the gang is judged once more. A gang that had no place is not tried again: what is taken only grows."""
    return _Schedule(situation, place).starts()


def start_all(
    situation: QueueSituation, place: Place, start: Callable[[TakenSeats], None]
) -> Sliced[tuple[HeadReservation | None, bool]]:
    """(the reservation of the head, whether any gang has started), once `start` has taken the seats of each gang that
    starts now."""
    steps, some = schedule(situation, place), False
    while True:
        try:
            taken = next(steps)
        except StopIteration as end:
            return end.value.head, some
        if taken is None:
            yield
        else:
            some = True
            start(taken)


class _Schedule:
    """One run of `schedule`, and what it knows of the kinds of gangs: `full`: why they have no place; `never`: why they
    fit nowhere, whatever ends; `delays`: that they would delay the head, until the next gang starts. `moves`: whether
    the next gang that starts takes seats of the head."""

    def __init__(self, situation: QueueSituation, place: Place) -> None:
        self.situation, self.place = situation, place
        self.decision = StartDecision()
        self.tried = 0
        self.plain: Sequence[Ending] | None = None
        self.full: dict[Hashable, str | OverQuota] = {}
        self.never: dict[Hashable, Waits] = {}
        self.ended: str | OverQuota = ""  # why the gang has no place, as far as pods have ended in the latest trial
        self.delays: set[Hashable] = set()
        self.moves = False

    def starts(self) -> Starts:
        """See `schedule`."""
        gangs = pauses(self.situation.gangs)
        for gang, pause in gangs:
            if pause:
                yield None
            yield from self._start(gang)
            if self.decision.head is not None:
                break
        left: list[WaitingGang] = []
        for gang, pause in gangs:
            if pause:
                yield None
            left.append(gang)
        others = yield from behind(left, self.situation.now)
        tally = Tally(RUN)
        for gang in others:
            if tally.full(8 + len(gang.pods)):  # what a gang of one pod costs is eight times what one more pod does
                yield None
            yield from self._start(gang)
        return self.decision

    def _start(self, gang: WaitingGang) -> Generator[TakenSeats | None, bool | None, None]:
        """Start the gang, or note why it waits."""
        for _ in range(2):
            judge, self.moves = self._first if self.decision.head is None else self._behind, False
            verdict: TakenSeats | Waits = _held_back(gang, self.situation) or (yield from judge(gang))
            if isinstance(verdict, Waits):
                self.decision.waits[gang.ref] = verdict
                return
            stood = yield verdict
            if stood is not False:
                self.delays.clear()
                if self.moves and (head := self.decision.head) is not None:
                    self.decision.head = yield from self._reserved(head.gang)
                return
        self.decision.waits[gang.ref] = Waits("place", "its place was taken meanwhile")

    def _now(self, gang: WaitingGang) -> Generator[None, None, FoundPlace | str | OverQuota]:
        """A place for the gang now, or why it has none."""
        kind = self.situation.kind(gang)
        seats = self.full.get(kind) or (yield from self.place(gang, Trial()))
        if isinstance(seats, str | OverQuota):
            self.full[kind] = seats
        return seats

    def _first(self, gang: WaitingGang) -> Verdict:
        """Start a gang that no head is before, or make it the head."""
        seats = yield from self._now(gang)
        if not isinstance(seats, str | OverQuota):
            return TakenSeats(gang, seats)
        kind, text = self.situation.kind(gang), _text(seats)
        self.ended = seats
        if (known := self.never.get(kind)) is not None:
            return known
        reserved = yield from self._reserved(gang)
        if reserved is None:
            lent = self.situation.lent(gang)
            self.never[kind] = (
                Waits("never", whatever_ends(_text(self.ended))) if lent is None else Waits("quota", lent.text)
            )
            return self.never[kind]
        self.decision.head = reserved
        return Waits("head", text)

    def _reserved(self, gang: WaitingGang) -> Generator[None, None, HeadReservation | None]:
        """The reservation of the gang; None: it fits nowhere, whatever ends."""
        reservation = (yield from self._earliest(gang, ())) or (yield from self._without_plain(gang))
        if reservation is None or reservation.start is None:
            return reservation
        learned: list[LearnedEnd] = []
        for ending, pause in pauses(reservation.gone, RUN):
            if pause:
                yield
            if ending.rejected:
                return replace(reservation, start=None)
            if ending.learned is not None:
                learned.append(ending.learned)
        if not learned:
            return reservation
        return replace(reservation, late=sorted({end.gang for end in learned if end.late}))

    def _earliest(self, gang: WaitingGang, plain: Sequence[Ending]) -> Generator[None, None, HeadReservation | None]:
        """The reservation after the fewest endings once none of `plain` is left, of which only the pods on the nodes of
        its seats have to end; None where the gang does not fit after all of them. The more pods have ended the more
        fits, as long as the gang would run into no further date: so the search halves what is left of each part
        between these."""
        counts = yield from prefixes(self.situation.endings)
        if plain:
            counts.insert(0, 0)
        ended = 0 if plain else (yield from self._ended_before(gang))
        guess = bisect_left(counts, ended) if ended else None
        low = 0
        for high in self._parts(gang, counts, plain):
            reservation = yield from self._earliest_of(
                gang, plain, counts[low:high], None if guess is None else guess - low
            )
            if reservation is not None:
                return reservation
            low = high
        return None

    def _parts(self, gang: WaitingGang, counts: Sequence[int], plain: Sequence[Ending]) -> list[int]:
        """After which of the counts the gang would run into the next date, and their number."""
        least = max((_or_never(ending) for ending in plain), default=-inf)

        def start(count: int) -> float:
            return max(least, _or_never(self.situation.endings[count - 1])) if count else least

        limits = self.situation.limits_of_dates(gang)[:MOST_DATES]
        return sorted({bisect_right(counts, limit, key=start) for limit in limits} - {0} | {len(counts)})

    def _earliest_of(
        self, gang: WaitingGang, plain: Sequence[Ending], counts: Sequence[int], guess: int | None
    ) -> Generator[None, None, HeadReservation | None]:
        """As `_earliest`, after one of the counts. The search begins at the `guess`: where it ended in the look
        before."""
        endings = self.situation.endings
        reservation: HeadReservation | None = None
        low, high, last = 0, len(counts), len(counts) - 1  # it fits after counts[high], and not before counts[low]
        likely = [] if guess is None else [guess - 1, guess]
        while low < high:
            while likely and not low <= likely[-1] < high:
                likely.pop()
            middle = likely.pop() if likely else last if reservation is None else (low + high) // 2
            gone = endings[: counts[middle]]
            seats = yield from self.place(gang, Trial([*gone, *plain] if plain else gone))
            if not isinstance(seats, str | OverQuota):
                rows = frozenset(seats.rows)
                on_seats = [ending for ending in plain if ending.row in rows]
                at = _latest([*gone[-1:], *on_seats])
                reservation, high = HeadReservation(gang, seats, [*gone, *on_seats], at, on_seats), middle
            elif middle == last:
                self.ended = seats
                return None
            else:
                low = middle + 1
        return reservation

    def _without_plain(self, gang: WaitingGang) -> Generator[None, None, HeadReservation | None]:
        """The reservation once pods without GPUs have ended too: those that state when, else all; None where the gang
        does not fit even then."""
        if self.plain is None:
            self.plain = yield from self.situation.plain()
        timed = [ending for ending in self.plain if ending.at is not None]
        for plain in (timed, self.plain) if 0 < len(timed) < len(self.plain) else (self.plain,):
            reservation = (yield from self._earliest(gang, plain)) if plain else None
            if reservation is not None:
                return reservation
        return None

    def _ended_before(self, gang: WaitingGang) -> Generator[None, None, int]:
        """After how many endings the gang had its place in the look before; 0 where it had none."""
        before, endings = self.situation.before, self.situation.endings
        if before is None or before.gang.ref != gang.ref:
            return 0
        gone = {ending.uid for ending in before.gone[-NEAR:]}
        count = 0
        for number, (ending, pause) in enumerate(pauses(endings, RUN), 1):
            if pause:
                yield
            if ending.uid in gone:
                count = number
        return count

    def _behind(self, gang: WaitingGang) -> Verdict:
        """Start a gang behind the head if it cannot delay the head."""
        head, situation = self.decision.head, self.situation
        assert head is not None
        if situation.strict:
            return Waits("order", f"gang {head.gang.ref} is first, and the mode is strict", head.gang.ref)
        self.tried += 1
        if self.tried > situation.depth:
            return Waits("depth", f"more than {situation.depth} gangs are ahead of it", head.gang.ref)
        end, kind = gang.end(situation.now), situation.kind(gang)
        delays = Waits("delays", f"it would delay gang {head.gang.ref}, which is before it", head.gang.ref)
        ends_before = end is not None and head.start is not None and end <= head.start
        if kind in self.delays and not ends_before:
            return delays
        anywhere = yield from self._now(gang)
        if isinstance(anywhere, str | OverQuota):
            return Waits("quota" if isinstance(anywhere, OverQuota) else "place", _text(anywhere))
        if ends_before:
            return TakenSeats(gang, anywhere)
        beside = yield from self.place(gang, Trial(kept=(TakenSeats(head.gang, head.seats),), later=head.gone))
        tried = [anywhere]
        if not isinstance(beside, str | OverQuota):
            if not situation.needs_positions(head.gang):
                return TakenSeats(gang, beside)
            tried.insert(0, beside)
        for seats in tried:
            moved = yield from self.place(head.gang, Trial(head.gone, (TakenSeats(gang, seats),)))
            if not isinstance(moved, str | OverQuota):
                self.decision.head = replace(head, seats=moved)
                return TakenSeats(gang, seats)
        if (yield from self._outranks(TakenSeats(gang, anywhere), head)):
            self.moves = True
            return TakenSeats(gang, anywhere)
        self.delays.add(kind)
        return delays

    def _outranks(self, held: TakenSeats, head: HeadReservation) -> Sliced[bool]:
        """Whether the gang is within the guarantee of its queue, and the head of another queue borrows."""
        guaranteed = self.situation.guaranteed
        if held.gang.queue == head.gang.queue or not (yield from guaranteed(held, ())):
            return False
        return not (yield from guaranteed(TakenSeats(head.gang, head.seats), head.gone))


def _text(why: str | OverQuota) -> str:
    return why if isinstance(why, str) else why.text


def _or_never(ending: Ending) -> float:
    """When it ends."""
    return inf if ending.at is None else ending.at


def _latest(endings: Sequence[Ending]) -> float | None:
    """When all of them have ended; None where one does not state it."""
    ats = [ending.at for ending in endings if ending.at is not None]
    return max(ats) if len(ats) == len(endings) else None


def _held_back(gang: WaitingGang, situation: QueueSituation) -> Waits | None:
    if not gang.complete:
        return Waits("incomplete", why_incomplete(gang))
    over = situation.over_quota(gang)
    return None if over is None else Waits("quota", over.text)


def why_incomplete(gang: WaitingGang) -> str:
    """What a gang that is not complete lacks, for people."""
    if gang.other_gates:
        return f"other scheduling gates hold it back: {', '.join(gang.other_gates)}"
    if not gang.known:
        unknown = "how many pods it has is not known: its owner does not exist, or states no number"
        return f"{unknown} (annotation {OUR_SIZE})"
    if gang.missing:
        return f"{gang.missing} does not exist"
    if gang.too_large:
        return (
            f"{gang.lacking:,} of its pods start together, and at most {MOST_SEATS:,} can: split it into several gangs"
        )
    existing = len(gang.pods) + len(gang.members)
    return f"{existing} of {gang.minimum} pods exist" if existing < gang.minimum else gang.unread_text
