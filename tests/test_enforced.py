"""A node that declares the relay: what was planned there is held, and drift is counted."""

from __future__ import annotations

from prometheus_client import generate_latest

from extender.ledger import PLAN, RELAY
from tests.world import DGX1V, World


def how(world: World, node: str = "n") -> dict[str, tuple[str, tuple[int, ...] | None]]:
    return {one.uid: (one.how, one.gpus) for one in world.cluster.ledgers[node].holdings}


def test_the_node_decides_whether_a_plan_is_enforced() -> None:
    world = World()
    for relay, expected in (({RELAY: "1"}, "enforced"), ({RELAY: "0"}, "planned"), ({}, "planned")):
        world.node("n", links=DGX1V, annotations=relay)
        world.pod("p", 2, "n", annotations={PLAN: "3,5"})
        assert how(world) == {"uid-p": (expected, (3, 5))}


def test_drift_is_counted_and_printed() -> None:
    world = World()
    world.node("n", links=DGX1V, annotations={RELAY: "1"})
    for name, held in (("a", (0, 3)), ("b", (5, 7))):
        world.pod(name, 2, "n", annotations={PLAN: "0,3" if name == "a" else "1,2"})
        world.pod(name, 2, "n", annotations={PLAN: "0,3" if name == "a" else "1,2"}, held=held)
        world.pod(name, 2, "n", annotations={PLAN: "0,3" if name == "a" else "1,2"}, held=held)
    assert how(world)["uid-b"] == ("observed", (5, 7))
    assert world.cluster.drifts == {"kept": 1, "other": 1}
    for _ in range(2):
        world.call("/metrics", method="GET")
    text = generate_latest(world.server.metrics.registry).decode()
    assert 'gpu_extender_plans_total{outcome="kept"} 1.0' in text
    assert 'gpu_extender_plans_total{outcome="other"} 1.0' in text
