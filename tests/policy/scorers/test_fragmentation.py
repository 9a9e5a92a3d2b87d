"""Scorer `fragmentation`: room for the pods to come, by the cluster's own mix of requests."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from msgspec.structs import replace

from ext_core.rows import NodeFacts, NodeUse
from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest
from extender.policy.policy import Policy
from extender.policy.scorers import FULLNESS, Fragmentation
from extender.settings import Settings
from tests.tables import GIB, NVIDIA, Small, pairs, request
from tests.world import World, workload

ANY = 2**64 - 1
Type = tuple[int, int, int, int, int, int, int]


def asks(
    devices: int = 1, *, share: int = 1, cpu: int = 1000, memory: int = GIB, models: int = ANY, linked: int = 0
) -> Type:
    return (NVIDIA, devices, share, cpu, memory, models, linked)


def demand(tables: Tables, *types: tuple[Type, float], units: int = 1) -> None:
    tables.demand.set(
        [one for one, _ in types],
        [weight for _, weight in types],
        [one[1] * one[2] / units for one, _ in types],
        [f"type {i}" for i in range(len(types))],
    )


def values(tables: Tables, asked: PodRequest, *rows: int) -> list[float]:
    out = array("d", bytes(8 * len(rows)))
    Fragmentation().fill(tables, asked, array("i", rows), out)
    return out.tolist()


def shared_node(small: Small, parts: tuple[int, ...], *, cpu: int = 64_000) -> int:
    """A node of four GPUs of 1000 units."""
    row = small.node(4)
    small.tables.nodes.set_node(row, NodeFacts((cpu, 256 * GIB, 110, 4000, 0), NVIDIA, 0, 0b1111, 4, 1000))
    small.tables.nodes.set_held(row, NodeUse((0, 0, 0, sum(parts), 0), 0, 0, 0, 0, parts))
    return row


def test_a_node_without_gpus_changes_no_value(small: Small) -> None:
    """What is left of a node is compared with the largest node that has GPUs."""
    rows = [small.node(4, cpu=(used, 64_000)) for used in (0, 32_000)]
    demand(small.tables, (asks(1), 1.0))
    before = values(small.tables, request(1), *rows)
    small.node(0, cpu=(0, 1_000_000), gpu=-1)
    assert values(small.tables, request(1), *rows) == before


def test_the_arithmetic(small: Small) -> None:
    row = small.node(4, cpu=(0, 64_000))
    demand(small.tables, (asks(1), 2.0), (asks(4), 1.0))
    # All is free: a slot's price falls with its GPUs to the power 1.5. Slots: 4 of one GPU, 1 of four.
    # Prices 2 / 4 = .5 and 4^-1.5 / 1 = .125, of .625 together: .8 and .2. One GPU takes one slot of each: 1.0.
    # What is left: 60 of 64 CPUs and 3 of 4 GPUs, of the largest node.
    cost = 1.0 + FULLNESS * (60 / 64 + 3 / 4) / 2
    assert values(small.tables, request(1), row)[0] == pytest.approx(1.0 / (1.0 + cost))
    price: Any = Fragmentation().placed(small.tables, request(1), array("i", [row]), 1)[1][0]
    assert price.numbers[0] == pytest.approx(1.0)
    assert price.slots() == [("type 0", 1, pytest.approx(0.8)), ("type 1", 1, pytest.approx(0.2))]


def test_whole_nodes_are_kept_while_they_are_asked_for(small: Small) -> None:
    whole, begun = small.node(8), small.node(8, used=3, sure=0b0000_0111)
    demand(small.tables, (asks(1), 10.0), (asks(8), 1.0))
    kept, used = values(small.tables, request(1), whole, begun)
    assert used > kept


def test_who_may_run_anywhere_leaves_the_model_that_others_need(small: Small) -> None:
    common, rare = small.node(8), small.node(8, used=7, sure=0b0111_1111)
    nodes = small.tables.nodes
    nodes.set_node(rare, NodeFacts((64_000, 256 * GIB, 110, 8, 0), NVIDIA, 0, 0xFF, 4, 1, 1))  # nearly full
    demand(small.tables, (asks(1), 10.0), (asks(1, models=0b10), 1.0))
    assert values(small.tables, request(1), common)[0] > values(small.tables, request(1), rare)[0]
    demand(small.tables, (asks(1), 10.0))  # nobody asks for it: it is as good as any, and fuller
    assert values(small.tables, request(1), common)[0] < values(small.tables, request(1), rare)[0]


def test_a_pair_is_kept_on_bridged_machines(small: Small) -> None:
    shape = small.shape(pairs())
    # Two GPUs are free on each: a pair on the one, one of each pair on the other.
    pair, odd = (
        small.node(4, used=2, sure=0b0011, shape=shape),
        small.node(4, used=2, sure=0b0101, shape=shape),
    )
    demand(small.tables, (asks(1), 10.0), (asks(2, linked=1), 1.0))
    kept, taken = values(small.tables, request(1), pair, odd)
    assert taken > kept


def test_cpu_beside_gpus_is_kept(small: Small) -> None:
    lean, rich = small.node(4, cpu=(0, 8_000)), small.node(4, cpu=(0, 64_000))
    demand(small.tables, (asks(1, cpu=2000), 1.0))
    # 6 CPUs of the lean node are those of three pods to come; the rich one has enough for all its GPUs.
    starved, fine = values(small.tables, request(1, cpu=6000), lean, rich)
    assert fine > starved


def test_a_share_goes_to_the_gpu_where_it_costs_least(small: Small) -> None:
    row = shared_node(small, (0, 300, 600, 0))
    demand(small.tables, (asks(1, share=1000), 5.0), (asks(1, share=700), 1.0), units=1000)
    quarter = replace(request(250), share=250)
    assert quarter.wanted == 1
    # GPU 2 has 400 left: nobody whose request we know could take them. GPU 1 has a slot of 700, 0 and 3 a whole one.
    policy, rows = Policy.of(Settings()), array("i", [row])
    assert policy.gpus(small.tables, quarter, rows).tolist() == [0b0100]
    demand(small.tables, (asks(1, share=1000), 5.0), (asks(1, share=400), 1.0), units=1000)
    # Now 400 are a slot, and so are 700: after a quarter GPU 1 still has one.
    assert policy.gpus(small.tables, quarter, rows).tolist() == [0b0010]


def test_shares_and_whole_gpus_through_the_policy(small: Small) -> None:
    broken = shared_node(small, (500, 500, 500, 500))
    free = shared_node(small, (500, 500, 500, 0))
    policy = Policy.of(Settings())
    rows = array("i", [broken, free])
    whole, half = replace(request(1000), share=1000), replace(request(500), share=500)
    codes = [int(code) for code in policy.judge(small.tables, whole, rows)]
    assert codes[0] > 0  # 2000 units are free, on no GPU 1000
    assert codes[1] == 0
    demand(small.tables, (asks(1, share=1000), 1.0), (asks(1, share=500), 1.0), units=1000)
    total, columns = policy.score(small.tables, half, rows)
    column = columns["fragmentation"]
    assert not isinstance(column, float)
    assert column[0] > column[1]
    assert total[0] > total[1]
    assert policy.gpus(small.tables, half, rows)[1] != 0b1000  # not the whole one
    assert policy.gpus(small.tables, whole, array("i", [free])).tolist() == [0b1000]


def test_a_pod_without_gpus_is_priced_too(small: Small) -> None:
    lean, rich = small.node(4, cpu=(0, 8_000)), small.node(4, cpu=(0, 64_000))
    demand(small.tables, (asks(1, cpu=2000), 1.0))
    plain = replace(request(1, cpu=6000), gpus=(), amounts=(6000, GIB, 1, 0, 0))
    assert (plain.resource, plain.wanted) == (-1, 0)
    total, _ = Policy.of(Settings()).score(small.tables, plain, array("i", [lean, rich]))
    assert total[1] > total[0]


def test_nothing_is_known_to_come(small: Small) -> None:
    fuller, empty = small.node(4, used=2, sure=0b0011), small.node(4)
    one, other = values(small.tables, request(1), fuller, empty)
    assert 1.0 > one > other > 0.9  # fullness alone


# ---- over the verbs


def last_price(world: World) -> Any:
    return world.decision()["price"]


def test_a_decision_shows_the_price_of_the_two_best(world: World) -> None:
    for name in ("a", "b", "c"):
        world.node(name, 8)
    world.pod("r", 1, "b")
    world.pod("big", 8)
    assert world.filter(workload("p", 1))["NodeNames"][0] == "b"  # a and c are for the likes of big
    best, second = last_price(world)
    assert (best["node"], second["node"]) == ("b", "a")
    assert best["cost"] < second["cost"]
    assert any(slot["type"].startswith("8 x nvidia.com/gpu") for slot in second["slots"])
    assert sum(slot["cost"] for slot in second["slots"]) <= second["cost"] + 1e-12
