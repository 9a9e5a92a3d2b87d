"""Why a pod waits is the same reason and sentence in every answer about one cluster."""

from __future__ import annotations

import asyncio
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
from tests.web.page.scene import scene
from tests.web.page.test_site import data, get
from tests.world import World


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
    asyncio.run(Teller(Metrics(), Events()).waiting(late))  # type: ignore[arg-type]
    assert len(told) == len(report.waiting)
    for note, one in zip(told, report.waiting, strict=True):
        assert f" waits: {one.why.text}" in note


def test_each_code_of_the_queue_has_a_sentence() -> None:
    assert set(OF_QUEUE) == set(CODES)
