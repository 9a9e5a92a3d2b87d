"""How long a pod waits for assumed pods, against asking filter at every moment at which one of them is forgotten."""

from __future__ import annotations

import random

from tests.ask.asking import explained
from tests.cases import cases
from tests.world import JSON, World, pairs

CASES = cases(100)


def random_world(rng: random.Random) -> tuple[World, JSON]:
    """Nodes that are full, mostly with pods that are assumed for different times. The pod that waits."""
    world = World()
    for n in range(rng.randint(1, 3)):
        world.node(f"n{n}", 8, links=pairs(8), unschedulable=rng.random() < 0.1)
        held = rng.sample(range(8), rng.randint(0, 5))
        for gpu in held:
            world.pod(f"p{n}-{gpu}", 1, f"n{n}", held=[gpu], priority=9)
        for i in range(rng.randint(0, 4)):
            world.now += rng.choice([0.0, 0.2, 0.7])
            pod = world.pod(
                f"a{n}-{i}", rng.choice([1, 2, 2, 4]), links=rng.choice(["required", "preferred", "ignore"])
            )
            world.filter(pod, [f"n{n}"])
    return world, world.pod("p", rng.choice([2, 2, 4, 8]), links=rng.choice(["required", "ignore"]))


def fits(world: World, pod: JSON) -> bool:
    """Whether filter passes the pod on a node now. It is not assumed."""
    open_nodes = [name for name, node in world.cluster.nodes.items() if not node.unschedulable]
    found = bool(world.filter(pod, open_nodes).get("NodeNames"))
    world.verbs.assumed.forget("uid-p")
    return found


def test_a_wait_is_as_long_as_the_filter_rejects_the_pod() -> None:
    waited = never = 0
    for seed in range(CASES):
        world, pod = random_world(random.Random(f"waits-{seed}"))
        shown = explained(world)
        begun = world.now
        assert (shown["verdict"] == "fits") == fits(world, pod), seed
        if shown["verdict"] == "fits":
            continue
        ways = {way["kind"]: way for way in shown["ways_out"]}
        moments = sorted({one.until for one in world.verbs.assumed.current(begun)})
        first = None
        for moment in moments:
            world.now = moment
            if fits(world, pod):
                first = round(moment - begun, 1)
                break
        assert (ways["wait"]["cost"][0]["value"] if "wait" in ways else None) == first, seed
        waited += first is not None
        never += first is None
    assert CASES < 50 or min(waited, never) > CASES // 20, (waited, never)
