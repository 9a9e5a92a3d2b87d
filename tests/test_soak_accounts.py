"""The accounts of the long test: "outbid" and "node lost" are said only where that is what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.soak_accounts import AT_ONCE, OUTBID_EARLIER, Preemptor, Round, causes, follow, passed, preempted
from tests.e2e.trace import PlanStory, PodStory, Trace

ONE = Preemptor("one", 8, 1000, "0", uid="one", rounds=[Round(10.0, "a", ["v1", "v2"]), Round(20.0, "b", ["v3"])])


def told(*pods: PodStory, plans: tuple[PlanStory, ...] = (), marks: tuple[tuple[float, str], ...] = ()) -> Trace:
    trace = Trace.__new__(Trace)
    trace.pods, trace.plans, trace.marks = {pod.uid: pod for pod in pods}, list(plans), list(marks)
    trace.passed = {}
    return trace


def pod(uid: str, gpus: int, priority: int, **facts: Any) -> PodStory:
    return PodStory(uid, uid, gpus, priority, created=0.0, **facts)


HIGHER = pod("higher", 2, 2000, node="a", bound=15.0)


@pytest.mark.parametrize(
    ("trace", "cause"),
    [
        (told(), "unexplained"),
        (told(HIGHER), "outbid"),
        (told(pod("before", 2, 2000, node="a", bound=5.0)), "unexplained"),  # it was there when the plan was made
        (told(pod("gone", 2, 2000, node="a", bound=15.0, gone=18.0)), OUTBID_EARLIER),
        (told(pod("gone", 2, 1000, node="a", bound=15.0, gone=18.0)), "unexplained"),
        (told(pod("early", 2, 2000, node="a", bound=8.0, gone=9.0)), "unexplained"),
        (told(pod("elsewhere", 2, 2000, node="b", bound=15.0)), "unexplained"),
        (told(pod("equal", 2, 1000, node="a", bound=15.0)), "unexplained"),
        (told(HIGHER, pod("low", 4, 10, node="a", bound=15.0)), "unexplained"),  # it would not fit without the higher
        (told(HIGHER, pod("v1", 4, 10, node="a", bound=1.0)), "outbid"),  # its own victim, which was to go
        (told(pod("p", 2, 2000), plans=(PlanStory("p", "a", frozenset("x"), 2000, 2, 15.0),)), "outbid"),
        (told(pod("p", 2, 2000), plans=(PlanStory("p", "a", frozenset("x"), 2000, 2, 15.0, 18.0),)), "unexplained"),
        (told(marks=((15.0, "node a is lost"),)), "node lost"),
        (told(marks=((15.0, "node b is lost"),)), "unexplained"),
        (told(marks=((5.0, "node a is lost"),)), "unexplained"),
    ],
)
def test_a_cause_is_what_happened(trace: Trace, cause: str) -> None:
    assert causes(trace, ONE) == {cause: 1}


TWO = Preemptor("one", 2, 1000, "0", uid="one", rounds=[Round(10.0, "a", ["v1"]), Round(20.0, "b", ["v2"])])
EQUAL = PlanStory("equal", "a", frozenset({"x"}), 1000, 2, 9.0)


@pytest.mark.parametrize(
    ("pods", "cause"),
    [
        ([], "unexplained"),
        ([pod("higher", 1, 2000, node="a", bound=15.0)], "outbid"),  # it took a GPU of the equal pod
        ([pod("x", 2, 10, node="a", bound=1.0)], "unexplained"),  # what the equal pod waits for is held still
        ([pod("x", 2, 10, node="a", bound=1.0), pod("higher", 2, 2000, node="a", bound=15.0)], "outbid"),
    ],
)
def test_an_equal_pod_with_a_plan_on_the_node(pods: list[PodStory], cause: str) -> None:
    """kube-scheduler counts its nomination."""
    trace = told(pod("low", 4, 10, node="a", bound=1.0), pod("equal", 2, 1000), *pods, plans=(EQUAL,))
    assert causes(trace, TWO) == {cause: 1}


def test_victims_that_were_evicted_for_a_lower_one_count_as_leaving() -> None:
    """Four GPUs were promised to it, one of them of a pod that goes for a lower one; then higher ones took seven."""
    plans = (
        PlanStory("lower", "a", frozenset({"v0"}), 100, 1, 8.0),
        PlanStory("one", "a", frozenset({"v0", "v1", "v2"}), 1000, 4, 10.0),
        PlanStory("high", "a", frozenset({"v3"}), 2000, 7, 15.0),
    )
    sizes = {"v0": 1, "v1": 1, "v2": 2, "v3": 4}
    there = [pod(uid, gpus, 10, node="a", bound=1.0) for uid, gpus in sizes.items()]
    four = Preemptor("one", 4, 1000, "0", uid="one", rounds=[Round(10.0, "a", ["v1", "v2"]), Round(20.0, "b", ["w"])])
    assert causes(told(*there, pod("lower", 1, 100), pod("high", 7, 2000), plans=plans), four) == {"outbid": 1}
    assert causes(told(*there, pod("lower", 1, 100), plans=plans[:2]), four) == {"unexplained": 1}


@pytest.mark.parametrize(
    ("second", "servers", "cause"),
    [
        (15.02, ("a.log", "b.log"), AT_ONCE),
        (15.02, ("a.log", "a.log"), "unexplained"),  # it knew the first one
        (15.02, ("a.log", ""), "unexplained"),  # no log has it
        (15.2, ("a.log", "b.log"), "unexplained"),  # the watch had shown the first one
    ],
)
def test_two_instances_that_pass_a_pod_each_at_once(second: float, servers: tuple[str, str], cause: str) -> None:
    """Of eight GPUs two were reserved; each of the pods fits beside them, and both do not."""
    low = [pod(name, 4, 10, node="a", bound=at) for name, at in (("x", 15.0), ("y", second))]
    trace = told(*low)
    trace.passed = {name: server for name, server in zip("xy", servers, strict=True) if server}
    assert causes(trace, TWO) == {cause: 1}


def test_which_server_passed_a_pod_last(tmp_path: Path) -> None:
    for number, lines in enumerate(([("10", "fits"), ("30", "refused")], [("20", "fits")])):
        said = [
            f'{{"verb":"filter","pod":"e2e/p","result":"{result}","ts":"2026-11-29T14:58:{ts}Z"}}\n'
            for ts, result in lines
        ]
        (tmp_path / f"{number}.log").write_text("".join(said))
    assert passed(sorted(tmp_path.iterdir())) == {"p": "1.log"}


def event(victim: str, preemptor: str, at: str) -> dict[str, Any]:
    message = f"Preempted by pod {preemptor} on node a"
    return {"eventTime": f"2026-01-01T00:00:{at}Z", "involvedObject": {"uid": victim}, "message": message}


def test_evictions_of_one_plan_are_one_round() -> None:
    uid = "00000000-0000-0000-0000-000000000001"
    one = Preemptor("one", 8, 1000, "0", uid=uid)
    plans = (
        PlanStory(uid, "a", frozenset({"v1", "v2"}), 1000, 8, 0.0),
        PlanStory(uid, "a", frozenset({"v2", "v3"}), 1000, 8, 5.0),
    )
    trace = told(pod(uid, 8, 1000, node="a", bound=30.0), plans=plans)
    events = [event("v2", uid, "02"), event("v1", uid, "01"), event("v3", uid, "07"), event("v4", uid, "09")]
    assert follow(trace, {"one": one}, preempted(events)) == 1  # v4 is in no plan
    assert [sorted(found.victims) for found in one.rounds] == [["v1", "v2"], ["v3"], ["v4"]]
    assert (one.node, one.started) == ("a", 30.0)


def test_a_victim_that_its_preemptor_left_alone_is_not_leaving() -> None:
    """A higher pod had planned for `stays`, and took what had been freed for this one."""
    plans = (
        PlanStory("one", "a", frozenset({"v1"}), 1000, 4, 10.0),
        PlanStory("high", "a", frozenset({"stays", "v1"}), 2000, 4, 15.0, 20.1),
    )
    there = [pod("v1", 4, 10, node="a", bound=1.0, going=18.0, gone=18.5), pod("stays", 4, 10, node="a", bound=1.0)]
    four = Preemptor("one", 4, 1000, "0", uid="one", rounds=[Round(10.0, "a", ["v1"]), Round(20.0, "a", ["stays"])])
    higher = pod("high", 4, 2000, node="a", bound=19.0)
    assert causes(told(*there, higher, plans=plans), four) == {"outbid": 1}
