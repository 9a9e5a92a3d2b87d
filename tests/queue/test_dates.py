"""What people read of when a gang starts: the sentence, its moves, and what moved it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from extender.cluster.slices import finish
from extender.queue.gang import WaitingGang
from extender.queue.report import MOST_CHANGES, DateBook, Delay, DelayCauses, StartDates, Window
from tests.queue.gangs import gang

NOON = 1_800_014_400.0  # 2027-01-15 12:00 UTC


def windows(begin: float, end: float) -> list[Window]:
    """Of minutes after noon, those of 50 and 95 % about that of 80 %."""
    middle = (begin + end) / 2
    return [
        Window(percent, NOON + 60 * (middle - (middle - begin) * part), NOON + 60 * (middle + (end - middle) * part))
        for percent, part in ((50, 0.5), (80, 1.0), (95, 2.0))
    ]


@pytest.fixture
def case() -> Case:
    return Case()


@pytest.mark.parametrize(
    ("dates", "text"),
    [
        (StartDates(), "its start is not known"),
        (StartDates(why="no gang has ended yet"), "its start is not known: no gang has ended yet"),
        (StartDates(windows(130, 170)), "expected 14:30 UTC; 80 % window 14:10 to 14:50"),
        (StartDates(windows(10.2, 10.4)), "expected 12:10 UTC; 80 % window 12:10 to 12:11"),
        (StartDates(windows(-30, 20)), "expected 12:00 UTC; 80 % window 12:00 to 12:20"),
        (StartDates(windows(600, 900)), "expected 16 Jan 00:30 UTC; 80 % window 22:00 to 16 Jan 03:00"),
        (StartDates(latest=NOON + 7_201), "latest 14:01 UTC if declared durations are used up"),
        (StartDates(latest=NOON), "it starts once the pods that are ending now have terminated"),
        (
            StartDates(windows(130, 170), latest=NOON + 30_600),
            "expected 14:30 UTC; 80 % window 14:10 to 14:50; latest 20:30 if declared durations are used up",
        ),
        (
            StartDates(why="no gang has ended yet", latest=NOON + 30_600),
            "its start is not known: no gang has ended yet; latest 20:30 UTC if declared durations are used up",
        ),
        (
            StartDates(windows(130, 170), move=Delay(1200.0, NOON - 1800.0, "node n3 left")),
            "expected 14:30 UTC; 80 % window 14:10 to 14:50; it moved 20 min later at 11:30 because node n3 left",
        ),
        (
            StartDates(windows(130, 170), move=Delay(80.0, NOON, "")),
            "expected 14:30 UTC; 80 % window 14:10 to 14:50; it moved 1 min later at 12:00, and it is not known why",
        ),
    ],
)
def test_the_sentence(dates: StartDates, text: str) -> None:
    assert dates.text(NOON) == text


def test_the_json_form() -> None:
    dates = StartDates(windows(130, 170), move=Delay(1200.0, NOON - 1800.0, "node n3 left"))
    assert dates.as_json(NOON) == {
        "text": dates.text(NOON),
        "windows": [
            {"percent": 50, "from_seconds": 8400.0, "until_seconds": 9600.0},
            {"percent": 80, "from_seconds": 7800.0, "until_seconds": 10200.0},
            {"percent": 95, "from_seconds": 6600.0, "until_seconds": 11400.0},
        ],
        "moved": {"seconds": 1200.0, "age_seconds": 1800.0, "why": "node n3 left"},
    }
    assert StartDates().as_json(NOON) == {"text": "its start is not known", "windows": [], "moved": None}


A, B = gang("a"), gang("b")


class Case:
    """A date book that is told once a minute."""

    def __init__(self) -> None:
        self.book, self.now = DateBook(), NOON

    def told(
        self,
        begin: float,
        end: float,
        *,
        order: Sequence[WaitingGang] = (B,),
        nodes: Iterable[str] = ("n1", "n2"),
        overdue: Iterable[str] = (),
    ) -> Any:
        """The move of gang b, whose window is this one from now on: (minutes, minute when stated, why)."""
        self.now += 60
        self.book.changes.look(order, frozenset(nodes), overdue, self.now)
        stated = finish(self.book.state(order, {B.ref: windows(begin, end)}, self.now))
        assert list(stated) == [B.ref.text]
        move = stated[B.ref.text].move
        return None if move is None else (move.seconds / 60, (move.at - NOON) / 60, move.why)


def test_a_date_stands_while_the_median_is_within_it(case: Case) -> None:
    assert case.told(10, 20) is None
    assert case.told(12, 26) is None
    assert case.told(15, 24) is None
    assert case.told(16, 28) == (8, 4, "")  # of the date, 20
    assert case.told(17, 29) == (8, 4, "")  # the date is 28 by now
    assert case.told(5, 9) == (8, 4, "")
    assert case.told(16, 28) == (19, 7, "")  # of 9, which was stated last


@pytest.mark.parametrize("starts", [False, True])
def test_a_gang_that_comes_before_it(case: Case, *, starts: bool) -> None:
    first = gang("a", priority=5)
    case.told(10, 20)
    if starts:
        case.told(10, 20, order=(first, B))
    order = (B,) if starts else (first, B)
    assert case.told(40, 50, order=order) == (30, 3 if starts else 2, "gang default/a of higher priority came")


def test_a_gang_of_equal_priority_that_comes_before_it(case: Case) -> None:
    case.told(10, 20)
    assert case.told(40, 50, order=(A, B)) == (30, 2, "gang default/a came, which is before it")


def test_what_was_so_when_the_date_was_stated_is_no_cause(case: Case) -> None:
    case.told(10, 20, order=(A, B), overdue=["default/x"], nodes=["n1"])
    assert case.told(40, 50, order=(A, B), overdue=["default/x"], nodes=["n1"]) == (30, 2, "")


def test_a_gang_behind_it_is_no_cause(case: Case) -> None:
    case.told(10, 20)
    case.told(10, 20, order=(B, A))
    assert case.told(40, 50, order=(B, A)) == (30, 3, "")
    case.told(40, 50)  # a starts
    assert case.told(80, 90) == (40, 5, "")


def test_a_node_that_leaves(case: Case) -> None:
    case.told(10, 20, nodes=["n1", "n2", "n3"])
    case.told(10, 20, nodes=["n1", "n2"], overdue=["default/x"])
    assert case.told(40, 50) == (30, 3, "node n3 left")
    assert case.told(80, 90, nodes=[]) == (40, 4, "node n2 and others left")


def test_a_gang_that_runs_longer(case: Case) -> None:
    case.told(10, 20)
    case.told(10, 20, overdue=["default/x"])
    assert case.told(40, 50, overdue=["default/x", "default/y"]) == (30, 3, "default/x runs longer than was expected")
    assert case.told(80, 90, overdue=["default/x"]) == (40, 4, "")


def test_a_gang_without_a_window_has_no_date() -> None:
    book = DateBook()
    book.changes.look([A, B], frozenset(), (), NOON)
    assert list(finish(book.state([A, B], {A.ref: windows(1, 2), B.ref: ()}, NOON))) == [A.ref.text]


def test_what_is_remembered_is_bounded() -> None:
    changes = DelayCauses()
    many = [gang(f"g{i}") for i in range(MOST_CHANGES + 10)]
    changes.look(many, frozenset(map(str, range(MOST_CHANGES + 10))), (), NOON)
    changes.look([], frozenset(), (), NOON + 1)
    assert len(changes._started) == len(changes._left) == MOST_CHANGES
