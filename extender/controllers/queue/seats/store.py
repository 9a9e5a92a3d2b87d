"""The seats, kept in ConfigMaps of ours: they outlive this process, and every instance knows them.

Theory of operation
-------------------
1. One key per gang, its value the seats of the gang that are not bound yet. The keys are spread over SHARDS ConfigMaps
   of less than 1 MiB each: gangs that are written together go to the one with most room.
2. The holder of the queue's Lease is the only writer. It writes the seats of a gang before it nominates the first pod
   (`keep`), and within about a second whatever changes afterwards (`flush`). A write is a merge patch of the keys that
   change and states the version that it changes.
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

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from extender.cluster.slices import Pace, Sliced
from extender.controllers.queue.seats.entry import SeatEntries, key
from extender.controllers.queue.slices import done, each
from extender.controllers.queue.writes import SeatMap
from extender.controllers.reservation_entry import NEWER_SECONDS, Damaged, Newer
from extender.kube.configmaps import Kept
from extender.log import get_log
from extender.metrics import Metrics
from extender.reservations.seats import Seat, Seats

SHARDS: Final = 4
MOST_BYTES: Final = 900_000  # of one ConfigMap, which may have 1 MiB
SLICE_MILLISECONDS: Final = 1.0  # a verb waits no longer for the texts of seats
READINGS: Final = 3  # of the maps, while they change
log = get_log()


class _Shard:
    """One ConfigMap as far as we know it. `version`: None where it has to be read first."""

    def __init__(self, kept: SeatMap) -> None:
        self.map = kept
        self.data: dict[str, str] = {}
        self.version: str | None = None

    @property
    def size(self) -> int:
        return sum(len(name) + len(text) for name, text in self.data.items())

    def note(self, kept: Kept) -> None:
        """The map was read."""
        self.data, self.version = kept

    async def write(self, changes: Mapping[str, str | None]) -> None:
        """Raises Conflict, ApiError, Unreachable: what is there has to be read then."""
        if self.version is None:
            self.note(await self.map.read())
        version, self.version = self.version or "", None
        made = await self.map.change(changes, version)
        for name, text in changes.items():
            if text is None:
                self.data.pop(name, None)
            else:
                self.data[name] = text
        self.version = made


class SeatStore:
    """Keeps the seats of `seats`. What writes or reads raises ApiError and Unreachable. Conflict: another instance
    writes too, so it has the Lease, or had it: the maps have to be taken over again."""

    def __init__(
        self, seats: Seats, entries: SeatEntries, maps: Sequence[SeatMap], metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        """`maps`: the shards; `clock`: seconds."""
        self._seats, self._entries, self._metrics, self._clock = seats, entries, metrics, clock
        self._shards = [_Shard(one) for one in maps]
        self._version = 0
        self._read: dict[str, tuple[str, Sequence[Seat]]] = {}  # by key: a text, and the seats that it states
        self._newer: dict[str, float] = {}  # keys whose texts are of a version to come -> since when that is known

    def is_readable(self) -> bool:
        """Whether no map has seats of a version to come, as far as the maps were read."""
        return not any(map(self._stands, self._newer))

    def _stands(self, name: str) -> bool:
        """Whether the text of this key is left as it is."""
        since = self._newer.get(name)
        return since is not None and self._clock() - since < NEWER_SECONDS

    @property
    def version(self) -> int:
        """The newest version of the maps of which all seats are known here: the API server counts one number for all
        maps. 0: there is no map yet."""
        return self._version

    async def keep(self, gangs: Iterable[str]) -> str:
        """Write the seats of gangs. "" once they are written, else why they have no room: then none is."""
        changes: dict[_Shard, dict[str, str | None]] = {}
        sizes = {shard: shard.size for shard in self._shards}
        roomy = min(self._shards, key=sizes.__getitem__)
        for gang in gangs:
            name, text = key(gang), self._entries.text(self._seats.gang(gang))
            shard = next((one for one in self._shards if name in one.data), None)
            before = "" if shard is None else name + shard.data[name]
            if before == name + text:
                continue
            more = len(name) + len(text) - len(before)
            if shard is None and sizes[roomy] + more > MOST_BYTES:
                roomy = min(self._shards, key=sizes.__getitem__)
            shard = shard or roomy
            sizes[shard] += more
            if sizes[shard] > MOST_BYTES:
                return f"the seats of {len(self._seats)} pods do not fit into {len(self._shards)} ConfigMaps"
            try:
                self._entries.seats(text, self._clock())
            except Damaged as error:  # a name that is longer than any of Kubernetes: no other instance would read it
                return f"the seats of {gang[:100]} could not be read again: {error}"
            changes.setdefault(shard, {})[name] = text
        await self._write(changes)
        return ""

    async def flush(self) -> None:
        """Write what has changed since: bound seats leave the maps."""
        await self._write(await done(Pace(SLICE_MILLISECONDS).paced(self._changed())))

    def _changed(self) -> Sliced[dict[_Shard, dict[str, str | None]]]:
        """What the maps state otherwise than the seats are now."""
        changes: dict[_Shard, dict[str, str | None]] = {}
        wanted: dict[str, str] = {}
        for gang in list(self._seats.gangs):
            wanted[key(gang)] = gang
            yield
        for shard in self._shards:
            for name, text in shard.data.items():
                yield
                if self._stands(name):
                    continue
                gang = wanted.get(name, "")
                now = self._entries.text(self._seats.gang(gang)) if gang in self._seats.gangs else None
                if now != text:
                    changes.setdefault(shard, {})[name] = now
        return changes

    async def _write(self, changes: Mapping[_Shard, Mapping[str, str | None]]) -> None:
        for shard, changed in changes.items():
            await shard.write(changed)
        self._version = max([self._version, *(_number(shard.version) for shard in self._shards)])

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
        answers = await asyncio.gather(*(shard.map.read() for shard in self._shards), return_exceptions=True)
        kept: list[Kept] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            kept.append(answer)
        for shard, one in zip(self._shards, kept, strict=True):
            shard.note(one)
        return max(_number(one.version) for one in kept)

    def _stated(self) -> Sliced[dict[str, Seat]]:
        """The seats that the maps state, by uid. A text that was read before is not read again."""
        seats: dict[str, Seat] = {}
        read: dict[str, tuple[str, Sequence[Seat]]] = {}
        newer: dict[str, float] = {}
        for shard in self._shards:
            for name, text in sorted(shard.data.items()):
                yield
                before = self._read.get(name)
                if before is None or before[0] != text:
                    before = text, self._decoded(name, text, newer)
                if name not in newer:
                    read[name] = before
                    seats.update((seat.uid, seat) for seat in before[1])
        self._read, self._newer = read, newer
        return seats

    def _decoded(self, name: str, text: str, newer: dict[str, float]) -> Sequence[Seat]:
        """The seats of a text; none where it cannot be read, or a version to come wrote it, which `newer` keeps."""
        try:
            return self._entries.seats(text, self._clock())
        except Newer as error:
            newer[name] = self._newer.get(name, self._clock())
            if name not in self._newer:
                log.warning(
                    "seats of a newer version are left as they are: this instance releases no pod meanwhile",
                    key=name[:80], err=str(error),
                )  # fmt: skip
        except Damaged as error:
            self._metrics.reservations_damaged.inc()
            log.warning("seats cannot be read, and are dropped", key=name[:80], err=str(error))
        return ()


def _number(version: str | None) -> int:
    """The version of a map; 0 where it does not exist, or is not known."""
    return int(version) if version and version.isdigit() else 0
