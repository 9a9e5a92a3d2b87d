"""A small cluster in which pods move for an advance reservation: owners that create pods anew, a kube-scheduler that
takes any node that our filter passes, tenants that bring pods all the time, and a document that outlives the process.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from unittest.mock import patch

from extender.act.advance_store import AdvanceStore
from extender.act.moves import Moves, MovesState, lead_seconds
from extender.act.saving import WITHDRAW_SECONDS, Need, SaveRequests
from extender.ask import making_room
from extender.ask.judge import over
from extender.ask.suppose import SupposedCluster
from extender.kube.pod_writes import Evicted, PodEvictions
from extender.objects.advance import WantedRoom
from extender.objects.records import Event, PodRecord
from extender.policy.pod_request import owner_key
from extender.reservations.advance import Held, PlannedMove, present, seat
from extender.times import Clock, rfc3339
from tests.world import GPU, JSON, World, workload

NAME = "night"
TICK = 8.0  # seconds
SPREAD = 3.0
AGAIN_SECONDS = 30.0
STEPS = 300
"""Of a search: small clusters, many of them."""
LASTS = 3600.0
"""The reservation, seconds."""


class Crash(Exception):
    """The process ends after a write."""


@dataclass
class Owner:
    """What creates pods until there are `replicas`."""

    namespace: str
    kind: str
    name: str
    replicas: int
    gpus: int
    gang: bool = False
    saves: int = -1
    """Seconds in which its pods save their work when asked; -1: they do not."""
    grace: int = 30


@dataclass
class Scene:
    """The cluster, its tenants and one reservation."""

    rng: random.Random
    nodes: dict[str, int]
    """GPUs by name."""
    owners: list[Owner]
    crashes: float = 0.0
    """How likely the process ends after each write."""
    refuses: float = 0.0
    """How likely a budget refuses an eviction."""
    vanish: float = 0.0
    """How likely a node vanishes in a tick."""
    closes: float = 0.0
    """How likely a node is cordoned in a tick, or opened again."""
    late: float = 0.3
    """How likely an owner, or a container, takes one tick more."""
    world: World = field(default_factory=World)
    pods: dict[str, JSON] = field(default_factory=dict)  # by uid, as stored
    document: dict[str, Held] = field(default_factory=dict)
    evicted: dict[str, str] = field(default_factory=dict)  # uid -> the next place that was held
    without_place: list[str] = field(default_factory=list)
    """Victims for whose successor nothing was held."""
    moves: tuple[PlannedMove, ...] = ()
    amounts: tuple[int, ...] = ()
    since: float = 0.0
    plans: int = 0
    planned_moves: int = 0
    """Of the first plan."""
    restarts: int = 0
    asked: dict[str, float] = field(default_factory=dict)
    """uid -> when it has saved."""
    requests: Counter[str] = field(default_factory=Counter)
    """By uid: how many requests to save were written."""
    state: MovesState = field(default_factory=lambda: MovesState("waits"))
    _made: int = 0
    _ends: dict[str, float] = field(default_factory=dict)  # uid -> when it has terminated
    _unwanted: dict[str, float] = field(default_factory=dict)  # uid -> since when no move asks it any more
    _acts: Moves | None = None

    def __post_init__(self) -> None:
        for name, gpus in self.nodes.items():
            self.world.node(name, gpus)

    # -- the cluster

    def put(self, pod: JSON) -> None:
        self.pods[pod["metadata"]["uid"]] = pod
        self.world.set("Pod", pod)

    def create(self, owner: Owner, node: str = "", **facts: Any) -> JSON:
        """Another pod of an owner; it runs where a node is given."""
        self._made += 1
        notes = {"gpu-extender.io/gang": owner.name, "gpu-extender.io/gang-min": "1"} if owner.gang else {}
        if owner.saves >= 0:
            notes["gpu-extender.io/saves-on-request"] = f"{owner.saves}s"
        pod = workload(
            f"{owner.name}-{self._made}", owner.gpus, namespace=owner.namespace, owner=owner.kind, grace=owner.grace,
            annotations=notes, labels={"app": owner.name}, node=node, cpu="100m", memory="16Mi",
            phase="Running" if node else "Pending", start=self.world.wall - 600 if node else None, **facts,
        )  # fmt: skip
        pod["metadata"]["creationTimestamp"] = rfc3339(self.world.wall - 600 if node else self.world.wall)
        pod["metadata"]["ownerReferences"][0] |= {"name": owner.name, "uid": f"uid-{owner.name}"}
        self.put(pod)
        return pod

    def of(self, owner: Owner) -> list[JSON]:
        """Its pods that do not terminate."""
        return [
            pod for pod in self.pods.values()
            if pod["metadata"]["namespace"] == owner.namespace and "deletionTimestamp" not in pod["metadata"]
            and pod["metadata"].get("ownerReferences", [{}])[0].get("name") == owner.name
        ]  # fmt: skip

    def free(self, node: str) -> int:
        """GPUs of the node that no pod holds."""
        held = sum(gpus_of(pod) for pod in self.pods.values() if pod["spec"].get("nodeName") == node)
        return self.nodes[node] - held

    def remove(self, uid: str) -> None:
        del self.pods[uid]
        record = self.world.cluster.pods[uid]
        self.world.cluster.apply([Event("Pod", "delete", record)], self.world.now)

    def lose(self, node: str) -> None:
        """The node is deleted, with its pods."""
        for uid in [uid for uid, pod in self.pods.items() if pod["spec"].get("nodeName") == node]:
            self.remove(uid)
        del self.nodes[node]
        self.world.cluster.apply([Event("Node", "delete", self.world.cluster.nodes[node])], self.world.now)

    def is_closed(self, node: str) -> bool:
        """Whether it is cordoned."""
        return bool(self.world.cluster.nodes[node].closed)

    def tick(self) -> None:
        """Time passes: pods end, owners create, kube-scheduler places."""
        if self.rng.random() < self.vanish and len(self.nodes) > 1:
            self.lose(self.rng.choice(sorted(self.nodes)))
        if self.rng.random() < self.closes:
            name = self.rng.choice(sorted(self.nodes))
            self.world.node(name, self.nodes[name], unschedulable=not self.is_closed(name))
        self.world.now += TICK
        self.world.wall += TICK
        for uid in [uid for uid, at in self._ends.items() if at <= self.world.wall]:
            del self._ends[uid]
            if uid in self.pods:
                self.remove(uid)
        for owner in self.owners:
            if self.rng.random() >= self.late:
                for _ in range(owner.replicas - len(self.of(owner))):
                    self.create(owner)
        for uid in self.rng.sample(sorted(self.pods), len(self.pods)):
            pod = self.pods[uid]
            if pod["spec"].get("nodeName"):
                if pod["status"]["phase"] == "Pending" and self.rng.random() >= self.late:
                    self.put(pod | {"status": pod["status"] | {"phase": "Running"}})
            elif "deletionTimestamp" not in pod["metadata"]:
                self.schedule(pod)

    def schedule(self, pod: JSON) -> str:
        """kube-scheduler takes any node that passes. Its name, "" for none."""
        passed = self.world.filter(pod)["NodeNames"] or []
        if not passed:
            return ""
        node: str = self.rng.choice(passed)
        assert self.free(node) >= gpus_of(pod), "filter passes a node without room"
        self.put(pod | {"spec": pod["spec"] | {"nodeName": node}})
        return node

    # -- what the controller has

    def plan(self, pods: int, gpus: int) -> bool:
        """Plan the room for `since`; whether there is any."""
        cluster = self.world.cluster
        events = [Event("Node", "set", node) for node in cluster.nodes.values()]
        events += [Event("Pod", "set", pod) for pod in cluster.pods.values()]
        asked = WantedRoom(pods, gpus, at=self.since)
        with patch.object(making_room, "MOST_STEPS", STEPS):
            found = making_room.room(SupposedCluster.of(self.world.settings, events), asked, self.world.wall)
        self.plans += 1
        if found.found:
            self.moves, self.amounts = found.moves, found.amounts
            seats = [
                seat(NAME, number, node, found.amounts, self.world.now)
                for number, node in enumerate(node for node, there in found.places for _ in range(there))
            ]
            self.document = {place.name: place for place in self.document.values() if place.owner}
            self.document[NAME] = Held(NAME, tuple(seats), self.since, self.since + LASTS, frozenset({"ml"}))
            self.known()
        return found.found

    def book(self, pods: int, gpus: int, before: float) -> bool:
        """Plan for a date so many seconds after the moment at which the moves begin; whether there is room."""
        self.since = self.world.wall + 1e6
        if self.plan(pods, gpus):
            self.since = self.world.wall + self.lead() + before
            self.plan(pods, gpus)
            self.planned_moves = len(self.moves)
        return bool(self.document)

    def check(self) -> None:
        """What is held for pods in transit is there."""
        for node in self.nodes:
            held = [place for place in self.document.values() if place.owner]
            used = {place.name: {pod.uid for pod in present(place, self.world.cluster)} for place in held}
            asked = sum(one.amounts[3] for place in held for one in place.seats if one.node == node)
            taken = {uid for uids in used.values() for uid in uids if self.pods[uid]["spec"]["nodeName"] == node}
            assert self.free(node) + sum(gpus_of(self.pods[uid]) for uid in taken) >= asked

    def known(self) -> None:
        """All instances have read the document."""
        self.world.verbs.claims.advance.take(self.document.values(), self.world.wall - self.world.now)

    def lead(self) -> float:
        return lead_seconds(self.world.cluster, self.moves, SPREAD)

    def acts(self) -> Moves:
        if self._acts is None:
            world = self.world
            clock = Clock(lambda: world.now, lambda: world.wall)
            self._acts = Moves(
                over(world.verbs), cast(AdvanceStore, self), cast(PodEvictions, self), cast(SaveRequests, self),
                world.verbs.evicted, clock, SPREAD,
            )  # fmt: skip
        return self._acts

    async def turn(self) -> MovesState:
        """The controller looks once; another process goes on after a crash."""
        try:
            acts = self.acts()
            await acts.sweep({NAME})
            self.state = await acts.turn(NAME, self.moves, self.since, self.since + LASTS, lambda: True)
        except Crash:
            self.restarts += 1
            self._acts, self._unwanted = None, {}
            self.known()
        return self.state

    def _written(self) -> None:
        if self.rng.random() < self.crashes:
            raise Crash

    async def hold(self, held: Sequence[Held]) -> str:
        self.document |= {place.name: place for place in held}
        self._written()
        self.known()
        return ""

    async def drop(self, names: Collection[str]) -> str:
        self.document = {name: place for name, place in self.document.items() if name not in names}
        self._written()
        self.known()
        return ""

    # -- the API server: evictions, and pods that save

    async def refusal(self, pods: Sequence[PodRecord]) -> tuple[PodRecord, Evicted] | None:
        if pods and self.rng.random() < self.refuses:
            return pods[0], Evicted("refused", "a budget does not allow it")
        return None

    async def evict(self, pod: PodRecord) -> Evicted:
        if self.rng.random() < self.refuses:
            return Evicted("refused", "a budget does not allow it")
        stored = self.pods.get(pod.uid)
        if stored is None:
            return Evicted("gone", "")
        if pod.uid not in self.evicted:
            self._note(pod)
        ends = self.world.wall + self.rng.uniform(0.0, pod.grace_seconds)
        self._ends[pod.uid] = ends
        meta = stored["metadata"] | {"deletionTimestamp": "2027-01-15T08:00:30Z", "deletionGracePeriodSeconds": 30}
        self.put(stored | {"metadata": meta})
        self._written()
        return Evicted("evicted", "")

    def _note(self, pod: PodRecord) -> None:
        """What is held for its successor."""
        to = next(one.to for move in self.moves for one in move.pods if one.uid == pod.uid)
        places = [held for held in self.document.values() if held.owner == owner_key(pod)]
        nodes = [{one.node for one in place.seats} for place in places]
        open_nodes = {node for node in self.nodes if not self.is_closed(node)}
        if not any(to in open_nodes if to in of else of <= open_nodes for of in nodes):  # else it is held elsewhere
            self.without_place.append(pod.name)
        self.evicted[pod.uid] = to

    def has_asked(self, pod: PodRecord) -> bool:
        return pod.uid in self.asked

    async def sweep(self, needs: Collection[Need]) -> None:
        wanted = {pod.uid for need in needs for pod in need.pods} | set(self._ends)
        self._unwanted = {uid: self._unwanted.get(uid, self.world.wall) for uid in self.asked if uid not in wanted}
        for uid, since in self._unwanted.items():
            if self.world.wall - since >= WITHDRAW_SECONDS:
                del self.asked[uid]

    may_evict = SaveRequests.may_evict

    async def ready(self, need: Need) -> bool:
        for pod in need.pods:
            if need.wait and pod.uid not in self.asked:
                self.asked[pod.uid] = self.world.wall + self.rng.uniform(0.0, need.wait)
                self.requests[pod.uid] += 1
                self._written()
        return all(self.asked.get(pod.uid, 0.0) <= self.world.wall for pod in need.pods)


def gpus_of(pod: JSON) -> int:
    """GPUs that it asks for."""
    return int(pod["spec"]["containers"][0]["resources"]["limits"].get(GPU, 0))


def drawn(rng: random.Random, **facts: Any) -> Scene:
    """A small cluster with owners whose pods are spread over it, so that much is free and little in one place."""
    nodes = {f"n{n}": 8 for n in range(rng.randint(3, 6))}
    owners: list[Owner] = []
    scene = Scene(rng, nodes, owners, **facts)
    for number in range(rng.randint(3, 8)):
        kind, gpus = rng.choice(("ReplicaSet", "Job", "StatefulSet")), rng.choice((1, 1, 2, 2, 3, 4))
        saves, grace = rng.choice((-1, -1, 20, 60)), rng.choice((0, 10, 30))
        owner = Owner("default", kind, f"o{number}", 0, gpus, rng.random() < 0.2, saves, grace)
        owners.append(owner)
        for _ in range(rng.randint(1, 3)):
            open_nodes = [node for node in nodes if scene.free(node) >= owner.gpus]
            if open_nodes and sum(map(scene.free, nodes)) > 8 + owner.gpus:
                scene.create(owner, rng.choice(open_nodes))
                owner.replicas += 1
    return scene


def stranger(scene: Scene) -> None:
    """Another tenant wants a pod more: with the labels and the owner's name of one that moves. It goes if it has no
    place at once."""
    like = scene.rng.choice([owner for owner in scene.owners if owner.namespace == "default"])
    owner = next((one for one in scene.owners if (one.namespace, one.name) == ("other", like.name)), None)
    if owner is None:
        owner = Owner("other", like.kind, like.name, 0, scene.rng.choice((1, 1, 2, like.gpus)), grace=0)
        scene.owners.append(owner)
    pod = scene.create(owner)
    if scene.schedule(pod):
        owner.replicas += 1
    else:
        scene.remove(pod["metadata"]["uid"])


def places_of(scene: Scene) -> Counter[str]:
    """Where the pods of the reservation go, all at once, by node; () where one has no place."""
    used: Counter[str] = Counter()
    held = scene.document[NAME]
    for number in range(len(held.seats)):
        gpus = held.seats[0].amounts[3]
        pod = workload(f"ml-{number}", gpus, namespace="ml", cpu="0", memory="0")
        scene.put(pod)
        node = scene.schedule(pod)
        if not node:
            return Counter()
        used[node] += 1
    return used


async def carried_out(
    scene: Scene,
    pods: int,
    gpus: int,
    *,
    strangers: float = 0.0,
    grows: float = 0.0,
    look: Callable[[], None] = lambda: None,
) -> bool:
    """Make room for a reservation that begins some minutes after the moves have to begin; whether it was there on
    time. `strangers`, `grows`: how likely other tenants bring pods, and owners want one more, in a tick; `look`: called
    at each look of the controller."""
    if not scene.book(pods, gpus, 120.0):
        return False
    planned = 0.0
    while scene.world.wall < scene.since:
        look()
        lost = any(held.node not in scene.nodes for held in scene.document[NAME].seats)
        lost |= (await scene.turn()).phase == "lost"
        if lost and scene.world.wall - planned >= AGAIN_SECONDS:
            planned = scene.world.wall
            if scene.plan(pods, gpus):
                await scene.turn()  # its places are held in the look that finds them
        if scene.rng.random() < strangers:
            stranger(scene)
        if scene.rng.random() < grows:
            scene.rng.choice(scene.owners).replicas += 1
        scene.tick()
        scene.check()
    look()
    return bool(places_of(scene))
