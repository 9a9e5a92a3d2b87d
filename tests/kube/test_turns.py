"""Bindings of one node reach the API server in the order that was promised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from extender.kube import bindings
from extender.kube.bindings import Turns


class Writes:
    """Asks for Bindings by name. Each is written until it is told to end."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, name: str, *, node: str = "n", first: bool = False) -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._write(name, node, first))
        await settle()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]
        await settle()

    async def _write(self, name: str, node: str, first: bool) -> None:
        async with self.turns.of(node, first=first):
            self.begun.append(name)
            await self._ends[name].wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(test: Callable[[Writes], Awaitable[None]]) -> None:
    async def whole() -> None:
        writes = Writes()
        await test(writes)
        assert not writes.turns._open  # nothing is kept of what has ended

    asyncio.run(whole())


def test_no_later_one_overtakes_a_first_one() -> None:
    async def test(writes: Writes) -> None:
        await writes.ask("before")
        await writes.ask("linked", first=True)  # counted `before` as if it took any GPU: it need not wait
        await writes.ask("later")
        await writes.ask("elsewhere", node="m")
        assert writes.begun == ["before", "linked", "elsewhere"]
        await writes.end("linked")
        assert writes.begun[-1] == "later"
        for name in ("before", "later", "elsewhere"):
            await writes.end(name)

    run(test)


def test_first_ones_come_one_after_the_other() -> None:
    async def test(writes: Writes) -> None:
        for name in "abc":
            await writes.ask(name, first=True)
        await writes.ask("last")
        for name in "abc":
            assert writes.begun[-1] == name
            await writes.end(name)
        assert writes.begun == ["a", "b", "c", "last"]
        await writes.end("last")

    run(test)


def test_who_waits_too_long_gives_up_and_lets_nobody_overtake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "LONGEST", 0.05)

    async def test(writes: Writes) -> None:
        await writes.ask("slow", first=True)
        await writes.ask("second", first=True)
        with pytest.raises(TimeoutError):
            await writes.end("second")
        await writes.ask("third")
        assert writes.begun == ["slow"]  # `second` was never written: `third` still waits for `slow`
        await writes.end("slow")
        await writes.end("third")
        assert writes.begun == ["slow", "third"]

    run(test)
