"""All kubelets of the simulated cluster: they alone decide which GPUs a pod really gets.

Nothing runs by itself: `sync` does what is due now. A pod that is bound is admitted, gets GPUs from the model of the
device plugin and runs; what it holds is written as kubelet 1.36 and later write it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from extender.sim.allocation import NodeDevices, RealDevices, Refused, container_statuses
from extender.sim.cluster import FINISHED, SimCluster
from extender.sim.machines import GPU, Machine, gpu_uuids
from extender.sim.truth import Truth

Object = dict[str, Any]


class Kubelets:
    """`truth`: which pod holds which GPU."""

    def __init__(self, cluster: SimCluster, seed: int = 0) -> None:
        self.truth = Truth(seed, cluster.clock.monotonic)
        self._cluster = cluster
        self._machines: dict[str, Machine] = {}
        self._devices: dict[str, NodeDevices] = {}
        self._admitted: set[str] = set()

    def add(self, node: str, machine: Machine, driver: RealDevices | None = None) -> None:
        """This node's GPUs are handed out by us from now on. `driver`: what does it instead of a device plugin."""
        self._machines[node] = machine
        made = NodeDevices(node, GPU, machine.plugin(), gpu_uuids(node, machine), [True] * machine.gpus, real=driver)
        self._devices[node] = made
        self.truth.add_node(made)

    @property
    def machines(self) -> Mapping[str, Machine]:
        """The machine of each node."""
        return dict(self._machines)

    def sync(self) -> None:
        """Admit what is bound; remove what was deleted and whose grace has passed."""
        for pod in self._cluster.pods():
            uid, node = str(pod["metadata"]["uid"]), pod["spec"].get("nodeName")
            if not node or node not in self._devices or pod["status"].get("phase") in FINISHED:
                continue
            deadline = pod["metadata"].get("deletionTimestamp")
            if deadline is not None:
                if datetime.fromisoformat(deadline) <= self._cluster.clock.now():
                    self.truth.release(uid, "terminated")
                    self._cluster.remove(uid)
            elif uid not in self._admitted:
                self._admit(pod, uid, self._devices[node])

    def finish(self, uid: str) -> None:
        """The pod's work is done: its GPUs are free before its status says so."""
        self.truth.release(uid, "succeeded")
        self._cluster.set_status(uid, phase="Succeeded")

    def _admit(self, pod: Object, uid: str, node: NodeDevices) -> None:
        self._admitted.add(uid)
        try:
            taken = self.truth.admit(pod)
        except Refused as refused:
            self._cluster.set_status(uid, phase="Failed", reason="UnexpectedAdmissionError", message=str(refused))
            return
        of_plugin = taken if node.real is None else {}  # the devices of a driver are in the status of its claims
        statuses = container_statuses(pod, node, of_plugin, {"running": {}})
        self._cluster.set_status(uid, phase="Running", startTime=self._cluster.clock.text(), containerStatuses=statuses)
