"""The queue at a moment, as `sampled.py` draws its futures: read from the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from extender.cluster.cluster import ClusterView
from extender.cluster.slices import STEP, Sliced, pauses
from extender.queue.gang import WaitingGang
from extender.queue.gang_runs import GangRun, GangRuns, gpus_of
from extender.queue.runtimes import RunClass, RunTime, RunTimes, class_of
from extender.queue.sampled import DatedSeats, HopefulGang, RunningGang, Scene, Seats, sized
from extender.queue.usage import Models
from extender.reservations.claims import Claims
from extender.settings import QueueLimits

LATE: float = 0.9
"""How likely a gang was to have ended by now that runs longer than was expected."""


class Scenes:
    """Reads scenes. `overdue`: names of the gangs and pods in the latest one that run longer than was expected."""

    def __init__(self, cluster: ClusterView, claims: Claims, times: RunTimes) -> None:
        self._cluster, self._advance, self._times = cluster, claims.advance, times
        self._runs = GangRuns(cluster, claims.seats, times)
        self._models: Models | None = None
        self._laws: dict[tuple[RunClass, float | None, float], RunTime] = {}
        self.overdue: list[str] = []

    def read(self, waiting: Sequence[WaitingGang], rules: Mapping[str, QueueLimits], now: float) -> Sliced[Scene]:
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
        dates = yield from self._dates(at, now)
        return Scene(
            now, free, pool, capacity, running, hopeful, rules, settings.patience_seconds, settings.strict, dates
        )

    def _dates(self, at: Mapping[str, int], now: float) -> Sliced[list[DatedSeats]]:
        """What is held for dates. `at`: the nodes of the scene."""
        dates: list[DatedSeats] = []
        for held in list(self._advance):
            if held.until <= now or not held.seats:
                continue
            yield
            waits = held.of_gang and held.since > now
            run = self._runs.released(held.seats[0].gang, held.seats, held.since) if waits else None
            dates.append(
                DatedSeats(held, _seats(gpus_of(held.seats), at), None if run is None else self._gang(run, at, now))
            )
        return dates

    def _running(self, runs: Iterable[GangRun], at: Mapping[str, int], now: float) -> Sliced[list[RunningGang]]:
        """`at`: the nodes of the scene."""
        running: list[RunningGang] = []
        self.overdue = []
        for run, pause in pauses(runs, STEP // 16):
            if pause:
                yield
            gang = self._gang(run, at, now)
            if gang.law.until(max(0.0, now - run.begun)) > LATE:
                self.overdue.append(run.name)
            if gang.seats:
                running.append(gang)
        return running

    def _gang(self, run: GangRun, at: Mapping[str, int], now: float) -> RunningGang:
        """A gang that runs, or begins at its date. `at`: the nodes of the scene."""
        learned = self._runs.learned_end(run, now)
        end = run.stated if learned is None else learned.at
        law = self._law(run.kind, run.declared, run.most, now)
        return RunningGang(
            run.queue, _seats(run.gpus, at), run.begun, None if end == inf else end, law, run.kind.namespace
        )

    def _law(self, kind: RunClass, declared: float | None, most: float, now: float) -> RunTime:
        """Those of gangs that are alike are made once for a scene."""
        key = kind, declared, most
        law = self._laws.get(key)
        if law is None:
            law = self._laws[key] = self._times.expect(kind, now, declared, most)
        return law


def _seats(gpus: Mapping[str, int], at: Mapping[str, int]) -> Seats:
    """GPUs by node, of the nodes of the scene: `at`, their places."""
    return tuple([(at[node], number) for node, number in gpus.items() if node in at])
