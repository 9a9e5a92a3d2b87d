"""How kubelet's device manager hands out the GPUs of one node, container by container, and how it reports them.

It knows nothing of the API and does no I/O.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from extender.sim.device_plugin import DevicePlugin

Object = dict[str, Any]


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


class Refused(Exception):
    """Kubelet does not admit the pod; the message is what its status will say."""


@dataclass
class NodeDevices:
    """The GPUs of one node as kubelet's device manager sees them."""

    name: str
    resource: str
    plugin: DevicePlugin
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
    pod: Object, node: NodeDevices, rng: random.Random, plan: Mapping[str, frozenset[int]] | None = None
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
    found = resources.get("limits", {}).get(resource) or resources.get("requests", {}).get(resource) or 0
    return int(found)


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
    pod: Object, node: NodeDevices | None, taken: Mapping[str, frozenset[int]], state: Object
) -> list[Object]:
    """containerStatuses with the GPUs of `taken` (by container), as kubelet 1.36 and later reports them.

    `node`: None when its machine is gone.
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
