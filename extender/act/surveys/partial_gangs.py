"""One Event for each gang that is partial, on its first pod that runs; few of them, however many gangs a tenant has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from extender.act.events import EventRecorder
from extender.ask.partial_gangs import PartialGang
from extender.kube.own_objects import Regarding

REASON: Final = "GangPartial"
OF_LOOK: Final = 20
"""Events of one look; the others follow with the next looks."""
OF_NAMESPACE: Final = 5
"""Of them for the gangs of one namespace."""


class PartialGangEvents:
    """Reports each gang once while it is partial. Of several instances the first one writes the Event."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events
        self._reported: set[tuple[str, str]] = set()  # (uid of the pod that has the Event, name of the gang)

    def report(self, partial: Sequence[PartialGang]) -> None:
        """A look has ended. `partial`: all gangs that are partial."""
        current = {(gang.running[0].uid, str(gang.ref)): gang for gang in partial}
        self._reported &= current.keys()
        of_namespace: Counter[str] = Counter()
        for key, gang in current.items():
            pod = gang.running[0]
            if key in self._reported or of_namespace[pod.namespace] >= OF_NAMESPACE:
                continue
            if of_namespace.total() >= OF_LOOK:
                return
            note = f"gang {gang.ref}: {gang.text}. The queue of gpu-extender starts such pods together (docs/queue.md)"
            regarding = Regarding("Pod", pod.namespace, pod.name, pod.uid)
            if self._events.once(regarding, f"partial-gang/{gang.ref}", REASON, note[:1000]):
                self._reported.add(key)
                of_namespace[pod.namespace] += 1
