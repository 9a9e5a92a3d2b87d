"""What is known of each advance reservation, in one ConfigMap: its place, its moves and how far they are.

The holder of the Lease writes it; every instance reads it, and holds the GPUs that it states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, Final, Literal

import msgspec

from extender.act.document import Amount, Entries, KeptDocument, Name, Priority, Seconds
from extender.kube.own_objects import ConfigMap
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects.stored_texts import Damaged, Newer, decoded, is_newer
from extender.reservations.advance import TOP, Held, PlannedMove, seat, turn_of
from extender.reservations.seats import Seat
from extender.times import rfc3339

STATE: Final = "gpu-extender-advance-state"
FORMAT: Final = 1
MOST_TEXT: Final = 200_000
"""Characters of one reservation."""
ON_TIME_SECONDS: Final = 30.0
"""A reservation whose GPUs are free so soon after its date is kept on time."""
Phase = Literal["no-place", "planned", "moving", "ready", "late", "in-use", "ended"]
Outcome = Literal["", "on-time", "late", "missed"]
log = get_log()


class KeptSeat(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """GPUs on a node."""

    node: Name
    amounts: dict[Name, Amount]  # by resource
    uid: str = ""  # of the pod that they are for; "": it does not exist
    pod: str = ""  # its namespace/name
    priority: Priority = TOP


class KeptMove(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """The next place of pods that move, as a `Held`."""

    name: Name
    seats: tuple[KeptSeat, ...]
    since: Seconds
    until: Seconds
    owner: Annotated[str, msgspec.Meta(max_length=1024)] = ""  # "": no pod may use it yet
    before: tuple[Name, ...] = ()


class Kept(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """One reservation. Times are seconds since 1970."""

    format: Literal[1]
    name: Name
    stated: Name  # names what was asked for: something else is planned anew
    since: Seconds
    until: Seconds
    phase: Phase = "no-place"
    text: str = ""  # about the phase, for people
    gang: str = ""  # the gang that asks for it; "": an operator does
    queue: str = ""  # of the gang
    gpus: dict[Name, Amount] = {}  # of the gang, by model
    namespaces: tuple[Name, ...] = ()
    seats: tuple[KeptSeat, ...] = ()
    before: tuple[Name, ...] = ()  # as of a `Held`
    moves: tuple[PlannedMove, ...] = ()  # in order
    held: tuple[KeptMove, ...] = ()
    outcome: Outcome = ""


_READ: Final = msgspec.json.Decoder(Kept)


def key_of(kept: Kept) -> str:
    """Its key in the ConfigMap: an operator's name is one."""
    return kept.name if not kept.gang else f"gang-{sha256(kept.gang.encode()).hexdigest()[:24]}"


def _entry(kept: Kept) -> tuple[str, str]:
    """Its key and its text."""
    return key_of(kept), msgspec.json.encode(kept).decode()


def as_json(kept: Kept) -> dict[str, Any]:
    """As pages and `gpu-extender queue` show it."""
    return {
        "name": kept.name,
        "phase": kept.phase,
        "text": kept.text,
        "from": rfc3339(kept.since),
        "until": rfc3339(kept.until),
        "namespaces": list(kept.namespaces),
        "gang": kept.gang or None,
        "nodes": sorted({seat.node for seat in kept.seats}),
        "outcome": kept.outcome or None,
    }


class AdvanceStore(Entries):
    """The reservations by name, as they were last read or written. What reads or writes raises as `KeptDocument`."""

    def __init__(
        self,
        configmap: ConfigMap,
        resources: tuple[str, ...],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        """`clock`: seconds."""
        super().__init__(resources, lambda: 0.0)  # it states no times of the monotonic clock
        self._document = KeptDocument([configmap], clock)
        self._metrics, self._clock = metrics, clock
        self._warned: set[str] = set()
        self._damaged: set[str] = set()  # keys that the next write removes
        self._made: dict[str, tuple[Kept, list[Held]]] = {}
        self.kept: dict[str, Kept] = {}

    async def read(self) -> None:
        """Read all. A text that cannot be used is left out, and planned anew."""
        await self._document.read()
        self.kept, self._damaged = {}, set()
        newer: dict[str, float] = {}
        for key, text in self._document.items():
            try:
                kept = decoded(text, _READ, FORMAT, MOST_TEXT)
                if key_of(kept) != key:
                    raise Damaged("it is under the key of another one")
                self._held_of(kept)
            except Newer as error:
                newer[key] = self._document.newer.get(key, self._clock())
                self._warn(key, "an advance reservation of a newer version is left as it is", error)
            except Damaged as error:
                self._damaged.add(key)
                self._metrics.reservations_damaged.inc()
                self._warn(key, "an advance reservation cannot be read, and is planned anew", error)
            else:
                self.kept[kept.name] = kept
        self._document.newer = newer

    async def restore(self) -> None:
        """Write all again where another program has changed or deleted the ConfigMap; what a version to come has
        written stays."""
        known = dict(self._document.items())
        self._document.note(await self._document.fetch())
        stored = dict(self._document.items())
        if any(is_newer(text, FORMAT) for key, text in stored.items() if text != known.get(key)):
            await self.read()
        elif stored != known:
            await self._document.write(self._document.changes(dict(map(_entry, self.kept.values()))))
            self._damaged = set()

    def _warn(self, key: str, problem: str, error: Damaged) -> None:
        if key not in self._warned:
            self._warned.add(key)
            log.warning(problem, key=key[:80], err=str(error))

    def is_newer(self, name: str) -> bool:
        """Whether a version to come keeps this reservation of an operator: it is left alone for a while."""
        return self._document.stands(name)

    def why_not(self, changes: Mapping[str, Kept | None]) -> str:
        """Why these cannot be written together, "" where they can."""
        return self._why_not(self._texts(changes))

    def _texts(self, changes: Mapping[str, Kept | None]) -> dict[str, str | None]:
        """What is written of them, by key."""
        texts: dict[str, str | None] = {}
        for name, kept in changes.items():
            before = self.kept.get(name)
            if kept is not None:
                key, text = _entry(kept)
                texts[key] = text
            elif before is not None:
                texts[key_of(before)] = None
        return dict.fromkeys(self._damaged) | texts

    def _why_not(self, texts: Mapping[str, str | None]) -> str:
        if any(map(self._document.stands, texts)):
            return "a newer version of gpu-extender keeps it"
        try:
            for text in texts.values():
                if text is not None:
                    decoded(text, _READ, FORMAT, MOST_TEXT)
        except Damaged as error:  # no version could read it
            return f"it cannot be kept: {error}"
        return "" if self._document.has_room(texts) else "it does not fit into its ConfigMap"

    async def write(self, changes: Mapping[str, Kept | None]) -> str:
        """Keep these, None: no more; "" once they are written, else why they cannot be."""
        texts = self._texts(changes)
        if why := self._why_not(texts):
            return why
        await self._document.write(texts)
        self._damaged = set()
        for name, kept in changes.items():
            self.kept.pop(name, None)
            if kept is not None:
                self.kept[name] = kept
        return ""

    # -- what the moves hold: their next places, before a pod is evicted

    async def hold(self, held: Sequence[Held]) -> str:
        """Keep the next places of moves, instead of those of the same names; "" once they are written, else why not."""
        changes: dict[str, Kept | None] = {}
        for next_place in held:
            name, _ = turn_of(next_place.name)
            kept = changes.get(name) or self.kept.get(name)
            if kept is None:
                return f"there is no advance reservation {name}"
            others = tuple(move for move in kept.held if move.name != next_place.name)
            changes[name] = msgspec.structs.replace(kept, held=(*others, self._move(next_place)))
        return await self.write(changes)

    async def drop(self, names: Iterable[str]) -> str:
        """Keep these next places no more; "" once that is written, else why it is not."""
        dropped = set(names)
        changes: dict[str, Kept | None] = {}
        for name, kept in self.kept.items():
            left = tuple(move for move in kept.held if move.name not in dropped)
            if left != kept.held:
                changes[name] = msgspec.structs.replace(kept, held=left)
        return (await self.write(changes)) if changes else ""

    def _move(self, held: Held) -> KeptMove:
        seats = tuple(KeptSeat(seat.node, self._stated(seat.amounts)) for seat in held.seats)
        return KeptMove(held.name, seats, held.since, held.until, held.owner, tuple(sorted(held.before)))

    # -- what is in force

    def held(self) -> list[Held]:
        """What every instance holds."""
        made, self._made = self._made, {}
        for name, kept in self.kept.items():  # one that is the same is not made again
            known = made.get(name)
            self._made[name] = known if known is not None and known[0] is kept else (kept, self._held_of(kept))
        return [held for _, of_kept in self._made.values() for held in of_kept]

    def _held_of(self, kept: Kept) -> list[Held]:
        """What one reservation holds, and its moves. Raises Damaged."""
        moves = [
            Held(
                move.name, self._seats(move.name, move.seats), move.since, move.until,
                owner=move.owner, before=frozenset(move.before),
            )
            for move in kept.held
        ]  # fmt: skip
        if not kept.seats or kept.phase == "ended":
            return moves
        seats = self._seats(kept.gang or kept.name, kept.seats)
        own = Held(kept.name, seats, kept.since, kept.until, frozenset(kept.namespaces), before=frozenset(kept.before))
        return [own, *moves]

    def _seats(self, name: str, kept: Iterable[KeptSeat]) -> tuple[Seat, ...]:
        return tuple(
            seat(name, number, of.node, self._amounts(of.amounts), 0.0) if not of.uid
            else Seat(of.uid, of.pod, name, of.node, self._amounts(of.amounts), 0, of.priority, 0.0)
            for number, of in enumerate(kept)
        )  # fmt: skip

    def kept_seat(
        self, node: str, amounts: Sequence[int], uid: str = "", pod: str = "", priority: int = TOP
    ) -> KeptSeat:
        """R amounts on a node."""
        return KeptSeat(node, self._stated(amounts), uid, pod, priority)
