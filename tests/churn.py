"""Pods come and go, each with names, labels and amounts that no other has: what does the process keep of them?

    python -m tests.churn PODS [WARM]

Prints one JSON object: the memory (RSS, MiB) before and after PODS pods, and how many pods and nodes exist then.
WARM pods come first, so that what is bounded by a number or a time is full. A second passes for each pod.

Each pod is created, asked about, bound, updated and deleted. Among them: gangs with objects of their own, budgets,
preemptors with their reservations, pods that fail, node names that nobody has, nodes that come and go with labels,
taints and GPU graphs of their own.
"""

from __future__ import annotations

import gc
import json
import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from extender.kube.reflector import Feed
from extender.kube.watching import WatchPace
from extender.objects import decode
from extender.objects.records import Event, Kind, Record
from extender.settings import Settings
from tests.world import JSON, World, machine, pairs, rfc3339, workload

NODES, RESIDENTS, LIVING = 60, 400, 40  # nodes and pods that stay; pods that exist at the same time besides
GROUP = ("scheduling.x-k8s.io", "PodGroup")
DECISIONS = {"max_bytes": 2**20}


class Churn:
    """A world whose objects come by feeds, as from watches."""

    def __init__(self) -> None:
        self.world = World(Settings.model_validate({"decisions": DECISIONS, "topology_levels": ["rack"]}))
        self._feeds: dict[Kind, Feed] = {}
        self._living: deque[tuple[int, JSON]] = deque()
        self._number = 0
        for index in range(NODES):
            self.put("Node", machine(f"node-{index}", links=pairs(), labels={"rack": f"r{index % 4}"}))
        for index in range(RESIDENTS):
            node = f"node-{index % NODES}"
            self.put("Pod", workload(f"resident-{index}", int(index < 2 * NODES), node=node, priority=5, cpu="100m"))

    # -- what the feeds' sink is

    def apply(self, batch: Any) -> None:
        """The cluster, as `Watches` gives it a batch."""
        self.world.cluster.apply(batch, self.world.now, self.world.wall)

    def synced(self, kind: str) -> None: ...

    def absent(self, kind: str) -> None: ...

    def returned(self) -> None: ...

    def _given(self, kind: Kind, events: Iterable[Event | None]) -> None:
        self.apply([event for event in events if event is not None])

    def _feed(self, kind: Kind) -> Feed:
        if kind not in self._feeds:
            self._feeds[kind] = Feed(kind, self, WatchPace(), lambda: 0.0, print)
        return self._feeds[kind]

    def _record(self, kind: Kind, wire: JSON) -> Record:
        group = GROUP if kind == "Group" else None
        return decode.record(kind, json.dumps(wire).encode(), self.world.cluster.gpu_names, group)

    def put(self, kind: Kind, wire: JSON) -> JSON:
        """The watch brings an object."""
        self._given(kind, self._feed(kind).changed(self._record(kind, wire)))
        return wire

    def delete(self, kind: Kind, wire: JSON) -> None:
        """The watch reports a deletion."""
        found = self._record(kind, wire)
        self._given(kind, self._feed(kind).deleted((getattr(found, "namespace", ""), found.name), found))

    # -- one pod

    def step(self) -> None:
        """One pod comes, and the oldest goes."""
        world, i = self.world, self._number
        self._number += 1
        world.now += 1.0
        world.wall += 1.0
        node = f"node-{i % NODES}"
        pod = self.put("Pod", self._pod(i, ""))
        names = [node, f"node-{(i + 1) % NODES}", f"unknown-{i}"]
        if i % 4 == 0:
            world.filter(pod, names)
        if i % 8 == 0:
            world.prioritize(pod, names[:2])
        if i % 50 == 0:
            self._preempt(i, node)
        bound = self.put("Pod", self._pod(i, node))
        self.put("Pod", self._pod(i, node, "Running", start=rfc3339(world.wall)))
        self._beside(i, self.put)
        self._living.append((i, bound))
        if len(self._living) > LIVING:
            number, oldest = self._living.popleft()
            if number % 25 == 0:
                self.put("FailedPod", self._pod(number, f"node-{number % NODES}", "Failed"))
                self.delete("FailedPod", oldest)
            self.delete("Pod", oldest)
            self._beside(number, self.delete)

    def _pod(self, i: int, node: str, phase: str = "Pending", **status: str) -> JSON:
        space = f"space-{i}"
        made = workload(
            f"pod-{i}", i % 3, node=node, phase=phase, namespace=space, priority=i % 7, cpu=f"{100 + i}m",
            memory=f"{1000 + i}Ki", labels={f"label-{i}": f"value-{i}", "gpu-extender.io/gang": f"gang-{i // 3}"},
            links="required" if i % 5 == 0 else "", annotations={"gpu-extender.io/restart-seconds": str(i)},
            spec={
                "schedulerName": f"scheduler-{i}",
                "priorityClassName": f"class-{i}",
                "nodeSelector": {f"select-{i}": f"value-{i}"} if i % 11 == 0 else {},
                "tolerations": [{"key": f"taint-{i}", "operator": "Exists"}],
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": f"topology-{i}", "labelSelector": {"matchLabels": {f"near-{i}": "x"}}}
                ]}} if i % 13 == 0 else {},
            },
        )  # fmt: skip
        made["spec"]["containers"][0]["image"] = f"registry/image:{i}"
        made["metadata"]["ownerReferences"] = [
            {"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{i}", "uid": f"uid-job-{i}", "controller": True}
        ]
        made["metadata"]["creationTimestamp"] = rfc3339(self.world.wall)
        made["status"].update(status)
        return made

    def _beside(self, i: int, change: Any) -> None:
        meta = {"namespace": f"space-{i}", "uid": f"uid-beside-{i}"}
        if i % 5 == 0:
            change("PodDisruptionBudget", {
                "metadata": {**meta, "name": f"budget-{i}"}, "status": {"disruptionsAllowed": 1},
                "spec": {"selector": {"matchLabels": {f"label-{i}": f"value-{i}"}}},
            })  # fmt: skip
        if i % 6 == 0:
            change("Group", {"metadata": {**meta, "name": f"gang-{i}"}, "spec": {"minMember": 2}})
        if i % 40 == 0:
            links = pairs()
            links[0][7] = links[7][0] = 1 + i // 40 % 5
            node = machine(f"guest-{i}", links=links, labels={f"node-label-{i}": f"v-{i}", "rack": f"rack-{i}"})
            node["spec"]["taints"] = [{"key": f"taint-{i}", "effect": "NoSchedule"}]
            change("Node", node)

    def _preempt(self, i: int, node: str) -> None:
        wanted = self.put("Pod", workload(f"urgent-{i}", 8, priority=100, namespace=f"space-{i}"))
        there = [pod.name for pod in self.world.cluster.pods_on(node) if pod.gpus]
        self.world.preempt(wanted, {node: there})
        self.delete("Pod", wanted)


def rss() -> float:
    """MiB in memory."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


def main(pods: int, warm: int) -> dict[str, Any]:
    """The figures of one run."""
    churn = Churn()
    for _ in range(warm):
        churn.step()
    before = rss()
    for _ in range(pods):
        churn.step()
    cluster = churn.world.cluster
    return {
        "pods": pods,
        "before": round(before, 1),
        "after": round(rss(), 1),
        "growth": round(rss() / before - 1.0, 4),
        "known_pods": len(cluster.pods),
        "known_nodes": len(cluster.nodes),
    }


if __name__ == "__main__":
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5_000)))
