"""Disjoint linked sets of GPUs, against trying all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_core import link_sets
from tests.core.worlds import KINDS, SHAPES, masks
from tests.reference import link_sets as plain

KERNEL, TWIN = link_sets.LinkSets(SHAPES), plain.LinkSets(SHAPES)


@given(st.sampled_from(sorted(KINDS)), masks(8), st.lists(st.integers(2, 5), max_size=4))
def test_the_sets_are_those_of_the_definition(kind: str, free: int, sizes: list[int]) -> None:
    shape, gpus = KINDS[kind]
    if shape:
        sizes.sort(reverse=True)
        free &= (1 << gpus) - 1
        assert KERNEL.sets(shape, free, sizes) == TWIN.sets(shape, free, sizes)


@given(st.sampled_from(sorted(KINDS)), masks(8), st.integers(2, 5))
def test_most_is_how_many_sets_of_a_size_fit(kind: str, free: int, size: int) -> None:
    shape, gpus = KINDS[kind]
    if shape:
        free &= (1 << gpus) - 1
        assert KERNEL.most(shape, free, size) == TWIN.most(shape, free, size)


def test_the_first_set_leaves_the_others_room() -> None:
    """DGX-1V: of GPUs 0, 1, 3 and 7 the best pair is 0 and 3, two links; but then 1 and 7 are not linked."""
    shape, _ = KINDS["dgx-1v"]
    free = 0b1000_1011
    assert KERNEL.sets(shape, free, [2]) == [1 << 0 | 1 << 3]
    assert KERNEL.sets(shape, free, [2, 2]) == [0b0000_0011, 0b1000_1000]
    assert KERNEL.sets(shape, free, [2, 2, 2]) is None


def test_pairs_hold_no_three() -> None:
    shape, _ = KINDS["pairs"]
    assert KERNEL.sets(shape, 0b1111, [2, 2]) == [0b11, 0b1100]
    assert KERNEL.sets(shape, 0b0110, [2]) is None
    assert KERNEL.sets(shape, 0b1111, [3]) is None


@pytest.mark.parametrize("sizes", [[1], [17], [2, 3]])
def test_other_sizes_are_an_error(sizes: list[int]) -> None:
    for sets in (KERNEL, TWIN):
        with pytest.raises(ValueError, match="descending"):
            sets.sets(KINDS["pairs"][0], 0b1111, sizes)
        with pytest.raises(ValueError, match="2 to 16"):
            sets.most(KINDS["pairs"][0], 0b1111, 17)
