"""Ways by which a cluster came to be as it is: each object with earlier versions, or as another object of its name
before; objects that have gone; what happens between two events is asked about.

The events come by feeds, as from watches: each kind in the order of its API, several kinds in any order, in batches of
any size, some of them twice, and some only by the next list.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

from extender.kube.lists import WATCHED_KINDS, WatchedKind
from extender.kube.reflector import Feed
from extender.kube.watching import WatchPace
from extender.objects import decode
from extender.objects.records import Event
from extender.settings import Settings
from tests.metamorphic.clusters import OURS, RACK, Stated
from tests.world import GPU, JSON, PRODUCT, World, rfc3339, workload

GONE, LONG_AGO = "gone-", 86_400 * 3_000  # seconds: such pods are no demand any more
AFTER = 3_600.0  # seconds that pass at the end: what is assumed or remembered for a time only is forgotten


def source_of(one: JSON) -> WatchedKind:
    """Where objects of this kind are listed."""
    api = one["apiVersion"].rpartition("/")[0]
    return next(
        kind
        for kind in WATCHED_KINDS
        if kind.object_kind == one["kind"] and kind.kind != "FailedPod" and kind.group in (None, (api, one["kind"]))
    )


def key_of(one: JSON) -> tuple[str, str]:
    """Namespace and name."""
    return one["metadata"].get("namespace", ""), one["metadata"]["name"]


class Watched:
    """A world whose objects come by feeds."""

    def __init__(self, settings: Settings, wall: float) -> None:
        self.world = World(settings)
        self.world.wall = wall
        self.stored: dict[WatchedKind, dict[tuple[str, str], JSON]] = {}
        self._feeds: dict[WatchedKind, Feed] = {}
        self._versions = 0
        self._batch: list[Event] = []

    # -- the feeds' sink; `_applied` gives the cluster what they have

    def apply(self, batch: Any) -> None:
        """Never called, as all of these: `change` takes the events."""
        raise AssertionError(batch)

    def synced(self, kind: str) -> None: ...

    def absent(self, kind: str) -> None: ...

    def returned(self) -> None: ...

    def _feed(self, kind: WatchedKind) -> Feed:
        return self._feeds.setdefault(kind, Feed(kind.kind, self, WatchPace(), lambda: 0.0, print))

    def _record(self, kind: WatchedKind, one: JSON) -> Any:
        return decode.record(kind.kind, json.dumps(one).encode(), self.world.cluster.gpu_names, kind.group)

    def _take(self, events: Iterable[Event | None]) -> None:
        self._batch += [event for event in events if event is not None]

    def flush(self) -> None:
        """Give the cluster the events that are due."""
        batch, self._batch = self._batch, []
        if batch:
            self.world.cluster.apply(batch, self.world.now, self.world.wall)

    # -- what happens

    def change(self, kind: WatchedKind, key: tuple[str, str], one: JSON | None, *, heard: bool) -> None:
        """An object is written, or deleted where it is None. `heard`: the watch brings it, else the next list does."""
        stored = self.stored.setdefault(kind, {})
        before = stored.pop(key, None)
        if one is not None:
            self._versions += 1
            one["metadata"]["resourceVersion"] = str(self._versions)
            stored[key] = one
            if heard:
                self._take(self._feed(kind).changed(self._record(kind, one)))
        elif heard and before is not None:
            self._take(self._feed(kind).deleted(key, self._record(kind, before)))

    def again(self, kind: WatchedKind, chance: Random) -> None:
        """The watch brings an object that is known a second time."""
        stored = self.stored.get(kind)
        if stored:
            self._take(self._feed(kind).changed(self._record(kind, stored[chance.choice(sorted(stored))])))

    def listed(self, kind: WatchedKind, chance: Random) -> None:
        """A list of the kind, in any order."""
        feed, there = self._feed(kind), list(self.stored.get(kind, {}).values())
        chance.shuffle(there)
        feed.begin_list()
        for one in there:
            record = self._record(kind, one)
            feed.seen(record)
            self._take(feed.listed(record))
        self._take(feed.unlisted())


# -- the lives of objects


Life = list[JSON | None]
"""The versions of the objects of one name, one after the other; None: it is deleted."""


def _life(chance: Random, one: JSON) -> Life:
    """It ends with the object as it is."""
    versions: Life = []
    if chance.random() < 0.3:  # another object of this name before
        other = _earlier(chance, one)
        other["metadata"]["uid"] = f"{one['metadata'].get('uid', '')}-before"
        versions += [*_versions(chance, other, chance.randint(0, 1)), other]
        if chance.random() < 0.6:
            versions.append(None)
    return [*versions, *_versions(chance, one, chance.choice((0, 0, 1, 2))), one]


def _versions(chance: Random, one: JSON, count: int) -> Life:
    return [_before(chance, one) for _ in range(count)]


def _copy(one: JSON) -> JSON:
    made: JSON = json.loads(json.dumps(one))
    return made


def _before(chance: Random, one: JSON) -> JSON:
    """An earlier version of the same object."""
    made = _copy(one)
    CHANGES.get(one["kind"], _any)(chance, made)
    return made


def _earlier(chance: Random, one: JSON) -> JSON:
    """Another object of the same name, with another specification."""
    made = _before(chance, one)
    if one["kind"] == "Pod":
        made["spec"]["priority"] = chance.choice((-5, 0, 10, 100))
        limits = [made["spec"]["containers"][0]["resources"][part] for part in ("requests", "limits")]
        gpus = chance.choice((0, 1, 2, 8))
        for part in limits:
            if GPU in part:
                part[GPU] = str(gpus)
        made["metadata"]["creationTimestamp"] = rfc3339(1_800_000_000.0 - LONG_AGO)
    return made


def _pod(chance: Random, pod: JSON) -> None:
    """Before it was bound, nominated or evicted; with other labels and annotations."""
    meta, spec = pod["metadata"], pod["spec"]
    if chance.random() < 0.5:
        meta.pop("deletionTimestamp", None)
    if spec.get("nodeName") and chance.random() < 0.5:
        meta["annotations"].pop(OURS + "held-gpus", None)
        pod["status"].pop("startTime", None)
        pod["status"]["phase"] = "Pending"
        if chance.random() < 0.7:
            node = spec.pop("nodeName")
            if chance.random() < 0.3:
                pod["status"]["nominatedNodeName"] = node
    if chance.random() < 0.3:
        meta["labels"] = {"app": chance.choice("abc")}
    if chance.random() < 0.3:
        meta["annotations"] = {OURS + "gang": "other", OURS + "protect-for": "1h"}


def _node(chance: Random, node: JSON) -> None:
    """With fewer GPUs, without labels or links, cordoned, tainted or not ready."""
    meta, status = node["metadata"], node["status"]
    way = chance.randrange(6)
    if way == 0:
        node["spec"]["unschedulable"] = True
    elif way == 1:
        node["spec"]["taints"] = [{"key": "example.com/odd", "effect": chance.choice(("NoSchedule", "NoExecute"))}]
    elif way == 2:
        meta["labels"] = {RACK: "elsewhere", PRODUCT: "Other"}
    elif way == 3:
        meta["annotations"] = {}
    elif way == 4 and GPU in status["allocatable"]:
        status["allocatable"][GPU] = chance.choice(("0", "4", "16"))
    else:
        status["conditions"] = [{"type": "Ready", "status": "False"}]


def _budget(chance: Random, budget: JSON) -> None:
    budget["status"] = {"disruptionsAllowed": chance.choice((0, 1, 5))}
    if chance.random() < 0.5:
        budget["spec"]["selector"] = chance.choice(({}, {"matchLabels": {"app": "c"}}, None))


def _class(chance: Random, made: JSON) -> None:
    made["value"] = chance.choice((-5, 0, 10, 1000))
    made["preemptionPolicy"] = chance.choice(("Never", "PreemptLowerPriority"))


def _quota(chance: Random, quota: JSON) -> None:
    quota["spec"]["hard"] = {f"requests.{GPU}": str(chance.choice((0, 1, 64)))}


def _slice(chance: Random, made: JSON) -> None:
    devices = made["spec"]["devices"]
    made["spec"]["devices"] = devices[: chance.randrange(len(devices) + 1)]
    made["spec"]["pool"]["generation"] = 0


def _claim(chance: Random, claim: JSON) -> None:
    claim.pop("status", None)


def _device_class(chance: Random, made: JSON) -> None:
    """It serves another resource, or selects other devices."""
    made["spec"] = chance.choice(({}, {"extendedResourceName": GPU}, {"selectors": [{"cel": {"expression": "false"}}]}))


def _group(chance: Random, group: JSON) -> None:
    for key in ("minMember", "parallelism", "completions"):
        if key in group["spec"]:
            group["spec"][key] = chance.choice((1, 2, 9))
    for job in group["spec"].get("replicatedJobs", ()):
        job["replicas"] = chance.choice((1, 3))


def _any(chance: Random, one: JSON) -> None:
    one["metadata"]["labels"] = {"example.com/before": chance.choice("xy")}


CHANGES: dict[str, Callable[[Random, JSON], None]] = {
    "Pod": _pod,
    "Node": _node,
    "PodDisruptionBudget": _budget,
    "PriorityClass": _class,
    "ResourceQuota": _quota,
    "ResourceSlice": _slice,
    "ResourceClaim": _claim,
    "DeviceClass": _device_class,
    "Job": _group,
    "PodGroup": _group,
    "JobSet": _group,
}


def _gone(chance: Random, one: JSON) -> JSON:
    """An object like this one that has gone since."""
    made = _earlier(chance, one)
    made["metadata"]["name"] = f"{GONE}{one['metadata']['name']}"
    made["metadata"]["uid"] = f"{GONE}{one['metadata'].get('uid', '')}"
    return made


def lives(chance: Random, stated: Stated) -> Iterator[tuple[WatchedKind, tuple[str, str], JSON | None]]:
    """What is written to the API server: the events of all objects, those of one name in their order."""
    queues: list[deque[tuple[WatchedKind, tuple[str, str], JSON | None]]] = []
    for one in stated.items:
        kind = source_of(one)
        queues.append(deque((kind, key_of(one), made and _copy(made)) for made in _life(chance, one)))
        if chance.random() < 0.25:
            gone = _gone(chance, one)
            life: Life = [*_versions(chance, gone, chance.randint(0, 1)), gone, None]
            queues.append(deque((kind, key_of(gone), made) for made in life))
    while queues:
        queue = chance.choice(queues)
        yield queue.popleft()
        if not queue:
            queues.remove(queue)


def _ask(chance: Random, watched: Watched) -> None:
    """What changes nothing for good: it makes the server keep what it has computed."""
    world, number = watched.world, chance.randrange(10**9)
    pod = workload(f"between-{number}", chance.choice((1, 2, 8)), links=chance.choice(("required", "")), priority=50)
    pod["metadata"]["creationTimestamp"] = rfc3339(world.wall - LONG_AGO)
    way = chance.randrange(4)
    if way == 0 and world.cluster.nodes:
        world.filter(pod)
    elif way == 1:
        with suppress(StopIteration):
            world.call(f"/debug/{chance.choice(('top', 'capacity', 'queue', 'map'))}", method="GET")
    elif way == 2 and world.cluster.nodes:
        node = chance.choice(sorted(world.cluster.nodes))
        below = [one.name for one in world.cluster.pods_on(node) if one.priority < 50 and f"uid-{one.name}" == one.uid]
        if below:
            world.preempt(pod, {node: below})
    else:
        world.now += chance.choice((0.1, 1.0, 20.0))
        world.cluster.tick(world.now)


def lived(seed: int, stated: Stated) -> World:
    """A world in which all of this happened, and which is now as stated."""
    chance = Random(f"history {seed}")
    watched = Watched(stated.settings, stated.wall)
    kinds: dict[WatchedKind, bool] = {}  # whether its watch is cut
    for kind, key, one in lives(chance, stated):
        cut = kinds.setdefault(kind, False)
        watched.change(kind, key, one, heard=not cut)
        if chance.random() < 0.02:
            kinds[kind] = True
        if cut and chance.random() < 0.2:
            watched.listed(kind, chance)
            kinds[kind] = False
        if chance.random() < 0.05 and not cut:
            watched.again(kind, chance)
        if chance.random() < 0.5:
            watched.flush()
            watched.world.now += 0.01
            if chance.random() < 0.1:
                _ask(chance, watched)
    order = list(kinds)
    chance.shuffle(order)
    for kind in order:
        if kinds[kind] or chance.random() < 0.3:
            watched.listed(kind, chance)
    watched.flush()
    return settled(watched.world)


def fresh(stated: Stated, other: World) -> World:
    """A world that has read it once. What it expects to come is what the other has learned."""
    watched = Watched(stated.settings, stated.wall)
    for one in stated.items:
        watched.stored.setdefault(source_of(one), {})[key_of(one)] = _copy(one)
    for kind in watched.stored:
        watched.listed(kind, Random(0))
    watched.flush()
    watched.world.cluster.demand.load(other.cluster.demand.dump())
    return settled(watched.world)


def settled(world: World) -> World:
    """After a time in which nothing happens."""
    for _ in range(40):
        world.now += AFTER / 40
        world.cluster.tick(world.now)
    return world
