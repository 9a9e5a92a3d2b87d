"""What the search for a gang's victims costs: CPU in all, and the longest slices on the event loop.

    python -m benchmarks.gang_evictions [--nodes 1000] [--rounds 3]

Full machines with eight GPUs, in one domain, whose pods differ in priority and age. Each line is one gang at the head
of the queue; the times are medians over the rounds of the CPU time of this thread, without the garbage collector, which
the server runs between answers.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from extender.preemption.gang_plan import GangSearch
from extender.queue.eviction_plan import EvictionPlan, EvictionPlanner
from extender.queue.placement import JointPlacement
from extender.queue.plan import Planner
from tests.act.queue.rig import gated
from tests.world import WALL, World, pairs

GANGS = (("equal", 16, 8), ("equal", 128, 8), ("mixed", 16, 8), ("mixed", 64, 2), ("gangs", 16, 8), ("gangs", 64, 4))
"""What runs (`equal`: pods of 2 GPUs; `mixed`: of 1 to 8; `gangs`: in gangs that span nodes), pods and GPUs of each."""


class Cost(NamedTuple):
    """CPU seconds of a search, and of each of its slices; what was found."""

    cpu: float
    slices: list[float]
    found: EvictionPlan | str


def fleet(nodes: int, kind: str) -> World:
    """Nodes without a free GPU."""
    rng, world = random.Random(1), World()
    for n in range(nodes):
        world.node(f"n{n:04}", 8, links=pairs(8))
        free = 8
        while free:
            gpus = 2 if kind == "equal" else min(free, rng.choice([1, 1, 2, 2, 4, 8]))
            labels = {"gpu-extender.io/gang": f"g{rng.randrange(nodes)}"} if kind == "gangs" else {}
            age, priority = rng.choice([60, 600, 3600, rng.randrange(9000)]), rng.choice([0, 1, 2, 7])
            notes = {"gpu-extender.io/gang-min": "4"}
            name = f"n{n:04}-{free}"
            world.pod(name, gpus, name[:5], priority=priority, start=WALL - age, labels=labels, annotations=notes)
            free -= gpus
    return world


def planners(world: World, pods: int, gpus: int) -> tuple[Planner, EvictionPlanner]:
    """Those of a server whose queue has a gang at its head."""
    notes = {"gpu-extender.io/gang": "new", "gpu-extender.io/gang-size": str(pods)}
    for i in range(pods):
        world.set("Pod", gated(f"new-{i}", gpus, annotations=notes, priority=5))
    cluster, claims, policy = world.cluster, world.verbs.claims, world.verbs.policy
    placement = JointPlacement(cluster, policy)
    planner = Planner(cluster, claims, placement, lambda: world.now, lambda: world.wall)
    for _ in planner.looks({}):
        pass
    search = GangSearch(cluster, policy, world.settings.preemption)
    plans = EvictionPlanner(cluster, claims, placement, search, lambda: world.now, lambda: world.wall)
    return planner, plans


def searched(planner: Planner, plans: EvictionPlanner) -> Cost:
    """One search."""
    assert planner.head is not None
    steps, slices = plans.steps(planner.head), list[float]()
    while True:
        began = time.thread_time()
        try:
            next(steps)
        except StopIteration as end:
            slices.append(time.thread_time() - began)
            return Cost(sum(slices), slices, end.value)
        slices.append(time.thread_time() - began)


def line(nodes: int, rounds: int, kind: str, pods: int, gpus: int) -> str:
    """The figures of one gang."""
    planner, plans = planners(fleet(nodes, kind), pods, gpus)
    gc.collect()
    gc.disable()
    costs = [searched(planner, plans) for _ in range(rounds)]
    gc.enable()
    cpu, longest = median(one.cpu for one in costs), median(max(one.slices) for one in costs)
    late = median(sorted(one.slices)[len(one.slices) * 99 // 100] for one in costs)
    found = costs[-1].found
    if isinstance(found, str):
        what = found
    else:
        what = f"{len(found.victims)} victims, {'' if found.shown['spec']['certificate']['proved'] else 'not '}proved"
    return (
        f"{kind:6} {pods:4} pods of {gpus}: cpu {cpu:5.2f} s, {len(costs[-1].slices):4} slices, "
        f"p99 {late * 1e3:4.1f} ms, longest {longest * 1e3:4.1f} ms; {what}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each gang."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    for kind, pods, gpus in GANGS:
        print(line(options.nodes, options.rounds, kind, pods, gpus), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
