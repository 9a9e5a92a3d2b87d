"""A list of our own: every page is read, an API that is not served has no objects, any other error is told."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from extender.kube.client import ApiError
from extender.kube.lists import DEVICE_CLASSES, NODES, PODS, list_all, pages
from extender.objects.records import Event
from tests.kube.api_server import Request, Script, Writer, client_of, failed, listed
from tests.waiting import eventually, run_bounded
from tests.world import GPU, machine, workload


def fetch(script: Script) -> list[Event]:

    async def run() -> list[Event]:
        async with client_of(script) as server:
            return await list_all(server, frozenset({GPU}), (PODS, NODES, DEVICE_CLASSES))

    return run_bounded(run())


def test_every_page_is_read_and_an_absent_api_is_empty() -> None:
    pods = [listed(workload("a", 1), token="next"), listed(workload("b", 1))]
    script = Script([*pods, listed(machine("n"), kind="Node"), failed(404)])
    assert [(event.kind, event.change, event.record.name) for event in fetch(script)] == [
        ("Pod", "set", "a"),
        ("Pod", "set", "b"),
        ("Node", "set", "n"),
    ]
    first, second, *_ = script.requests
    assert "continue" not in first.params
    assert second.params["continue"] == "next"
    assert second.params["fieldSelector"] == PODS.field_selector


def test_an_api_that_refuses_is_an_error() -> None:
    with pytest.raises(ApiError, match="403"):
        fetch(Script([failed(403)]))


def test_a_page_is_bounded_in_bytes_as_a_watched_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenants write objects of 1.4 MB, and 250 of them stand side by side."""
    monkeypatch.setattr("extender.kube.lists.LARGEST_PAGE", 5_000)
    pods = [workload(f"p{i}", 1, annotations={"note": "x" * 1_500}) for i in range(6)]
    limits: list[int] = []

    async def paged(request: Request, writer: Writer) -> None:
        if request.path != PODS.path:
            await listed(kind="Node")(request, writer)
            return
        start, limit = int(request.params.get("continue", 0)), int(request.params["limit"])
        limits.append(limit)
        end = start + limit
        await listed(*pods[start:end], token=str(end) if end < len(pods) else "")(request, writer)

    assert [event.record.name for event in fetch(Script([paged]))] == [f"p{i}" for i in range(6)]
    assert limits[0] == 250
    assert limits[-1] <= 3


async def test_the_next_page_comes_while_one_is_worked_on_and_none_after_the_end() -> None:
    script = Script([listed(machine("a"), token="b", kind="Node"), listed(machine("b"), token="c", kind="Node")])
    async with client_of(script) as server:
        async with aclosing(pages(server, NODES)) as read:
            async for _ in read:
                await eventually(lambda: len(script.requests) == 2)  # and this page is not done yet
                break
        await asyncio.sleep(0.05)
        assert len(script.requests) == 2
        assert len(asyncio.all_tasks()) <= 3  # this one, and the server's connections


def test_a_page_that_fails_ahead_is_reported_after_the_one_before() -> None:
    script = Script([listed(machine("a"), token="b", kind="Node"), failed(500, "no more")])
    seen: list[int] = []

    async def run() -> None:
        async with client_of(script) as server, aclosing(pages(server, NODES)) as read:
            async for page in read:
                seen.append(len(page.items))
                await eventually(lambda: len(script.requests) == 2)

    with pytest.raises(ApiError, match="no more"):
        run_bounded(run())
    assert seen == [1]
