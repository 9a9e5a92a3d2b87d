"""All kubelets of the simulated cluster: they alone decide which GPUs a pod really gets.

Nothing runs by itself: `sync` does what is due now. A pod that is bound is admitted, gets GPUs from the model of the
device plugin and runs; what it holds is written as kubelet 1.36 and later write it. Init containers are not modelled.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from extender.sim.cluster import FINISHED, SimCluster, full_name
from extender.sim.device_plugin import DevicePlugin, PluginPanicked
from extender.sim.machines import GPU, Machine, gpu_uuid

Object = dict[str, Any]


@dataclass
class _Node:
    machine: Machine
    plugin: DevicePlugin
    holder: dict[int, str]


class Kubelets:
    """The truth. `refused`: (pod, reason) of those that were bound and not admitted: none, in a sound cluster."""

    def __init__(self, cluster: SimCluster, seed: int = 0) -> None:
        self.refused: list[tuple[str, str]] = []
        self._cluster = cluster
        self._rng = random.Random(seed)
        self._nodes: dict[str, _Node] = {}
        self._admitted: set[str] = set()

    def add(self, node: str, machine: Machine) -> None:
        """This node's GPUs are handed out by us from now on."""
        self._nodes[node] = _Node(machine, machine.plugin(), {})

    # ---- the truth

    @property
    def machines(self) -> Mapping[str, Machine]:
        return {name: node.machine for name, node in self._nodes.items()}

    def holders(self, node: str) -> dict[int, str]:
        """GPU -> uid of the pod that holds it."""
        return dict(sorted(self._nodes[node].holder.items()))

    def free(self, node: str) -> frozenset[int]:
        """The GPUs that nobody holds."""
        found = self._nodes[node]
        return frozenset(range(found.machine.gpus)) - found.holder.keys()

    def gpus_of(self, uid: str) -> frozenset[int]:
        """What a pod holds now."""
        return frozenset(gpu for node in self._nodes.values() for gpu, holder in node.holder.items() if holder == uid)

    # ---- what happens

    def sync(self) -> None:
        """Admit what is bound; remove what was deleted and whose grace has passed."""
        for pod in self._cluster.pods():
            uid, node = str(pod["metadata"]["uid"]), pod["spec"].get("nodeName")
            if not node or node not in self._nodes or pod["status"].get("phase") in FINISHED:
                continue
            deadline = pod["metadata"].get("deletionTimestamp")
            if deadline is not None:
                if datetime.fromisoformat(deadline) <= self._cluster.clock.now():
                    self._release(uid)
                    self._cluster.remove(uid)
            elif uid not in self._admitted:
                self._admit(pod, uid, self._nodes[node])

    def finish(self, uid: str) -> None:
        """The pod's work is done: its GPUs are free before anybody hears of it."""
        self._release(uid)
        self._cluster.set_status(uid, phase="Succeeded")

    def _release(self, uid: str) -> None:
        for node in self._nodes.values():
            node.holder = {gpu: holder for gpu, holder in node.holder.items() if holder != uid}

    def _admit(self, pod: Object, uid: str, node: _Node) -> None:
        self._admitted.add(uid)
        name = pod["spec"]["nodeName"]
        free = self.free(name)
        taken: dict[str, frozenset[int]] = {}
        for container in pod["spec"]["containers"]:
            wanted = int(container.get("resources", {}).get("limits", {}).get(GPU, 0))
            if not wanted:
                continue
            if wanted > len(free):
                self._refuse(pod, uid, f"Requested: {wanted}, Available: {len(free)}")
                return
            try:
                taken[container["name"]] = node.plugin.choose(free, wanted, self._rng)
            except PluginPanicked as panic:
                self._refuse(pod, uid, str(panic))
                return
            free -= taken[container["name"]]
        for gpus in taken.values():
            node.holder.update(dict.fromkeys(gpus, uid))
        statuses = []
        for container in pod["spec"]["containers"]:
            status: Object = {"name": container["name"], "ready": True, "state": {"running": {}}}
            if gpus := taken.get(container["name"], frozenset()):
                held = [{"resourceID": gpu_uuid(name, gpu), "health": "Healthy"} for gpu in sorted(gpus)]
                status["allocatedResourcesStatus"] = [{"name": GPU, "resources": held}]
            statuses.append(status)
        self._cluster.set_status(uid, phase="Running", startTime=self._cluster.clock.text(), containerStatuses=statuses)

    def _refuse(self, pod: Object, uid: str, reason: str) -> None:
        self.refused.append((full_name(pod), reason))
        self._cluster.set_status(uid, phase="Failed", reason="UnexpectedAdmissionError", message=reason)
