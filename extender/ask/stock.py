"""What is free: the one count of GPUs that `top`, `map`, the pages and the metrics show.

Each GPU that a node offers is held, reserved or free. Held: a pod of the node has it. Reserved: it is kept for a pod
that is not on the node yet (an assumed or nominated pod, a seat, a reservation), or for a date. Where such a pod
requires links or NICs, all that is not held is kept for it. Free: neither; that is what a pod of the lowest priority
may get, as for `capacity`. An unhealthy GPU is not offered.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import sub
from typing import NamedTuple

from ext_core import survey
from extender.ask.judge import Judge
from extender.ask.machines import probe
from extender.cluster.tables import FIRST_GPU
from extender.reservations.claims import NONE


class Stock(NamedTuple):
    """Of each row, in units of its GPU resources: `gpus` are `held`, `reserved` and `free` together."""

    gpus: Sequence[int]
    held: Sequence[int]
    reserved: Sequence[int]
    free: Sequence[int]
    shapes: Sequence[int]
    """The link shape; 0 where it or the positions of held GPUs are not known."""
    masks: Sequence[int]
    """The GPUs that are not held and not planned for a pod; 0 with shape 0. `free` may be fewer: which of them are
    reserved is not always fixed."""


def stock(judge: Judge, now: float, rows: array[int], without: frozenset[str] = NONE) -> Stock:
    """`now`: by the server's clock; `without`: uids of pods for which nothing counts as reserved."""
    cluster = judge.cluster
    gpus, left_by_pods, _, _ = survey.stock(cluster.tables.nodes, rows)
    _, request = probe(judge, cluster.resources[FIRST_GPU], 1)
    with judge.claims.of(request, now, without=without):
        _, left, shapes, masks = survey.stock(cluster.tables.nodes, rows)
    not_held = list(map(min, gpus, left_by_pods))
    free = list(map(min, not_held, left))
    return Stock(gpus, list(map(sub, gpus, not_held)), list(map(sub, not_held, free)), free, shapes, masks)
