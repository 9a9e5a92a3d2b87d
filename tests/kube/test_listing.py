"""A list of our own: every page is read, an API that is not served has no objects, any other error is told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from extender.kube.client import ApiError, ApiServer
from extender.kube.listing import list_all
from extender.kube.reflector import DEVICE_CLASSES, NODES, PODS
from extender.objects.event import Event
from tests.kube.api_server import Script, failed, listed, serving
from tests.world import GPU, machine, workload


def fetch(script: Script) -> list[Event]:
    async def headers() -> Mapping[str, str]:
        return {}

    async def run() -> list[Event]:
        async with serving(script) as url, ApiServer(url, headers=headers) as server:
            return await list_all(server, frozenset({GPU}), (PODS, NODES, DEVICE_CLASSES))

    return asyncio.run(run())


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
