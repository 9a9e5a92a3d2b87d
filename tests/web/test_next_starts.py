"""What starts and ends next, by rack: by hand over small clusters, and the head over the scene."""

from __future__ import annotations

import random
from typing import Any

import pytest

from extender.objects.queueing import duration_of
from extender.reservations.reservations import Reservation
from extender.reservations.seats import Seat
from extender.web import queue_page as page
from tests.queue.test_plan import cluster, wait
from tests.reservations.test_advance import hold, take
from tests.web.page.scene import RACK, scene, with_queue
from tests.world import WALL, World

DURATION = "gpu-extender.io/duration"
HOUR = 3_600.0


def shown(world: World) -> Any:
    return world.call("/queue.json", method="GET").json["next_starts"]


def bars(world: World) -> dict[str, list[tuple[Any, ...]]]:
    """(kind, name, GPUs, nodes, begin, end) of each rack; times as seconds from now."""
    return {
        lane["rack"]: [
            (
                bar["kind"], bar["name"], bar["gpus"], bar["nodes"],
                *(None if bar[key] is None else bar[key] - WALL for key in ("begin", "end")),
            )
            for bar in lane["bars"]
        ]
        for lane in shown(world)["lanes"]
    }  # fmt: skip


def runs(world: World, name: str, gpus: int, node: str, hours: float | None, gang: str = "") -> None:
    notes = {} if hours is None else {DURATION: f"{int(hours * 60)}m"}
    labels = {"gpu-extender.io/gang": gang} if gang else {}
    world.pod(name, gpus, node, start=WALL - HOUR, annotations=notes, labels=labels)


def two_racks() -> World:
    world = World()
    for n in range(4):
        world.node(f"n{n}", 8, labels={RACK: f"r{n // 2}"})
    return world


def seat(world: World, pod: str, gang: str, node: str, gpus: int, awaits: tuple[str, ...] = ()) -> None:
    amounts = [0] * len(world.cluster.resources)
    amounts[3] = gpus
    world.verbs.claims.seats.reserve(
        [Seat(f"uid-{pod}", f"default/{pod}", gang, node, tuple(amounts), 0, 0, world.now, awaits=awaits)]
    )


def test_nothing_is_known() -> None:
    assert shown(two_racks())["lanes"] == []
    world = two_racks()
    runs(world, "a", 2, "n0", None)
    assert shown(world)["lanes"] == []


def test_ends_of_one_gang_at_one_time_are_one_bar() -> None:
    world = two_racks()
    for n in range(3):
        runs(world, f"g{n}", 2, f"n{n}", 3, "g")
    runs(world, "single", 1, "n0", 2)
    runs(world, "open", 4, "n1", None)
    assert bars(world) == {
        "r0": [
            ("ends", "default/single", 1, 1, 0.0, HOUR),
            ("ends", "default/g", 4, 2, 0.0, 2 * HOUR),
        ],
        "r1": [("ends", "default/g", 2, 1, 0.0, 2 * HOUR)],
    }
    assert {lane["rack"]: lane["unstated_gpus"] for lane in shown(world)["lanes"]} == {"r0": 4, "r1": 0}


def test_gpus_of_nodes_that_take_no_pods_are_named() -> None:
    """The fleet counts them apart."""
    world = two_racks()
    runs(world, "single", 1, "n0", 2)
    runs(world, "open", 4, "n1", None)
    world.node("n1", 8, labels={RACK: "r0"}, unschedulable=True)
    [lane] = shown(world)["lanes"]
    assert (lane["unstated_gpus"], lane["gpus_of_closed_nodes"]) == (4, 4)
    text = world.call("/queue", method="GET", accept="text/html").body.decode()
    assert "(4 of the GPUs in use are on nodes that take no pods)" in text


def test_seats_and_reservations_come_first() -> None:
    world = two_racks()
    runs(world, "early", 1, "n2", 1.5)
    world.pod("s0", 4, annotations={DURATION: "2h"})
    world.pod("s1", 2)
    world.pod("waits", 2)
    seat(world, "s0", "job:default/g", "n1", 4)
    seat(world, "s1", "pod:default/s1", "n1", 2, awaits=("uid-early",))
    amounts = (0, 0, 0, 2, *(0,) * (len(world.cluster.resources) - 4))
    world.verbs.claims.reservations.add(Reservation("uid-waits", "n0", (), amounts, 0, world.now, pod="default/waits"))
    assert bars(world) == {
        "r0": [
            ("starts", "default/g", 4, 1, 0.0, 2 * HOUR),
            ("starts", "default/s1", 2, 1, None, None),
            ("reserved", "default/waits", 2, 1, None, None),
        ],
        "r1": [("ends", "default/early", 1, 1, 0.0, 0.5 * HOUR)],
    }
    text = world.call("/queue", method="GET", accept="text/html").body.decode()
    for sentence in ("starts now, until 10:00", "starts when evicted pods have ended", "takes them once it is bound"):
        assert sentence in text


def test_the_head_and_what_it_waits_for() -> None:
    world = scene()
    answer = world.call("/queue.json", method="GET").json
    plan, first = answer["next_starts"], answer["waiting"][0]
    head = plan["head"]
    assert (head["gang"], first["reason"]) == (first["gang"], "head")
    assert head["start"] - WALL == pytest.approx(first["earliest_start_seconds"], abs=0.1)
    drawn = [bar for lane in plan["lanes"] for bar in lane["bars"] if bar["kind"] == "head"]
    assert sum(bar["gpus"] for bar in drawn) == first["gpus"]
    assert {bar["begin"] for bar in drawn} == {head["start"]}
    assert plan["at"] < head["start"] < plan["until"]
    awaited = [bar for lane in plan["lanes"] for bar in lane["bars"] if bar["awaited"]]
    assert awaited
    of_last = next(lane for lane in plan["lanes"] if any(bar["last_awaited"] for bar in lane["bars"]))
    ends = [bar["end"] for bar in of_last["bars"] if bar["awaited"]]
    assert ends == sorted(ends)
    assert of_last["awaited_left_out"] == 4
    assert all(bar["end"] <= head["start"] for bar in awaited)
    [last] = [bar for bar in awaited if bar["last_awaited"]]
    assert last["end"] == max(bar["end"] for bar in awaited) == pytest.approx(head["start"], abs=60)
    text = world.call("/queue", method="GET", accept="text/html").body.decode()
    assert text.count("expected 12:24, latest start 14:11, states no end") == 4  # two racks, twice
    assert head["limits"] == [{"model": "H100", "limit": 8, "held": 4, "ended": 4, "taken": 8}]
    assert "of the 4 that it holds now, all have ended by then, so the head may take 8" in text
    assert text.count("ends by 14:11, the last end that the head waits for") == 2  # in the drawing and in the table
    assert "latest start 14:11" in text
    assert "latest 14:11 if" in text
    assert f"{head['awaited']} pods on its nodes have to end first" in text


def test_a_preemption_is_drawn_until_its_victim_has_saved() -> None:
    world = scene()
    answer = world.call("/queue.json", method="GET").json
    [bar] = [bar for lane in answer["next_starts"]["lanes"] for bar in lane["bars"] if bar["kind"] == "reserved"]
    [reservation] = world.call("/preemptions.json", method="GET").json["reservations"]
    assert (bar["end"], bar["victims"]) == (reservation["saving_until"], len(reservation["victims_left"]))
    assert bar["end"] == WALL + 600
    text = world.call("/queue", method="GET", accept="text/html").body.decode()
    assert "takes them once its victim has saved its work, by 08:10:00 UTC, and terminated" in text


def test_each_stated_end_is_in_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a plain count over all pods, for random clusters."""
    monkeypatch.setattr(page, "MOST_BARS", 1_000)
    rng = random.Random(3)
    for _ in range(5):
        world = two_racks()
        for n in range(12):
            runs(world, f"p{n}", 1, f"n{rng.randrange(4)}", rng.choice((None, 1.5, 2, 30)), rng.choice(("", "a", "b")))
        pods = [pod for pod in world.cluster.pods.values() if duration_of(pod) is not None]
        expected: dict[tuple[str, float], int] = {}
        for pod in pods:
            key = f"r{int(pod.node[1]) // 2}", (duration_of(pod) or 0) - HOUR
            expected[key] = expected.get(key, 0) + 1
        counted: dict[tuple[str, float], int] = {}
        for rack, of_rack in bars(world).items():
            for _, _, gpus, _, _, end in of_rack:
                counted[rack, end] = counted.get((rack, end), 0) + gpus
        assert counted == expected


def test_long_lists_are_cut_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_BARS", 2)
    monkeypatch.setattr(page, "MOST_LANES", 1)
    world = two_racks()
    for n in range(8):
        runs(world, f"p{n}", 1, f"n{n % 4}", 2 + n)
    plan = shown(world)
    assert (len(plan["lanes"]), plan["lanes_left_out"]) == (1, 1)
    assert (len(plan["lanes"][0]["bars"]), plan["lanes"][0]["bars_left_out"]) == (2, 2)
    assert plan["until"] > plan["at"] == WALL


@pytest.mark.parametrize(("lasts", "start"), [("30m", 600.0), ("41m", 6000.0)])
def test_the_queue_the_page_and_explain_state_the_same_start_before_and_after_a_date(lasts: str, start: float) -> None:
    """n0 is free for the head from 600 s on, and held from 3000 to 6000 s."""
    world = cluster(2)
    world.pod("r", 8, "n0", start=world.wall, annotations={DURATION: "10m"})
    world.pod("daemon", 4, "n1")
    take(world, hold(world, "big", {"n0": 8}, WALL + 3000, WALL + 6000, namespaces=frozenset({"ml"})))
    wait(world, "head", 1, 8, 100, duration=lasts)
    answer = with_queue(world).call("/queue.json", method="GET").json
    (waiting,) = answer["waiting"]
    assert (waiting["earliest_start_seconds"], answer["next_starts"]["head"]["start"] - WALL) == (start, start)
    explained = world.call("/debug/explain?pod=default/head-0", method="GET").body.decode()
    assert waiting["start"]["text"].startswith("latest ")
    assert waiting["start"]["text"] in explained
