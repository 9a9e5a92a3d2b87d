"""Where the rivals place a gang: equal pods on the free GPUs of equal nodes.

`best_fit` is the heart of Kueue's TAS and of Slurm's tree: the largest capacity first, and the last domain is the
smallest that covers the rest. It needs the fewest domains, not the least left over.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from benchmarks.queue_sim.gangs import Gang, Seats, Shape, capacities

Place = Callable[[Sequence[int], Shape, Gang], Seats | None]
"""(free GPUs of each node, shape, gang) -> its seats, or None where it does not fit as a whole."""
Choose = Callable[[Sequence[int], int, random.Random], int | None]
"""(free GPUs of each node, GPUs of one pod, dice) -> a node for the pod, or None."""


def best_fit(room: Iterable[tuple[int, int]], pods: int) -> list[tuple[int, int]] | None:
    """(domain, pods) pairs out of (domain, capacity) pairs; None where the sum is too small. Ties: the lower domain."""
    order = sorted((pair for pair in room if pair[1]), key=lambda pair: (-pair[1], pair[0]))
    chosen: list[tuple[int, int]] = []
    for i, (domain, capacity) in enumerate(order):
        if capacity >= pods:
            last, _ = min((pair for pair in order[i:] if pair[1] >= pods), key=lambda pair: (pair[1], pair[0]))
            return [*chosen, (last, pods)]
        chosen.append((domain, capacity))
        pods -= capacity
    return None


def one_level(sums: Sequence[int], pods: int) -> int | None:
    """The smallest domain that holds all pods; None where none does."""
    fitting = [(capacity, domain) for domain, capacity in enumerate(sums) if capacity >= pods]
    return min(fitting)[1] if fitting else None


def tree(free: Sequence[int], shape: Shape, gang: Gang) -> Seats | None:
    """The smallest rack that holds the gang, else the smallest block, else the cluster: of these the fewest racks, and
    of those the fewest nodes. Kueue's TAS with the BestFit profile and `podset-preferred-topology: rack`; Slurm's
    topology/tree. A gang that requires a rack gets one or None."""
    room = capacities(free, gang.gpus)
    sums = [sum(room[rack.start : rack.stop]) for rack in shape.rack_ranges]
    rack = one_level(sums, gang.pods)
    racks: Sequence[int]
    if rack is not None:
        racks = [rack]
    elif gang.required:
        return None
    else:
        racks = range(len(sums))
        blocks = [sum(sums[i : i + shape.racks]) for i in range(0, len(sums), shape.racks)]
        block = one_level(blocks, gang.pods)
        if block is not None:
            racks = range(block * shape.racks, (block + 1) * shape.racks)
        fewest = best_fit([(i, sums[i]) for i in racks], gang.pods)
        if fewest is None:
            return None
        racks = [i for i, _ in fewest]
    nodes = best_fit([(node, room[node]) for i in racks for node in shape.rack_ranges[i]], gang.pods)
    return None if nodes is None else dict(nodes)


def tas(free: Sequence[int], shape: Shape, gang: Gang) -> Seats | None:
    """Kueue's TAS: a single pod states no topology and takes the least free capacity, a gang goes by `tree`."""
    if gang.pods > 1:
        return tree(free, shape, gang)
    node = fullest(free, gang.gpus, None)
    return None if node is None else {node: 1}


def fullest(free: Sequence[int], gpus: int, dice: random.Random | None) -> int | None:
    """A node for one pod under NodeResourcesFit's MostAllocated; ties by the dice, without them the first."""
    return _extreme(min, free, gpus, dice)


def emptiest(free: Sequence[int], gpus: int, dice: random.Random | None) -> int | None:
    """A node for one pod under LeastAllocated, kube-scheduler's default."""
    return _extreme(max, free, gpus, dice)


def _extreme(
    which: Callable[[Iterable[int]], int], free: Sequence[int], gpus: int, dice: random.Random | None
) -> int | None:
    fitting = [have for have in free if have >= gpus]
    if not fitting:
        return None
    wanted = which(fitting)
    if dice is None:
        return free.index(wanted)
    return dice.choice([node for node, have in enumerate(free) if have == wanted])
