"""The ledger: which pod holds which GPU of a node, and what that knowledge rests on.

observed: kubelet's allocatedResourcesStatus, or the annotation held-gpus that an agent wrote. Tenants can write
annotations: without an admission policy that lets the agent alone write this one it does not count. It never counts
against what kubelet reports, of the pod itself or of another.
enforced: the annotation gpus, on a node that declares that its relay hands out these GPUs.
planned: that annotation, which our bind verb wrote, on any other node; the stock device plugin need not follow it.
predicted: no statement, but only one set is left that the node can have handed out.
unknown: the pod holds GPUs, and nothing states which.

Only `observed`, `enforced`, and the pod that holds the last set that is left, are sure; `planned` is likely. An
impossible statement counts as unknown: an index that the node does not have, more GPUs than the pod asked for, planned
GPUs that another pod is observed to hold.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Literal, NamedTuple

from extender.cluster.device_plugins import gpu_of
from extender.cluster.statements import (
    HELD,
    PLAN,
    Holding,
    NodeGpus,
    NodeLedger,
    count_of,
    gpus_of,
    listed,
    mask_of,
    stated_mask,
)
from extender.objects.records import PodRecord

Drift = Literal["kept", "exchanged", "unhealthy", "taken", "stock", "other"]
"""How the observed GPUs of a pod compare with its planned GPUs, or why they differ: another pod's planned set; a
planned GPU had failed; another pod held one; nothing on the node follows plans; none of these."""
UID = attrgetter("uid")
_Asking = list[tuple[PodRecord, int]]  # pods, each with the number of GPUs that it asks for


def read(
    pods: Iterable[PodRecord], devices: NodeGpus, settling: Container[str] = (), *, held_counts: bool = True
) -> NodeLedger:
    """The ledger of one node.

    `pods`: the pods that hold resources there; `settling`: uids of pods that are being admitted now, so that what is
    unknown of them will soon be seen; `held_counts`: whether the annotation held-gpus counts.
    """
    if devices.units != 1:
        return UnitLedger(devices, held_counts=held_counts).renew(list(pods), settling)[0]
    asking = [(pod, count) for pod in sorted(pods, key=UID) if (count := count_of(pod, devices.resource))]
    holdings: list[Holding] = []
    silent: _Asking = []
    sure, doubled = _observed(asking, devices, held_counts, holdings, silent)
    unknown = sum([holding.unsure for holding in holdings])
    free = devices.healthy & ~sure
    if devices.relayed:
        enforced, silent = _enforced(silent, devices.resource, free, holdings)
        sure, free = sure | enforced, free & ~enforced
    likely = pending = 0
    for pod, count in silent:
        planned = stated_mask(pod, PLAN)
        possible = bool(planned) and planned.bit_count() == count and not planned & ~(free & ~likely)
        if len(silent) == 1 and not unknown and count == free.bit_count():
            sure |= free
            how = "planned" if possible else "predicted"
            holdings.append(Holding(pod.uid, gpus_of(free), how, count, free, 0))
            continue
        if pod.uid in settling:
            pending += count
        if possible:
            likely |= planned
            holdings.append(Holding(pod.uid, gpus_of(planned), "planned", count, 0, count))
        else:
            unknown += count
            holdings.append(Holding(pod.uid, None, "unknown", count, 0, count))
    return NodeLedger(tuple(holdings), sure, likely, unknown, pending, doubled)


def _observed(
    asking: _Asking, devices: NodeGpus, held_counts: bool, holdings: list[Holding], silent: _Asking
) -> tuple[int, int]:
    """Appends the observed holdings, and to `silent` the pods of which nothing is observed. (The mask of the observed
    GPUs, how many of them two pods hold.)"""
    sure = doubled = 0
    reported = [_reported(pod, count, devices) if pod.held else 0 for pod, count in asking]
    known = 0  # by kubelet: no annotation states otherwise
    for mask in reported:
        known |= mask
    for (pod, count), seen in zip(asking, reported, strict=True):
        if not seen and held_counts and HELD in pod.annotations:
            seen = _stated(pod, count, devices)
            seen = 0 if seen & known else seen
        if not seen:
            silent.append((pod, count))
            continue
        doubled += (sure & seen).bit_count()
        sure |= seen
        missing = count - seen.bit_count()  # not negative: what is more than the pod asks for is not seen
        holdings.append(Holding(pod.uid, gpus_of(seen), "observed", count, seen, missing))
    return sure, doubled


def _enforced(silent: _Asking, resource: str, free: int, holdings: list[Holding]) -> tuple[int, _Asking]:
    """Appends the holdings that the relay is sure to have handed out. (Their mask, the pods that remain.)"""
    taken, remaining = 0, []
    for pod, count in silent:
        planned = stated_mask(pod, PLAN)
        reports = any(name == resource for name, _ in pod.held)  # ids that the node does not have (any more)
        if not reports and planned.bit_count() == count and not planned & ~(free & ~taken):
            taken |= planned
            holdings.append(Holding(pod.uid, gpus_of(planned), "enforced", count, planned, 0))
        else:
            remaining.append((pod, count))
    return taken, remaining


def _reported(pod: PodRecord, count: int, devices: NodeGpus) -> int:
    """The mask of GPUs that kubelet reports of the pod; 0 when it reports nothing usable."""
    if devices.index_of:
        seen = [devices.index_of.get(identity, -1) for name, identity in pod.held if name == devices.resource]
        if seen and min(seen) >= 0:
            mask = mask_of(seen)
            if not mask & ~devices.graph and mask.bit_count() <= count:
                return mask
    return 0


def _stated(pod: PodRecord, count: int, devices: NodeGpus) -> int:
    """The mask of GPUs that the annotation held-gpus states; 0 when it states nothing that the pod can hold, or not as
    many GPUs as kubelet reports."""
    mask = stated_mask(pod, HELD)
    reported = sum([name == devices.resource for name, _ in pod.held]) if mask and pod.held else 0
    agrees = not reported or reported == mask.bit_count()
    return mask if agrees and not mask & ~devices.graph and mask.bit_count() <= count else 0


def drifts(
    before: NodeLedger, after: NodeLedger, pods: Iterable[PodRecord], healthy: int, *, relayed: bool
) -> Iterator[Drift]:
    """One entry for each planned pod that is observed now and was not before."""
    known = {holding.uid: holding.how for holding in before.holdings}
    plans = {pod.uid: stated_mask(pod, PLAN) for pod in pods}
    for holding in after.holdings:
        planned = plans.get(holding.uid, 0)
        if holding.how != "observed" or not planned or known.get(holding.uid, "observed") == "observed":
            continue
        others = [plan for uid, plan in plans.items() if uid != holding.uid]
        held = [other.mask for other in after.holdings if other.uid != holding.uid and other.how == "observed"]
        if holding.mask == planned:
            yield "kept"
        elif holding.mask in others:
            yield "exchanged"
        elif planned & ~healthy:
            yield "unhealthy"
        elif any(planned & mask for mask in held):
            yield "taken"
        else:
            yield "other" if relayed else "stock"


# -- nodes that hand out parts of GPUs: pods hold units of GPUs (`device_plugins.py`)
#
# A pod that holds all units of a GPU holds it whole, the others stand in `NodeLedger.parts`. Planned parts are as
# likely, or as sure, as planned whole GPUs. Such a node may have hundreds of pods, and each change is about one of
# them: so its ledger is kept from one change to the next.
#
# Theory of operation. As long as all statements together fit, each counts whatever the order is: then the ledger is a
# sum over pods, and a pod more or less is added or taken away. Else a statement that does not fit beside those before
# it does not count: kubelet's and the agent's come first, then what a relay enforces, then plans; each by uid.


Changes = dict[str, tuple[Holding | None, Holding | None]]
"""By uid: what a pod held, and what it holds."""
OBSERVED, ENFORCED, PLANNED = range(3)  # in this order statements count


class _Entry(NamedTuple):
    """What one pod holds, if all statements fit. `place`: its place among the holdings; `parts`, `sure`, `likely`: GPU
    -> units of it, of those of which it holds less than the whole, and of those that it holds as a whole; `reported`:
    the units that kubelet reports."""

    pod: PodRecord
    settling: bool
    place: tuple[int, str] = (0, "")
    holding: Holding | None = None
    parts: Mapping[int, int] = {}
    sure: Mapping[int, int] = {}
    likely: Mapping[int, int] = {}
    unknown: int = 0
    pending: int = 0
    reported: Mapping[int, int] = {}
    odd: int = 0
    """1: kubelet reports what the node does not have."""

    def taken(self) -> Iterable[tuple[int, int]]:
        """Each GPU of which it holds units, and these."""
        return chain(self.parts.items(), self.sure.items(), self.likely.items())


class _Sums:
    """What pods hold together: units of each GPU, and the holdings in the order of their places."""

    def __init__(self, devices: NodeGpus) -> None:
        self._devices = devices
        self._places: list[tuple[int, str]] = []
        self._holdings: list[Holding] = []
        gpus = devices.graph.bit_length()
        self._parts, self._sure, self._likely = [0] * gpus, [0] * gpus, [0] * gpus
        self._unknown = self._pending = self._odd = 0

    def step(self, entry: _Entry, by: int) -> None:
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

    def fit(self) -> bool:
        """Whether all statements count, in whatever order they are read."""
        units = self._devices.units
        taken = map(sum, zip(self._parts, self._sure, self._likely, strict=True))
        return not self._odd and (not units or max(taken, default=0) <= units)

    def beyond(self, entry: _Entry) -> int:
        """Units of an entry that others hold."""
        units = self._devices.units
        held = [a + min(b, units) + c for a, b, c in zip(self._parts, self._sure, self._likely, strict=True)]
        return sum(max(0, min(taken, held[gpu] + taken - units)) for gpu, taken in entry.taken())

    def ledger(self, doubled: int = 0) -> NodeLedger:
        """As a ledger. `doubled`: units that two pods are observed to hold."""
        sure = mask_of(gpu for gpu, units in enumerate(self._sure) if units)
        likely = mask_of(gpu for gpu, units in enumerate(self._likely) if units)
        parts = tuple(self._parts) if self._devices.units else ()
        return NodeLedger(tuple(self._holdings), sure, likely, self._unknown, self._pending, doubled, parts)


class UnitLedger:
    """The ledger of one node whose `devices.units` are not 1."""

    def __init__(self, devices: NodeGpus, *, held_counts: bool) -> None:
        self.devices = devices
        self._held_counts = held_counts
        self._entries: dict[str, _Entry] = {}
        self._sums = _Sums(devices)
        self._fits = False  # the latest ledger was the sum

    def renew(self, pods: Sequence[PodRecord], settling: Container[str]) -> tuple[NodeLedger, Changes | None]:
        """The ledger of these pods. A pod whose record is the very one of the call before counts as before. And what
        has changed since that call, None where it may be all."""
        entries, before = self._entries, self._fits
        changed: Changes = {}
        for pod in pods:
            known, settles = entries.get(pod.uid), pod.uid in settling
            if known is None or known.pod is not pod or known.settling != settles:
                entry = self._entry(pod, settles, held_counts=self._held_counts)
                former = known.holding if known is not None else None
                if known is not None:
                    self._sums.step(known, -1)
                self._sums.step(entry, 1)
                entries[pod.uid] = entry
                if former != entry.holding:
                    changed[pod.uid] = former, entry.holding
        if len(entries) > len(pods):
            for uid in entries.keys() - {pod.uid for pod in pods}:
                gone = entries.pop(uid)
                self._sums.step(gone, -1)
                if gone.holding is not None:
                    changed[uid] = gone.holding, None
        self._fits = self._sums.fit()
        if not self._fits:
            return self._in_order(), None
        return self._sums.ledger(), changed if before else None

    def _in_order(self) -> NodeLedger:
        """The ledger where statements do not fit together."""
        known = Counter[int]()  # units by kubelet: no annotation states otherwise
        for entry in self._entries.values():
            known.update(entry.reported)
        entries = [
            self._entry(entry.pod, entry.settling, held_counts=False) if self._is_denied(entry, known) else entry
            for entry in self._entries.values()
        ]
        sums, doubled = _Sums(self.devices), 0
        for entry in sorted(entries, key=attrgetter("place")):
            beyond = sums.beyond(entry)
            if entry.place[0] == OBSERVED:
                doubled += beyond
            elif beyond:
                entry = _unknown(entry.pod, entry.settling, entry.place, count_of(entry.pod, self.devices.resource))
            sums.step(entry, 1)
        return sums.ledger(doubled)

    def _is_denied(self, entry: _Entry, known: Counter[int]) -> bool:
        """Whether an annotation states that the pod holds what kubelet reports of others."""
        units = self.devices.units
        by_annotation = entry.place[0] == OBSERVED and not entry.reported
        return by_annotation and units > 0 and any(known[gpu] + taken > units for gpu, taken in entry.taken())

    def _entry(self, pod: PodRecord, settling: bool, *, held_counts: bool) -> _Entry:
        devices, uid = self.devices, pod.uid
        units, count = devices.units, count_of(pod, devices.resource)
        if not count:
            return _Entry(pod, settling)
        seen = reported = _units_reported(pod, count, devices)
        if not seen and held_counts:
            seen = units_stated(pod, HELD, count)
        if seen and _possible(seen, devices):
            missing = count - sum(seen.values()) if units else count
            holding = Holding(uid, tuple(sorted(seen)), "observed", count, mask_of(seen) if units else 0, missing)
            parts, whole = _divided(seen, units)
            return _Entry(pod, settling, (OBSERVED, uid), holding, parts, whole, {}, missing, 0, reported)
        planned = units_stated(pod, PLAN, count)
        works = devices.healthy if devices.relayed else 0
        reports = any(name == devices.resource for name, _ in pod.held)
        by_relay = bool(planned) and not reports and not mask_of(planned) & ~works
        place = (ENFORCED if by_relay else PLANNED, uid)
        if not units or not planned or not _possible(planned, devices):
            return _unknown(pod, settling, place, count)._replace(reported=reported, odd=int(bool(reported)))
        parts, whole = _divided(planned, units)
        gpus, odd = tuple(sorted(planned)), int(bool(reported))
        if by_relay:
            holding = Holding(uid, gpus, "enforced", count, mask_of(gpus), 0)
            return _Entry(pod, settling, place, holding, parts, whole, {}, 0, 0, reported, odd)
        holding, pending = Holding(uid, gpus, "planned", count, 0, count), count if settling else 0
        return _Entry(pod, settling, place, holding, parts, {}, whole, 0, pending, reported, odd)


def _unknown(pod: PodRecord, settling: bool, place: tuple[int, str], count: int) -> _Entry:
    """Of a pod of which it is not known what it holds."""
    holding = Holding(pod.uid, None, "unknown", count, 0, count)
    return _Entry(pod, settling, place, holding, unknown=count, pending=count if settling else 0)


def _units_reported(pod: PodRecord, count: int, devices: NodeGpus) -> dict[int, int]:
    """GPU -> units of it that kubelet reports of the pod; {} when it reports nothing that has a place on the node."""
    index_of = devices.index_of
    seen = [index_of.get(gpu_of(identity), -1) for name, identity in pod.held if name == devices.resource]
    if not index_of or not seen or min(seen) < 0 or len(seen) > count:
        return {}
    return {gpu: seen.count(gpu) for gpu in sorted(set(seen))}


def units_stated(pod: PodRecord, annotation: str, count: int) -> dict[int, int]:
    """GPU -> units, from "2,2,5" (one unit each), or "2,5" for equal parts of each; {} for anything else."""
    gpus = listed(pod.annotations.get(annotation, "")) or ()
    if not gpus or count % len(gpus) or (len(gpus) != count and len(set(gpus)) != len(gpus)):
        return {}
    return {gpu: gpus.count(gpu) * (count // len(gpus)) for gpu in sorted(set(gpus))}


def _possible(taken: Mapping[int, int], devices: NodeGpus) -> bool:
    """Whether the node has these GPUs, and each so many units. Where units are not known, only the first."""
    return not mask_of(taken) & ~devices.graph and (not devices.units or max(taken.values()) <= devices.units)


def _divided(taken: Mapping[int, int], units: int) -> tuple[dict[int, int], dict[int, int]]:
    """(GPUs of which less than the whole is taken, those that are taken as a whole), with the units of each."""
    if not units:
        return {}, {}
    return (
        {gpu: count for gpu, count in taken.items() if count != units},
        {gpu: count for gpu, count in taken.items() if count == units},
    )
