"""Moves for an advance reservation: no pod is evicted before its next place is held, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import random

import pytest

from extender.act.moves import LOST_SECONDS, NOT_USED_SECONDS, START_SECONDS
from extender.act.saving import ASKING_SECONDS
from extender.kube.pod_writes import Evicted
from extender.objects.records import PodRecord
from tests.act.moved import NAME, SPREAD, TICK, Owner, Scene, carried_out, drawn, gpus_of, places_of
from tests.world import machine

CASES = 40


@pytest.fixture
def scene() -> Scene:
    return scene_of(web(2, 2))


def test_every_victim_has_its_place_and_the_reservation_is_kept() -> None:
    """Random clusters, restarts after one write of seven; strangers with the names of others take what is free."""
    kept = moved = rooms = 0
    for case in range(CASES):
        scene = drawn(random.Random(case), crashes=0.15)
        on_time = asyncio.run(carried_out(scene, *random.Random(case).choice(((1, 8), (2, 4), (1, 6))), strangers=0.3))
        assert not scene.without_place, case
        assert max(scene.requests.values(), default=1) == 1, case  # what was asked stays asked
        rooms, moved, kept = rooms + bool(scene.document), moved + len(scene.evicted), kept + on_time
    assert moved > CASES / 2
    assert kept == rooms > CASES / 2


def test_what_hinders_moves_leaves_no_victim_without_its_place() -> None:
    """Budgets refuse, owners grow, nodes vanish and are cordoned. The reservation may be late."""
    moved = 0
    for case in range(CASES):
        rng = random.Random(1000 + case)
        scene = drawn(rng, crashes=0.1, refuses=0.4, vanish=0.01, closes=0.02)
        asyncio.run(carried_out(scene, 1, 8, strangers=0.2, grows=0.1))
        assert not scene.without_place, case
        moved += len(scene.evicted)
    assert moved > CASES / 4


def scene_of(*owners: Owner, seed: int = 1) -> Scene:
    """Three machines with 4 GPUs: the first pod of each owner runs on the first machine, others on the next ones."""
    scene = Scene(random.Random(seed), {"n0": 4, "n1": 4, "n2": 4}, list(owners), late=0.0)
    for owner in owners:
        for at in range(owner.replicas):
            scene.create(owner, f"n{at}")
    return scene


def web(gpus: int = 2, replicas: int = 1, saves: int = -1) -> Owner:
    return Owner("default", "ReplicaSet", "web", replicas, gpus, saves=saves)


async def until(scene: Scene, phase: str, most: int = 200) -> None:
    """Time passes until the moves are so far."""
    for _ in range(most):
        if (await scene.turn()).phase == phase:
            return
        scene.tick()
        scene.check()
    raise AssertionError(scene.state)


async def evicts(scene: Scene) -> None:
    """Time passes until a pod is evicted."""
    while not scene.evicted:
        await scene.turn()
        if not scene.evicted:
            scene.tick()


def booked(scene: Scene) -> Scene:
    assert scene.book(2, 4, 60.0)
    assert scene.moves
    return scene


def test_moves_begin_at_the_latest_useful_moment() -> None:
    scene = scene_of(web(saves=600), Owner("default", "Job", "x", 0, 2))
    scene.nodes["n3"] = 2
    scene.world.node("n3", 2)
    assert scene.book(3, 4, 3600.0)
    assert 600 + 30 + 60 < scene.lead() < 720
    begins = scene.since - scene.lead()
    while scene.world.wall < begins - 1:
        assert asyncio.run(scene.turn()).phase in ("waits", "moving")
        assert not scene.asked
        scene.tick()
    assert "the moves begin at" in scene.state.text
    asyncio.run(until(scene, "done"))
    assert scene.world.wall < scene.since
    assert [pod.node for pod in scene.world.cluster.pods.values()] == ["n3"]


def test_a_new_pod_of_another_size_does_not_stop_the_moves(scene: Scene) -> None:
    booked(scene)
    asyncio.run(evicts(scene))
    scene.owners[0].gpus = 3
    gone = scene.world.wall
    asyncio.run(until(scene, "done"))
    assert not scene.without_place
    assert scene.world.wall - gone < NOT_USED_SECONDS + 100
    assert set(scene.document) == {NAME}


def test_an_owner_that_is_scaled_down_creates_no_pod(scene: Scene) -> None:
    booked(scene)
    asyncio.run(evicts(scene))
    scene.owners[0].replicas = 1
    asyncio.run(until(scene, "done"))
    assert set(scene.document) == {NAME}


@pytest.mark.parametrize("evicted", [False, True])
def test_a_node_with_a_place_vanishes(scene: Scene, evicted: bool) -> None:
    """Before the eviction no pod moves; after it the new pod may go anywhere, and the moves go on."""
    booked(scene)
    if evicted:
        asyncio.run(evicts(scene))
    else:
        asyncio.run(scene.turn())
    scene.lose(scene.moves[0].pods[0].to)
    asyncio.run(until(scene, "done" if evicted else "lost"))
    assert bool(scene.evicted) == evicted
    assert not [place for place in scene.document.values() if place.name != NAME]


@pytest.mark.parametrize("how", ["deleted", "cordoned"])
def test_a_place_whose_node_closes_after_the_eviction_is_held_on_another_one(how: str) -> None:
    """Strangers come all the time; its new pod starts where it is held from then on, and no second pod is evicted. The
    process ends between any two writes."""
    for seed in range(8):
        scene = scene_of(web(3, 2), seed=seed)
        for name in ("n3", "n4"):
            scene.nodes[name] = 3
            scene.world.node(name, 3)
        booked(scene)
        asyncio.run(evicts(scene))
        (evicted,) = scene.evicted
        scene.owners.append(Owner("other", "ReplicaSet", "more", 0, 3))
        left = scene.moves[0].pods[0].to
        if how == "deleted":
            scene.lose(left)
        else:
            scene.world.node(left, 3, unschedulable=True)
        scene.crashes = 0.3
        asyncio.run(scene.turn())
        (place,) = (place for place in scene.document.values() if place.owner)
        (held,) = place.seats
        assert held.node != left
        assert scene.evicted.keys() == {evicted}
        for _ in range(30):
            scene.owners[-1].replicas += 1
            asyncio.run(scene.turn())
            scene.tick()
            scene.check()
        web_pods = scene.of(scene.owners[0])
        assert {pod["status"]["phase"] for pod in web_pods} == {"Running"}
        assert held.node in {pod["spec"]["nodeName"] for pod in web_pods}
        assert set(scene.document) == {NAME}


def test_a_place_that_no_node_has_room_for_is_searched_until_one_has(scene: Scene) -> None:
    booked(scene)
    asyncio.run(evicts(scene))
    scene.lose(scene.moves[0].pods[0].to)
    for _ in range(3):
        assert asyncio.run(scene.turn()).phase == "moving"
        scene.tick()
    scene.nodes["n9"] = 2
    scene.world.node("n9", 2)
    asyncio.run(scene.turn())
    assert "n9" in {one.node for place in scene.document.values() for one in place.seats} or scene.free("n9") == 0
    asyncio.run(until(scene, "done"))
    assert set(scene.document) == {NAME}


def test_a_wall_clock_that_is_set_back_stops_no_move(scene: Scene) -> None:
    booked(scene)
    scene.refuses = 1.0
    for _ in range(30):
        asyncio.run(scene.turn())
        scene.tick()
        if scene.acts()._rounds.now(scene.world.now):
            break
    scene.since -= 3_600.0  # that it begins in time does not matter here
    scene.document = {name: place._replace(since=place.since - 3_600.0) for name, place in scene.document.items()}
    scene.world.wall -= 3_000.0
    scene.known()
    scene.refuses = 0.0
    for _ in range(4):
        asyncio.run(scene.turn())
        scene.tick()
    assert scene.evicted


def test_a_pod_that_was_there_before_does_not_take_the_place(scene: Scene) -> None:
    """A ReplicaSet has one more pod that waits; the GPUs of the place are for the successor of the evicted one."""
    booked(scene)
    scene.owners[0].replicas = 3  # all that is free is held
    while not scene.evicted:
        asyncio.run(scene.turn())
        scene.tick()
    waiting = [pod.uid for pod in scene.world.cluster.pods.values() if not pod.node]
    asyncio.run(until(scene, "done"))
    assert len(waiting) == 1
    assert not scene.world.cluster.pods[waiting[0]].node


def test_a_pod_that_ends_by_itself_needs_no_place(scene: Scene) -> None:
    booked(scene)
    asyncio.run(scene.turn())
    assert len(scene.document) == 2
    scene.owners[0].replicas = 1
    scene.remove(scene.moves[0].pods[0].uid)
    asyncio.run(until(scene, "done"))
    assert not scene.evicted
    assert set(scene.document) == {NAME}


def test_what_is_refused_is_asked_again() -> None:
    scene = scene_of(web(2, 2, saves=30))
    booked(scene)
    scene.refuses = 1.0
    for _ in range(40):
        asyncio.run(scene.turn())
        scene.tick()
    assert not scene.evicted
    assert not scene.asked
    assert "a budget does not allow it" in scene.state.text or "not allowed now" in scene.state.text
    scene.refuses = 0.0
    asyncio.run(until(scene, "done"))
    assert places_of(scene)


def saving() -> Scene:
    """Pods that take 600 s to save have been asked to do so for a move."""
    scene = scene_of(web(2, 2, saves=600))
    booked(scene)
    while not scene.asked:
        asyncio.run(scene.turn())
        scene.tick()
    return scene


def test_a_clock_that_steps_back_lets_no_pod_save_for_longer() -> None:
    scene = saving()
    scene.world.wall -= 20.0
    asyncio.run(scene.turn())
    (need,) = scene.acts()._needs.values()
    assert 0 < need.until - scene.world.wall <= 600 + ASKING_SECONDS


def test_no_pod_moves_to_a_node_that_is_tainted_while_it_saves() -> None:
    """Its new pod would not start there. One that has left gets no such node as its other place either."""
    scene = saving()
    scene.nodes["n9"] = 2
    scene.world.node("n9", 2)
    (left,) = [pod for pod in scene.world.cluster.pods.values() if pod.uid in scene.asked]
    assert scene.acts()._node_for(left)
    for name, gpus in scene.nodes.items():
        node = machine(name, gpus)
        node["spec"]["taints"] = [{"key": "x", "effect": "NoSchedule"}]
        scene.world.set("Node", node)
    assert not scene.acts()._node_for(left)
    asyncio.run(until(scene, "lost"))
    assert not scene.evicted


def test_places_of_moves_that_are_not_planned_any_more_are_given_up(scene: Scene) -> None:
    booked(scene)
    asyncio.run(scene.turn())
    assert len(scene.document) == 2
    scene.moves = ()
    asyncio.run(until(scene, "done"))
    assert set(scene.document) == {NAME}
    assert TICK < NOT_USED_SECONDS
    assert sum(map(gpus_of, scene.pods.values())) == 4


def test_moves_that_are_lost_are_not_tried_again_at_once(scene: Scene) -> None:
    """Others are planned meanwhile: nothing is written over and over."""
    booked(scene)
    asyncio.run(scene.turn())
    scene.lose(scene.moves[0].pods[0].to)
    asyncio.run(until(scene, "lost"))
    for _ in range(int(LOST_SECONDS / TICK) - 1):
        assert asyncio.run(scene.turn()).phase == "lost"
        assert set(scene.document) == {NAME}
        scene.world.now += TICK


def test_a_node_that_vanishes_at_the_last_moment_keeps_the_pod_where_it_is(scene: Scene) -> None:
    """After its place was held for the pod that comes, and before the eviction."""
    booked(scene)
    while not any(place.owner for place in scene.document.values()):
        asyncio.run(scene.turn())
        scene.world.now += TICK
        scene.world.wall += TICK
    scene.lose(scene.moves[0].pods[0].to)
    assert asyncio.run(scene.turn()).phase == "lost"
    assert not scene.evicted
    assert set(scene.document) == {NAME}


def test_of_a_gang_no_further_pod_is_evicted_once_its_next_node_is_closed() -> None:
    """Its other pod has left by then. Where it stays the moves are planned anew, and what is held for the pod that left
    is held on."""
    gang = Owner("default", "ReplicaSet", "train", 2, 2, gang=True)
    scene = Scene(random.Random(1), {"n0": 4, "n1": 4, "n2": 2, "n3": 2}, [gang], late=0.0)
    for node in ("n0", "n1"):
        scene.create(gang, node)
    booked(scene)
    (move,) = scene.moves
    evict, last = scene.evict, move.pods[1]

    async def refusing(pod: PodRecord) -> Evicted:
        return Evicted("blocked", "") if pod.uid == last.uid else await evict(pod)

    scene.evict = refusing  # type: ignore[method-assign]
    asyncio.run(evicts(scene))
    assert set(scene.evicted) == {move.pods[0].uid}
    scene.evict = evict  # type: ignore[method-assign]
    scene.world.node(last.to, 2, unschedulable=True)
    asyncio.run(until(scene, "lost"))
    assert set(scene.evicted) == {move.pods[0].uid}
    assert any(place.owner for place in scene.document.values())
    assert scene.world.cluster.pods[last.uid].node


def test_moves_that_share_nothing_run_side_by_side() -> None:
    scene = scene_of(web(2, 1), Owner("default", "ReplicaSet", "api", 0, 2))
    scene.nodes |= {"n3": 4, "n4": 2}
    for name, gpus in (("n3", 4), ("n4", 2)):
        scene.world.node(name, gpus)
    scene.create(scene.owners[1], "n3")
    scene.owners[1].replicas = 1
    for node in ("n1", "n2"):
        scene.create(Owner("default", "Bare", f"on-{node}", 1, 2), node)
    alone = START_SECONDS + 30 + SPREAD
    assert scene.book(2, 4, 60.0)
    assert (len(scene.moves), scene.lead()) == (2, alone)
    asyncio.run(evicts(scene))
    assert len(scene.evicted) == 2


def test_a_budget_that_refuses_for_a_minute_has_other_moves_planned(scene: Scene) -> None:
    booked(scene)
    scene.refuses = 1.0
    asyncio.run(until(scene, "lost"))
    assert "a budget does not allow it" in scene.state.text
    assert not scene.evicted
    assert set(scene.document) == {NAME}


def test_after_whatever_happens_nothing_stays_held_or_asked() -> None:
    """Owners are scaled to 0 or deleted, pods end by themselves, budgets refuse, nodes vanish and close, and the wall
    clock jumps, while the process ends between any two writes; then the reservation is deleted."""
    for case in range(25):
        dice = random.Random(4_000 + case)
        scene = drawn(dice, crashes=0.2, refuses=0.2, vanish=0.01, closes=0.03)
        if not scene.book(1, 8, 120.0):
            continue
        for _ in range(40):
            asyncio.run(scene.turn())
            owner, running = dice.choice(scene.owners), sorted(scene.pods)
            if dice.random() < 0.05:
                owner.replicas = 0
            if dice.random() < 0.1 and running:
                scene.remove(dice.choice(running))
            if dice.random() < 0.05:
                scene.world.wall += dice.choice((-20.0, 20.0))
                scene.known()
            scene.tick()
            scene.check()
        assert not scene.without_place, case
        scene.moves, scene.refuses, scene.vanish = (), 0.0, 0.0
        for _ in range(int(3 * NOT_USED_SECONDS / TICK)):
            asyncio.run(scene.turn())
            scene.tick()
        assert set(scene.document) == {NAME}, case
        assert not scene.asked.keys() & scene.pods.keys(), case
