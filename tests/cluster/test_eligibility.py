"""Which nodes admit a pod, combined from sets of rows, against one node after the other."""

from __future__ import annotations

import random
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster.eligibility import CLAUSE, MOST_PARTS, Eligibility, TooLong
from extender.objects.nodes import selects
from extender.objects.records import Event, NodeRecord
from extender.objects.selectors import NodeTerm, Operator, Requirement, Taint, Toleration, untolerated
from tests.cluster.reach import kept_of
from tests.fuzz.sizes import sizes
from tests.world import World

KEYS, VALUES = ["a", "b", "gpu", "metadata.name"], ["", "x", "y", "5", "05", "-7", "12", "9223372036854775808", "1_0"]
NAMES = ["n0", "n1", "12", "x", "7"]
EFFECTS = ["NoSchedule", "PreferNoSchedule", "NoExecute"]

labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=3)
taints = st.lists(
    st.builds(Taint, st.sampled_from(KEYS[:2]), st.sampled_from(VALUES), st.sampled_from(EFFECTS)), max_size=3
).map(tuple)
requirements = st.builds(
    Requirement,
    st.sampled_from([*KEYS, "nowhere"]),
    st.sampled_from(get_args(Operator)),
    st.lists(st.sampled_from(VALUES + NAMES), max_size=3).map(tuple),
)
node_terms = st.none() | st.lists(
    st.builds(NodeTerm, st.lists(requirements, max_size=2).map(tuple), st.lists(requirements, max_size=1).map(tuple)),
    max_size=3,
).map(tuple)
tolerations = st.lists(
    st.builds(
        Toleration,
        st.sampled_from(["", *KEYS[:2], "nowhere"]),
        st.sampled_from(["Equal", "Exists", "Lt", "Gt"]),
        st.sampled_from(VALUES),
        st.sampled_from(["", *EFFECTS]),
    ),
    max_size=3,
).map(tuple)
selectors = st.dictionaries(st.sampled_from([*KEYS, "nowhere"]), st.sampled_from(VALUES), max_size=2).map(
    lambda wanted: tuple(wanted.items())
)


def node(name: str, labelled: dict[str, str], tainted: tuple[Taint, ...] = ()) -> NodeRecord:
    return NodeRecord(
        uid="", name=name, resource_version="", labels=labelled, annotations={}, unschedulable=False, taints=tainted,
        cpu_milli=0, memory=0, pods=0, gpus={}, gpu_capacity={},
    )  # fmt: skip


def rows_of(sets: Eligibility, selector: Any, terms: Any, tolerated: Any, most: int = 0) -> set[int]:
    words = sets.rows(sets.program(selector, terms, tolerated, most))
    return {64 * w + i for w, word in enumerate(words) for i in range(64) if word >> i & 1}


changes = st.lists(st.tuples(st.sampled_from(range(len(NAMES))), st.none() | st.tuples(labels, taints)), max_size=12)


@given(changes, st.lists(st.tuples(selectors, node_terms, st.none() | tolerations), min_size=1, max_size=4))
@settings(max_examples=400)
def test_the_sets_say_what_the_selectors_say(
    made: list[tuple[int, tuple[dict[str, str], tuple[Taint, ...]] | None]], asked: list[tuple[Any, Any, Any]]
) -> None:
    sets, there = Eligibility(), dict[int, NodeRecord]()
    for at, facts in made:
        row = 40 * at  # several words
        if facts is not None:
            there[row] = node(NAMES[at], *facts)
            sets.set(row, there[row])
        elif row in there:
            del there[row]
            sets.drop(row)
    for selector, terms, tolerated in asked:
        expected = {
            row
            for row, one in there.items()
            if selects(selector, terms, one) and (tolerated is None or untolerated(one.taints, tolerated) is None)
        }
        assert rows_of(sets, selector, terms, tolerated) == expected
        assert rows_of(sets, selector, terms, tolerated, most=MOST_PARTS) == expected
    for row in list(there):
        sets.drop(row)
    assert len(sets) == 0  # what the nodes said has gone with them
    assert max(sizes(sets).values()) <= 1, sizes(sets)


def test_large_random_fleet_that_changes() -> None:
    """500 nodes, so that sets are bits as well as lists; names are those of other nodes before."""
    rng = random.Random(3)
    sets, there = Eligibility(), dict[int, NodeRecord]()
    for turn in range(4000):
        row = rng.randrange(500)
        if row in there and rng.random() < 0.2:
            sets.drop(row)
            del there[row]
            continue
        labelled = {"zone": rng.choice("abc"), "host": f"h{row}", "rank": str(row if turn % 2 else rng.randrange(9))}
        labelled |= {"rare": "yes"} if rng.random() < 0.01 else {}
        tainted = tuple(Taint(key, rng.choice("xy"), "NoSchedule") for key in ("t", "u") if rng.random() < 0.3)
        there[row] = node(f"n{row}", labelled, tainted)
        sets.set(row, there[row])
    in_zone, ranked = Requirement("zone", "In", ("a", "b")), Requirement("rank", "Gt", ("250",))
    not_rare, few = Requirement("rare", "DoesNotExist"), Requirement("host", "NotIn", tuple(f"h{i}" for i in range(99)))
    by_name = Requirement("metadata.name", "In", ("n7", "n499", "gone"))
    some = (Toleration("t", "Equal", "x", ""),)
    for asked in (
        ((), None, ()),
        ((("zone", "c"),), None, some),
        ((), (NodeTerm((in_zone, ranked)), NodeTerm((not_rare, few), ())), some),
        ((), (NodeTerm((), (by_name,)), NodeTerm((ranked,))), (Toleration("", "Exists", "", ""),)),
    ):
        expected = {
            row
            for row, one in there.items()
            if selects(asked[0], asked[1], one) and untolerated(one.taints, asked[2]) is None
        }
        assert expected
        assert rows_of(sets, *asked) == expected


def test_pods_add_no_set_and_a_heartbeat_changes_nothing(world: World) -> None:
    for i in range(3):
        world.node(f"n{i}", 8, labels={"zone": "a", "host": f"h{i}"})
    sets = world.cluster.eligibility
    before = len(sets), sets.version
    for i in range(50):
        spec = {"nodeSelector": {f"mine-{i}": "x"}, "tolerations": [{"key": f"k{i}", "operator": "Exists"}]}
        world.pod(f"p{i}", 0, "n0", spec=spec)
    world.node("n1", 8, cpu="65", labels={"zone": "a", "host": "h1"})
    assert (len(sets), sets.version) == before


def test_a_node_that_comes_back_in_another_row_is_found_there(world: World) -> None:
    world.node("a", 8, labels={"kind": "old"})
    world.node("b", 8, labels={"kind": "new"})
    world.cluster.apply([Event("Node", "delete", world.cluster.nodes["a"])], 0.0)
    world.node("c", 8, labels={"kind": "new"})  # in the row that `a` had
    assert rows_of(world.cluster.eligibility, (("kind", "new"),), None, ()) == {0, 1}
    assert rows_of(world.cluster.eligibility, (("kind", "old"),), None, ()) == set()


@pytest.mark.parametrize(
    "asked",
    [
        (tuple((f"k{i}", "v") for i in range(MOST_PARTS // CLAUSE + 1)), None, ()),
        ((), (NodeTerm((Requirement("k", "In", ("v",) * MOST_PARTS),)),), ()),
        ((), (NodeTerm((Requirement("k", "Exists"),)),) * (MOST_PARTS // CLAUSE), ()),
        ((), (NodeTerm(),) * (MOST_PARTS // CLAUSE + 1), ()),
        ((), None, (Toleration("k", "Exists", "", ""),) * (MOST_PARTS + 1)),
        ((), None, (Toleration("t", "Equal", "w", ""),) * (MOST_PARTS // CLAUSE + 1)),
    ],
)
def test_what_is_far_too_long_is_not_looked_at_in_a_hurry(asked: tuple[Any, Any, Any]) -> None:
    sets = Eligibility()
    sets.set(0, node("n", {"k": "v"}, (Taint("t", "v", "NoSchedule"),)))
    with pytest.raises(TooLong):
        sets.program(*asked, MOST_PARTS)
    sets.program(*asked)  # what-if has the time


def test_numbers_that_a_label_has_no_more_are_forgotten(world: World) -> None:
    """A label that holds a time: each change is another value."""
    for stamp in range(1_700_000_000, 1_700_000_200):
        world.node("n", 8, labels={"stamp": str(stamp)})
    assert len(world.cluster.eligibility) == 3  # the name, the key, the value
    assert kept_of(world.cluster, "17000") == {"1700000199"}
