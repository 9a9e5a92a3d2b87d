"""The tables against lists: any sequence of calls leaves the same rows and chains."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_core.reference import table as lists
from ext_core.table import NodeTable, PodTable
from tests.core.worlds import R, same_error

rows = st.integers(-1, 80)  # 80 > 64: the columns grow
numbers = st.integers(0, 2**40)
wide = st.lists(numbers, min_size=R - 1, max_size=R + 1).map(tuple)  # sometimes of a wrong length
masks = st.integers(0, 2**32 - 1)
counts = st.integers(0, 20)
node_call = st.one_of(
    st.tuples(st.just("add"), st.tuples(rows)),
    st.tuples(st.just("clear"), st.tuples(rows)),
    st.tuples(st.just("set_node"), st.tuples(rows, wide, st.integers(-2, R), counts, masks, st.integers(0, 7))),
    st.tuples(st.just("set_held"), st.tuples(rows, wide, masks, masks, counts, counts)),
    st.tuples(st.just("set_order"), st.tuples(st.lists(rows, max_size=4))),
    st.tuples(st.just("add_claim"), st.tuples(rows, wide, masks, st.booleans())),
    st.tuples(st.just("drop_claims"), st.tuples()),
)
pod_call = st.one_of(
    st.tuples(
        st.just("put"),
        st.tuples(rows, st.integers(-1, 70), counts, wide, masks, counts, st.integers(0, 3), numbers, numbers, counts),
    ),
    st.tuples(st.just("drop"), st.tuples(rows)),
    st.tuples(st.just("mark"), st.tuples(rows, st.integers(-1, 3), st.integers(0, 3))),
)


@given(st.lists(node_call, max_size=30))
def test_node_table(calls: list[tuple[str, tuple[Any, ...]]]) -> None:
    compiled, plain = NodeTable(R), lists.NodeTable(R)
    for method, arguments in [("add", (0,)), *calls]:
        same_error(lambda: getattr(compiled, method)(*arguments), lambda: getattr(plain, method)(*arguments))  # noqa: B023
    assert compiled.height == plain.height
    for row in range(plain.height):
        assert compiled.node(row) == plain.node(row)


@given(st.lists(pod_call, max_size=40))
def test_pod_table(calls: list[tuple[str, tuple[Any, ...]]]) -> None:
    compiled, plain = PodTable(R), lists.PodTable(R)
    for method, arguments in calls:
        same_error(lambda: getattr(compiled, method)(*arguments), lambda: getattr(plain, method)(*arguments))  # noqa: B023
    assert compiled.height == plain.height
    for node in range(-1, 75):
        assert compiled.on(node) == plain.on(node)


def test_rows_that_were_skipped_are_empty_nodes() -> None:
    table = NodeTable(R)
    table.add(2)
    assert table.height == 3
    assert table.node(0) == table.node(2)
    assert table.node(0)["gpu"] == -1  # not resource 0


def test_a_cleared_row_keeps_nothing() -> None:
    table = NodeTable(R)
    for row in (0, 1):
        table.add(row)
    empty = table.node(0)
    table.set_node(1, (1, 2, 3, 4, 5), 3, 1, 0b1111, 7)
    table.set_held(1, (1, 1, 1, 1, 1), 1, 2, 1, 1)
    table.set_order([0, 1])
    table.add_claim(1, (1, 1, 1, 1, 1), 4, True)
    table.clear(1)
    assert table.node(1) == empty


def test_columns_survive_growth() -> None:
    table = NodeTable(R)
    for row in range(200):
        table.add(row)
        table.set_node(row, (row, 2 * row, 3 * row, 4, 0), 3, row, row, 0)
    table.set_held(63, (9, 9, 9, 2, 0), 3, 4, 1, 1)
    table.add(500)
    assert [table.node(row)["shape"] for row in (0, 63, 64, 199)] == [0, 63, 64, 199]
    assert table.node(63)["used"] == (9, 9, 9, 2, 0)
    assert table.node(199)["alloc"] == (199, 398, 597, 4, 0)


def test_claims_count_until_they_are_dropped() -> None:
    table = NodeTable(R)
    table.add(0)
    table.set_node(0, (1000, 1 << 30, 110, 8, 0), 3, 1, 0xFF, 0)
    table.add_claim(0, (100, 1, 1, 2, 0), 0b11, True)  # in flight: tentative
    table.add_claim(0, (100, 1, 1, 4, 0), 0b110, False)  # nominated: not
    assert table.node(0)["claim"] == (200, 2, 2, 6, 0)
    assert (table.node(0)["tentative"], table.node(0)["wanted"]) == (2, 0b111)
    table.drop_claims()
    assert (table.node(0)["claim"], table.node(0)["tentative"], table.node(0)["wanted"]) == ((0,) * 5, 0, 0)


@pytest.mark.parametrize("make", [NodeTable, PodTable, lists.NodeTable, lists.PodTable])
def test_fewer_than_three_resources_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="at least CPU, memory and pod slots"):
        make(2)
