"""The ledger: which pod holds which GPU of a node, and how we know.

observed: kubelet's allocatedResourcesStatus, or the annotation held-gpus that an agent wrote. Tenants can write
annotations: without an admission policy that lets the agent alone write this one it does not count, and it never counts
against what kubelet reports, of the pod itself or of another.
enforced: the annotation gpus, on a node whose relay hands it out (it declares so).
planned: that annotation, which our bind verb wrote, on any other node; the stock device plugin need not follow it.
predicted: no statement, but only one set is left that the node can have handed out.
unknown: it holds GPUs, and nobody says which.

Only `observed`, `enforced`, and whatever holds the last set that is left, are sure; `planned` is likely. A statement
that can not be true (an index that the node has not, more GPUs than the pod asked for, a plan over GPUs that another
pod is seen to hold) counts as unknown.

Where GPUs are handed out in parts (`device_sharing.py`) a pod holds units of GPUs: whoever holds all units of a GPU
holds it whole, the others stand in `parts`. A plan for parts is as likely, or as sure, as one for whole GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from extender.cluster.device_sharing import gpu_of
from extender.objects.records import PodRecord

HELD = "gpu-extender.io/held-gpus"
PLAN = "gpu-extender.io/gpus"
MOST = 100_000
LONGEST = 8_192  # characters of a statement: any pod may write 256 KiB, which would take milliseconds each time


@dataclass(frozen=True, slots=True)
class Holding:
    """One pod's GPUs on a node. `gpus`: indices in ascending order, None where unknown; `count`: how many it holds,
    in units of the resource; `mask`: those (of which it holds any part) whose positions are sure; `unsure`: how many
    units are held at positions that are not sure."""

    uid: str
    gpus: tuple[int, ...] | None
    how: str
    count: int
    mask: int = 0
    unsure: int = 0


@dataclass(frozen=True, slots=True)
class NodeLedger:
    """All holdings of a node, by pod uid, and their sums as the table's columns want them. `parts`: units of each GPU
    held by those who hold less than the whole of it; () where GPUs are handed out whole."""

    holdings: tuple[Holding, ...] = ()
    sure: int = 0
    likely: int = 0
    unknown: int = 0
    pending: int = 0
    doubled: int = 0  # GPUs (or units of one) that two pods are seen to hold
    parts: tuple[int, ...] = ()


def indices(text: str) -> tuple[int, ...] | None:
    """ "0,3" or "c1=0,3;c2=5" as ascending GPU indices; None for anything else."""
    found = _listed(text)
    return tuple(sorted(found)) if found is not None and len(set(found)) == len(found) else None


def _listed(text: str) -> list[int] | None:
    if len(text) > LONGEST:
        return None
    found: list[int] = []
    for part in text.split(";"):
        for item in part.rpartition("=")[2].split(","):
            item = item.strip()
            if not item.isascii() or not item.isdigit() or len(item) > 2:
                return None
            found.append(int(item))
    return found


def mask_of(gpus: Iterable[int]) -> int:
    mask = 0
    for gpu in gpus:
        mask |= 1 << gpu
    return mask


def gpus_of(mask: int) -> tuple[int, ...]:
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def count_of(pod: PodRecord, resource: str) -> int:
    """GPUs of one resource that the pod asks for; a number that no machine has counts as MOST."""
    return min(MOST, sum(count for name, count in pod.gpus if name == resource))


def _reported(pod: PodRecord, count: int, resource: str, index_of: Mapping[str, int], graph: int) -> int:
    """The mask of GPUs that kubelet reports of the pod; 0 when it reports nothing usable."""
    if pod.held and index_of:
        seen = [index_of.get(identity, -1) for name, identity in pod.held if name == resource]
        if seen and min(seen) >= 0:
            mask = mask_of(seen)
            if not mask & ~graph and mask.bit_count() <= count:
                return mask
    return 0


def _stated(pod: PodRecord, count: int, resource: str, graph: int) -> int:
    """The mask of GPUs that the annotation held-gpus states; 0 when it states nothing that the pod can hold, or not as
    many GPUs as kubelet reports."""
    mask = mask_of(indices(pod.annotations.get(HELD, "")) or ())
    told = sum(name == resource for name, _ in pod.held)
    agrees = not told or told == mask.bit_count()
    return mask if agrees and not mask & ~graph and mask.bit_count() <= count else 0


def read(
    pods: Iterable[PodRecord],
    *,
    resource: str,
    graph: int,
    healthy: int,
    index_of: Mapping[str, int],
    settling: frozenset[str] = frozenset(),
    relayed: bool = False,
    units: int = 1,
    stated: bool = True,
) -> NodeLedger:
    """The ledger of one node. `relayed`: the node's relay hands out what was planned; `stated`: whether the annotation
    held-gpus counts.

    `pods`: the pods that hold resources there; `graph`: mask of the GPUs that the node has, 0 when positions are not
    modelled (over 16 GPUs); `healthy`: those of them that work; `index_of`: device id -> index; `settling`: uids that
    are being admitted now, so that what is unknown of them will soon be seen; `units`: of the resource per GPU, 0 when
    it counts parts of unknown size.
    """
    if units != 1:
        return _read_parts(pods, resource, graph, healthy if relayed else 0, index_of, settling, units, stated)
    holdings: list[Holding] = []
    silent: list[tuple[PodRecord, int]] = []
    sure = doubled = 0
    asking = [(pod, count) for pod in sorted(pods, key=lambda p: p.uid) if (count := count_of(pod, resource))]
    reported = [_reported(pod, count, resource, index_of, graph) for pod, count in asking]
    known = 0  # by kubelet: no annotation says otherwise
    for mask in reported:
        known |= mask
    for (pod, count), seen in zip(asking, reported, strict=True):
        if not seen and stated:
            seen = _stated(pod, count, resource, graph)
            seen = 0 if seen & known else seen
        if not seen:
            silent.append((pod, count))
            continue
        doubled += (sure & seen).bit_count()
        sure |= seen
        missing = max(0, count - seen.bit_count())
        holdings.append(Holding(pod.uid, gpus_of(seen), "observed", count, seen, missing))
    likely = 0
    unknown = sum(holding.unsure for holding in holdings)
    pending = 0
    free = healthy & ~sure
    if relayed:
        rest = []
        for pod, count in silent:
            planned = mask_of(indices(pod.annotations.get(PLAN, "")) or ())
            told = any(name == resource for name, _ in pod.held)  # of ids that the node does not have (any more)
            if not told and planned.bit_count() == count and not planned & ~free:
                sure, free = sure | planned, free & ~planned
                holdings.append(Holding(pod.uid, gpus_of(planned), "enforced", count, planned, 0))
            else:
                rest.append((pod, count))
        silent = rest
    for pod, count in silent:
        planned = mask_of(indices(pod.annotations.get(PLAN, "")) or ())
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


Drift = Literal["kept", "exchanged", "unhealthy", "taken", "stock", "other"]
"""How what a pod was seen to hold compares with its plan, or why it differs: the set of another pod's plan; a planned
GPU had failed; another pod held one; nobody on the node heeds plans; none of these."""


def drifts(
    before: NodeLedger, after: NodeLedger, pods: Iterable[PodRecord], healthy: int, *, relayed: bool
) -> Iterator[Drift]:
    """One entry for each planned pod that is observed now and was not before."""
    known = {holding.uid: holding.how for holding in before.holdings}
    plans = {pod.uid: mask_of(indices(pod.annotations.get(PLAN, "")) or ()) for pod in pods}
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


def _read_parts(
    pods: Iterable[PodRecord],
    resource: str,
    graph: int,
    enforced: int,
    index_of: Mapping[str, int],
    settling: frozenset[str],
    units: int,
    heed: bool,
) -> NodeLedger:
    """The ledger of a node that hands out parts of GPUs. `enforced`: the GPUs on which a plan is sure to come; `heed`:
    whether the annotation held-gpus counts."""
    parts = [0] * graph.bit_length()
    holdings: list[Holding] = []
    silent: list[tuple[PodRecord, int]] = []
    sure = likely = unknown = pending = doubled = 0
    asking = [(pod, count) for pod in sorted(pods, key=lambda p: p.uid) if (count := count_of(pod, resource))]
    reported = [_seen_parts(pod, count, resource, index_of) for pod, count in asking]
    known = Counter[int]()  # units of each GPU, by kubelet: no annotation says otherwise
    for mine in reported:
        known.update(mine)
    for (pod, count), seen in zip(asking, reported, strict=True):
        if not seen and heed:
            seen = _stated_parts(pod.annotations.get(HELD, ""), count)
            seen = {} if units and any(known[gpu] + taken > units for gpu, taken in seen.items()) else seen
        if not seen or not _possible(seen, graph, units):
            silent.append((pod, count))
            continue
        missing = count - sum(seen.values())
        unknown += missing if units else count
        for gpu, taken in seen.items() if units else ():
            doubled += max(0, min(taken, parts[gpu] + taken + (units if sure >> gpu & 1 else 0) - units))
            sure, parts[gpu] = (sure | 1 << gpu, parts[gpu]) if taken == units else (sure, parts[gpu] + taken)
        mask = mask_of(seen) if units else 0
        holdings.append(Holding(pod.uid, tuple(sorted(seen)), "observed", count, mask, missing if units else count))
    # Sure ones first: what is only likely gives way to them.
    sorted_out = [(pod, count, _enforced_parts(pod, count, resource, enforced)) for pod, count in silent]
    for pod, count, comes in sorted(sorted_out, key=lambda one: not one[2]):
        planned = _stated_parts(pod.annotations.get(PLAN, ""), count)
        stated = bool(
            units
            and planned
            and _possible(planned, graph, units)
            and not any(parts[gpu] + taken > units or (sure | likely) >> gpu & 1 for gpu, taken in planned.items())
        )
        if pod.uid in settling and not (stated and comes):
            pending += count
        if not stated:
            unknown += count
            holdings.append(Holding(pod.uid, None, "unknown", count, 0, count))
            continue
        for gpu, taken in planned.items():
            if taken < units:
                parts[gpu] += taken
            elif comes:
                sure |= 1 << gpu
            else:
                likely |= 1 << gpu
        gpus = tuple(sorted(planned))
        if comes:
            holdings.append(Holding(pod.uid, gpus, "enforced", count, mask_of(gpus), 0))
        else:
            holdings.append(Holding(pod.uid, gpus, "planned", count, 0, count))
    return NodeLedger(tuple(holdings), sure, likely, unknown, pending, doubled, tuple(parts) if units else ())


def _enforced_parts(pod: PodRecord, count: int, resource: str, enforced: int) -> bool:
    """Whether the relay gives the pod what was planned: on GPUs that work, and kubelet has not said otherwise."""
    planned = _stated_parts(pod.annotations.get(PLAN, ""), count)
    told = any(name == resource for name, _ in pod.held)
    return bool(planned) and not told and not mask_of(planned) & ~enforced


def _seen_parts(pod: PodRecord, count: int, resource: str, index_of: Mapping[str, int]) -> dict[int, int]:
    """GPU -> units of it that kubelet says the pod holds; {} when it says nothing that we can place."""
    seen = [index_of.get(gpu_of(identity), -1) for name, identity in pod.held if name == resource]
    if not index_of or not seen or min(seen) < 0 or len(seen) > count:
        return {}
    return {gpu: seen.count(gpu) for gpu in sorted(set(seen))}


def _stated_parts(text: str, count: int) -> dict[int, int]:
    """GPU -> units, from "2,2,5" (one unit each), or "2,5" for equal parts of each; {} for anything else."""
    listed = _listed(text) or []
    if not listed or count % len(listed) or (len(listed) != count and len(set(listed)) != len(listed)):
        return {}
    return {gpu: listed.count(gpu) * (count // len(listed)) for gpu in sorted(set(listed))}


def _possible(taken: Mapping[int, int], graph: int, units: int) -> bool:
    """Whether the node has these GPUs, and each so many units. Where units are not known, only the first."""
    return not mask_of(taken) & ~graph and (not units or max(taken.values()) <= units)
