"""Where nodes stand and how far they are trusted, against the plain definitions."""

from __future__ import annotations

from array import array
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_core import places
from ext_core.ask import Ask
from ext_core.reasons import FailingCodes
from tests.core.worlds import GPU, OTHER, World, ask, build, ints, rows_of, same_error, worlds
from tests.reference import places as plain

LEVELS = 3
Pair = tuple[places.Places, plain.Places]
NAMESPACES = ("", "a", "b")  # "" never has a list of its own
numbers = st.integers(-1, 9)
own = st.dictionaries(st.integers(0, 12), st.tuples(st.floats(0, 8), st.integers(0, 1)), max_size=5)


@st.composite
def placed(draw: st.DrawFn) -> Pair:
    """The same rows twice: some added, some written to, some cleared again."""
    levels = draw(st.integers(0, LEVELS))
    pair = places.Places(levels), plain.Places(levels)
    for row in draw(st.lists(st.integers(0, 9), max_size=10)):
        calls: list[tuple[str, tuple[Any, ...]]] = [("add", (row,))]
        domains = st.tuples(*[st.integers(0, 3)] * levels)
        calls += [("set_domains", (row, draw(domains)))] * draw(st.integers(0, 2))
        calls += [("set_health", (row, draw(st.floats(0, 8)), draw(st.booleans())))] * draw(st.integers(0, 1))
        calls += [("set_split", (row, draw(st.booleans())))] * draw(st.integers(0, 1))
        calls += [("set_model", (row, draw(st.integers(0, 3))))] * draw(st.integers(0, 1))
        calls += [("clear", (row,))] * (draw(st.integers(0, 4)) == 0)
        for method, arguments in calls:
            for one in pair:
                getattr(one, method)(*arguments)
    for namespace in draw(st.lists(st.sampled_from(NAMESPACES[1:]), max_size=3)):
        held = sorted(draw(own).items())
        for one in pair:
            one.set_own(
                namespace, [row for row, _ in held], [facts[0] for _, facts in held], [facts[1] for _, facts in held]
            )
    return pair


def of_namespaces(asked: Ask) -> list[Ask]:
    """The request as a pod of each namespace makes it."""
    return [Ask(asked.amounts, namespace=namespace) for namespace in NAMESPACES]


@given(placed())
def test_rows(pair: Pair) -> None:
    made, twin = pair
    assert made.height == twin.height
    assert made.active() == twin.active()
    assert made.models() == twin.models()
    for level in range(made.levels + 1):
        order = list(range(made.height + 1))[::-1]
        domain, domains = made.numbered(level, array("i", order))
        assert (list(domain), domains) == twin.numbered(level, order)
    assert made.namespaces() == twin.namespaces()
    assert made.splits() == twin.splits()
    for namespace in NAMESPACES:
        assert (made.doubts(namespace), made.fails(namespace)) == (twin.doubts(namespace), twin.fails(namespace))
    assert [made.place(row) for row in range(made.height)] == [twin.place(row) for row in range(made.height)]


@given(placed(), st.lists(st.integers(0, 12), max_size=8), st.data())
def test_health(pair: Pair, rows: list[int], data: st.DataObject) -> None:
    made, twin = pair
    out, wanted = array("d", bytes(8 * len(rows))), [0.0] * len(rows)
    for asked in of_namespaces(ask(GPU, 1)):
        places.trusted(made, asked, ints(rows), out)
        plain.trusted(twin, asked, rows, wanted)
        assert out.tolist() == wanted
        assert all(0.0 < value <= 1.0 for value in wanted)
    places.whole(made, ints(rows), out)
    plain.whole(twin, rows, wanted)
    assert out.tolist() == wanted
    before = st.lists(st.integers(0, 1), min_size=len(rows), max_size=len(rows))
    twins = data.draw(before)
    codes = array("B", twins)
    places.split(made, ints(rows), codes, 7)
    plain.split(twin, rows, twins, 7)
    assert codes.tolist() == twins
    for asked in of_namespaces(ask(GPU, 1)):
        twins = data.draw(before)
        codes = array("B", twins)
        places.failing(made, asked, ints(rows), codes, FailingCodes(7, 8))
        plain.failing(twin, asked, rows, twins, FailingCodes(7, 8))
        assert codes.tolist() == twins


@pytest.mark.parametrize("kernel", ["spread", "together", "alike"])
@given(pair=placed(), rows=st.lists(st.integers(0, 12), max_size=8), others=st.lists(st.integers(-1, 12), max_size=8))
def test_what_other_pods_are_near(kernel: str, pair: Pair, rows: list[int], others: list[int]) -> None:
    made, twin = pair
    out, wanted = array("d", bytes(8 * len(rows))), [0.0] * len(rows)
    getattr(places, kernel)(made, ints(rows), ints(others), out)
    getattr(plain, kernel)(twin, rows, others, wanted)
    assert out.tolist() == wanted
    assert all(0.0 <= value <= 1.0 for value in wanted)


@pytest.mark.parametrize("kernel", ["best_fit", "holds"])
@given(worlds(), placed(), st.data(), st.sampled_from([GPU, GPU, OTHER]), st.integers(1, 5), st.integers(1, 6))
def test_where_a_group_begins(
    kernel: str, world: World, pair: Pair, data: st.DataObject, resource: int, gpus: int, left: int
) -> None:
    made, twin = pair
    rows = data.draw(rows_of(world))
    out, wanted = array("d", bytes(8 * len(rows))), [0.0] * len(rows)
    for asked in of_namespaces(ask(resource, gpus)):
        getattr(places, kernel)(world.nodes, made, asked, left, ints(rows), out)
        getattr(plain, kernel)(world.twin_nodes, twin, asked, left, rows, wanted)
        assert out.tolist() == wanted
        assert all(0.0 <= value <= 1.0 for value in wanted)


def test_bad_arguments() -> None:
    made, twin = places.Places(1), plain.Places(1)
    both: list[Any] = [made, twin]
    for one in both:
        one.add(0)
    for method, arguments in (
        ("add", (-1,)), ("clear", (1,)), ("set_health", (0, -1.0, False)), ("set_health", (0, float("nan"), False)),
        ("set_health", (3, 0.0, False)), ("set_split", (-1, True)), ("set_model", (0, -1)),
        ("set_model", (3, 1)), ("set_domains", (0, ())),
        ("set_domains", (0, (-1,))), ("place", (5,)), ("set_own", ("a", [1, 1], [0.0, 0.0], [0, 0])),
        ("set_own", ("a", [-1], [0.0], [0])), ("set_own", ("a", [0], [-1.0], [0])), ("set_own", ("a", [0], [], [0])),
        ("set_own", ("a", [0], [float("nan")], [0])),
    ):  # fmt: skip
        same_error(partial(getattr(made, method), *arguments), partial(getattr(twin, method), *arguments))
    with pytest.raises(ValueError, match="differ"):
        places.trusted(made, ask(GPU, 1), ints([0]), array("d", []))
    with pytest.raises(ValueError, match="differ"):
        places.spread(made, ints([0]), ints([]), array("d", []))
    with pytest.raises(IndexError):
        places.trusted(made, ask(GPU, 1), ints([-1]), array("d", [0.0]))
    world = build([("add", (0,))], [])
    for asked, left in ((ask(GPU, 0), 1), (ask(GPU, 1), 0), (Ask((0, 0, 1, 1)), 1)):
        for kernel in ("best_fit", "holds"):
            same_error(
                partial(getattr(places, kernel), world.nodes, made, asked, left, ints([0]), array("d", [0.0])),
                partial(getattr(plain, kernel), world.twin_nodes, twin, asked, left, [0], [0.0]),
            )
    with pytest.raises(ValueError, match="negative number"):
        places.Places(-1)
    with pytest.raises(ValueError, match="negative number"):
        plain.Places(-1)
