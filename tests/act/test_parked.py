"""ParkedPods: one nomination, withdrawn at once, wakes the preemptors that kube-scheduler has parked."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from extender.act.parked import PAUSE_SECONDS, ParkedPods
from extender.kube.pod_writes import Patched, PatchOutcome
from extender.objects.records import PodRecord
from extender.reservations.reservations import Reservation
from extender.times import Clock
from tests.waiting import run_bounded
from tests.world import World, logged


class Pods:
    """The API server's pods. `outcomes`: of the next writes; then all are written."""

    def __init__(self) -> None:
        self.writes: list[tuple[str, str, str]] = []
        self.outcomes: list[PatchOutcome] = []

    async def nominate(
        self, pod: PodRecord, node: str, annotations: Mapping[str, str | None], version: str = ""
    ) -> Patched:
        assert not annotations
        self.writes.append((pod.name, version, node))
        return Patched(self.outcomes.pop(0) if self.outcomes else "written", f"{version}+")


class Scene:
    """A full node, and pods that wait."""

    def __init__(self) -> None:
        self.world, self.pods, self.can_evict = World(), Pods(), True
        self.world.node("a", 8)
        self.world.node("n", 8)
        self.world.pod("equal", 8, "a", priority=90)
        self.world.pod("low", 8, "n", priority=1)
        self.world.pod("middle", 4, priority=50)
        self.world.pod("urgent", 4, priority=90)
        clock = Clock(lambda: self.world.now, lambda: self.world.wall)
        self.parked = ParkedPods(self.world.verbs, self.pods.nominate, lambda: self.can_evict, clock)

    def reserve(self, name: str, *, own: bool = False) -> Reservation:
        plan = Reservation(f"uid-{name}", "n", ("uid-low",), (), 60, self.world.now, grace=30.0, own=own)
        self.world.verbs.reservations.add(plan)
        return plan

    def turn(self) -> list[tuple[str, str, str]]:
        self.pods.writes = []
        run_bounded(self.parked.turn())
        return self.pods.writes


ONCE = [("urgent", "7", "n"), ("urgent", "7+", "")]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_first_by_priority_is_nominated_where_it_could_preempt_and_withdrawn(scene: Scene) -> None:
    """After a start, and after each call that could evict no pod; not more often than each PAUSE_SECONDS."""
    assert scene.turn() == ONCE
    assert scene.turn() == []
    scene.parked.not_evicted()
    assert scene.turn() == []
    scene.world.now += PAUSE_SECONDS
    assert scene.turn() == ONCE
    scene.world.now += PAUSE_SECONDS
    assert scene.turn() == []


def test_nothing_is_written_before_pods_can_be_evicted(scene: Scene) -> None:
    scene.can_evict = False
    assert scene.turn() == []
    scene.can_evict = True
    assert scene.turn() == ONCE


def test_each_scheduler_has_its_own_first_pod(scene: Scene) -> None:
    scene.world.pod("other", 4, priority=40, spec={"schedulerName": "batch"})
    assert [(name, node) for name, _, node in scene.turn()] == [
        ("other", "n"), ("other", ""), ("urgent", "n"), ("urgent", "")
    ]  # fmt: skip


def test_pods_that_were_not_parked_are_left_alone(scene: Scene) -> None:
    """One that never preempts, one that is nominated, one with a reservation, one that outranks no pod."""
    scene.world.gone("urgent", "middle")
    scene.world.pod("never", 4, priority=80, never=True)
    scene.world.pod("nominated", 4, priority=70, nominated="n")
    scene.world.pod("reserved", 4, priority=60)
    scene.world.pod("last", 4, priority=1)
    scene.reserve("reserved")
    assert scene.turn() == []


def test_a_withdrawal_that_is_not_written_is_tried_again(scene: Scene) -> None:
    scene.pods.outcomes = ["written", "unknown"]
    assert scene.turn() == ONCE
    assert scene.turn() == []  # the watch has not brought the nomination
    scene.world.pod("urgent", 4, priority=90, nominated="n")
    assert scene.turn() == [("urgent", "7", "")]
    assert scene.turn() == []


def test_a_nomination_with_a_reservation_stays(scene: Scene) -> None:
    scene.pods.outcomes = ["written", "conflict"]
    scene.turn()
    scene.world.pod("urgent", 4, priority=90, nominated="n")
    scene.reserve("urgent")
    assert scene.turn() == []


def test_a_pod_that_has_changed_is_tried_again_and_a_missing_right_is_logged_once(scene: Scene) -> None:
    scene.pods.outcomes = ["conflict"]
    assert scene.turn() == [("urgent", "7", "n")]
    scene.pods.outcomes = ["refused"]
    with logged() as lines:
        assert scene.turn() == [("urgent", "7", "n")]
        scene.parked.not_evicted()
        scene.world.now += PAUSE_SECONDS
        scene.pods.outcomes = ["refused"]
        assert scene.turn() == [("urgent", "7", "n")]
    assert len([line for line in lines if "pods/status" in line["event"]]) == 1


def test_a_pod_that_was_passed_over_is_woken_once_for_each_refusal(scene: Scene) -> None:
    """Also one that never preempts, and one that outranks no pod."""
    scene.world.gone("urgent", "middle")
    scene.world.pod("never", 4, never=True)
    scene.world.pod("last", 4)
    assert scene.turn() == []
    scene.parked.passed_over({"uid-never": 10.0, "uid-last": 10.0, "uid-gone": 10.0})
    assert scene.turn() == []
    scene.world.now += PAUSE_SECONDS
    assert scene.turn() == [("last", "7", "a"), ("last", "7+", "")]
    scene.world.now += PAUSE_SECONDS
    scene.parked.passed_over({"uid-never": 10.0, "uid-last": 10.0})
    assert scene.turn() == []
    scene.parked.passed_over({"uid-never": 20.0, "uid-last": 10.0})
    assert scene.turn() == [("never", "7", "a"), ("never", "7+", "")]
    scene.parked.passed_over({})
    scene.world.now += PAUSE_SECONDS
    assert scene.turn() == []


def test_of_a_preemptor_and_a_pod_that_was_passed_over_the_higher_priority_wakes_both(scene: Scene) -> None:
    scene.world.pod("above", 4, priority=95, never=True)
    scene.parked.passed_over({"uid-above": 10.0, "uid-middle": 10.0})
    assert scene.turn() == [("above", "7", "a"), ("above", "7+", "")]
    scene.parked.not_evicted()
    scene.parked.passed_over({"uid-middle": 20.0})
    scene.world.now += PAUSE_SECONDS
    assert scene.turn() == ONCE


def of_our_plan() -> tuple[Scene, Reservation]:
    """A pod for which we evict; nothing else is to be woken."""
    scene = Scene()
    scene.world.gone("middle")
    plan = scene.reserve("urgent", own=True)
    assert scene.turn() == []
    scene.world.now += PAUSE_SECONDS
    return scene, plan


def test_the_pod_of_a_plan_that_ended_is_woken_once() -> None:
    scene, plan = of_our_plan()
    scene.world.verbs.reservations.drop(plan.uid)
    scene.parked.wake(plan.uid)
    assert scene.turn() == [("urgent", "7", "a"), ("urgent", "7+", "")]
    scene.world.now += PAUSE_SECONDS
    assert scene.turn() == []


def test_a_pod_whose_victims_are_gone_is_nominated_for_the_node_of_its_plan() -> None:
    """And again where it has changed meanwhile, also where no pod of a lower priority is left."""
    scene, plan = of_our_plan()
    scene.world.gone("low")
    plan.emptied = scene.world.now
    scene.parked.wake(plan.uid)
    scene.pods.outcomes = ["conflict"]
    assert scene.turn() == ONCE[:1]
    assert scene.turn() == ONCE
    scene.world.now += PAUSE_SECONDS
    assert scene.turn() == []


def test_a_pod_that_has_come_is_not_woken() -> None:
    scene, plan = of_our_plan()
    scene.world.pod("urgent", 4, "n", priority=90)
    scene.parked.wake(plan.uid)
    assert scene.turn() == []


def test_a_preemptor_is_woken_once_there_is_a_node() -> None:
    """Its plan ended with the node, which was the last one."""
    world, pods = World(), Pods()
    world.pod("urgent", 4, priority=90)
    parked = ParkedPods(world.verbs, pods.nominate, lambda: True, Clock(lambda: world.now, lambda: world.wall))
    parked.wake("uid-urgent")
    run_bounded(parked.turn())
    assert pods.writes == []
    world.node("n", 8)
    run_bounded(parked.turn())
    assert [(name, node) for name, _, node in pods.writes] == [("urgent", "n"), ("urgent", "")]
