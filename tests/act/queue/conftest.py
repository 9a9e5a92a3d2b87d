"""The fixtures of the queue's tests. Many bring a `world` of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.act.queue.rig import Rig, rig, world_of
from tests.world import World


@pytest.fixture
def world() -> World:
    """Two nodes with 8 GPUs."""
    return world_of()


@pytest.fixture
async def one(world: World) -> AsyncIterator[Rig]:
    """An instance of the controller over the `world` of the test."""
    async with rig(world) as instance:
        yield instance
