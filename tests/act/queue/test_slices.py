"""Work beside other work."""

from __future__ import annotations

import asyncio

import pytest

from extender.act.controller import gathered
from tests.waiting import run_bounded


def test_where_one_work_fails_the_others_have_ended_when_it_is_raised() -> None:
    """Else they would write on after the Lease is lost, or beside the reading of the seats."""
    ended: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("it failed")

    async def write() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append("write")

    async def test() -> None:
        with pytest.raises(ValueError, match="it failed"):
            await gathered([write(), fail(), write()])
        assert ended == ["write", "write"]

    run_bounded(test())
