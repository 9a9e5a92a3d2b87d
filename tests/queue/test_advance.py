"""Gangs of the queue beside GPUs that are held for a date, and on those that are held for them."""

from __future__ import annotations

import random

import pytest

from tests.act.queue.rig import gated
from tests.queue.test_plan import cluster, look, wait
from tests.reservations.test_advance import hold, passes, take
from tests.world import WALL, World

ML = frozenset({"ml"})


def held(world: World, since: float, *nodes: str, gpus: int = 8) -> None:
    facts = {"namespaces": ML}
    take(world, hold(world, "big", dict.fromkeys(nodes, gpus), WALL + since, WALL + since + 600, **facts))


def seats(world: World, gang: str) -> set[str]:
    return {seat.node for seat in world.verbs.claims.seats if f"/{gang}" in seat.gang}


@pytest.fixture
def world() -> World:
    return cluster(2)


def test_before_the_date_a_gang_starts_there_only_if_it_ends_before(world: World) -> None:
    held(world, 630, "n0", "n1")
    wait(world, "short", 1, 8, 300, duration="10m")
    wait(world, "long", 1, 8, 200, duration="601s")
    wait(world, "unknown", 1, 1, 100)
    assert look(world)[0] == ["short"]


def test_a_pod_that_is_bound_late_on_its_seat_does_not_run_into_a_date() -> None:
    """The queue counts 30 s for it; from then on filter judges its own end."""
    world = cluster(1)
    held(world, 630, "n0")
    wait(world, "short", 1, 8, 300, duration="10m")
    assert look(world)[0] == ["short"]
    (seat,) = world.verbs.claims.seats
    world.verbs.claims.seats.reserve([seat._replace(gpus=0)])  # the pod states no indices
    pod = gated("short-0", 8, gates=(), annotations={"gpu-extender.io/duration": "10m"})
    for passed, nodes in ((30, {"n0"}), (1, set())):
        world.now += passed
        world.wall += passed
        assert passes(world, pod) == nodes


def test_a_gang_ends_when_its_last_pod_does(world: World) -> None:
    held(world, 630, "n0", "n1")
    wait(world, "g", 2, 8, 300, duration="10m")
    world.set("Pod", gated("g-1", 8, annotations={"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2"}))
    assert look(world)[0] == []


@pytest.mark.parametrize("strict", [True, False])
def test_from_the_date_a_gang_of_its_namespace_takes_the_gpus_whatever_the_order(strict: bool) -> None:
    world = cluster(3, strict=strict)
    world.pod("busy", 8, "n2")
    held(world, 0, "n0", "n1")
    wait(world, "large", 3, 8, 900)  # the head
    wait(world, "own", 2, 8, 100, namespace="ml")
    wait(world, "other", 1, 8, 800)
    started, waits = look(world)
    assert (started, seats(world, "own")) == (["own"], {"n0", "n1"})
    assert set(waits) == {"large", "other"}


def test_of_many_gangs_of_its_namespace_as_many_as_fit_start_at_once() -> None:
    world = cluster(3)
    held(world, 0, "n0", gpus=4)
    world.pod("busy", 8, "n1")
    world.pod("busier", 8, "n2")
    for at in range(5):
        wait(world, f"g{at}", 1, 2, 300 - at, namespace="ml")
    assert sorted(look(world)[0]) == ["g0", "g1", "g2", "g3"]  # n0 has 8 GPUs, of which 4 are held


def test_a_gang_that_does_not_fit_on_them_alone_is_placed_as_any_other(world: World) -> None:
    held(world, 0, "n0")
    wait(world, "own", 2, 8, 100, namespace="ml")
    assert (look(world)[0], seats(world, "own")) == (["own"], {"n0", "n1"})


def test_its_gang_does_not_start_before_the_date_on_what_is_held() -> None:
    world = cluster(1)
    held(world, 600, "n0")
    wait(world, "own", 1, 8, 100, namespace="ml")
    assert look(world)[0] == []
    world.now += 600
    world.wall += 600
    assert look(world)[0] == ["own"]


def test_a_pod_that_has_moved_starts_on_its_place_before_others_of_its_kind(world: World) -> None:
    """What is held for the pods that an owner creates anew: pods of other owners do not hinder them."""
    world.pod("busy", 8, "n1")
    owner = "default/ReplicaSet/owner/uid-owner"
    take(world, hold(world, "big/move-0.uid/" + owner, {"n0": 2}, WALL - 60, WALL + 600, owner=owner))
    world.pod("full", 6, "n0")
    wait(world, "large", 2, 8, 900)  # the head
    wait(world, "older", 1, 2, 800)
    wait(world, "moved", 1, 2, 100, owner="ReplicaSet")
    started, waits = look(world)
    assert (started, seats(world, "moved")) == (["moved"], {"n0"})
    assert set(waits) == {"large", "older"}


def test_a_gang_that_fits_nowhere_else_waits_for_the_end_and_is_not_hopeless(world: World) -> None:
    held(world, 60, "n0", "n1")
    wait(world, "g", 2, 8, 100)
    assert look(world) == ([], {"g": ("head", "", 660.0)})
    wait(world, "huge", 3, 8, 200)
    assert look(world)[1]["huge"][0] == "never"


def running(world: World, node: str, gpus: int, seconds: float | None) -> None:
    """A pod that ends so many seconds from now; None: it states no end."""
    notes = {} if seconds is None else {"gpu-extender.io/duration": f"{int(seconds)}s"}
    world.pod(f"r-{node}", gpus, node, start=world.wall, annotations=notes)


@pytest.mark.parametrize(
    ("lasts", "start"),
    [
        ("30m", 600.0),  # it ends at 2400, and may be bound 30 s late
        ("2370s", 600.0),
        ("2371s", 6000.0),  # it would run into the date
        ("", 6000.0),
    ],
)
def test_the_start_of_the_head_counts_with_dates_that_lie_behind_it(world: World, lasts: str, start: float) -> None:
    """n0 has 8 GPUs for the head from 600 s on, and is held from 3000 to 6000 s."""
    running(world, "n0", 8, 600)
    running(world, "n1", 4, 2900)  # the head fits no better after it
    world.pod("daemon", 4, "n1")
    take(world, hold(world, "big", {"n0": 8}, WALL + 3000, WALL + 6000, namespaces=ML))
    wait(world, "head", 1, 8, 100, duration=lasts)
    assert look(world) == ([], {"head": ("head", "", start)})


def test_a_head_starts_at_the_stated_moment_and_not_before() -> None:
    """Random dates and pods that end as they state, one look after another: no start is later than the one stated
    first, as none is stated that a date would prevent."""
    for seed in range(40):
        dice, world = random.Random(seed), cluster(3)
        for node in ("n0", "n1", "n2"):
            running(world, node, 8, dice.randrange(100, 3000, 100))
        dates = [dice.randrange(500, 6000, 100) for _ in range(3)]
        take(world, *(
            hold(world, f"d{at}", {f"n{at}": 8}, WALL + since, WALL + since + 1000, namespaces=ML)
            for at, since in enumerate(dates)
        ))  # fmt: skip
        lasts = dice.randrange(100, 2000, 50)
        wait(world, "head", dice.choice((1, 2)), 8, 100, duration=f"{lasts}s")
        begun, stated = world.wall, look(world)[1]["head"][2]
        assert stated is not None
        earliest = _earliest(world, len(world.cluster.placements.queued), lasts, dates)
        assert stated == earliest, seed
        world.now, world.wall = world.now + stated, begun + stated
        for pod in list(world.cluster.pods.values()):
            if pod.node and world.wall >= begun + float(pod.annotations["gpu-extender.io/duration"][:-1]):
                world.gone(pod.name)
        assert look(world)[0] == ["head"], seed


def _earliest(world: World, pods: int, lasts: float, dates: list[int]) -> float:
    """The slow twin: at each moment at which something ends, which nodes are free until the head has ended."""
    ends = {
        pod.node: float(pod.annotations["gpu-extender.io/duration"][:-1])
        for pod in world.cluster.pods.values() if pod.node
    }  # fmt: skip
    for at in sorted([*ends.values(), *(since + 1000.0 for since in dates)]):
        free = [
            node for number, node in enumerate(sorted(ends))
            if ends[node] <= at and (at + lasts + 30 <= dates[number] or at >= dates[number] + 1000)
        ]  # fmt: skip
        if len(free) >= pods:
            return at
    raise AssertionError
