"""What a gang may take of nodes, and its cheapest placement, against trying everything."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_core import fit, joint, joint_search
from ext_core.ask import Ask
from ext_core.hazard import Hazards
from ext_core.link_sets import LinkSets
from ext_core.links import LinkShapes
from ext_core.reasons import CountCodes, LinkCodes, NicCodes, ResourceCodes
from ext_core.rows import NodeFacts, NodeUse, Role
from ext_core.slots import Slots
from ext_core.table import NodeTable
from tests.core.test_slots import numbers, types
from tests.core.worlds import DGX1V, GPU, NICS, PCIE, R, World, build, ints, same_error, worlds
from tests.reference import hazard as plain_hazard
from tests.reference import joint as plain
from tests.reference import link_sets as plain_sets
from tests.reference import slots as plain_slots

FULLNESS = 0.01
COUNT, LINKS = CountCodes(1, 2, 3, 4, 5, 6), LinkCodes(1, 2, 3, 4, 5)
TABLES = 4  # CPUs, GiB and so on of the small nodes below


def judged(world: World, ask: Ask) -> tuple[array[int], array[int]]:
    """Reason codes of the rules of filter, and the eligible rows: links are never certain on nodes that share GPUs."""
    rows = array("i", range(world.nodes.height))
    codes = array("B", bytes(len(rows)))
    fit.resource(world.nodes, ask, rows, codes, ResourceCodes(1, 2))
    fit.count(world.nodes, world.pods, ask, rows, codes, COUNT)
    fit.links(world.nodes, world.pods, ask, rows, codes, LINKS)
    fit.nics(world.nodes, ask, rows, codes, NicCodes(1, 2, 3, 4))
    shared = [world.nodes.node(row).units > 1 and ask.links == "required" and ask.wanted > 1 for row in rows]
    return codes, array("Q", [sum(1 << row for row in rows if not shared[row])])


@st.composite
def roles(draw: st.DrawFn, most: int = 3) -> list[Role]:
    made = []
    kinds = draw(st.integers(1, 2))
    for _ in range(kinds):
        share = draw(st.sampled_from([1, 1, 1, 1, 2, 4]))
        gpus = draw(st.sampled_from([0, 1, 1, 2, 2, 3, 4])) * share
        amounts = (draw(st.sampled_from([0, 1000, 30_000])), draw(st.sampled_from([0, 1 << 30, 1 << 39])), 1, gpus)
        links = draw(st.sampled_from(["ignore", "preferred", "required", "required"])) if share == 1 else "preferred"
        nics = draw(st.sampled_from(["ignore", "ignore", "preferred", "required"])) if share == 1 else "ignore"
        ask = Ask((*amounts, 0), share, draw(st.sampled_from([1, 1, 2])), 0, links).with_nics(nics)
        ask = ask.as_planned() if share == 1 and draw(st.booleans()) else ask
        made.append(Role(ask, draw(st.integers(1, most)), draw(st.sampled_from([0, 0, 0, 1, 2, 3]))))
    made.sort(key=lambda role: (role.ask.share, role.ask.wanted, role.ask.amounts), reverse=True)
    either = [role.against for role in made]  # who repels is repelled
    for c in range(kinds):
        for d in range(kinds):
            if either[c] >> d & 1:
                either[d] |= 1 << c
    return [
        role._replace(against=against & (1 << kinds) - 1, cordoned=draw(st.booleans()))
        for role, against in zip(made, either, strict=True)
    ]


@dataclass
class Both:
    fast: joint.Joint
    slow: plain.Joint


def both(
    world: World,
    asked: list[Role],
    kinds: list[Any],
    prices: list[float],
    flags: list[int],
    others: tuple[list[tuple[int, ...]], list[int]] = ([], []),
) -> Both:
    """`others`: what one pod of each role asks for of resources that are no columns, and what is left of them."""
    slots, twin = Slots(), plain_slots.Slots()
    slots.set_types(kinds)
    twin.set_types(kinds)
    slots.sync(world.nodes)
    hazards, plain_hazards = Hazards(), plain_hazard.Hazards()
    for row, flag in enumerate(flags[: world.nodes.height]):
        hazards.set(row, flag)
        plain_hazards.set(row, flag)
    wanted = others[0][: len(asked)] or None
    fast = joint.Joint(world.nodes, slots, LinkSets(world.nodes.shapes), asked, FULLNESS, wanted)
    slow = plain.Joint(world.twin_nodes, twin, plain_sets.LinkSets(world.nodes.shapes), asked, FULLNESS, wanted)
    fast.set_prices(array("d", prices[: len(kinds)]))
    slow.set_prices(prices[: len(kinds)])
    rows = range(world.nodes.height)
    marks = [judged(world, role.ask) for role in asked]
    left = others[1][: len(rows) * len(wanted[0])] if wanted else []
    fast.read(world.nodes, hazards, ints(rows), marks, array("q", left) if wanted else None)
    slow.read(world.twin_nodes, plain_hazards, rows, [(list(codes), list(bits)) for codes, bits in marks], left)
    return Both(fast, slow)


def relayed(world: World, planned: bool, plugin: str) -> World:
    """The same nodes, where machines of eight GPUs have a relay, or another `plugin`."""
    shapes = LinkShapes()
    shapes.planned = planned
    shape = shapes.intern_with_nics(NICS, DGX1V, gpu_total=False, pcie=PCIE, numa=None, plugin=plugin, gbps=25.0)
    calls: list[Any] = []
    for row in range(world.nodes.height):
        at = world.nodes.node(row)
        calls += [
            ("add", (row,)),
            ("set_node", (row, at.alloc, at.gpu, shape if at.shape else 0, at.healthy, at.flags, at.units, at.model)),
            ("set_held", (row, at.used, at.sure, at.likely, at.unknown, at.pending, at.parts)),
        ]
    made = World(NodeTable(R, shapes), world.pods, type(world.twin_nodes)(R, shapes), world.twin_pods)
    from tests.core.worlds import call

    for one in calls:
        call(made.nodes, one)
        call(made.twin_nodes, one)
    return made


flags = st.lists(st.sampled_from([0, 0, 2]), min_size=6, max_size=6)
some_prices = st.lists(numbers, min_size=8, max_size=8)


@st.composite
def other_resources(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[int]]:
    """Two resources that are no columns, of two roles and six nodes; or none."""
    if draw(st.booleans()):
        return [], []
    amounts, left = st.sampled_from([0, 0, 1, 8, 2**46]), st.sampled_from([-1, 0, 1, 3, 16, 2**46])
    return draw(st.lists(st.tuples(amounts, amounts), min_size=2, max_size=2)), draw(st.lists(left, min_size=12))


@given(
    worlds(), roles(), types, some_prices, flags, st.sampled_from([None, "relay", "relay-unused", "first"]),
    other_resources(),
)  # fmt: skip
def test_nodes_take_what_the_definition_says(
    world: World,
    asked: list[Role],
    kinds: list[Any],
    prices: list[float],
    flags: list[int],
    relay: str | None,
    others: tuple[list[tuple[int, ...]], list[int]],
) -> None:
    if relay is not None:
        world = relayed(world, relay == "relay", relay.removesuffix("-unused"))
    two = both(world, asked, kinds, prices, flags, others)
    fast, slow = two.fast, two.slow
    panics = any(flags)  # more pods may be safer than fewer: not all ways are found then
    assert fast.height == slow.height == world.nodes.height
    assert fast.needed() == slow.needed()
    for at in range(fast.height):
        assert fast.row(at) == slow.row(at)
        assert [list(fast.spare(ints([at]), r)) for r in range(R)] == [slow.spare([at], r) for r in range(R)]
        if not panics:
            assert fast.most_of(at) == slow.most_of(at)
            assert fast.ways(at) == slow.ways(at)
        for counts, price in fast.ways(at) or ():
            assert slow.price(at, counts) == fast.price(at, counts) == price
            gpus = fast.gpus(at, counts)
            assert gpus == slow.gpus(at, counts), (
                world.nodes.node(at),
                [(r.ask.amounts, r.ask.share, r.ask.links, r.ask.containers) for r in asked],
                relay,
            )
            assert gpus is not None
            assert fast.holds(at, counts, gpus)
            assert slow.holds(at, counts, gpus)
            assert not fast.holds(at, counts, [0xFFFF] * sum(counts)) or not any(role.ask.wanted for role in asked)
    if panics:
        return
    every = ints([0] * fast.height)
    assert list(fast.sums(every, 1)) == slow.sums(every, 1)
    assert list(fast.members(every, 0)) == slow.members(every, 0)
    assert fast.work(fast.members(every, 0)) == slow.work(slow.members(every, 0))
    assert fast.alone(0, fast.height, every) == slow.alone(0, fast.height, every)
    for c in range(len(asked)):
        assert list(fast.rooms(fast.members(every, 0), c)) == slow.rooms(slow.members(every, 0), c)
    none = [0] * len(asked)
    for wrong in (-1, len(asked)):
        same_error(partial(fast.more, 0, none, wrong), partial(slow.more, 0, none, wrong))
    assert [fast.more(0, none, c) for c in range(len(asked))] == list(fast.most_of(0))


refused = st.lists(
    st.tuples(st.lists(st.integers(0, 5), max_size=3), st.lists(st.integers(0, 2), min_size=4, max_size=4)), max_size=4
)
"""Nodes, and pods of each role that they do not take together."""


def refuse(two: Both, asked: list[Role], some: list[tuple[list[int], list[int]]]) -> None:
    for nodes, counts in some:
        at = ints([node for node in nodes if node < two.fast.height])
        vector = [min(count, role.pods) for count, role in zip(counts, asked, strict=False)]
        if any(vector):
            two.fast.refuse(at, [vector])
            two.slow.refuse(at, [vector])


@given(worlds(), roles(), types, some_prices, refused)
def test_what_is_refused_is_no_way(
    world: World, asked: list[Role], kinds: list[Any], prices: list[float], some: list[tuple[list[int], list[int]]]
) -> None:
    two = both(world, asked, kinds, prices, [])
    before = [two.fast.ways(at) for at in range(two.fast.height)]
    refuse(two, asked, some)
    every = ints([0] * two.fast.height)
    for at in range(two.fast.height):
        assert two.fast.most_of(at) == two.slow.most_of(at)
        assert two.fast.ways(at) == two.slow.ways(at)
    assert list(two.fast.members(every, 0)) == two.slow.members(every, 0)
    assert two.fast.alone(0, two.fast.height, every) == two.slow.alone(0, two.fast.height, every)
    two.fast.refuse_nothing()
    assert [two.fast.ways(at) for at in range(two.fast.height)] == before
    with pytest.raises(IndexError):
        two.fast.refuse(ints([two.fast.height]), [[1] * len(asked)])
    with pytest.raises(ValueError, match="as many pods"):
        two.fast.refuse(ints([0]), [[asked[0].pods + 1] * len(asked)])


@given(worlds(), roles(4), types, some_prices, st.booleans(), refused)
def test_the_search_finds_the_cheapest_placement(
    world: World,
    asked: list[Role],
    kinds: list[Any],
    prices: list[float],
    partial: bool,
    some: list[tuple[list[int], list[int]]],
) -> None:
    two = both(world, asked, kinds, prices, [])
    refuse(two, asked, some)
    at = two.fast.members(ints([0] * two.fast.height), 0)[:3]
    fast, slow = joint_search.Search(two.fast, at, partial), plain.Search(two.slow, list(at), partial)
    assert joint_search.states(two.fast) == plain.states(two.slow)
    while not fast.advance(1):
        pass
    assert slow.advance(1)
    assert fast.cost_of() == slow.cost_of()
    if fast.cost_of() is None and not partial:
        return
    made, twin = fast.placement(), slow.placement()
    assert sum(sum(counts) for _, counts in made) == sum(sum(counts) for _, counts in twin)
    price = sum(two.fast.price(node, counts) or 0 for node, counts in made)
    assert price == sum(two.slow.price(node, counts) or 0 for node, counts in twin)
    assert len(made) == len(twin)


@given(worlds(), roles(), types, some_prices, st.lists(st.integers(-1, 9), min_size=2, max_size=2))
def test_the_search_keeps_to_what_may_be_taken_of_nodes_together(
    world: World, asked: list[Role], kinds: list[Any], prices: list[float], limits: list[int]
) -> None:
    """Nodes in groups; of each group the pods may take so many GPUs together."""
    two = both(world, asked, kinds, prices, [])
    at = two.fast.members(ints([0] * two.fast.height), 0)[:3]
    sizes = [role.ask.wanted for role in asked]
    groups = [(at[i::2], most) for i, most in enumerate(limits)]
    fast_parts = [joint_search.Search(two.fast, nodes, True, sizes, most) for nodes, most in groups]
    for part in fast_parts:
        while not part.advance(1):
            pass
    fast = joint_search.Union(fast_parts)
    slow = plain.Union([plain.Search(two.slow, list(nodes), True, sizes, most) for nodes, most in groups])
    while not fast.advance(1):
        pass
    assert slow.advance(1)
    assert fast.cost_of() == slow.cost_of()
    made, twin = fast.placement(), slow.placement()
    assert sum(sum(counts) for _, counts in made) == sum(sum(counts) for _, counts in twin)
    assert len(made) == len(twin)
    price = sum(two.fast.price(node, counts) or 0 for node, counts in made)
    assert price == sum(two.slow.price(node, counts) or 0 for node, counts in twin)
    for nodes, most in groups:
        taken = sum(
            size * count for node, counts in made if node in nodes for size, count in zip(sizes, counts, strict=True)
        )
        assert most < 0 or taken <= most


def one_node() -> World:
    calls: list[Any] = [
        ("add", (0,)),
        ("set_node", (0, (8000, 1 << 40, 110, 4, 0), GPU, 0, 0xF, 4, 1, 0)),
        ("set_held", (0, (0, 0, 0, 0, 0), 0, 0, 0, 0, ())),
    ]
    return build(calls, [])


def test_what_is_out_of_range_is_an_error() -> None:
    world = one_node()
    ask = Ask((1000, 0, 1, 1, 0))
    sets = LinkSets(world.nodes.shapes)
    for wrong in ([], [Role(ask, 0, 0)], [Role(ask, 1, -1)], [Role(Ask((-1, 0, 1, 1, 0)), 1, 0)]):
        with pytest.raises((ValueError, OverflowError)):
            joint.Joint(world.nodes, Slots(), sets, wrong, FULLNESS)
    with pytest.raises(ValueError, match="shapes"):
        joint.Joint(world.nodes, Slots(), LinkSets(LinkShapes()), [Role(ask, 1, 0)], FULLNESS)
    made = joint.Joint(world.nodes, Slots(), sets, [Role(ask, 2, 0)], FULLNESS)
    with pytest.raises(IndexError):
        made.read(world.nodes, Hazards(), ints([1]), [(array("B", [0]), array("Q", [1]))])
    with pytest.raises(IndexError):
        made.most_of(0)
    made.set_prices(array("d"))
    made.read(world.nodes, Hazards(), ints([0]), [(array("B", [0]), array("Q", [1]))])
    with pytest.raises(ValueError, match="at most as there are"):
        made.gpus(0, (3,))
    for role in (-1, 1, 64, 2**31 - 1):
        with pytest.raises(IndexError, match="role"):
            made.more(0, (0,), role)
        with pytest.raises(IndexError, match="role"):
            made.rooms(ints([0]), role)
    search = joint_search.Search(made, ints([0]))
    with pytest.raises(ValueError, match="not ended"):
        search.cost_of()
    with pytest.raises(ValueError, match="not ended"):
        joint_search.Union([search])
    with pytest.raises(ValueError, match="no search"):
        joint_search.Union([])
    while not search.advance(1):
        pass
    with pytest.raises(ValueError, match="one search"):
        joint_search.Union([search])  # it is not partial
    for sizes in ((), (1, 1), (-1,)):
        with pytest.raises(ValueError, match="one number of GPUs a role"):
            joint_search.Search(made, ints([0]), True, sizes, 1)


@pytest.mark.parametrize("memory", [2**61, 2**62, 2**40])
def test_large_amounts_do_not_wrap(memory: int) -> None:
    """A node of 2^40 bytes takes one pod of as many; four of 2^62 are 2^64, which is not 0."""
    world = one_node()
    asked = [Role(Ask((0, memory, 1, 1, 0)), 4, 0)]
    made = joint.Joint(world.nodes, Slots(), LinkSets(world.nodes.shapes), asked, FULLNESS)
    made.set_prices(array("d"))
    made.read(world.nodes, Hazards(), ints([0]), [(array("B", [0]), array("Q", [1]))])
    assert made.most_of(0) == (int(memory == 2**40),)
    assert made.gpus(0, (4,)) is None
    assert made.needed()[1] == 4 * memory


def test_prices_are_void_when_types_come() -> None:
    world, slots = one_node(), Slots()
    made = joint.Joint(
        world.nodes, slots, LinkSets(world.nodes.shapes), [Role(Ask((1000, 0, 1, 1, 0)), 2, 0)], FULLNESS
    )
    slots.sync(world.nodes)
    made.set_prices(array("d"))
    made.read(world.nodes, Hazards(), ints([0]), [(array("B", [0]), array("Q", [1]))])
    assert made.priced()
    slots.set_types([(GPU, 1, 1, 1000, 0, 2**64 - 1, 0)])
    assert not made.priced()
    with pytest.raises(ValueError, match="types"):
        made.price(0, (1,))
    made.set_prices(array("d", [1.0]))
    assert made.price(0, (1,)) is not None


def test_a_copy_does_not_follow_the_table() -> None:
    world, slots = one_node(), Slots()
    made = joint.Joint(
        world.nodes, slots, LinkSets(world.nodes.shapes), [Role(Ask((1000, 0, 1, 2, 0)), 2, 0)], FULLNESS
    )
    slots.sync(world.nodes)
    made.set_prices(array("d"))
    made.read(world.nodes, Hazards(), ints([0]), [(array("B", [0]), array("Q", [1]))])
    world.nodes.set_held(0, NodeUse((0, 0, 0, 4, 0), 0xF, 0, 0, 0))
    world.nodes.set_node(0, NodeFacts((0, 0, 0, 0, 0), -1, 0, 0, 0))
    assert made.most_of(0) == (2,)
    assert made.gpus(0, (2,)) == [0b0011, 0b1100]
