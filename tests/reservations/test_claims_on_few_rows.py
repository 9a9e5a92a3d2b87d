"""Where a request reads a few nodes, claims are made on these alone: what is read there is what all claims give."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from extender.policy.contracts import PodRequest
from extender.reservations.claims import FEW
from extender.reservations.reservations import Reservation
from extender.reservations.seats import Seat
from tests.world import World, pairs, workload

NODES = ("n0", "n1", "n2", "n3")

waits = st.tuples(
    # Where it is what: a pod may be several things, on different nodes.
    st.dictionaries(
        st.sampled_from(["assumed", "bound", "seat", "reserved", "nominated", "planned", "runs"]),
        st.sampled_from(NODES),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 8),  # GPUs
    st.sampled_from([0, 5, 10]),  # priority
    st.sampled_from(["", "required"]),
)


def amounts(world: World, gpus: int) -> tuple[int, ...]:
    return (1000, 0, 1, gpus, *([0] * (len(world.cluster.resources) - 4)))


def counted(
    world: World, request: PodRequest, rows: array[int], given: Sequence[int] | None, **others: Any
) -> list[tuple[bytes, list[Any]]]:
    """What the rules say of the rows, and the rows: with the claims, with the same inside of them, and after each.
    `others`: of `Claims.of`."""
    tables, policy, found = world.cluster.tables, world.verbs.policy, []

    def note() -> None:
        found.append((bytes(policy.judge(tables, request, rows)), [tables.nodes.node(row) for row in rows]))

    with world.verbs.claims.of(request, world.now, rows=given, **others):
        note()
        with world.verbs.claims.of(request, world.now, rows=given, **others):
            note()
        note()
    note()
    return found


@settings(max_examples=150)
@example([({"nominated": "n1", "assumed": "n0"}, 8, 10, "required")], ["n0"], 8, set(), set())
@example([({"seat": "n1", "nominated": "n0"}, 8, 10, "")], ["n0"], 8, set(), set())
@given(
    st.lists(waits, max_size=6),
    st.lists(st.sampled_from(NODES), min_size=1, unique=True),
    st.integers(1, 8),
    st.sets(st.integers(0, 5)),
    st.sets(st.integers(0, 5), max_size=2),
)
def test_the_answer_on_these_rows_is_the_same(
    all_waits: list[tuple[dict[str, str], int, int, str]],
    named: list[str],
    gpus: int,
    equal: set[int],
    without: set[int],
) -> None:
    world = World()
    for name in NODES:
        world.node(name, 8, links=pairs(8))
    claims = world.verbs.claims
    for number, (kinds, wanted, priority, links) in enumerate(all_waits):
        name, mask, taken = f"w{number}", (1 << wanted) - 1, amounts(world, wanted)
        nominated = kinds.get("planned", kinds.get("nominated", ""))
        notes = {"gpu-extender.io/gpus": ",".join(map(str, range(wanted)))} if "planned" in kinds else {}
        facts: Any = {"priority": priority, "links": links, "nominated": nominated, "annotations": notes}
        world.set("Pod", workload(name, wanted, **facts, node=kinds.get("runs", "")))
        pod = world.cluster.pods[f"uid-{name}"]
        for kind in kinds.keys() & {"assumed", "bound"}:
            bound = kind == "bound"
            claims.assumed.assume(claims.alone(pod), kinds[kind], taken, mask, world.now, bound=bound)
        if "seat" in kinds:
            claims.seats.reserve([Seat(pod.uid, name, "g", kinds["seat"], taken, mask, priority, world.now)])
        if "reserved" in kinds:
            claims.reservations.add(Reservation(pod.uid, kinds["reserved"], (), taken, priority, world.now))
    world.set("Pod", workload("p", gpus, priority=5))
    request = claims.alone(world.cluster.pods["uid-p"])
    rows = array("i", [world.cluster.row(name) for name in named])
    others = {
        "as_equal": [seat for seat in claims.seats if int(seat.uid.removeprefix("uid-w")) in equal],
        "without": frozenset(f"uid-w{number}" for number in without),
    }
    assert counted(world, request, rows, rows, **others) == counted(world, request, rows, None, **others)


@pytest.mark.parametrize(("named", "made"), [(FEW, 1), (FEW + 1, 2)])
def test_of_few_rows_alone(world: World, named: int, made: int) -> None:
    """Two seats, one of them on a row that is not read."""
    for number in range(FEW + 2):
        world.node(f"n{number:02}", 8)
    seats = [("a", "n00"), ("b", f"n{FEW + 1:02}")]
    taken = amounts(world, 8)
    world.verbs.claims.seats.reserve(
        [Seat(f"uid-{pod}", pod, pod, node, taken, 0xFF, 5, world.now) for pod, node in seats]
    )
    world.set("Pod", workload("p", 1))
    request = world.verbs.claims.alone(world.cluster.pods["uid-p"])
    everywhere = array("i", range(FEW + 2))
    with world.verbs.claims.of(request, world.now, rows=everywhere[:named]):
        codes = world.verbs.policy.judge(world.cluster.tables, request, everywhere)
    assert sum(1 for code in codes if code) == made
