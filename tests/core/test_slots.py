"""Slots, what requests take of them and what that costs, against the plain definitions; rows change in between."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_core import slots
from ext_core.ask import Ask
from ext_core.rows import NodeFacts, NodeUse
from ext_core.table import NodeTable
from tests.core.worlds import DGX1V, GPU, KINDS, OTHER, SHAPES, R, World, call, ints, masks, rows_of, same_error, worlds
from tests.reference import slots as plain

ALL = 2**64 - 1
numbers = st.sampled_from([0.0, 1.0, 0.5, 3.0, 0.1])
shares = st.sampled_from([1, 1, 1, 2, 3, 4, 5])
cpus = st.sampled_from([0, 1, 4000, 16_000, 64_000, 2**50])
memories = st.sampled_from([0, 1 << 30, 1 << 38, 2**50])
types = st.lists(
    st.tuples(
        st.sampled_from([GPU, GPU, GPU, OTHER]),
        st.sampled_from([0, 1, 1, 2, 3, 4, 8]),
        shares,
        cpus,
        memories,
        st.sampled_from([ALL, ALL, 1, 2, 6, 0]),
        st.integers(0, 2),
    ),
    max_size=8,
)


def asking(resource: int, devices: int, share: int, cpu: int, memory: int, nics: str) -> Ask:
    amounts = [cpu, memory, 1, 0, 0]
    amounts[resource] = devices * share
    return Ask(tuple(amounts), share).with_nics(nics)


wanted_nics = st.sampled_from(["ignore", "ignore", "preferred", "required"])
requests = st.builds(
    asking, st.sampled_from([GPU, GPU, GPU, OTHER]), st.integers(0, 5), shares, cpus, memories, wanted_nics
)


def column(n: int) -> array[float]:
    return array("d", bytes(8 * n))


def both(world: World, kinds: list[Any]) -> tuple[slots.Slots, plain.Slots]:
    made, twin = slots.Slots(), plain.Slots()
    made.set_types(kinds)
    twin.set_types(kinds)
    return made, twin


@st.composite
def changes(draw: st.DrawFn, height: int) -> list[tuple[str, tuple[Any, ...]]]:
    """What may happen to rows between two requests."""
    calls: list[tuple[str, tuple[Any, ...]]] = []
    for _ in range(draw(st.integers(0, 3))):
        row = draw(st.integers(0, height - 1))
        held = draw(st.tuples(st.integers(0, 9000), st.integers(0, 2**39), st.just(3), st.integers(0, 4), st.just(0)))
        calls.append(
            draw(
                st.sampled_from(
                    [
                        ("set_held", (row, held, draw(masks(8)), 0, 0, 0, (1, 2))),
                        ("add_claim", (row, held, draw(masks(8)), True)),
                        ("drop_claims", ()),
                        ("clear", (row,)),
                        ("set_node", (row, (9000, 2**39, 9, 16, 0), GPU, 0, 0xF, 4, 4, 1)),
                    ]
                )
            )
        )
    return calls


@given(worlds(), st.data(), types)
def test_slots_of_every_row(world: World, data: st.DataObject, kinds: list[Any]) -> None:
    made, twin = both(world, kinds)
    for _ in range(5):
        synced = made.sync(world.nodes)
        twin.sync(world.twin_nodes)
        assert made.sync(world.nodes) == synced  # nothing has changed
        assert made.totals().tolist() == twin.totals()
        assert made.filled() == twin.filled()
        for row in range(world.nodes.height):
            assert made.counts(row).tolist() == twin.counts(row)
        for change in data.draw(changes(world.nodes.height)):
            call(world.nodes, change)
            call(world.twin_nodes, change)


@pytest.mark.parametrize("changed", [1, 1023, 1024, 1025, 5000])
def test_slots_after_few_changes_and_after_more_than_are_remembered(changed: int) -> None:
    nodes, kept = NodeTable(R, SHAPES), slots.Slots()
    kept.set_types([(GPU, 2, 1, 1000, 0, ALL, 1)])
    for row in range(40):
        nodes.add(row)
        nodes.set_node(row, NodeFacts((64_000, 1 << 40, 110, 8, 0), GPU, 0, 0xFF, 4, 1))
    kept.sync(nodes)
    for n in range(changed):
        nodes.set_held(n * 7 % 40, NodeUse((0, 0, 1, n % 9, 0), (1 << n % 9) - 1, 0, 0, 0))
    kept.sync(nodes)
    anew = slots.Slots()
    anew.set_types([(GPU, 2, 1, 1000, 0, ALL, 1)])
    anew.sync(nodes)
    assert [kept.counts(row) for row in range(40)] == [anew.counts(row) for row in range(40)]
    assert (kept.totals(), kept.filled()) == (anew.totals(), anew.filled())


@given(worlds(), st.data(), types, st.lists(requests, min_size=1, max_size=3), st.sampled_from([0.0, 0.1]))
def test_costs_and_choices(
    world: World, data: st.DataObject, kinds: list[Any], asked: list[Ask], fullness: float
) -> None:
    made, twin = both(world, kinds)
    for request in asked * 3:  # again from what is kept, also of types that were fewer
        come = data.draw(st.sampled_from([0, 0, 1, 2]))
        for _ in range(come):
            kinds = list(kinds)
            kinds.insert(data.draw(st.integers(0, len(kinds))), data.draw(types.filter(len))[0])
        if data.draw(st.integers(0, 5)) == 5:
            kinds = data.draw(st.permutations(kinds))[1:]
        made.set_types(kinds)
        twin.set_types(kinds)
        rows = data.draw(rows_of(world))
        prices = data.draw(st.lists(numbers, min_size=len(kinds), max_size=len(kinds)))
        out, wanted = column(len(rows)), [0.0] * len(rows)
        paid = array("d", prices)
        made.fill(world.nodes, request, ints(rows), paid, fullness, out)
        twin.fill(world.twin_nodes, request, rows, prices, fullness, wanted)
        assert out.tolist() == wanted
        priced, most = data.draw(st.sampled_from([0, 2, 100])), data.draw(st.sampled_from([0, 1, 2, 5, 100]))
        masks, costs = made.placed(world.nodes, request, ints(rows), paid, priced, most)
        wished = twin.placed(world.twin_nodes, request, rows, prices, priced, most)
        assert (masks.tolist(), [cost.tolist() for cost in costs]) == wished
        for change in data.draw(changes(world.nodes.height)):
            call(world.nodes, change)
            call(world.twin_nodes, change)


@pytest.mark.parametrize("larger", [(128_000, 8), (64_000, 16)])
def test_what_is_left_is_a_part_of_the_largest_node_that_has_come(larger: tuple[int, int]) -> None:
    nodes, ask, rows = NodeTable(R, SHAPES), asking(GPU, 1, 1, 0, 0, "ignore"), array("i", [0])
    values, kept, fresh = [], slots.Slots(), slots.Slots()
    kept.set_types([(GPU, 1, 1, 0, 0, ALL, 0)])
    for row, (cpu, gpus) in enumerate([(64_000, 8), larger]):
        nodes.add(row)
        nodes.set_node(row, NodeFacts((cpu, 1 << 40, 110, gpus, 0), GPU, 0, (1 << gpus) - 1, 4, 1))
        fresh.set_types([(GPU, 1, 1, 0, 0, ALL, 0)])  # what it keeps of rows counts no more
        for counted in (kept, fresh):
            out = column(1)
            counted.fill(nodes, ask, rows, array("d", [1.0]), 0.1, out)
            values.append(out[0])
    assert values[0] == values[1] != values[2] == values[3]


@pytest.mark.parametrize("units", [1, 4])
def test_a_type_that_comes_later_is_lost_as_if_it_had_always_been_there(units: int) -> None:
    nodes = NodeTable(R, SHAPES)
    for row, held in enumerate((0, 0b1111, 0)):
        nodes.add(row)
        nodes.set_node(row, NodeFacts((64_000 - row, 1 << 40, 110, 8 * units, 0), GPU, 0, 0xFF, 4, units))
        parts = (1,) * (row > 1) if units > 1 else ()
        used = (0, 0, 0, held.bit_count() * units + sum(parts), 0)
        nodes.set_held(row, NodeUse(used, held, 0, 0, 0, parts))
    one, four, eight = ((GPU, devices, units, 8000, 0, ALL, 0) for devices in (1, 4, 8))
    ask, late = asking(GPU, 1, 1, 0, 0, "ignore"), slots.Slots()
    for kinds in ([four], [one, four], [one, four, eight], [four, eight]):
        late.set_types(kinds)
        fresh = slots.Slots()
        fresh.set_types(kinds)
        prices = array("d", [1.0] * len(kinds))
        lost, again = (made.placed(nodes, ask, array("i", range(3)), prices, 3, 9) for made in (late, fresh))
        assert lost == again
        assert any(cost[0] for cost in lost[1])
        assert late.totals() == fresh.totals()


@given(worlds(), types, st.integers(-1, 7), requests, st.integers(-1, 1), st.integers(-1, 1))
def test_bad_input_is_rejected_alike(
    world: World, kinds: list[Any], row: int, request: Ask, more: int, longer: int
) -> None:
    made, twin = both(world, kinds)
    prices = [1.0] * max(0, len(kinds) + more)
    cpu, memory, *gpus = request.amounts
    for asked in (
        request,
        Ask((cpu, memory, *gpus, 1)),
        Ask((cpu, memory, *gpus), 2**31),
        Ask((cpu - 1, memory, *gpus)),
        Ask((cpu, memory - 1, *gpus)),
    ):
        size = max(0, 1 + longer)
        same_error(
            lambda: made.fill(world.nodes, asked, ints([row]), array("d", prices), 0.0, column(size)),  # noqa: B023
            lambda: twin.fill(world.twin_nodes, asked, [row], prices, 0.0, [0.0] * size),  # noqa: B023
        )
        same_error(
            lambda: made.placed(world.nodes, asked, ints([row]), array("d", prices), 1, 5),  # noqa: B023
            lambda: twin.placed(world.twin_nodes, asked, [row], prices, 1, 5),  # noqa: B023
        )
    same_error(lambda: made.counts(row), lambda: twin.counts(row))


@pytest.mark.parametrize(
    "bad",
    [
        [(GPU, -1, 1, 0, 0, 1, 0)],
        [(GPU, 1, 0, 0, 0, 1, 0)],
        [(GPU, 1, 1, -1, 0, 1, 0)],
        [(GPU, 1, 1, 0, 0, 2**64, 0)],
        [(GPU, 1, 1, 0, 0, 1, 3)],
        [(-1, 1, 1, 0, 0, 1, 0)],
        [(GPU, 1, 1, 0, 0, 1, 0)] * 3,
    ],
)
def test_bad_types_are_rejected_alike(bad: list[Any]) -> None:
    made, twin = slots.Slots(2), plain.Slots(2)
    same_error(lambda: made.set_types(bad), lambda: twin.set_types(bad))
    with pytest.raises(ValueError, match="type"):
        made.set_types(bad)
    assert made.totals().tolist() == twin.totals() == []


@pytest.mark.parametrize("most", [0, 1025])
def test_there_is_a_bound_to_types(most: int) -> None:
    for module in (slots, plain):
        with pytest.raises(ValueError, match="1 to 1024"):
            module.Slots(most)


@pytest.mark.parametrize(
    ("kind", "free", "size", "sets"),
    [
        ("pairs", 0b1111, 2, 2),
        ("pairs", 0b0110, 2, 0),  # 1 and 2 have no link
        ("pairs", 0b0111, 2, 1),
        ("nvswitch", 0xFF, 3, 2),
        ("dgx-1v", 0xFF, 4, 2),
        ("dgx-1v", 0b0010_0001, 2, 0),  # 0 and 5 have no link
        ("unknown", 0xFF, 2, 0),
    ],
)
def test_linked_sets_side_by_side(kind: str, free: int, size: int, sets: int) -> None:
    shape, gpus = KINDS[kind]
    nodes = NodeTable(R, SHAPES)
    nodes.add(0)
    nodes.set_node(0, NodeFacts((64_000, 1 << 40, 110, gpus, 0), GPU, shape, (1 << gpus) - 1, 4))
    held = ((1 << gpus) - 1) & ~free
    nodes.set_held(0, NodeUse((0, 0, 0, held.bit_count(), 0), held, 0, 0, 0))
    made = slots.Slots()
    made.set_types([(GPU, size, 1, 0, 0, ALL, 2)])
    made.sync(nodes)
    assert made.totals().tolist() == [sets]
    assert len(DGX1V) == 8


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.sampled_from([0.0, 0.1, 1.0, 8.0]), st.integers(0, 10**7)), max_size=9),
    st.sampled_from([0.0, 0.5, 0.7, 1.0]),
    st.sampled_from([0.0, 0.5, 1.1]),
    st.integers(0, 1),
)
def test_prices(known: list[tuple[float, float, int]], size: float, scarcity: float, longer: int) -> None:
    weights, sizes, totals = [w for w, _, _ in known], [g for _, g, _ in known], [n for _, _, n in known]
    out, wanted = column(len(known) + longer), [0.0] * (len(known) + longer)

    def kernel() -> None:
        slots.prices(array("d", weights), array("d", sizes), array("q", totals), size, scarcity, out)

    same_error(kernel, lambda: plain.prices(weights, sizes, totals, size, scarcity, wanted))
    assert out.tolist() == wanted


def test_prices_by_hand() -> None:
    out = column(3)
    # Asked for equally often. 4 slots of one GPU, 1 of four GPUs; the third is not asked for.
    slots.prices(array("d", [1, 1, 0]), array("d", [1, 4, 1]), array("q", [4, 1, 0]), 1.0, 0.5, out)
    # 1 / 4^.5 = .5 and 4 / 1: of 4.5 together
    assert out.tolist() == [0.5 / 4.5, 4.0 / 4.5, 0.0]
