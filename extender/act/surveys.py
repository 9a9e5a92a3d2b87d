"""Gauges and Events that need a look at the whole cluster, which a fork of the server counts now and then."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from prometheus_client import Gauge

from extender.act.controller import Controller
from extender.act.events import EventRecorder, FewEvents
from extender.ask.forks import Forks
from extender.ask.pending import PartialGang, Pending
from extender.errors import ExtenderError
from extender.log import get_log

FIRST_SECONDS: Final = 5.0
"""After the start."""
EVERY_SECONDS: Final = 30.0
"""Between two counts, at least."""
REST: Final = 49.0
"""Times as long as a count took: all of them together have a fiftieth of one processor."""
T = TypeVar("T")
log = get_log()


class Survey(Controller, Generic[T]):
    """Counts now and then."""

    def __init__(
        self,
        name: str,
        count: Callable[[], T],
        show: Callable[[T], None],
        known: Callable[[], bool],
        forks: Forks,
        *,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        """`name`: of the controller; `count`: one look at the cluster; `show`: what to do with its result; `known`:
        whether the cluster has been read."""
        self.name = name
        self._show, self._known, self._forks, self._every = show, known, forks, every_seconds
        self._question = forks.add(lambda: _counted(count))

    async def run(self) -> None:
        """Count, again and again."""
        await asyncio.sleep(min(FIRST_SECONDS, self._every))
        while True:
            spent = await self._look() if self._known() else 0.0
            await asyncio.sleep(max(self._every, REST * spent))

    async def _look(self) -> float:
        """Count and show; the CPU time that it took, in seconds."""
        try:
            result, spent = pickle.loads(await self._forks.whole(self._question))
        except ExtenderError as error:  # too little memory, or too many questions: it is counted the next time
            log.warning("a survey is left out", survey=self.name, err=error.message)
            return 0.0
        self._show(result)
        return float(spent)


def _counted(count: Callable[[], object]) -> tuple[bytes]:
    """The result, and the CPU time that it took."""
    began = time.process_time()
    result = count()
    return (pickle.dumps((result, time.process_time() - began)),)


# -- what was counted, as metrics: each look replaces the one before


MOST_MODELS: Final = 100
"""Models that are shown: those with the most GPUs, or of which most nodes are wanted."""


def show_nodes_wanted(gauge: Gauge, wanted: Mapping[str, int]) -> None:
    """How many more nodes of each GPU model the pods that wait would need.

    Cluster Autoscaler and Karpenter judge by counts: where we reject a node they see room, and add none. The rule is
    that of `gpu-extender capacity` (extender.ask.growth), so the numbers agree.
    """
    gauge.clear()
    for model, nodes in sorted(wanted.items(), key=lambda entry: (-entry[1], entry[0]))[:MOST_MODELS]:
        gauge.labels(model).set(nodes)


def show_fleet(gpus: Gauge, whole_nodes: Gauge, linked_sets: Gauge, models: Sequence[Mapping[str, Any]]) -> None:
    """What there is and what is left of each GPU model. The numbers are those of `gpu-extender top`."""
    for gauge in (gpus, whole_nodes, linked_sets):
        gauge.clear()
    for model in sorted(models, key=lambda model: (-model["gpus"], model["model"]))[:MOST_MODELS]:
        name = model["model"]
        for state, field in (("allocated", "held_gpus"), ("reserved", "reserved_gpus"), ("free", "free_gpus")):
            gpus.labels(name, state).set(model[field])
        gpus.labels(name, "closed").set(sum(apart["gpus"] for apart in model["closed"]))
        whole_nodes.labels(name).set(model["whole_nodes"])
        for sets in model["linked_sets"]:
            linked_sets.labels(name, str(sets["gpus"])).set(sets["sets"])


def show_partial_gangs(gangs: Gauge, gpus: Gauge, partial: Sequence[PartialGang]) -> None:
    """How many gangs wait for pods of theirs, and the GPUs that they hold meanwhile; as `gpu-extender top` has them."""
    gangs.set(len(partial))
    gpus.set(sum(gang.gpus for gang in partial))


def show_pending(pods: Gauge, oldest: Gauge, by_class: Mapping[str, Pending]) -> None:
    """How many GPU pods of each PriorityClass wait, and for how long the first of them has."""
    for gauge in (pods, oldest):
        gauge.clear()
    for name, waiting in sorted(by_class.items()):
        outranks = "true" if waiting.outranks else "false"
        pods.labels(name, outranks).set(waiting.pods)
        oldest.labels(name, outranks).set(waiting.oldest_seconds)


def show_waiting_pods(gauge: Gauge, waiting: Mapping[tuple[str, str], int]) -> None:
    """How many GPU pods wait, by reason and size. The reasons are those of `gpu-extender top`, so the numbers agree."""
    gauge.clear()
    for (reason, size), pods in sorted(waiting.items()):
        gauge.labels(reason, size).set(pods)


# -- one Event for each gang that is partial, on its first pod that runs; few of them, however many gangs a tenant has


REASON: Final = "GangPartial"


class PartialGangEvents:
    """Reports each gang once while it is partial. Of several instances the first one writes the Event."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events
        self._reported: set[tuple[str, str]] = set()  # (uid of the pod that has the Event, name of the gang)

    def report(self, partial: Sequence[PartialGang]) -> None:
        """A look has ended. `partial`: all gangs that are partial."""
        current = {(gang.running[0].uid, str(gang.ref)): gang for gang in partial}
        self._reported &= current.keys()
        few = FewEvents(self._events)
        for key, gang in current.items():
            note = f"gang {gang.ref}: {gang.text}. The queue of gpu-extender starts such pods together (docs/queue.md)"
            if key not in self._reported and few.once(gang.running[0], f"partial-gang/{gang.ref}", REASON, note):
                self._reported.add(key)
