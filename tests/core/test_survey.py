"""Columns for a look at the whole cluster, against the plain definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_core import survey
from ext_core.ask import Ask
from ext_core.rows import NodeFacts, NodeUse
from ext_core.table import NodeTable
from tests.core.worlds import R, World, amounts, ask, ints, rows_of, same_error, worlds
from tests.reference import survey as plain

ids = st.integers(0, 3)
asks = st.builds(Ask, amounts(8))


@given(worlds(), st.data())
def test_what_is_free_and_what_is_missing(world: World, data: st.DataObject) -> None:
    rows, asked = data.draw(rows_of(world)), data.draw(asks)
    for resource in range(R):
        found = survey.free(world.nodes, resource, ints(rows))
        assert [*found] == plain.free(world.twin_nodes, resource, rows)
    assert [*survey.short(world.nodes, asked, ints(rows))] == plain.short(world.twin_nodes, asked, rows)
    linked = data.draw(st.lists(st.integers(-1, asked.wanted), min_size=len(rows), max_size=len(rows)))
    wanted = plain.nearest(world.twin_nodes, asked, rows, linked)
    assert survey.nearest(world.nodes, asked, ints(rows), ints(linked)) == wanted


@given(worlds(), st.data())
def test_what_ends(world: World, data: st.DataObject) -> None:
    for pod in range(world.pods.height):
        marks = data.draw(st.tuples(ids, ids, ids))
        world.pods.mark(pod, *marks)
        world.twin_pods.mark(pod, *marks)
    gone = data.draw(st.lists(st.integers(0, world.pods.height), max_size=2))
    for pod in {pod for pod in gone if pod < world.pods.height}:
        world.pods.drop(pod)
        world.twin_pods.drop(pod)
    assert [*survey.terminating(world.pods)] == plain.terminating(world.twin_pods)


@given(worlds(), st.data())
def test_machines_that_are_alike(world: World, data: st.DataObject) -> None:
    rows = data.draw(rows_of(world))
    assert [*survey.machines(world.nodes, ints(rows))] == plain.machines(world.twin_nodes, rows)


@given(worlds(), st.data())
def test_what_there_is_of_gpus(world: World, data: st.DataObject) -> None:
    rows = data.draw(rows_of(world))
    found = survey.stock(world.nodes, ints(rows))
    assert tuple(map(list, found)) == plain.stock(world.twin_nodes, rows)


def test_of_equal_rows_the_first_is_nearest_and_alike_ones_have_one_number() -> None:
    nodes = NodeTable(R)
    for row, gpus in enumerate((4, 8, 8, 4)):
        nodes.add(row)
        nodes.set_node(row, NodeFacts((0, 0, 110, gpus, 0), 3, 0, (1 << gpus) - 1, 6))
        nodes.set_held(row, NodeUse((0, 0, 0, 2, 0), 3, 0, 0, 0))
    rows, anywhere = ints([0, 1, 2, 3]), ints([-1] * 4)
    assert survey.nearest(nodes, ask(3, 8), rows, anywhere) == (1, 2, 0.0)
    assert survey.nearest(nodes, ask(3, 8), rows, ints([-1, -1, 7, -1])) == (1, 2, 0.0)
    assert survey.nearest(nodes, ask(3, 2), rows, anywhere) is None
    assert [*survey.machines(nodes, rows)] == [0, 1, 1, 0]


def test_wrong_arguments() -> None:
    nodes, other = NodeTable(R), Ask((0, 0, 1, 1))
    nodes.add(0)
    with pytest.raises(ValueError, match="no such resource"):
        survey.free(nodes, R, ints([0]))
    for rows in ([1], [-1]):
        same_error(lambda rows=rows: survey.free(nodes, 0, ints(rows)), lambda: _raise(IndexError))  # type: ignore[misc]
    with pytest.raises(ValueError, match="resources"):
        survey.short(nodes, other, ints([0]))
    with pytest.raises(ValueError, match="length"):
        survey.nearest(nodes, ask(3, 1), ints([0]), ints([]))


def _raise(kind: type[Exception]) -> None:
    raise kind("row outside of the table")
