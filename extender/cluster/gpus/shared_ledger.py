"""The ledger of a node that hands out parts of GPUs: pods hold units of GPUs (`device_sharing.py`).

A pod that holds all units of a GPU holds it whole, the others stand in `NodeLedger.parts`. Planned parts are as likely,
or as sure, as planned whole GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping

from extender.cluster.gpus.device_sharing import gpu_of
from extender.cluster.gpus.holdings import Devices, Holding, NodeLedger
from extender.cluster.gpus.statements import HELD, PLAN, listed, mask_of
from extender.objects.records import PodRecord

_Asking = list[tuple[PodRecord, int]]  # pods, each with the number of units that it asks for


def read(asking: _Asking, devices: Devices, settling: Container[str], *, held_counts: bool) -> NodeLedger:
    """The ledger of one node. `asking`: the pods that ask for its resource, by uid, each with the units; the others as
    for `ledger.read`."""
    ledger = _Units(devices, settling)
    silent = ledger.observed(asking, held_counts)
    ledger.planned(silent)
    return ledger.made()


class _Units:
    """The sums of one ledger while its pods are read. `units` 0: parts of unknown size, then nothing is placed."""

    def __init__(self, devices: Devices, settling: Container[str]) -> None:
        self._devices, self._settling = devices, settling
        self._holdings: list[Holding] = []
        self._parts = [0] * devices.graph.bit_length()
        self._sure = self._likely = self._unknown = self._pending = self._doubled = 0

    def made(self) -> NodeLedger:
        """The ledger of what was read."""
        parts = tuple(self._parts) if self._devices.units else ()
        sums = (self._sure, self._likely, self._unknown, self._pending, self._doubled)
        return NodeLedger(tuple(self._holdings), *sums, parts)

    def observed(self, asking: _Asking, held_counts: bool) -> _Asking:
        """Add what kubelet or the annotation held-gpus reports; the pods of which nothing is observed."""
        devices, units = self._devices, self._devices.units
        silent: _Asking = []
        by_kubelet = [reported(pod, count, devices) for pod, count in asking]
        known = Counter[int]()  # units of each GPU, by kubelet: no annotation states otherwise
        for mine in by_kubelet:
            known.update(mine)
        for (pod, count), seen in zip(asking, by_kubelet, strict=True):
            if not seen and held_counts:
                seen = stated(pod, HELD, count)
                seen = {} if units and any(known[gpu] + taken > units for gpu, taken in seen.items()) else seen
            if not seen or not possible(seen, devices):
                silent.append((pod, count))
                continue
            missing = count - sum(seen.values()) if units else count
            self._unknown += missing
            self._take(seen if units else {})
            mask = mask_of(seen) if units else 0
            self._holdings.append(Holding(pod.uid, tuple(sorted(seen)), "observed", count, mask, missing))
        return silent

    def _take(self, seen: Mapping[int, int]) -> None:
        """Count the units that a pod is observed to hold."""
        units, parts = self._devices.units, self._parts
        for gpu, taken in seen.items():
            held = parts[gpu] + taken + (units if self._sure >> gpu & 1 else 0)
            self._doubled += max(0, min(taken, held - units))
            if taken == units:
                self._sure |= 1 << gpu
            else:
                parts[gpu] += taken

    def planned(self, silent: _Asking) -> None:
        """Add the pods of which nothing is observed by their planned units. The sure ones come first: what is only
        likely gives way to them."""
        known = [(pod, count, enforced(pod, count, self._devices)) for pod, count in silent]
        for pod, count, enforces in sorted(known, key=lambda one: not one[2]):
            planned = stated(pod, PLAN, count)
            fits = self._free_for(planned)
            if pod.uid in self._settling and not (fits and enforces):
                self._pending += count
            if not fits:
                self._unknown += count
                self._holdings.append(Holding(pod.uid, None, "unknown", count, 0, count))
                continue
            for gpu, taken in planned.items():
                if taken < self._devices.units:
                    self._parts[gpu] += taken
                elif enforces:
                    self._sure |= 1 << gpu
                else:
                    self._likely |= 1 << gpu
            gpus = tuple(sorted(planned))
            if enforces:
                self._holdings.append(Holding(pod.uid, gpus, "enforced", count, mask_of(gpus), 0))
            else:
                self._holdings.append(Holding(pod.uid, gpus, "planned", count, 0, count))

    def _free_for(self, planned: Mapping[int, int]) -> bool:
        """Whether these units can be the pod's: the node has them, and no other pod does."""
        units = self._devices.units
        if not units or not planned or not possible(planned, self._devices):
            return False
        whole = self._sure | self._likely
        return not any(self._parts[gpu] + taken > units or whole >> gpu & 1 for gpu, taken in planned.items())


def enforced(pod: PodRecord, count: int, devices: Devices) -> bool:
    """Whether the relay gives the pod its planned units: on GPUs that work, and kubelet does not report others."""
    works = devices.healthy if devices.relayed else 0
    planned = stated(pod, PLAN, count)
    reports = any(name == devices.resource for name, _ in pod.held)
    return bool(planned) and not reports and not mask_of(planned) & ~works


def reported(pod: PodRecord, count: int, devices: Devices) -> dict[int, int]:
    """GPU -> units of it that kubelet reports of the pod; {} when it reports nothing that has a place on the node."""
    index_of = devices.index_of
    seen = [index_of.get(gpu_of(identity), -1) for name, identity in pod.held if name == devices.resource]
    if not index_of or not seen or min(seen) < 0 or len(seen) > count:
        return {}
    return {gpu: seen.count(gpu) for gpu in sorted(set(seen))}


def stated(pod: PodRecord, annotation: str, count: int) -> dict[int, int]:
    """GPU -> units, from "2,2,5" (one unit each), or "2,5" for equal parts of each; {} for anything else."""
    found = listed(pod.annotations.get(annotation, "")) or ()
    if not found or count % len(found) or (len(found) != count and len(set(found)) != len(found)):
        return {}
    return {gpu: found.count(gpu) * (count // len(found)) for gpu in sorted(set(found))}


def possible(taken: Mapping[int, int], devices: Devices) -> bool:
    """Whether the node has these GPUs, and each so many units. Where units are not known, only the first."""
    return not mask_of(taken) & ~devices.graph and (not devices.units or max(taken.values()) <= devices.units)
