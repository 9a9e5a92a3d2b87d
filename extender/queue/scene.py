"""The queue at a moment, as `sampled.py` draws its futures: read from the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from extender.cluster.cluster import ClusterView
from extender.cluster.slices import STEP, Sliced, pauses
from extender.cluster.tables import FIRST_GPU
from extender.objects.gangs import Ref
from extender.objects.queueing import queue_of
from extender.objects.records import PodRecord
from extender.queue.gang import WaitingGang, stated_seconds
from extender.queue.gang_runs import GangRun, GangRuns
from extender.queue.quota import QueueRules
from extender.queue.runtimes import RunClass, RunTime, RunTimes, class_of
from extender.queue.sampled import HopefulGang, RunningGang, Scene, Seats, sized
from extender.queue.usage import Models
from extender.reservations.seats import Seat
from extender.reservations.seats import Seats as ReservedSeats

LATE: float = 0.9
"""How likely a gang was to have ended by now that runs longer than was expected."""


class Scenes:
    """Reads scenes. `overdue`: names of the gangs and pods in the latest one that run longer than was expected."""

    def __init__(self, cluster: ClusterView, seats: ReservedSeats, times: RunTimes) -> None:
        self._cluster, self._seats, self._times = cluster, seats, times
        self._runs = GangRuns(cluster)
        self._models: Models | None = None
        self._laws: dict[tuple[RunClass, float | None, float], RunTime] = {}
        self.overdue: list[str] = []

    def read(self, waiting: Sequence[WaitingGang], rules: Mapping[str, QueueRules], now: float) -> Sliced[Scene]:
        """`waiting`: the complete gangs; `now`: seconds since 1970."""
        cluster, settings = self._cluster, self._cluster.settings.queue
        self._laws = {}
        models = self._models = yield from Models.read(cluster, self._models)
        yield
        numbers = {model: number for number, model in enumerate(sorted(models.capacity))}
        capacity = dict.fromkeys(numbers.values(), 0)
        at: dict[str, int] = {}
        free, pool = list[int](), list[int]()
        for (name, model), pause in pauses(models.by_node.items()):
            if pause:
                yield
            if name in cluster.gpus.schedulable and (node := cluster.nodes.get(name)) is not None:
                at[name] = len(at)
                free.append(sum(node.gpus.values()))
                pool.append(numbers[model])
                capacity[numbers[model]] += free[-1]
        yield
        runs = yield from self._runs.read(now)
        runs += yield from self._released(now)
        running = yield from self._running(runs, at, now)
        for gang, pause in pauses(running):
            if pause:
                yield
            for place, gpus in gang.seats:
                free[place] -= gpus
        yield
        hopeful: list[HopefulGang] = []
        seen = 0
        for waits in waiting:
            seen += 8 + len(waits.pods)
            if seen >= STEP:
                seen = 0
                yield
            pools = tuple([numbers[model] for model in models.allowed(waits) if model in numbers])
            kind = class_of([*waits.pods, *waits.members], cluster.gangs.objects)
            most = inf if waits.ends_at is None else max(0.0, waits.ends_at - now)
            hopeful.append(HopefulGang(sized(waits, pools), self._law(kind, waits.seconds, most, now)))
        return Scene(now, free, pool, capacity, running, hopeful, rules, settings.patience_seconds, settings.strict)

    def _running(self, runs: Iterable[GangRun], at: Mapping[str, int], now: float) -> Sliced[list[RunningGang]]:
        """`at`: the nodes of the scene."""
        running: list[RunningGang] = []
        self.overdue = []
        for run, pause in pauses(runs, STEP // 16):
            if pause:
                yield
            law = self._law(run.kind, run.declared, run.most, now)
            elapsed = max(0.0, now - run.begun)
            if law.until(elapsed) > LATE:
                self.overdue.append(run.name)
            seconds = min(inf if run.declared is None else run.declared, run.most)
            seats: Seats = tuple([(at[node], gpus) for node, gpus in run.gpus.items() if node in at])
            if seats:
                end = None if seconds == inf else run.begun + seconds
                running.append(RunningGang(run.queue, seats, run.begun, end, law))
        return running

    def _released(self, now: float) -> Sliced[list[GangRun]]:
        """The gangs with seats whose pods are not bound: they count as started now."""
        by_gang: dict[str, list[Seat]] = {}
        for seat, pause in pauses(list(self._seats)):
            if pause:
                yield
            pod = self._cluster.pods.get(seat.uid)
            if pod is None or not pod.node:
                by_gang.setdefault(seat.gang, []).append(seat)
        return [self._released_gang(name, seats, now) for name, seats in by_gang.items()]

    def _released_gang(self, name: str, seats: Sequence[Seat], now: float) -> GangRun:
        pods: list[PodRecord] = [pod for seat in seats if (pod := self._cluster.pods.get(seat.uid)) is not None]
        ref, gpus = Ref.of(name), dict[str, int]()
        for seat in seats:
            gpus[seat.node] = gpus.get(seat.node, 0) + sum(seat.amounts[FIRST_GPU:])
        kind = class_of(pods, self._cluster.gangs.objects) if pods else RunClass(ref.namespace, sum(gpus.values()))
        queue = queue_of(pods[0]) if pods else ref.namespace
        return GangRun(str(ref), kind, now, stated_seconds(pods) if pods else None, inf, gpus, queue)

    def _law(self, kind: RunClass, declared: float | None, most: float, now: float) -> RunTime:
        """Those of gangs that are alike are made once for a scene."""
        key = kind, declared, most
        law = self._laws.get(key)
        if law is None:
            law = self._laws[key] = self._times.expect(kind, now, declared, most)
        return law
