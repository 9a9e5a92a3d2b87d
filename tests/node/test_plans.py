"""Who asks, and what was planned for it, without kubelet: the order of events is the test's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.node.plans import Bound, read, read_plan, wanted, wanted_parts
from tests.e2e.device_manager import pod

GPU = "nvidia.com/gpu"
ALL = frozenset(range(8))


def started(item: dict[str, Any], phase: str = "Running") -> dict[str, Any]:
    """The same pod after kubelet has spoken of it."""
    return {**item, "status": {**item["status"], "phase": phase, "startTime": "2026-01-01T00:00:09Z"}}


def asking(bound: Bound, size: int) -> str | None:
    """The name of the pod that asks for so many."""
    asker = bound.asker(GPU, size)
    return None if asker is None else asker.pod.uid


@pytest.fixture
def bound() -> Bound:
    return Bound()


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("0,3", {"": {0, 3}}),
        ("7", {"": {7}}),
        ("c1=0,3;c2=5", {"c1": {0, 3}, "c2": {5}}),
        ("", None), ("x", None), ("0,0", None), ("c1=0;c2=0", None), ("c1=0;c1=1", None), ("-1", None), ("100", None),
        ("0;1", None), ("c1=", None),
    ],
)  # fmt: skip
def test_plans_as_bind_writes_them(text: str, plan: object) -> None:
    assert read_plan(text) == plan


def test_the_first_bound_of_that_size_asks(bound: Bound) -> None:
    bound.put(pod("four", 4))
    bound.put(pod("two", 2))
    bound.put(pod("also-two", 2))
    assert [asking(bound, size) for size in (4, 2, 1)] == ["four", "two", None]
    bound.put(started(pod("two", 2)))
    assert asking(bound, 2) == "also-two"
    bound.drop("also-two")
    assert asking(bound, 2) is None


def test_a_list_is_taken_in_the_order_of_binding(bound: Bound) -> None:
    later = pod("a", 2, created="2026-01-01T00:00:02Z")
    bound.replace([later, pod("b", 2, created="2026-01-01T00:00:01Z")])
    assert asking(bound, 2) == "b"
    bound.replace([later])
    assert asking(bound, 2) == "a"


def test_a_pod_that_is_deleted_or_ended_does_not_ask(bound: Bound) -> None:
    gone = pod("gone", 1)
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    bound.put(gone)
    bound.put(started(pod("failed", 1), "Failed"))
    assert asking(bound, 1) is None


def test_containers_ask_one_after_another_and_before_other_pods(bound: Bound) -> None:
    bound.put(pod("a", {"c1": 1, "c2": 1}, plan="c1=4;c2=6"))
    bound.put(pod("b", 1, plan="7"))
    for container, gpus in (("c1", {4}), ("c2", {6})):
        asker = bound.asker(GPU, 1)
        assert asker is not None
        assert (asker.pod.uid, asker.container.name) == ("a", container)
        assert wanted(asker, frozenset(), ALL, 1) == frozenset(gpus)
        bound.answered(GPU, asker)
        bound.allocated(GPU, ["id"], gpus=frozenset(gpus), failed=False)
    assert asking(bound, 1) == "b"


def test_allocations_without_a_question_go_to_the_pod_with_that_plan(bound: Bound) -> None:
    bound.put(pod("a", 1, plan="4"))
    bound.put(pod("b", 1, plan="7"))
    got = bound.allocated(GPU, ["id"], gpus=frozenset({7}), failed=False)
    assert got is not None
    assert got.uid == "b"
    assert asking(bound, 1) == "a"


def test_two_that_were_taken_for_each_other_change_places(bound: Bound) -> None:
    """We gave a's plan, but b started: b holds it, and b's plan is now a's, whatever the annotations say later."""
    a, b = pod("a", 2, plan="0,3"), pod("b", 2, plan="5,6")
    bound.put(a)
    bound.put(b)
    bound.answered(GPU, bound.asker(GPU, 2))
    bound.allocated(GPU, ["x", "y"], gpus=frozenset({0, 3}), failed=False)
    bound.put(started(b))
    bound.put(a)
    asker = bound.asker(GPU, 2)
    assert asker is not None
    assert (asker.pod.uid, wanted(asker, frozenset(), ALL - {0, 3}, 2)) == ("a", frozenset({5, 6}))


def test_a_pod_that_kubelet_refused_changes_no_places(bound: Bound) -> None:
    bound.put(pod("a", 2, plan="0,3"))
    bound.put(pod("b", 2, plan="5,6"))
    bound.answered(GPU, bound.asker(GPU, 2))
    bound.allocated(GPU, ["x", "y"], gpus=frozenset({0, 3}), failed=False)
    bound.put(started(pod("b", 2, plan="5,6"), "Failed"))
    assert asking(bound, 2) is None


def test_after_a_restart_kubelet_begins_with_the_oldest(bound: Bound) -> None:
    bound.put(pod("young", 2, created="2026-01-01T00:00:05Z"))
    bound.put(pod("old", 2, created="2026-01-01T00:00:01Z"))
    assert asking(bound, 2) == "young"
    bound.kubelet_restarted()
    assert asking(bound, 2) == "old"


def test_what_is_promised_to_others(bound: Bound) -> None:
    bound.put(pod("a", 2, plan="0,3"))
    bound.put(pod("b", {"c1": 1, "c2": 1}, plan="c1=4;c2=6"))
    bound.put(started(pod("c", 1, plan="7")))
    assert bound.promised() == {0, 3, 4, 6}
    assert bound.promised(but=bound.asker(GPU, 2)) == {4, 6}


@given(st.frozensets(st.integers(0, 7), min_size=1), st.frozensets(st.integers(0, 7)), st.data())
def test_a_plan_is_served_whole_or_not_at_all(
    plan: frozenset[int], available: frozenset[int], data: st.DataObject
) -> None:
    """The answer has the asked size, holds what it must, and else only planned GPUs that are available."""
    size = data.draw(st.integers(1, len(plan)))
    must = data.draw(st.frozensets(st.sampled_from(sorted(available or {0})), max_size=size))
    bound = Bound()
    bound.put(pod("a", {"main": size}, plan=",".join(map(str, sorted(plan)))))
    asker = bound.asker(GPU, size)
    assert asker is not None
    got = wanted(asker, must, available, size)
    can = must <= available and len(plan & available - must) >= size - len(must)
    assert (got is not None) == can
    if got is not None:
        assert len(got) == size
        assert must <= got <= available
        assert got - must <= plan


@pytest.mark.parametrize(
    ("plan", "size", "must", "got"),
    [
        ("2,2,5", 3, [], ["2a", "2b", "5a"]),  # one part for each number
        ("2,5", 4, [], ["2a", "2b", "5a", "5b"]),  # equal parts
        ("2,5", 2, ["2b"], ["2b", "5a"]),  # what an init container leaves
        ("2,5", 2, ["6a"], None),  # which is not of the plan
        ("2,5", 3, [], None),  # neither
        ("2,2,2", 3, [], None),  # more than are left
        ("main=5,5", 2, [], ["5a", "5b"]),
        ("7", 1, [], None),
        ("", 1, [], None),
    ],
)
def test_plans_for_parts_of_gpus(bound: Bound, plan: str, size: int, must: list[str], got: list[str] | None) -> None:
    bound.put(pod("a", size, plan=plan))
    asker = bound.asker(GPU, size)
    assert asker is not None
    available = {gpu: [f"{gpu}a", f"{gpu}b"] for gpu in (2, 5, 6)}
    assert wanted_parts(asker, must, available, size) == got


def test_odd_objects_are_read() -> None:
    """What the API server leaves out, and amounts that are no devices."""
    item = {"metadata": {"uid": "u"}, "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}}
    assert read(item).containers == ()
    assert read({"metadata": {"uid": "u"}}).waiting
