"""Brute force for the ways out of a pod that fits nowhere: every change of a kind, from the Kubernetes JSON alone.

Of each kind the least change, in the measure of docs/explain.md; None where no change of the kind helps.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import combinations

from tests.oracles.whatif import GPU, PREFIX, Brute, Object, linked, seconds

NO_VICTIM = -(2**31)
"""The highest priority of victims of which none counts."""


class Ways:
    """Of one pod and one cluster, as `Brute` has them."""

    def __init__(self, brute: Brute, pod: Object) -> None:
        self.brute, self.pod = brute, pod

    def fits(self, pod: Object | None = None) -> bool:
        """Whether the pod, or a changed one, fits on a node now."""
        return any(self.brute.fits(pod or self.pod, node, ()) for node in self.brute.nodes)

    def verdict(self) -> str:
        """fits, waits, or never: no node takes it, whatever part of its GPUs is free, once no cordon stands."""
        if self.fits():
            return "fits"
        return "waits" if any(self._may_fit(uncordoned(node)) for node in self.brute.nodes) else "never"

    def least(self) -> dict[str, object]:
        """The least change by kind; of `smaller` by resource."""
        verdict, found = self.brute.verdict(self.pod)
        # Where the first victims are terminating already, to wait is enough.
        evicts = verdict == "evict" and found[0][0][1] != NO_VICTIM
        return {
            "evict": found[0][0] if evicts else None,
            "relax-links": self._relaxed(),
            "uncordon": any(self.brute.fits(self.pod, uncordoned(node), ()) for node in self.brute.nodes) or None,
            "wait": min(self._waits(), default=None),
            "add-nodes": min(self._sizes(), default=None),
            "smaller gpus": self._smaller(GPU, self.brute.amounts(self.pod)[2], ""),
            "smaller cpu": self._smaller("cpu", self.brute.amounts(self.pod)[0], ""),
            "smaller memory": self._smaller("memory", self.brute.amounts(self.pod)[1], "Gi"),
        }

    def _relaxed(self) -> bool | None:
        notes = self.pod["metadata"]["annotations"]
        if notes.get(PREFIX + "links") != "required" or self.brute.amounts(self.pod)[2] < 2:
            return None
        changed = copy.deepcopy(self.pod)
        changed["metadata"]["annotations"][PREFIX + "links"] = "preferred"
        return self.fits(changed) or None

    def _smaller(self, resource: str, was: int, unit: str) -> int | None:
        """The most of a resource, below what is asked for, with which the pod fits."""
        for number in range(was - 1, 0, -1):
            changed = copy.deepcopy(self.pod)
            changed["spec"]["containers"][0]["resources"]["requests"][resource] = f"{number}{unit}"
            if self.fits(changed):
                return number
        return None

    def _waits(self) -> Iterator[float]:
        """The moments at which the pod fits on a node, since what terminates there by then has terminated."""
        for node in self.brute.nodes:
            there = [pod for pod in self.brute.on(node["metadata"]["name"]) if self.brute.going(pod)]
            ends = {pod["metadata"]["uid"]: seconds(pod["metadata"]["deletionTimestamp"]) for pod in there}
            for moment in sorted(set(ends.values())):
                gone = tuple(pod for pod in there if ends[pod["metadata"]["uid"]] <= moment)
                if self.brute.fits(self.pod, node, gone):
                    yield moment - self.brute.now

    def _sizes(self) -> Iterator[int]:
        """GPUs of the machines of which one more, empty, takes the pod."""
        for node in self.brute.nodes:
            if self._empty(uncordoned(node)):
                yield int(node["status"]["allocatable"].get(GPU, 0))

    def _may_fit(self, node: Object) -> bool:
        """Whether the pod fits where just as many GPUs are free as it asks for, some that are linked."""
        loose = copy.deepcopy(self.pod)
        loose["metadata"]["annotations"].pop(PREFIX + "links", None)
        name, wanted = node["metadata"]["name"], self.brute.amounts(self.pod)[2]
        if not self.brute.fits(loose, node, tuple(self.brute.on(name))):
            return False
        if self.pod["metadata"]["annotations"].get(PREFIX + "links") != "required" or wanted < 2:
            return True
        links = self.brute.links[name]
        return links is not None and any(linked(links, some) for some in combinations(range(len(links)), wanted))

    def _empty(self, node: Object) -> bool:
        return self.brute.fits(self.pod, node, tuple(self.brute.on(node["metadata"]["name"])))


def uncordoned(node: Object) -> Object:
    """The node as it is once it is uncordoned."""
    changed = copy.deepcopy(node)
    changed["spec"].pop("unschedulable", None)
    return changed
