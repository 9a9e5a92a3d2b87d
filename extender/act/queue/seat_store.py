"""The seats, kept in ConfigMaps of ours: they outlive this process, and every instance knows them.

Theory of operation
-------------------
1. One key per gang, its value the seats of the gang that are not bound yet. The keys are spread over SHARDS ConfigMaps
   (act/document.py).
2. The holder of the queue's Lease is the only writer. It writes the seats of a gang before it nominates the first pod
   (`keep`), and within about a second whatever changes afterwards (`flush`). After a write that failed it takes the
   maps over again.
3. Any other instance reads the maps every second, and when a pod states a seat that it does not know (replicas.py), and
   takes their seats instead of its own.
4. The instance that gets the Lease reads the maps first (`take_over`). What cannot be read is dropped with a warning.
5. The maps are several objects, read one by one: one of them may be older than a write that another one shows. So an
   instance that sees a new version reads all maps once more, takes their seats, and then states that version. A reading
   that fails in part changes neither the seats nor the version.
6. What a version to come has written is left as it is for NEWER_SECONDS. So long this instance wants no Lease
   (`is_readable`): it does not know which places are taken, and that version may run again after a downgrade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Annotated, Final, Literal

import msgspec

from extender.act.controller import done, each
from extender.act.document import Amount, Changes, Entries, KeptDocument, Name, Priority, Seconds
from extender.cluster.other_resources import OtherAmounts
from extender.cluster.slices import Pace, Sliced
from extender.kube.own_objects import ConfigMap
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects.stored_texts import Damaged, Newer, decoded
from extender.reservations.seats import Seat, Seats

SHARDS: Final = 4
SLICE_MILLISECONDS: Final = 1.0  # a verb waits no longer for the texts of seats
READINGS: Final = 3  # of the maps, while they change
log = get_log()


class SeatStore:
    """Keeps the seats of `seats`. What writes or reads raises ApiError and NoAnswer. VersionConflict: another
    instance writes too, so it has the Lease, or had it: the maps have to be taken over again."""

    def __init__(
        self,
        seats: Seats,
        entries: SeatEntries,
        maps: Sequence[ConfigMap],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        """`maps`: the shards; `clock`: seconds."""
        self._seats, self._entries, self._metrics, self._clock = seats, entries, metrics, clock
        self._document = KeptDocument(maps, clock)
        self._version = 0
        self._read: dict[str, tuple[str, Sequence[Seat]]] = {}  # by key: a text, and the seats that it states

    def is_readable(self) -> bool:
        """Whether no map has seats of a version to come, as far as the maps were read."""
        return not any(map(self._document.stands, self._document.newer))

    @property
    def version(self) -> int:
        """The newest version of the maps of which all seats are known here: the API server counts one number for all
        maps. 0: there is no map yet."""
        return self._version

    async def keep(self, gangs: Iterable[str]) -> str:
        """Write the seats of gangs. "" once they are written, else why they have no room: then none is."""
        texts = {gang: self._entries.text(self._seats.gang(gang)) for gang in gangs}
        changes = {key(gang): text for gang, text in texts.items() if text != self._document.text(key(gang))}
        if not self._document.has_room(changes):
            return f"the seats of {len(self._seats)} pods do not fit into {SHARDS} ConfigMaps"
        for gang, text in texts.items():
            try:
                if key(gang) in changes:
                    self._entries.seats(text, self._clock())
            except Damaged as error:  # a name that is longer than any of Kubernetes: no other instance would read it
                return f"the seats of {gang[:100]} could not be read again: {error}"
        await self._write(changes)
        return ""

    async def flush(self) -> None:
        """Write what has changed since: bound seats leave the maps."""
        await self._write(await done(Pace(SLICE_MILLISECONDS).paced(self._changed())))

    def _changed(self) -> Sliced[dict[str, str | None]]:
        """What the maps state otherwise than the seats are now."""
        changes: dict[str, str | None] = {}
        gangs: dict[str, str] = {}  # by key
        for gang in list(self._seats.gangs):
            gangs[key(gang)] = gang
            yield
        for name, text in self._document.items():
            yield
            if self._document.stands(name):
                continue
            gang = gangs.get(name, "")
            now = self._entries.text(self._seats.gang(gang)) if gang in self._seats.gangs else None
            if now != text:
                changes[name] = now
        return changes

    async def _write(self, changes: Changes) -> None:
        if changes:
            await self._document.write(changes)
        self._version = max(self._version, self._document.version)

    async def take_over(self) -> None:
        """Read the maps: their seats stand instead of those that are known here. Others run meanwhile: until it ends,
        seats of before and those of the maps count."""
        version = await self._read_maps()
        seats = await done(Pace(SLICE_MILLISECONDS).paced(self._stated()))
        async for seat in each(seats.values()):
            if self._seats.of(seat.uid) != seat:
                self._seats.reserve([seat])
        async for seat in each(list(self._seats)):
            if seat.uid not in seats:
                self._seats.drop(seat.uid)
        self._version = version

    async def _read_maps(self) -> int:
        """Read the maps; the version of which nothing is missing in them."""
        known, newest = self._version, await self._read_once()
        for _ in range(READINGS):
            if newest <= known:
                break
            known, newest = newest, await self._read_once()
        return min(known, newest)

    async def _read_once(self) -> int:
        """Read all maps, or none; their newest version."""
        await self._document.read()
        return self._document.version

    def _stated(self) -> Sliced[dict[str, Seat]]:
        """The seats that the maps state, by uid. A text that was read before is not read again."""
        seats: dict[str, Seat] = {}
        read: dict[str, tuple[str, Sequence[Seat]]] = {}
        newer: dict[str, float] = {}
        for name, text in self._document.items():
            yield
            before = self._read.get(name)
            if before is None or before[0] != text:
                before = text, self._decoded(name, text, newer)
            if name not in newer:
                read[name] = before
                seats.update((seat.uid, seat) for seat in before[1])
        self._read, self._document.newer = read, newer
        return seats

    def _decoded(self, name: str, text: str, newer: dict[str, float]) -> Sequence[Seat]:
        """The seats of a text; none where it cannot be read, or a version to come wrote it, which `newer` keeps."""
        try:
            return self._entries.seats(text, self._clock())
        except Newer as error:
            newer[name] = self._document.newer.get(name, self._clock())
            if name not in self._document.newer:
                log.warning(
                    "seats of a newer version are left as they are: this instance releases no pod meanwhile",
                    key=name[:80], err=str(error),
                )  # fmt: skip
        except Damaged as error:
            self._metrics.reservations_damaged.inc()
            log.warning("seats cannot be read, and are dropped", key=name[:80], err=str(error))
        return ()


# -- the seats of one gang as text: a small JSON object, whose time is seconds since 1970


FORMAT: Final = 1
MOST_TEXT: Final = 900_000  # characters; a ConfigMap may have 1 MiB
_Mask = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]


class _Pod(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A seat, as the maps state it."""

    uid: Name
    pod: Name
    node: Name
    gpus: _Mask  # mask
    amounts: Annotated[int, msgspec.Meta(ge=0)]  # which of the entry's
    priority: Priority
    role: Annotated[str, msgspec.Meta(max_length=512)] = ""  # an entry of an older version has neither role nor ordinal
    ordinal: Annotated[int, msgspec.Meta(ge=-1, lt=2**53)] = -1


class _Entry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The seats of a gang, as the maps state them."""

    format: Literal[1]
    gang: Name
    at: Seconds
    amounts: list[dict[str, Amount]]
    seats: list[_Pod]
    awaits: dict[Name, list[Name]] = {}  # for a node the uids of the pods that its seats wait for
    others: list[dict[Name, Amount]] = []  # of other resources, for each of `amounts`; [] where no pod asks for any


_READ: Final = msgspec.json.Decoder(_Entry)


def key(gang: str) -> str:
    """The key of a gang in the ConfigMap."""
    return sha256(gang.encode()).hexdigest()[:24]


class SeatEntries(Entries):
    """Writes and reads the seats of gangs."""

    def text(self, seats: Sequence[Seat]) -> str:
        """The value of a gang's key; one seat or more."""
        kinds: dict[tuple[tuple[int, ...], OtherAmounts], int] = {}
        pods = [
            _Pod(
                seat.uid,
                seat.pod,
                seat.node,
                seat.gpus,
                kinds.setdefault((seat.amounts, seat.others), len(kinds)),
                seat.priority,
                seat.role,
                seat.ordinal,
            )
            for seat in seats
        ]
        amounts, at = [self._stated(amounts) for amounts, _ in kinds], self._wall(min(seat.at for seat in seats))
        others = [dict(asked) for _, asked in kinds] if any(asked for _, asked in kinds) else []
        awaits = {seat.node: list(seat.awaits) for seat in seats if seat.awaits}
        return msgspec.json.encode(_Entry(FORMAT, seats[0].gang, at, amounts, pods, awaits, others)).decode()

    def seats(self, text: str, now: float) -> list[Seat]:
        """The seats that a text states. Raises Damaged, and Newer where a version to come wrote it. `now`: seconds; a
        time beyond it, of another machine's clock, counts as now."""
        entry = decoded(text, _READ, FORMAT, MOST_TEXT)
        kinds = [self._amounts(stated) for stated in entry.amounts]
        others = [tuple(sorted(stated.items())) for stated in entry.others] or [()] * len(kinds)
        if len(others) != len(kinds):
            raise Damaged("other resources of some kinds of pods alone")
        at = min(now, entry.at - self._epoch)
        awaits = {node: tuple(uids) for node, uids in entry.awaits.items()}
        by_uid: dict[str, Seat] = {}
        for stated_seat in entry.seats:
            if stated_seat.amounts >= len(kinds) or stated_seat.uid in by_uid:
                raise Damaged("a seat without amounts, or a pod with two seats")
            by_uid[stated_seat.uid] = Seat(
                stated_seat.uid,
                stated_seat.pod,
                entry.gang,
                stated_seat.node,
                kinds[stated_seat.amounts],
                stated_seat.gpus,
                stated_seat.priority,
                at,
                awaits=awaits.get(stated_seat.node, ()),
                role=stated_seat.role,
                ordinal=stated_seat.ordinal,
                others=others[stated_seat.amounts],
            )
        return list(by_uid.values())
