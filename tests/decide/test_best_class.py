"""The best class alone: what filter answers where the settings state the scheduler's `weight`."""

from __future__ import annotations

import random
from typing import Any

import pytest
from structlog.testing import capture_logs

from extender.cluster.cluster import Cluster
from extender.server.deciding import Core
from extender.server.wiring import connect
from extender.settings import Settings, Shortlist
from tests.decide.test_decide import PREFERS
from tests.world import JSON, World, pairs, refused, workload

SERVICE = {"app.kubernetes.io/name": "web"}
SHIPPED: dict[str, Any] = {"scheduler_weight": 150}  # of 14 x 100 points in the score plugins


def fleet(seed: int, **settings: Any) -> World:
    """40 nodes of several machines in four racks, partly taken, some of them by replicas of the service `web`."""
    rng = random.Random(seed)
    world = World(Settings(**settings))
    for i in range(40):
        gpus = rng.choice((4, 8, 8))
        name = f"n{i:02}"
        rack = {"topology.kubernetes.io/zone": f"rack-{rng.randrange(4)}"}
        world.node(name, gpus, links=pairs(gpus) if rng.random() < 0.7 else None, labels=rack)
        for j in range(rng.randrange(3)):
            label = SERVICE if rng.random() < 0.5 else {}
            world.pod(f"r{i:02}-{j}", rng.randrange(1, 3), name, labels=label)
    return world


def pods(seed: int) -> list[JSON]:
    """Of all kinds: sizes, links, placement, preferences of their own."""
    rng = random.Random(seed)
    made = []
    for i in range(12):
        spread = {"gpu-extender.io/placement": "spread"} if i % 3 == 0 else {}
        links = rng.choice(("", "preferred", "ignore"))
        spec = rng.choice([{}, {}, *PREFERS.values()])
        size = rng.choice((1, 1, 2, 4))
        labels = SERVICE if spread else {}
        made.append(workload(f"p{i}", size, links=links, annotations=spread, labels=labels, spec=spec))
    return made


@pytest.mark.parametrize("seed", range(6))
def test_the_node_that_is_answered_is_the_one_that_prioritize_gives_most_points(seed: int) -> None:
    """Pod by pod: kube-scheduler would have chosen this node, since one point outweighs its own plugins."""
    before, after = fleet(seed), fleet(seed, **SHIPPED)
    several = 0
    for pod in pods(seed):
        shortlist, answered = before.filter(pod)["NodeNames"] or [], after.filter(pod)["NodeNames"] or []
        points = before.prioritize(pod, shortlist)
        assert answered == [name for name in shortlist if points[name] == max(points.values())]
        several += len(shortlist) > 1
    assert several >= 6


def test_a_score_that_depends_on_the_other_candidates() -> None:
    """A replica is spread. `crowded` has most siblings, so over all nodes a sibling counts little, and the better
    links of `linked` win; in the shortlist, without `crowded`, the node without siblings does."""

    def world(**settings: Any) -> World:
        made = World(Settings(shortlist=Shortlist(size=2), **settings))
        made.node("crowded", 8)
        made.node("empty", 8)
        made.node("linked", 8, links=pairs())
        for name, count in (("crowded", 6), ("linked", 2)):
            for i in range(count):
                made.pod(f"{name}-{i}", 1, name, labels=SERVICE)
        return made

    pod = workload("p", 2, labels=SERVICE, annotations={"gpu-extender.io/placement": "spread"})
    shortlist = world().filter(pod)["NodeNames"]
    assert shortlist == ["linked", "empty"]
    assert world().prioritize(pod, shortlist) == {"empty": 10, "linked": 9}
    assert world(**SHIPPED).filter(pod)["NodeNames"] == ["empty"]


@pytest.mark.parametrize(
    ("weight", "others", "answered"),
    [(None, 14, 16), (140, 14, 16), (141, 14, 1), (150, 14, 1), (150, 15, 16), (151, 15, 1), (1, 0, 1), (12, 14, 16)],
)
def test_only_where_one_point_is_more_than_all_plugins_give(weight: int | None, others: int, answered: int) -> None:
    """141 x 10 = 1,410 points are more than 14 x 100 = 1,400; 140 x 10 are as many, and kube-scheduler draws."""
    world = fleet(1, scheduler_weight=weight, scheduler_score_weights=others)
    assert len(world.filter(workload("p", 1))["NodeNames"]) == answered


@pytest.mark.parametrize(("weight", "warned"), [(None, 0), (140, 1), (141, 0)])
def test_a_weight_without_effect_is_a_warning(weight: int | None, warned: int) -> None:
    with capture_logs() as lines:
        connect(Core.over(Cluster(Settings(scheduler_weight=weight))))
    assert sum("schedulerWeight has no effect" in line["event"] for line in lines) == warned


def test_a_retry_gets_all_and_the_record_states_the_cut() -> None:
    world = fleet(1, **SHIPPED)
    first = world.filter(workload("p", 1))
    shown = world.decision()
    fits = shown["feasible"]
    assert (len(first["NodeNames"]), shown["answered"]) == (1, 1)
    assert shown["best_class"] == {"answered": 1, "fit": fits}
    assert {node["answered"] for node in shown["nodes"][1:fits]} == {False}
    assert set(refused(first)) == {node["node"] for node in shown["nodes"] if not node["fits"]}
    # The runner-up and its price are shown, though it is not answered.
    assert ["score" in node for node in shown["nodes"][:16]] == [True] * 16
    assert [price["node"] for price in shown["price"]] == [node["node"] for node in shown["nodes"][:2]]
    retry = world.filter(workload("p", 1))
    assert len(retry["NodeNames"]) == fits
    assert "best_class" not in world.decision()


def test_a_pod_that_no_event_wakes_gets_all_nodes_too() -> None:
    """An extender after ours rejects the one node. kube-scheduler looks every 30 s for pods that wait for 5 min."""
    world = fleet(1, **SHIPPED)
    first = world.filter(workload("p", 1))["NodeNames"]
    for _ in range(3):
        world.now += 300.0 + 30.0
        assert len(world.filter(workload("p", 1))["NodeNames"]) > len(first)


@pytest.mark.parametrize("spec", PREFERS.values(), ids=PREFERS)
def test_a_pod_with_preferences_of_its_own(spec: dict[str, Any]) -> None:
    """Where the scheduler's plugins can decide it gets all nodes, as ever; where they cannot, the one that wins."""
    pod = workload("p", 1, spec=spec)
    assert len(fleet(1, scheduler_weight=12).filter(pod)["NodeNames"]) == len(fleet(1).filter(pod)["NodeNames"]) > 16
    assert len(fleet(1, **SHIPPED).filter(pod)["NodeNames"]) == 1


def test_the_other_nodes_are_no_candidates_for_victims() -> None:
    """An extender after ours may reject the one node: preempt must not evict on it, since others fit."""
    world = World(Settings(**SHIPPED))
    for name in "ab":
        world.node(name, 8)
    world.pod("victim", 1, "a", priority=0)
    pod = workload("p", 4, priority=10)
    assert len(world.filter(pod)["NodeNames"]) == 1
    assert world.preempt(pod, {"a": ["victim"]}) == {}


def test_one_node_that_fits_is_no_cut() -> None:
    world = World(Settings(**SHIPPED))
    world.node("only", 8)
    world.node("small", 1)
    assert world.filter(workload("p", 2))["NodeNames"] == ["only"]
    assert "best_class" not in world.decision()
