"""Why a pod waits is the same reason and sentence in every answer about one cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from extender.act.queue.tell import EVENT_SECONDS, Teller
from extender.ask.pending import MEANINGS
from extender.metrics import Metrics
from extender.queue.placement import JointPlacement
from extender.queue.plan import Planner
from extender.queue.report import CODES
from extender.queue.report import MEANINGS as OF_QUEUE
from tests.ask.asking import explained
from tests.waiting import run_bounded
from tests.web.page.scene import PREEMPTOR, scene
from tests.web.page.test_site import data, get
from tests.world import World, pairs


@pytest.fixture(scope="module")
def world() -> World:
    return scene()


def waiting(world: World) -> dict[str, tuple[str, str]]:
    """What /waiting states of each pod."""
    return {one["pod"]: (one["reason"], one["text"]) for one in data(world, "/waiting")["pods"]}


def test_explain_states_what_the_list_of_waiting_pods_states(world: World) -> None:
    pods = waiting(world)
    assert len({reason for reason, _ in pods.values()}) > 2
    for name, (reason, text) in pods.items():
        assert get(world, f"/debug/explain?pod={name}").json["why"] == {"reason": reason, "text": text}, name


def test_a_pod_waits_for_its_victims_where_they_save_their_work(world: World) -> None:
    text = "1 pod on a100-1 saves its work before the eviction for it, until 08:10:00 UTC at the latest"
    assert waiting(world)[PREEMPTOR] == ("saving", text)


def test_the_node_that_lacks_least_decides_and_not_most_nodes() -> None:
    """Three nodes are full; on one enough GPUs are free, and no two of them are linked."""
    world = World()
    world.node("n0", 4, links=pairs(4))
    for n in (1, 2, 3):
        world.node(f"n{n}", 4, links=pairs(4))
        world.pod(f"full-{n}", 4, f"n{n}")
    for gpu in (0, 2):
        world.pod(f"half-{gpu}", 1, "n0", held=(gpu,))
    world.pod("p", 2, links="required")
    shown = explained(world)
    assert shown["reasons"] == {"gpus-held": 3, "links-held": 1}
    assert shown["sentence"].startswith("waits: 1 node has enough free GPUs, but no linked set of 2 GPUs")
    assert waiting(world)["default/p"][0] == shown["why"]["reason"] == "links-held"
    assert [entry["reason"] for entry in get(world, "/debug/top").json["waiting"]] == ["links-held"]


def test_reserved_gpus_decide_in_each_answer() -> None:
    world = World()
    world.node("n0", 2)
    world.node("n1", 2)
    world.node("n2", 2)
    world.pod("other", 2, "n1")
    world.pod("another", 2, "n2")
    world.pod("first", 2, priority=10, spec={}, nominated="n0")
    world.pod("p", 2)
    shown = explained(world)
    assert shown["reasons"] == {"gpus-held": 2, "gpus-reserved": 1}
    assert waiting(world)["default/p"][0] == "gpus-reserved"


def test_the_fleet_and_top_count_by_the_same_reasons(world: World) -> None:
    counts = Counter(reason for reason, _ in waiting(world).values())
    for entries in (get(world, "/debug/top").json["waiting"], data(world, "/")["waiting"]):
        assert {one["reason"]: one["pods"] for one in entries} == counts
        assert all(one["text"] == MEANINGS[one["reason"]] for one in entries)


def test_pods_of_the_queue_wait_for_what_the_queue_states(world: World) -> None:
    queue: dict[str, Any] = get(world, "/debug/queue").json
    gangs = [*queue["waiting"], *queue["incomplete"]]
    stated = {(f"queue: {one['reason']}", one["text"]) for one in gangs}
    of_pods = {why for why in waiting(world).values() if why[0].startswith("queue: ")}
    assert stated == of_pods


def test_the_event_of_a_gang_states_what_the_queue_states(world: World) -> None:
    placement = JointPlacement(world.cluster, world.verbs.policy)
    planner = Planner(world.cluster, world.verbs.claims, placement, lambda: world.now, lambda: world.wall)
    for _ in planner.looks({}):
        pass
    report = planner.report
    told: list[str] = []

    class Events:
        def tell(self, regarding: Any, reason: str, action: str, note: str, **more: Any) -> None:
            told.append(note)

    late = replace(report, wall=report.wall + 10 * EVENT_SECONDS)
    run_bounded(Teller(Metrics(), Events()).waiting(late))  # type: ignore[arg-type]
    assert len(told) == len(report.waiting)
    for note, one in zip(told, report.waiting, strict=True):
        assert f" waits: {one.why.text}" in note


def test_each_code_of_the_queue_has_a_sentence() -> None:
    assert set(OF_QUEUE) == set(CODES)
