"""Bounds on what victims cost, against the plain definition and against the exact search."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from ext_core import gather, scout, victims
from ext_core.ask import Ask
from tests.core.worlds import GPU, World, asks, build, ints, rows_of, same_error, worlds
from tests.reference import scout as plain

NONE = 2**63 - 1


@given(worlds(), st.data())
def test_bounds(world: World, data: st.DataObject) -> None:
    rows, ask, now = data.draw(rows_of(world)), data.draw(asks), data.draw(st.integers(0, 20_000))
    first = data.draw(st.booleans())
    found = scout.bounds(world.nodes, world.pods, ask, ints(rows), now, first)
    assert ([*found[0]], [*found[1]]) == plain.bounds(world.twin_nodes, world.twin_pods, ask, rows, now, first)


@given(worlds(), st.data())
def test_no_set_of_victims_is_cheaper_than_its_bound(world: World, data: st.DataObject) -> None:
    rows, ask, now = data.draw(rows_of(world)), data.draw(asks), 20_000
    there = gather.victims(world.nodes, world.pods, ask, ints(rows), now)
    n = len(rows)
    if not there.pods:
        return
    read = there.gpus, there.start_ms, there.saved_ms, there.restart_s, there.saves_s, there.ignores
    work = gather.lost(read, now)
    work = gather.unless(work, there.terminating, 0)
    terms: list[victims.Term] = [("max", gather.unless(there.priority, there.terminating, scout.FREE)), ("sum", work)]
    for first in (True, False):
        bounds = scout.bounds(world.nodes, world.pods, ask, ints(rows), now, first)
        columns = list(bounds) if first else list(bounds)[::-1]
        exact = victims.cheapest(there, terms if first else terms[::-1], 10**6)
        for i in range(n):
            cost = (exact.cost[i], exact.cost[n + i])
            if exact.status[i] and any(exact.chosen[there.start[i] : there.start[i + 1]]):
                assert (columns[0][i], columns[1][i]) <= cost
                assert i in scout.within(columns, n, cost)


def test_many_pods_weaken_the_bounds_and_do_not_break_them() -> None:
    puts = [("put", (pod, 0, pod % 3, (0, 0, 1, 1, 0), 0, 0, 0, 1000 * pod)) for pod in range(65)]
    for count, priority, work in ((64, 1, True), (65, 0, False)):  # 24 are evicted; 22 of them have priority 0
        world = build([("add", (0,)), ("set_node", (0, (9, 9, 9, 0, 0), GPU, 0, 0, 4))], puts[:count])
        ask = Ask((0, 0, 0, 24, 0), priority=9)
        found = scout.bounds(world.nodes, world.pods, ask, ints([0]), 100_000, False)
        assert (found[0][0], found[1][0] > 0) == (priority, work)


columns = st.integers(0, 3).flatmap(
    lambda wide: st.lists(st.tuples(*[st.integers(-1, 1)] * wide), max_size=9).map(
        lambda vectors: (len(vectors), [[vector[t] for vector in vectors] for t in range(wide)])
    )
)


@given(columns, st.data())
def test_order(drawn: tuple[int, list[list[int]]], data: st.DataObject) -> None:
    n, wide = drawn
    made = [array("q", column) for column in wide]
    most = data.draw(st.integers(0, 10))
    same_error(lambda: scout.least(made, n, most), lambda: plain.least(wide, n, most))
    if most:
        assert [*scout.least(made, n, most)] == plain.least(wide, n, most)
    cost = data.draw(st.lists(st.integers(-1, 1), min_size=max(0, len(wide) - 1), max_size=len(wide)).map(tuple))
    same_error(lambda: scout.within(made, n, cost), lambda: plain.within(wide, n, cost))
    if len(cost) == len(wide):
        assert [*scout.within(made, n, cost)] == plain.within(wide, n, cost)
    if made:
        same_error(lambda: scout.least([*made, array("q")], n + 1, 1), lambda: plain.least([*wide, []], n + 1, 1))
