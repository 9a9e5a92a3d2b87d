"""ext_core.links against its twin, brute force, and the published numbers of known machines."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_core import fit
from ext_core.links import LinkShapes
from extender.sim.machines import AmdBestEffort, NvidiaBestEffort, PluginPanicked
from tests.oracles import rings
from tests.reference import links as reference

CATALOGUE = Path(__file__).parents[2] / "extender/topologies/catalogue.json"
MACHINES = {entry["id"]: entry for entry in json.loads(CATALOGUE.read_text())["topologies"]}
LEVELS = ["SYS", "NODE", "PHB", "PXB", "PIX", "X"]


def mask(*ids: int) -> int:
    return sum(1 << i for i in ids)


def ids(group: int) -> tuple[int, ...]:
    return tuple(i for i in range(16) if group >> i & 1)


def intern(shapes: LinkShapes, links: list[list[int]], **more: Any) -> int:
    given: dict[str, Any] = {"gpu_total": False, "pcie": None, "numa": None, "plugin": "arbitrary", "gbps": 25.0}
    return shapes.intern(links, **(given | more))


def machine(name: str, plugin: str = "arbitrary") -> tuple[LinkShapes, int, int]:
    """The shapes, the machine's shape and all its GPUs."""
    entry = MACHINES[name]
    levels = entry["pcie"] and [[LEVELS.index(level) for level in row] for row in entry["pcie"]]
    numa = [-1] * entry["gpus"]
    for node, members in (entry["numa"] or {}).items():
        for gpu in members:
            numa[gpu] = int(node)
    shapes = LinkShapes()
    shape = intern(
        shapes, entry["links"], gpu_total=entry["nvswitch"], pcie=levels, numa=numa if entry["numa"] else None,
        plugin=plugin, gbps=float(entry["gbps_link_dir"]),
    )  # fmt: skip
    return shapes, shape, (1 << entry["gpus"]) - 1


def clique(size: int, links: int) -> list[list[int]]:
    return [[links * (i != j) for j in range(size)] for i in range(size)]


@st.composite
def graphs(draw: st.DrawFn, most: int = 6, sizes: tuple[int, ...] = (0, 0, 1, 2, 3)) -> list[list[int]]:
    size = draw(st.integers(1, most))
    links = [[0] * size for _ in range(size)]
    for a, b in combinations(range(size), 2):
        links[a][b] = links[b][a] = draw(st.sampled_from(sizes))
    return links


# ---- ring_links


@settings(max_examples=min(40, settings().max_examples))
@given(graphs())
def test_rings_are_the_directed_optimum_of_brute_force(links: list[list[int]]) -> None:
    shapes = LinkShapes()
    shape = intern(shapes, links)
    for size in range(2, len(links) + 1):
        for group in combinations(range(len(links)), size):
            exact = 1000 * rings.ring_links(links, group)
            assert shapes.ring(shape, mask(*group)) == (2 * exact + 1) // 2
            assert shapes.proved(shape, mask(*group))


@pytest.mark.parametrize("size", [3, 4, 5, 6])
def test_a_uniform_clique_packs_links_times_peers(size: int) -> None:
    # Every GPU has 3 (size - 1) links out, and that many rings fit: also for 4 and 6, where no split of the
    # complete digraph into Hamiltonian cycles exists, because rings may be taken in part.
    assert rings.ring_links(clique(size, 3), range(size)) == Fraction(3 * (size - 1))
    shapes = LinkShapes()
    assert shapes.ring(intern(shapes, clique(size, 3)), (1 << size) - 1) == 3000 * (size - 1)


def test_a_clique_by_the_program_agrees_with_the_closed_form() -> None:
    # One more link on one pair: not uniform, so the program runs; 5 links out of the other GPUs still bound it.
    for size in (4, 6, 8):
        links = clique(size, 1)
        links[0][1] = links[1][0] = 2
        shapes = LinkShapes()
        assert shapes.ring(intern(shapes, links), (1 << size) - 1) == 1000 * (size - 1)


@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("dgx1-v100", [2, 2, 4, 2, 4, 4, 6]),
        ("v100-8-permuted", [2, 2, 4, 2, 4, 4, 6]),
        ("dgx1-p100", [1, 2, 3, 2, 3, 3, 4]),
        ("mi250x-8gcd", [4, 0, 2, 2, 2, 2, 4]),
        ("h200-nvl-4way", [6, 12, 18]),
    ],
)
def test_best_ring_of_each_size_on_known_machines(name: str, best: list[int]) -> None:
    shapes, shape, full = machine(name)
    assert [shapes.top(shape, full, k) for k in range(2, len(best) + 2)] == [1000 * b for b in best]


def test_two_four_way_bridges() -> None:
    links = [[6 * (i != j and i // 4 == j // 4) for j in range(8)] for i in range(8)]
    shapes = LinkShapes()
    shape = intern(shapes, links)
    assert [shapes.top(shape, 255, k) for k in range(2, 9)] == [6000, 12000, 18000, 0, 0, 0, 0]
    assert shapes.islands(shape) == [0b1111, 0b11110000]


def test_dgx1_means_and_counts() -> None:
    shapes, shape, full = machine("dgx1-v100")
    of_size = {k: [shapes.ring(shape, mask(*s)) or 0 for s in combinations(range(8), k)] for k in range(2, 9)}
    means = {k: round(sum(v) / len(v) / 1000, 2) for k, v in of_size.items()}
    assert {k: means[k] for k in (2, 3, 4, 5, 6)} == {2: 0.86, 3: 0.29, 4: 0.29, 5: 0.86, 6: 2.29}
    without = {k: v.count(0) for k, v in of_size.items()}
    assert {k: without[k] for k in (2, 3, 4, 5, 6)} == {2: 12, 3: 48, 4: 62, 5: 32, 6: 0}
    # Of 28 pairs 16 are linked; of 56 triples and 70 quadruples 8 and 2 are cliques.
    cliques = [s for s in range(256) if all(shapes.linked(shape, mask(*p)) for p in combinations(ids(s), 2))]
    assert [sum(s.bit_count() == k for s in cliques) for k in (2, 3, 4)] == [16, 8, 2]
    assert shapes.components(shape) == [full]
    assert [s for s in shapes.islands(shape) or [] if s.bit_count() == 4] == [0b1111, 0b11110000]


def test_mi250x_has_four_linked_quadruples_and_no_triangle() -> None:
    shapes, shape, _ = machine("mi250x-8gcd")
    assert sum(shapes.ring(shape, mask(*s)) == 0 for s in combinations(range(8), 4)) == 66
    assert sum(bool(shapes.linked(shape, mask(*s))) for s in combinations(range(8), 3)) == 0


def test_nvswitch_rings_are_the_total_and_a_gpu_off_the_fabric_is_not_linked() -> None:
    links = [[18 * (i != j and 2 not in (i, j)) for j in range(8)] for i in range(8)]
    shapes = LinkShapes()
    shape = intern(shapes, links, gpu_total=True)
    assert shapes.ring(shape, mask(0, 1)) == shapes.ring(shape, mask(0, 1, 3, 4, 5, 6, 7)) == 18000
    assert shapes.ring(shape, mask(1, 2)) == shapes.ring(shape, 255) == 0
    assert shapes.components(shape) == [mask(0, 1, 3, 4, 5, 6, 7), mask(2)]
    assert shapes.certain(shape, mask(0, 1, 3), 2) == 2
    assert shapes.certain(shape, mask(0, 1, 2), 2) == 1


def test_sixteen_gpus_sparse_switched_and_dense() -> None:
    shapes, shape, full = machine("mi250-16gcd")
    assert all(shapes.proved(shape, s) for s in range(1, full + 1))
    assert shapes.top(shape, full, 16) == 6000
    shapes, shape, full = machine("dgx2")
    assert [shapes.top(shape, full, k) for k in (2, 9, 16)] == [6000] * 3
    assert shapes.choice(shape, full, 8) is not None
    # A dense graph without symmetry is beyond exact: linkedness stays exact, large rings become lower bounds.
    rng = random.Random(1)
    links = clique(16, 1)
    for a, b in combinations(range(16), 2):
        links[a][b] = links[b][a] = rng.choice((1, 2, 3))
    shape = intern(shapes, links)
    assert shapes.linked(shape, full)
    assert not shapes.proved(shape, full)
    assert 0 < (shapes.ring(shape, full) or 0) <= 1000 * min(map(sum, links))


# ---- the choice


def test_a_single_takes_the_gpu_that_breaks_no_pair() -> None:
    shapes, shape, _ = machine("h100-nvl-8")
    chosen = shapes.choice(shape, mask(0, 1, 2, 3, 5), 1)
    assert chosen is not None
    assert chosen.gpus == mask(5)  # {0,1} and {2,3} stay whole


def test_among_the_double_links_the_pair_that_leaves_most() -> None:
    shapes, shape, full = machine("dgx1-v100")
    chosen = shapes.choice(shape, full, 2)
    assert chosen is not None
    # Eight pairs have two links; of those, the one whose removal costs the rest least.
    assert chosen.ring == chosen.ring_best == 2000
    assert chosen.left == max(
        shapes.left(shape, full ^ mask(*s)) or 0
        for s in combinations(range(8), 2)
        if shapes.ring(shape, mask(*s)) == 2000
    )


def test_among_equals_the_smallest_ids_not_the_smallest_mask() -> None:
    shapes = LinkShapes()
    shape = intern(shapes, [[0, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]])
    chosen = shapes.choice(shape, 0b1111, 2)
    assert chosen is not None
    assert chosen.gpus == mask(0, 3) > mask(1, 2)
    assert shapes.equals(shape, 0b1111, 2) == [mask(0, 3), mask(1, 2)]


def test_pcie_switch_decides_where_links_do_not() -> None:
    shapes, shape, full = machine("rtxpro6000-6")
    chosen = shapes.choice(shape, full ^ mask(0), 2)
    assert chosen is not None
    assert chosen.gpus == mask(4, 5)  # PIX, and leaves 2,3 (PIX) beside 1 on their NUMA node
    chosen = shapes.choice(shape, full ^ mask(0), 1)
    assert chosen is not None
    assert chosen.gpus == mask(1)


def test_shape_zero_knows_nothing_but_single_gpus() -> None:
    shapes = LinkShapes()
    assert shapes.intern(None, gpu_total=False, pcie=None, numa=None, plugin="nvidia", gbps=0.0) == 0
    assert shapes.choice(0, 15, 2) is None
    assert shapes.ring(0, 3) is None
    assert shapes.certain(0, 15, 1) == 2
    assert shapes.certain(0, 15, 2) == -1
    assert shapes.certain(0, 15, 5) == 0


def test_same_arguments_same_id() -> None:
    shapes = LinkShapes()
    one = intern(shapes, clique(4, 2))
    assert intern(shapes, [tuple(row) for row in clique(4, 2)]) == one  # type: ignore[misc]
    assert intern(shapes, clique(4, 2), gbps=50.0) == one + 1
    assert len(shapes) == 3


@pytest.mark.parametrize(
    ("links", "more", "message"),
    [
        ([], {}, "links: 0 GPUs"),
        (clique(17, 1), {}, "links: 17 GPUs"),
        ([[0, 1], [2, 0]], {}, r"links\[0\]\[1\] is 1, links\[1\]\[0\] is 2"),
        ([[0, 1]] * 2, {}, r"links\[0\]\[1\] is 1"),
        ([[1]], {}, "no link to itself"),
        ([[0, -1], [-1, 0]], {}, "not a whole number"),
        ([[0, True], [True, 0]], {}, "not a whole number"),
        ([[0, 1, 0], [1, 0, 0]], {}, "2 x 2"),
        ([[0]], {"pcie": [[6]]}, r"pcie\[0\]\[0\]"),
        ([[0]], {"numa": []}, "numa"),
        ([[0]], {"plugin": "intel"}, "plugin"),
        ([[0]], {"gbps": float("nan")}, "gbps"),
    ],
)
def test_bad_graphs_are_refused(links: list[list[int]], more: dict[str, Any], message: str) -> None:
    shapes = LinkShapes()
    with pytest.raises(ValueError, match=message):
        intern(shapes, links, **more)
    assert len(shapes) == 1


def test_sets_outside_the_node_are_refused() -> None:
    shapes = LinkShapes()
    shape = intern(shapes, clique(2, 1))
    with pytest.raises(ValueError, match="2 GPUs"):
        shapes.ring(shape, 4)
    with pytest.raises(KeyError):
        shapes.ring(shape + 1, 1)


# ---- what the device plugin hands out


def test_nvidia_plans_for_equal_sizes_and_may_miss_the_best_pair() -> None:
    # {0,2,4,5} of a DGX-1V: 0-2 + 4-5 have 1 + 1 links, 0-4 has 2 but leaves the unlinked 2-5.
    shapes, shape, _ = machine("dgx1-v100", "nvidia")
    free = mask(0, 2, 4, 5)
    assert shapes.handed_out(shape, free, 2) == [(mask(4, 5), 1.0)]
    chosen = shapes.choice(shape, free, 2)
    assert chosen is not None
    assert (chosen.gpus, chosen.ring, chosen.expected_ring) == (mask(0, 4), 2000, 1000)
    assert shapes.certain(shape, free, 2) == 2
    assert shapes.certain(shape, free, 2, containers=2) == shapes.certain(shape, free, 2, unknown=1) == 1


def test_several_containers_share_one_set_where_a_relay_hands_out_a_plan() -> None:
    # {0,2,4,5} of a DGX-1V has no ring of four. {0,1,2,5} has one of three: 0-1-2; nobody plans 1-2-5.
    for plugin, planned, answer in (("relay", True, 2), ("relay", False, 1), ("nvidia", True, 1)):
        shapes, shape, _ = machine("dgx1-v100", plugin)
        shapes.planned = planned
        assert shapes.certain(shape, mask(0, 1, 2, 5), 3, containers=2) == answer
        assert shapes.certain(shape, mask(0, 1, 2, 5), 3, unknown=1, containers=2) < 2
        assert shapes.certain(shape, mask(0, 2, 4, 5), 4, containers=2) == 0
        assert fit.uniform(shapes, shape, mask(0, 1, 2, 5), 3) is False  # a count is no guard, with a relay or without


def test_nvidia_may_crash_on_an_empty_place() -> None:
    # The plugin sees only the PCIe pairs of the switched A100. Five free as 2 + 1 + 1 + 1 split into the pair with
    # an empty place (50) and three strangers (3 x 10), and the first is the better set: 4 x 2^3 such free sets.
    shapes, shape, full = machine("dgx-a100", "nvidia")
    fives = [s for s in range(full + 1) if s.bit_count() == 5]
    crashes = [s for s in fives if sum(p for _, p in shapes.handed_out(shape, s, 3) or []) < 1 - 1e-9]
    assert crashes == [s for s in fives if sum(s >> i & 3 == 3 for i in (0, 2, 4, 6)) == 1]
    assert len(crashes) == 32
    assert shapes.certain(shape, crashes[0], 3) < 2


@pytest.mark.parametrize("name", ["dgx1-v100", "dgx-a100", "h100-nvl-8", "rtxpro6000-6"])
def test_nvidia_model_covers_every_answer_of_the_simulated_plugin(name: str) -> None:
    shapes, shape, full = machine(name, "nvidia")
    entry = MACHINES[name]
    plugin = NvidiaBestEffort(entry["links"], entry["pcie"], "gpu-total" if entry["nvswitch"] else "pair")
    rng = random.Random(7)
    for _ in range(150):
        free = rng.randrange(1, full + 1)
        k = rng.randint(1, free.bit_count())
        answers = dict(shapes.handed_out(shape, free, k) or [])
        try:
            assert mask(*plugin.choose(ids(free), k, rng)) in answers
        except PluginPanicked:
            assert sum(answers.values()) < 1 - 1e-9


def test_amd_model_covers_every_answer_of_the_simulated_plugin() -> None:
    shapes, shape, full = machine("mi250x-8gcd", "amd")
    plugin = AmdBestEffort(MACHINES["mi250x-8gcd"]["links"], [3, 3, 1, 1, 0, 0, 2, 2])
    rng = random.Random(7)
    for _ in range(150):
        free = rng.randrange(1, full + 1)
        k = rng.randint(1, free.bit_count())
        assert mask(*plugin.choose(ids(free), k, rng)) in dict(shapes.handed_out(shape, free, k) or [])


# ---- the twin


@settings(max_examples=min(60, settings().max_examples))
@given(st.data())
def test_twins_agree(data: st.DataObject) -> None:
    links = data.draw(graphs(6))
    size = len(links)
    pcie = data.draw(st.none() | graphs(size, (0, 1, 2, 3, 4)).filter(lambda g: len(g) == size))
    numa = data.draw(st.none() | st.lists(st.integers(-1, 2), min_size=size, max_size=size))
    more: dict[str, Any] = {
        "gpu_total": data.draw(st.booleans()),
        "pcie": pcie,
        "numa": numa,
        "plugin": data.draw(st.sampled_from(["nvidia", "nvidia", "amd", "arbitrary", "relay", "first", "unordered"])),
        "gbps": 25.0,
    }
    fast, slow = LinkShapes(), reference.LinkShapes()
    shape = intern(fast, links, **more)
    assert slow.intern(links, **more) == shape
    assert fast.islands(shape) == slow.islands(shape)
    assert fast.components(shape) == slow.components(shape)
    assert (fast.gpus(shape), fast.gbps(shape)) == (slow.gpus(shape), slow.gbps(shape))
    for free in range(1, 1 << size):
        for name in ("ring", "proved", "linked", "left", "ways", "future"):
            assert getattr(fast, name)(shape, free) == getattr(slow, name)(shape, free), (name, free)
        for group in (free, free & (free - 1)):
            assert fast.objective(shape, free, group) == slow.objective(shape, free, group)
        for k in range(size + 2):
            for name in ("top", "choice", "equals", "runner_up", "certain", "handed_out", "crash"):
                assert getattr(fast, name)(shape, free, k) == getattr(slow, name)(shape, free, k), (name, free, k)
            assert fast.certain(shape, free, k, 1, 1) == slow.certain(shape, free, k, 1, 1)
            for how in ((0, 1), (0, 2), (1, 1)):
                assert fast.certain(shape, free, k, *how, planned=True) == slow.certain(
                    shape, free, k, *how, planned=True
                )
            for planned in (True, False):
                fast.planned = slow.planned = planned
                assert fast.certain(shape, free, k, 0, 2) == slow.certain(shape, free, k, 0, 2)


def test_twins_have_the_same_methods() -> None:
    assert {n for n in dir(LinkShapes) if n[0] != "_"} == {n for n in dir(reference.LinkShapes) if n[0] != "_"}
