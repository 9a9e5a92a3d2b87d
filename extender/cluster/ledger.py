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

Nodes that hand out parts of GPUs have a ledger of units (`shared_ledger.py`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from operator import attrgetter
from typing import Literal

from extender.cluster import shared_ledger
from extender.cluster.statements import (
    HELD,
    PLAN,
    Holding,
    NodeGpus,
    NodeLedger,
    count_of,
    gpus_of,
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
    asking = [(pod, count) for pod in sorted(pods, key=UID) if (count := count_of(pod, devices.resource))]
    if devices.units != 1:
        return shared_ledger.read(asking, devices, settling, held_counts=held_counts)
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
        possible = planned.bit_count() == count and not planned & ~(free & ~likely)
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
    reported = [_reported(pod, count, devices) for pod, count in asking]
    known = 0  # by kubelet: no annotation states otherwise
    for mask in reported:
        known |= mask
    for (pod, count), seen in zip(asking, reported, strict=True):
        if not seen and held_counts:
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
    if pod.held and devices.index_of:
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
