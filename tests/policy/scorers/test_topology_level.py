"""Scorer `topology_level`: a group's pods close together."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from ext_core.places import Places
from extender.cluster.nodes import Domains
from extender.cluster.tables import Tables
from extender.policy.scorers import TopologyLevel
from extender.settings import Settings
from tests.tables import Small, request
from tests.world import World, workload

CLIQUE, RACK, BLOCK = "nvidia.com/gpu.clique", "example.com/rack", "example.com/block"


def tables(used: Sequence[int], domains: Sequence[tuple[int, ...]]) -> Tables:
    """Nodes of four GPUs, some of them used, in these domains."""
    small = Small()
    made = replace(small.tables, places=Places(len(domains[0])))
    for taken, there in zip(used, domains, strict=True):
        row = small.node(4, used=taken)
        made.places.add(row)
        made.places.set_domains(row, there)
    return made


def column(made: Tables, kin: tuple[int, ...] = (), to_come: int = 0, gpus: int = 4) -> list[float]:
    rows = array("i", range(made.nodes.height))
    out = array("d", bytes(8 * len(rows)))
    TopologyLevel().fill(made, msgspec.structs.replace(request(gpus), kin=kin, to_come=to_come), rows, out)
    return out.tolist()


def test_near_the_members_that_are_placed() -> None:
    made = tables([0] * 5, [(1, 1), (1, 1), (2, 1), (3, 2), (0, 0)])
    # Of two members one is on node 0 and one on node 2. Node, clique, rack: 3 levels x 2 members
    assert column(made, (0, 2), 2) == [(1 + 1 + 2) / 6, (0 + 1 + 2) / 6, (1 + 1 + 2) / 6, 0.0, 0.0]
    assert column(made, (0, -1), 2) == [1.0, 2 / 3, 1 / 3, 0.0, 0.0]  # a node that is gone says nothing


def test_a_level_that_no_node_has_does_not_count() -> None:
    made = tables([0] * 3, [(0, 1), (0, 1), (0, 2)])
    assert column(made, (0,), 2) == [1.0, 0.5, 0.0]


def test_the_first_goes_where_the_group_fills_a_domain_best() -> None:
    # clique 1 holds three more pods of four GPUs, clique 2 two, clique 3 one and a node in use
    made = tables([0, 0, 0, 0, 0, 0, 1], [(1,)] * 3 + [(2,)] * 2 + [(3,)] * 2)
    best = column(made, (), 2)
    # one level: (1 + 1 - f + left / (room + 1) + ...) / 3, and f = 1; each node has room for one of two
    inner = 1 / 3 / 1024
    assert best[:5] == [(1 + 2 / 4 + inner) / 3] * 3 + [(1 + 2 / 3 + inner) / 3] * 2
    assert best[5:] == [1 / 3 / 3] * 2  # too small: room for one of two
    assert max(column(made, (), 3)) == column(made, (), 3)[0]
    assert column(made, (), 1) == [1.0] * 7  # alone
    assert column(made, (), 0) == [1.0] * 7  # no group


def test_a_node_that_holds_the_whole_group_is_closest() -> None:
    made = tables([0, 2, 0], [(1,), (1,), (2,)])
    one = column(made, (), 2, gpus=2)
    assert one[0] == one[2] > one[1]  # node 1 has room for one of the two


def test_a_group_that_no_domain_holds_begins_where_most_fit() -> None:
    made = tables([0, 0, 0], [(1,), (1,), (2,)])
    assert column(made, (), 9) == [2 / 10 / 3, 2 / 10 / 3, 1 / 10 / 3]


def test_levels_number_values_and_forget_them() -> None:
    levels = Domains((CLIQUE, RACK))
    assert levels.set("a", {CLIQUE: "x.1", RACK: "r"}) == (1, 1)
    assert levels.set("b", {CLIQUE: "y.1", RACK: "r"}) == (2, 1)
    assert levels.set("c", {RACK: ""}) == (0, 0)
    assert levels.set("a", {CLIQUE: "y.1"}) == (2, 0)
    assert levels.set("d", {CLIQUE: "z.1"}) == (1, 0)  # x.1 is gone, its number is free
    levels.drop("b")
    levels.drop("b")
    assert levels.set("e", {RACK: "r2"}) == (0, 1)


# -- in the server -----------------------------------------------------------------------------------------------------


def world() -> World:
    """Two NVLink domains of three trays; one tray of the first is in use."""
    made = World(Settings(topology_levels=(CLIQUE, BLOCK)))
    for clique in "xy":
        for tray in range(3):
            made.node(f"{clique}{tray}", 4, labels={CLIQUE: f"{clique}.1", BLOCK: "b"})
    return made


def member(name: str, **facts: str) -> dict[str, object]:
    return workload(name, 4, labels={"gpu-extender.io/gang": "g", "gpu-extender.io/gang-min": "3"}, **facts)  # type: ignore[arg-type]


def test_a_group_lands_in_one_clique_that_holds_it() -> None:
    made = world()
    made.pod("other", 1, "x0")
    chosen = []
    for name in ("m1", "m2", "m3"):
        node = made.filter(member(name))["NodeNames"][0]
        made.set("Pod", member(name, node=node, phase="Running"))
        chosen.append(node)
    assert sorted(chosen) == ["y0", "y1", "y2"]
    late = made.filter(member("m4"))["NodeNames"]
    assert late[0] == "x1"  # the other clique, in the same block


def test_members_in_flight_count() -> None:
    made = world()
    first = made.filter(member("m1"))["NodeNames"][0]
    assert first == "x0"
    for name in ("m1", "m2"):
        made.set("Pod", member(name))  # the watch knows them, and not yet where they go
    assert made.filter(member("m2"))["NodeNames"][0] == "x1"


def test_pods_without_a_group_are_packed_as_ever() -> None:
    made = world()
    made.pod("other", 1, "y2")
    assert made.filter(workload("p", 1))["NodeNames"][0] == "y2"
