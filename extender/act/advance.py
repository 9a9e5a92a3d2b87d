"""Advance reservations: GPUs for a date, as operators state them in a ConfigMap.

Theory of operation
-------------------
1. Every instance reads what is kept of each reservation (advance_store.py), and holds its GPUs
   (`extender.reservations.advance`). The holder of the Lease also reads what is asked for, and writes what is kept.
2. A fork of the server searches the place and the moves that make it (`ask/making_room.py`); what is declared to end
   before the date counts as gone. That is done when an entry is first seen, and again when its place no longer stands.
3. The moves are carried out at the latest useful moment (moves.py). From `from` on the namespaces of the entry use the
   GPUs, until `until`.
4. With a queue the instance that leads it acts for reservations, too: it alone knows what the head waits for, which is
   held for no date.
5. A state is a phase in the kept text, and all that a phase needs follows from the cluster: the next holder of the
   Lease goes on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from math import inf
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from extender.act.advance_store import ON_TIME_SECONDS, AdvanceStore, Kept, KeptMove, KeptSeat, Phase, as_json
from extender.act.controller import Controller, Leadership, done, repeat
from extender.act.document import LONGEST_NAME
from extender.act.events import EventRecorder, of_pod
from extender.act.moves import DELETED, Moves, MovesState, why_closed
from extender.ask.making_room import MoveRule
from extender.ask.text import count
from extender.cluster.cluster import ClusterView
from extender.cluster.tables import FIRST_GPU
from extender.decide.verbs import Verbs
from extender.errors import BadInput, ExtenderError, NotFound
from extender.kube.client import ApiError, NoAnswer
from extender.kube.own_objects import ConfigMap, Regarding, VersionConflict
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects.advance import MOST_ENTRIES, START_AT, AdvanceEntry, WantedRoom, entries
from extender.objects.records import PodRecord
from extender.queue.gang import WaitingGang
from extender.queue.gang_runs import stated
from extender.queue.plan import Planner, gang_name, name_of_date
from extender.queue.report import first_names
from extender.reservations.advance import Held, PlannedMove, users
from extender.reservations.seats import Seats
from extender.times import Clock, Epoch, rfc3339

LOOK_SECONDS: Final = 1.0
READ_SECONDS: Final = 5.0
"""Between two readings of the ConfigMaps."""
SPREAD_SECONDS: Final = READ_SECONDS + 2 * LOOK_SECONDS
"""After which every instance has read what is kept."""
AGAIN_SECONDS: Final = 30.0
"""Between two searches for one reservation, or for one gang."""
REST: Final = 19.0
"""Times as long as a search took no other one is made: they have a twentieth of one processor."""
MOST_NAMED: Final = 3
REASONS: Final[Mapping[str, str]] = {
    "no-place": "AdvanceReservationWithoutPlace",
    "planned": "AdvanceReservationPlanned",
    "moving": "AdvanceReservationMovesPods",
    "ready": "AdvanceReservationReady",
    "late": "AdvanceReservationLate",
    "in-use": "AdvanceReservationBegins",
    "ended": "AdvanceReservationEnds",
    "invalid": "AdvanceReservationInvalid",
}
"""Of the Events, by phase."""
WARNINGS: Final = frozenset({"no-place", "late", "invalid"})
log = get_log()


class FoundRoom(NamedTuple):
    """What a search found."""

    places: Sequence[tuple[str, int]] = ()  # (node, pods of the shape); one without pods: the node that is emptied
    amounts: tuple[int, ...] = ()  # R amounts of a pod of the shape
    moves: tuple[PlannedMove, ...] = ()
    why: str = ""  # why there is none, for people
    spent: float = 0.0  # CPU time, in seconds


Search = Callable[[str, WantedRoom, float], Awaitable[FoundRoom]]
"""Searches a place for the reservation of this name, until the time stated. ExtenderError."""


class Keeping(NamedTuple):
    """Where reservations are asked for and kept, and which instance may write."""

    asked: ConfigMap
    store: AdvanceStore
    leadership: Leadership
    moving: Moves
    dated: DatedGangs | None = None  # None: there is no queue
    may_lead: Callable[[], bool] = lambda: True
    """Whether this instance may take the Lease: one that leads the queue, or where none can."""


class AdvanceController(Controller):
    """Looks after all advance reservations. `search`: set by the wiring."""

    name = "advance"

    def __init__(
        self,
        verbs: Verbs,
        keeping: Keeping,
        ready: Callable[[], bool],
        events: EventRecorder,
        metrics: Metrics,
        *,
        clock: Clock,
    ) -> None:
        """`ready`: whether the cluster's state is known and current."""
        self._cluster, self._advance = verbs.cluster, verbs.claims.advance
        self._asked, self._store, self._leadership, self._moving, self._dated, self._may_lead = keeping
        self._ready, self._events, self._metrics = ready, events, metrics
        self._clock, self._epoch = clock, Epoch(clock)
        self.search: Search | None = None
        self._entries: dict[str, AdvanceEntry] | None = None  # None: not read yet
        self._faults: dict[str, str] = {}
        self._uid = ""  # of the ConfigMap
        self._read_at = -inf
        self._leads = self._known = False
        self._wanting: dict[str, str] = {}  # for which a search is due, by name: for what
        self._searching: asyncio.Task[None] | None = None
        self._found: dict[str, tuple[str, FoundRoom]] = {}  # by name: for what it was searched
        self._searched: dict[str, tuple[str, float]] = {}  # the same, and from when on it is searched again
        self._rests_until = -inf
        self._moves: dict[str, MovesState] = {}  # by name, as of the turn before
        self._told: dict[str, str] = {}
        self._failed = ""

    # -- what people see ------------------------------------------------------------------------------------------

    @property
    def report(self) -> list[dict[str, Any]]:
        """Each reservation, by the time at which it begins, and each entry that is none."""
        shown = [as_json(kept) for kept in sorted(self._store.kept.values(), key=lambda kept: (kept.since, kept.name))]
        refused = {} if self._dated is None else dict(islice(self._dated.refused.items(), MOST_ENTRIES))
        lists, others = ("namespaces", "nodes"), ("from", "until", "gang", "outcome")
        nothing: dict[str, Any] = {name: [] for name in lists} | dict.fromkeys(others)
        shown += [{"name": name, "phase": "no-place", "text": why} | nothing for name, why in refused.items()]
        for one in shown:
            if one["name"] in self._faults:
                one["text"] += f"; its entry is invalid now: {self._faults[one['name']]}"
        new = {name: why for name, why in self._faults.items() if name not in self._store.kept}
        return shown + [{"name": name, "phase": "invalid", "text": why} | nothing for name, why in new.items()]

    # -- the task -------------------------------------------------------------------------------------------------

    def missing(self) -> list[str]:
        """What is held, while this instance has not read it: it would give the GPUs to other pods."""
        return [] if self._known else ["the advance reservations: their ConfigMap could not be read yet"]

    async def begin(self) -> None:
        """Read what is held."""
        try:
            await self._store.read()
        except (ApiError, NoAnswer) as error:
            self._known = isinstance(error, ApiError) and error.is_final
        else:
            self._known = True
            self._hold()

    async def run(self) -> None:
        """Look again and again."""
        try:
            await repeat(self.turn, LOOK_SECONDS)
        finally:
            if self._searching is not None:
                self._searching.cancel()
            await self._leadership.resign()

    async def turn(self) -> None:
        """One look. What cannot be read or written stays as it is, and is held on."""
        if not self._ready():
            return
        try:
            await self._read()
            self._known = True
            wanted = bool(self._entries or self._faults or self._store.kept) or self._moving.saves.stand()
            wanted = wanted or (self._dated is not None and self._dated.wanted())
            await self._leadership.campaign(wanted and self._may_lead())
            if not self._leads_now:
                self._leads = False
                self._moving.saves.forget()
            elif self._entries is not None:
                await self._lead(self._entries)
            self._failed = ""
        except VersionConflict:  # another instance has written, which has the Lease; or another program has
            self._read_at = -inf
        except (ApiError, NoAnswer) as error:
            self._leads = False
            self._known = self._known or (isinstance(error, ApiError) and error.is_final)
            if not self._failed:
                self._failed = str(error)
                log.warning("the advance reservations cannot be read or written", err=str(error))
        self._hold()

    async def _read(self) -> None:
        now = self._clock.monotonic()
        if now - self._read_at < READ_SECONDS:
            return
        self._read_at = now
        asked = await self._asked.read()
        if self._leads and self._leads_now:  # no other instance writes it
            await self._store.restore()
        else:
            await self._store.read()
        found, self._faults = entries(asked.data, self._store.kept)
        last = {name: entry for name, entry in (self._entries or {}).items() if name in self._faults}
        self._entries, self._uid = last | {entry.name: entry for entry in found}, asked.uid

    def _hold(self) -> None:
        """What is kept is in force."""
        self._advance.take(self._store.held(), self._epoch())
        self._advance.report = self.report

    # -- what the holder of the Lease does ------------------------------------------------------------------------

    async def _lead(self, asked: Mapping[str, AdvanceEntry]) -> None:
        if not self._leads:
            await self._store.read()
            self._leads = True
            self._told |= {name: _told(kept.phase, kept.text) for name, kept in self._store.kept.items()}
        for name, why in self._faults.items():
            self._tell(name, "invalid", why)
        changes: dict[str, Kept | None] = {}
        self._wanting.clear()
        for entry in sorted(asked.values(), key=lambda entry: (entry.since, entry.name)):
            if not self._store.is_newer(entry.name):
                before = self._store.kept.get(entry.name)
                kept = self._step(entry, before, changes)
                if kept != before:
                    changes[entry.name] = kept
        for name, kept in self._store.kept.items():
            if kept.gang and (self._dated is None or any(_empties(change, kept) for change in changes.values())):
                changes[name] = None  # the gang gets another place, or none while the queue is off
            given_up = _given_up(kept) if _in_transit(kept) else None
            stands = name in asked or (name in self._faults and self._clock.wall() < kept.until)
            if not stands and not kept.gang and given_up != kept:
                changes[name] = given_up
        if not changes or await self._write(changes):
            self._hold()  # dates of gangs are placed beside it
            if self._dated is not None and (of_gangs := await self._dated.look()):
                await self._write(of_gangs)  # what tenants ask for keeps operators from nothing
                self._hold()
            self._begin_search(asked)
            await self._move(asked)

    async def _write(self, changes: Mapping[str, Kept | None]) -> bool:
        """Keep what has changed; whether it is kept."""
        outcomes = {name: before.outcome for name, before in self._store.kept.items()}
        if why := await self._store.write(changes):
            log.warning("advance reservations are not kept", err=why)
            return False
        for name, change in changes.items():
            if change is None:
                self._told.pop(name, None)
            elif not change.gang:
                if name not in self._faults:
                    self._tell(name, change.phase, change.text)
                if change.outcome and outcomes.get(name) != change.outcome:
                    self._metrics.advance_reservations.labels(change.outcome).inc()
        return True

    async def _move(self, asked: Collection[str]) -> None:
        """One turn of the moves of each reservation. They begin once their reservation is kept."""
        moving, states = self._moving, dict[str, MovesState]()
        kept_now = list(self._store.kept.values())
        await moving.sweep([kept.name for kept in kept_now])
        for kept in kept_now:
            if kept.moves or kept.held:
                moves = kept.moves if kept.name in asked else ()  # an invalid one only holds what it has
                states[kept.name] = await moving.turn(kept.name, moves, kept.since, kept.until, self._may_act)
        self._moves = states

    @property
    def _leads_now(self) -> bool:
        return self._leadership.held and self._may_lead()

    def _may_act(self) -> bool:
        return self._leads_now and self._ready()

    def _step(self, entry: AdvanceEntry, kept: Kept | None, changes: Mapping[str, Kept | None]) -> Kept:
        """What is to be kept of one entry now. `changes`: of entries before it."""
        wall, stated_now = self._clock.wall(), _digest(entry)
        held = () if kept is None else _in_transit(kept)
        if kept is not None:
            revived = kept.phase == "ended" and wall < entry.until  # a later end, or the clock stepped back
            stands = kept.stated == stated_now and not revived
            kept = self._restated(entry, kept, changes) if stands else None
        if kept is None:
            kept = Kept(1, entry.name, stated_now, entry.since, entry.until, namespaces=entry.namespaces, held=held)
        if wall >= entry.until:
            outcome = kept.outcome or ("missed" if kept.seats or (kept.phase == "no-place" and kept.text) else "")
            return replace(_given_up(kept), text="it has ended", outcome=outcome)
        if kept.moves and self._keeps(entry, kept.moves):
            kept = replace(kept, moves=())  # where it has no room without them, it is searched again
        users = self._users(kept)
        why = self._lost(kept) if kept.seats and not users else ""
        if why or not kept.seats:
            kept = self._placed(entry, kept, changes, why)
            if kept.phase == "no-place" and (wall < entry.since or not kept.seats):
                return kept
        return self._phase(entry, kept, users)

    def _restated(self, entry: AdvanceEntry, kept: Kept, changes: Mapping[str, Kept | None]) -> Kept | None:
        """What is kept, with the end and the namespaces that are stated now. None: its place has to be searched anew,
        as where it is another's by then."""
        if (kept.until, kept.namespaces) == (entry.until, entry.namespaces):
            return kept
        new = set(entry.namespaces) - set(kept.namespaces)
        before = tuple(sorted({*kept.before, *self._present({seat.node for seat in kept.seats}, new)}))
        restated = replace(kept, until=entry.until, namespaces=entry.namespaces, before=before)
        later = entry.until > kept.until
        if later and self._overlaps(restated, changes):
            return None
        return None if self._store.why_not({**changes, kept.name: restated}) else restated

    def _present(self, nodes: Collection[str], namespaces: Collection[str]) -> list[str]:
        """Uids of the pods of these namespaces with GPUs of these nodes. Others use no seat, and may be many."""
        pods = (pod for node in nodes for pod in self._cluster.pods_on(node) if pod.namespace in namespaces)
        return [pod.uid for pod in pods if self._cluster.gpu_amount(pod)]

    def _phase(self, entry: AdvanceEntry, kept: Kept, users: Sequence[PodRecord]) -> Kept:
        """The phase of a reservation with a place."""
        wall, needed = self._clock.wall(), _needed(kept, self._cluster)
        in_the_way, broken = self._in_the_way(kept, needed), self._broken(kept, needed)
        where = _where(kept, entry)
        if (in_the_way or broken) and not kept.outcome:
            state, late = self._moves.get(kept.name), wall >= entry.since
            moving = state is not None and state.phase == "moving" and not late
            phase: Phase = "late" if late else "moving" if moving else "planned"
            why = f": {state.text}" if state is not None and state.text else ""
            moves = f"; {count(len(kept.moves), 'move')}{why}" if kept.moves else ""
            still = f"{_named(in_the_way)} still there"
            return replace(kept, phase=phase, text=f"{where}: {broken or still}{moves}")
        if not _in_transit(kept):  # the room came by itself: no further move begins, and one that has begun ends
            kept = replace(kept, moves=())
        if wall < entry.since:
            return replace(kept, phase="ready", text=f"{where}: free")
        on_time = kept.phase == "ready" or wall - entry.since <= ON_TIME_SECONDS  # no turn may have been at its date
        outcome = kept.outcome or ("on-time" if on_time else "late")
        used = f", used by {_named(users)}" if users else ""
        return replace(kept, phase="in-use", text=f"{where}{used}", outcome=outcome)

    # -- where it is ----------------------------------------------------------------------------------------------

    def _placed(self, entry: AdvanceEntry, kept: Kept, changes: Mapping[str, Kept | None], why: str) -> Kept:
        """With the place that was found, where it stands; else a search is begun. What it has is held meanwhile, but no
        pod moves for it. `why`: it is lost; "" where it has none."""
        found = self._found.pop(entry.name, None)
        if found is None or found[0] != kept.stated:
            self._wanting[entry.name] = kept.stated
            known = kept.text if kept.phase == "no-place" else ""
            return replace(kept, phase="no-place", text=known or why or "its place is searched", moves=())
        room = found[1]
        if room.why and not entry.room.node:
            return replace(kept, phase="no-place", text=room.why, moves=())
        seats = self._seats(entry, room if not room.why else FoundRoom(((entry.room.node, 0),)))
        if seats is None:
            return replace(kept, phase="no-place", text="a node of its place is gone", moves=())
        before = tuple(sorted(self._present({seat.node for seat in seats}, entry.namespaces)))
        phase: Phase = "no-place" if room.why else "planned"  # no pod comes to a node that is to be emptied
        placed = replace(
            kept, seats=seats, before=before, moves=room.moves, held=_in_transit(kept), phase=phase, text=room.why
        )
        if self._overlaps(placed, changes):
            return replace(kept, phase="no-place", text="its place went to another reservation", moves=())
        if why := self._store.why_not({**changes, kept.name: placed}):  # the others are planned all the same
            return replace(kept, phase="no-place", text=why, moves=())
        return placed

    def _seats(self, entry: AdvanceEntry, room: FoundRoom) -> tuple[KeptSeat, ...] | None:
        cluster, seats = self._cluster, list[KeptSeat]()
        for name, pods in room.places:
            node = cluster.nodes.get(name)
            if node is None or cluster.row(name) < 0:
                return None
            whole = [node.gpus.get(resource, 0) for resource in cluster.resources]
            seats += [self._store.kept_seat(name, room.amounts if pods else whole)] * max(1, pods)
        return tuple(seats)

    def _begin_search(self, asked: Mapping[str, AdvanceEntry]) -> None:
        """Begin one search, where none is under way and it is due: what was found before is held by now."""
        now, under_way = self._clock.monotonic(), self._searching is not None and not self._searching.done()
        if self.search is None or under_way or now < self._rests_until:
            return
        due = {
            name: -inf if before is None or before[0] != stated_now else before[1]
            for name, stated_now in self._wanting.items()
            if (before := self._searched.get(name)) is None or before[0] != stated_now or now >= before[1]
        }
        if due:  # the one that has waited longest: none of them starves the others
            name = min(due, key=due.__getitem__)
            self._searched[name] = self._wanting[name], now + AGAIN_SECONDS
            self._searching = asyncio.create_task(self._find(self.search, asked[name], self._wanting[name]))

    async def _find(self, search: Search, entry: AdvanceEntry, stated_now: str) -> None:
        try:
            room = await search(entry.name, _asked(entry, self._clock.wall()), entry.until)
        except (BadInput, NotFound) as error:
            room = FoundRoom(why=str(error))
        except ExtenderError as error:  # too little memory, or too many questions: it is searched again
            log.warning("an advance reservation has no place yet", name=entry.name, err=error.message)
            return
        self._rests_until = self._clock.monotonic() + REST * room.spent
        self._found[entry.name] = stated_now, room

    def _keeps(self, entry: AdvanceEntry, moves: Sequence[PlannedMove]) -> bool:
        """Whether `plan` would leave a pod where it is now that these moves evict."""
        wall = self._clock.wall()
        try:
            rule = MoveRule.of(self._cluster, _asked(entry, wall), wall)
        except BadInput:  # its PriorityClass is gone
            return True
        return any(map(rule.why_not_now, moves))

    # -- whether it stands ----------------------------------------------------------------------------------------

    def _lost(self, kept: Kept) -> str:
        """Why its place no longer stands; "" where it does."""
        needed, wall = _needed(kept, self._cluster), self._clock.wall()
        emptied = not kept.namespaces
        if broken := self._broken(kept, needed):
            return broken
        state = self._moves.get(kept.name)
        if state is not None and state.phase == "lost":
            return state.text
        staying, moved = Counter[str](), {pod.uid for move in kept.moves for pod in move.pods}
        for pod, end in stated(self._cluster, wall, needed):
            if (end is None or end > kept.since) and not pod.terminating and pod.uid not in moved:
                if emptied and pod.daemon:
                    continue
                staying[pod.node] += self._cluster.gpu_amount(pod)
        for node, amounts in needed.items():
            if sum(amounts) + staying[node] > sum(self._cluster.nodes[node].gpus.values()):
                return f"pods that do not end before its date are on node {node}"
        return ""

    def _broken(self, kept: Kept, needed: Mapping[str, Sequence[int]]) -> str:
        """Why a node of it cannot run what it is kept for; "" where all can. `needed`: as `_needed`."""
        for node, amounts in needed.items():
            closed = why_closed(self._cluster, node)
            if closed == DELETED or (kept.namespaces and closed):
                return f"node {node} takes no pods any more: {closed}"
            if kept.namespaces and sum(amounts) > sum(self._cluster.nodes[node].gpus.values()):
                return f"GPUs of node {node} are unhealthy or gone"
        return ""

    def _in_the_way(self, kept: Kept, needed: Mapping[str, Sequence[int]]) -> list[PodRecord]:
        """The pods with GPUs that have to leave before its GPUs are free. `needed`: as `_needed`."""
        found: list[PodRecord] = []
        cluster, own = self._cluster, _own(kept)
        for node, amounts in needed.items():
            used = {pod.uid for pod in users(own, [node], cluster)}
            others = [(pod, cluster.gpu_amount(pod)) for pod in cluster.pods_on(node)]
            others = [(pod, gpus) for pod, gpus in others if gpus and pod.uid not in used]
            record = cluster.nodes.get(node)
            offered = 0 if record is None else sum(record.gpus.values())
            if sum(amounts) + sum(gpus for _, gpus in others) > offered:
                found += [pod for pod, _ in others if kept.namespaces or not pod.daemon]
        return found

    def _users(self, kept: Kept) -> list[PodRecord]:
        """The pods that use it, from its date on."""
        if self._clock.wall() < kept.since:
            return []
        return list(users(_own(kept), sorted({seat.node for seat in kept.seats}), self._cluster))

    def _overlaps(self, placed: Kept, changes: Mapping[str, Kept | None]) -> bool:
        """Whether another reservation has GPUs of the place at the same time."""
        needed = _needed(placed, self._cluster)
        others = {name: kept for name, kept in {**self._store.kept, **changes}.items() if kept is not None}
        for name, kept in others.items():
            if name == placed.name or kept.phase == "ended" or not _meet(placed, kept) or _empties(placed, kept):
                continue
            for node, amounts in _needed(kept, self._cluster).items():
                if node in needed:
                    needed[node] = [one + other for one, other in zip(needed[node], amounts, strict=True)]
        return any(sum(amounts) > sum(self._cluster.nodes[node].gpus.values()) for node, amounts in needed.items())

    # -- Events on the ConfigMap ----------------------------------------------------------------------------------

    def _tell(self, name: str, phase: Phase | str, text: str) -> None:
        """Write an Event where the phase is another one than before, or why it has no place."""
        told = _told(phase, text)
        if self._told.get(name) != told and self._uid:
            self._told[name] = told
            regarding = Regarding("ConfigMap", self._asked.namespace, self._asked.name, self._uid)
            self._events.tell(regarding, REASONS[phase], "Reserving", f"{name}: {text}", warning=phase in WARNINGS)


def _told(phase: str, text: str) -> str:
    """Of what one Event is written."""
    return f"{phase} {text}" if phase in ("no-place", "invalid") else phase


def _meet(one: Kept, other: Kept) -> bool:
    """Whether both hold at some time."""
    return one.since < other.until and other.since < one.until


def _empties(change: Kept | None, gang: Kept) -> bool:
    """Whether it empties a node on which GPUs are held for the date of a gang: the operator's word counts."""
    if change is None or change.namespaces or change.gang or not gang.gang or not _meet(change, gang):
        return False
    return not {seat.node for seat in change.seats}.isdisjoint(seat.node for seat in gang.seats)


def _digest(entry: AdvanceEntry) -> str:
    """Of what its place depends on, wherever it is."""
    return sha256(repr((entry.room, entry.since)).encode()).hexdigest()[:16]


def _asked(entry: AdvanceEntry, wall: float) -> WantedRoom:
    """What is searched for it at a time."""
    return entry.room._replace(at=0.0 if entry.since <= wall else entry.since)


def _in_transit(kept: Kept) -> tuple[KeptMove, ...]:
    """The next places of pods that have left their nodes by now: they outlast the reservation, until they are used."""
    return tuple([place for place in kept.held if place.owner])


def _given_up(kept: Kept) -> Kept:
    """It holds nothing any more but places of pods in transit."""
    return replace(kept, phase="ended", seats=(), moves=(), held=_in_transit(kept))


def _own(kept: Kept) -> Held:
    """It without its seats: which pods it is for."""
    return Held(kept.name, (), kept.since, kept.until, frozenset(kept.namespaces), before=frozenset(kept.before))


def _needed(kept: Kept, cluster: ClusterView) -> dict[str, list[int]]:
    """GPUs by resource that it has on each node."""
    names = cluster.resources[FIRST_GPU:]
    needed: dict[str, list[int]] = {}
    for seat in kept.seats:
        before = needed.setdefault(seat.node, [0] * len(names))
        needed[seat.node] = [had + seat.amounts.get(name, 0) for had, name in zip(before, names, strict=True)]
    return needed


def _where(kept: Kept, entry: AdvanceEntry) -> str:
    nodes = first_names(sorted({seat.node for seat in kept.seats}), MOST_NAMED)
    if entry.room.node:
        return f"node {entry.room.node} is emptied"
    return f"{entry.room.pods} x {entry.room.gpus} GPUs on {nodes}"


def _named(pods: Sequence[PodRecord]) -> str:
    return first_names([f"{pod.namespace}/{pod.name}" for pod in pods], MOST_NAMED)


# -- GPUs for a gang of the queue that states when it starts (start-at)
#
# The holder of the Lease of advance reservations places such gangs where they fit at their date without moving any pod,
# within the limit of their queue. What is held counts for pods of equal and lower priority, and until DATE_HELD_SECONDS
# after the date. It is given back at once where the gang changes its date, leaves, or its queue holds more meanwhile.


DATES_SECONDS: Final = 5.0
"""Between two looks at the dates of gangs."""
DATE_HELD_SECONDS: Final = 600.0
"""From its date on a gang has so long to start on the GPUs that are held for it."""
MOST_DATED_OF_QUEUE: Final = 8
MOST_DATED: Final = 64
"""Gangs for which GPUs are held, of one queue and in all."""
MOST_DATED_PODS_OF_QUEUE: Final = 128
MOST_DATED_PODS: Final = 512
"""Their pods: operators' reservations are in the same ConfigMap, and find room there."""
MOST_AHEAD: Final = 30 * 86_400.0
"""Seconds to the date."""


class DatedGangs:
    """Looks after the reservations of gangs."""

    def __init__(
        self, planner: Planner, seats: Seats, store: AdvanceStore, events: EventRecorder, metrics: Metrics, clock: Clock
    ) -> None:
        self.head_known: Callable[[], bool] = lambda: True
        """Whether the planner has looked at the queue as it is now: before, no place is searched. Set by the wiring."""
        self._planner, self._seats, self._store, self._clock = planner, seats, store, clock
        self._cluster, self._events, self._metrics = planner.stand_ins.cluster, events, metrics
        self._looked_at = self._asked_at = -inf
        self._wanted = False
        self._tried: dict[str, float] = {}  # when a place was searched, by name
        self.refused: dict[str, str] = {}
        """Why no GPUs are held for a gang, by its name."""

    def wanted(self) -> bool:
        """Whether a gang that waits states a date."""
        now, pods = self._clock.monotonic(), self._cluster.pods
        if now - self._asked_at >= DATES_SECONDS:
            self._asked_at = now
            queued = (pods.get(uid) for uid in self._cluster.placements.queued)
            self._wanted = any(pod is not None and START_AT in pod.annotations for pod in queued)
        return self._wanted

    async def look(self) -> dict[str, Kept | None]:
        """What is to be kept otherwise than now."""
        now = self._clock.monotonic()
        if now - self._looked_at < DATES_SECONDS:
            return {}
        self._looked_at = now
        dated = await done(self._planner.dated()) if self.wanted() else []
        gangs = {name_of_date(gang): (gang, date) for gang, date in dated}
        known = {name: kept for name, kept in self._store.kept.items() if kept.gang}
        held = {name: kept for name, kept in known.items() if not self._is_over(kept, gangs.get(name))}
        await self._within_limits(held)
        changes: dict[str, Kept | None] = {name: None for name in known if name not in held}
        self._tried = {name: at for name, at in self._tried.items() if name in gangs}
        self.refused = {name: why for name, why in self.refused.items() if name in gangs and name not in held}
        if self.head_known() and (name := self._next(gangs, held, now)) is not None:
            self._tried[name] = now
            gang, date = gangs[name]
            found = await self._placed(gang, date, held)
            if isinstance(found, str):
                self.refused[name] = found
                text = f"no GPUs are held for its date {rfc3339(date)}: {found}"
            else:
                changes[name] = found
                text = f"held for its date {rfc3339(date)}: {found.text}"
            reason = "AdvanceReservationWithoutPlace" if isinstance(found, str) else "AdvanceReservationReady"
            self._events.tell(of_pod(gang.pods[0]), reason, "Reserving", text, warning=isinstance(found, str))
        return changes

    def _next(self, gangs: Mapping[str, tuple[WaitingGang, float]], held: Collection[str], now: float) -> str | None:
        """The gang whose place is searched now: of the namespace whose latest search is the longest ago, so that no
        namespace starves the others."""
        latest: dict[str, float] = {}
        for name, at in self._tried.items():
            namespace = gangs[name][0].ref.namespace
            latest[namespace] = max(at, latest.get(namespace, -inf))
        due = [name for name in gangs if name not in held and now - self._tried.get(name, -inf) >= AGAIN_SECONDS]
        return min(
            due, default=None,
            key=lambda name: (latest.get(gangs[name][0].ref.namespace, -inf), self._tried.get(name, -inf)),
        )  # fmt: skip

    def _is_over(self, kept: Kept, waiting: tuple[WaitingGang, float] | None) -> bool:
        """Whether nothing is to be held for the gang any more."""
        wall = self._clock.wall()
        if wall < kept.since:  # it was deleted, or asks for something else
            uids = {seat.uid for seat in kept.seats}
            return waiting is None or waiting[1] != kept.since or {pod.uid for pod in waiting[0].pods} != uids
        pods = [pod for seat in kept.seats if (pod := self._cluster.pods.get(seat.uid)) is not None]
        started = kept.gang in self._seats.gangs or any(pod.node for pod in pods)
        if started or wall >= kept.until:
            on_time = "on-time" if wall - kept.since <= ON_TIME_SECONDS else "late"
            self._metrics.advance_reservations.labels(on_time if started else "missed").inc()
        return started or not pods or wall >= kept.until

    async def _within_limits(self, held: dict[str, Kept]) -> None:
        """Of queues that hold more by now, as their other pods have started, give back what is held for the latest
        dates."""
        for queue in {kept.queue for kept in held.values()}:
            of_queue = sorted((kept for kept in held.values() if kept.queue == queue), key=lambda kept: kept.since)
            while of_queue:
                why = await done(self._planner.over_limit(queue, _gpus(of_queue)))
                if not why:
                    break
                del held[of_queue.pop().name]

    async def _placed(self, gang: WaitingGang, date: float, held: Mapping[str, Kept]) -> Kept | str:
        if len(name_of_date(gang)) > LONGEST_NAME:
            return "the name of the gang is too long to be kept"
        if date - self._clock.wall() > MOST_AHEAD:
            return f"its date is more than {MOST_AHEAD / 86_400:g} days ahead"
        of_queue = [kept for kept in held.values() if kept.queue == gang.queue]
        if len(of_queue) >= MOST_DATED_OF_QUEUE or len(held) >= MOST_DATED:
            return f"GPUs are held for {len(of_queue)} gangs of queue {gang.queue}, and for {len(held)} in all"
        pods = [sum(len(kept.seats) for kept in some) + len(gang.pods) for some in (of_queue, held.values())]
        if pods[0] > MOST_DATED_PODS_OF_QUEUE or pods[1] > MOST_DATED_PODS:
            return f"GPUs would be held for {pods[0]} pods of queue {gang.queue}, and for {pods[1]} in all"
        found = await done(self._planner.place_at(gang, date, _gpus(of_queue)))
        if isinstance(found, str):
            return found
        seats, gpus = found
        text = f"{count(sum(gpus.values()), 'GPU')} on {count(len({seat.node for seat in seats}), 'node')}"
        kept_seats = [
            self._store.kept_seat(seat.node, seat.amounts, seat.uid, seat.pod, seat.priority) for seat in seats
        ]
        return Kept(
            1, name_of_date(gang), f"{date}", date, date + DATE_HELD_SECONDS, "ready", text, gang=gang_name(gang),
            queue=gang.queue, gpus=gpus, seats=tuple(kept_seats),
        )  # fmt: skip


def _gpus(reservations: Iterable[Kept]) -> Counter[str]:
    """What they hold, by model."""
    total = Counter[str]()
    for kept in reservations:
        total.update(kept.gpus)
    return total
