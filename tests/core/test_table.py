"""The tables against lists: any sequence of calls leaves the same rows and chains."""

from __future__ import annotations

from array import array
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_core.rows import NodeFacts, NodeUse, PodRow
from ext_core.table import NodeTable, PodTable
from tests.core.worlds import R, call, same_error
from tests.reference import table as lists


@st.composite
def many_claims(draw: st.DrawFn) -> tuple[array[int], array[int], array[int], int, array[int]]:
    """Columns of claims, sometimes of a wrong length, and positions to skip."""
    count = draw(st.integers(0, 6))
    width = R * count + draw(st.sampled_from([0, 0, 0, 1]))
    columns = (
        array("i", draw(st.lists(st.integers(-1, 3), min_size=count, max_size=count))),
        array("q", draw(st.lists(st.integers(-2, 2), min_size=count, max_size=count))),
        array("q", draw(st.lists(st.integers(0, 2**61), min_size=width, max_size=width))),
    )
    skipped = array("i", sorted(draw(st.sets(st.integers(0, 6)))))
    return (*columns, draw(st.integers(-2, 2)), skipped)


rows = st.integers(-1, 80)  # 80 > 64: the columns grow
numbers = st.integers(0, 2**40)
wide = st.lists(numbers, min_size=R - 1, max_size=R + 1).map(tuple)  # sometimes of a wrong length
masks = st.integers(0, 2**32 - 1)
counts = st.integers(0, 20)
models = st.sampled_from([-1, 0, 63, 64])
parts = st.lists(st.integers(-1, 1000), max_size=17).map(tuple)
node_call = st.one_of(
    st.tuples(st.just("add"), st.tuples(rows)),
    st.tuples(st.just("clear"), st.tuples(rows)),
    st.tuples(st.just("set_node"), st.tuples(rows, wide, st.integers(-2, R), counts, masks, st.integers(0, 7))),
    st.tuples(
        st.just("set_node"),
        st.tuples(rows, wide, st.just(3), counts, masks, st.just(4), st.sampled_from([0, 1, 4, 2**20]), models),
    ),
    st.tuples(st.just("set_held"), st.tuples(rows, wide, masks, masks, counts, counts)),
    st.tuples(st.just("set_held"), st.tuples(rows, wide, masks, masks, counts, counts, parts)),
    st.tuples(st.just("set_used"), st.tuples(rows, wide)),
    st.tuples(st.just("set_served"), st.tuples(st.lists(rows, max_size=4), st.sampled_from([0, 8, 24, 128, 4, 256]))),
    st.tuples(st.just("set_order"), st.tuples(st.lists(rows, max_size=4))),
    st.tuples(st.just("set_order"), st.tuples(st.lists(rows, max_size=4), st.integers(-1, 5))),
    st.tuples(st.just("add_claim"), st.tuples(rows, wide, masks, st.booleans())),
    st.tuples(st.just("add_claim"), st.tuples(rows, wide, masks, st.booleans(), st.booleans())),
    st.tuples(st.just("add_claims"), many_claims()),
    st.tuples(st.just("drop_claims"), st.tuples()),
)
pod_call = st.one_of(
    st.tuples(
        st.just("put"),
        st.tuples(rows, st.integers(-1, 70), counts, wide, masks, counts, st.integers(0, 3), numbers, numbers, counts),
    ),
    st.tuples(st.just("drop"), st.tuples(rows)),
    st.tuples(st.just("hold"), st.tuples(rows, masks, counts)),
    st.tuples(st.just("believe"), st.tuples(rows, st.integers(0, 1000))),
    st.tuples(st.just("mark"), st.tuples(rows, st.integers(-1, 3), st.integers(0, 3))),
)


@given(st.lists(node_call, max_size=30))
def test_node_table(calls: list[tuple[str, tuple[Any, ...]]]) -> None:
    compiled, plain = NodeTable(R), lists.NodeTable(R)
    for one in [("add", (0,)), *calls]:
        same_error(partial(call, compiled, one), partial(call, plain, one))
    assert compiled.height == plain.height
    for row in range(plain.height):
        assert compiled.node(row) == plain.node(row)
        assert compiled.version_of(row) == plain.version_of(row)
    assert len({compiled.version_of(row) for row in range(plain.height)}) == plain.height
    assert compiled.claimed_rows() == plain.claimed_rows()


@given(st.lists(pod_call, max_size=40))
def test_pod_table(calls: list[tuple[str, tuple[Any, ...]]]) -> None:
    compiled, plain = PodTable(R), lists.PodTable(R)
    for one in calls:
        same_error(partial(call, compiled, one), partial(call, plain, one))
    assert compiled.height == plain.height
    for node in range(-1, 75):
        assert compiled.on(node) == plain.on(node)
        assert compiled.used(node) == plain.used(node)
    for pod in range(plain.height):
        assert compiled.marks(pod) == plain.marks(pod)
        assert compiled.holds(pod) == plain.holds(pod)
        if pod in plain.rows:
            assert compiled.row(pod) == plain.row(pod)
        else:
            assert compiled.row(pod).node == -1


@pytest.mark.parametrize("make", [PodTable, lists.PodTable])
def test_no_number_of_pods_makes_a_sum_wrap_and_all_of_it_is_taken_back(make: Any) -> None:
    table, largest = make(R), 2**46
    for pod in range(70_000):
        table.put(pod, PodRow(3, 0, (largest, largest - 1, 1, pod % 2, 7), 0, 0, 0))
    assert table.used(3) == (2**61, 2**61, 70_000, 35_000, 490_000)
    for pod in range(69_990):
        table.drop(pod)
    assert table.used(3) == (10 * largest, 10 * (largest - 1), 10, 5, 70)
    table.put(69_990, PodRow(3, 0, (1, 2, 3, 4, 5), 0, 0, 0))  # it asks for less
    table.put(69_991, PodRow(2, 0, (1, 2, 3, 4, 5), 0, 0, 0))  # it moves
    assert table.used(3) == (8 * largest + 1, 8 * (largest - 1) + 2, 11, 8, 61)
    assert table.used(2) == (1, 2, 3, 4, 5)
    assert table.used(1_000_000) == table.used(-1) == (0,) * R


def test_an_amount_that_is_none_leaves_the_row_and_the_sums() -> None:
    table = PodTable(R)
    table.put(0, PodRow(1, 5, (1, 2, 3, 4, 5), 0, 0, 0))
    for amounts in ((9, 9, 9, 9, 2**63), (9, 9, 9, 9, None)):
        with pytest.raises((OverflowError, TypeError)):
            table.put(0, PodRow(2, 6, amounts, 0, 0, 0))  # type: ignore[arg-type]
    assert table.row(0) == PodRow(1, 5, (1, 2, 3, 4, 5), 0, 0, 0)
    assert table.used(1) == (1, 2, 3, 4, 5)


def test_rows_that_were_skipped_are_empty_nodes() -> None:
    table = NodeTable(R)
    table.add(2)
    assert table.height == 3
    assert table.node(0) == table.node(2)
    assert table.node(0).gpu == -1  # not resource 0


def test_a_cleared_row_keeps_nothing() -> None:
    table = NodeTable(R)
    for row in (0, 1):
        table.add(row)
    empty = table.node(0)
    table.set_node(1, NodeFacts((1, 2, 3, 4, 5), 3, 1, 0b1111, 7, 1000, 9))
    table.set_held(1, NodeUse((1, 1, 1, 1, 1), 1, 2, 1, 1, (0, 500)))
    table.set_order([0, 1])
    table.add_claim(1, (1, 1, 1, 1, 1), 4, True, True)
    table.clear(1)
    assert table.node(1) == empty


def test_columns_survive_growth() -> None:
    table = NodeTable(R)
    for row in range(200):
        table.add(row)
        table.set_node(row, NodeFacts((row, 2 * row, 3 * row, 4, 0), 3, row, row, 0))
    table.set_held(63, NodeUse((9, 9, 9, 2, 0), 3, 4, 1, 1))
    table.add(500)
    assert [table.node(row).shape for row in (0, 63, 64, 199)] == [0, 63, 64, 199]
    assert table.node(63).used == (9, 9, 9, 2, 0)
    assert table.node(199).alloc == (199, 398, 597, 4, 0)


def test_claims_count_until_they_are_dropped() -> None:
    table = NodeTable(R)
    table.add(0)
    table.set_node(0, NodeFacts((1000, 1 << 30, 110, 8, 0), 3, 1, 0xFF, 0))
    table.add_claim(0, (100, 1, 1, 2, 3), 0b11, True)  # in flight: tentative
    table.add_claim(0, (100, 1, 1, 4, 0), 0b110, False)  # nominated: not
    assert table.node(0).claim == (200, 2, 2, 6, 3)
    assert (table.node(0).tentative, table.node(0).wanted) == ((100, 1, 1, 2, 3), 0b111)
    table.add_claim(0, (100, 1, 1, 1, 0), 0, True, True)  # of a lower priority
    assert (table.node(0).tentative, table.node(0).evictable) == ((200, 2, 2, 3, 3), (100, 1, 1, 1, 0))
    table.drop_claims()
    assert (table.node(0).claim, table.node(0).tentative, table.node(0).wanted) == ((0,) * 5, (0,) * 5, 0)
    assert table.node(0).evictable == (0,) * 5


@pytest.mark.parametrize("make", [NodeTable, lists.NodeTable])
def test_a_claim_takes_equal_parts_of_the_gpus_that_it_wants(make: Any) -> None:
    table = make(R)
    table.add(0)
    table.set_node(0, NodeFacts((1000, 1 << 30, 110, 4000, 0), 3, 0, 0b1111, 4, 1000))
    table.add_claim(0, (0, 0, 1, 250, 0), 0b0001, True)  # a quarter of GPU 0
    table.add_claim(0, (0, 0, 1, 1000, 0), 0b0110, True)  # half of 1 and half of 2
    table.add_claim(0, (0, 0, 1, 1000, 0), 0b1000, True)  # the whole of 3
    assert table.node(0).asked[:4] == (250, 500, 500, 0)
    assert table.node(0).wanted == 0b1000
    table.drop_claims()
    assert table.node(0).asked == (0,) * 16
    table.add_claim(0, (0, 0, 1, 1000, 0), 0, True)  # nobody knows which
    assert table.node(0).asked == (0,) * 16


@pytest.mark.parametrize("make", [NodeTable, lists.NodeTable])
def test_every_change_of_a_row_has_a_version_of_its_own(make: Any) -> None:
    table = make(R)
    table.add(0)
    table.add(1)
    seen = [table.version_of(0), table.version_of(1)]
    for change in (
        lambda: table.set_node(0, NodeFacts((1, 1, 1, 1, 0), 3, 0, 1, 4)),
        lambda: table.set_held(0, NodeUse((0,) * R, 0, 0, 0, 0)),
        lambda: table.set_used(0, (1,) * R),
        lambda: table.add_claim(0, (0,) * R, 0, False),
        table.drop_claims,
        lambda: table.clear(0),
    ):
        change()
        seen.append(table.version_of(0))
    table.drop_claims()  # nothing to drop
    table.set_used(0, (0,) * R)  # as they are
    assert seen[-1] == table.version_of(0)
    assert len(set(seen)) == len(seen)
    assert table.version_of(1) == seen[1]


@pytest.mark.parametrize("make", [NodeTable, PodTable, lists.NodeTable, lists.PodTable])
def test_fewer_than_three_resources_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="at least CPU, memory and pod slots"):
        make(2)
