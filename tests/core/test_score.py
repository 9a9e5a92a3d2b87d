"""The scores, to the last bit, against the plain definitions."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_core import score
from ext_core.ask import Ask
from tests.core.worlds import GPU, OTHER, R, World, amounts, ask, ints, rows_of, same_error, worlds
from tests.reference import score as plain

numbers = st.floats(0.0, 1.0)
few = st.sampled_from([0.0, 0.25, 0.5, 1.0])  # many ties
resources = st.sampled_from([GPU, GPU, GPU, OTHER])


def column(n: int) -> array[float]:
    return array("d", bytes(8 * n))


def agree(scorer: str, world: World, asked: Ask, rows: list[int], *weights: list[float]) -> None:
    """The scorer and its twin give the same values, from 0 to 1."""
    out, wanted = column(len(rows)), [0.0] * len(rows)
    getattr(score, scorer)(world.nodes, asked, ints(rows), *(array("d", one) for one in weights), out)
    getattr(plain, scorer)(world.twin_nodes, asked, rows, *weights, wanted)
    assert out.tolist() == wanted
    assert all(0.0 <= value <= 1.0 for value in wanted)


@given(worlds(), st.data(), st.lists(st.sampled_from([0.0, 1.0, 10.0, 0.3]), min_size=R, max_size=R))
def test_packing(world: World, data: st.DataObject, weights: list[float]) -> None:
    agree("packing", world, Ask(data.draw(amounts(8))), data.draw(rows_of(world)), weights)


@given(
    worlds(),
    st.data(),
    resources,
    st.integers(0, 9),
    st.sampled_from(["required", "preferred", "ignore"]),
    st.booleans(),
)
def test_links(world: World, data: st.DataObject, resource: int, gpus: int, links: str, planned: bool) -> None:
    agree("links", world, ask(resource, gpus, links=links, planned=planned), data.draw(rows_of(world)))


@given(worlds(), st.data(), resources, st.integers(0, 9))
def test_leftover(world: World, data: st.DataObject, resource: int, gpus: int) -> None:
    agree("leftover", world, ask(resource, gpus), data.draw(rows_of(world)))


@given(worlds(), st.data(), resources, st.integers(1, 9))
def test_leftover_of_rows_that_are_named_often(world: World, data: st.DataObject, resource: int, gpus: int) -> None:
    """The value of a pair (shape, free GPUs) is kept within a call: what comes between does not change it."""
    agree("leftover", world, ask(resource, gpus), data.draw(rows_of(world)) * 15)


@given(worlds(), st.data(), resources, st.integers(0, 2))
def test_weigh(world: World, data: st.DataObject, resource: int, gpus: int) -> None:
    """A float stands for a column of it: the sum is the same to the last bit."""
    rows, asked = data.draw(rows_of(world)), ask(resource, gpus)
    columns = data.draw(st.lists(numbers | st.lists(numbers, min_size=len(rows), max_size=len(rows)), max_size=5))
    weights = [data.draw(st.floats(-100.0, 100.0)) for _ in columns]
    made: list[array[float] | float] = [one if isinstance(one, float) else array("d", one) for one in columns]
    whole: list[array[float] | float] = [
        array("d", [one] * len(rows)) if isinstance(one, float) else one for one in made
    ]
    wanted = plain.weigh(world.twin_nodes, asked, rows, columns, weights)
    assert score.weigh(world.nodes, asked, ints(rows), made, weights).tolist() == wanted
    assert score.weigh(world.nodes, asked, ints(rows), whole, weights).tolist() == wanted


@given(worlds(), st.data(), st.integers(-1, 8))
def test_top(world: World, data: st.DataObject, most: int) -> None:
    rows = data.draw(st.lists(st.integers(0, world.nodes.height - 1), max_size=12))  # a row may be named twice
    total = data.draw(st.lists(few, min_size=len(rows), max_size=len(rows)))
    made = score.top(world.nodes, ints(rows), array("d", total), most).tolist()
    assert made == plain.top(world.twin_nodes, rows, total, most)
    order = [world.nodes.node(row).order for row in rows]
    ranked = sorted(range(len(rows)), key=lambda i: (-total[i], order[i], i))
    assert made == (ranked[:most] if most > 0 else ranked)


@given(st.lists(few | numbers, max_size=40))
def test_points(scores: list[float]) -> None:
    ranked = sorted(scores, reverse=True)
    made = score.points(array("d", ranked)).tolist()
    assert made == plain.points(ranked)
    assert made == sorted(made, reverse=True)  # a better score never gets fewer
    assert made[:1] == [10] * len(ranked[:1])
    assert all(0 <= value < 10 for value in made[1:])  # the first alone has 10
    groups: dict[float, set[int]] = {}
    for value, number in zip(ranked[1:], made[1:], strict=True):
        groups.setdefault(value, set()).add(number)
    assert all(len(numbers) == 1 for numbers in groups.values())  # equal scores, equal points
    if len(groups) <= 10:
        assert len(set(made[1:])) == len(groups)  # each its own


def test_points_by_hand() -> None:
    # Eleven different scores below the first: the last two share 0.
    assert score.points(array("d", [1.0, 1.0, 0.5])).tolist() == [10, 9, 8]
    assert score.points(array("d", [20.0 - i for i in range(12)])).tolist() == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0]


@given(worlds(), st.lists(st.integers(-1, 7), max_size=3), st.integers(-1, 4), st.integers(R - 1, R + 1))
def test_bad_input_is_rejected_alike(world: World, rows: list[int], length: int, width: int) -> None:
    size = len(rows) if length < 0 else length
    new, old, asked = world.nodes, world.twin_nodes, Ask((1,) * width)
    for weights in (R, width):
        same_error(
            lambda: score.packing(new, asked, ints(rows), array("d", [1.0] * weights), column(size)),  # noqa: B023
            lambda: plain.packing(old, asked, rows, [1.0] * weights, [0.0] * size),  # noqa: B023
        )
    same_error(
        lambda: score.links(new, asked, ints(rows), column(size)),
        lambda: plain.links(old, asked, rows, [0.0] * size),
    )
    same_error(
        lambda: score.leftover(new, asked, ints(rows), column(size)),
        lambda: plain.leftover(old, asked, rows, [0.0] * size),
    )
    same_error(lambda: score.top(new, ints(rows), column(size), 0), lambda: plain.top(old, rows, [0.0] * size, 0))
    for factors in ([], [1.0]):
        same_error(
            lambda: score.weigh(new, asked, ints(rows), [column(size)], factors),  # noqa: B023
            lambda: plain.weigh(old, asked, rows, [[0.0] * size], factors),  # noqa: B023
        )


@given(st.lists(st.tuples(st.integers(0, 99), st.floats(0, 1)), max_size=20), st.data())
def test_ranked_takes_rows_and_scores_in_order(pairs: list[tuple[int, float]], data: st.DataObject) -> None:
    rows, total = [row for row, _ in pairs], [share for _, share in pairs]
    best = data.draw(st.lists(st.sampled_from(range(len(pairs))))) if pairs else []
    made = score.ranked(array("i", rows), array("d", total), array("i", best))
    assert (list(made[0]), list(made[1])) == plain.ranked(rows, total, best)


@given(st.integers(0, 30), st.lists(few, max_size=66), st.lists(st.integers(-1, 30), max_size=20), st.integers(-1, 25))
def test_picked(length: int, kinds: list[float], best: list[int], most: int) -> None:
    # Those of kind 0.0 are alike, and those of kind 1.0 are one number.
    columns = [kind if kind == 1.0 else [kind * (i // 3) for i in range(length)] for kind in kinds]
    made: list[object] = []

    def fast() -> None:
        given = [column if isinstance(column, float) else array("d", column) for column in columns]
        differ, values = score.picked(given, array("i", best), most)
        made.append((differ, values.tolist()))

    same_error(fast, lambda: plain.picked(columns, best, most))
    if made:
        assert made == [plain.picked(columns, best, most)]


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 1.0, -1.0]) | st.floats(-1, 1), max_size=40),
    st.integers(1, 45),
    st.sampled_from([0.0, 0.05, 0.1, 1.0]),
    st.data(),
)
def test_contenders_hold_the_best_whatever_is_added(
    total: list[float], most: int, more: float, data: st.DataObject
) -> None:
    made = score.contenders(array("d", total), most, more).tolist()
    assert made == plain.contenders(total, most, more)
    size = len(total)
    parts = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1), min_size=size, max_size=size))
    sums = [value + more * part for value, part in zip(total, parts, strict=True)]
    best = sorted(range(size), key=lambda i: -sums[i])[:most]
    least = min((sums[i] for i in best), default=0.0)
    assert set(made) >= {i for i in range(size) if sums[i] >= least}  # ties are decided by the names


@pytest.mark.parametrize(("most", "more"), [(0, 1.0), (-1, 0.0), (1, -0.1)])
def test_contenders_of_nonsense(most: int, more: float) -> None:
    for contenders in (lambda *a: score.contenders(array("d", a[0]), *a[1:]), plain.contenders):
        with pytest.raises(ValueError, match="the best of none"):
            contenders([0.5], most, more)
