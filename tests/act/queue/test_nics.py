"""NICs in the queue: the pods of a gang get GPUs with NICs of their own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.act.queue.rig import SETTINGS, rig
from tests.act.queue.test_controller import PLAN, gang
from tests.decide.test_nics import NONE_NEAR, ONE_A_SWITCH, node, wish
from tests.world import World

APART = {frozenset(pair) for pair in ((0, 1), (2, 3), (4, 5), (6, 7))}
"""GPUs that share a NIC."""


def plans(one: Any, pods: int) -> list[tuple[str, frozenset[int]]]:
    """(node, GPUs) of each pod of the gang."""
    found = [one.pod(f"g-{i}") for i in range(pods)]
    return [
        (
            pod["status"].get("nominatedNodeName", ""),
            frozenset(map(int, pod["metadata"]["annotations"][PLAN].split(","))),
        )
        for pod in found
    ]


@pytest.mark.parametrize("nics", ["", "required"])
async def test_each_pod_of_a_gang_gets_nics_of_its_own(nics: str) -> None:
    """Four pods of two GPUs on one machine of eight: without a wish they would be the pairs behind one switch."""
    world = World(SETTINGS)
    node(world, "n1", ONE_A_SWITCH)
    world.cluster.plans_come()

    async with rig(world) as one:
        one.create(*_wished(gang("g", 4, 2), nics))
        await one.turn()
        placed = plans(one, 4)
        assert sorted(gpu for _, gpus in placed for gpu in gpus) == list(range(8))
        assert not APART & {gpus for _, gpus in placed}


async def test_a_gang_that_ignores_nics_is_placed_as_before() -> None:
    world = World(SETTINGS)
    node(world, "n1", ONE_A_SWITCH)
    world.cluster.plans_come()

    async with rig(world) as one:
        one.create(*_wished(gang("g", 4, 2), "ignore"))
        await one.turn()
        assert {gpus for _, gpus in plans(one, 4)} == APART


@pytest.mark.parametrize(("pods", "placed"), [(2, True), (3, False)])
async def test_required_nics_hold_for_a_whole_gang(pods: int, placed: bool) -> None:
    """A pod of four GPUs takes one of each switch: two pods fit on a machine, and n1 has no NICs near its GPUs."""
    world = World(SETTINGS)
    node(world, "n1", NONE_NEAR)
    node(world, "n2", ONE_A_SWITCH)
    world.cluster.plans_come()

    async with rig(world) as one:
        one.create(*_wished(gang("g", pods, 4), "required"))
        await one.turn()
        assert [one.is_open(f"g-{i}") for i in range(pods)] == [placed] * pods
        if placed:
            found = plans(one, pods)
            assert {where for where, _ in found} == {"n2"}
            assert all(len({gpu // 2 for gpu in gpus}) == 4 for _, gpus in found)


def _wished(pods: list[Any], nics: str) -> list[Any]:
    for pod in pods:
        pod["metadata"]["annotations"] |= wish(nics) if nics else {}
    return pods
