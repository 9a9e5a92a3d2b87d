"""The truth of the simulation with what only tests ask of it, and do to its nodes."""

from __future__ import annotations

from collections import Counter

from extender.sim.kubelet import AllocationEvent, RealDevices, Truth


class HarnessTruth(Truth):
    """As the demo's; nodes are lost, GPUs fail."""

    def reseed(self, seed: int) -> None:
        """The ties after this are those of `seed`, whatever was decided before."""
        with self._lock:
            self._rng.seed(seed)

    def reasons(self) -> Counter[str]:
        """Refusals by reason: over-promised, plan-conflict, plan-invalid, injected, panic."""
        return Counter(event.reason for event in self.refusals())

    def plans(self) -> Counter[str]:
        """Admitted GPU pods: how many hold their plan ("kept"), another set ("missed"), had none ("none")."""
        counts: Counter[str] = Counter()
        for event in self.log():
            if event.what == "admitted" and event.gpus:
                outcome = "kept" if event.planned == event.gpus else "missed"
                counts["none" if event.planned is None else outcome] += 1
        return counts

    @property
    def double_allocations(self) -> int:
        """Pods bound to GPUs that were not there to give, by number or by plan. Zero in a sound cluster."""
        reasons = self.reasons()
        return reasons["over-promised"] + reasons["plan-conflict"]

    def be_real(self, name: str, devices: RealDevices) -> None:
        """From now on these decide on the node."""
        with self._lock:
            self._nodes[name].real = devices

    def remove_node(self, name: str) -> None:
        """The machine and the pods on it no longer exist."""
        with self._lock:
            node = self._nodes.pop(name, None)
            for uid in set(node.holder.values()) if node else ():
                self._where.pop(uid, None)
                self._log.append(AllocationEvent(self._clock(), "lost", uid, "", name, reason="node removed"))

    def set_health(self, name: str, gpu: int, healthy: bool) -> int:
        """A GPU fails or recovers; returns the number of healthy ones. Its holder keeps it."""
        with self._lock:
            node = self._nodes[name]
            node.healthy[gpu] = healthy
            return sum(node.healthy)
