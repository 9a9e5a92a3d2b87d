"""Pods that are terminating on another node: what-if warns that the server waits exactly where preempt evicts none."""

from __future__ import annotations

import pytest

from extender.settings import Settings
from tests.ask.asking import events
from tests.ask.test_whatif import asked
from tests.world import GPU, JSON, WALL, World, machine, workload

PREEMPTOR = 5


def items(ending: int, left: float, *, beside: bool) -> list[JSON]:
    """n0: a pod of priority `ending` whose grace ends in `left` seconds, alone or beside a running pod of priority 2;
    n1: a running pod of priority 1."""
    pods = [
        workload("ending", 4 if beside else 8, node="n0", phase="Running", start=WALL - 100, priority=ending,
                 terminating=WALL + left, grace=max(30, int(left))),
        workload("low", 8, node="n1", phase="Running", start=WALL - 100, priority=1),
    ]  # fmt: skip
    if beside:
        pods.append(workload("low0", 4, node="n0", phase="Running", start=WALL - 100, priority=2))
    nodes = [machine("n0", 8), machine("n1", 8)]
    return [{"kind": "Node"} | node for node in nodes] + [{"kind": "Pod"} | pod for pod in pods]


def preempted(objects: list[JSON], pod: JSON) -> set[str]:
    """The victims that the server answers where every node is offered with all pods of a lower priority."""
    world = World(Settings())
    world.wall = WALL
    world.cluster.apply(events(objects, frozenset([GPU])), world.now)
    world.filter(pod, ["n0", "n1"])
    offered: dict[str, list[str]] = {"n0": [], "n1": []}
    for other in world.cluster.pods.values():
        if other.priority < PREEMPTOR:
            offered[other.node].append(other.name)
    return {name for pods in world.preempt(pod, offered).values() for name in pods}


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("left", [-40, -20, 0, 20, 60, 61, 600])
@pytest.mark.parametrize("ending", [0, PREEMPTOR, 9])
def test_what_if_warns_exactly_where_the_server_waits(ending: int, left: float, beside: bool) -> None:
    objects = items(ending, left, beside=beside)
    pod = workload("p", 4 if beside else 8, priority=PREEMPTOR)
    victims = preempted(objects, pod)
    answer = asked(objects, pod, Settings())
    (result,) = answer["results"]
    waits = [warning["message"] for warning in answer["warnings"] if warning["code"] == "terminating"]
    if victims:
        assert {victim["name"] for victim in result["victims"]} == victims
        assert waits == []
        return
    (message,) = waits
    assert message == (
        "pod default/p: the server evicts no pod for it yet: wait for default/ending, which is terminating on n0"
        f" ({max(left, 0):.0f} s of grace left)"
    )
