"""Numbers that are counted, against a plain model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster.numbered import Numbered
from tests.fuzz.sizes import sizes


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=200))
def test_a_number_is_one_value_as_long_as_it_has_users(calls: list[tuple[bool, int]]) -> None:
    numbered, users = Numbered[str](""), dict[str, list[int]]()
    for take, n in calls:
        value = f"v{n}" if n else ""
        if take:
            users.setdefault(value, []).append(numbered.take(value))
        elif users.get(value):
            assert numbered.drop(users[value].pop()) is (value != "" and not users[value])
        live = {value: numbers for value, numbers in users.items() if numbers}
        assert all(len(set(numbers)) == 1 and numbered[numbers[0]] == value for value, numbers in live.items())
        assert len({numbers[0] for numbers in live.values()}) == len(live)
        assert len(numbered) == len(live.keys() - {""})


def test_a_burst_leaves_nothing_behind() -> None:
    numbered = Numbered[int](-1)
    kept = numbered.take(-2)
    for _ in range(3):
        numbers = [numbered.take(n) for n in range(50_000)]
        assert len(set(numbers)) == 50_000
        for number in numbers:
            assert numbered.drop(number)
    assert len(numbered) == 1
    assert numbered[kept] == -2
    assert max(sizes(numbered).values()) < 100  # the lists are short again too


def test_a_number_that_nobody_has_can_not_be_dropped() -> None:
    numbered = Numbered[str]("")
    number = numbered.take("a")
    assert numbered.drop(number)
    assert not numbered.drop(0)
    with pytest.raises(ValueError, match="not in use"):
        numbered.drop(number)
