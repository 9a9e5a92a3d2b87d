"""The ledger: which pod holds which GPU of a node, and how we know.

observed: kubelet's allocatedResourcesStatus, or the annotation held-gpus that an agent wrote.
enforced: that annotation, on a node whose relay hands it out (it declares so).
planned: the annotation gpus that our bind verb wrote; the stock device plugin need not follow it.
predicted: no statement, but only one set is left that the node can have handed out.
unknown: it holds GPUs, and nobody says which.

Only `observed`, `enforced`, and whatever holds the last set that is left, are sure; `planned` is likely. A statement
that can not be true (an index that the node has not, more GPUs than the pod asked for, a plan over GPUs that another
pod is seen to hold) counts as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from extender.records import PodRecord

HELD = "gpu-extender.io/held-gpus"
PLAN = "gpu-extender.io/gpus"
RELAY = "gpu-extender.io/relay"  # on a node: "1" while a relay makes kubelet take what was planned
MOST = 100_000


@dataclass(frozen=True, slots=True)
class Holding:
    """One pod's GPUs on a node. `gpus`: indices in ascending order, None where unknown; `count`: how many it holds;
    `mask`: those whose positions are sure; `unsure`: how many are held at positions that are not sure."""

    uid: str
    gpus: tuple[int, ...] | None
    how: str
    count: int
    mask: int = 0
    unsure: int = 0


@dataclass(frozen=True, slots=True)
class NodeLedger:
    """All holdings of a node, by pod uid, and their sums as the table's columns want them."""

    holdings: tuple[Holding, ...] = ()
    sure: int = 0
    likely: int = 0
    unknown: int = 0
    pending: int = 0
    doubled: int = 0  # GPUs that two pods are seen to hold


def indices(text: str) -> tuple[int, ...] | None:
    """ "0,3" or "c1=0,3;c2=5" as ascending GPU indices; None for anything else."""
    found: list[int] = []
    for part in text.split(";"):
        for item in part.rpartition("=")[2].split(","):
            item = item.strip()
            if not item.isascii() or not item.isdigit() or len(item) > 2:
                return None
            found.append(int(item))
    return tuple(sorted(found)) if len(set(found)) == len(found) else None


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


def _observed(pod: PodRecord, count: int, resource: str, index_of: Mapping[str, int], graph: int) -> int:
    """The mask of GPUs that the pod is seen to hold; 0 when nothing usable was said."""
    if pod.held and index_of:
        seen = [index_of.get(identity, -1) for name, identity in pod.held if name == resource]
        if seen and min(seen) >= 0:
            mask = mask_of(seen)
            if not mask & ~graph and mask.bit_count() <= count:
                return mask
    gpus = indices(pod.annotations.get(HELD, ""))
    mask = mask_of(gpus or ())
    return mask if not mask & ~graph and mask.bit_count() <= count else 0


def read(
    pods: Iterable[PodRecord],
    *,
    resource: str,
    graph: int,
    healthy: int,
    index_of: Mapping[str, int],
    settling: frozenset[str] = frozenset(),
    relayed: bool = False,
) -> NodeLedger:
    """The ledger of one node. `relayed`: the node's relay hands out what was planned.

    `pods`: the pods that hold resources there; `graph`: mask of the GPUs that the node has, 0 when positions are not
    modelled (over 16 GPUs); `healthy`: those of them that work; `index_of`: device id -> index; `settling`: uids that
    are being admitted now, so that what is unknown of them will soon be seen.
    """
    holdings: list[Holding] = []
    silent: list[tuple[PodRecord, int]] = []
    sure = doubled = 0
    for pod in sorted(pods, key=lambda p: p.uid):
        count = count_of(pod, resource)
        if not count:
            continue
        seen = _observed(pod, count, resource, index_of, graph)
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
        stated = planned.bit_count() == count and not planned & ~(free & ~likely)
        if len(silent) == 1 and not unknown and count == free.bit_count():
            sure |= free
            how = "planned" if stated else "predicted"
            holdings.append(Holding(pod.uid, gpus_of(free), how, count, free, 0))
            continue
        if pod.uid in settling:
            pending += count
        if stated:
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
