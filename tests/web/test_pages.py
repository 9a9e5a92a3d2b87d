"""The debug pages and /metrics."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import weakref
from typing import Any

import pytest
from prometheus_client import generate_latest
from starlette.requests import Request

from extender.ask import forks
from extender.ask.forks import Forks
from extender.cluster import dump
from extender.server.connections import Connection, lost
from extender.web import decisions_page
from extender.web.pages import Answer, Pages
from tests import plain
from tests.waiting import run_bounded, wait_for
from tests.web.page.served import running
from tests.world import World, pairs, workload

PIECE_BYTES = 16 << 10
"""A piece of the metrics is made in one go: with so few bytes it takes a fraction of a millisecond."""


def filled(nodes: int, pods: int) -> World:
    world = World()
    for i in range(nodes):
        world.node(f"n{i:05}", 8, links=pairs(8) if i % 2 else None)
    for i in range(pods):
        world.pod(f"p{i:05}", 1, f"n{i % nodes:05}", held=(i // nodes % 8,) if i % 3 else ())
    return world


def test_the_page_of_the_state_is_the_state() -> None:
    world = filled(30, 100)
    assert world.call("/debug/state", method="GET").json == json.loads(json.dumps(dump.state(world.cluster)))


def test_decisions_keep_the_names_of_nodes_that_are_gone() -> None:
    world = filled(20, 0)
    for i in range(6):
        world.filter(workload(f"w{i}", 2))
    first = world.call("/debug/decisions?nodes=3000", method="GET").json["decisions"]
    assert [len(one["nodes"]) for one in first] == [20] * 6
    world.drop("Node", {"metadata": {"name": "n00003", "uid": "uid-n00003"}})
    world.node("other", 1)
    assert world.call("/debug/decisions?nodes=3000", method="GET").json["decisions"] == first


def test_the_answer_has_a_limit_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = filled(50, 0)
    for i in range(10):
        world.filter(workload(f"w{i}", 2))
    whole = world.call("/debug/decisions?nodes=50", method="GET")
    assert (len(whole.json["decisions"]), whole.json["decisions_left_out"]) == (10, 0)
    monkeypatch.setattr(decisions_page, "DECISION_BYTES", len(whole.body) // 3)
    part = world.call("/debug/decisions?nodes=50", method="GET")
    assert part.json["decisions"] == whole.json["decisions"][:4]
    assert part.json["decisions_left_out"] == 6
    assert len(part.body) < len(whole.body) / 2


def test_metrics_are_made_in_pieces() -> None:
    world = filled(2500, 0)
    pieces = list(world.server.metrics_page.pieces())
    assert len(pieces) >= 30
    assert max(map(len, pieces)) <= PIECE_BYTES
    text = world.call("/metrics", method="GET").body.decode()
    assert 'gpu_extender_cache_objects{kind="Node"} 2500.0' in text
    whole = generate_latest(world.metrics.registry).decode()
    assert re.findall("(?m)^# .*$", text) == re.findall("(?m)^# .*$", whole)


def test_a_tenant_can_not_make_a_page_long() -> None:
    world = filled(1, 0)
    world.pod("p", 1, "n00000", annotations={"gpu-extender.io/gpus": "0," * 120_000 + "0"})
    assert dump.state(world.cluster)["pods"]["uid-p"]["planned"] is None
    from extender.cluster import statements

    assert statements.indices("0,1") == (0, 1)
    assert statements.indices(",".join(["0"] * 100) + " " * statements.LONGEST) is None


# -- who may ask, and who leaves ---------------------------------------------------------------------------------------


def scope_of(connection: Connection) -> dict[str, Any]:
    connection.lost = False
    return {"type": "http", "headers": [], "connection": weakref.ref(connection)}


async def served(page: Answer, scope: dict[str, Any], *asked: Any) -> list[Any]:
    """The messages of a page's answer."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is to be read")

    await (await page(Request(scope), *asked))(scope, receive, send)
    return sent


def test_more_pages_than_are_answered_at_once_come_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "MOST_ASKED", 0)
    connection = Connection.__new__(Connection)
    asks = Forks(rest=0.0, nice=0)
    (head, body) = run_bounded(served(Pages(asks, lost).page(lambda: b"{}"), scope_of(connection)))
    assert head["status"] == 429
    assert dict(head["headers"])[b"retry-after"] == b"2"
    assert json.loads(body["body"])["error"]["code"] == "busy"


def test_a_page_states_its_length() -> None:
    connection = Connection.__new__(Connection)
    asks = Forks(rest=0.0, nice=0)
    head, *parts = run_bounded(served(Pages(asks, lost).page(lambda: b"x" * 200_000), scope_of(connection)))
    assert (head["status"], dict(head["headers"])[b"content-length"]) == (200, b"200000")
    assert b"".join(part["body"] for part in parts) == b"x" * 200_000


async def test_who_leaves_ends_the_answer() -> None:
    connection = Connection.__new__(Connection)
    scope = scope_of(connection)

    def endless() -> bytes:
        while True:
            pass

    pages = Pages(Forks(rest=0.0, nice=0), lost)
    asyncio.get_running_loop().call_later(0.2, setattr, connection, "lost", True)
    assert b"".join(part.get("body", b"") for part in await served(pages.page(endless), scope)) == b""
    assert await pages.view(endless)(Request(scope)) == b""


def test_a_page_that_nobody_reads_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process waits with what the kernel does not buffer. Other pages are answered meanwhile."""
    world = filled(2, 0)
    monkeypatch.setattr("extender.cluster.dump.state", lambda *given: "x" * (8 << 20))
    with running(world) as (url, _), socket.socket() as stream:
        port = int(url.rpartition(":")[2])
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.connect(("127.0.0.1", port))
        stream.sendall(b"GET /debug/state HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_for(lambda: world.server.asks._asked == 1)
        assert len(plain.get(f"{url}/debug/topologies").json()["topologies"]) == 2
        assert world.server.asks._asked == 1
        stream.close()
        wait_for(lambda: world.server.asks._asked == 0)
