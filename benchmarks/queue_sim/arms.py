"""The arms by name."""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmarks.queue_sim.conservative import Conservative
from benchmarks.queue_sim.easy import Easy
from benchmarks.queue_sim.kueue import kueue
from benchmarks.queue_sim.ours import Ours
from benchmarks.queue_sim.places import emptiest, fullest
from benchmarks.queue_sim.pod_by_pod import Coscheduling, Stock
from benchmarks.queue_sim.workloads import QUEUES
from benchmarks.queue_sim.world import Arm, World

Make = Callable[[World, random.Random], Arm]
EASY = "easy"
OURS = "ours"
RIVALS: dict[str, Make] = {
    "stock": lambda world, dice: Stock(world, emptiest, dice),
    "stock, packed": lambda world, dice: Stock(world, fullest, dice),
    "coscheduling": lambda world, dice: Coscheduling(world, fullest, dice),
    "kueue": lambda world, dice: kueue(world, len(QUEUES), dice, strict=False, topology=False),
    "kueue strict": lambda world, dice: kueue(world, len(QUEUES), dice, strict=True, topology=False),
    "kueue tas": lambda world, dice: kueue(world, len(QUEUES), dice, strict=False, topology=True),
    "kueue tas strict": lambda world, dice: kueue(world, len(QUEUES), dice, strict=True, topology=True),
    EASY: lambda world, dice: Easy(world),
    "conservative": lambda world, dice: Conservative(world),
}
ARMS: dict[str, Make] = {**RIVALS, OURS: lambda world, dice: Ours(world)}
