"""Gated pods get an Event while no instance releases them, and the pages say which instance does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extender.act.events import OF_NAMESPACE, EventRecorder
from extender.act.gated import AGAIN_SECONDS, REASON, UNLED_SECONDS, UnledPods
from extender.kube.client import ApiError
from extender.objects.queueing import GATE
from extender.queue.report import QueueLeader
from extender.times import Clock as Clocks
from tests.act.queue import rig
from tests.act.test_events import Clock, run
from tests.kube.objects import Objects
from tests.world import World


class Lease:
    """What each look answers. `asked`: how often."""

    def __init__(self, answer: Callable[[], str]) -> None:
        self.answer, self.asked = answer, 0

    async def look(self) -> str:
        self.asked += 1
        return self.answer()


def forbidden() -> str:
    raise ApiError(403, "leases is forbidden")


def posted(world: World, lease: Lease, leader: QueueLeader, seconds: float) -> Objects:
    """What is written by two instances that look for so many seconds."""
    objects = Objects()

    async def test(events: EventRecorder, clock: Clock) -> None:
        clocks = Clocks(lambda: clock.now, lambda: clock.now)
        both = [UnledPods(world.cluster, events, lease.look, leader, world.metrics.degraded, clocks) for _ in range(2)]
        end = clock.now + seconds
        while clock.now <= end:
            for one in both:
                await one.look()
            await events.write()
            clock.now += 5.0

    run(objects, test)
    return objects


def gated(number: int = 1, namespace: str = "default") -> World:
    world = World()
    for pod in range(number):
        world.set("Pod", rig.gated(f"p{pod}", 1, namespace=namespace))
    return world


@pytest.mark.parametrize(
    ("answer", "enabled", "words"),
    [
        (lambda: "", False, "queue.enabled was false when this server started"),
        (forbidden, False, "rollout restart"),
        (lambda: "", True, "no instance holds the Lease gpu-extender-queue"),
    ],
)
def test_a_gated_pod_gets_one_event_while_no_instance_leads(
    answer: Callable[[], str], enabled: bool, words: str
) -> None:
    world = gated()
    world.pod("free", 1)
    objects = posted(world, Lease(answer), QueueLeader(enabled), 2 * UNLED_SECONDS)
    [event] = objects.posted
    assert (event["regarding"]["name"], event["reason"]) == ("p0", REASON)
    assert words in event["note"]
    assert f"behind the gate {GATE}" in event["note"]


@pytest.mark.parametrize(("answer", "enabled"), [(lambda: "other_1", False), (lambda: "me", True), (forbidden, True)])
def test_there_is_none_while_an_instance_leads_or_none_is_known_to(answer: Callable[[], str], enabled: bool) -> None:
    assert not posted(gated(), Lease(answer), QueueLeader(enabled), 2 * UNLED_SECONDS).posted


def test_a_rolling_update_is_no_reason() -> None:
    holders = iter(["a", "", "", "", "b"] + ["b"] * 100)
    assert not posted(gated(), Lease(lambda: next(holders)), QueueLeader(True), 2 * UNLED_SECONDS).posted


def test_it_is_repeated_when_the_event_is_forgotten() -> None:
    objects = posted(gated(), Lease(lambda: ""), QueueLeader(), AGAIN_SECONDS + UNLED_SECONDS + 60)
    assert len({event["metadata"]["name"] for event in objects.posted}) == 2


def test_a_namespace_gets_few_at_a_time() -> None:
    world = gated(100, "tenant")
    world.set("Pod", rig.gated("other", 1, namespace="other"))
    objects = posted(world, Lease(lambda: ""), QueueLeader(), UNLED_SECONDS + 5)
    names = {(event["metadata"]["namespace"], event["regarding"]["name"]) for event in objects.posted}
    assert ("other", "other") in names
    assert len(names) <= 4 * OF_NAMESPACE + 1


def test_the_lease_is_not_read_for_nothing() -> None:
    """Without the queue its manifests, and the right, may be missing."""
    lease = Lease(forbidden)
    assert not posted(World(), lease, QueueLeader(False), 60).posted
    assert lease.asked == 0


@pytest.mark.parametrize(
    ("leader", "words"),
    [
        (QueueLeader(False), "queue.enabled was false when this server started; set it, then restart"),
        (QueueLeader(True, holder=""), "no instance holds the Lease gpu-extender-queue"),
        (QueueLeader(True, holder="pod-b_7"), "pod-b_7 holds the Lease gpu-extender-queue; ask that instance"),
        (QueueLeader(False, holder="pod-b_7"), "pod-b_7 holds the Lease"),
        (QueueLeader(True, problem="403: forbidden"), "cannot be read (403: forbidden)"),
    ],
)
def test_a_server_that_does_not_lead_names_the_one_that_does(leader: QueueLeader, words: str) -> None:
    warning = leader.warning()
    assert warning["code"] == "not-the-leader"
    assert words in warning["message"]
