"""Pods that come and end after the day, on a rack of their own, so that the page of the demo lives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from extender.sim.calls import Extender
from extender.sim.cluster import SimCluster
from extender.sim.day import RACK, DayServer
from extender.sim.kubelet import Kubelets
from extender.sim.machines import SimNode, SimPod, machine
from extender.sim.scheduler import Scheduler

NODES: Final = ("batch-1", "batch-2")
MACHINE: Final = "dgx-h100"
OWN: Final = {"key": "team", "value": "batch", "effect": "NoSchedule"}
"""Keeps the pods of the day away: what the day has shown stays as it is."""
TOLERATED: Final = ({"key": "team", "operator": "Exists"},)
SIZES: Final = (1, 1, 2, 2, 4, 8)
MOST_WAITING: Final = 2
NAMESPACE: Final = "batch"


class Traffic:
    """The same pods in the same order for a seed. Not for use from several threads."""

    def __init__(
        self, cluster: SimCluster, kubelets: Kubelets, extender: Extender, server: DayServer, seed: int
    ) -> None:
        """Adds the nodes."""
        self._cluster, self._kubelets = cluster, kubelets
        self._scheduler = Scheduler(cluster, extender, seed=seed, settle=server.settle, bound=kubelets.sync)
        self._random = random.Random(seed)
        self._number = 0
        self._pods: list[str] = []  # uids, the oldest first
        for name in NODES:
            cluster.add_node(SimNode(name, machine(MACHINE), labels={RACK: "rack-4"}, taints=[OWN]).object())
            kubelets.add(name, machine(MACHINE))
            kubelets.relay(name)

    def step(self) -> None:
        """One pod comes, or one ends; then each pod that waits is tried."""
        running, waiting = list(self._of(placed=True)), list(self._of(placed=False))
        free = sum(len(self._kubelets.truth.free(name)) for name in NODES) / (len(NODES) * machine(MACHINE).gpus)
        if running and (len(waiting) >= MOST_WAITING or self._random.random() > free + 0.2):
            self._end(self._random.choice(running))
        else:
            waiting.append(self._come())
        self._scheduler.run(waiting)

    def _come(self) -> str:
        self._number += 1
        size = self._random.choice(SIZES)
        pod = SimPod(
            f"job-{self._number}", NAMESPACE, size, links="required" if size > 1 else "", preempts=False,
            tolerations=TOLERATED, node_selector={RACK: "rack-4"},
        )  # fmt: skip
        self._pods.append(self._cluster.create(pod.object()))
        return self._pods[-1]

    def _end(self, uid: str) -> None:
        self._kubelets.finish(uid)
        self._cluster.remove(uid)
        self._pods.remove(uid)

    def _of(self, *, placed: bool) -> Iterator[str]:
        """Its pods that have a node, or that have none."""
        for uid in self._pods:
            pod = self._cluster.pod(uid)
            if pod is not None and bool(pod["spec"].get("nodeName")) == placed:
                yield uid
