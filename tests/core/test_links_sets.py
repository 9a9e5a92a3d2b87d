"""Every free set of machines of up to 8 GPUs, and samples of 16: the chosen set and the plugin's, by brute force."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_core import link_sets
from ext_core.links import LinkShapes
from extender.sim.machines import NvidiaBestEffort, PluginPanicked
from tests.core.test_links import LEVELS, MACHINES, ids, intern, machine, mask
from tests.core.worlds import KINDS, SHAPES, masks
from tests.reference import link_sets as plain
from tests.reference.links import Graph

SIXTEEN = range(16)
PAIRS_AND_HALVES = [[4 * (i // 2 == j // 2) or int(i // 8 == j // 8) for j in SIXTEEN] for i in SIXTEEN]


def sixteen(pcie: list[list[int]]) -> tuple[LinkShapes, int]:
    """16 GPUs behind switches, with these PCIe levels."""
    shapes = LinkShapes()
    links = [[6 * (i != j) for j in SIXTEEN] for i in SIXTEEN]
    pcie = [[level * (i != j) for j, level in enumerate(row)] for i, row in enumerate(pcie)]
    return shapes, intern(shapes, links, gpu_total=True, pcie=pcie, plugin="nvidia")


def graph(name: str) -> Graph:
    """The definitions, for a machine of the catalogue under NVIDIA's plugin."""
    entry = MACHINES[name]
    levels = [[LEVELS.index(level) for level in row] for row in entry["pcie"]]
    return Graph(entry["links"], entry["nvswitch"], levels, None, "nvidia")


@pytest.mark.parametrize("name", ["dgx1-v100", "dgx-a100", "h100-nvl-8", "rtxpro6000-6", "hgx-b200-8"])
def test_the_choice_is_the_best_of_all_sets(name: str) -> None:
    shapes, shape, full = machine(name, "nvidia")
    slow = graph(name)

    @lru_cache(None)
    def ring(gpus: tuple[int, ...]) -> int:
        return shapes.ring(shape, mask(*gpus)) or 0  # shown right elsewhere

    slow.ring = ring
    left, ways, near = (lru_cache(None)(f) for f in (slow.left, slow.ways, slow.near))

    def judged(free: tuple[int, ...], some: tuple[int, ...]) -> list[int]:
        rest = tuple(i for i in free if i not in some)
        future = slow.future(rest) + slow.future(some)
        return [-ring(some), -left(rest), -future, -ways(rest) - ways(some), -near(some), -near(rest), *some]

    for free in range(1, full + 1):
        for k in range(1, free.bit_count() + 1):
            sets = combinations(ids(free), k)
            chosen = shapes.choice(shape, free, k)
            assert chosen is not None
            assert ids(chosen.gpus) == min(sets, key=lambda some: judged(ids(free), some)), (free, k)


@pytest.mark.parametrize("name", ["dgx1-v100", "dgx-a100", "h100-nvl-8", "rtxpro6000-6", "pcie-8-pxb"])
def test_what_the_plugin_hands_out_is_what_all_splits_say(name: str) -> None:
    shapes, shape, full = machine(name, "nvidia")
    slow = graph(name)
    for free in range(1, full + 1):
        for k in range(1, free.bit_count() + 1):
            shares = slow.answers(ids(free), k)
            assert shares is not None
            wanted = [(mask(*s), round(float(n), 9)) for s, n in sorted(shares.items()) if len(s) == k]
            assert shapes.handed_out(shape, free, k) == wanted, (free, k)
            lost = sum((n for s, n in shares.items() if len(s) != k), Fraction(0))
            assert (shapes.crash(shape, free, k) or 0) == -(-lost.numerator * 1_000_000 // lost.denominator)


def test_known_counts_of_unlucky_free_sets() -> None:
    # Free sets at which the plugin gives a pair with fewer links than the best free pair has, though it could.
    shapes, shape, full = machine("dgx1-v100", "nvidia")
    frees = [free for free in range(full + 1) if free.bit_count() >= 2]
    worse = []
    for free in frees:
        best = shapes.top(shape, free, 2) or 0
        if any((shapes.ring(shape, pair) or 0) < best for pair, _ in shapes.handed_out(shape, free, 2) or ()):
            worse.append(free)
    assert (len(frees), len(worse)) == (247, 8)
    assert shapes.handed_out(shape, mask(0, 2, 4, 5), 2) == [(mask(4, 5), 1.0)]


def test_empty_places_are_never_spread() -> None:
    # 5 of 8: the split is 5 + 3, never 4 + 4, though with two halves of 4 that would have more points.
    shapes, shape, full = machine("dgx1-v100", "nvidia")
    answers = shapes.handed_out(shape, full, 5)
    assert answers
    assert all(s.bit_count() == 5 for s, _ in answers)
    assert shapes.crash(shape, full, 5) == 0


@pytest.mark.parametrize(
    ("name", "free", "k"), [("dgx1-v100", 255, 2), ("dgx-a100", 117, 3), ("h100-nvl-8", 223, 3), ("h100-nvl-8", 253, 3)]
)
def test_shares_are_what_random_orders_give(name: str, free: int, k: int) -> None:
    shapes, shape, _ = machine(name, "nvidia")
    entry = MACHINES[name]
    plugin = NvidiaBestEffort(entry["links"], entry["pcie"], "gpu-total" if entry["nvswitch"] else "pair")
    rng = random.Random(3)
    seen: Counter[int] = Counter()
    for _ in range(3000):
        try:
            seen[mask(*plugin.choose(ids(free), k, rng))] += 1
        except PluginPanicked:
            seen[0] += 1
    shares = dict(shapes.handed_out(shape, free, k) or ())
    shares[0] = 1 - sum(shares.values())
    assert all(abs(seen[s] / 3000 - shares.get(s, 0)) < 0.04 for s in {*seen, *shares})


# ---- sixteen


def test_sixteen_gpus_by_two_four_and_eight() -> None:
    shapes, shape = sixteen(PAIRS_AND_HALVES)
    pairs = [mask(i, i + 1) for i in range(0, 16, 2)]
    assert shapes.handed_out(shape, 0xFFFF, 2) == [(pair, 0.125) for pair in pairs]
    # Four: two whole pairs of one half have 2 x 50 + 4 x 20 points; each half is split in one of three ways, and
    # 2 of its 4 halves' pairs... each of the 12 sets is in one of three equal splits of its half.
    answers = shapes.handed_out(shape, 0xFFFF, 4) or []
    halves = (pairs[:4], pairs[4:])
    assert sorted(s for s, _ in answers) == sorted(a | b for half in halves for a, b in combinations(half, 2))
    assert all(share == pytest.approx(1 / 12) for _, share in answers)
    assert shapes.handed_out(shape, 0xFFFF, 8) == [(0xFF, 0.5), (0xFF00, 0.5)]
    # 13 free by twos: six pairs and a lone GPU, which is the smaller set and has no points.
    assert shapes.handed_out(shape, 0x1FFF, 2) == [(pair, round(1 / 6, 9)) for pair in pairs[:6]]


def test_flat_sixteen_are_all_alike() -> None:
    shapes, shape = sixteen([[2] * 16 for _ in SIXTEEN])
    for k, count in ((2, 120), (4, 1820), (8, 12870)):
        answers = shapes.handed_out(shape, 0xFFFF, k) or []
        assert len(answers) == count
        assert all(share == pytest.approx(1 / count) for _, share in answers)


def test_what_the_plugin_spoils_is_unknown() -> None:
    # Pairs on one switch (50 points), and 1-2 on one board (60): split apart, as 0-3 would be far. Over 14 GPUs, which
    # are seven sets, the plugin overwrites the last two of the split that it keeps: 1-2 may get into it and win.
    near = [[4 * (i // 2 == j // 2) + 5 * ({i, j} == {1, 2}) for j in SIXTEEN] for i in SIXTEEN]
    shapes, shape = sixteen(near)
    assert shapes.handed_out(shape, 0x3FFF, 2) is None
    assert shapes.crash(shape, 0x3FFF, 2) is None
    pairs = [mask(i, i + 1) for i in range(0, 12, 2)]
    assert shapes.handed_out(shape, 0x0FFF, 2) == [(pair, round(1 / 6, 9)) for pair in pairs]  # six stay as they are


def test_what_takes_too_long_is_unknown() -> None:
    # Two near pairs among ten far GPUs: millions of equal splits, walked in too many ways.
    near = [[4 * (i // 2 == j // 2 and i < 4) for j in SIXTEEN] for i in SIXTEEN]
    shapes, shape = sixteen(near)
    assert shapes.handed_out(shape, 0x3FFF, 2) is None
    assert shapes.handed_out(shape, 0x00FF, 2) == [(0b11, 0.5), (0b1100, 0.5)]


@pytest.mark.parametrize("seed", range(4))
def test_samples_of_sixteen_against_all_splits(seed: int) -> None:
    rng = random.Random(seed)
    levels = [[0] * 16 for _ in SIXTEEN]
    for a, b in combinations(SIXTEEN, 2):
        levels[a][b] = levels[b][a] = rng.choice((0, 1, 1, 4)) if seed else PAIRS_AND_HALVES[a][b]
    shapes, shape = sixteen(levels)
    slow = Graph([[6 * (i != j) for j in SIXTEEN] for i in SIXTEEN], True, levels, None, "nvidia")
    slow.device.points = lru_cache(None)(slow.device.points)  # type: ignore[method-assign]
    for k, sizes in ((2, (9, 10)), (3, (9, 10)), (4, (9, 11)), (5, (11, 12)), (8, (13, 14))):
        for size in sizes:
            free = tuple(sorted(rng.sample(SIXTEEN, size)))
            shares: Any = slow.answers(free, k)
            wanted = [(mask(*s), round(float(n), 9)) for s, n in sorted(shares.items()) if len(s) == k]
            assert shapes.handed_out(shape, mask(*free), k) == wanted, (free, k)


# -- disjoint linked sets of GPUs, against trying all of them ----------------------------------------------------------


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
