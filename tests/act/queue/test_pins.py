"""Hard pins: a released pod may run on its node alone, and is evicted where that is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.kube.pod_writes import pinned_terms
from extender.objects import records
from extender.objects.queueing import PINNED
from extender.objects.records import Event
from tests.act.queue.rig import Rig, rig, settings, world_of
from tests.act.queue.test_controller import gang
from tests.kube.api_server import Request
from tests.world import GPU, JSON, World, workload

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
POOL = {"key": "pool", "operator": "In", "values": ["b", "a"]}


def pinned(*, pins: bool = True) -> World:
    return world_of(["n1", "n2", "n3"], settings(hardPins=pins))


def lose(world: World, name: str) -> None:
    """The node is deleted."""
    world.cluster.apply([Event("Node", "delete", world.cluster.nodes[name])], world.now)


def terms_of(one: Rig, name: str) -> Any:
    return one.pod(name)["spec"].get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED, {}).get("nodeSelectorTerms")


def pin(node: str) -> JSON:
    return {"key": "metadata.name", "operator": "In", "values": [node]}


def evicted(one: Rig) -> list[str]:
    return [path.split("/")[-2] for _, path in one.objects.said if path.endswith("/eviction")]


@pytest.mark.parametrize(
    ("terms", "pinned"),
    [
        (None, [{"matchFields": [pin("n1")]}]),
        ([{"matchExpressions": [POOL]}], [{"matchExpressions": [POOL], "matchFields": [pin("n1")]}]),
        ([{"matchFields": [pin("n9")]}, {}], [{"matchFields": [pin("n9"), pin("n1")]}, {}]),
        (
            [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}],
            [{"matchExpressions": [{"key": "x", "operator": "Exists"}], "matchFields": [pin("n1")]}],
        ),
    ],
)
def test_the_pin_is_appended_to_each_term(terms: list[JSON] | None, pinned: list[JSON]) -> None:
    """As the API server takes it: an empty term admits no node, and stays empty."""
    spec = {} if terms is None else {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}
    pod = records.pod(json.dumps(workload("p", 1, spec=spec)).encode(), frozenset({GPU}))
    assert pinned_terms(pod.node_terms, "n1") == pinned


@pytest.mark.parametrize("pins", [True, False])
async def test_released_pods_are_pinned_where_the_setting_asks(pins: bool) -> None:
    world = pinned(pins=pins)

    async with rig(world) as one:
        one.create(*gang("g", 2, 8))
        await one.turn()
        for name in ("g-0", "g-1"):
            node = one.pod(name)["status"]["nominatedNodeName"]
            assert one.is_open(name)
            assert terms_of(one, name) == ([{"matchFields": [pin(node)]}] if pins else None)
            assert one.pod(name)["metadata"]["annotations"].get(PINNED) == (node if pins else None)
            assert world.filter(one.pod(name), ["n1", "n2", "n3"])["NodeNames"] == [node]


async def test_a_pod_whose_node_is_lost_is_evicted_and_its_replacement_is_placed_anew() -> None:
    world = pinned()

    async with rig(world) as one:
        pods = gang("g", 2, 8)
        one.create(*pods)
        await one.turn()
        lost, kept = (one.pod(name)["status"]["nominatedNodeName"] for name in ("g-0", "g-1"))
        one.bind("g-1")
        lose(world, lost)
        await one.turns(10)
        assert evicted(one) == []  # its node may come back in a moment
        await one.turns(10)
        assert evicted(one) == ["g-0"]
        one.delete("g-0")
        one.create({**pods[0], "metadata": {**pods[0]["metadata"], "uid": "uid-new", "name": "g-new"}})
        await one.turns(20)
        assert one.is_open("g-new")
        [third] = {"n1", "n2", "n3"} - {lost, kept}
        assert terms_of(one, "g-new") == [{"matchFields": [pin(third)]}]
        assert evicted(one) == ["g-0"]
        assert world.metric("queue_failed_pins_total", outcome="evicted") == 1


async def test_an_eviction_that_is_rejected_is_tried_again_and_nothing_is_deleted() -> None:
    world = pinned()

    def refuse(request: Request) -> int:
        return 429 if request.path.endswith("/eviction") else 0

    async with rig(world) as one:
        one.create(*gang("g", 1, 8))
        await one.turn()
        one.objects.fail = refuse
        lose(world, one.pod("g-0")["status"]["nominatedNodeName"])
        await one.turns(100)
        assert evicted(one) == ["g-0"] * 2
        assert not [path for method, path in one.objects.said if method == "DELETE"]


async def test_a_pod_that_states_a_pin_and_has_none_is_left_alone() -> None:
    """Its user wrote the annotation: kube-scheduler may bind the pod anywhere."""
    world = pinned()

    async with rig(world) as one:
        one.create(workload("p", 1, annotations={PINNED: "n9"}))
        await one.turns(40)
        assert evicted(one) == []
