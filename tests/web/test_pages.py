"""The debug pages and /metrics: made in slices, so no verb waits for them, over a cluster that changes meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import generate_latest

from extender.cluster import dump
from extender.cluster.dump import BLOCK, in_order
from extender.server.connections import Connection, lost
from extender.web import cluster_pages, decision_page, decisions_page, pages
from extender.web.pages import Pages
from extender.web.slices import SLICE_BYTES, SLICE_SECONDS, Slices
from tests.world import World, pairs, workload

PIECE_BYTES = 16 << 10
"""A piece is made in one go: with so few bytes it takes a fraction of a slice."""


def filled(nodes: int, pods: int) -> World:
    world = World()
    for i in range(nodes):
        world.node(f"n{i:05}", 8, links=pairs(8) if i % 2 else None)
    for i in range(pods):
        world.pod(f"p{i:05}", 1, f"n{i % nodes:05}", held=(i // nodes % 8,) if i % 3 else ())
    return world


def made_of(pieces: Iterator[bytes], between: Callable[[int], None] = lambda i: None) -> Any:
    """The page, with something happening after each piece."""
    made = []
    for i, piece in enumerate(pieces):
        assert len(piece) <= PIECE_BYTES
        made.append(piece)
        between(i)
    return json.loads(b"".join(made))


def test_a_slice_ends_with_its_time_or_its_bytes() -> None:
    time, pauses = itertools.count(), list[float]()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def run(size: int, tick: float) -> list[int]:
        pauses.clear()
        slices = Slices(lambda: next(time) * tick, pause)
        return [len(chunk) async for chunk in slices.of(iter([b"x" * size] * 100))]

    assert asyncio.run(run(1, SLICE_SECONDS / 4.5)) == [5] * 20  # five readings of the clock are a slice
    assert pauses == [SLICE_SECONDS] * 20
    assert asyncio.run(run(SLICE_BYTES // 4, 0.0)) == [SLICE_BYTES] * 25
    assert asyncio.run(run(1, 0.0)) == [100]
    assert asyncio.run(run(0, 2 * SLICE_SECONDS)) == [0] * 100  # work without bytes has pauses too, and can be ended
    assert len(pauses) == 100


def test_all_pages_together_make_one_slice_at_a_time() -> None:
    """However many are asked for, a verb waits for one slice."""
    making: list[int] = []

    def pieces(page: int) -> Iterator[bytes]:
        for _ in range(5):
            making.append(page)
            yield b"x"

    async def pause(seconds: float) -> None:
        making.append(-1)
        for _ in range(3):
            await asyncio.sleep(0)

    async def run() -> None:
        slices = Slices(itertools.count().__next__, pause)

        async def read(page: int) -> None:
            async for _ in slices.of(pieces(page)):
                pass

        await asyncio.gather(*(read(page) for page in range(4)))

    asyncio.run(run())
    assert len([page for page in making if page >= 0]) == 20
    for one, next_ in itertools.pairwise(making):
        assert one == -1 or next_ == -1  # a pause follows each slice


def test_names_are_sorted_block_by_block() -> None:
    names = [f"{i * 7919 % 5000:04}" for i in range(5000)]
    found: list[str] = []
    steps = 0

    def run() -> Iterator[bytes]:
        found.extend((yield from in_order(names)))

    for piece in run():
        assert piece == b""
        steps += 1
    assert found == sorted(names)
    assert steps == 5000 // BLOCK


def test_the_pieces_of_the_state_are_the_state() -> None:
    world = filled(30, 100)
    assert made_of(dump.state_pieces(world.cluster)) == dump.state(world.cluster)


def test_the_cluster_may_change_between_any_two_pieces() -> None:
    """Nothing is raised, what stays is shown once, and the page says which generations it spans."""
    world = filled(700, 700)
    names = set(world.cluster.nodes)
    made: list[Any] = []

    def change(i: int) -> None:
        """A node and a pod come, another node and another pod go."""
        if i % 20 == 0 and i < 300:
            made.append(world.node(f"a{i}", 8))
            made.append(world.pod(f"late{i}", 1, f"n{i:05}"))
            world.gone(f"p{300 + i:05}")
            world.drop("Node", {"metadata": {"name": f"n{300 + i:05}", "uid": f"uid-n{300 + i:05}"}})

    made_by: tuple[Callable[[], Iterator[bytes]], ...] = (
        lambda: dump.state_pieces(world.cluster),
        lambda: cluster_pages.topologies(world.cluster, None),
    )
    for page in made_by:
        made.clear()
        before = world.cluster.generation
        shown = made_of(page(), change)
        assert made
        assert (shown["generation"], shown["generation_last"]) == (before, world.cluster.generation)
        nodes = list(shown["nodes"]) if "nodes" in shown else [one["node"] for one in shown["topologies"]]
        assert nodes == sorted(set(nodes))
        assert {name for name in names if name in world.cluster.gpus.topologies} <= set(nodes) or "nodes" in shown
        world = filled(700, 700)


def test_decisions_may_come_and_go_while_they_are_shown() -> None:
    world = filled(BLOCK * 3, 0)
    for i in range(6):
        world.filter(workload(f"w{i}", 2))
    kept = world.verbs.decisions
    first = world.call("/debug/decisions?nodes=3000", method="GET").json["decisions"]
    assert [len(one["nodes"]) for one in first] == [BLOCK * 3] * 6

    def change(i: int) -> None:
        if i == 5:
            kept._kept.clear()
            world.drop("Node", {"metadata": {"name": "n00003", "uid": "uid-n00003"}})
            world.node("other", 1)

    weights = {entry.name: entry.weight for entry in world.settings.scorers}
    show = lambda one: decision_page.pieces(one, world.cluster, weights, 3000)  # noqa: E731
    shown = made_of(decisions_page.decision_list(list(kept.latest()), None, 20, show), change)
    assert shown["decisions"] == first  # the node that is gone keeps its name
    assert shown["decisions_left_out"] == 0


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


def test_300_decisions_with_20000_nodes_are_made_in_small_pieces() -> None:
    """The question that once took 17 s in one go: no piece of its answer is more than a block of work."""
    world = filled(1100, 0)
    for i in range(3):
        world.filter(workload(f"w{i}", 2))
    weights = {entry.name: entry.weight for entry in world.settings.scorers}
    count = 0
    show = lambda one: decision_page.pieces(one, world.cluster, weights, 20_000)  # noqa: E731
    for piece in decisions_page.decision_list(list(world.verbs.decisions.latest()), None, 300, show):
        assert len(piece) <= PIECE_BYTES
        count += 1
    assert count >= 3 * (1100 + 1100 // BLOCK)  # a node's entry is a piece, a block of the sort is one


def test_metrics_are_made_in_pieces() -> None:
    world = filled(2500, 0)
    pieces = list(world.server.metrics_page.pieces())
    assert len(pieces) >= 30 + 2 * 2500 // (4 * BLOCK)
    assert max(map(len, pieces)) <= PIECE_BYTES
    text = world.call("/metrics", method="GET").body.decode()
    assert 'gpu_extender_cache_objects{kind="Node"} 2500.0' in text
    whole = generate_latest(world.metrics.registry).decode()
    assert re.findall("(?m)^# .*$", text) == re.findall("(?m)^# .*$", whole)


def test_a_tenant_can_not_make_a_piece_long() -> None:
    world = filled(1, 0)
    world.pod("p", 1, "n00000", annotations={"gpu-extender.io/gpus": "0," * 120_000 + "0"})
    assert made_of(dump.state_pieces(world.cluster))["pods"]["uid-p"]["planned"] is None
    from extender.cluster.gpus import statements

    assert statements.indices("0,1") == (0, 1)
    assert statements.indices(",".join(["0"] * 100) + " " * statements.LONGEST) is None


# -- who may ask, and who leaves ---------------------------------------------------------------------------------------


def scope_of(connection: Connection) -> dict[str, Any]:
    connection.lost = False
    return {"type": "http", "connection": weakref.ref(connection)}


def test_more_than_two_pages_at_once_are_refused_and_come_again_later() -> None:
    world = filled(10, 10)
    open_ = [world.server.pages.page(iter([b"{}"])) for _ in range(pages.MOST_PAGES)]
    reply = world.call("/debug/state", method="GET")
    assert reply.status == 429
    assert reply.headers["retry-after"] == "2"
    assert reply.json["error"]["code"] == "busy"
    assert world.call("/metrics", method="GET").status == 200

    async def nothing(*args: Any) -> None:
        pass

    asyncio.run(open_[0]({"type": "http"}, nothing, nothing))  # type: ignore[arg-type]
    assert world.call("/debug/state", method="GET").status == 200


def test_who_leaves_stops_the_work() -> None:
    made = 0

    def pieces() -> Iterator[bytes]:
        nonlocal made
        while True:
            made += 1
            yield b"x" * SLICE_BYTES

    made_pages = Pages(Slices(lambda: 0.0), lost)
    connection = Connection.__new__(Connection)
    scope = scope_of(connection)

    async def send(message: Any) -> None:
        if made == 5:
            connection.lost = True

    async def receive() -> Any:
        raise AssertionError("nothing is to be read")

    asyncio.run(made_pages.page(pieces())(scope, receive, send))
    assert made == 6
    assert made_pages.open == 0


@pytest.mark.parametrize("whole", [False, True])
def test_who_leaves_stops_work_that_has_no_bytes_yet(whole: bool) -> None:
    made, ticks = 0, itertools.count()
    connection = Connection.__new__(Connection)
    scope = scope_of(connection)

    def pieces() -> Iterator[bytes]:
        nonlocal made
        while made < 100:
            made += 1
            connection.lost = made == 5
            yield b""

    async def pause(seconds: float) -> None:
        pass

    async def nothing(*args: Any) -> None:
        pass

    made_pages = Pages(Slices(lambda: float(next(ticks)), pause), lost)  # each piece is a slice
    if whole:
        assert asyncio.run(made_pages.made(pieces(), scope)) == b""
    else:
        asyncio.run(made_pages.page(pieces())(scope, nothing, nothing))  # type: ignore[arg-type]
    assert made == 5


def test_who_reads_too_slowly_is_ended() -> None:
    time = itertools.count(0, 50)
    made_pages = Pages(Slices(), clock=lambda: float(next(time)))

    async def nothing(*args: Any) -> None:
        pass

    with pytest.raises(TimeoutError, match="not read within 120 s"):
        asyncio.run(made_pages.page(iter([b"x" * SLICE_BYTES] * 9))({"type": "http"}, nothing, nothing))  # type: ignore[arg-type]
    assert made_pages.open == 0
