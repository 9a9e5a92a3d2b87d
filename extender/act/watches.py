"""The watches of a live cluster: one reflector a kind feeds the tables on the event loop."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Sequence
from dataclasses import replace

from extender.act.controller import ClusterSource
from extender.cluster.cluster import Cluster
from extender.kube.client import ApiServer
from extender.kube.lists import WATCHED_KINDS, WatchedKind
from extender.kube.reflector import Reflector
from extender.kube.watching import State, WatchPace, WatchTiming
from extender.log import get_log
from extender.objects.decode import LONGEST_NAME, Invalid, ObjectFaults
from extender.objects.records import Event, PodRecord
from extender.times import Clock, Rests

VITAL = ("Pod", "Node")
JUDGED = (*VITAL, "PodDisruptionBudget")  # what evictions are decided by; what else counts, as gangs, may be older
RETURN_SECONDS = 3.0  # from the server's answer to its last word on what happened meanwhile
WORTH_FREEZING = 1000  # objects that came since the latest collection
log = get_log()


class Watches(ClusterSource):
    """The source of a live cluster. An API server that is away is waited for."""

    def __init__(
        self,
        server: ApiServer,
        cluster: Cluster,
        *,
        staleness: float = 10.0,
        chance: random.Random | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._server = server
        self._cluster = cluster
        self.staleness = staleness
        self._chance = chance or random.Random()
        clock = clock or Clock()
        self._clock, self._wall = clock.monotonic, clock.wall
        self._rests = Rests()
        self._reflectors = [self._reflector(watched) for watched in WATCHED_KINDS]
        # Of what must be watched at any time:
        self._states: dict[str, State] = {
            reflector.watched.kind: reflector.state for reflector in self._reflectors if reflector.watched.prompt
        }
        self._ready_at: float | None = None
        self._ran = False
        self._applied = 0  # events since the latest collection

    # -- how current the cluster is -------------------------------------------------------------------------------

    def missing(self) -> list[str]:
        """The lists that are not in, and why."""
        return [text for reflector in self._reflectors if (text := reflector.missing())]

    @property
    def states(self) -> list[tuple[str, State]]:
        """How each kind is watched, with its name. Versions of one API group have the same name."""
        return [(reflector.watched.name, reflector.state) for reflector in self._reflectors]

    def listed(self) -> bool:
        """Whether every list is in."""
        return not self.missing()

    def ready_at(self) -> float | None:
        """When every list was in for the first time."""
        return self._ready_at

    def dark(self, *, evicting: bool = False) -> float:
        """Seconds since the loss of the watch of pods or nodes (`evicting`: or budgets), or since the server's last
        word where that is too long ago; 0 while all are watched."""
        now, longest = self._clock(), 0.0
        for kind in JUDGED if evicting else VITAL:
            state = self._states[kind]
            if state.lost_at is not None:
                longest = max(longest, now - state.lost_at)
            elif state.last_event is not None and now - state.last_event >= self.staleness:
                longest = max(longest, now - state.last_event)
        return longest

    def hurry(self) -> None:
        """Look at once whether the API server is back."""
        for reflector in self._reflectors:
            if reflector.state.lost_at is not None:
                reflector.hurry()

    def returning(self) -> bool:
        """Whether the API server has just answered about all that was lost, and only what happened meanwhile is to
        come."""
        since = self._clock() - RETURN_SECONDS
        lost = [state for state in self._states.values() if state.lost_at is not None]
        return bool(lost) and all(state.reached_at is not None and state.reached_at >= since for state in lost)

    def known_at(self) -> float | None:
        """The last word about pods, or the loss of their watch."""
        state = self._states["Pod"]
        return state.lost_at if state.lost_at is not None else state.last_event

    def forbidden(self) -> str:
        """The kinds whose list or watch is not allowed, and why."""
        return "; ".join(f"{name}: {state.forbidden}" for name, state in self.states if state.forbidden)

    def ages(self) -> dict[str, float]:
        """Seconds since the last word, by kind."""
        now = self._clock()
        return {
            reflector.watched.name: now - reflector.state.last_event
            for reflector in self._reflectors
            if reflector.state.last_event is not None
        }

    def restarts(self) -> dict[str, int]:
        """Watches that were opened again, other than those that ended as agreed."""
        counted = ((reflector.watched.name, reflector.state.counters) for reflector in self._reflectors)
        return {name: max(0, counters.watches - counters.turns - 1) for name, counters in counted}

    def faults(self) -> ObjectFaults:
        """What the reflectors rejected, and their defects."""
        watched = [(reflector.watched.name, reflector.state) for reflector in self._reflectors]
        return ObjectFaults(
            [
                Invalid(kind, name.strip("/")[:LONGEST_NAME] or "(without a name)", why)
                for kind, state in watched
                for name, why in sorted(state.rejected.items())
            ],
            {(kind, reason): count for kind, state in watched for reason, count in state.counters.reasons.items()},
            {kind: state.counters.defects for kind, state in watched},
        )

    async def run(self) -> None:
        """List and watch for ever. After a defect: by new lists; what was known stays known until then."""
        if self._ran:
            for reflector in self._reflectors:
                reflector.relist()
        self._ran = True
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run())

    def _reflector(self, watched: WatchedKind) -> Reflector:
        pace = WatchPace.prompt(self.staleness) if watched.prompt else WatchPace()
        if watched.kind == "Pod" and self._cluster.settings.shadow:
            pace = replace(pace, costly=self._is_compared)
        timing = WatchTiming(self._clock, chance=self._chance, rests=self._rests)
        return Reflector(self._server, watched, self, self._cluster.gpu_names, pace, timing)

    def _is_compared(self, event: Event) -> bool:
        """Whether shadow mode compares what the event shows: that costs as much as a filter call over all nodes."""
        observer, pod = self._cluster.observer, event.record
        if observer is None or event.change != "set" or not isinstance(pod, PodRecord):
            return False
        before = self._cluster.pods.get(pod.uid)
        return before is not None and observer.wants(before, pod)

    # -- the reflectors' sink -------------------------------------------------------------------------------------

    def apply(self, batch: Sequence[Event]) -> None:
        """Give the cluster the events of one slice."""
        self._applied += len(batch)
        self._cluster.apply(batch, self._clock(), self._wall())

    def synced(self, kind: str) -> None:
        """A list was given completely."""
        log.info("listed", kind=kind)
        if self.listed():
            self._settled()

    def absent(self, kind: str) -> None:
        """The API is not served, or not allowed: there are no objects to keep."""
        if why := dict(self.states)[kind].forbidden:
            log.warning("not allowed: the server goes on without these objects", kind=kind, err=why)
        else:
            log.info("not served", kind=kind)
        if self._ready_at is None and self.listed():
            self._settled()

    def returned(self) -> None:
        """The API server is heard again: what may be silent for minutes gets a new connection, too."""
        for reflector in self._reflectors:
            if not reflector.watched.prompt:
                reflector.renew()

    def _settled(self) -> None:
        """What was listed stays: a full collection over it would stop every request for tens of milliseconds. An API
        that can be listed and not watched is listed again and again: few objects are not worth a collection."""
        if self._ready_at is not None and self._applied < WORTH_FREEZING:
            return
        self._ready_at = self._ready_at if self._ready_at is not None else self._clock()
        self._applied = 0
        gc.collect()
        gc.freeze()
