"""The seats, kept in ConfigMaps of ours: they outlive this process, and every instance knows them.

Theory of operation
-------------------
1. One key per gang, its value the seats of the gang that are not bound yet. The keys are spread over SHARDS ConfigMaps
   (act/document.py).
2. The holder of the queue's Lease is the only writer. It writes the seats of a gang before it nominates the first pod
   (`keep`), and within about a second whatever changes afterwards (`flush`). After a write that failed it takes the
   maps over again.
3. Any other instance reads the maps every second, and when a pod states a seat that it does not know (`Replicas`), and
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
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import sha256
from typing import Annotated, Final, Literal

import msgspec

from extender.act.controller import done, each
from extender.act.document import MOST_BYTES, Amount, Changes, Entries, KeptDocument, Name, Priority, Seconds
from extender.cluster.cluster import Cluster
from extender.cluster.slices import Pace, Sliced
from extender.cluster.statements import PLAN
from extender.cluster.tables import OtherAmounts
from extender.kube.client import ApiError, NoAnswer
from extender.kube.own_objects import ConfigMap, StoredTexts, VersionConflict
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects.queueing import GATE
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
            pods = sum(len(self._seats.gang(gang)) for gang in texts)
            size = sum(len(text.encode()) for text in texts.values())
            return (
                f"the seats of {pods:,} pods ({size:,} bytes) do not fit into {SHARDS} ConfigMaps of {MOST_BYTES:,} "
                "bytes beside those of other gangs; those of one gang have to fit into one"
            )
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


FORMAT: Final = 2
"""1 where no pod asks for other resources: a version that does not know these would drop the entry as damaged."""
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

    format: Literal[1, 2]
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
        entry = _Entry(FORMAT if others else 1, seats[0].gang, at, amounts, pods, awaits, others)
        return msgspec.json.encode(entry).decode()

    def seats(self, text: str, now: float) -> list[Seat]:
        """The seats that a text states. Raises Damaged, and Newer where a version to come wrote it. `now`: seconds; a
        time beyond it, of another machine's clock, counts as now."""
        entry = decoded(text, _READ, FORMAT, MOST_TEXT)
        kinds = [self._amounts(stated) for stated in entry.amounts]
        others = [tuple(sorted(stated.items())) for stated in entry.others] or [()] * len(kinds)
        if len(others) != len(kinds):
            raise Damaged("other resources of some kinds of pods alone")
        at = min(now, entry.at - self._epoch())
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


# -- which instances know the seats: each answers verbs only while it does, and no gate opens before all do.
#
# Theory of operation
# -------------------
# 1. Every instance writes a sign of life into one ConfigMap, under its own key, about once a second: the version of the
#    seat maps up to which it knows all seats. Then it reads the maps, and writes the sign again if they have changed.
#    It does the same at once where a pod states a seat that it does not know.
# 2. An instance *knows the seats* while it holds the Lease, and else for KNOWN_SECONDS after the sign of life before
#    its latest reading of the maps. While it does not, it is not ready, and answers no verb.
# 3. The holder of the Lease opens gates when every sign of life states the maps as it wrote them, or WAIT_SECONDS after
#    the write: an instance that has not read them by then answers no verb. An instance that appears meanwhile reads the
#    maps after its first sign of life: either the holder sees that sign, or the instance finds the seats.
# 4. A sign of life that has not changed for GONE_SECONDS is removed, so that a dead instance delays one release at
#    most. Every instance follows the signs of the others: the next holder of the Lease does not wait for the one before
#    it.
#
# Only durations on one clock are compared, never the clocks of two machines. WAIT_SECONDS and GONE_SECONDS are longer
# than KNOWN_SECONDS, so an instance stops answering before the holder stops waiting for it.


SIGNS: Final = "replicas"  # the last part of the name of the ConfigMap
BEAT_SECONDS: Final = 0.8
KNOWN_SECONDS: Final = 2.5
WAIT_SECONDS: Final = 3.0
GONE_SECONDS: Final = 3.0
POLL_SECONDS: Final = 0.02  # between two looks at the signs of life
REQUEST_SECONDS: Final = 2.0  # a request on a connection that died waits no longer


class Replicas:
    """This instance's sign of life, and those of the others."""

    def __init__(
        self,
        identity: str,
        cluster: Cluster,
        seats: Seats,
        store: SeatStore,
        signs: ConfigMap,
        clock: Callable[[], float],
    ) -> None:
        """`identity`: of this process alone; `signs`: keeps the signs of life; `clock`: seconds."""
        self._identity, self._cluster, self._seats, self._store = identity, cluster, seats, store
        self._signs, self._clock = signs, clock
        self._signed_at = self._known_at = float("-inf")
        self._beats = 0
        self._generation = -1
        self._unknown: frozenset[tuple[str, str]] = frozenset()  # (uid, version) of pods whose seats were not found
        self._others: dict[str, tuple[str, float]] = {}  # identity -> its sign, and since when it has not changed
        self._written = (0, float("-inf"))  # the newest version of the maps, and since when it is known
        self._confirmed = 0  # a version that every instance knows
        self._warned = False
        self._asking = asyncio.Lock()  # held while this instance waits for the others

    # -- this instance --------------------------------------------------------------------------------------------

    def knows(self) -> bool:
        """Whether this instance knows the seats, also where it does not hold the Lease."""
        return self._clock() - self._known_at < KNOWN_SECONDS

    async def beat(self, leads: Callable[[], bool], acting: asyncio.Lock, read: Callable[[], Awaitable[None]]) -> None:
        """Give the sign of life when it is due. `leads`: whether this instance's seats are those of the maps, because
        it alone writes them; `acting`: held while it writes, and while it reads; `read`: reads the seats."""
        now = self._clock()
        if now - self._signed_at < BEAT_SECONDS and (leads() or not self._behind()):
            return
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                signed = self._store.version
                await self._sign()
                if not leads():
                    if acting.locked():  # it held the Lease a moment ago, and still ends what it began
                        return
                    async with acting:
                        await read()
                    if self._store.version != signed:
                        await self._sign()
        except (ApiError, NoAnswer, TimeoutError) as error:
            if not self._warned:
                self._warned = True
                log.warning("this instance cannot state that it knows the seats of the queue", err=str(error))
            return
        self._known_at, self._warned = now, False

    async def resign(self) -> None:
        """This instance answers no verb any more."""
        self._known_at = float("-inf")
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await self._signs.put({self._identity: None})
        except (ApiError, NoAnswer, TimeoutError) as error:
            log.info("the sign of life stays until it is old", err=str(error))

    async def _sign(self) -> None:
        self._beats += 1
        self._signed_at = self._clock()
        self._note(await self._signs.put({self._identity: f"{self._store.version} {self._beats}"}))

    def _note(self, signs: StoredTexts) -> None:
        """What the signs of the others are now."""
        before, now = self._others, self._clock()
        self._others = {
            name: before[name] if name in before and before[name][0] == text else (text, now)
            for name, text in signs.data.items()
            if name != self._identity
        }

    def _behind(self) -> bool:
        """Whether a pod has come to state a seat that is not known here, or states its seat no more."""
        cluster, seats = self._cluster, self._seats
        if cluster.generation == self._generation:
            return False
        self._generation = cluster.generation
        unknown: set[tuple[str, str]] = set()
        for uid, node in cluster.placements.nominated.items():
            seat, pod = seats.of(uid), cluster.pods[uid]
            if (seat is None and GATE in pod.gates) or (seat is not None and seat.node != node):
                unknown.add((uid, pod.resource_version))
        for seat in seats:
            waiting = cluster.pods.get(seat.uid)
            if waiting is not None and not waiting.node and seat.gpus and PLAN not in waiting.annotations:
                unknown.add((seat.uid, waiting.resource_version))
        before, self._unknown = self._unknown, frozenset(unknown)
        return not unknown <= before

    # -- the holder of the Lease ----------------------------------------------------------------------------------

    async def known(self) -> None:
        """Wait until every instance that answers verbs knows the seats as they are written now. Raises ApiError,
        NoAnswer. One caller asks, the others wait for its answer."""
        version = self._store.version
        if version > self._written[0]:
            self._written = version, self._clock()
        async with self._asking:
            while self._confirmed < version and await self._behind_of(version):
                if self._clock() - self._written[1] >= WAIT_SECONDS:
                    log.warning("instances have not read the seats of the queue: they answer no verb")
                    break
                await asyncio.sleep(POLL_SECONDS)
            self._confirmed = max(self._confirmed, version)

    async def _behind_of(self, version: int) -> bool:
        """Whether an instance that may live does not know this version of the maps."""
        signs = await self._signs.read()
        self._note(signs)
        now = self._clock()
        gone = {name: None for name, (_, since) in self._others.items() if now - since > GONE_SECONDS}
        if gone:
            try:
                await self._signs.change(gone, signs.version)
            except VersionConflict:  # one of them lives
                return True
            log.info("instances have given no sign of life, and are not waited for", instances=sorted(gone))
        return any(_version(text) < version for name, (text, _) in self._others.items() if name not in gone)


def _version(sign: str) -> int:
    """The version in a sign of life; 0 where it has none."""
    text = sign.partition(" ")[0]
    return int(text) if text.isascii() and text.isdigit() else 0
