"""What a preemption leaves behind: one log line, its record, and counts with units."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from extender.act.reservations import ReservationStore
from extender.preemption.certificate import how_many
from extender.preemption.search import VictimSearch
from extender.settings import Settings
from tests.world import World, logged


def world(**settings: Any) -> World:
    """Two full nodes; a pod of n1 costs less. Each victim holds 4 GPUs for its restart time."""
    made = World(Settings.model_validate(settings))
    for node, price in (("n1", 10), ("n2", 20)):
        made.node(node, 8)
        for i in range(2):
            notes = {"gpu-extender.io/restart-seconds": str(price + i)}
            made.pod(f"{node}-w{i}", 4, node, priority=1, start=made.wall, annotations=notes)
    return made


def test_one_line_tells_the_plan_its_victims_its_cost_and_whether_it_is_proved() -> None:
    play = world()
    urgent = play.pod("urgent", 4, priority=9)
    with logged() as lines:
        assert play.preempt(urgent, {"n1": ["n1-w1"], "n2": ["n2-w0"]}) == {"n1": ["n1-w0"]}
    [line] = [line for line in lines if line["event"] == "decided"]
    [plan] = play.verbs.reservations.all()
    assert (line["verb"], line["result"], line["pod"], line["node"]) == ("preempt", "evict", "default/urgent", "n1")
    assert (line["candidates"], line["plan"]) == (2, plan.id)
    assert (line["victims"], line["evict"]) == (1, ["default/n1-w0"])
    assert line["cost"]["work_lost_gpu_seconds"] == 40  # 4 GPUs x 10 s
    assert line["cost"]["victims"] == 1
    assert line["proved"] is True
    assert play.decision(pod="default/urgent")["candidates"] == 2


def test_a_plan_that_stands_is_told_by_what_is_known_of_it() -> None:
    play = world()
    urgent = play.pod("urgent", 4, priority=9)
    play.preempt(urgent, {"n1": ["n1-w1"]})
    with logged() as lines:
        assert play.preempt(urgent, {"n1": ["n1-w1"], "n2": ["n2-w0"]}) == {"n1": ["n1-w0"]}
    [line] = [line for line in lines if line["event"] == "decided"]
    assert (line["result"], line["candidates"], line["victims"]) == ("standing-plan", 2, 1)
    assert line["evict"] == ["uid-n1-w0"]
    assert "cost" not in line
    assert "proved" not in line  # nothing was searched


def test_many_victims_make_no_long_line() -> None:
    play = World()
    play.node("n1", 64)
    for i in range(64):
        play.pod(f"w{i}", 1, "n1", priority=1, start=play.wall)
    urgent = play.pod("urgent", 64, priority=9)
    with logged() as lines:
        play.preempt(urgent, {"n1": [f"w{i}" for i in range(64)]})
    [line] = [line for line in lines if line["event"] == "decided"]
    assert (line["victims"], len(line["evict"])) == (64, 20)


def test_filter_says_nothing_of_victims() -> None:
    play = world()
    with logged() as lines:
        play.filter(play.pod("urgent", 4, priority=9))
    [line] = [line for line in lines if line["event"] == "decided"]
    assert line["candidates"] == 2
    assert not {"victims", "evict", "cost", "proved"} & line.keys()


def count(play: World, name: str, **labels: str) -> float:
    return play.metric(name, by="kube-scheduler", **labels)


def test_victims_work_lost_and_searches_are_counted() -> None:
    play = world()
    urgent = play.pod("urgent", 4, priority=9)
    for _ in range(2):  # the second answer repeats the first: nobody else goes, and nothing is searched
        play.preempt(urgent, {"n1": ["n1-w1"], "n2": ["n2-w0"]})
    large = play.pod("large", 8, priority=9)
    play.preempt(large, {"n2": ["n2-w0", "n2-w1"]})
    assert count(play, "preemption_victims_count") == 2
    assert count(play, "preemption_victims_sum") == 3
    assert count(play, "preemption_victims_bucket", le="1.0") == 1
    assert count(play, "preemption_work_lost_gpu_seconds_sum") == 40 + 4 * 20 + 4 * 21
    assert count(play, "preemption_work_lost_gpu_seconds_bucket", le="60.0") == 1
    assert play.metric("victim_searches_total", result="evict", proved="true") == 2
    assert play.metric("victim_search_duration_seconds_count") == 2


def test_a_search_that_finds_nothing_counts_as_none() -> None:
    play = world()
    play.preempt(play.pod("huge", 9, priority=9), {"n1": ["n1-w0"]})
    play.preempt(play.pod("lowest", 8, priority=0), {"n1": ["n1-w0"]})
    assert play.metric("victim_searches_total", result="none", proved="true") == 2
    assert count(play, "preemption_victims_count") == 0


@pytest.mark.parametrize("offered", ["n1-w1", ""])
def test_a_search_whose_budget_ends_is_counted_and_told(offered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = VictimSearch.find
    monkeypatch.setattr(VictimSearch, "find", lambda *args, **more: replace(find(*args, **more), proved=False))
    play = world()
    with logged() as lines:
        play.preempt(play.pod("urgent", 4 if offered else 9, priority=9), {"n1": [offered or "n1-w0"]})
    [line] = [line for line in lines if line["event"] == "decided"]
    assert line["proved"] is False
    result = "evict" if offered else "none"
    assert line["result"] == result
    assert play.metric("victim_searches_total", result=result, proved="false") == 1
    if not offered:
        why = "before the search budget ended no eviction was found that makes the pod fit on a node that was offered"
        assert line["why"] == why


def test_without_the_cost_term_the_work_lost_is_unknown_and_not_zero() -> None:
    play = world(costs=["victims"])
    play.preempt(play.pod("urgent", 4, priority=9), {"n1": ["n1-w1"]})
    assert count(play, "preemption_victims_count") == 1
    assert count(play, "preemption_work_lost_gpu_seconds_count") == 0


def test_what_is_not_kept_counts_no_victims() -> None:
    class Away(ReservationStore):
        read_back = True

        def __init__(self) -> None:
            """It keeps nothing."""

        async def reserve(self, plan: Any, patience: float = 0.0) -> str:
            return "the API server is away"

    play = world()
    play.connect(keeper=Away())
    with logged() as lines:
        assert play.preempt(play.pod("urgent", 4, priority=9), {"n1": ["n1-w1"]}) == {}
    [line] = [line for line in lines if line["event"] == "decided"]
    assert line["result"] == "not-reserved"
    assert count(play, "preemption_victims_count") == 0
    assert play.metric("victim_searches_total", result="evict", proved="true") == 1


def test_thousands_of_pods_are_apart() -> None:
    assert [how_many(count) for count in (0, 1, 999, 1_000)] == ["0 pods", "1 pod", "999 pods", "1,000 pods"]
