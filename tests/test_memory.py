"""What others can make grow is bounded: by the objects that exist, by a number, by bytes or by a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ext_core.links import LinkShapes
from extender.cluster import demand, node_health
from extender.cluster.demand import MachineModels
from extender.decide.verbs import UnknownNodes
from extender.objects.parts import Shared
from extender.policy import policy
from extender.policy.policy import Policy
from extender.reservations import assumed
from extender.reservations.assumed import Attempts
from extender.settings import Settings
from tests.reference import links as twin
from tests.world import World, machine, pairs, workload

PODS = int(os.environ.get("CHURN_PODS", "3000"))
WARM = max(2500, PODS // 10)


def test_a_churn_of_pods_leaves_nothing_behind() -> None:
    """CHURN_PODS=50000 takes some minutes. A twentieth is what the allocator may keep of a growing heap."""
    command = [sys.executable, "-m", "tests.churn", str(PODS), str(WARM)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[1], timeout=PODS)
    found = json.loads(done.stdout)
    assert found["known_pods"] < 1_000
    assert found["growth"] <= 0.05, found


def test_the_oldest_attempts_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assumed, "MOST_ATTEMPTS", 3)
    monkeypatch.setattr(assumed, "MOST_NAMES", 10)
    made = Attempts()
    for number in range(5):
        made.record(f"a{number}", 0.0)
    assert [made.of(f"a{number}", 0.0) is not None for number in range(5)] == [False, False, True, True, True]
    made.record("names", 1.0, ("n",) * 6)
    made.record("more", 1.0, ("n",) * 6)
    assert made.of("names", 1.0) is None
    made.record("more", 2.0)  # its names do not count any more
    made.record("names", 2.0, ("n",) * 10)
    assert made.of("more", 2.0) is not None
    made.record("long", 3.0, ("n",) * 50)  # the latest call is always remembered: preempt comes right after it
    assert made.of("long", 3.0) is not None
    assert made.of("more", 3.0) is None


def test_graphs_beyond_the_limit_are_unknown() -> None:
    def intern(shapes: LinkShapes | twin.LinkShapes, gpus: int, number: int) -> int:
        links = [[0 if a == b else 1 for b in range(gpus)] for a in range(gpus)]
        return shapes.intern(links, gpu_total=False, pcie=None, numa=None, plugin="arbitrary", gbps=float(number))

    for made in (LinkShapes(), twin.LinkShapes()):
        assert [intern(made, 9, number) for number in range(18)] == [*range(1, 17), 0, 0]
        assert intern(made, 9, 3) == 4  # those that are known stay
        assert [bool(intern(made, 2, number)) for number in range(500)] == [True] * 496 + [False] * 4


def test_a_node_with_one_graph_too_many_is_as_one_without(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(600):
        links = pairs()
        links[0][7] = links[7][0] = 1 + number
        world.set("Node", machine("n", links=links))
    pod = workload("p", 2, links="required")
    assert world.filter(pod)["NodeNames"] == []
    world.set("Node", machine("n", links=pairs()))  # a graph that no node had before
    world.set("Node", machine("n", links=links[:0] + _first()))
    assert world.filter(workload("q", 2, links="required"))["NodeNames"] == ["n"]


def _first() -> list[list[int]]:
    links = pairs()
    links[0][7] = links[7][0] = 1
    return links


def test_price_tables_are_made_again_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "MOST_PRICES", 2)
    made, shapes = Policy.of(Settings()), LinkShapes()
    shape = shapes.intern(pairs(4), gpu_total=False, pcie=None, numa=None, plugin="arbitrary", gbps=25.0)
    found = [made.leftover(shapes, shape, 4, wanted).tolist() for wanted in (1, 2, 3, 1, 2, 3)]
    assert found[:3] == found[3:]
    assert len(made.prices) <= 2


def test_shared_values_are_equal_and_few() -> None:
    shared = Shared[tuple[str, int]](10)
    first = shared(("a", 1))
    assert shared(("a", 1)) is first
    for number in range(100):
        assert shared(("b", number)) == ("b", number)
        assert len(shared) <= 10


def test_machines_beyond_the_limit_are_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "MOST_MACHINES", 2)
    made = MachineModels([])
    for gpus in (2, 4, 8):
        made.set(f"n{gpus}", (0, "nvidia.com/gpu", gpus), (1000, 1))
    made.set("n", (0, "nvidia.com/gpu", 4), (500, 1))  # one that is known
    assert [(kind.devices, kind.cpu) for kind in made.whole()] == [(2, 800), (4, 400)]


def test_names_that_no_node_can_have_are_not_remembered() -> None:
    made = UnknownNodes()
    assert not made.may_appear(["x" * 300], 0.0)
    assert len(made) == 0
    assert made.may_appear(["x" * 253], 0.0)


def test_failures_wait_for_their_end_in_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_health, "MOST_JUDGED", 50)
    world = World()
    world.node("n1")
    for number in range(200):
        world.pod(f"p{number}", 1, "n1", phase="Pending")
        world.set("FailedPod", workload(f"p{number}", 1, node="n1", phase="Failed"))
        world.gone(f"p{number}")
    health: Any = world.cluster.health
    assert len(health._expiring) <= 50
    assert health.failing("n1", world.now, "default")
