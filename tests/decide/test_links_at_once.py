"""A burst of pods that require links: they share a node before the watch has brought any of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.cluster.statements import PLAN, mask_of
from extender.sim.machines import machine
from tests.decide.test_bind import Api
from tests.world import DGX1V, TEXT, World, topology, workload

NODES = ["a", "b", "c"]
NAMES = ["v", "w", "x", "y"]
LINKED = machine("dgx1-v100")


@pytest.fixture
def api() -> Api:
    return Api()


def cluster(api: Api, *, relay: bool = True) -> World:
    """Empty DGX-1V nodes."""
    world = World(binder=api)
    for name in NODES:
        stated = json.loads(topology(DGX1V)) | {"uuids": [f"GPU-{name}-{at}" for at in range(8)]}
        notes = {"gpu-extender.io/topology": json.dumps(stated)} | ({"gpu-extender.io/relay": "1"} if relay else {})
        world.node(name, 8, annotations=notes)
    return world


@pytest.fixture
def world(api: Api) -> World:
    """Bind is known to be ours, as after the first pod that it bound."""
    made = cluster(api)
    made.verbs.claims.bind_is_called()
    made.cluster.plans_come()
    return made


def linked(world: World, name: str, gpus: int = 2) -> dict[str, Any]:
    return world.pod(name, gpus, links="required")


def test_they_are_planned_beside_each_other(world: World, api: Api) -> None:
    """kube-scheduler asks about all of them, and binds them later, in another order."""
    pods = {name: linked(world, name) for name in (*NAMES, "z")}
    for name in NAMES:
        assert world.filter(pods[name], NODES)["NodeNames"][0] == "a"
    assert "a" not in world.filter(pods["z"], NODES)["NodeNames"]
    for name in reversed(NAMES):
        assert world.bind(pods[name], "a") == ""
    planned = [mask_of(map(int, notes[PLAN].split(","))) for _, notes in api.wrote]
    assert sum(planned) == 0xFF  # no GPU twice
    assert all(LINKED.linked({gpu for gpu in range(8) if mask >> gpu & 1}) for mask in planned)


def test_a_quad_and_pairs_in_any_order(world: World, api: Api) -> None:
    pods = {"pair": linked(world, "pair"), "quad": linked(world, "quad", 4), "last": linked(world, "last")}
    for pod in pods.values():
        assert world.filter(pod, ["a"])["NodeNames"] == ["a"]
    for name in ("last", "quad", "pair"):
        assert world.bind(pods[name], "a") == ""
    planned = {binding.name: set(map(int, notes[PLAN].split(","))) for binding, notes in api.wrote}
    assert len(set.union(*planned.values())) == 8
    assert all(map(LINKED.linked, planned.values()))


def test_beside_gpus_at_unknown_positions_no_plan_is_certain(world: World) -> None:
    """The relay hands out other GPUs than planned where a pod without a plan holds one of them."""
    world.pod("unknown", 1, "a")
    assert world.filter(world.pod("x", 2), ["a"])["NodeNames"] == ["a"]
    assert world.filter(linked(world, "y"), ["a"])["Error"] == TEXT["links-pending"]


def test_without_a_relay_the_positions_of_assumed_pods_are_not_known(api: Api) -> None:
    world = cluster(api, relay=False)
    world.verbs.claims.bind_is_called()
    assert world.filter(linked(world, "x"), NODES)["NodeNames"][0] == "a"
    assert "a" not in world.filter(linked(world, "y"), NODES)["NodeNames"]


def test_before_the_first_bind_whole_nodes_are_kept_for_a_moment(api: Api) -> None:
    world = cluster(api)
    first, second = linked(world, "x"), linked(world, "y")
    assert world.filter(first, NODES)["NodeNames"][0] == "a"
    assert world.filter(second, NODES)["Error"] == TEXT["gpus-promised"]
    assert world.filter(workload("plain", 2), ["b"])["NodeNames"] == ["b"]  # it requires no links
    world.verbs.assumed.forget("uid-plain")
    assert world.bind(first, "a") == ""
    assert world.filter(second, NODES)["NodeNames"][0] == "a"


def test_no_pod_is_held_back_for_longer_than_an_assumed_pod_lasts(api: Api) -> None:
    """kube-scheduler binds by itself: no call of bind ever comes."""
    world = cluster(api)
    waiting, begin = linked(world, "y"), world.now
    for seconds, held in ((0.0, True), (2.5, True), (4.9, True), (5.0, False)):
        world.now = begin + seconds
        assert world.filter(linked(world, f"x{seconds}"), ["a"])["NodeNames"] == ["a"]  # there is always one more
        answer = world.filter(waiting, NODES)
        world.verbs.assumed.forget(f"uid-x{seconds}")
        assert (answer["Error"] != "", answer["NodeNames"] or []) == (held, [] if held else ["b", "c"]), seconds
