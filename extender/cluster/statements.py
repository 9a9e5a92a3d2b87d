"""What is stated about GPUs, and held of them: a set of GPU indices as text, as indices and as a bit mask; and what the
pods of a node hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from extender.objects.records import PodRecord

HELD: Final = "gpu-extender.io/held-gpus"
"""Annotation of a pod: the GPUs that it holds, as an agent saw them."""
PLAN: Final = "gpu-extender.io/gpus"
"""Annotation of a pod: its planned GPUs, as our bind verb or the queue chose them."""
MOST: Final = 100_000
"""GPUs of one pod at most; no machine has as many."""
LONGEST: Final = 8_192
"""Characters of a statement: any pod may write 256 KiB, which would take milliseconds each time."""
SHORT: Final = 64
"""Characters of a statement that is kept with what it means: the pods of a node are read again and again."""


def indices(text: str) -> tuple[int, ...] | None:
    """ "0,3" or "c1=0,3;c2=5" as ascending GPU indices; None for anything else."""
    gpus = listed(text)
    return tuple(sorted(gpus)) if gpus is not None and len(set(gpus)) == len(gpus) else None


def listed(text: str) -> tuple[int, ...] | None:
    """The indices in the order of the text, each as often as it is written; None where the text is anything else."""
    return _listed(text) if len(text) <= SHORT else _read(text)


def _read(text: str) -> tuple[int, ...] | None:
    if len(text) > LONGEST:
        return None
    gpus: list[int] = []
    for part in text.split(";"):
        for item in part.rpartition("=")[2].split(","):
            item = item.strip()
            if not item.isascii() or not item.isdigit() or len(item) > 2:
                return None
            gpus.append(int(item))
    return tuple(gpus)


_listed = lru_cache(maxsize=4096)(_read)


def stated_mask(pod: PodRecord, annotation: str) -> int:
    """The GPUs that an annotation of the pod names, as a bit mask; 0 where it names none, or is invalid."""
    text = pod.annotations.get(annotation)
    if not text:
        return 0
    return _mask(text) if len(text) <= SHORT else mask_of(indices(text) or ())


@lru_cache(maxsize=4096)
def _mask(text: str) -> int:
    return mask_of(indices(text) or ())


def mask_of(gpus: Iterable[int]) -> int:
    """GPU indices as a bit mask."""
    mask = 0
    for gpu in gpus:
        mask |= 1 << gpu
    return mask


@lru_cache(maxsize=4096)
def gpus_of(mask: int) -> tuple[int, ...]:
    """The GPU indices of a bit mask, ascending."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def count_of(pod: PodRecord, resource: str) -> int:
    """GPUs of one resource that the pod asks for; a number that no machine has counts as MOST."""
    total = 0
    for name, count in pod.gpus:
        if name == resource:
            total += count
    return total if total < MOST else MOST


def planned_text(pod: PodRecord, resource: str, gpus: int) -> str:
    """The value of the annotation PLAN: "0,3", or "c1=0,3;c2=5" with several GPU containers (init containers' GPUs are
    used again, and not named)."""
    ids = list(gpus_of(gpus))
    containers = [(name, count) for name, kind, count in pod.gpu_containers if kind == resource]
    if len(containers) == 1 or sum(count for _, count in containers) != len(ids):
        return ",".join(str(i) for i in ids)
    parts = []
    for name, count in containers:
        parts.append(f"{name}=" + ",".join(str(i) for i in ids[:count]))
        ids = ids[count:]
    return ";".join(parts)


# -- what pods hold of one node's GPUs, and what of the node decides how that is read ----------------------------------


class NodeGpus(NamedTuple):
    """The GPUs of one node as far as the ledger needs them."""

    resource: str
    """The resource that the node offers its GPUs as."""
    graph: int = 0
    """Bit mask of the GPUs that the node has; 0 where positions are not modelled (over 16 GPUs)."""
    healthy: int = 0
    """Those of `graph` that work."""
    index_of: Mapping[str, int] = {}
    """Device id -> GPU index; empty where ids are unknown."""
    relayed: bool = False
    """Whether the node's relay hands out the planned GPUs."""
    units: int = 1
    """Units of the resource per GPU: 1 whole GPUs, 0 parts of unknown size."""


class Holding(msgspec.Struct, frozen=True, gc=False):
    """One pod's GPUs on a node. `gpus`: indices in ascending order, None where unknown; `count`: how many it holds,
    in units of the resource; `mask`: those (of which it holds any part) whose positions are sure; `unsure`: how many
    units are held at positions that are not sure."""

    uid: str
    gpus: tuple[int, ...] | None
    how: str
    count: int
    mask: int = 0
    unsure: int = 0


class NodeLedger(msgspec.Struct, frozen=True, gc=False):
    """All holdings of a node, by pod uid, and their sums as the table's columns take them. `parts`: units of each GPU
    held by pods that hold less than the whole of it; () where GPUs are handed out whole."""

    holdings: tuple[Holding, ...] = ()
    sure: int = 0
    likely: int = 0
    unknown: int = 0
    pending: int = 0
    doubled: int = 0  # GPUs (or units of one) that two pods are seen to hold
    parts: tuple[int, ...] = ()
