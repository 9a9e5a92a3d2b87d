"""The seats of a gang as text: the same after reading, and nothing that is invalid is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.act.queue.seat_store import MOST_TEXT, SeatEntries, key
from extender.objects.stored_texts import Damaged, Newer
from extender.reservations.seats import Seat

RESOURCES = ("cpu", "memory", "pods", "nvidia.com/gpu")
ENTRIES = SeatEntries(RESOURCES, lambda: 1_000_000.0)
WORKER = Seat("u1", "d/a", "job:d/g", "n1", (1000, 5, 1, 4), 0b1111, 5, 10.0)
SEATS = [WORKER, WORKER._replace(uid="u2", node="n2"), WORKER._replace(uid="u3", amounts=(1000, 0, 1, 0), gpus=0)]


def test_what_is_written_is_read_back() -> None:
    text = ENTRIES.text(SEATS)
    assert ENTRIES.seats(text, 20.0) == SEATS
    assert json.loads(text)["amounts"] == [
        {"cpu": 1000, "memory": 5, "pods": 1, "nvidia.com/gpu": 4},
        {"cpu": 1000, "pods": 1},
    ]
    assert ENTRIES.text(ENTRIES.seats(text, 20.0)) == text  # written in the same words: nothing is written again


def test_what_seats_wait_for_is_written_by_node() -> None:
    first = SEATS[0]._replace(awaits=("v1", "v2"))
    seats = [first, SEATS[1], first._replace(uid="u3")]
    text = ENTRIES.text(seats)
    assert json.loads(text)["awaits"] == {"n1": ["v1", "v2"]}
    assert ENTRIES.seats(text, 20.0) == seats
    assert "awaits" not in json.loads(ENTRIES.text(SEATS)), "an instance of before this field reads it"


def test_other_resources_are_written_beside_the_amounts() -> None:
    seats = [SEATS[0], SEATS[0]._replace(uid="u4", others=(("efa", 4), ("ephemeral-storage", 2**40)))]
    text = ENTRIES.text(seats)
    assert json.loads(text)["others"] == [{}, {"efa": 4, "ephemeral-storage": 2**40}]
    assert ENTRIES.seats(text, 20.0) == seats
    assert json.loads(text)["format"] == 2, "an instance of before this field leaves it as it is"
    plain = json.loads(ENTRIES.text(SEATS))
    assert plain["format"] == 1, "an instance of before this field reads it"
    assert "others" not in plain


def test_another_clock_may_be_ahead() -> None:
    assert {seat.at for seat in ENTRIES.seats(ENTRIES.text(SEATS), 3.0)} == {3.0}


def test_a_thousand_seats_are_small() -> None:
    seats = [WORKER._replace(uid=f"{i:036}", pod=f"team/worker-{i}", node=f"node-{i}") for i in range(1000)]
    assert len(ENTRIES.text(seats)) < 120_000


def test_the_key_is_one_of_a_configmap() -> None:
    assert key("job:team/x") == key("job:team/x") != key("job:team/y")
    assert key("ours:d/ä/..").isalnum()


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(ENTRIES.text(SEATS)), **fields})


SEAT = ["u", "d/a", "n", 0, 0, 0]
INVALID = {
    "not JSON": "{",
    "no object": "[]",
    "another format": changed(format=3),
    "an unknown field": changed(more=1),
    "a resource that is not known": changed(amounts=[{"example.com/x": 1}]),
    "an amount below 0": changed(amounts=[{"cpu": -1}]),
    "other resources of some pods alone": changed(others=[{}, {}, {}, {}, {}]),
    "no amounts of that number": changed(seats=[[*SEAT[:4], 7, 0]]),
    "a pod with two seats": changed(seats=[SEAT, SEAT]),
    "a mask of 17 GPUs": changed(seats=[["u", "d/a", "n", 2**16, 0, 0]]),
    "no node": changed(seats=[["u", "d/a", "", 0, 0, 0]]),
    "a seat that is too short": changed(seats=[["u"]]),
    "a time of no clock": changed(at=-1),
    "too long": '"' + "x" * MOST_TEXT + '"',
    "nested too deep": "[" * 5000,
}


@pytest.mark.parametrize("why", INVALID)
def test_what_is_invalid(why: str) -> None:
    with pytest.raises(Damaged):
        ENTRIES.seats(INVALID[why], 20.0)


@pytest.mark.parametrize(
    ("text", "newer"),
    [
        (changed(format=3), True),
        (changed(format=3, more=1), True),
        ('{"format": 3}', True),
        (changed(format=0), False),
        (changed(format="2"), False),
        (changed(format=True), False),
        (changed(format=1, more=1), False),
        ("{}", False),
    ],
)
def test_which_entries_are_of_a_version_to_come(text: str, newer: bool) -> None:
    with pytest.raises(Damaged) as raised:
        ENTRIES.seats(text, 20.0)
    assert isinstance(raised.value, Newer) == newer
