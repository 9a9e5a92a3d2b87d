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
5. What a version to come has written is left as it is for NEWER_SECONDS. So long this instance wants no Lease
   (`is_readable`): it does not know which places are taken, and that version may run again after a downgrade.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from extender.controllers.queue.seats.entry import SeatEntries, key
from extender.controllers.queue.writes import SeatMap
from extender.controllers.reservation_entry import NEWER_SECONDS, Damaged, Newer
from extender.log import get_log
from extender.metrics import Metrics
from extender.reservations.seats import Seat, Seats

SHARDS: Final = 4
MOST_BYTES: Final = 900_000  # of one ConfigMap, which may have 1 MiB
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

    async def read(self) -> None:
        self.data, self.version = await self.map.read()

    async def write(self, changes: Mapping[str, str | None]) -> None:
        """Raises Conflict, ApiError, Unreachable: what is there has to be read then."""
        if self.version is None:
            await self.read()
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
        """The newest version of a map that was read or written: the API server counts one number for all of them. 0:
        there is no map yet."""
        found = [int(shard.version) for shard in self._shards if shard.version and shard.version.isdigit()]
        self._version = max([self._version, *found])
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
        for shard, changed in changes.items():
            await shard.write(changed)
        return ""

    async def flush(self) -> None:
        """Write what has changed since: bound seats leave the maps."""
        wanted = {key(gang): gang for gang in self._seats.gangs}
        for shard in self._shards:
            changes: dict[str, str | None] = {}
            for name, text in shard.data.items():
                if self._stands(name):
                    continue
                gang = wanted.get(name)
                now = self._entries.text(self._seats.gang(gang)) if gang is not None else None
                if now != text:
                    changes[name] = now
            if changes:
                await shard.write(changes)

    async def take_over(self) -> None:
        """Read the maps: their seats stand instead of those that are known here."""
        await asyncio.gather(*(shard.read() for shard in self._shards))
        found: dict[str, Seat] = {}
        before, self._newer = self._newer, {}
        for shard in self._shards:
            for name, text in sorted(shard.data.items()):
                try:
                    found |= {seat.uid: seat for seat in self._entries.seats(text, self._clock())}
                except Newer as error:
                    self._newer[name] = before.get(name, self._clock())
                    if name not in before:
                        log.warning(
                            "seats of a newer version are left as they are: this instance releases no pod meanwhile",
                            key=name[:80], err=str(error),
                        )  # fmt: skip
                except Damaged as error:
                    self._metrics.reservations_damaged.inc()
                    log.warning("seats cannot be read, and are dropped", key=name[:80], err=str(error))
        for uid in [seat.uid for seat in self._seats if seat.uid not in found]:
            self._seats.drop(uid)
        self._seats.reserve(seat for seat in found.values() if self._seats.of(seat.uid) != seat)
