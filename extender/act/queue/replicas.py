"""Which instances know the seats: each answers verbs only while it does, and no gate opens before all do.

Theory of operation
-------------------
1. Every instance writes a sign of life into one ConfigMap, under its own key, about once a second: the version of the
   seat maps up to which it knows all seats. Then it reads the maps, and writes the sign again if they have changed. It
   does the same at once where a pod states a seat that it does not know.
2. An instance *knows the seats* while it holds the Lease, and else for KNOWN_SECONDS after the sign of life before its
   latest reading of the maps. While it does not, it is not ready, and answers no verb.
3. The holder of the Lease opens gates when every sign of life states the maps as it wrote them, or WAIT_SECONDS after
   the write: an instance that has not read them by then answers no verb. An instance that appears meanwhile reads the
   maps after its first sign of life: either the holder sees that sign, or the instance finds the seats.
4. A sign of life that has not changed for GONE_SECONDS is removed, so that a dead instance delays one release at most.
   Every instance follows the signs of the others: the next holder of the Lease does not wait for the one before it.

Only durations on one clock are compared, never the clocks of two machines. WAIT_SECONDS and GONE_SECONDS are longer
than KNOWN_SECONDS, so an instance stops answering before the holder stops waiting for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from extender.act.queue.seat_store import SeatStore
from extender.cluster.cluster import Cluster
from extender.cluster.statements import PLAN
from extender.kube.client import ApiError, NoAnswer
from extender.kube.own_objects import ConfigMap, StoredTexts, VersionConflict
from extender.log import get_log
from extender.objects.queueing import GATE
from extender.reservations.seats import Seats

SIGNS: Final = "replicas"  # the last part of the name of the ConfigMap
BEAT_SECONDS: Final = 0.8
KNOWN_SECONDS: Final = 2.5
WAIT_SECONDS: Final = 3.0
GONE_SECONDS: Final = 3.0
POLL_SECONDS: Final = 0.02  # between two looks at the signs of life
REQUEST_SECONDS: Final = 2.0  # a request on a connection that died waits no longer
log = get_log()


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
