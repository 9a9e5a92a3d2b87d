"""The fixtures of the queue's tests: each brings its `world`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.act.queue.rig import Rig, rig
from tests.world import World


@pytest.fixture
async def one(world: World) -> AsyncIterator[Rig]:
    """An instance of the controller over the `world` of the test."""
    async with rig(world) as instance:
        yield instance
