"""The scene of the queue, as it is read from the cluster: what is free, what runs, and what waits."""

from __future__ import annotations

import pytest

from extender.cluster.slices import finish
from extender.objects.queueing import GATE
from extender.queue.runtimes import RunTimes, class_of
from extender.queue.sampled import Scene, Scenes
from extender.reservations.advance import Held
from extender.reservations.seats import Seat
from extender.settings import QueueLimits
from tests.queue.gangs import waiting
from tests.reservations.test_advance import hold, take
from tests.world import JSON, WALL, World

HOUR = {"gpu-extender.io/duration": "1h"}
MODEL = "nvidia.com/gpu.product"


class Case:
    """Nodes of two models, one of which is cordoned."""

    def __init__(self) -> None:
        self.world = World()
        self.world.node("n1", 8, labels={MODEL: "B"})
        self.world.node("n2", 8, labels={MODEL: "A"})
        self.world.node("n3", 4, labels={MODEL: "B"}, unschedulable=True)
        self.times = RunTimes()
        self.scenes = Scenes(self.world.cluster, self.world.verbs.claims, self.times)

    def gated(self, name: str, gpus: int, **facts: object) -> JSON:
        spec: JSON = {"schedulingGates": [{"name": GATE}], **facts}
        return self.world.pod(name, gpus, spec=spec)

    def read(self) -> Scene:
        return finish(self.scenes.read(waiting(self.world.cluster), {"lab": QueueLimits(weight=2.0)}, WALL))


def test_what_is_free_runs_and_waits() -> None:
    case = Case()
    case.world.pod("a", 3, "n1", start=WALL - 600, annotations=HOUR, labels={"gpu-extender.io/queue": "lab"})
    case.world.pod("b", 2, "n3", start=WALL - 600)
    case.world.pod("c", 5, "n2", start=WALL - 600)
    case.gated("w", 8, nodeSelector={MODEL: "A"})
    case.gated("any", 2)
    scene = case.read()
    assert (list(scene.free), list(scene.pool), dict(scene.capacity)) == ([5, 3], [1, 0], {0: 8, 1: 8})
    by_queue = sorted(((run.queue, run.seats, run.started, run.end) for run in scene.running), reverse=True)
    assert by_queue == [("lab", ((0, 3),), WALL - 600, WALL + 3000), ("default", ((1, 5),), WALL - 600, None)]
    assert {hopeful.gang.ref.name: (hopeful.gang.total, hopeful.gang.pools) for hopeful in scene.waiting} == {
        "w": (8, (0,)),
        "any": (2, (0, 1)),
    }
    assert (scene.now, scene.rules["lab"].weight, scene.patience) == (WALL, 2.0, 3600.0)


def test_released_pods_count_as_started_now() -> None:
    case = Case()
    case.gated("r", 4)
    amounts = (0, 0, 1, 4)
    seats = case.world.verbs.claims.seats
    seats.reserve([Seat("uid-r", "default/r", "pod:default/r", "n1", amounts, 0, 0, case.world.now)])
    seats.reserve([Seat("uid-late", "default/late", "job:default/g", "n1", amounts, 0, 0, case.world.now)])
    scene = case.read()
    assert list(scene.free) == [0, 8]
    assert sorted((run.seats, run.started, run.end) for run in scene.running) == [(((0, 4),), WALL, None)] * 2


def test_laws_are_those_that_were_learned_and_what_outlives_them_is_named() -> None:
    case = Case()
    case.world.pod("a", 2, "n1", start=WALL - 600)
    case.world.pod("b", 2, "n1", start=WALL - 60)
    kind = class_of([case.world.cluster.pods["uid-a"]], case.world.cluster.gangs.objects)
    for _ in range(30):
        case.times.ended(kind, 100.0, WALL - 50)
    scene = case.read()
    assert [run.law.quantile(0.5) for run in scene.running] == pytest.approx([100.0] * 2, rel=0.1)
    assert case.scenes.overdue == ["default/a"]


def test_what_is_held_for_dates() -> None:
    case = Case()
    case.world.node("n4", 8, labels={MODEL: "B"}, unschedulable=True)
    job = {"metadata": {"name": "g", "namespace": "default"}}
    pod = case.gated("g", 4) | job
    uid = pod["metadata"].get("uid", "uid-g")
    own = Held(
        "gang pod:default/g", (Seat(uid, "default/g", "pod:default/g", "n1", (0, 0, 1, 4), 0, 5, 0.0),),
        WALL + 60, WALL + 660,
    )  # fmt: skip
    take(
        case.world,
        own,
        hold(case.world, "big", {"n2": 8, "n4": 8}, WALL + 60, WALL + 600, namespaces=frozenset({"ml"})),
        hold(case.world, "over", {"n2": 8}, WALL - 60, WALL),
    )
    gangs, big = case.read().dates
    assert (gangs.held, gangs.seats) == (own, ((0, 4),))
    assert gangs.run is not None
    assert (gangs.run.seats, gangs.run.started, gangs.run.end) == (((0, 4),), WALL + 60, None)
    assert (big.held.name, big.seats, big.run) == ("big", ((1, 8),), None)
