"""What links say of a set of free GPUs, for benchmarks/preemption.py: whether it will do, and what it leaves behind.

Single sets of GPUs are asked of ext_core.links, which the tests hold against its own twin and oracle.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations

from benchmarks.cluster_run import intern
from ext_core.links import LinkShapes
from extender.sim.machines import SimMachine

CERTAIN = 2  # of LinkShapes.certain
PRICED_GPUS = 8  # leftover_fragmentation is 0 on larger machines
_shapes = LinkShapes()


@cache
def _shape(machine: SimMachine) -> int:
    return intern(_shapes, machine)


@cache
def uniform(machine: SimMachine, need: int) -> bool:
    """Whether any `need` of its GPUs are linked, so that counting them is enough."""
    if machine.scope == "gpu-total":
        return need <= machine.gpus
    return all(machine.linked(some) for some in combinations(range(machine.gpus), need))


@cache
def linked(machine: SimMachine, free: int, need: int) -> bool:
    """Whether some `need` of the free GPUs (a mask) are linked."""
    if free.bit_count() < need:
        return False
    return need == 1 or uniform(machine, need) or bool(_shapes.top(_shape(machine), free, need))


@cache
def certain(machine: SimMachine, free: int, need: int) -> bool:
    """Whether the device plugin is sure to hand out linked ones, as our own filter judges `links: required`."""
    if free.bit_count() < need:
        return False
    return need == 1 or uniform(machine, need) or _shapes.certain(_shape(machine), free, need) == CERTAIN


@cache
def stays(machine: SimMachine, free: int, need: int) -> int:
    """The mask that stays free when the pod has the best `need` of them; `free` has as many."""
    if uniform(machine, machine.gpus) and machine.scope == "gpu-total":
        taken = [gpu for gpu in range(machine.gpus) if free >> gpu & 1][:need]
        return free & ~sum(1 << gpu for gpu in taken)
    best = _shapes.choice(_shape(machine), free, need)
    assert best is not None
    return free & ~best.gpus


@cache
def block(machine: SimMachine, free: int) -> int:
    """The size of the largest linked set of free GPUs."""
    return max((size for size in range(1, free.bit_count() + 1) if linked(machine, free, size)), default=0)


@cache
def leftover(machine: SimMachine, free: int, need: int) -> int:
    """The term leftover_fragmentation for this mask of free GPUs: the rings x 1000 of all sets of the empty machine,
    less those in what stays free. 0 where any GPUs will do, and on large machines."""
    if machine.gpus > PRICED_GPUS or uniform(machine, need):
        return 0
    rest = stays(machine, free, need)
    return sum(_rings(machine, mask) for mask in range(1 << machine.gpus) if mask & ~rest)


@cache
def _rings(machine: SimMachine, mask: int) -> int:
    return (_shapes.ring(_shape(machine), mask) or 0) if mask.bit_count() >= 2 else 0
