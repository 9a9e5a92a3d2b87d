"""Fragmentation left over: the ways to serve linked pods that are lost, once the victims are gone and the preemptor has
taken its best GPUs. Summed over all sets of GPUs: their rings (ring_links x 1000) in the empty machine, less those in
what stays free. Only on machines of up to 8 GPUs whose links are known and not all alike, where every position is
known (or must be, since the pod requires links); 0 elsewhere."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from ext_core.links import LinkShapes
from extender.policy.contracts import Bound, Victims

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ext_core.victims import Term


class LeftoverFragmentation:
    """Ways to serve linked pods that are lost in what stays free, on machines of up to 8 GPUs whose links differ and
    whose positions are known; 0 elsewhere.
    """

    name = "leftover_fragmentation"
    unit = "ring links x 1000"
    floor: Bound = ""

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        tables: list[Buffer] = [*victims.leftover]
        return ("mask", tables)


def prices(shapes: LinkShapes, shape: int, gpus: int, wanted: int) -> array[int]:
    """int64[1 << gpus]: the price of each mask of free GPUs, for a preemptor that takes `wanted` of them."""
    whole = shapes.ways(shape, (1 << gpus) - 1) or 0
    made = array("q", bytes(8 << gpus))
    for mask in range(1 << gpus):
        best = shapes.choice(shape, mask, wanted)
        stays = mask & ~best.gpus if best is not None else 0
        made[mask] = max(0, whole - (shapes.ways(shape, stays) or 0))
    return made
