"""One instance or three: the same gates open, and the pods are nominated to the same nodes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from copy import deepcopy

from extender.objects.queueing import GATE
from tests.act.queue.rig import Rig, rig
from tests.kube.objects import Objects
from tests.metamorphic.answers import events
from tests.metamorphic.clusters import CASES, Stated, drawn
from tests.metamorphic.test_other_names import is_gated
from tests.waiting import run_bounded
from tests.world import World

TURNS = 4


async def released(stated: Stated, instances: int) -> dict[str, str]:
    """Name of each pod whose gate is open -> its nominated node."""
    objects, rigs = Objects(), list[Rig]()
    async with AsyncExitStack() as stack:
        for identity in "abc"[:instances]:
            world = World(stated.settings)
            world.wall = stated.wall
            world.cluster.apply(events(stated), world.now)
            rigs.append(await stack.enter_async_context(rig(world, objects, identity)))
        leader, followers = rigs[0], rigs[1:]
        for one in rigs:
            await one.turn()
        pods = [pod for pod in stated.of("Pod") if is_gated(pod)]
        leader.create(*deepcopy(pods))
        for _ in range(TURNS):
            turn = asyncio.create_task(leader.turn())
            while not turn.done():
                for one in followers:
                    one.watch()
                    await one.controller._follow()
                await asyncio.sleep(0.002)
            await turn
        stored = [leader.pod(pod["metadata"]["name"], pod["metadata"]["namespace"]) for pod in pods]
        return {
            pod["metadata"]["name"]: pod["status"].get("nominatedNodeName", "")
            for pod in stored
            if GATE not in [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]
        }


def test_several_instances_start_what_one_starts() -> None:
    opened = 0
    for seed in range(CASES):
        stated = drawn(seed)
        alone = run_bounded(released(stated, 1))
        assert run_bounded(released(stated, 3)) == alone, seed
        opened += len(alone)
    assert opened
