"""The models of the stock device plugins, against the answers worked out by hand."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Collection
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import extender.topologies
from extender.sim.machines import (
    NvidiaBestEffort,
    PluginPanicked,
    SimDevicePlugin,
    TooFewDevices,
    device_plugin,
)

CATALOGUE = Path(extender.topologies.__file__).parent / "catalogue.json"
MACHINES: dict[str, Any] = {m["id"]: m for m in json.loads(CATALOGUE.read_text())["topologies"]}


def nvidia(machine: str) -> NvidiaBestEffort:
    entry = MACHINES[machine]
    return NvidiaBestEffort(entry["links"], entry["pcie"], "gpu-total" if entry["nvswitch"] else "pair")


def answers(
    plugin: SimDevicePlugin, available: Collection[int], size: int, tries: int = 400
) -> Counter[tuple[int, ...]]:
    rng = random.Random(1)
    return Counter(tuple(sorted(plugin.choose(available, size, rng))) for _ in range(tries))


def test_dgx1v_plans_for_the_next_pod_and_gives_the_worse_pair() -> None:
    # Links: 0-2 1, 0-4 2, 4-5 1, others none. Splits of {0,2,4,5} into pairs:
    #   {0,2}+{4,5}: (PHB 30 + 100) + (PIX 50 + 100) = 280   <- highest, and {4,5} is its better half
    #   {0,4}+{2,5}: (SYS 10 + 200) + (SYS 10)       = 220   although 0-4 is the best pair
    #   {0,5}+{2,4}: 10 + 10                         = 20
    assert answers(nvidia("dgx1-v100"), {0, 2, 4, 5}, 2) == {(4, 5): 400}


@pytest.mark.parametrize(
    ("machine", "size", "different"),
    [("dgx1-v100", 2, 6), ("dgx1-v100", 4, 2), ("dgx-h100", 2, 12), ("dgx-h100", 4, 2), ("dgx-h100", 1, 8)],
)
def test_number_of_possible_answers_on_a_fresh_node(machine: str, size: int, different: int) -> None:
    assert len(answers(nvidia(machine), range(8), size)) == different


def test_switch_links_are_invisible() -> None:
    # Every pair of an HGX H100 has 18 links to the switches, yet a set across NUMA nodes never wins.
    for chosen in answers(nvidia("dgx-h100"), range(8), 4):
        assert chosen in {(0, 1, 2, 3), (4, 5, 6, 7)}


def test_padding_makes_the_plugin_panic() -> None:
    # DGX A100, {0,1} on one switch and three GPUs on others, size 3. Padded to six places:
    #   {0,1,-}+{2,4,6}: pair 0-1 + three SYS pairs;  {0,1,2}+{4,6,-}: pair 0-1 + two SYS + one SYS
    # The sums are equal; where the first is met first, its best set is the one with the empty place.
    plugin = nvidia("dgx-a100")
    rng = random.Random(2)
    outcomes: Counter[str] = Counter()
    for _ in range(300):
        try:
            plugin.choose({0, 1, 2, 4, 6}, 3, rng)
            outcomes["answer"] += 1
        except PluginPanicked:
            outcomes["panic"] += 1
    assert outcomes["panic"] > 0
    assert outcomes["answer"] > 0


def all_splits(gpus: tuple[int, ...], size: int) -> list[list[tuple[int, ...]]]:
    """Every split of ``gpus`` into sets of ``size``, by the definition; ``gpus`` must divide."""
    if not gpus:
        return [[]]
    found = []
    for others in combinations(gpus[1:], size - 1):
        chosen = (gpus[0], *others)
        rest = tuple(gpu for gpu in gpus if gpu not in chosen)
        found += [[chosen, *more] for more in all_splits(rest, size)]
    return found


@pytest.mark.parametrize(("machine", "size"), [("dgx1-v100", 2), ("dgx1-v100", 3), ("h100-nvl-8", 4)])
def test_possible_answers_equal_those_of_a_plain_enumeration(machine: str, size: int) -> None:
    plugin = nvidia(machine)
    entry = MACHINES[machine]
    worth = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}

    def points(chosen: tuple[int, ...]) -> int:
        pairs = combinations(chosen, 2)
        return sum(worth[entry["pcie"][a][b]] + 100 * entry["links"][a][b] for a, b in pairs)

    rng = random.Random(3)
    for _ in range(12):
        free = tuple(sorted(rng.sample(range(8), size * 2)))
        splits = all_splits(free, size)
        top = max(sum(map(points, split)) for split in splits)
        best = [split for split in splits if sum(map(points, split)) == top]
        possible = {s for split in best for s in split if points(s) == max(map(points, split))}
        assert set(answers(plugin, free, size, tries=200)) == possible


@pytest.mark.parametrize("model", ["nvidia", "amd", "none"])
def test_forced_gpus_are_part_of_the_answer(model: Any) -> None:
    entry = MACHINES["mi210-8"]
    plugin = device_plugin(model, entry["links"], entry["pcie"], numa=[0] * 4 + [1] * 4)
    rng = random.Random(4)
    for _ in range(50):
        chosen = plugin.choose(range(8), 4, rng, must_include={1, 6})
        assert len(chosen) == 4
        assert {1, 6} <= chosen
        assert plugin.choose(range(8), 1, rng, must_include={5}) == {5}
        assert plugin.choose({2, 3}, 2, rng) == {2, 3}
        assert plugin.choose({2, 3}, 0, rng) == frozenset()


def test_amd_keeps_to_one_hive() -> None:
    entry = MACHINES["mi210-8"]
    plugin = device_plugin("amd", entry["links"], numa=[0] * 4 + [1] * 4)
    # Weights of a pair: 20 + XGMI 10 + same NUMA 10 = 40; across hives 20 + 40 + 20 = 80.
    assert set(answers(plugin, range(8), 4)) == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert set(answers(plugin, {0, 1, 4, 5, 6}, 3)) == {(4, 5, 6)}


def test_without_a_preference_anything_comes() -> None:
    assert len(answers(device_plugin("none", [[0] * 4] * 4), range(4), 2)) == 6


def test_asking_for_too_much_is_an_error() -> None:
    plugin = nvidia("dgx1-v100")
    with pytest.raises(TooFewDevices):
        plugin.choose({0, 1}, 3, random.Random(0))
    with pytest.raises(TooFewDevices):
        plugin.choose({0, 1}, 1, random.Random(0), must_include={2})


def test_sixteen_gpus_are_not_slow() -> None:
    # 2,627,625 splits by enumeration; the table of best totals needs a few thousand entries.
    plugin = nvidia("mi250-16gcd")
    assert len(plugin.choose(range(16), 4, random.Random(5))) == 4
