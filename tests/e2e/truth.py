"""Which pod really holds which GPU, and everything that led there: what the simulated kubelets know.

Tests compare the product's beliefs with this. It knows nothing of the API and does no I/O.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from extender.node import plans
from extender.node.graph import Graph
from extender.sim.device_plugin import DevicePlugin, PluginPanicked

Object = dict[str, Any]
Happening = Literal["admitted", "refused", "released", "lost"]

PLAN = "gpu-extender.io/gpus"


@dataclass(frozen=True)
class Event:
    """One entry of the log. ``at`` is time.monotonic() in seconds; ``gpus`` by container when admitted."""

    at: float
    what: Happening
    uid: str
    pod: str
    node: str
    gpus: frozenset[int] = frozenset()
    by_container: Mapping[str, frozenset[int]] = field(default_factory=dict)
    planned: frozenset[int] | None = None
    reason: str = ""


class Refused(Exception):
    """Kubelet does not admit the pod; the message is what its status will say."""


class RealDevices(Protocol):
    """Device management that is not played."""

    def admit(self, pod: Object) -> dict[str, frozenset[int]]:
        """Container -> GPUs; raises Refused."""
        ...

    def remove(self, uid: str) -> None:
        """The pod has ended."""
        ...


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
    # With our relay before the plugin: the plan, else the best by links.
    relay: Graph | None = None
    # Kubelet's own device manager decides instead of all that.
    real: RealDevices | None = None
    holder: dict[int, str] = field(default_factory=dict)

    def free(self) -> frozenset[int]:
        """Healthy and held by nobody."""
        gpus = range(len(self.uuids))
        return frozenset(gpu for gpu in gpus if self.healthy[gpu] and gpu not in self.holder)


class Truth:
    """Allocation on all nodes, and the log. Safe to ask from any thread."""

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.RLock()
        self._rng = random.Random(seed)
        self._nodes: dict[str, NodeDevices] = {}
        self._log: list[Event] = []
        self._where: dict[str, str] = {}

    # ---- questions

    def holdings(self) -> dict[str, dict[int, str]]:
        """node -> GPU index -> pod uid; nodes where nobody holds anything are left out."""
        with self._lock:
            return {name: dict(sorted(n.holder.items())) for name, n in self._nodes.items() if n.holder}

    def gpus_of(self, uid: str) -> frozenset[int]:
        """What a pod holds now."""
        with self._lock:
            node = self._nodes.get(self._where.get(uid, ""))
            return frozenset() if node is None else frozenset(g for g, u in node.holder.items() if u == uid)

    def log(self) -> list[Event]:
        """All that has happened, oldest first."""
        with self._lock:
            return list(self._log)

    def refusals(self) -> list[Event]:
        """The pods that were bound and then not admitted."""
        return [event for event in self.log() if event.what == "refused"]

    def reasons(self) -> Counter[str]:
        """Refusals by reason: over-promised, plan-conflict, plan-invalid, injected, panic."""
        return Counter(event.reason for event in self.refusals())

    @property
    def double_allocations(self) -> int:
        """Pods bound to GPUs that were not there to give, by number or by plan. Zero in a sound cluster."""
        reasons = self.reasons()
        return reasons["over-promised"] + reasons["plan-conflict"]

    def plans(self) -> Counter[str]:
        """Admitted GPU pods: how many hold their plan ("kept"), another set ("missed"), had none ("none")."""
        found: Counter[str] = Counter()
        for event in self.log():
            if event.what == "admitted" and event.gpus:
                kept = "kept" if event.planned == event.gpus else "missed"
                found["none" if event.planned is None else kept] += 1
        return found

    # ---- changes

    def add_node(self, node: NodeDevices) -> None:
        """A new node, with nothing on it."""
        with self._lock:
            self._nodes[node.name] = node

    def be_real(self, name: str, devices: RealDevices) -> None:
        """From now on these decide on the node."""
        with self._lock:
            self._nodes[name].real = devices

    def remove_node(self, name: str) -> None:
        """The machine is gone, and so are the pods on it."""
        with self._lock:
            node = self._nodes.pop(name, None)
            for uid in set(node.holder.values()) if node else ():
                self._where.pop(uid, None)
                self._note("lost", uid, "", name, reason="node removed")

    def set_health(self, name: str, gpu: int, healthy: bool) -> int:
        """A GPU fails or recovers; returns the number of healthy ones. Its holder keeps it."""
        with self._lock:
            node = self._nodes[name]
            node.healthy[gpu] = healthy
            return sum(node.healthy)

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
                    raise _No("injected", "Allocate failed due to an injected error")
                if unreadable and node.obeys_plan:
                    raise _No("plan-invalid", "Allocate failed due to an unreadable plan")
                if node.real is not None:
                    taken = node.real.admit(pod)
                else:
                    taken = allocate(pod, node, self._rng, plan if node.obeys_plan else None)
            except Refused as no:
                reason, message = "real", str(no)
            except _No as no:
                reason, message = no.args
            except PluginPanicked as panic:
                reason, message = "panic", f"Allocate failed due to rpc error: {panic}"
            if reason:
                self._note("refused", uid, name, where, planned=planned, reason=reason)
                raise Refused(message + ", which is unexpected")
            gpus = frozenset().union(*taken.values())
            node.holder.update(dict.fromkeys(gpus, uid))
            self._where[uid] = where
            self._note("admitted", uid, name, where, gpus, taken, planned)
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
            self._note("released", uid, "", where, gpus, reason=reason)

    def _note(
        self,
        what: Happening,
        uid: str,
        pod: str,
        node: str,
        gpus: frozenset[int] = frozenset(),
        by_container: Mapping[str, frozenset[int]] | None = None,
        planned: frozenset[int] | None = None,
        reason: str = "",
    ) -> None:
        self._log.append(Event(time.monotonic(), what, uid, pod, node, gpus, by_container or {}, planned, reason))


class _No(Exception):
    """(reason for the log, message for the pod's status)."""


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
            raise _No(
                "over-promised",
                "Allocate failed due to requested number of devices unavailable for "
                f"{node.resource}. Requested: {size}, Available: {len(free) + len(again)}",
            )
        chosen = again
        if missing:
            wanted = _planned(plan, container["name"], size, free | again) if plan is not None else None
            if node.relay is not None:
                wanted = _relayed(node.relay, pod, container["name"], size, again, frozenset(free | again))
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
        raise _No("plan-invalid", "Allocate failed due to a plan that does not match the request")
    # A plan for the whole pod serves its containers one after another, in ascending order.
    chosen = sorted(wanted & frozenset(available))[:size]
    if len(chosen) < size:
        raise _No("plan-conflict", "Allocate failed due to a plan whose devices are held or unhealthy")
    return frozenset(chosen)


def _relayed(
    graph: Graph, pod: Object, container: str, size: int, again: frozenset[int], available: frozenset[int]
) -> frozenset[int] | None:
    """What the relay prefers for this container, by its own code."""
    asker = plans.Asker(plans.read(pod), plans.Container(container, {}))
    return plans.wanted(asker, again, available, size) or graph.best(available, again, size, frozenset())


def _asked(container: Object, resource: str) -> int:
    resources = container.get("resources", {})
    found = resources.get("limits", {}).get(resource) or resources.get("requests", {}).get(resource) or 0
    return int(found)
