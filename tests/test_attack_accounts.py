"""The attack's accounts: each hard row is broken by what it is about, and by nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from extender.sim.kubelet import AllocationEvent
from tests.e2e import attack_load
from tests.e2e.attack_accounts import MOST_WAIT, Row, Seen, Wait, Waits, beside, preemptors_of, report
from tests.e2e.trace import PodStory, Trace

SPACES = {tenant: f"{tenant}-1" for tenant in (*attack_load.HONEST, attack_load.HOSTILE)}


def seen(*log: AllocationEvent, pods: tuple[PodStory, ...] = (), lines: tuple[str, ...] = (), **facts: Any) -> Seen:
    trace = Trace.__new__(Trace)
    trace.pods, trace.plans, trace.marks = {pod.uid: pod for pod in pods}, [], []
    trace.lines = [(0.0, line) for line in lines]
    return Seen(trace, log, {"alice-1": "alice", "mallory-1": "mallory"}, {"v": "dgx1-v100"}, **facts)


def event(what: Any, uid: str, *gpus: int, reason: str = "") -> AllocationEvent:
    return AllocationEvent(0.0, what, uid, uid, "v", frozenset(gpus), reason=reason)


def broken(one: Seen, log: Path) -> list[str]:
    return [row.name for row in report(one, preemptors_of(one), log) if row.broken]


FAILED_AT = "E1122 03:52:55.014056 3854 schedule_one.go:273] failed filter with extender at URL x, code 500"
HELD = "pod p; 0/2 nodes are available: 1 gpu-extender: GPU pods failed on the node three times within ten minutes"


@pytest.mark.parametrize(
    ("one", "logged", "row"),
    [
        (seen(), "", ""),
        (seen(event("refused", "a", reason="over-promised")), "", "GPUs given twice"),
        (seen(event("refused", "a", reason="panic")), "", ""),
        (seen(event("refused", "a", reason="over-promised"), direct={"a"}), "", ""),  # it skipped the scheduler
        (seen(event("admitted", "a", 0, 5), required={"a"}), "", "pods that require links"),
        (seen(event("admitted", "a", 0, 3), required={"a"}), "", ""),
        (seen(event("admitted", "a", 0, 5)), "", ""),
        (seen(lines=(HELD,)), "", "conditions of pods"),
        (seen(ended=1), "", "the server ended by itself"),
        (seen(stuck=["alice/p"]), "", "honest pods that are stuck"),
        (seen(idle_calls=1.0), "", "filter calls when idle"),
        (seen(), FAILED_AT, "5xx for kube-scheduler while the server was up"),
        (seen(down=[(0.0, 1e11)]), FAILED_AT, ""),
    ],
)
def test_each_hard_row(one: Seen, logged: str, row: str, tmp_path: Path) -> None:
    log = tmp_path / "scheduler.log"
    log.write_text(f"I1122 03:52:55.000000 1 x.go:1] code 500 is not a line of its own\n{logged}\n" if logged else "")
    if logged and not one.down:
        log.write_text(logged + "\n")
    found = broken(one, log)
    assert len(found) == bool(row)
    assert all(name.startswith(row) for name in found)


def test_the_share_of_the_waiting(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    pods = (
        PodStory("a", "a", 2, 100, created=0.0, node="v", bound=30.0, space="alice-1"),
        PodStory("m", "m", 6, 100, created=0.0, node="v", bound=10.0, space="mallory-1"),
        PodStory("low", "low", 4, 10, created=0.0, node="v", bound=90.0, space="alice-1"),
    )
    one = seen(pods=pods)
    rows = {row.name: row.value for row in report(one, preemptors_of(one), tmp_path / "log")}
    assert rows["honest tenants' share of the waiting time"] == "75%"
    assert rows["  and of the GPUs that were asked for"] == "25%"


def test_the_load_follows_from_the_seed_and_has_so_many_pods() -> None:
    first, again = (list(attack_load.arrivals(random.Random(4), 1000, SPACES)) for _ in range(2))
    assert [one.item for one in first] == [one.item for one in again]
    assert sum(one.pods for one in first) == 1000
    kinds = {one.kind for one in first}
    assert kinds >= {"fails", "deep", "quantity", "forged", "distinct", "never", "job", "requires links", "higher"}
    deep = next(one for one in first if one.kind == "deep")
    assert deep.body.count(b'{"f:a":') == attack_load.LEVELS
    assert attack_load.DEEP.encode() not in deep.body


def test_a_row_that_is_only_reported_breaks_nothing() -> None:
    assert not Row("x", 7).broken
    assert Row("x", 7, 6).broken
    assert str(Row("x", 7, 6)).endswith("BROKEN")


def test_waits_beside_an_attack_are_compared_with_those_of_the_control_run() -> None:
    """A gang that still waits breaks the row, unless as many do in the control run."""

    def waits(*seconds: float, waiting: int = 0) -> Waits:
        return Waits.of([Wait(wait, started=number >= waiting) for number, wait in enumerate(seconds)])

    control = waits(0.2, 0.1, 0.5)
    assert (control.median, control.longest, control.gangs, control.waiting) == (0.2, 0.5, 3, 0)
    assert not beside("scene", control, waits(0.2, 0.5 + MOST_WAIT)).broken
    assert beside("scene", control, waits(0.2, 0.6 + MOST_WAIT)).broken
    assert beside("scene", control, waits(0.1, 0.2, waiting=1)).broken
    assert not beside("scene", waits(9.0, 0.1, waiting=1), waits(9.0, 0.2, waiting=1)).broken
