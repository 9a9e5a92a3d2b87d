"""Which pod really holds which GPU, and everything that led there: what the simulated kubelets know.

Tests compare the product's beliefs with this. It knows nothing of the API and does no I/O.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from extender.sim.allocation import NodeDevices, NotAllocated, RealDevices, Refused, allocate, parse_plan
from extender.sim.device_plugin import PluginPanicked

Object = dict[str, Any]
Happening = Literal["admitted", "refused", "released", "lost"]

PLAN = "gpu-extender.io/gpus"


@dataclass(frozen=True)
class Event:
    """One entry of the log. ``at`` is by the clock of the truth, in seconds; ``gpus`` by container when admitted."""

    at: float
    what: Happening
    uid: str
    pod: str
    node: str
    gpus: frozenset[int] = frozenset()
    by_container: Mapping[str, frozenset[int]] = field(default_factory=dict)
    planned: frozenset[int] | None = None
    reason: str = ""


class Truth:
    """Allocation on all nodes, and the log. Safe to ask from any thread."""

    def __init__(self, seed: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        """`seed` decides the ties of the device plugins; `clock` tells the times of the log, in seconds."""
        self._clock = clock
        self._lock = threading.RLock()
        self._rng = random.Random(seed)
        self._nodes: dict[str, NodeDevices] = {}
        self._log: list[Event] = []
        self._where: dict[str, str] = {}

    def reseed(self, seed: int) -> None:
        """The ties after this are those of `seed`, whatever was decided before."""
        with self._lock:
            self._rng.seed(seed)

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
                self._log.append(Event(self._clock(), "lost", uid, "", name, reason="node removed"))

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
                    raise NotAllocated("injected", "Allocate failed due to an injected error")
                if unreadable and node.obeys_plan:
                    raise NotAllocated("plan-invalid", "Allocate failed due to an unreadable plan")
                if node.real is not None:
                    taken = node.real.admit(pod)
                else:
                    taken = allocate(pod, node, self._rng, plan if node.obeys_plan else None)
            except Refused as no:
                reason, message = "real", str(no)
            except NotAllocated as no:
                reason, message = no.reason, no.message
            except PluginPanicked as panic:
                reason, message = "panic", f"Allocate failed due to rpc error: {panic}"
            if reason:
                self._log.append(Event(self._clock(), "refused", uid, name, where, planned=planned, reason=reason))
                raise Refused(message + ", which is unexpected")
            gpus = frozenset().union(*taken.values())
            node.holder.update(dict.fromkeys(gpus, uid))
            self._where[uid] = where
            self._log.append(Event(self._clock(), "admitted", uid, name, where, gpus, taken, planned))
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
            self._log.append(Event(self._clock(), "released", uid, "", where, gpus, reason=reason))
