"""All kubelets of the simulated cluster: they alone decide which GPUs a pod really gets.

Nothing runs by itself: `sync` does what is due now. A pod that is bound is admitted, gets GPUs from the model of the
device plugin and runs; what it holds is written as kubelet 1.36 and later write it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from extender.sim.cluster import FINISHED, SimCluster
from extender.sim.machines import GPU, PluginPanicked, SimDevicePlugin, SimMachine, gpu_uuids
from extender.topologies.annotation import RELAY

Object = dict[str, Any]


class Kubelets:
    """`truth`: which pod holds which GPU."""

    def __init__(self, cluster: SimCluster, seed: int = 0) -> None:
        self.truth = Truth(seed, cluster.clock.monotonic)
        self._cluster = cluster
        self._machines: dict[str, SimMachine] = {}
        self._devices: dict[str, KubeletDevices] = {}
        self._admitted: set[str] = set()

    def add(self, node: str, machine: SimMachine, driver: RealDevices | None = None) -> None:
        """This node's GPUs are handed out by us from now on. `driver`: what does it instead of a device plugin."""
        self._machines[node] = machine
        devices = KubeletDevices(
            node, GPU, machine.plugin(), gpu_uuids(node, machine), [True] * machine.gpus, real=driver
        )
        self._devices[node] = devices
        self.truth.add_node(devices)

    def relay(self, node: str) -> None:
        """From now on a relay makes the node's device plugin hand out what is planned."""
        self._devices[node].obeys_plan = True
        self._cluster.annotate_node(node, RELAY, "1")

    def is_relayed(self, node: str) -> bool:
        """Whether what is planned there is what is handed out."""
        return self._devices[node].obeys_plan

    @property
    def machines(self) -> Mapping[str, SimMachine]:
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
                    self.terminate(uid)
            elif uid not in self._admitted:
                self._admit(pod, uid, self._devices[node])

    def terminate(self, uid: str) -> None:
        """The containers of a pod that was deleted end now, before their grace has passed."""
        self.truth.release(uid, "terminated")
        self._cluster.remove(uid)

    def finish(self, uid: str) -> None:
        """The pod's work is done: its GPUs are free before its status states it."""
        self.truth.release(uid, "succeeded")
        self._cluster.set_status(uid, phase="Succeeded")

    def _admit(self, pod: Object, uid: str, node: KubeletDevices) -> None:
        self._admitted.add(uid)
        try:
            taken = self.truth.admit(pod)
        except AdmissionRejected as refused:
            self._cluster.set_status(uid, phase="Failed", reason="UnexpectedAdmissionError", message=str(refused))
            return
        of_plugin = taken if node.real is None else {}  # the devices of a driver are in the status of its claims
        statuses = container_statuses(pod, node, of_plugin, {"running": {}})
        self._cluster.set_status(uid, phase="Running", startTime=self._cluster.clock.text(), containerStatuses=statuses)


# -- how kubelet's device manager hands out the GPUs of one node, container by container, and how it reports them
#
# It knows nothing of the API and does no I/O.


class Preference(Protocol):
    """What answers kubelet before the device plugin does."""

    def __call__(
        self, pod: Object, container: str, size: int, must_include: frozenset[int], available: frozenset[int]
    ) -> frozenset[int] | None:
        """`size` GPUs out of `available`, all of `must_include` among them; None leaves it to the plugin."""
        ...


class RealDevices(Protocol):
    """What hands out devices instead of a device plugin of ours: kubelet's own device manager, or a DRA driver."""

    def admit(self, pod: Object) -> dict[str, frozenset[int]]:
        """Container -> GPUs; raises Refused."""
        ...

    def remove(self, uid: str) -> None:
        """The pod has ended."""
        ...


class AdmissionRejected(Exception):
    """Kubelet does not admit the pod; the message is what its status will say."""


@dataclass
class KubeletDevices:
    """The GPUs of one node as kubelet's device manager sees them."""

    name: str
    resource: str
    plugin: SimDevicePlugin
    uuids: list[str]
    healthy: list[bool]
    # True: a plugin that obeys the plan on the pod or fails; pods without one get its own choice.
    obeys_plan: bool = False
    # What stands between kubelet and the plugin, as our relay does.
    prefers: Preference | None = None
    # What decides instead of all that.
    real: RealDevices | None = None
    holder: dict[int, str] = field(default_factory=dict)

    def free(self) -> frozenset[int]:
        """The healthy GPUs that no pod holds."""
        gpus = range(len(self.uuids))
        return frozenset(gpu for gpu in gpus if self.healthy[gpu] and gpu not in self.holder)


class NotAllocated(Exception):
    """`reason`: one word for the log; `message`: for the pod's status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def allocate(
    pod: Object, node: KubeletDevices, rng: random.Random, plan: Mapping[str, frozenset[int]] | None = None
) -> dict[str, frozenset[int]]:
    """Container -> GPUs, as kubelet's device manager goes about it; the node is not changed.

    Init containers come first. What a finished one held is offered to the containers after it; what a
    sidecar (an init container that restarts) or a container holds is not. All of it stays with the pod
    until the pod ends, so a large init container keeps its GPUs from others for the pod's whole life.
    """
    spec = pod["spec"]
    free = set(node.free())
    reusable: set[int] = set()
    taken: dict[str, frozenset[int]] = {}
    steps = [(c, c.get("restartPolicy") != "Always") for c in spec.get("initContainers", ())]
    steps += [(c, False) for c in spec["containers"]]
    for container, leaves_devices in steps:
        size = _asked(container, node.resource)
        if size == 0:
            continue
        again = frozenset(rng.sample(sorted(reusable), min(size, len(reusable))))
        missing = size - len(again)
        if missing > len(free):
            raise NotAllocated(
                "over-promised",
                "Allocate failed due to requested number of devices unavailable for "
                f"{node.resource}. Requested: {size}, Available: {len(free) + len(again)}",
            )
        chosen = again
        if missing:
            wanted = _planned(plan, container["name"], size, free | again) if plan is not None else None
            if node.prefers is not None:
                wanted = node.prefers(pod, container["name"], size, again, frozenset(free | again))
            chosen = wanted or node.plugin.choose(free | again, size, rng, must_include=again)
        taken[container["name"]] = chosen
        free -= chosen
        reusable = reusable | chosen if leaves_devices else reusable - chosen
    return taken


def parse_plan(text: str) -> dict[str, frozenset[int]] | None:
    """ "0,3" -> {"": {0, 3}}; "c1=0,3;c2=5" by container; "" -> None; ValueError when it is neither."""
    if not text:
        return None
    plan = {}
    for part in text.split(";"):
        name, _, ids = part.rpartition("=")
        plan[name] = frozenset(int(gpu) for gpu in ids.split(","))
    return plan


def _planned(
    plan: Mapping[str, frozenset[int]], container: str, size: int, available: Collection[int]
) -> frozenset[int] | None:
    wanted = plan.get(container, plan.get(""))
    if wanted is None or len(wanted) < size:
        raise NotAllocated("plan-invalid", "Allocate failed due to a plan that does not match the request")
    # A plan for the whole pod serves its containers one after another, in ascending order.
    chosen = sorted(wanted & frozenset(available))[:size]
    if len(chosen) < size:
        raise NotAllocated("plan-conflict", "Allocate failed due to a plan whose devices are held or unhealthy")
    return frozenset(chosen)


def _asked(container: Object, resource: str) -> int:
    resources = container.get("resources", {})
    amount = resources.get("limits", {}).get(resource) or resources.get("requests", {}).get(resource) or 0
    return int(amount)


def container_status(container: Object, state: Object) -> Object:
    """One entry of containerStatuses. `state`: {"running": ...} or {"terminated": ...}, as Kubernetes has it."""
    runs = "running" in state
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": container["image"],
        "containerID": "sim://0",
        "ready": runs,
        "started": runs,
        "restartCount": 0,
        "state": state,
    }


def container_statuses(
    pod: Object, node: KubeletDevices | None, taken: Mapping[str, frozenset[int]], state: Object
) -> list[Object]:
    """containerStatuses with the GPUs of `taken` (by container), as kubelet 1.36 and later reports them.

    `node`: None when its machine does not exist.
    """
    statuses = []
    for container in pod["spec"]["containers"]:
        status = container_status(container, state)
        if node is not None and (gpus := taken.get(container["name"])):
            health = {True: "Healthy", False: "Unhealthy"}
            ids = [{"resourceID": node.uuids[g], "health": health[node.healthy[g]]} for g in sorted(gpus)]
            status["allocatedResourcesStatus"] = [{"name": node.resource, "resources": ids}]
        statuses.append(status)
    return statuses


# -- which pod really holds which GPU, and everything that led there
#
# Tests compare the product's beliefs with this. It knows nothing of the API and does no I/O.


Happening = Literal["admitted", "refused", "released", "lost"]

PLAN = "gpu-extender.io/gpus"


@dataclass(frozen=True)
class AllocationEvent:
    """One entry of the log."""

    at: float  # seconds, by the clock of the truth
    what: Happening
    uid: str
    pod: str
    node: str
    gpus: frozenset[int] = frozenset()  # when admitted, of all containers
    by_container: Mapping[str, frozenset[int]] = field(default_factory=dict)
    planned: frozenset[int] | None = None
    reason: str = ""


class Truth:
    """Allocation on all nodes, and the log. Safe to ask from any thread."""

    def __init__(self, seed: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        """`seed` decides the ties of the device plugins; `clock` gives the times of the log, in seconds."""
        self._clock = clock
        self._lock = threading.RLock()
        self._rng = random.Random(seed)
        self._nodes: dict[str, KubeletDevices] = {}
        self._log: list[AllocationEvent] = []
        self._where: dict[str, str] = {}

    # ---- questions

    def holdings(self) -> dict[str, dict[int, str]]:
        """node -> GPU index -> pod uid; nodes where no pod holds anything are left out."""
        with self._lock:
            return {name: dict(sorted(n.holder.items())) for name, n in self._nodes.items() if n.holder}

    def gpus_of(self, uid: str) -> frozenset[int]:
        """What a pod holds now."""
        with self._lock:
            node = self._nodes.get(self._where.get(uid, ""))
            return frozenset() if node is None else frozenset(g for g, u in node.holder.items() if u == uid)

    def holders(self, node: str) -> dict[int, str]:
        """GPU index -> uid of the pod that holds it, on one node; KeyError when there is no such node."""
        with self._lock:
            return dict(sorted(self._nodes[node].holder.items()))

    def free(self, node: str) -> frozenset[int]:
        """The healthy GPUs of a node that no pod holds; KeyError when there is no such node."""
        with self._lock:
            return self._nodes[node].free()

    def log(self) -> list[AllocationEvent]:
        """All that has happened, oldest first."""
        with self._lock:
            return list(self._log)

    def refusals(self) -> list[AllocationEvent]:
        """The pods that were bound and then not admitted."""
        return [event for event in self.log() if event.what == "refused"]

    # ---- changes

    def add_node(self, node: KubeletDevices) -> None:
        """A new node, with nothing on it."""
        with self._lock:
            self._nodes[node.name] = node

    def admit(self, pod: Object, *, injected: bool = False) -> dict[str, frozenset[int]]:
        """Allocates devices container by container; raises Refused, and then nothing is held."""
        meta = pod["metadata"]
        uid, name, where = meta["uid"], f"{meta['namespace']}/{meta['name']}", pod["spec"]["nodeName"]
        with self._lock:
            node = self._nodes[where]
            plan, unreadable = None, False
            try:
                plan = parse_plan(meta.get("annotations", {}).get(PLAN, ""))
            except ValueError:
                unreadable = True
            planned = None if plan is None else frozenset().union(*plan.values())
            reason, message = "", ""
            taken: dict[str, frozenset[int]] = {}
            try:
                if injected:
                    raise NotAllocated("injected", "Allocate failed due to an injected error")
                if unreadable and node.obeys_plan:
                    raise NotAllocated("plan-invalid", "Allocate failed due to an unreadable plan")
                if node.real is not None:
                    taken = node.real.admit(pod)
                else:
                    taken = allocate(pod, node, self._rng, plan if node.obeys_plan else None)
            except AdmissionRejected as no:
                reason, message = "real", str(no)
            except NotAllocated as no:
                reason, message = no.reason, no.message
            except PluginPanicked as panic:
                reason, message = "panic", f"Allocate failed due to rpc error: {panic}"
            if reason:
                self._log.append(
                    AllocationEvent(self._clock(), "refused", uid, name, where, planned=planned, reason=reason)
                )
                raise AdmissionRejected(message + ", which is unexpected")
            gpus = frozenset().union(*taken.values())
            node.holder.update(dict.fromkeys(gpus, uid))
            self._where[uid] = where
            self._log.append(AllocationEvent(self._clock(), "admitted", uid, name, where, gpus, taken, planned))
            return taken

    def release(self, uid: str, reason: str = "") -> None:
        """The pod's containers have ended: its GPUs are free."""
        with self._lock:
            where = self._where.pop(uid, None)
            if where is None or where not in self._nodes:
                return
            holder = self._nodes[where].holder
            gpus = frozenset(gpu for gpu, owner in holder.items() if owner == uid)
            for gpu in gpus:
                del holder[gpu]
            if (real := self._nodes[where].real) is not None:
                real.remove(uid)
            self._log.append(AllocationEvent(self._clock(), "released", uid, "", where, gpus, reason=reason))
