"""What the runs of tests/e2e/test_enforced.py count, on logs made by hand."""

from __future__ import annotations

from typing import Any

from extender.sim.kubelet import AllocationEvent
from tests.e2e.enforced_run import KNOWN_SECONDS, Got, judge
from tests.e2e.trace import PodStory, Trace

NOBODY: Any = None
BEST = frozenset({0, 3})  # of a DGX-1V: two links
ONE_LINK = frozenset({0, 1})


def of_b(got: Got) -> list[str]:
    return [line for line in got.worse if line.startswith("  b ")]


def run(*pods: tuple[str, float, float, float | None, frozenset[int]]) -> Got:
    """(name, when the server decided to bind it, when it was admitted, when it ended, GPUs): in order of admission."""
    trace = Trace(NOBODY, "default", "", "")
    events: list[tuple[float, AllocationEvent]] = []
    for name, bound, admitted, ended, gpus in pods:
        trace.pods[name] = PodStory(name, name, len(gpus), 0, 0.0, "n", bound + 0.1, gone=ended)
        trace.decisions[bound, "bind", name] = {"verb": "bind", "result": "bound"}
        events.append((admitted, AllocationEvent(admitted, "admitted", name, name, "n", gpus, planned=gpus)))
        if ended is not None:
            events.append((ended, AllocationEvent(ended, "released", name, "", "n", gpus)))
    ordered = [event for _, event in sorted(events, key=lambda one: one[0])]
    return judge(ordered, trace, {"n": "dgx1-v100"}, stock=False)


def test_the_best_set_counts_in_full() -> None:
    got = run(("a", 0.0, 1.0, None, BEST))
    assert (got.ring_share, got.worse) == (1.0, [])


def test_a_worse_set_is_reported() -> None:
    got = run(("a", 0.0, 1.0, None, ONE_LINK))
    assert got.ring_share == 0.5
    assert got.worse == ["  a on n: ring 1000 of [0, 1], best 2000 of the free 11111111"]


def test_gpus_that_come_free_between_bind_and_admission_do_not_count() -> None:
    """Before: the share was that of the best set at admission, which no plan can know."""
    others = frozenset(range(8)) - ONE_LINK
    got = run(("a", 0.0, 1.0, 3.0, others), ("b", 2.0, 4.0, None, ONE_LINK))
    assert of_b(got) == []
    known = run(("a", 0.0, 1.0, 3.0, others), ("b", 3.0 + KNOWN_SECONDS, 4.0, None, ONE_LINK))
    assert len(of_b(known)) == 1


def test_a_pod_that_is_bound_and_not_yet_admitted_holds_its_gpus() -> None:
    others = frozenset(range(8)) - ONE_LINK
    got = run(("b", 2.0, 3.0, None, ONE_LINK), ("a", 1.0, 5.0, None, others))
    assert of_b(got) == []
