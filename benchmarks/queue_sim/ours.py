"""Ours: the product's own planner (`extender.queue.plan.Planner`) over a `Cluster` of the simulated nodes.

The cluster gets what a watch would bring: nodes, pods behind our gate as gangs arrive, the same pods bound on their
seats as gangs start, and their deletions as gangs end. Which gang starts next, and where, is decided by
`Planner.looks` alone, as the queue's controller calls it: a look after every moment at which something has changed, its
seats reserved as they come, and another look until one starts nothing. The settings are the defaults: no queue has a
quota. The clocks of the planner are the world's.

One shortcut leaves out work that cannot change a decision: no look is taken while each gang that waits has more pods
than the free GPUs of the whole cluster have slots for.
"""

from __future__ import annotations

import json
import math
from collections import Counter

import msgspec

from benchmarks.queue_sim.gangs import Gang, Shape, capacities
from benchmarks.queue_sim.measures import DELAYED
from benchmarks.queue_sim.world import World
from extender.cluster.cluster import Cluster
from extender.cluster.statements import PLAN, planned_text
from extender.decide.verbs import Verbs
from extender.objects import decode
from extender.objects.queueing import DOMAIN, DURATION, GATE, QUEUE
from extender.objects.records import Event, NodeRecord, PodRecord
from extender.queue.placement import JointPlacement
from extender.queue.places import GangStart
from extender.queue.plan import Planner
from extender.settings import Settings
from extender.sim.machines import GPU, SimNode, SimPod, machine

RACK, BLOCK = "cloud.provider.com/topology-rack", "cloud.provider.com/topology-block"
GANG, SIZE = "gpu-extender.io/gang", "gpu-extender.io/gang-size"


def cluster_of(shape: Shape, settings: Settings) -> Cluster:
    """A cluster of the shape's nodes, without pods, in their order."""
    cluster = Cluster(settings)
    events = []
    for node in range(shape.size):
        rack = shape.rack_of(node)
        labels = {RACK: f"rack-{rack:03}", BLOCK: f"block-{rack // shape.racks:03}"}
        stated = SimNode(node_name(node), machine(None, shape.gpus), annotate=False, labels=labels).object()
        record = decode.record("Node", json.dumps(stated).encode(), cluster.gpu_names)
        assert isinstance(record, NodeRecord)
        events.append(Event("Node", "set", record))
    cluster.apply(events, 0.0)
    return cluster


def node_name(node: int) -> str:
    """Of a node of the world."""
    return f"node-{node:05}"


def records_of(gang: Gang, cluster: Cluster) -> list[PodRecord]:
    """The pods of a gang behind our gate, as the API server has them."""
    name = f"gang-{gang.id:07}"
    notes = {}
    if gang.pods > 1:
        notes = {GANG: name, SIZE: str(gang.pods), DOMAIN: f"{'required' if gang.required else 'preferred'}:rack"}
    if gang.declared is not None:
        notes[DURATION] = f"{gang.declared}s"
    labels = {QUEUE: str(gang.queue)}
    stated = SimPod(
        name, "default", gang.gpus, labels=labels, annotations=notes, cpu="1", memory="1Gi", gates=[GATE]
    ).object()
    stated["metadata"]["uid"] = name
    first = decode.record("Pod", json.dumps(stated).encode(), cluster.gpu_names)
    assert isinstance(first, PodRecord)
    return [
        msgspec.structs.replace(first, uid=f"{name}-{i}", name=f"{name}-{i}", created=gang.arrived)
        for i in range(gang.pods)
    ]


class Ours:
    """The queue's controller without its I/O: what starts is bound at once."""

    def __init__(self, world: World, settings: Settings | None = None) -> None:
        self._world = world
        self._settings = settings or Settings()
        self._cluster = cluster_of(world.shape, self._settings)
        verbs = Verbs.of(self._settings, self._cluster)
        self._seats = verbs.claims.seats
        placement = JointPlacement(self._cluster, verbs.policy)
        self._planner = Planner(self._cluster, verbs.claims, placement, self._now, self._now)
        self._nodes = {node_name(node): node for node in range(world.shape.size)}
        self._gangs: dict[str, Gang] = {}  # those that have not ended, by the uids of their pods
        self._pods: dict[int, list[PodRecord]] = {}  # of these, by the gang's id
        self._waiting: dict[int, Gang] = {}
        self._promised: dict[int, float] = {}  # the latest start of a gang that stays first until it starts

    def _now(self) -> float:
        return self._world.now

    @property
    def wake(self) -> float | None:
        """When the next gang loses its patience: the order changes then."""
        patience, now = self._settings.queue.patience_seconds, self._world.now
        moments = (gang.arrived + patience for gang in self._waiting.values())
        return min((moment for moment in moments if moment > now), default=None)

    def arrive(self, gang: Gang) -> None:
        pods = self._pods[gang.id] = records_of(gang, self._cluster)
        self._waiting[gang.id] = gang
        self._gangs |= {pod.uid: gang for pod in pods}
        self._cluster.apply([Event("Pod", "set", pod) for pod in pods], self._world.now)

    def finish(self, gang: Gang) -> None:
        """The world has released its GPUs."""
        pods = self._pods.pop(gang.id)
        self._cluster.apply([Event("Pod", "delete", pod) for pod in pods], self._world.now)
        for pod in pods:
            del self._gangs[pod.uid]

    def act(self) -> None:
        """Looks, until one starts nothing."""
        while self._some_fit() and self._look():
            pass

    def _some_fit(self) -> bool:
        """Whether any gang may fit, by the slots of the whole cluster."""
        slots = {gpus: sum(capacities(self._world.free, gpus)) for gpus in {one.gpus for one in self._waiting.values()}}
        return any(slots[one.gpus] >= one.pods for one in self._waiting.values())

    def _look(self) -> bool:
        """One look; whether a gang has started. The seats of each count for the others as it goes on, and its pods are
        bound when it is over."""
        started = []
        for start in self._planner.looks({}):
            if start is not None:
                started.append(start)
        for start in started:
            self._start(start)
        self._promise()
        return bool(started)

    def _start(self, start: GangStart) -> None:
        gang = self._gangs[start.seats[0].uid]
        del self._waiting[gang.id]
        self._world.start(gang, Counter(self._nodes[seat.node] for seat in start.seats))
        if self._world.now > self._promised.pop(gang.id, math.inf):
            self._world.count(DELAYED)
        bound = []
        for seat in start.seats:
            pod = self._cluster.pods[seat.uid]
            notes = pod.annotations | ({PLAN: planned_text(pod, GPU, seat.gpus)} if seat.gpus else {})
            bound.append(
                msgspec.structs.replace(
                    pod, node=seat.node, gates=(), start=self._world.now, phase="Running", annotations=notes
                )
            )
            self._seats.drop(seat.uid)
        self._pods[gang.id] = bound
        self._cluster.apply([Event("Pod", "set", pod) for pod in bound], self._world.now)

    def _promise(self) -> None:
        """Keep when the head starts at the latest, where no gang comes before it any more."""
        patience = self._settings.queue.patience_seconds
        for one in self._planner.report.waiting:
            if one.code != "head" or one.start is None:
                continue
            gang = self._gangs[one.gang.pods[0].uid]
            if self._world.now - gang.arrived >= patience:
                self._promised[gang.id] = min(one.start, self._promised.get(gang.id, math.inf))
