"""The search for moves, against its slow twin."""

from __future__ import annotations

import random

from extender.preemption.moves import NEVER, Amounts, Movable, MovablePod, MoveSearch, MoveSearchResult, Shape
from tests.cases import cases
from tests.reference import moves as reference

CASES = cases(1_000)


def drawn(rng: random.Random) -> tuple[list[Amounts], list[Movable], Shape]:
    """A small cluster of machines with 4 GPUs and 6 CPUs, and a shape."""
    nodes = rng.randint(2, 4)
    every = (1 << nodes) - 1
    left = [[6, 4] for _ in range(nodes)]
    units: list[Movable] = []
    for _ in range(rng.randint(2, 7)):
        allowed = every if rng.random() < 0.7 else rng.randint(1, every)
        pods: list[MovablePod] = []
        for _ in range(rng.choice((1, 1, 1, 2))):
            amounts = rng.choice((0, 1, 1, 2)), rng.choice((1, 1, 2, 2, 3, 4))
            open_nodes = [n for n in range(nodes) if left[n][0] >= amounts[0] and left[n][1] >= amounts[1]]
            if open_nodes:
                node = rng.choice(open_nodes)
                left[node] = [a - b for a, b in zip(left[node], amounts, strict=True)]
                pods.append(MovablePod(node, amounts, allowed))
        inside: tuple[int, ...] = (0b11, every & ~0b11) if len(pods) > 1 and rng.random() < 0.4 else ()
        if pods:
            units.append(Movable(tuple(pods), rng.randint(1, 9), inside))
    domains = (every,) if rng.random() < 0.6 else (0b11, every & ~0b11)
    shape = Shape((rng.choice((0, 0, 2)), rng.choice((2, 3, 4, 4))), 1, domains)
    more = reference.fitting(left, shape) + (rng.random() < 0.9)
    return [tuple(amounts) for amounts in left], units, shape._replace(pods=max(1, more))


def carry_out(free: list[Amounts], units: list[Movable], result: MoveSearchResult) -> list[Amounts]:
    """What is left after the moves, each of which has to find its places free. AssertionError: one has not."""
    left = [list(amounts) for amounts in free]
    moved: set[int] = set()
    for move in result.moves or ():
        unit = units[move.unit]
        assert move.unit not in moved
        moved.add(move.unit)
        assert not unit.domains or any(all(d >> node & 1 for node in move.nodes) for d in unit.domains)
        for pod, node in zip(unit.pods, move.nodes, strict=True):
            assert node != pod.node
            assert pod.allowed >> node & 1
            left[node] = [a - b for a, b in zip(left[node], pod.amounts, strict=True)]
        assert all(amount >= 0 for amounts in left for amount in amounts), "a next place is not free"
        for pod in unit.pods:
            left[pod.node] = [a + b for a, b in zip(left[pod.node], pod.amounts, strict=True)]
    assert sum(units[move.unit].cost for move in result.moves or ()) == result.cost
    return [tuple(amounts) for amounts in left]


def test_random_small_cases_are_at_the_optimum() -> None:
    rng = random.Random(32)
    moved = 0
    for case in range(CASES):
        free, units, shape = drawn(rng)
        result = MoveSearch(free, units).fits(shape, 10**9)
        least = reference.cheapest_to_fit(free, units, shape)
        assert (result.cost if result.moves is not None else None) == least, case
        assert result.proved
        left = carry_out(free, units, result)
        for node, pods in result.places:
            assert all(a >= pods * b for a, b in zip(left[node], shape.amounts, strict=True))
        assert sum(pods for _, pods in result.places) == (shape.pods if result.moves is not None else 0)
        moved += bool(result.moves)
    assert moved > CASES / 8


def test_what_ends_before_leaves_its_gpus_to_the_shape_alone() -> None:
    """Single pods of the drawn clusters end: the shape may have what they hold, and no pod moves there."""
    rng = random.Random(35)
    fewer = 0
    for case in range(CASES // 2):
        free, units, shape = drawn(rng)
        gone = [unit for unit in units if len(unit.pods) == 1 and rng.random() < 0.4]
        stay = [unit for unit in units if unit not in gone]
        ending: dict[int, Amounts] = {}
        for (pod,) in (unit.pods for unit in gone):
            before = ending.get(pod.node, (0, 0))
            ending[pod.node] = before[0] + pod.amounts[0], before[1] + pod.amounts[1]
        result = MoveSearch(free, stay, ending=ending).fits(shape, 10**9)
        least = reference.cheapest_to_fit(free, stay, shape, ending)
        assert (result.cost if result.moves is not None else None) == least, case
        assert result.proved
        left = carry_out(free, stay, result)
        for node, pods in result.places:
            there = [a + b for a, b in zip(left[node], ending.get(node, (0, 0)), strict=True)]
            assert all(a >= pods * b for a, b in zip(there, shape.amounts, strict=True))
        fewer += least is not None and least != reference.cheapest_to_fit(free, stay, shape)
    assert fewer > CASES / 20


def test_random_small_nodes_are_emptied_at_the_optimum() -> None:
    rng = random.Random(33)
    for case in range(CASES // 4):
        free, units, _ = drawn(rng)
        result = MoveSearch(free, units).empties(0, 10**9)
        least = reference.cheapest_to_empty(free, units, 0)
        assert (result.cost if result.moves is not None else None) == least, case
        carry_out(free, units, result)
        assert all(0 not in move.nodes for move in result.moves or ())


def test_where_the_steps_end_the_bound_holds() -> None:
    rng = random.Random(34)
    open_cases = 0
    for _ in range(CASES // 8):
        free, units, shape = drawn(rng)
        least = reference.cheapest_to_fit(free, units, shape)
        result = MoveSearch(free, units).fits(shape, rng.randint(1, 40))
        assert result.bound <= (NEVER if least is None else least)
        assert result.moves is None or result.cost >= (least or 0)
        carry_out(free, units, result)
        open_cases += not result.proved
    assert open_cases > CASES / 100


def test_sets_above_the_ceiling_are_left_out() -> None:
    rng = random.Random(35)
    for _ in range(CASES // 8):
        free, units, shape = drawn(rng)
        least = reference.cheapest_to_fit(free, units, shape)
        ceiling = rng.randint(0, 9)
        result = MoveSearch(free, units, ceiling).fits(shape, 10**9)
        assert (result.moves is None) == (least is None or least > ceiling)
        assert result.proved


def test_moves_that_hinder_no_others_do_not_multiply_the_orders() -> None:
    """30 units go to node 1. Those of nodes 2 and 3 need each other's places, so no order exists."""
    units = [Movable((MovablePod(0, (1,), 0b10),), 10) for _ in range(30)]
    units += [
        Movable((MovablePod(0, (1,), 0b100),), 5),
        Movable((MovablePod(2, (2,), 0b1000),), 5),
        Movable((MovablePod(3, (1,), 0b100),), 5)
    ]  # fmt: skip
    result = MoveSearch([(0,), (30,), (0,), (1,)], units).fits(Shape((31,), 1, (0b1,)))
    assert (result.moves, result.proved) == (None, True)
    assert result.steps < 200


def test_the_steps_bound_the_orders_that_are_tried() -> None:
    """Ten times three units with an order of their own: the first goes to the one free GPU of a node, whose unit goes
    to the place of the first, then the third comes. Two more units need each other's places."""
    units, free, nodes = list[Movable](), list[Amounts](), dict[int, tuple[int, ...]]()
    for at in range(0, 30, 3):
        free += [(0,), (1,), (0,)]
        for source, target in ((at, at + 1), (at + 1, at), (at + 2, at + 1)):
            nodes[len(units)] = (target,)
            units.append(Movable((MovablePod(source, (1,), 1 << target),), 1))
    search = MoveSearch(free, units)
    search._until, search._moved = 5_000, dict(nodes)
    assert len(search._order() or ()) == 30
    units += [Movable((MovablePod(30, (1,), 1 << 31),), 1), Movable((MovablePod(31, (1,), 1 << 30),), 1)]
    search = MoveSearch([*free, (0,), (0,)], units)
    search._until, search._moved = 5_000, {**nodes, 30: (31,), 31: (30,)}
    assert search._order() is None
    assert search._steps == 5_001


def test_a_shape_of_many_nodes_has_moves_with_a_bound() -> None:
    """100 nodes with 8 GPUs each, of 140 that have two pods with 1 GPU: at least 200 pods leave."""
    nodes = 140
    every, rng = (1 << nodes) - 1, random.Random(36)
    units = [Movable((MovablePod(node, (1, 1), every),), rng.randint(1, 9)) for node in range(nodes) for _ in range(2)]
    free: list[Amounts] = [(30, 6)] * nodes
    result = MoveSearch(free, units).fits(Shape((0, 8), 100, (every,)), 2_000)
    assert result.moves is not None
    assert len(result.moves) == 200
    assert 0 < result.bound <= result.cost
    left = carry_out(free, units, result)
    assert sum(left[node][1] >= 8 for node, _ in result.places) == 100
    full = MoveSearch([(30, 6)] * nodes, units).fits(Shape((0, 8), 120, (every,)), 2_000)
    assert full.moves is None


def test_nodes_that_are_freed_one_after_the_other_leave_the_tables_as_before() -> None:
    """Random clusters, gangs and domains: what a search without steps finds can be carried out, and costs at least the
    optimum."""
    rng = random.Random(37)
    found = 0
    for _ in range(CASES // 4):
        free, units, shape = drawn(rng)
        search = MoveSearch(free, units)
        before = [list(column) for column in search._free]
        result = search.fits(shape, 0)
        assert [list(column) for column in search._free] == before
        assert not search._moved
        carry_out(free, units, result)
        if result.moves:
            found += 1
            least = reference.cheapest_to_fit(free, units, shape)
            assert least is not None
            assert result.bound <= least <= result.cost
    assert found > CASES / 40
