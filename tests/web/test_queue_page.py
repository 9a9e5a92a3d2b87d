"""/debug/queue: gangs in order, queues and seats, in the shape that other programs rely on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from msgspec import structs

from extender.ask.pending import queue
from extender.objects.queueing import GATE, Domain
from extender.queue.backfill import Code
from extender.queue.report import Delay, QueueReport, StartDates, Waiting, Window
from extender.reservations.seats import Seat
from tests.queue.gangs import gang
from tests.world import WALL, World

KEYS = {
    *("gang", "source", "queue", "priority", "age_seconds", "pods", "min", "gpus", "position", "reason", "text"),
    *(
        "blocked_by",
        "earliest_start_seconds",
        "start",
        "domain",
        "left_devices",
        "not_modelled",
        "ways_out",
        "not_evicted",
    ),
}


class Reporting(NamedTuple):
    """As much of the queue's controller as the page reads."""

    report: QueueReport | None


def entry(name: str, waiting: int = 0) -> dict[str, Any]:
    counts = {"guaranteed_gpus": {}, "limit_gpus": {}, "used_gpus": {"H100": 2}}
    return {"name": name, "weight": 1.0, "share": 0.5, **counts, "waiting": waiting}


def waits(name: str, code: Code, *, blocked_by: str = "", start: float | None = None, **facts: Any) -> Waiting:
    return Waiting(gang(name, **facts), code, f"why {name} waits", blocked_by, start)


def world(report: QueueReport | None) -> World:
    made = World()
    made.connect(queue=Reporting(report))  # type: ignore[arg-type]
    return made


def page(world: World, query: str = "") -> Any:
    return world.call(f"/debug/queue{query}", method="GET").json


@pytest.fixture
def filled() -> World:
    """Two gangs and a single pod that wait, one that is not complete, in two queues."""
    listed = (
        waits("first", "head", pods=4, gpus=8, domain=Domain("rack", True), created=WALL - 90.04, start=WALL + 30.26),
        waits("part", "incomplete", pods=1, minimum=2, size=None, queue="lab"),
        waits("second", "delays", pods=2, blocked_by="default/first", queue="lab", start=WALL - 5),
    )
    return world(QueueReport(WALL, listed, (entry("default", 1), entry("lab", 2))))


def seats(world: World, gang_name: str, *pods: str, node: str = "n1") -> None:
    amounts = (0,) * len(world.cluster.resources)
    for name in pods:
        seat = Seat(f"uid-{name}", f"default/{name}", gang_name, node, amounts, 0, 0, world.now)
        world.verbs.claims.seats.reserve([seat])


def test_its_shape(filled: World) -> None:
    seats(filled, "job:default/old", "a", "b")
    shown = page(filled)
    lists = ["queues", "waiting", "incomplete", "releasing", "advance_reservations"]
    assert list(shown) == ["apiVersion", "kind", "warnings", *lists]
    assert (shown["apiVersion"], shown["kind"], shown["warnings"]) == ("gpu-extender.io/v1", "Queue", [])
    assert shown["queues"] == [entry("default", 1), entry("lab", 2)]
    assert [set(one) for one in [*shown["waiting"], *shown["incomplete"]]] == [KEYS] * 3
    first = {key: shown["waiting"][0][key] for key in KEYS - {"text", "ways_out", "source"}}
    assert first == {
        "gang": "default/first",
        "queue": "default",
        "priority": 0,
        "age_seconds": 90.0,
        "pods": 4,
        "min": 4,
        "gpus": 32,
        "position": 1,
        "reason": "head",
        "blocked_by": None,
        "earliest_start_seconds": 30.3,
        "start": {"text": "latest 08:01 UTC if declared durations are used up", "windows": [], "moved": None},
        "domain": {"level": "rack", "required": True},
        "left_devices": [],
        "not_modelled": [],
        "not_evicted": None,
    }
    assert shown["releasing"] == [
        {
            "gang": "default/old",
            "source": "job",
            "awaits": [],
            "seats": [{"pod": "default/a", "node": "n1"}, {"pod": "default/b", "node": "n1"}],
        }
    ]


STARTS = (
    "expected 08:05 UTC; 80 % window 08:00 to 08:12; latest 08:01 if declared durations are used up; "
    "it moved 2 min later at 07:59 because node n3 left"
)


def dated(report: QueueReport) -> QueueReport:
    """The report with the date of its first gang, which moved; that of the others is not known."""
    first, *others = (waiting.gang.ref.text for waiting in report.waiting)
    windows = [Window(percent, WALL + 9 - percent / 10, WALL + 600 + percent) for percent in (50, 80, 95)]
    dates = StartDates(windows, move=Delay(120.0, WALL - 60, "node n3 left"))
    unknown = StartDates(why="no gang has ended yet")
    return replace(report, dates={first: dates, **dict.fromkeys(others, unknown)})


def test_when_gangs_start(filled: World) -> None:
    assert filled.outside.queue is not None
    assert filled.outside.queue.report is not None
    report = dated(filled.outside.queue.report)
    shown = world(report)
    first, second = page(shown)["waiting"]
    assert first["start"]["text"] == STARTS
    assert first["start"] == report.dates["gpu-extender:default/first"]._replace(latest=WALL + 30.3).as_json(WALL)
    ending = "it starts once the pods that are ending now have terminated"
    assert second["start"] == {"text": ending, "windows": [], "moved": None}
    drawn = shown.call("/queue.json", method="GET").json["next_starts"]
    assert [(one["gang"], one["is_pod"], one["text"]) for one in drawn["windows"]] == [("default/first", False, STARTS)]
    assert [(window["percent"], window["end"] - WALL) for window in drawn["windows"][0]["windows"]] == [
        (50, 650.0), (80, 680.0), (95, 695.0)
    ]  # fmt: skip
    html = shown.call("/queue", method="GET").body.decode()
    assert html.count(STARTS) == 2  # in the table, and beside what is drawn
    assert html.count('class="window"') == 3


def test_when_pods_that_wait_start(filled: World) -> None:
    assert filled.outside.queue is not None
    assert filled.outside.queue.report is not None
    report = dated(filled.outside.queue.report)
    shown = world(report)
    shown.node("n1", 8)
    pod = shown.pod("first-0", 8, spec={"schedulingGates": [{"name": GATE}]})
    assert pod["metadata"]["uid"] == report.waiting[0].gang.pods[0].uid
    shown.pod("other", 99)
    starts = {one["pod"]: one["start"] for one in shown.call("/waiting.json", method="GET").json["pods"]}
    assert starts == {"default/first-0": STARTS, "default/other": ""}
    assert STARTS in shown.call("/waiting", method="GET").body.decode()
    explained = shown.call("/debug/explain?pod=default/first-0", method="GET").json
    assert STARTS in explained["sentence"]


def test_the_order_and_what_is_not_known(filled: World) -> None:
    shown = page(filled)
    assert [(one["gang"], one["position"]) for one in shown["waiting"]] == [("default/first", 1), ("default/second", 3)]
    second, (part,) = shown["waiting"][1], shown["incomplete"]
    assert (second["blocked_by"], second["domain"]) == ("default/first", None)
    assert second["earliest_start_seconds"] == 0.0  # a moment that has passed is now
    assert (part["position"], part["pods"], part["min"], part["earliest_start_seconds"]) == (2, 1, 2, None)


def test_what_its_placement_does_not_look_at() -> None:
    one = gang("g", 2)
    pods = (one.pods[0], structs.replace(one.pods[1], volumes=True, hard_spread=True))
    report = QueueReport(WALL, (Waiting(replace(one, pods=pods), "place", "no place"),))
    assert page(world(report))["waiting"][0]["not_modelled"] == ["topology spread constraints", "volumes"]


def test_one_queue(filled: World) -> None:
    filled.pod("a", 1, labels={"gpu-extender.io/queue": "lab"})
    filled.pod("b", 1)
    seats(filled, "pod:default/a", "a")
    seats(filled, "pod:default/b", "b")
    seats(filled, "pod:default/unknown", "unknown")
    shown = page(filled, "?queue=lab")
    assert [one["name"] for one in shown["queues"]] == ["lab"]
    assert [one["gang"] for one in shown["waiting"] + shown["incomplete"]] == ["default/second", "default/part"]
    assert [one["position"] for one in shown["waiting"]] == [3]  # its position is that among all
    assert [one["gang"] for one in shown["releasing"]] == ["default/a"]
    assert len(page(filled)["releasing"]) == 3
    nothing = page(filled, "?queue=nobody")
    assert [nothing[name] for name in ("queues", "waiting", "incomplete", "releasing")] == [[]] * 4


@pytest.mark.parametrize("queue", ["off", "another holds the Lease"])
def test_a_server_that_does_not_lead_says_so(queue: str) -> None:
    """It knows the seats: it counts them."""
    made = World() if queue == "off" else world(None)
    seats(made, "job:default/g", "a")
    shown = page(made)
    assert [one["code"] for one in shown["warnings"]] == ["not-the-leader"]
    assert (shown["queues"], shown["waiting"], shown["incomplete"]) == ([], [], [])
    assert [one["gang"] for one in shown["releasing"]] == ["default/g"]


def test_a_long_queue() -> None:
    many = 1500
    listed = tuple(waits(f"g{i:04}", "place", queue=f"q{i % 2}") for i in range(many))
    report = QueueReport(WALL, listed, tuple(entry(f"q{i:04}") for i in range(many)))
    made = world(report)
    seats(made, "job:default/big", *(f"p{i:04}" for i in range(many)))
    seats(made, "job:default/small", "one")
    shown = queue(report, made.verbs.claims, made.cluster, None)
    assert [len(shown[name]) for name in ("queues", "waiting")] == [many, many]
    assert [(one["gang"], len(one["seats"])) for one in shown["releasing"]] == [
        ("default/big", many),
        ("default/small", 1),
    ]
