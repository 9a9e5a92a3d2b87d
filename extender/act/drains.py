"""Empties nodes of GPU pods for their operators: asks the pods to save their work, and evicts them.

It acts in the turns of `evictions.py`, by the same Lease, requests and evictions. draining.py has which pods leave and
when. Pods of one gang are one need, any other pod is one by itself: each leaves once it has saved its work. The state
is in the annotations of node and pods. A new holder of the Lease reads them, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from extender.act.events import EventRecorder
from extender.act.saving import Need, SaveRequests
from extender.cluster.cluster import ClusterView
from extender.decide.evicted import OURS, Cause, EvictedPods
from extender.kube.pod_writes import PodEvictions
from extender.objects.nodes import DRAIN
from extender.objects.records import PodRecord
from extender.preemption.certificate import how_many
from extender.preemption.draining import Drain, drain_of
from extender.queue.report import first_names
from extender.times import Backoff, Backoffs

LOOK_SECONDS: Final = 1.0
ROUND: Final = Backoff(5.0, 5.0)  # between two rounds of one need: what a budget rejects now it may soon allow
MOST_NAMED: Final = 3  # pods in the note of an Event


class Leaving(NamedTuple):
    """Pods that leave a node together."""

    drain: Drain
    need: Need
    key: str


class Drains:
    """The nodes of one cluster that are to be emptied."""

    def __init__(
        self, cluster: ClusterView, evicted: EvictedPods, events: EventRecorder, wall: Callable[[], float]
    ) -> None:
        """`wall`: seconds since 1970."""
        self._cluster, self._evicted, self._events, self._wall = cluster, evicted, events, wall
        self._looked_at = -LOOK_SECONDS
        self._drains: list[Drain] = []
        self._began: dict[str, float] = {}  # by key: when the pods were the first time to leave
        self._rounds = Backoffs(ROUND)
        self._told: dict[str, str] = {}  # what the last Event on each node states

    def look(self) -> list[Leaving]:
        """What is to leave now, in the order of the nodes' names."""
        now = self._wall()
        if not 0.0 <= now - self._looked_at < LOOK_SECONDS:
            self._looked_at = now
            found = (drain_of(self._cluster, self._cluster.nodes[name]) for name in sorted(self._cluster.drained))
            self._drains = [drain for drain in found if drain is not None]
        begun = [drain for drain in self._drains if drain.node.unschedulable and now >= drain.begins]
        leaving = [part for drain in begun for part in self._parts(drain, now)]
        self._began = {part.key: part.need.at for part in leaving}
        return leaving

    @property
    def due(self) -> bool:
        """Whether a node is to be emptied now, and is not empty."""
        now = self._wall()
        return any(now >= drain.begins and (drain.pods or drain.ending) for drain in self._drains)

    def _stands(self, drain: Drain) -> bool:
        """Whether the operator empties the node still, by the same time."""
        node, before = self._cluster.nodes.get(drain.node.name), drain.node
        return (
            node is not None
            and node.uid == before.uid
            and node.unschedulable
            and node.annotations.get(DRAIN) == before.annotations[DRAIN]
        )

    def _parts(self, drain: Drain, now: float) -> Iterable[Leaving]:
        gangs: dict[str, list[PodRecord]] = {}
        for pod in drain.pods:
            current = self._cluster.pods.get(pod.uid)
            if current is not None and not current.terminating:
                gangs.setdefault(str(self._cluster.gangs.ref(pod) or pod.uid), []).append(current)
        for gang, pods in gangs.items():
            key = f"{drain.node.uid}/{gang}"
            at = self._began.get(key, now)
            saves = max(0, *(self._cluster.limits.saving(pod).when_asked for pod in pods))
            wait = saves if drain.last is None else max(0.0, min(saves, drain.last - at))
            yield Leaving(drain, Need(drain.by, pods, at, wait), key)

    async def empty(
        self, part: Leaving, evictions: PodEvictions, saves: SaveRequests, may_act: Callable[[], bool]
    ) -> None:
        """Ask the pods that are not asked yet; evict them once all have saved their work. Each request may wait long
        for the API server: before the next one `may_act` is asked, and whether the node is emptied still."""
        now, node = self._wall(), part.drain.node

        def goes_on() -> bool:
            return may_act() and self._stands(part.drain)

        if self._rounds.waits(part.key, now) or not goes_on():
            return
        begun = not part.need.wait or any(saves.has_asked(pod) for pod in part.need.pods)
        step = await saves.may_evict(part.need, evictions, goes_on, allowed=begun)
        if step.state in ("stopped", "saving"):
            return
        if step.why:
            self._waits(part.drain, step.why)
        else:
            for pod in part.need.pods:
                if not goes_on():
                    return
                cause = Cause(OURS, f"its node {node.name} is emptied (annotation {DRAIN})", at=now, victims=1)
                self._evicted.note([pod], cause)
                answer = await evictions.evict(pod)
                if answer.outcome not in ("evicted", "gone"):
                    self._waits(part.drain, f"{pod.namespace}/{pod.name}: {answer.message}")
        self._rounds.failed(part.key, now)

    # -- Events on the node ---------------------------------------------------------------------------------------

    def _waits(self, drain: Drain, why: str) -> None:
        self._events.node(drain.node.name, drain.node.uid, "DrainWaits", why)

    def tell(self) -> None:
        """Write what has changed since the last look."""
        now = self._wall()
        told = {drain.node.name: _state(drain, now) for drain in self._drains}
        for drain in self._drains:
            node, (reason, text, warning) = drain.node, told[drain.node.name]
            if self._told.get(node.name) != text:
                self._events.node(node.name, node.uid, reason, text, warning=warning)
        self._told = {name: text for name, (_, text, _) in told.items()}


def _state(drain: Drain, now: float) -> tuple[str, str, bool]:
    """(reason, note, whether it is a warning) of an Event."""
    if drain.pods:
        named = first_names([f"{pod.namespace}/{pod.name}" for pod in drain.pods], MOST_NAMED)
        verb = "leaves" if len(drain.pods) == 1 else "leave"
        text = f"{how_many(len(drain.pods))} with GPUs {verb} {drain.state(now)}: {named}"
        return ("Draining", text, False) if drain.node.unschedulable else ("DrainWaits", text, True)
    waiting = [stays for stays in drain.staying if stays.budget]
    if waiting:
        first = waiting[0]
        return "DrainWaits", f"{first.pod.namespace}/{first.pod.name}: {first.why}", True
    if drain.ending:
        return "Draining", f"{how_many(drain.ending)} with GPUs still terminating", False
    return "Drained", "no pod with GPUs is left but those of DaemonSets and static pods", False
