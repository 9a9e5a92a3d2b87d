"""GPUs that are renumbered, exchanged, gone or added under running pods: ids decide, and what is not known is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from extender.cluster.statements import PLAN
from extender.topologies.annotation import KEY, RELAY, decode, encode
from tests.world import DGX1V, GPU, World, topology, workload

OLD = tuple(f"GPU-{gpu:08d}" for gpu in range(8))


def stated(uuids: Sequence[str], **more: str) -> dict[str, str]:
    return {KEY: encode(replace(decode(topology(DGX1V)), uuids=tuple(uuids))), **more}


def seen(world: World, name: str, *ids: str, plan: str = "") -> None:
    """A running pod of which kubelet says what it holds."""
    item: dict[str, Any] = workload(name, len(ids), node="n", phase="Running", annotations={PLAN: plan} if plan else {})
    resources = [{"resourceID": one, "health": "Healthy"} for one in ids]
    item["status"]["containerStatuses"] = [
        {"name": "main", "allocatedResourcesStatus": [{"name": GPU, "resources": resources}]}
    ]
    world.set("Pod", item)


def held(world: World) -> dict[str, tuple[str, tuple[int, ...] | None]]:
    return {one.uid.removeprefix("uid-"): (one.how, one.gpus) for one in world.cluster.gpus.ledgers["n"].holdings}


def test_renumbered_after_a_driver_update(world: World) -> None:
    """The same ids under other numbers: the pod holds what it held, by its new number."""
    world.node("n", annotations=stated(OLD))
    seen(world, "a", OLD[0], OLD[3])
    assert held(world) == {"a": ("observed", (0, 3))}
    world.node("n", annotations=stated([OLD[i] for i in (3, 5, 0, 1, 2, 4, 6, 7)]))
    assert held(world) == {"a": ("observed", (0, 2))}


def test_a_node_that_came_back_with_other_gpus(world: World) -> None:
    """What kubelet said of the old ones places nobody on the new ones, though a relay enforces plans there."""
    world.node("n", annotations=stated(OLD, **{RELAY: "1"}))
    seen(world, "a", OLD[0], OLD[3], plan="0,3")
    world.node("n", annotations=stated([f"GPU-{gpu:08d}" for gpu in range(100, 108)], **{RELAY: "1"}))
    assert held(world) == {"a": ("planned", (0, 3))}
    assert world.cluster.gpus.ledgers["n"].sure == 0


def test_a_gpu_disappears_and_comes_back(world: World) -> None:
    """Its holder keeps it; meanwhile the statement is about other GPUs than the node has, and nothing is placed."""
    world.node("n", annotations=stated(OLD))
    seen(world, "a", OLD[0], OLD[3])
    needs = world.pod("needs", 2, links="required")
    assert world.filter(needs)["NodeNames"] == ["n"]
    world.node("n", 7, annotations=stated(OLD))
    assert not world.filter(needs)["NodeNames"]
    world.node("n", annotations=stated(OLD))
    assert held(world) == {"a": ("observed", (0, 3))}
    assert world.filter(needs)["NodeNames"] == ["n"]


def test_the_device_plugin_restarts(world: World) -> None:
    """Allocatable drops to 0 for seconds: transient, and the ledger stands."""
    world.node("n", annotations=stated(OLD))
    seen(world, "a", OLD[0], OLD[3])
    world.node("n", 0, capacity=8, annotations=stated(OLD))
    answer = world.filter(world.pod("needs", 2))
    assert answer["Error"]
    assert held(world) == {"a": ("observed", (0, 3))}


def test_a_pod_that_ended_holds_nothing(world: World) -> None:
    world.node("n", annotations=stated(OLD, **{RELAY: "1"}))
    world.pod("a", 2, "n", annotations={PLAN: "0,3"})
    assert world.cluster.gpus.ledgers["n"].sure == 0b1001
    world.pod("a", 2, "n", annotations={PLAN: "0,3"}, phase="Succeeded")
    assert held(world) == {}
