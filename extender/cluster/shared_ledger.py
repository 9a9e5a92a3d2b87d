"""The ledger of a node that hands out parts of GPUs: pods hold units of GPUs (`device_plugins.py`).

A pod that holds all units of a GPU holds it whole, the others stand in `NodeLedger.parts`. Planned parts are as likely,
or as sure, as planned whole GPUs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from extender.cluster.device_plugins import gpu_of
from extender.cluster.statements import HELD, PLAN, Holding, NodeGpus, NodeLedger, count_of, listed, mask_of
from extender.objects.records import PodRecord

_Asking = list[tuple[PodRecord, int]]  # pods, each with the number of units that it asks for


def read(asking: _Asking, devices: NodeGpus, settling: Container[str], *, held_counts: bool) -> NodeLedger:
    """The ledger of one node. `asking`: the pods that ask for its resource, by uid, each with the units; the others as
    for `ledger.read`."""
    ledger = _Units(devices, settling)
    silent = ledger.observed(asking, held_counts)
    ledger.planned(silent)
    return ledger.made()


class _Units:
    """The sums of one ledger while its pods are read. `units` 0: parts of unknown size, then nothing is placed."""

    def __init__(self, devices: NodeGpus, settling: Container[str]) -> None:
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
        for pod, count, enforces in sorted(known, key=lambda entry: not entry[2]):
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


def enforced(pod: PodRecord, count: int, devices: NodeGpus) -> bool:
    """Whether the relay gives the pod its planned units: on GPUs that work, and kubelet does not report others."""
    works = devices.healthy if devices.relayed else 0
    planned = stated(pod, PLAN, count)
    reports = any(name == devices.resource for name, _ in pod.held)
    return bool(planned) and not reports and not mask_of(planned) & ~works


def reported(pod: PodRecord, count: int, devices: NodeGpus) -> dict[int, int]:
    """GPU -> units of it that kubelet reports of the pod; {} when it reports nothing that has a place on the node."""
    index_of = devices.index_of
    seen = [index_of.get(gpu_of(identity), -1) for name, identity in pod.held if name == devices.resource]
    if not index_of or not seen or min(seen) < 0 or len(seen) > count:
        return {}
    return {gpu: seen.count(gpu) for gpu in sorted(set(seen))}


def stated(pod: PodRecord, annotation: str, count: int) -> dict[int, int]:
    """GPU -> units, from "2,2,5" (one unit each), or "2,5" for equal parts of each; {} for anything else."""
    gpus = listed(pod.annotations.get(annotation, "")) or ()
    if not gpus or count % len(gpus) or (len(gpus) != count and len(set(gpus)) != len(gpus)):
        return {}
    return {gpu: gpus.count(gpu) * (count // len(gpus)) for gpu in sorted(set(gpus))}


def possible(taken: Mapping[int, int], devices: NodeGpus) -> bool:
    """Whether the node has these GPUs, and each so many units. Where units are not known, only the first."""
    return not mask_of(taken) & ~devices.graph and (not devices.units or max(taken.values()) <= devices.units)


# -- the ledger that is kept from one change to the next ---------------------------------------------------------------
#
# The ledger of a node that hands out parts of GPUs, kept from one change to the next: such a node may have hundreds of
# pods, and each change is about one of them.
#
# Theory of operation. `read` reads the pods in order, since a statement that does not fit beside the ones before it
# does not count. As long as all statements together fit, each counts whatever the order is: then the ledger is a sum
# over pods, and a pod more or less is added or taken away. Where they do not fit, all pods are read.

UID: Final = attrgetter("uid")
Changes = dict[str, tuple[Holding | None, Holding | None]]
"""By uid: what a pod held, and what it holds."""


class _Entry(NamedTuple):
    """What one pod holds, if all statements fit. `place`: its place among the holdings; `parts`, `sure`, `likely`: GPU
    -> units of it, of those of which it holds less than the whole, and of those that it holds as a whole."""

    pod: PodRecord
    settling: bool
    place: tuple[int, str] = (0, "")
    holding: Holding | None = None
    parts: Mapping[int, int] = {}
    sure: Mapping[int, int] = {}
    likely: Mapping[int, int] = {}
    unknown: int = 0
    pending: int = 0
    odd: int = 0
    """1: kubelet reports what the node does not have."""


class KeptLedger:
    """The ledger of one node whose `devices.units` are not 1."""

    def __init__(self, devices: NodeGpus, *, held_counts: bool) -> None:
        self.devices = devices
        self._held_counts = held_counts
        self._entries: dict[str, _Entry] = {}
        self._places: list[tuple[int, str]] = []
        self._holdings: list[Holding] = []  # in the order of the places
        gpus = devices.graph.bit_length()
        self._parts, self._sure, self._likely = [0] * gpus, [0] * gpus, [0] * gpus  # units of each GPU
        self._unknown = self._pending = self._odd = 0
        self._summed = False  # the latest ledger was the sum

    def renew(self, pods: Sequence[PodRecord], settling: Container[str]) -> tuple[NodeLedger, Changes | None]:
        """The ledger of these pods, as `ledger.read` has it. A pod whose record is the very one of the call before
        counts as before. And what has changed since that call, None where it may be all."""
        entries, before = self._entries, self._summed
        changed: Changes = {}
        for pod in pods:
            known, settles = entries.get(pod.uid), pod.uid in settling
            if known is None or known.pod is not pod or known.settling != settles:
                entry = self._entry(pod, settles)
                former = known.holding if known is not None else None
                if known is not None:
                    self._step(known, -1)
                self._step(entry, 1)
                entries[pod.uid] = entry
                if former != entry.holding:
                    changed[pod.uid] = former, entry.holding
        if len(entries) > len(pods):
            for uid in entries.keys() - {pod.uid for pod in pods}:
                gone = entries.pop(uid)
                self._step(gone, -1)
                if gone.holding is not None:
                    changed[uid] = gone.holding, None
        self._summed = self._fits()
        if not self._summed:
            return self._read(pods, settling), None
        return self._sum(), changed if before else None

    def _fits(self) -> bool:
        """Whether all statements count, in whatever order they are read."""
        units = self.devices.units
        taken = map(sum, zip(self._parts, self._sure, self._likely, strict=True))
        return not self._odd and (not units or max(taken, default=0) <= units)

    def _sum(self) -> NodeLedger:
        sure = mask_of(gpu for gpu, units in enumerate(self._sure) if units)
        likely = mask_of(gpu for gpu, units in enumerate(self._likely) if units)
        parts = tuple(self._parts) if self.devices.units else ()
        return NodeLedger(tuple(self._holdings), sure, likely, self._unknown, self._pending, 0, parts)

    def _read(self, pods: Sequence[PodRecord], settling: Container[str]) -> NodeLedger:
        asking = [(pod, count) for pod in sorted(pods, key=UID) if (count := count_of(pod, self.devices.resource))]
        return read(asking, self.devices, settling, held_counts=self._held_counts)

    def _step(self, entry: _Entry, by: int) -> None:
        """Count an entry, `by` 1, or count it no more, -1."""
        if entry.holding is None:
            return
        at = bisect_left(self._places, entry.place)
        if by > 0:
            self._places.insert(at, entry.place)
            self._holdings.insert(at, entry.holding)
        else:
            del self._places[at], self._holdings[at]
        for sums, taken in ((self._parts, entry.parts), (self._sure, entry.sure), (self._likely, entry.likely)):
            for gpu, units in taken.items():
                sums[gpu] += by * units
        self._unknown += by * entry.unknown
        self._pending += by * entry.pending
        self._odd += by * entry.odd

    def _entry(self, pod: PodRecord, settling: bool) -> _Entry:
        devices, uid = self.devices, pod.uid
        units, count = devices.units, count_of(pod, devices.resource)
        if not count:
            return _Entry(pod, settling)
        seen = reported(pod, count, devices)
        odd = int(bool(seen) and not possible(seen, devices))
        if not seen and self._held_counts:
            seen = stated(pod, HELD, count)
        if seen and possible(seen, devices):
            missing = count - sum(seen.values()) if units else count
            holding = Holding(uid, tuple(sorted(seen)), "observed", count, mask_of(seen) if units else 0, missing)
            parts, whole = _divided(seen, units)
            return _Entry(pod, settling, (0, uid), holding, parts, whole, {}, missing, 0)
        planned = stated(pod, PLAN, count)
        by_relay = enforced(pod, count, devices)
        fits = bool(units and planned) and possible(planned, devices)
        place, pending = (1 if by_relay else 2, uid), count if settling and not (fits and by_relay) else 0
        if not fits:
            return _Entry(
                pod, settling, place, Holding(uid, None, "unknown", count, 0, count), unknown=count, pending=pending,
                odd=odd,
            )  # fmt: skip
        parts, whole = _divided(planned, units)
        gpus = tuple(sorted(planned))
        if by_relay:
            holding = Holding(uid, gpus, "enforced", count, mask_of(gpus), 0)
            return _Entry(pod, settling, place, holding, parts, whole, {}, 0, pending, odd)
        holding = Holding(uid, gpus, "planned", count, 0, count)
        return _Entry(pod, settling, place, holding, parts, {}, whole, 0, pending, odd)


def _divided(taken: Mapping[int, int], units: int) -> tuple[dict[int, int], dict[int, int]]:
    """(GPUs of which less than the whole is taken, those that are taken as a whole), with the units of each."""
    if not units:
        return {}, {}
    return (
        {gpu: count for gpu, count in taken.items() if count != units},
        {gpu: count for gpu, count in taken.items() if count == units},
    )
