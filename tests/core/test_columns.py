"""Sets of rows as bits and lists, against plain sets."""

from __future__ import annotations

from array import array
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_core.columns import Columns, kept
from tests.core.worlds import same_error
from tests.reference import columns as plain

rows = st.integers(0, 199) | st.integers(0, 20)
calls = st.lists(
    st.tuples(st.sampled_from(["make", "put", "put", "put", "take", "take", "drop"]), st.integers(0, 5), rows),
    max_size=120,
)


def play(made: list[tuple[str, int, int]]) -> tuple[Columns, plain.Columns]:
    fast, slow = Columns(), plain.Columns()
    for what, number, row in made:
        arguments: tuple[int, ...] = {"make": (), "drop": (number,)}.get(what, (number, row))
        same_error(partial(getattr(fast, what), *arguments), partial(getattr(slow, what), *arguments))
        if number in slow.sets:
            assert fast.count(number) == slow.count(number)
            assert fast.rows(number) == slow.rows(number)
    return fast, slow


@given(calls, st.data())
def test_sets_and_what_is_selected(made: list[tuple[str, int, int]], data: st.DataObject) -> None:
    fast, slow = play([("make", 0, 0)] * 3 + made)
    assert fast.words == slow.words
    member = st.sampled_from([*slow.sets, -1, -2, ~70, ~500]) if slow.sets else st.integers(-9, -1)
    clauses = st.lists(st.tuples(st.booleans(), st.lists(member, max_size=3).map(tuple)), max_size=3).map(tuple)
    base, must = data.draw(st.integers(0, 5)), data.draw(clauses)
    terms = data.draw(st.none() | st.lists(clauses, max_size=3).map(tuple))
    same_error(lambda: fast.select(base, must, terms), lambda: slow.select(base, must, terms))
    if base in slow.sets:
        found = fast.select(base, must, terms)
        assert [*found] == slow.select(base, must, terms)
        asked = data.draw(st.lists(st.integers(-1, 300), max_size=9))
        assert [*kept(array("i", asked), found)] == plain.kept(asked, [*found])


def test_a_set_takes_no_more_than_its_rows_or_one_bit_a_row() -> None:
    """200 sets over 20,000 rows: 100 of one row, 100 of half of them; then all but one row leave each."""
    columns = Columns()
    few, many = ([columns.make() for _ in range(100)] for _ in range(2))
    for i, number in enumerate(few):
        columns.put(number, 100 * i + 99)
    for number in many:
        for row in range(number % 2, 20_000, 2):
            columns.put(number, row)
    assert columns.size() <= 200 * 64 + 100 * 4 + 100 * 20_000 // 8 + 100 * 8
    for number in many:
        for row in range(number % 2 + 2, 20_000, 2):
            columns.take(number, row)
        assert columns.count(number) == 1
    assert columns.size() <= 200 * 64 + 200 * 8 * 512  # lists again
    for number in (*few, *many):
        columns.drop(number)
    assert columns.size() <= 256 * 64


@pytest.mark.parametrize(
    "call", [("put", 1, 0), ("put", 0, -1), ("put", 0, 1 << 24), ("take", 7, 0), ("drop", 3), ("count", -1)]
)
def test_what_is_not_there_is_an_error(call: tuple[Any, ...]) -> None:
    columns = Columns()
    columns.make()
    with pytest.raises(IndexError):
        getattr(columns, call[0])(*call[1:])
