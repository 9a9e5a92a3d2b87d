"""One Event for each object and unknown name, and few of them, however many a tenant writes.

All pods and nodes are looked at now and then, in slices. What a tenant causes is bounded: Events a minute, and Events
in all while its objects exist. What is beyond the first waits for a later look, what is beyond the second for an object
of the namespace to be deleted. `gpu-extender check` reports all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from extender.cluster.slices import pauses
from extender.cluster.view import ClusterView
from extender.controllers.controller import Controller
from extender.controllers.events import Events
from extender.kube.events import Regarding
from extender.objects.typos import Typo, of_node, of_pod

FIRST_SECONDS: Final = 5.0
"""After the start."""
EVERY_SECONDS: Final = 30.0
"""Between two looks."""
PAUSE_SECONDS: Final = 0.005
"""Between two slices of one look."""
OF_NAMESPACE: Final = 5
"""Events of one look for the pods of one namespace, or for nodes."""
OF_LOOK: Final = 20
MOST_OF_NAMESPACE: Final = 100
"""Events that are remembered for the objects of one namespace that exist."""
MOST: Final = 2_000
"""Events that are remembered in all."""
REASON: Final = "UnknownMetadata"
NODES: Final = ""
"""The namespace of nodes."""
_Object = tuple[str, str]
"""(namespace, uid)."""


class TypoEvents(Controller):
    """Reports unknown names and values."""

    name = "typos"

    def __init__(self, cluster: ClusterView, events: Events, every_seconds: float = EVERY_SECONDS) -> None:
        self._cluster, self._events, self._every = cluster, events, every_seconds
        self._told: dict[_Object, set[str]] = {}  # the names that were reported of each object that exists
        self._generation, self._left_out = -1, False

    async def run(self) -> None:
        """Look, again and again."""
        await asyncio.sleep(min(FIRST_SECONDS, self._every))
        while True:
            for _ in self.look():
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.sleep(self._every)

    def look(self) -> Iterator[None]:
        """One look at all objects; yields where others may run. Objects of a namespace that may have no more Events are
        not read: to find the nearest word costs a tenth of a millisecond."""
        if self._generation == self._cluster.generation and not self._left_out:
            return
        self._generation, self._left_out = self._cluster.generation, False
        limits = _Limits(self._told)
        there: set[_Object] = set()
        for regarding, read in self._objects():
            if regarding is None or read is None:
                yield
                continue
            one = regarding.namespace, regarding.uid
            there.add(one)
            if not limits.leave(regarding.namespace):
                self._left_out = True
            elif found := read():
                self._tell(regarding, found, limits)
                yield
        for one in self._told.keys() - there:
            del self._told[one]

    def _tell(self, regarding: Regarding, found: list[Typo], limits: _Limits) -> None:
        """Note the Events of one object, as far as the limits leave room."""
        space = regarding.namespace
        names = self._told.get((space, regarding.uid), set())
        for typo in found:
            if typo.key in names:
                continue
            if not limits.leave(space) or not self._events.once(regarding, typo.key, REASON, typo.text):
                self._left_out = True
                break
            self._told.setdefault((space, regarding.uid), names).add(typo.key)
            limits.made[space] += 1

    def _objects(self) -> Iterator[tuple[Regarding, Callable[[], list[Typo]]] | tuple[None, None]]:
        """Each object, and what reads it; (None, None) between two slices."""
        nodes, pods, levels = self._cluster.nodes, self._cluster.pods, self._cluster.settings.topology_levels
        for name, pause in pauses(list(nodes)):
            if pause:
                yield None, None
            if (node := nodes.get(name)) is not None:
                yield Regarding("Node", NODES, name, node.uid), partial(of_node, node)
        for uid, pause in pauses(list(pods)):
            if pause:
                yield None, None
            if (pod := pods.get(uid)) is not None and not pod.terminating:
                yield Regarding("Pod", pod.namespace, pod.name, uid), partial(of_pod, pod, levels)


class _Limits:
    """What one look may still report. `made`: its Events so far, by namespace."""

    def __init__(self, told: Mapping[_Object, set[str]]) -> None:
        self.made: Counter[str] = Counter()
        self._known: Counter[str] = Counter()
        for (space, _), names in told.items():
            self._known[space] += len(names)
        self._all = self._known.total()

    def leave(self, space: str) -> bool:
        """Whether there is room for one more Event of a namespace."""
        made, total = self.made[space], self.made.total()
        return (
            made < OF_NAMESPACE
            and total < OF_LOOK
            and self._known[space] + made < MOST_OF_NAMESPACE
            and self._all + total < MOST
        )
