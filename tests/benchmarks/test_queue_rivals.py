"""The rivals of the queue benchmark, each against an example computed by hand.

The cluster, unless it says otherwise: one block of two racks of two nodes of eight GPUs. Nodes 0 and 1 are rack 0,
nodes 2 and 3 are rack 1. A gang of n pods of 8 GPUs needs n free nodes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from benchmarks.queue_sim.arms import RIVALS
from benchmarks.queue_sim.conservative import Conservative
from benchmarks.queue_sim.easy import Easy
from benchmarks.queue_sim.gangs import Gang, Shape
from benchmarks.queue_sim.kueue import kueue
from benchmarks.queue_sim.places import best_fit, emptiest, fullest, tas, tree
from benchmarks.queue_sim.pod_by_pod import DEADLOCKS, TIMEOUTS, Coscheduling, Stock
from benchmarks.queue_sim.world import Account, Arm, World

SMALL = Shape(blocks=1, racks=2, nodes=2)
FOREVER = 1e9


def gang(
    number: int, arrived: float, pods: int, seconds: float, gpus: int = 8, queue: int = 0, declared: float | None = -1
) -> Gang:
    stated = seconds if declared == -1 else declared
    return Gang(number, arrived, queue, pods, gpus, seconds, stated)


def run(make: Callable[[World], Arm], gangs: Sequence[Gang], shape: Shape = SMALL) -> tuple[World, dict[int, float]]:
    world = World(shape, Account(0.0, FOREVER))
    world.run(gangs, make(world))
    assert world.free == [shape.gpus] * shape.size
    return world, {one.gang.id: one.at for one in world.started}


def stock(world: World) -> Arm:
    return Stock(world, fullest, random.Random(1))


def coscheduling(world: World) -> Arm:
    return Coscheduling(world, fullest, random.Random(1))


def kueue_of(*, strict: bool, topology: bool = True, queues: int = 1) -> Callable[[World], Arm]:
    return lambda world: kueue(world, queues, random.Random(1), strict=strict, topology=topology)


# ---- stock


def test_stock_two_gangs_of_three_nodes_of_four_deadlock() -> None:
    # Their pods alternate: A B A B, two nodes each. Nothing runs, nothing can start. After an hour the operator deletes
    # B: A takes the third node and runs from 3600 to 3700. B's new pods take the fourth node, and two more at 3700.
    world, at = run(stock, [gang(0, 0, 3, 100), gang(1, 0, 3, 50)])
    assert at == {0: 3600.0, 1: 3700.0}
    assert world.counts == {DEADLOCKS: 1}
    # held: 32 GPUs for 3600 s, then 8 of B for 100 s; ran: 24 for 100 s and for 50 s
    assert world.account.held == 32 * 3600 + 8 * 100
    assert world.account.ran == 24 * 150


def test_stock_the_older_gang_holds_what_it_has_and_no_deadlock_is_counted() -> None:
    # R has two nodes until 100. A takes the other two at 1 and waits for one; B gets nothing. At 100 A starts on three,
    # B takes one node, and two more when A ends at 150. Held: A 16 GPUs for 99 s, B 8 for 50 s.
    world, at = run(stock, [gang(0, 0, 2, 100), gang(1, 1, 3, 50), gang(2, 2, 3, 50)])
    assert at == {0: 0.0, 1: 100.0, 2: 150.0}
    assert world.counts == {}
    assert world.account.held == 16 * 99 + 8 * 50


def test_stock_a_gang_in_backoff_is_overtaken() -> None:
    # Eight single pods of one GPU fill a node; some end at 92, 93 and 94: A has then failed four times, at 1, 92, 93
    # and 94, and is in backoff until 94 + 8 = 102. B fails once, at 95, until 96. At 100 three nodes become free:
    # B, not in backoff, comes first, although A is older. A gets the third node, and two more when B ends at 110.
    small = [gang(i, 0, 1, 92 + i if i < 3 else 500, gpus=1) for i in range(8)]
    _, at = run(stock, [*small, gang(8, 0, 3, 100), gang(9, 1, 3, 10), gang(10, 95, 2, 10)])
    assert (at[10], at[9]) == (100.0, 110.0)


@pytest.mark.parametrize(("choose", "nodes"), [(fullest, {0, 3}), (emptiest, {1, 2})])
def test_packing_and_spreading(
    choose: Callable[[Sequence[int], int, random.Random | None], int], nodes: set[int]
) -> None:
    # free 2, 8, 8, 2: one GPU goes to a node with 2 under MostAllocated, with 8 under LeastAllocated; ties by the dice
    assert {choose([2, 8, 8, 2], 1, random.Random(seed)) for seed in range(20)} == nodes
    assert choose([2, 8, 8, 2], 9, None) is None


# ---- Coscheduling


def test_coscheduling_a_gang_that_lacks_a_third_gives_up_at_once() -> None:
    # Free: two nodes. A would lack one pod of three (33 % > 10 %): rejected at 1, so B takes a node at 2.
    world, at = run(coscheduling, [gang(0, 0, 2, 100), gang(1, 1, 3, 50), gang(2, 2, 1, 10)])
    assert at == {0: 0.0, 1: 100.0, 2: 2.0}
    assert (world.account.held, world.counts) == (0.0, {})


def test_coscheduling_permit_holds_nine_of_ten_for_a_minute() -> None:
    # Ten nodes, one of them runs R until 100. A holds nine nodes from 1 on: timeout at 61, backoff until 71. The single
    # pod B of 62 takes one of the nine until 65. At 71 A holds nine again until the tenth is free, at 100.
    # Held: 72 GPUs for 60 s and for 29 s.
    world, at = run(
        coscheduling, [gang(0, 0, 1, 100), gang(1, 1, 10, 50), gang(2, 62, 1, 3)], Shape(blocks=1, racks=1, nodes=10)
    )
    assert at == {0: 0.0, 1: 100.0, 2: 62.0}
    assert world.counts == {TIMEOUTS: 1}
    assert world.account.held == 72 * (60 + 29)


# ---- Kueue

OVERTAKEN = [gang(0, 0, 2, 100), gang(1, 1, 4, 50), gang(2, 2, 1, 60), gang(3, 95, 2, 30)]


@pytest.mark.parametrize("topology", [False, True])
def test_kueue_best_effort_lets_small_gangs_pass_and_the_large_one_starve(topology: bool) -> None:
    # R has two nodes until 100. A needs all four. B takes one at 2 until 62, C two at 95 until 125: A starts at 125.
    _, at = run(kueue_of(strict=False, topology=topology), OVERTAKEN)
    assert at == {0: 0.0, 1: 125.0, 2: 2.0, 3: 95.0}


@pytest.mark.parametrize("topology", [False, True])
def test_kueue_strict_blocks_its_queue(topology: bool) -> None:
    # A starts when R ends, at 100, on all nodes until 150; B and C wait behind it.
    _, at = run(kueue_of(strict=True, topology=topology), OVERTAKEN)
    assert at == {0: 0.0, 1: 100.0, 2: 150.0, 3: 150.0}


def test_kueue_a_queue_within_its_quota_comes_before_one_that_borrows() -> None:
    # Two queues, 16 GPUs nominal each. Queue 0 has all 32 GPUs until 100 (R) and 200 (S). At 100 two nodes are free:
    # queue 0 still uses 16, so its older A would borrow, and B of queue 1 is within quota: B starts. A starts when B
    # ends, at 130.
    gangs = [gang(0, 0, 2, 100), gang(1, 0, 2, 200), gang(2, 1, 2, 10), gang(3, 2, 2, 30, queue=1)]
    _, at = run(kueue_of(strict=False, queues=2), gangs)
    assert (at[3], at[2]) == (100.0, 130.0)


def test_kueue_without_topology_admits_by_count_and_half_a_gang_holds_gpus() -> None:
    # Two nodes. Ten single pods of 1 GPU fill node 0 and two GPUs of node 1 (MostAllocated packs them). When those on
    # node 0 end but one, 13 GPUs are free: the gang of 3 x 4 GPUs (12) is within quota, but node 0 has room for one pod
    # and node 1, with 6 free, for one: 8 GPUs are held from 100 until the single pods end at 500.
    pair = Shape(blocks=1, racks=1, nodes=2)
    singles = [gang(i, 0, 1, 100 if i < 7 else 500, gpus=1) for i in range(10)]
    world, at = run(kueue_of(strict=False, topology=False), [*singles, gang(10, 50, 3, 10, gpus=4)], pair)
    assert at[10] == 500.0
    assert world.account.held == 8 * 400
    world, at = run(kueue_of(strict=False, topology=True), [*singles, gang(10, 50, 3, 10, gpus=4)], pair)
    assert at[10] == 500.0
    assert world.account.held == 0.0


# ---- placement of TAS and of the tree


def test_best_fit_as_in_kueues_own_example() -> None:
    # capacities 3, 3, 2, 1 and 7 pods: 3 + 3, and the last pod goes where one fits exactly
    assert best_fit(list(enumerate([3, 3, 2, 1])), 7) == [(0, 3), (1, 3), (3, 1)]
    # 5, 4, 3, 3 and 6 pods: 5 + 1 of 3, although 3 + 3 would leave nothing over
    assert best_fit(list(enumerate([5, 4, 3, 3])), 6) == [(0, 5), (2, 1)]
    assert best_fit(list(enumerate([3, 3])), 7) is None


def test_the_tree_takes_the_smallest_rack_then_the_smallest_block() -> None:
    shape = Shape(blocks=2, racks=2, nodes=2)
    free = [8, 8, 8, 0, 8, 8, 8, 8]  # racks of 2, 1, 2, 2 free nodes; blocks of 3 and 4
    assert tree(free, shape, gang(0, 0, 1, 1)) == {2: 1}
    assert tree(free, shape, gang(0, 0, 2, 1)) == {0: 1, 1: 1}
    # three nodes: no rack; the block with exactly three
    assert tree(free, shape, gang(0, 0, 3, 1)) == {0: 1, 1: 1, 2: 1}
    # five nodes: no block; racks of 2, 2, and the one with 1
    assert tree(free, shape, gang(0, 0, 5, 1)) == {0: 1, 1: 1, 2: 1, 4: 1, 5: 1}
    assert tree(free, shape, gang(0, 0, 8, 1)) is None
    assert tree(free, shape, Gang(0, 0.0, 0, 3, 8, 1.0, None, required=True)) is None


def test_tas_places_a_single_pod_by_least_free_capacity() -> None:
    # the tree looks at racks first: rack 1 has 5 + 5 free, rack 0 has 8 + 3; TAS takes the node with 3
    free = [8, 3, 5, 5]
    assert tree(free, SMALL, gang(0, 0, 1, 1, gpus=1)) == {2: 1}
    assert tas(free, SMALL, gang(0, 0, 1, 1, gpus=1)) == {1: 1}


# ---- EASY and conservative backfill


def test_easy_the_head_is_reserved_and_others_pass_where_they_do_not_delay_it() -> None:
    # R has nodes 0 and 1 until 100. The head A (three nodes) gets nodes 0, 1, 2 at 100; node 3 is spare.
    # B (one node for 90 s, at 2) ends at 92, before 100: it starts, on node 2. C (1000 s, at 3) would end after 100,
    # and starts on the spare node 3. D (one node, 1000 s, at 93, when node 2 is free again) would delay A: it waits
    # until A ends, at 150.
    gangs = [gang(0, 0, 2, 100), gang(1, 1, 3, 50), gang(2, 2, 1, 90), gang(3, 3, 1, 1000), gang(4, 93, 1, 1000)]
    world, at = run(Easy, gangs)
    assert at == {0: 0.0, 1: 100.0, 2: 2.0, 3: 3.0, 4: 150.0}
    assert {one.gang.id: set(one.seats) for one in world.started}[3] == {3}


def test_easy_by_what_users_declare() -> None:
    # R declares 400 and ends at 100; B declares 90 s and may pass. Its shadow time is 400, so C (300 s at 3) passes
    # too, until 303: A, which needs all four nodes, starts then and not at 100.
    gangs = [gang(0, 0, 2, 100, declared=400.0), gang(1, 1, 4, 50), gang(2, 2, 1, 90), gang(3, 3, 1, 300)]
    _, at = run(Easy, gangs)
    assert at == {0: 0.0, 2: 2.0, 3: 3.0, 1: 303.0}


def test_easy_without_estimates_only_what_the_head_leaves_is_used() -> None:
    # as in the first example, but nothing declares a time: B may not use node 2, and takes the spare node 3; C waits.
    gangs = [
        gang(0, 0, 2, 100, declared=None), gang(1, 1, 3, 50, declared=None),
        gang(2, 2, 1, 90, declared=None), gang(3, 3, 1, 1000, declared=None),
    ]  # fmt: skip
    _, at = run(Easy, gangs)
    # at 92 B ends and node 3 is free: now C takes it
    assert at == {0: 0.0, 1: 100.0, 2: 2.0, 3: 92.0}


THIRD = [gang(0, 0, 2, 100), gang(1, 1, 3, 50), gang(2, 2, 4, 100), gang(3, 3, 1, 1000)]


def test_easy_protects_the_first_alone() -> None:
    # The head A: nodes 0, 1, 2 at 100. C (1000 s) takes the spare node 3 at 3, and so B, which needs all four nodes,
    # starts at 1003.
    assert run(Easy, THIRD)[1] == {0: 0.0, 3: 3.0, 1: 100.0, 2: 1003.0}


def test_conservative_protects_all() -> None:
    # A is planned for 100 to 150, B for 150 to 250 on all nodes: C, of 1000 s, fits before neither and starts at 250.
    assert run(Conservative, THIRD)[1] == {0: 0.0, 1: 100.0, 2: 150.0, 3: 250.0}


def test_conservative_passes_what_ends_before() -> None:
    # D, of 97 s at 3, ends at 100, when A is to start
    gangs = [*THIRD[:3], gang(3, 3, 1, 97)]
    assert run(Conservative, gangs)[1] == {0: 0.0, 3: 3.0, 1: 100.0, 2: 150.0}


# ---- all of them


@pytest.mark.parametrize("name", RIVALS)
def test_every_gang_starts_once_and_whole(name: str) -> None:
    dice = random.Random(3)
    gangs = [
        Gang(i, 20.0 * i, dice.randrange(4), dice.choice((1, 1, 2, 4)), dice.choice((1, 2, 4, 8)), s, s)
        for i, s in enumerate(dice.uniform(10, 200) for _ in range(120))
    ]
    world = World(SMALL, Account(0.0, FOREVER))
    world.run(gangs, RIVALS[name](world, random.Random(1)))
    assert sorted(one.gang.id for one in world.started) == list(range(120))
    assert all(sum(one.seats.values()) == one.gang.pods and one.wait >= 0 for one in world.started)
    assert world.account.ran == pytest.approx(sum(one.total * one.seconds for one in gangs))
    assert world.free == [8] * 4
