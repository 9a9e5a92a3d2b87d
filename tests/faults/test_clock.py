"""The wall clock steps: what ends after a time ends by a clock that does not step."""

from __future__ import annotations

import pytest

from extender.times import Clock, Epoch
from tests.act.test_reservations import OFFER, ask, connected, entries, keeper, store
from tests.act.test_reservations import world as reserving
from tests.kube.objects import Objects
from tests.waiting import run_bounded
from tests.world import WALL, World, workload

DAY = 86_400.0


def cost(world: World) -> float:
    (found,) = (term["value"] for term in world.decision()["cost"] if term["term"] == "work_lost_gpu_seconds")
    return float(found)


@pytest.mark.parametrize("step", [-DAY, DAY])
def test_an_assumed_pod_and_a_reservation_end_by_time_that_passes(world: World, step: float) -> None:
    world.node("n", 4)
    for number in range(2):
        world.pod(f"w{number}", 1, "n", priority=1, start=WALL - 100)
    assert world.filter(workload("first", 2))["NodeNames"] == ["n"]
    world.wall += step
    assert "promised to a pod that is being bound" in world.filter(workload("second", 2))["Error"]
    world.now += 5.1
    urgent = world.pod("urgent", 4, priority=9)
    assert sorted(world.preempt(urgent, {"n": ["w0", "w1"]})["n"]) == ["w0", "w1"]
    world.wall -= step
    assert len(world.verbs.reservations.current(world.now)) == 1
    assert sorted(world.preempt(urgent, {"n": ["w0", "w1"]})["n"]) == ["w0", "w1"]  # the same victims
    world.now += 11  # kube-scheduler evicts none of them
    world.verbs.releases.sweep(world.now)
    assert not world.verbs.reservations.all()


def test_protection_and_lost_work_follow_the_wall_clock_and_are_never_negative(world: World) -> None:
    """Both rest on the start that kubelet writes. A clock that steps back by a day finds pods that have not started."""
    world.node("n", 1)
    world.pod("w", 1, "n", priority=1, start=WALL - 100, annotations={"gpu-extender.io/protect-for": "60s"})
    urgent = workload("urgent", 1, priority=9)
    world.wall -= DAY
    assert world.preempt(urgent, {"n": ["w"]}) == {}  # protected: it is not known how long it has run
    world.wall += DAY
    assert world.preempt(urgent, {"n": ["w"]}) == {"n": ["w"]}
    assert cost(world) == 100
    world.pod("w", 1, "n", priority=1, start=WALL - 100)
    world.verbs.reservations.drop("uid-urgent")
    world.wall -= DAY
    assert world.preempt(urgent, {"n": ["w"]}) == {"n": ["w"]}
    assert cost(world) == 0
    world.verbs.reservations.drop("uid-urgent")
    world.wall += 2 * DAY
    assert world.preempt(urgent, {"n": ["w"]}) == {"n": ["w"]}
    assert cost(world) == DAY + 100


def test_what_is_written_stays_the_same_words_while_the_clocks_drift() -> None:
    wall = 1_000.0
    epoch = Epoch(Clock(lambda: 100.0, lambda: wall))
    wall += 0.75
    assert epoch() == 900.0
    wall -= 1.5
    assert epoch() == 900.0
    wall -= 0.25
    assert epoch() == 899.0
    wall += 0.75
    assert epoch() == 899.0


@pytest.mark.parametrize("wrong", [-3600.0, 3600.0])
def test_what_a_server_reserves_that_started_with_a_wrong_clock_counts_for_others_once_it_is_right(
    wrong: float,
) -> None:
    """As a host that boots before its time is set. Else the others would drop each of its reservations, as over or as
    yet to come, until it starts again."""
    objects, ours, theirs = Objects(), reserving(), reserving()
    error = wrong
    clock = Clock(lambda: ours.now, lambda: ours.wall + ours.now - 1000.0 + error)

    async def test() -> None:
        nonlocal error
        async with connected(objects) as server:
            kept = keeper(ours, server, clock)
            await kept.refresh()
            error = 0.0
            assert list(await ask(ours, OFFER)) == ["n1"]
            other = store(theirs, server)
            await other.refresh()
            theirs.verbs.releases.sweep(theirs.now)
            assert [plan.node for plan in theirs.verbs.reservations.all()] == ["n1"]
            await other.refresh()
            assert list(entries(objects)) == ["uid-urgent"]

    run_bounded(test())
