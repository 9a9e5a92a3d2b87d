"""Which jobs each rule evicts for an urgent one, for `benchmarks/preemption_saving.py`.

`stock` and `kueue` are written from their published descriptions; `ours` is the product's own search; `oracle` knows
how each victim will answer and when it would end by itself. None knows which jobs are yet to come.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from benchmarks.preemption_rules import node_name
from benchmarks.saving_sim import NODE_GPUS, Choice, Cluster, Job, Running, Watcher
from extender.act.saving import SaveHistory
from extender.preemption.gang_plan import GangSearch
from extender.queue.eviction_plan import EvictionPlan, EvictionPlanner
from extender.queue.placement import JointPlacement
from extender.queue.plan import Planner
from extender.settings import Settings
from extender.sim.in_tree import preference, taken_back
from extender.times import Clock
from tests.act.queue.rig import gated
from tests.world import JSON, WALL, World, rfc3339, workload

PREFIX = "gpu-extender.io/"


def owner(job: Job) -> JSON:
    """What creates the pods of a job again."""
    return {"apiVersion": "example.com/v1", "kind": "Training", "name": f"job-{job.id}", "uid": f"job-{job.id}",
            "controller": True}  # fmt: skip


CLASS = {"priorityClassName": "urgent"}
Victims = dict[int, Running]  # by the job's id


def on_nodes(cluster: Cluster, beside: Victims) -> list[list[Running]]:
    """The jobs that may be evicted besides these, by node."""
    held: list[list[Running]] = [[] for _ in range(cluster.nodes)]
    for running in cluster.victims():
        if running.job.id not in beside:
            for node in running.seats:
                held[node].append(running)
    return held


def without(cluster: Cluster, victims: Iterable[Running]) -> list[int]:
    """Free GPUs by node when these have left."""
    free = list(cluster.free)
    for victim in victims:
        for node, gpus in victim.seats.items():
            free[node] += gpus
    return free


# ---- kube-scheduler


def importance(running: Running) -> tuple[int, float, int]:
    """The most important first: higher priority, then older."""
    return (-running.job.priority, running.started, running.job.id)


def stock(cluster: Cluster, job: Job) -> Choice | None:
    """Pod by pod. On a node its pods of lower priority are taken back, the most important first, while the pod still
    fits; of the nodes that with the lowest highest priority, then sum of priorities, number, and latest start. A gang
    that loses a pod leaves all its nodes."""
    victims: Victims = {}
    seats: dict[int, int] = {}
    for _ in range(job.pods):
        free, held = without(cluster, victims.values()), on_nodes(cluster, victims)
        best: tuple[tuple[float, ...], int, list[Running]] | None = None
        for node in range(cluster.nodes):
            if node in seats:
                continue
            if (evicted := _taken_back(held[node], node, free[node], job.pod_gpus)) is None:
                continue
            key = preference([(pod.job.priority, pod.started) for pod in evicted]) if evicted else ()
            if best is None or key < best[0]:
                best = key, node, evicted
        if best is None:
            return None
        seats[best[1]] = job.pod_gpus
        victims |= {victim.job.id: victim for victim in best[2]}
    return Choice(seats, list(victims))


def _taken_back(pods: list[Running], node: int, free: int, wanted: int) -> list[Running] | None:
    """kube-scheduler's victims on one node; None: all of them are not enough."""
    free += sum(pod.seats[node] for pod in pods)
    if free < wanted:
        return None

    def stays(pod: Running) -> bool:
        nonlocal free
        if free - pod.seats[node] < wanted:
            return False
        free -= pod.seats[node]
        return True

    return taken_back(sorted(pods, key=importance), [False] * len(pods), stays)[0]


# ---- Kueue


def kueue(cluster: Cluster, job: Job) -> Choice | None:
    """Whole jobs, lowest priority and most recent first, until the job has a place; then those that are not needed are
    taken back, the last one first."""
    candidates = sorted(cluster.victims(), key=lambda running: (running.job.priority, -running.started, running.job.id))
    victims: Victims = {}
    for running in candidates:
        victims[running.job.id] = running
        if cluster.place(job, without(cluster, victims.values())) is not None:
            break
    else:
        return None
    for number in list(reversed(victims))[1:]:
        rest = [victim for victim in victims.values() if victim.job.id != number]
        if cluster.place(job, without(cluster, rest)) is not None:
            del victims[number]
    seats = cluster.place(job, without(cluster, victims.values()))
    assert seats is not None
    return Choice(seats, list(victims))


# ---- the oracle


def oracle(cluster: Cluster, job: Job) -> Choice | None:
    """What loses the fewest GPU-seconds, whatever the priorities, by what each victim will really do. The cheapest set
    of one node is exact; a gang's nodes are taken one after the other."""
    victims: Victims = {}
    seats: dict[int, int] = {}
    for _ in range(job.pods):
        free, held = without(cluster, victims.values()), on_nodes(cluster, victims)
        best: tuple[float, int, list[Running]] | None = None
        for node in range(cluster.nodes):
            if node not in seats:
                priced = [(really_lost(cluster, pod), pod.seats[node], pod) for pod in held[node]]
                found = _cheapest(priced, job.pod_gpus - free[node])
                if found is not None and (best is None or found[0] < best[0]):
                    best = found[0], node, found[1]
        if best is None:
            return None
        seats[best[1]] = job.pod_gpus
        victims |= {victim.job.id: victim for victim in best[2]}
    return Choice(seats, list(victims))


def really_lost(cluster: Cluster, running: Running) -> float:
    """GPU-seconds that its eviction will lose, if it is asked where it can be."""
    job = running.job
    if not 0 < job.stated <= cluster.asks:
        return running.lost(cluster.now, running.kept(cluster.now))
    leaves = cluster.now + min(job.save, job.stated)
    if running.ends <= leaves:
        return 0.0
    return (
        job.total * (job.save + job.restart) if job.save <= job.stated else running.lost(leaves, running.kept(leaves))
    )


def _cheapest(priced: list[tuple[float, int, Running]], lacking: int) -> tuple[float, list[Running]] | None:
    """The cheapest pods of a node that free so many GPUs."""
    best: dict[int, tuple[float, list[Running]]] = {0: (0.0, [])}
    for cost, gpus, pod in priced:
        for freed, (before, pods) in list(best.items()):
            more = min(freed + gpus, max(lacking, 0))
            if more not in best or before + cost < best[more][0]:
                best[more] = before + cost, [*pods, pod]
    return best.get(max(lacking, 0))


# ---- ours


class Ours(Watcher):
    """The product over the same cluster: preempt's search for a pod, the queue's for a gang. `asks`: seconds that a
    victim has to save when it is asked, 0 = the price does not count it."""

    def __init__(self, nodes: int, asks: float) -> None:
        preemption: dict[str, Any] = {"mostWaitSeconds": {CLASS["priorityClassName"]: int(asks)}} if asks else {}
        evictions = {"enabled": asks > 0}
        settings = Settings.model_validate(
            {"decisions": {"maxBytes": 0}, "preemption": preemption, "evictions": evictions}
        )
        self.asks, self.world = asks, World(settings)
        for node in range(nodes):
            self.world.node(node_name(node), NODE_GPUS, cpu="1000", memory="8000Gi")
        self._pods: dict[int, list[JSON]] = {}
        self._stated: dict[int, float] = {}
        self._began: dict[int, Running] = {}
        cluster, verbs = self.world.cluster, self.world.verbs
        placement = JointPlacement(cluster, verbs.policy)
        self._planner = Planner(cluster, verbs.claims, placement, lambda: self.world.now, lambda: self.world.wall)
        search = GangSearch(cluster, verbs.policy, settings.preemption)
        self._history = SaveHistory(cluster, Clock(lambda: self.world.now, lambda: self.world.wall))
        self._plans = EvictionPlanner(
            cluster, verbs.claims, placement, search, lambda: self.world.now, lambda: self.world.wall
        )

    def began(self, running: Running) -> None:
        self._began[running.job.id] = running
        self._set(running, running.started)

    def ended(self, running: Running) -> None:
        for pod in self._pods.pop(running.job.id, []):
            self.world.drop("Pod", pod)
        self._began.pop(running.job.id, None)
        self._stated.pop(running.job.id, None)

    def answered(self, running: Running, now: float, *, saved: bool) -> None:
        self.world.now, self.world.wall = 1000.0 + now, WALL + now
        self._history.note("default", f"Training/job-{running.job.id}", self.world.wall, saved=saved)

    def _set(self, running: Running, saved: float) -> None:
        """Its pods, with the time of the last checkpoint as they state it."""
        job = running.job
        notes = {f"{PREFIX}restart-seconds": str(int(job.restart))}
        if saved > running.started:
            notes[f"{PREFIX}last-checkpoint"] = rfc3339(WALL + saved)
        if job.stated and self.asks:
            notes[f"{PREFIX}saves-on-request"] = f"{int(job.stated)}s"
        if job.pods > 1:
            notes |= {f"{PREFIX}gang": f"job-{job.id}", f"{PREFIX}gang-min": str(job.pods)}
        self._stated[job.id] = saved
        self._pods[job.id] = []
        for i, (node, gpus) in enumerate(running.seats.items()):
            pod = workload(
                f"{job.id}-{running.attempt}-{i}",
                gpus,
                node=node_name(node),
                phase="Running",
                priority=job.priority,
                start=WALL + running.started,
                annotations=notes,
            )
            pod["metadata"]["ownerReferences"] = [owner(job)]
            self._pods[job.id].append(self.world.set("Pod", pod))

    def choose(self, cluster: Cluster, job: Job) -> Choice | None:
        """The rule."""
        self.world.now, self.world.wall = 1000.0 + cluster.now, WALL + cluster.now
        self._history.refresh()
        for running in cluster.victims():
            saved = running.checkpoint(cluster.now)
            if saved != self._stated.get(running.job.id):
                self._set(running, saved)
        return self._gang(job) if job.pods > 1 else self._pod(cluster, job)

    def _pod(self, cluster: Cluster, job: Job) -> Choice | None:
        held = on_nodes(cluster, {})
        offered = {}
        for node, pods in enumerate(held):
            evicted = _taken_back(pods, node, cluster.free[node], job.pod_gpus)
            if evicted:
                uids = [{"UID": pod["metadata"]["uid"]} for victim in evicted for pod in self._on(victim, node)]
                offered[node_name(node)] = {"Pods": uids, "NumPDBViolations": 0}
        pod = workload(f"urgent-{job.id}", job.pod_gpus, priority=job.priority, spec=CLASS)
        verbs, uid = self.world.verbs, pod["metadata"]["uid"]
        body = orjson.dumps({"Pod": pod, "NodeNameToMetaVictims": offered})
        verbs.preempt.answer(body, self.world.now, self.world.wall)
        plan = verbs.reservations.of(uid, self.world.now)  # also where the victims are asked first
        verbs.reservations.drop(uid)
        if plan is None:
            return None
        jobs = {int(victim.removeprefix("uid-").split("-")[0]) for victim in plan.victims}
        return Choice({int(plan.node.removeprefix("node-")): job.pod_gpus}, sorted(jobs), self._asks)

    def _asks(self, number: int) -> bool:
        """Whether the job's word counts: its pods are there until they are chosen."""
        limits, pods = self.world.cluster.limits, self.world.cluster.pods
        return limits.saving(pods[self._pods[number][0]["metadata"]["uid"]]).when_asked >= 0

    def _on(self, running: Running, node: int) -> list[JSON]:
        return [pod for pod in self._pods[running.job.id] if pod["spec"]["nodeName"] == node_name(node)]

    def _gang(self, job: Job) -> Choice | None:
        pods = [self.world.set("Pod", self._urgent(job, i)) for i in range(job.pods)]
        plan = self._planned()
        for pod in pods:
            self.world.drop("Pod", pod)
        if plan is None:
            return None
        seats: dict[int, int] = {}
        for seat in plan.seats:
            seats[int(seat.node.removeprefix("node-"))] = job.pod_gpus
        return Choice(seats, sorted({int(victim.name.split("-")[0]) for victim in plan.victims}), self._asks)

    @staticmethod
    def _urgent(job: Job, number: int) -> JSON:
        notes = {f"{PREFIX}gang": f"urgent-{job.id}", f"{PREFIX}gang-size": str(job.pods)}
        pod = gated(f"urgent-{job.id}-{number}", job.pod_gpus, annotations=notes, priority=job.priority)
        pod["spec"] |= CLASS
        return pod

    def _planned(self) -> EvictionPlan | None:
        for _ in self._planner.looks({}):
            pass
        assert self._planner.head is not None
        steps = self._plans.steps(self._planner.head)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value if isinstance(end.value, EvictionPlan) else None
