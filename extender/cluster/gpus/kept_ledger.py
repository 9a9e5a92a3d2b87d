"""The ledger of a node that hands out parts of GPUs, kept from one change to the next: such a node may have hundreds of
pods, and each change is about one of them.

Theory of operation. `shared_ledger.read` reads the pods in order, since a statement that does not fit beside the ones
before it does not count. As long as all statements together fit, each counts whatever the order is: then the ledger is
a sum over pods, and a pod more or less is added or taken away. Where they do not fit, all pods are read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from extender.cluster.gpus import shared_ledger
from extender.cluster.gpus.holdings import Devices, Holding, NodeLedger
from extender.cluster.gpus.statements import HELD, PLAN, count_of, mask_of
from extender.objects.records import PodRecord

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

    def __init__(self, devices: Devices, *, held_counts: bool) -> None:
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
                made = self._entry(pod, settles)
                former = known.holding if known is not None else None
                if known is not None:
                    self._step(known, -1)
                self._step(made, 1)
                entries[pod.uid] = made
                if former != made.holding:
                    changed[pod.uid] = former, made.holding
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
        return shared_ledger.read(asking, self.devices, settling, held_counts=self._held_counts)

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
        seen = shared_ledger.reported(pod, count, devices)
        odd = int(bool(seen) and not shared_ledger.possible(seen, devices))
        if not seen and self._held_counts:
            seen = shared_ledger.stated(pod, HELD, count)
        if seen and shared_ledger.possible(seen, devices):
            missing = count - sum(seen.values()) if units else count
            holding = Holding(uid, tuple(sorted(seen)), "observed", count, mask_of(seen) if units else 0, missing)
            parts, whole = _divided(seen, units)
            return _Entry(pod, settling, (0, uid), holding, parts, whole, {}, missing, 0)
        planned = shared_ledger.stated(pod, PLAN, count)
        enforced = shared_ledger.enforced(pod, count, devices)
        fits = bool(units and planned) and shared_ledger.possible(planned, devices)
        place, pending = (1 if enforced else 2, uid), count if settling and not (fits and enforced) else 0
        if not fits:
            return _Entry(
                pod, settling, place, Holding(uid, None, "unknown", count, 0, count), unknown=count, pending=pending,
                odd=odd,
            )  # fmt: skip
        parts, whole = _divided(planned, units)
        gpus = tuple(sorted(planned))
        if enforced:
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
