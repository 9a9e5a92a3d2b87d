"""EASY backfill with places, on clusters small enough to compute by hand; and its promise, on random ones."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from extender.cluster.slices import finish
from extender.objects.gangs import Ref
from extender.objects.pods import UNREADABLE
from extender.queue.backfill import (
    HeadReservation,
    Place,
    QueueSituation,
    StartDecision,
    TakenSeats,
    Trial,
    Waits,
    schedule,
)
from extender.queue.gang import WaitingGang
from extender.queue.gang_runs import OVERRUN_SECONDS, Ending, Endings, prefixes, put
from extender.queue.placement import Placed
from extender.queue.usage import FoundPlace, OverQuota
from tests.objects.test_gangs import obj, owned
from tests.queue.gangs import gang
from tests.world import WALL, World, rfc3339, workload

NOW = WALL


def place_of(rows: Sequence[int]) -> FoundPlace:
    """Seats of the test's placer, of which the rows alone count."""
    return FoundPlace((), (), Placed(tuple(rows), (), None, proved=False))


def placer(nodes: Sequence[int], running: Mapping[str, tuple[int, int]]) -> Place:
    """Places the pods of a gang on the first nodes with room. `nodes`: GPUs by row; `running`: uid -> (row, GPUs)."""

    def place(one: WaitingGang, trial: Trial) -> Generator[None, None, FoundPlace | str | OverQuota]:
        yield
        free = list(nodes)
        gone = {ending.uid for ending in trial.gone}
        for uid, (row, count) in running.items():
            free[row] -= 0 if uid in gone else count
        for held in trial.kept:
            for row, pod in zip(held.seats.rows, held.gang.pods, strict=True):
                free[row] -= pod.gpus[0][1]
        rows: list[int] = []
        for pod in one.pods:
            asked = pod.gpus[0][1]
            row = next((row for row, left in enumerate(free) if left >= asked), -1)
            if row < 0:
                return f"{len(rows)} of {len(one.pods)} pods fit"
            free[row] -= asked
            rows.append(row)
        return place_of(rows)

    return place


def run(steps: Generator[None, None, FoundPlace | str | OverQuota]) -> FoundPlace | str:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: FoundPlace | str = end.value
            return found


def in_order(running: Mapping[str, tuple[int, int, float | None]]) -> list[Ending]:
    """As `endings` orders them; those without an end by uid."""
    return sorted(
        (Ending(uid, row, None if at is None else NOW + at) for uid, (row, _, at) in running.items()),
        key=lambda one: (one.at is None, one.at or 0.0, one.uid),
    )


@dataclass
class Look:
    """`starts`: what starts, in order; `pauses`: how often others may have run."""

    starts: list[TakenSeats] = field(default_factory=list)
    pauses: int = 0
    decision: StartDecision = field(default_factory=StartDecision)

    @property
    def started(self) -> dict[str, tuple[int, ...]]:
        return {one.gang.ref.name: one.seats.rows for one in self.starts}

    @property
    def codes(self) -> dict[str, str]:
        return {ref.name: one.code for ref, one in self.decision.waits.items()}

    @property
    def waits(self) -> Mapping[Ref, Waits]:
        return self.decision.waits

    @property
    def head(self) -> HeadReservation | None:
        return self.decision.head


def look(situation: QueueSituation, place: Place, running: dict[str, tuple[int, int]] | None = None) -> Look:
    """All that starts. `running`: those of the placer, to which the pods that start are added."""
    found, steps = Look(), schedule(situation, place)
    while True:
        try:
            held = next(steps)
        except StopIteration as end:
            found.decision = end.value
            return found
        if held is None:
            found.pauses += 1
            continue
        found.starts.append(held)
        pods = list(zip(held.gang.pods, held.seats.rows, strict=True))
        if running is not None:
            running |= {pod.uid: (row, pod.gpus[0][1]) for pod, row in pods}
        assert isinstance(situation.endings, list)
        finish(put(situation.endings, (Ending(pod.uid, row, held.gang.end(situation.now)) for pod, row in pods)))


def decided(
    gangs: Sequence[WaitingGang],
    nodes: Sequence[int],
    running: Mapping[str, tuple[int, int, float | None]] = {},
    **more: Any,
) -> Look:
    """`running`: uid -> (row, GPUs, when it ends, seconds from now)."""
    order = in_order(running)
    held = {uid: (row, count) for uid, (row, count, _) in running.items()}
    return look(QueueSituation(gangs, order, NOW, **more), placer(nodes, held), held)


def test_the_first_gang_that_fits_starts_and_the_next_one_waits() -> None:
    found = decided([gang("a", 2, 4), gang("b", 1, 1)], [8])
    assert (found.started, found.codes) == ({"a": (0, 0)}, {"b": "head"})


def test_what_starts_counts_for_those_behind_it() -> None:
    """a has ended after 100 s, which is then the start of b."""
    found = decided([gang("a", 2, 4, seconds=100.0), gang("b", 1, 1)], [8])
    assert found.head is not None
    assert (found.started, found.head.start) == ({"a": (0, 0)}, NOW + 100)


def test_nothing_waits() -> None:
    found = decided([], [8])
    assert (found.starts, found.head, found.waits) == ([], None, {})


# Two nodes of 8 GPUs. On node 0 a pod of 8 GPUs runs for 100 s more, on node 1 one of 4 GPUs for 300 s.
RUNNING = {"x": (0, 8, 100.0), "y": (1, 4, 300.0)}


def test_the_head_gets_the_earliest_place() -> None:
    """8 GPUs on one node: node 0 after 100 s, node 1 after 300 s."""
    found = decided([gang("head", 1, 8)], [8, 8], RUNNING)
    assert found.starts == []
    assert found.head is not None
    assert (found.head.start, found.head.seats.rows, found.head.blocked_by) == (NOW + 100, (0,), ("x",))
    assert found.codes == {"head": "head"}
    assert found.waits[found.head.gang.ref].text == "0 of 1 pods fit"


def test_the_head_may_need_all_to_end() -> None:
    """2 pods of 8 GPUs: both nodes, so after 300 s; it waits for both pods."""
    found = decided([gang("head", 2, 8)], [8, 8], RUNNING)
    assert found.head is not None
    assert (found.head.start, found.head.seats.rows, found.head.blocked_by) == (NOW + 300, (0, 1), ("x", "y"))


# The head needs 8 GPUs of one node, and gets node 0 after 100 s. 4 GPUs of node 1 are free now.
BEHIND: dict[str, tuple[WaitingGang, tuple[int, ...], str]] = {
    "it fits beside the head's seats": (gang("b", 1, 4), (1,), ""),
    "so it does without any end": (gang("b", 4, 1), (1, 1, 1, 1), ""),
    "it fits nowhere now": (gang("b", 1, 5), (), "place"),
}


@pytest.mark.parametrize(("behind", "start", "code"), BEHIND.values(), ids=BEHIND)
def test_a_gang_behind_the_head(behind: WaitingGang, start: tuple[int, ...], code: str) -> None:
    found = decided([gang("head", 1, 8), behind], [8, 8], RUNNING)
    assert found.started == ({"b": start} if start else {})
    assert found.codes == {"head": "head"} | ({"b": code} if code else {})
    assert found.head is not None
    assert found.head.start == NOW + 100


# One node of 8 GPUs, where 4 GPUs are held for 100 s more; the head needs all 8 of it. 4 GPUs are free until then.
@pytest.mark.parametrize(
    ("facts", "starts"),
    [
        ({"seconds": 100.0}, True),  # it ends just in time
        ({"seconds": 101.0}, False),
        ({}, False),  # no end: it would hold the head's GPUs
        ({"ends_at": NOW + 60}, True),  # the deadline of its Job, which runs already
        ({"seconds": 500.0, "ends_at": NOW + 100}, True),
        ({"seconds": 500.0, "ends_at": NOW + 200}, False),
    ],
)
def test_a_gang_on_the_head_s_seats_has_to_end_before(facts: dict[str, float], starts: bool) -> None:
    found = decided([gang("head", 1, 8), gang("b", 1, 4, **facts)], [8], {"x": (0, 4, 100.0)})
    assert found.started == ({"b": (0,)} if starts else {})
    assert found.codes == ({"head": "head"} if starts else {"head": "head", "b": "delays"})
    assert found.head is not None
    assert found.head.start == NOW + 100


def test_without_the_end_of_running_pods_only_what_the_head_does_not_need_is_used() -> None:
    """Node 0: 4 of 8 GPUs are held, nobody knows how long. The head needs 8. Node 1 has 4 GPUs in all."""
    running = {"x": (0, 4, None)}
    short = gang("b", 1, 4, seconds=1.0)
    found = decided([gang("head", 1, 8), short], [8, 4], running)
    assert found.head is not None
    assert (found.head.start, found.head.seats.rows, found.head.blocked_by) == (None, (0,), ("x",))
    assert found.started == {"b": (1,)}  # beside it
    found = decided([gang("head", 1, 8), short], [8, 2], running)
    assert (found.started, found.codes["b"]) == ({}, "delays")


def test_pods_that_state_their_end_count_before_those_that_do_not() -> None:
    """Either would make room for the head: the end of y is known, be it far away."""
    found = decided([gang("head", 1, 8)], [8, 8], {"x": (0, 8, None), "y": (1, 8, 1e6)})
    assert found.head is not None
    assert (found.head.start, found.head.blocked_by) == (NOW + 1e6, ("y",))


def test_of_two_pods_without_an_end_the_first_in_order_counts() -> None:
    found = decided([gang("head", 1, 8)], [8, 8], {"x": (0, 8, None), "y": (1, 8, None)})
    assert found.head is not None
    assert (found.head.start, found.head.seats.rows, found.head.blocked_by) == (None, (0,), ("x",))


def test_the_head_moves_where_it_is_as_early() -> None:
    """After 100 s nodes 1 and 2 are both empty, and the head is placed on node 1. 4 GPUs of node 1 alone are free now:
    b takes them for good, and the head moves to node 2."""
    running = {"w": (0, 8, None), "x": (1, 4, 100.0), "y": (2, 8, 100.0)}
    found = decided([gang("head", 1, 8), gang("b", 1, 4)], [8, 8, 8], running)
    assert found.started == {"b": (1,)}
    assert found.head is not None
    assert (found.head.start, found.head.seats.rows, found.head.blocked_by) == (NOW + 100, (2,), ("y",))


def test_pods_that_end_at_one_time_end_together() -> None:
    """The head needs both; it does not wait for a third one that ends later."""
    running = {"x": (0, 8, 100.0), "y": (1, 8, 100.0), "z": (2, 8, 200.0)}
    found = decided([gang("head", 2, 8)], [8, 8, 8], running)
    assert found.head is not None
    assert (found.head.start, found.head.blocked_by) == (NOW + 100, ("x", "y"))


def test_a_gang_that_fits_nowhere_whatever_ends_is_not_the_head() -> None:
    found = decided([gang("huge", 1, 9), gang("head", 1, 8), gang("b", 1, 1, seconds=50.0)], [8], {"x": (0, 4, 100.0)})
    assert found.head is not None
    assert found.head.gang.ref.name == "head"
    assert found.started == {"b": (0,)}
    assert found.codes == {"huge": "never", "head": "head"}
    found = decided([gang("huge", 1, 9), gang("b", 1, 1)], [8])
    assert (found.started, found.codes) == ({"b": (0,)}, {"huge": "never"})


def test_of_those_behind_the_head_the_one_with_the_highest_response_is_tried_first() -> None:
    """One of three fits into the gap of 4 GPUs that lasts for 100 s. All have waited 50 s: 50 / 100 x 2, 50 / 80 x 2,
    50 / 60 x sqrt(2). A fourth one states no end, and a higher priority goes first."""
    waiting = [
        gang("head", 1, 8, priority=5),
        gang("plain", 1, 4),
        gang("long", 1, 4, seconds=100.0),
        gang("short", 1, 4, seconds=80.0),
        gang("small", 1, 2, seconds=60.0),
    ]
    waiting = [replace(one, created=NOW - 50) for one in waiting]
    assert decided(waiting, [8], {"x": (0, 4, 100.0)}).started == {"short": (0,)}
    urgent = replace(waiting[2], priority=1)
    assert decided([waiting[0], urgent, *waiting[3:]], [8], {"x": (0, 4, 100.0)}).started == {"long": (0,)}


def test_strict_no_gang_passes_the_head() -> None:
    found = decided([gang("head", 1, 8), gang("b", 1, 1, seconds=1.0)], [8, 8], RUNNING, strict=True)
    assert (found.started, found.codes) == ({}, {"head": "head", "b": "order"})
    assert found.head is not None  # its reservation is shown


def test_only_so_many_gangs_are_tried() -> None:
    waiting = [gang("head", 1, 8), gang("b", 1, 7), gang("c", 1, 7), gang("d", 1, 1)]
    found = decided(waiting, [8, 8], RUNNING, depth=2)
    assert (found.started, found.codes) == ({}, {"head": "head", "b": "place", "c": "place", "d": "depth"})
    assert decided(waiting, [8, 8], RUNNING, depth=3).started == {"d": (1,)}


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"minimum": 3}, "2 of 3 pods exist"),
        ({"minimum": 5_001}, "5,001 of its pods start together, and at most 5,000 can: split it into several gangs"),
        ({"missing": "ResourceClaimTemplate a/t"}, "ResourceClaimTemplate a/t does not exist"),
        ({"other_gates": ("a.io/x", UNREADABLE)}, "other scheduling gates hold it back: a.io/x, (unreadable)"),
        ({"known": False}, "how many pods it has is not known: its owner does not exist, or states no number "
                           "(annotation gpu-extender.io/gang-size)"),
    ],
)  # fmt: skip
def test_an_incomplete_gang_reserves_nothing(facts: dict[str, Any], text: str) -> None:
    first = gang("a", 2, 8, **facts)
    found = decided([first, gang("b", 1, 1)], [8], {})
    assert (found.started, found.head) == ({"b": (0,)}, None)
    assert (found.waits[first.ref].code, found.waits[first.ref].text) == ("incomplete", text)


def test_a_gang_with_an_unreadable_pod_waits() -> None:
    first = gang("a", 1, 1)
    broken = records_with(first, unread="spec.tolerations: it has more than 1,024 entries")
    found = decided([broken], [8])
    text = found.waits[first.ref].text
    assert (found.started, text) == ({}, broken.pods[0].unread_text)
    assert text.endswith(
        "until it is created again with this corrected: spec.tolerations: it has more than 1,024 entries"
    )


def records_with(one: WaitingGang, **facts: Any) -> WaitingGang:
    return replace(one, pods=tuple(msgspec.structs.replace(pod, **facts) for pod in one.pods))


def test_a_gang_over_its_quota_is_not_the_head() -> None:
    """Else a queue that is full would hold GPUs back that it may not take."""
    first = gang("a", 1, 8)
    over = OverQuota("lab", "limit", "m", 8, 8, 8)
    found = decided([first, gang("b", 1, 8)], [8], over_quota=lambda one: over if one is first else None)
    assert (found.started, found.codes) == ({"b": (0,)}, {"a": "quota"})
    assert found.waits[first.ref].text == over.text


def test_the_search_for_the_earliest_place_halves_what_is_left() -> None:
    """1,024 pods of one GPU end one after another; the head of 512 GPUs needs the first 512 of them to end."""
    running = {f"x{i:04}": (i, 1) for i in range(1024)}
    order = [Ending(uid, row, NOW + row + 1) for uid, (row, _) in running.items()]
    place, calls = placer([1] * 1024, running), 0

    def counted(one: WaitingGang, trial: Trial) -> Generator[None, None, FoundPlace | str | OverQuota]:
        nonlocal calls
        calls += 1
        return (yield from place(one, trial))

    found = look(QueueSituation([gang("head", 512, 1)], order, NOW), counted)
    assert found.head is not None
    assert (found.head.start, len(found.head.blocked_by)) == (NOW + 512, 512)
    assert calls <= 12  # now, after all of them, and 10 halves


def test_others_may_run_between_two_placements() -> None:
    """One step a placement: now, after both ends, after the first one; one to sort; and two for the gang behind."""
    order = [Ending("x", 0, NOW + 100), Ending("y", 1, NOW + 300)]
    place = placer([8, 8], {"x": (0, 8), "y": (1, 4)})
    found = look(QueueSituation([gang("head", 1, 8), gang("b", 1, 4)], order, NOW), place)
    assert found.pauses == 6


def test_moments() -> None:
    order = [Ending("a", 0, 1.0), Ending("b", 0, 1.0), Ending("c", 0, 2.0), Ending("d", 0, None), Ending("e", 0, None)]
    assert finish(prefixes(order)) == [2, 3, 4, 5]
    one, other = Ref("job", "default", "one"), Ref("job", "default", "other")
    order = [Ending("a", 0, None, one), Ending("b", 1, None, one), Ending("c", 0, None, other), Ending("d", 0, None)]
    assert finish(prefixes(order)) == [2, 3, 4]
    assert finish(prefixes([])) == []


# -- the promise, on random clusters ----------------------------------------------------------------------------------


@dataclass
class Job:
    one: WaitingGang
    length: float
    started: float | None = None
    promised: float | None = None


@pytest.mark.parametrize("declared", ["all", "some", "none"])
def test_the_head_starts_as_promised_and_no_gang_starves(declared: str) -> None:
    """20 clusters, each with 30 gangs that come over time. Ends that are declared are upper bounds. What is checked: no
    GPU is used twice, the head's promised start never moves to later, and every gang starts."""
    for seed in range(20):
        chance = random.Random(f"{declared}-{seed}")
        nodes = [chance.choice((4, 8)) for _ in range(chance.randint(1, 5))]
        jobs = [_job(f"g{i:02}", chance, nodes, declared) for i in range(30)]
        _run(jobs, nodes)
        assert all(job.started is not None for job in jobs)


@pytest.mark.parametrize("declared", ["all", "some", "none"])
def test_what_is_kept_between_looks_changes_no_decision(declared: str) -> None:
    """Random histories: the reservation of the look before, and what is known of a kind, spare placements alone."""
    calls = {True: 0, False: 0}
    for seed in range(40):
        chance = random.Random(f"kept-{declared}-{seed}")
        nodes = [chance.choice((4, 8)) for _ in range(chance.randint(1, 5))]
        jobs = [_job(f"g{i:02}", chance, nodes, declared) for i in range(30)]
        seen: dict[bool, list[object]] = {}
        for kept in (True, False):
            told = [replace(job) for job in jobs]
            seen[kept] = _run(told, nodes, kept=kept, calls=calls)
        assert seen[True] == seen[False]
    assert calls[True] < 0.8 * calls[False]


def _job(name: str, chance: random.Random, nodes: Sequence[int], declared: str) -> Job:
    gpus = chance.choice((1, 1, 2, 4, max(nodes)))
    most = sum(count // gpus for count in nodes)
    seconds = float(chance.randint(1, 100))
    stated = declared == "all" or (declared == "some" and chance.random() < 0.5)
    length = chance.uniform(0.2, 1.0) * seconds
    made = gang(name, chance.randint(1, most), gpus, created=float(chance.randint(0, 200)),
                seconds=seconds if stated else None)  # fmt: skip
    return Job(made, length)


def _kind(one: WaitingGang) -> tuple[int, int]:
    return len(one.pods), one.pods[0].gpus[0][1]


def _run(
    jobs: list[Job], nodes: Sequence[int], *, kept: bool = True, calls: dict[bool, int] | None = None
) -> list[object]:
    """A simulation in which the queue alone starts pods, in the order of their arrival. What each look decides. `kept`:
    it is helped by the look before it, and by what it knows of kinds; `calls`: counts placements."""
    seen: list[object] = []
    before: HeadReservation | None = None
    running: dict[str, tuple[int, int, float, float | None]] = {}  # uid -> row, GPUs, real end, declared end
    by_ref = {job.one.ref: job for job in jobs}
    moments = {job.one.created for job in jobs}
    while moments:
        now = min(moments)
        moments.remove(now)
        running = {uid: facts for uid, facts in running.items() if facts[2] > now}
        order = sorted(
            (Ending(uid, row, end) for uid, (row, _, _, end) in running.items()),
            key=lambda one: (one.at is None, one.at or 0.0, one.uid),
        )
        waiting = sorted((job.one for job in jobs if job.started is None and job.one.created <= now),
                         key=lambda one: (one.created, one.ref))  # fmt: skip
        held = {uid: (row, count) for uid, (row, count, _, _) in running.items()}
        place = placer(nodes, held)

        def counted(
            one: WaitingGang, trial: Trial, place: Place = place
        ) -> Generator[None, None, FoundPlace | str | OverQuota]:
            if calls is not None:
                calls[kept] += 1
            return (yield from place(one, trial))

        help_of: dict[str, Any] = {"kind": _kind, "before": before} if kept else {}
        found = look(QueueSituation(waiting, order, now, **help_of), counted, held)
        before = found.head
        seen.append((found.started, found.codes, found.head))
        for one in found.starts:
            job = by_ref[one.gang.ref]
            assert job.promised is None or now <= job.promised
            job.started = now
            for row, pod in zip(one.seats.rows, one.gang.pods, strict=True):
                running[pod.uid] = (row, pod.gpus[0][1], now + job.length, one.gang.end(now))
            moments.add(now + job.length)
        assert all(
            sum(count for row, count, _, _ in running.values() if row == node) <= most
            for node, most in enumerate(nodes)
        )
        if found.head is not None and found.head.start is not None:
            first = by_ref[found.head.gang.ref]
            assert first.promised is None or found.head.start <= first.promised
            first.promised = found.head.start
    return seen


# -- when running pods end --------------------------------------------------------------------------------------------


def test_the_endings_of_running_pods(world: World) -> None:
    """By time, then those without one from the oldest; only GPU pods of known nodes."""
    world.node("n", 8)
    world.node("m", 8)

    def run(name: str, node: str = "n", *, gpus: int = 1, **facts: Any) -> None:
        notes = {"gpu-extender.io/duration": facts.pop("duration")} if "duration" in facts else {}
        facts.setdefault("start", NOW - 100)
        world.set("Pod", workload(name, gpus, node=node, phase="Running", annotations=notes, **facts))

    run("hour", duration="1h")
    run("deadline", "m", spec={"activeDeadlineSeconds": 600})
    run("overrun", duration="60s")
    run("older", start=NOW - 500)
    run("ends", terminating=NOW + 7)
    run("cpu", gpus=0, duration="1m")
    run("lost", "unknown", duration="1m")
    run("young", start=None, duration="2m")  # bound, and not started yet
    owner = workload("of-job", 1, node="n", phase="Running", start=NOW - 100)
    owner["metadata"]["ownerReferences"] = owned("Job", "batch/v1")
    world.set("Pod", owner)
    job = obj("batch/v1", "Job", "g", {"parallelism": 1, "activeDeadlineSeconds": 400}, startTime=rfc3339(NOW - 200))
    world.set("Group", job)
    n, m = world.cluster.row("n"), world.cluster.row("m")
    assert finish(Endings(world.cluster).read(NOW)) == [
        Ending("uid-ends", n, NOW + 7),
        Ending("uid-young", n, NOW + 120),
        Ending("uid-of-job", n, NOW + 200),
        Ending("uid-deadline", m, NOW + 500),
        Ending("uid-hour", n, NOW + 3500),
        Ending("uid-older", n, None),
        Ending("uid-overrun", n, None),
    ]


def test_a_terminating_pod_whose_grace_is_over_ends_now(world: World) -> None:
    world.node("n", 8)
    world.set("Pod", workload("p", 1, node="n", phase="Running", start=NOW - 100, terminating=NOW - 5))
    assert [one.at for one in finish(Endings(world.cluster).read(NOW))] == [NOW]


@pytest.mark.parametrize(("late", "at"), [(0.2, NOW), (OVERRUN_SECONDS - 1, NOW), (OVERRUN_SECONDS + 1, None)])
def test_a_pod_at_its_stated_end_ends_now(world: World, late: float, at: float | None) -> None:
    """Its containers have their grace. It has overrun its duration only after that."""
    world.node("n", 8)
    notes = {"gpu-extender.io/duration": "60s"}
    world.set("Pod", workload("p", 1, node="n", phase="Running", start=NOW - 60, annotations=notes))
    assert [one.at for one in finish(Endings(world.cluster).read(NOW + late))] == [None if at is None else NOW + late]


def test_the_earliest_moment_is_the_one_that_a_search_one_by_one_finds() -> None:
    """Random clusters of up to 5 nodes: the head's reservation is after the fewest endings after which it fits."""
    for seed in range(300):
        chance = random.Random(seed)
        nodes = [chance.choice((4, 8)) for _ in range(chance.randint(1, 5))]
        running: dict[str, tuple[int, int, float | None]] = {}
        for row, most in enumerate(nodes):
            while most and chance.random() < 0.9:
                count = chance.randint(1, most)
                ends = chance.choice((None, float(chance.randint(1, 6))))
                running[f"x{len(running):02}"] = (row, count, ends)
                most -= count
        head = gang("head", chance.randint(1, 6), chance.choice((1, 2, 4, 8)))
        order = in_order(running)
        place = placer(nodes, {uid: (row, count) for uid, (row, count, _) in running.items()})
        counts = [0, *finish(prefixes(order))]
        fits = [not isinstance(run(place(head, Trial(order[:count]))), str) for count in counts]
        found = decided([head], nodes, running)
        if fits[0]:
            assert found.starts
        elif not any(fits):
            assert (found.head, found.codes) == (None, {"head": "never"})
        else:
            assert found.head is not None
            assert len(found.head.gone) == counts[fits.index(True)]
