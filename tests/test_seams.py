"""Where two features meet: what one answers must stay true for the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.cluster.statements import PLAN
from extender.settings import Mix as MixSettings
from extender.settings import Settings
from extender.topologies.annotation import KEY, RELAY, decode, encode
from tests.decide.test_bind import Api
from tests.world import DGX1V, GPU, TEXT, World, refused, topology, workload

STATED = {KEY: encode(replace(decode(topology(DGX1V)), uuids=tuple(f"GPU-{gpu:08d}" for gpu in range(8))))}
RELAYED = {**STATED, RELAY: "1"}


@pytest.fixture
def api() -> Api:
    return Api()


def plans(api: Api) -> dict[str, set[int]]:
    return {binding.name: set(map(int, notes[PLAN].split(","))) for binding, notes in api.wrote}


# -- holds, bind and what reserves a place elsewhere ------------------------------------------------------------------


def test_a_nominated_pod_that_is_bound_elsewhere_keeps_its_gpus(api: Api) -> None:
    """Its nomination is of another node; between bind and the watch its GPUs are still given to nobody else."""
    world = World(binder=api)
    world.node("there", 8, annotations=RELAYED)
    world.node("n", 8, annotations=RELAYED)
    first = world.pod("first", 2, nominated="there", priority=5)
    assert world.bind(first, "n") == ""
    assert world.bind(world.pod("second", 2), "n") == ""
    made = plans(api)
    assert not made["first"] & made["second"]


def test_a_preemptor_that_is_bound_elsewhere_keeps_its_gpus(api: Api) -> None:
    world = World(binder=api)
    world.node("there", 8, annotations=RELAYED)
    world.pod("v", 8, "there")
    first = world.pod("first", 2, priority=5)
    assert world.preempt(first, {"there": ["v"]}) == {"there": ["v"]}
    world.node("n", 8, annotations=RELAYED)
    assert world.bind(first, "n") == ""
    assert world.bind(world.pod("second", 2), "n") == ""
    made = plans(api)
    assert not made["first"] & made["second"]


def test_what_is_bound_stays_promised_while_the_watch_is_late(api: Api) -> None:
    world = World(binder=api)
    world.node("n", 8, annotations=RELAYED)
    assert world.bind(world.pod("first", 4), "n") == ""
    world.now += 20
    assert world.bind(world.pod("second", 4), "n") == ""
    made = plans(api)
    assert not made["first"] & made["second"]
    assert world.bind(world.pod("third", 2), "n") == TEXT["gpus-promised"]


# -- plans that are over ----------------------------------------------------------------------------------------------


def test_a_plan_that_was_not_carried_out_is_not_answered_as_if_it_stood(world: World) -> None:
    world.node("n", 8)
    world.pod("v", 8, "n")
    p = world.pod("p", 8, priority=100)
    assert world.preempt(p, {"n": ["v"]}) == {"n": ["v"]}
    world.now += 11
    assert world.preempt(p, {"n": ["v"]}) == {"n": ["v"]}
    world.gone("v")
    assert refused(world.filter(workload("q", 8))) == {"n": TEXT["gpus-reserved"]}


@pytest.mark.parametrize("seen", [True, False])
def test_two_plans_on_one_node_do_not_spoil_each_other(world: World, seen: bool) -> None:
    """The second preemptor counts as being there, so its victims have to count as gone."""
    for node in ("n", "m"):
        world.node(node, 8)
        for i, priority_of in enumerate((1, 2) if node == "n" else (3, 4)):
            world.pod(f"{node}{i}", 4, node, priority=priority_of)
    p, q = world.pod("p", 4, priority=100), world.pod("q", 4, priority=100)
    assert world.preempt(p, {"n": ["n0"], "m": ["m0"]}) == {"n": ["n0"]}
    if seen:
        world.pod("n0", 4, "n", priority=1, terminating=world.wall + 30)
    assert world.preempt(q, {"n": ["n1"]})
    world.pod("q", 4, priority=100, nominated="n")
    assert world.preempt(p, {"n": ["n0"], "m": ["m0"]}) == {"n": ["n0"]}


# -- links, containers and evictions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("containers", [1, 2])
def test_nobody_goes_for_links_that_any_pod_that_ends_would_spoil(containers: int) -> None:
    """Of 0 to 3 any set is linked, of all 8 not: with two containers nobody knows which the node hands out."""
    each = {"limits": {GPU: str(4 // containers)}}
    spec = {"containers": [{"name": f"c{i}", "resources": each} for i in range(containers)]}
    world = World()
    world.node("n", 8, links=DGX1V)
    world.pod("cheap", 4, "n", held=range(4))
    world.pod("other", 4, "n", held=range(4, 8), priority=100)
    p = world.pod("p", spec=spec, links="required", priority=50)
    answer = world.preempt(p, {"n": ["cheap"]})
    assert answer == ({"n": ["cheap"]} if containers == 1 else {})
    world.gone("cheap", "other")
    assert refused(world.filter(p)) == ({} if containers == 1 else {"n": TEXT["links-never"]})


# -- the mix and the slots ---------------------------------------------------------------------------------------------


def test_as_many_kinds_as_the_settings_allow_are_priced() -> None:
    """mix.kinds may be 1,024; the slots have to have room for them."""
    world = World(Settings(mix=MixSettings(kinds=300)))
    world.node("n", 8)
    for i in range(300):
        world.pod(f"p{i}", 1, cpu=str(i + 1))
    assert len(world.cluster.demand.mix.weights()) == 300
    assert world.filter(workload("q", 1))["NodeNames"] == ["n"]
