"""The start of a large gang, a part after the other: what happens between two parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extender.cluster.slices import Sliced, finish
from extender.queue.gang import WaitingGang
from extender.queue.placement import JointPlacement, Placed
from extender.queue.places import SLICE_PODS, GangStart, Starts
from extender.reservations.seats import Seat
from tests.queue.gangs import waiting
from tests.queue.test_plan import cluster, wait
from tests.world import World, machine, pairs

NODES, PODS = 20, 2 * SLICE_PODS


class Begun:
    """A gang of two parts that is about to start on a cluster with room."""

    def __init__(self) -> None:
        self.world = cluster(NODES)
        wait(self.world, "g", PODS, 1, 60.0)
        placement = JointPlacement(self.world.cluster, self.world.verbs.policy)
        claims = self.world.verbs.claims
        self.seats = claims.seats
        self.starts = Starts(self.world.cluster, claims, placement, lambda: self.world.now)
        self.gang = next(iter(waiting(self.world.cluster)))
        found = placement.place(self.gang.pods, [claims.alone(pod) for pod in self.gang.pods], None)
        assert isinstance(found, Placed)
        self.placed = found
        self.steps = self.begin(self.gang)

    def begin(self, gang: WaitingGang) -> Sliced[GangStart | None]:
        return self.starts.begin(gang, gang.pods, self.placed)

    def half(self) -> list[Seat]:
        """The seats once the first part of the gang has them."""
        next(self.steps)
        next(self.steps)
        made = list(self.seats)
        assert 0 < len(made) < PODS
        return made


@pytest.fixture
def begun() -> Begun:
    return Begun()


def test_each_pod_has_its_place(begun: Begun) -> None:
    start = finish(begun.steps)
    assert start is not None
    places = zip(begun.gang.pods, begun.placed.nodes, begun.placed.gpus, strict=True)
    assert [(seat.uid, seat.node, seat.gpus) for seat in start.seats] == [
        (p.uid, node, gpus) for p, node, gpus in places
    ]
    assert set(start.seats) == set(begun.seats)


def _deleted(world: World, pod: str, node: str) -> None:
    world.gone(pod)


def _bound(world: World, pod: str, node: str) -> None:
    world.pod(pod, 1, node)


def _taken(world: World, pod: str, node: str) -> None:
    world.pod("foreign", 8, node)


def _cordoned(world: World, pod: str, node: str) -> None:
    world.node(node, 8, links=pairs(8), unschedulable=True)


def _removed(world: World, pod: str, node: str) -> None:
    world.drop("Node", machine(node, 8, links=pairs(8)))


@pytest.mark.parametrize("happens", [_deleted, _bound, _taken, _cordoned, _removed])
def test_a_part_that_does_not_stand_ends_the_start(begun: Begun, happens: Callable[[World, str, str], None]) -> None:
    """What happens to a pod or a node of the second part after the first one has its seats."""
    seated = {seat.uid for seat in begun.half()}
    pod, node = next(
        (pod, node)
        for pod, node in zip(begun.gang.pods, begun.placed.nodes, strict=True)
        if pod.uid not in seated and node not in {seat.node for seat in begun.seats}
    )
    happens(begun.world, pod.name, node)
    assert finish(begun.steps) is None
    assert not begun.seats


def test_a_start_that_is_dropped_between_two_parts_leaves_no_seat(begun: Begun) -> None:
    begun.half()
    begun.steps.close()
    assert not begun.seats


def test_what_is_written_since_stands_as_a_start_is_dropped(begun: Begun) -> None:
    """Another instance has released the gang elsewhere, and its seats were read meanwhile."""
    first = begun.half()[0]
    others = [seat._replace(at=seat.at + 1.0, gpus=1 << 7) for seat in begun.seats][1:]
    begun.seats.reserve(others)
    begun.steps.close()
    assert set(begun.seats) == set(others)
    assert begun.seats.of(first.uid) is None


def test_what_the_pods_gave_up_stands_again(begun: Begun) -> None:
    assert finish(begun.steps) is not None
    before = {seat.uid: seat._replace(at=1.0) for seat in begun.seats}
    begun.seats.reserve(before.values())
    begun.steps = begun.begin(begun.gang)
    next(begun.steps)
    next(begun.steps)
    assert {seat.uid: seat for seat in begun.seats} != before
    begun.steps.close()
    assert {seat.uid: seat for seat in begun.seats} == before
