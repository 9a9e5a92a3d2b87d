"""What annotations state about GPUs: a set of GPU indices, as text, as indices and as a bit mask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from extender.objects.records import PodRecord

HELD: Final = "gpu-extender.io/held-gpus"
"""Annotation of a pod: the GPUs that it holds, as an agent saw them."""
PLAN: Final = "gpu-extender.io/gpus"
"""Annotation of a pod: its planned GPUs, as our bind verb chose them."""
MOST: Final = 100_000
"""GPUs of one pod at most; no machine has as many."""
LONGEST: Final = 8_192
"""Characters of a statement: any pod may write 256 KiB, which would take milliseconds each time."""


def indices(text: str) -> tuple[int, ...] | None:
    """ "0,3" or "c1=0,3;c2=5" as ascending GPU indices; None for anything else."""
    found = listed(text)
    return tuple(sorted(found)) if found is not None and len(set(found)) == len(found) else None


def listed(text: str) -> list[int] | None:
    """The indices in the order of the text, each as often as it is written; None where the text is anything else."""
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


def stated_mask(pod: PodRecord, annotation: str) -> int:
    """The GPUs that an annotation of the pod names, as a bit mask; 0 where it names none, or is invalid."""
    text = pod.annotations.get(annotation, "")
    return mask_of(indices(text) or ()) if text else 0


def mask_of(gpus: Iterable[int]) -> int:
    """GPU indices as a bit mask."""
    mask = 0
    for gpu in gpus:
        mask |= 1 << gpu
    return mask


def gpus_of(mask: int) -> tuple[int, ...]:
    """The GPU indices of a bit mask, ascending."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def count_of(pod: PodRecord, resource: str) -> int:
    """GPUs of one resource that the pod asks for; a number that no machine has counts as MOST."""
    return min(MOST, sum(count for name, count in pod.gpus if name == resource))
