"""Events applied one after the other leave the tables that a writer leaves which reads everything anew."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from ext_core.rows import PodRow
from extender.cluster.cluster import SPARED, TERMINATING, Cluster
from extender.objects import decode, gangs
from extender.objects.progress import saved_ms, start_ms
from extender.objects.queueing import GATE
from extender.objects.records import Event, PodRecord
from extender.settings import Settings
from tests.objects.test_gangs import obj, owned
from tests.queue.gangs import waiting
from tests.world import DGX1V, GPU, JSON, WALL, World, machine, pairs, rfc3339, topology, workload

SHARED = {
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.count": "4",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
}
OURS = "gpu-extender.io/"


# -- the slow writer ---------------------------------------------------------------------------------------------------


def expected_row(cluster: Cluster, pod: PodRecord) -> PodRow:
    """The row of a bound pod, from its record and the ledger of its node."""
    ledger = cluster.gpus.ledgers[pod.node]
    held = next((one for one in ledger.holdings if one.uid == pod.uid), None)
    return PodRow(
        cluster.row(pod.node),
        pod.priority,
        cluster.amounts(pod),
        held.mask if held else 0,
        held.unsure if held else 0,
        (TERMINATING if pod.terminating else 0) | (SPARED if pod.daemon or pod.mirror else 0),
        start_ms(pod),
        saved_ms(pod),
        cluster.limits.restart_seconds(pod),
        pod.grace_seconds,
        cluster.limits.protected_ms(pod),
        *cluster.limits.saving(pod),
    )


def expected_gang(cluster: Cluster, pod: PodRecord, bound: list[PodRecord]) -> tuple[object, ...] | None:
    """Name, minimum that counts, running members and whether the minimum is known, from all bound pods."""
    named = gangs.ref(pod, cluster.gangs.objects)
    if named is None:
        return None
    running = [one for one in bound if not one.terminating and gangs.ref(one, cluster.gangs.objects) == named]
    found = gangs.gang(named, gangs.Members(running), cluster.gangs.objects) if running else None
    if found is None:
        return None
    most = min(cluster.limits.of(one).gang_min for one in running) if len(running) > 1 else 0
    return found.name, min(found.minimum, most), len(running), found.known


def check(cluster: Cluster) -> None:
    """Every column that pods fill is what the slow writer would have written."""
    on: dict[str, list[PodRecord]] = {}
    for pod in cluster.pods.values():
        if pod.node and not pod.finished:
            on.setdefault(pod.node, []).append(pod)
    assert {name: set(there) for name, there in cluster.placements.bound.items()} == {
        name: {pod.uid for pod in there} for name, there in on.items()
    }
    table = cluster.tables.pods
    for name in cluster.nodes:
        row, there = cluster.row(name), on.get(name, [])
        ledger = cluster._nodes.gpus.read(name, there, cluster._pods.placements.settling)
        assert ledger == cluster.gpus.ledgers[name]
        at = cluster.tables.nodes.node(row)
        assert at.used == cluster._pods.amounts.total(map(cluster.amounts, there)) == table.used(row)
        assert (at.sure, at.likely, at.unknown, at.pending) == (
            ledger.sure, ledger.likely, ledger.unknown, ledger.pending,
        )  # fmt: skip
        assert at.parts == (*ledger.parts, *[0] * (16 - len(ledger.parts)))
        assert table.on(row) == sorted(cluster.pod_rows[pod.uid] for pod in there)
    everyone = [pod for there in on.values() for pod in there]
    for pod in everyone:
        found = cluster.gangs.of(pod)
        told = None if found is None else (found.name, found.minimum, found.running, found.known)
        assert told == expected_gang(cluster, pod, everyone)
        assert cluster.budgets.of(pod) == tuple(sorted(
            key for key, one in cluster.budgets.records.items()
            if key[0] == pod.namespace and pod.labels and pod.name not in one.disrupted_pods
            and not one.selector.empty and one.selector.matches(pod.labels)
        ))  # fmt: skip
        if pod.node not in cluster.nodes:
            assert pod.uid not in cluster.pod_rows.uids
            continue
        row = cluster.pod_rows[pod.uid]
        assert table.row(row) == expected_row(cluster, pod)
        gang, budgets, ask = table.marks(row)
        assert cluster.gangs.by_number[gang] == found
        assert cluster.budgets.sets[budgets] == cluster.budgets.of(pod)
        assert cluster.requirements[ask][1:] == (
            cluster.amounts(pod), pod.node_selector, pod.node_terms, pod.tolerations,
        )  # fmt: skip
    names = sorted(cluster.nodes)
    assert [cluster.tables.nodes.node(cluster.row(name)).order for name in names] == list(range(len(names)))
    strays = {pod.uid for pod in everyone if pod.node not in cluster.nodes and not pod.terminating}
    assert {uid for there in cluster.gangs.strays.values() for uid in there} == {
        uid for uid in strays if gangs.ref(cluster.pods[uid], cluster.gangs.objects) is not None
    }


def told(cluster: Cluster) -> object:
    """What does not depend on how it came about, by name."""
    tables, repelling = cluster.tables, cluster.placements.repelling
    bound = [pod for pod in cluster.pods.values() if pod.node in cluster.nodes and not pod.finished]
    return (
        {name: tables.nodes.node(cluster.row(name))._replace(shape=0) for name in cluster.nodes},
        {name: cluster.gpus.ledgers[name] for name in cluster.nodes},
        {
            pod.uid: (
                tables.pods.row(cluster.pod_rows[pod.uid])._replace(node=0),
                pod.node,
                cluster.gangs.of(pod),
                cluster.budgets.of(pod),
            )
            for pod in bound
        },
        {key: dict(there) for key, there in cluster.workloads.siblings.items()},
        {key: dict(there) for key, there in cluster.workloads.gang_pods.items()},
        {key: set(there) for key, there in cluster.workloads.gang_cpu_pods.items()},
        set(cluster.placements.queued),
        waiting(cluster),
        dict(cluster.placements.waiting),
        dict(cluster.placements.nominated),
        (len(repelling), {pod.uid: repelling.nodes(pod, cluster.nodes.keys()) for pod in bound}),
        (len(cluster.requirements), len(cluster.budgets.sets), len(cluster.gangs)),
        cluster.schedulable_gpu_nodes,
        len(cluster.eligibility),
    )


# -- a stream of events ------------------------------------------------------------------------------------------------

LIVES: dict[str, list[JSON]] = {
    # what changes about a pod, by part; each event draws one value of some of the parts
    "labels": [{}, {"app": "a"}, {"app": "b"}, {"app": "a", OURS + "gang": "g"},
               {OURS + "gang": "h", OURS + "gang-min": "2"},
               {OURS + "gang": "h", OURS + "gang-min": "1"}, {"app.kubernetes.io/name": "n"}],
    "annotations": [{}, {OURS + "gpus": "0"}, {OURS + "gpus": "0,1"}, {OURS + "held-gpus": "1"},
                    {OURS + "held-gpus": "2,3"}, {OURS + "protect-for": "1h"},
                    {OURS + "last-checkpoint": rfc3339(WALL)}, {OURS + "restart-seconds": "60"},
                    {OURS + "saves-on-termination": "20s"},
                    {"kueue.x-k8s.io/pod-group-total-count": "3"}],
    "spec": [{}, {"nodeSelector": {"zone": "a"}}, {"tolerations": [{"key": "x", "operator": "Exists"}]},
             {"priorityClassName": "low"}, {"schedulingGroup": {"podGroupName": "pg"}},
             {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                 {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}]}}}],
}  # fmt: skip


class Stream:
    """Draws events, and keeps the latest version of each object."""

    def __init__(self, seed: int, cluster: Cluster) -> None:
        self.rng, self.cluster = random.Random(seed), cluster
        self.objects: dict[tuple[str, str], JSON] = {}
        self.facts: dict[str, JSON] = {}
        self.version = 0

    def event(self) -> Event:
        draw = self.rng.choices(
            [self._pod, self._node, self._budget, self._group, self._gone], weights=[12, 2, 1, 1, 2]
        )[0]
        return draw()

    def _made(self, kind: Any, wire: JSON) -> Event:
        self.version += 1
        wire = json.loads(json.dumps(wire))
        wire["metadata"]["resourceVersion"] = str(self.version)
        self.objects[(kind, wire["metadata"]["name"])] = wire
        return Event(kind, "set", self.read(kind, wire))

    def read(self, kind: Any, wire: JSON) -> Any:
        return decode.record(kind, json.dumps(wire).encode(), self.cluster.gpu_names)

    def _pod(self) -> Event:
        rng = self.rng
        name = f"p{rng.randrange(12)}"
        facts = self.facts.setdefault(name, {"gpus": rng.choice([0, 0, 1, 1, 2, 4]), "phase": "Pending"})
        for part, values in LIVES.items():
            if rng.random() < 0.3:
                facts[part] = rng.choice(values)
        if not facts.get("node") and rng.random() < 0.7:
            facts["node"] = rng.choice(["n0", "n1", "n2", "n3", "elsewhere"])
        elif facts.get("node") and rng.random() < 0.5:
            facts["phase"], facts["start"] = "Running", WALL - 100
        if rng.random() < 0.1:
            facts["terminating"] = WALL + 30
        if rng.random() < 0.05:
            facts["phase"] = rng.choice(["Succeeded", "Failed"])
        if rng.random() < 0.1:
            facts["priority"] = rng.randrange(3)
        if rng.random() < 0.05:
            facts["gpus"] = rng.choice([0, 1, 2])  # resized
        wire = workload(name, **{part: value for part, value in facts.items() if part != "devices"})
        if int(name[1:]) % 3 == 0:
            wire["metadata"]["ownerReferences"] = owned("Job", "batch/v1")
        if facts.get("node") and rng.random() < 0.2:
            devices = [{"resourceID": f"GPU-{gpu}"} for gpu in rng.sample(range(8), facts["gpus"])]
            facts["devices"] = [{"name": "main", "allocatedResourcesStatus": [{"name": GPU, "resources": devices}]}]
        wire["status"]["containerStatuses"] = facts.get("devices", [])
        if not facts.get("node") and rng.random() < 0.6:
            wire["spec"]["schedulingGates"] = [{"name": gate} for gate in rng.choice([(GATE,), (GATE, "x"), ("x",)])]
        return self._made("Pod", wire)

    def _node(self) -> Event:
        rng = self.rng
        name = f"n{rng.randrange(4)}"
        if name == "n3" and rng.random() < 0.7:
            return self._made("Node", machine(name, 16, labels=SHARED, capacity=16))
        stated = json.loads(topology(rng.choice([DGX1V, pairs(8)]))) | {"uuids": [f"GPU-{i}" for i in range(8)]}
        notes = {OURS + "topology": json.dumps(stated)} | ({OURS + "relay": "1"} if rng.random() < 0.3 else {})
        labels = {"zone": rng.choice("ab")} if rng.random() < 0.5 else {}
        gpus = rng.choice([8, 8, 8, 0, 7])  # the device plugin is away, or a GPU has failed
        return self._made("Node", machine(
            name, gpus, capacity=8, labels=labels, annotations=notes, unschedulable=rng.random() < 0.2,
            cpu=rng.choice(["64", "32"]),
        ))  # fmt: skip

    def _budget(self) -> Event:
        rng = self.rng
        return self._made("PodDisruptionBudget", {
            "metadata": {"name": f"b{rng.randrange(3)}", "namespace": "default", "uid": "uid-b"},
            "spec": {"selector": {"matchLabels": {"app": rng.choice("ab")}}},
            "status": {"disruptionsAllowed": 1, "disruptedPods": {"p1": rfc3339(WALL)} if rng.random() < 0.3 else {}},
        })  # fmt: skip

    def _group(self) -> Event:
        rng = self.rng
        kind = rng.choice(["Job", "PodGroup"])
        if kind == "Job":
            return self._made("Group", obj("batch/v1", "Job", "g", {"parallelism": rng.randrange(1, 4)}))
        policy = rng.choice([{"gang": {"minCount": rng.randrange(1, 4)}}, {"basic": {}}])
        return self._made("Group", obj("scheduling.k8s.io/v1alpha2", "PodGroup", "pg", {"schedulingPolicy": policy}))

    def _gone(self) -> Event:
        if not self.objects:
            return self._node()
        kind, name = self.rng.choice(sorted(self.objects))
        wire = self.objects.pop((kind, name))
        if kind == "Pod":
            del self.facts[name]
        return Event(kind, "delete", self.read(kind, wire))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(16))
def test_events_leave_what_a_writer_leaves_that_reads_everything(seed: int) -> None:
    world = World(Settings.model_validate({"claims": {"byPriorityClass": {"low": {"gangMin": 1}}}}))
    cluster, now = world.cluster, world.now
    stream = Stream(seed, cluster)
    for step in range(80):
        cluster.apply([stream.event() for _ in range(stream.rng.choice([1, 1, 1, 5]))], now)
        now += stream.rng.choice([0.0, 1.0, 20.0])
        if step % 7 == 0:
            cluster.tick(now)
        check(cluster)
    assert not cluster.faulted
    now += 1000.0
    cluster.tick(now)  # nothing settles any more, and no plugin is away for a moment
    check(cluster)
    fresh = Cluster(cluster.settings)
    fresh.apply([Event(kind, "set", stream.read(kind, wire)) for (kind, _), wire in stream.objects.items()], 0.0)  # type: ignore[arg-type]
    fresh.tick(1000.0)
    check(fresh)
    assert told(cluster) == told(fresh)


@pytest.mark.parametrize("seed", range(8))
def test_so_do_events_over_which_parts_of_the_writer_fail(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part fails now and then. What it failed over is given again, as a list gives it: no fault leaves a trace."""
    rng, failing = random.Random(seed), True

    def fragile(owner: Any, name: str) -> None:
        right = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if failing and rng.random() < 0.03:
                raise RuntimeError(name)
            return right(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    world = World()
    cluster, pods = world.cluster, world.cluster._pods
    for owner, name in (
        (gangs, "ref"), (gangs, "gang"), (pods.limits, "protected_ms"), (pods.amounts, "of"), (pods.budgets, "add"),
        (pods.requirements, "add"), (cluster._nodes.gpus, "read"), (pods.workloads, "add"),
    ):  # fmt: skip
        fragile(owner, name)
    stream = Stream(seed, cluster)
    for _ in range(100):
        cluster.apply([stream.event()], 0.0)
        for name in cluster.nodes:  # the sums are those of the rows, whatever has failed
            row = cluster.row(name)
            rows = [cluster.tables.pods.row(at).amounts for at in cluster.tables.pods.on(row)]
            assert cluster.tables.nodes.used_of(row) == tuple(map(sum, zip((0,) * 6, *rows, strict=True)))
    assert cluster.faulted
    failing = False
    again: list[Event] = []
    for (kind, _), wire in stream.objects.items():
        record = stream.read(kind, wire)
        again += [Event(kind, "delete", record), Event(kind, "set", record)]  # type: ignore[arg-type]
    cluster.apply(again, 0.0)
    check(cluster)
    cluster.tick(1000.0)
    fresh = Cluster(cluster.settings)
    fresh.apply([Event(kind, "set", stream.read(kind, wire)) for (kind, _), wire in stream.objects.items()], 0.0)  # type: ignore[arg-type]
    fresh.tick(1000.0)
    assert told(cluster) == told(fresh)


def test_a_row_that_is_written_at_the_second_try_has_the_gpus_of_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is not read again: the row that was written in place of the failed one has what it says of the pod."""
    world = World()
    world.node("n", 8)
    with monkeypatch.context() as patch:
        patch.setattr(world.cluster._pods.limits, "protected_ms", lambda pod: 1 / 0)
        world.pod("p", 2, "n", held=(0, 1))
    world.pod("p", 2, "n", held=(0, 1))
    check(world.cluster)
