"""In which order gangs are considered, with the arithmetic of the shares."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from extender.cluster.slices import finish
from extender.queue.gang import WaitingGang
from extender.queue.usage import behind, dominant_share, fair_shares, in_turn, order, response
from extender.settings import QueueLimits
from tests.queue.gangs import gang
from tests.world import WALL

SHARES = {"busy": 0.5, "light": 0.25}
# name -> what counts; the expected order is that of the table
ORDER: dict[str, list[WaitingGang]] = {
    "priority before share": [gang("a", priority=10, queue="busy"), gang("b", priority=5, queue="light")],
    "share before age": [gang("a", queue="light", created=WALL), gang("b", queue="busy", created=WALL - 100)],
    "a queue that holds nothing": [gang("a", queue="new"), gang("b", queue="light")],
    "age before ref": [gang("b", created=WALL - 10), gang("a", created=WALL)],
    "ref": [gang("a"), gang("b"), gang("c")],
    "patience before share": [gang("a", queue="busy", created=WALL - 1000), gang("b", queue="light")],
    "patience not before priority": [
        gang("a", priority=1, queue="busy"), gang("b", queue="light", created=WALL - 5000),
    ],
    "of two that waited so long the older one": [
        gang("a", queue="busy", created=WALL - 2000), gang("b", queue="light", created=WALL - 1000),
    ],
}  # fmt: skip


@pytest.mark.parametrize("gangs", ORDER.values(), ids=ORDER)
def test_order(gangs: list[WaitingGang]) -> None:
    for given in permutations(gangs):
        assert finish(order(given, SHARES, now=WALL, patience=1000.0)) == gangs


def test_the_dominant_share_is_that_of_the_scarcest_model() -> None:
    capacity = {"A100": 80, "H100": 16}
    assert dominant_share({"A100": 20, "H100": 8}, capacity) == 0.5  # 20/80 = 0.25, 8/16 = 0.5
    assert dominant_share({}, capacity) == 0.0
    assert dominant_share({"gone": 8}, capacity) == 0.0  # no such GPU is left


def test_shares_are_divided_by_the_weight() -> None:
    held = {"a": {"A100": 40}, "b": {"A100": 20, "H100": 4}, "c": {}}
    capacity = {"A100": 80, "H100": 16}
    # a: 40/80 = 0.5, / 2 = 0.25; b: 20/80 = 4/16 = 0.25, weight 1
    assert fair_shares(held, capacity, {"a": QueueLimits(weight=2.0)}) == {"a": 0.25, "b": 0.25, "c": 0.0}


def test_three_queues_share_by_their_weights() -> None:
    """12 GPUs, weights 1, 2 and 3, gangs of one GPU in each: they get 2, 4 and 6."""
    rules = {"a": QueueLimits(weight=1.0), "b": QueueLimits(weight=2.0), "c": QueueLimits(weight=3.0)}
    held = {queue: {"m": 0} for queue in rules}
    waiting = [gang(f"{queue}{i:02}", queue=queue) for queue in rules for i in range(12)]
    for _ in range(12):
        first = finish(order(waiting, fair_shares(held, {"m": 12}, rules), now=WALL, patience=1e9))[0]
        waiting.remove(first)
        held[first.queue]["m"] += 1
    assert held == {"a": {"m": 2}, "b": {"m": 4}, "c": {"m": 6}}


def test_the_response_of_gangs_behind_the_head() -> None:
    """Waited / run time x sqrt(GPUs): 600 / 300 x 2 = 4; 600 / 60 x 1 = 10, as run times below 60 s count as 60 s."""
    created = WALL - 600
    gangs = {
        "four": gang("four", 1, 4, seconds=300.0, created=created),
        "one": gang("one", 1, 1, seconds=10.0, created=created),
        "plain": gang("plain", 8, 8, created=created),
        "young": gang("young", 8, 8, seconds=300.0, created=WALL + 5),  # by the clock of another machine
        "urgent": gang("urgent", 1, 1, priority=1),
    }
    found = {name: response(one, WALL) for name, one in gangs.items()}
    assert found == {"four": 4.0, "one": 10.0, "plain": 0.0, "young": 0.0, "urgent": 0.0}
    in_turn = finish(behind(gangs.values(), WALL))
    assert [one.ref.name for one in in_turn] == ["urgent", "one", "four", "plain", "young"]


@pytest.mark.parametrize("seed", range(20))
def test_gangs_are_asked_for_as_if_the_order_were_made_anew_after_each_start(seed: int) -> None:
    rng = random.Random(seed)
    held = {queue: {"m": rng.randrange(4)} for queue in "abc"}
    waiting = [
        gang(f"{n:02}", queue=rng.choice("abc"), priority=rng.randrange(2), created=WALL - rng.randrange(120))
        for n in range(40)
    ]

    def shares() -> dict[str, float]:
        return fair_shares(held, {"m": 64}, {})

    static = finish(order(waiting, shares(), now=WALL, patience=100.0))
    for asked in finish(in_turn(static, lambda queue: shares()[queue], now=WALL, patience=100.0)):
        assert asked == finish(order(waiting, shares(), now=WALL, patience=100.0))[0]
        waiting.remove(asked)
        if rng.random() < 0.7:
            held[asked.queue]["m"] += rng.randrange(1, 5)
    assert not waiting
