"""What is learned of run times: the law beside a slow twin, bounds of memory, the stored text; and gangs that run."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise
from math import inf

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extender.cluster.slices import finish
from extender.objects.records import PodRecord
from extender.objects.stored_texts import RUN_TIMES_BYTES, Damaged, is_newer
from extender.queue import runtimes
from extender.queue.gang_runs import GangRun, GangRuns
from extender.queue.runtimes import (
    BELIEF,
    FORMAT,
    MOST_NAMESPACES,
    OF_ALL,
    OF_NAMESPACE,
    RECENT,
    RunClass,
    RunTime,
    RunTimes,
    class_of,
)
from tests.world import WALL, World

DAY = 86_400.0
Points = list[tuple[float, float, bool]]


# -- the slow twin: every class is a law of its own, and a stop leaves the product-limit estimate


def twin(learned: RunTimes, of: RunClass, now: float, declared: float) -> Points:
    """(seconds, weight, ended), of the runs of the namespace alone; what is left of the weight is its last entry."""
    runs = learned._namespaces.get(of.namespace, [])
    weight = [
        RECENT ** (len(runs) - 1 - i)
        * 0.5 ** ((now - run.at) / learned.half_life)
        * (math.exp(-abs(math.log(run.declared / declared))) if run.declared else 0.3)
        for i, run in enumerate(runs)
    ]
    levels = [
        [i for i, run in enumerate(runs) if (run.gpus, run.family, run.mark) == (of.gpus, of.family, of.mark)],
        [i for i, run in enumerate(runs) if (run.gpus, run.family) == (of.gpus, of.family)],
        [i for i, run in enumerate(runs) if run.gpus == of.gpus],
        list(range(len(runs))),
    ]
    points: Points = []
    rest = 1.0
    done: list[list[int]] = [[]]
    for level in levels:
        if level in done:
            continue
        done.append(level)
        total = sum(weight[i] for i in level)
        for i in level:
            mass = rest * weight[i] / (total + BELIEF)
            run = runs[i]
            if run.declared:
                points.append((run.seconds, mass / 2, run.ended))
                points.append((max(1.0, run.seconds * declared / run.declared), mass / 2, run.ended))
            else:
                points.append((run.seconds, mass, run.ended))
        rest *= BELIEF / (total + BELIEF)
    return [*points, (math.nan, rest, True)]


def longer_than(points: Points, seconds: float) -> float:
    """The product-limit estimate, by its definition."""
    survives = 1.0
    for value in sorted({value for value, _, ended in points if ended and value <= seconds}):
        risk = sum(weight for at, weight, _ in points if at >= value)
        ends = sum(weight for at, weight, ended in points if ended and at == value)
        survives *= 1.0 - ends / risk
    return survives


runs_drawn = st.lists(
    st.tuples(
        st.sampled_from([1, 4]),
        st.sampled_from(["Job", "PyTorchJob"]),
        st.sampled_from(["", "x"]),
        st.sampled_from([60.0, 61.5, 600.0, 5000.0]),
        st.sampled_from([None, 600.0, 7200.0]),
        st.booleans(),
    ),
    max_size=20,
)


@given(runs_drawn, st.sampled_from([600.0, 3600.0]))
def test_the_law_is_that_of_the_slow_twin(
    runs: list[tuple[int, str, str, float, float | None, bool]], declared: float
) -> None:
    learned, of = RunTimes(), RunClass("team", 4, "Job", "", "x")
    for number, (gpus, kind, template, seconds, stated, whole) in enumerate(runs):
        learned.ended(RunClass("team", gpus, kind, "", template), seconds, number * DAY, stated, whole=whole)
    now = len(runs) * DAY
    law = learned.expect(of, now, declared)
    *points, (_, rest, _) = twin(learned, of, now, declared)
    wide = learned._wide(4, declared, now)
    points += [(value, rest * part, True) for value, part in wide]
    assert sum(weight for _, weight, _ in points) == pytest.approx(1.0)
    longest = max(value for value, _, _ in points)
    for value in {value for value, _, ended in points if ended and value < longest}:
        assert 1.0 - law.until(value) == pytest.approx(longer_than(points, value), abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(1.0, 1e6), st.floats(0.01, 1.0)), min_size=1, max_size=8),
    st.floats(0.01, 0.99),
    st.floats(0.0, 1e6),
)
@example([(1.0000000000000002, 1.0)], 0.5, 0.0)
def test_a_quantile_is_the_inverse_of_the_law(points: list[tuple[float, float]], part: float, elapsed: float) -> None:
    law = RunTime(sorted(points))
    value = law.quantile(part, elapsed)
    assert value >= elapsed
    passed = law.until(elapsed)
    if passed < 1.0 - 1e-6:
        reached = (law.until(value) - passed) / (1.0 - passed)
        below = (law.until(value * (1 - 1e-9)) - passed) / (1.0 - passed)
        assert below - 1e-5 <= part <= reached + 1e-5


def quantiles(learned: RunTimes, of: RunClass, declared: float | None = 3600.0, elapsed: float = 0.0) -> list[float]:
    law = learned.expect(of, 100 * DAY, declared)
    return [law.quantile(part, elapsed) for part in (0.1, 0.5, 0.9)]


def test_a_first_gang_has_a_wide_law_within_what_is_declared_and_its_own_runs_take_over() -> None:
    learned, of = RunTimes(), RunClass("team", 8)
    first = quantiles(learned, of)
    assert first[2] > 100 * first[0]
    assert first[2] <= 3600.0
    for number in range(20):
        learned.ended(of, 1000.0 + number, 99 * DAY + number, 3600.0)
    low, middle, high = quantiles(learned, of)
    assert 800 < low < middle == pytest.approx(1010, abs=15)
    assert high < 1020
    # One that has outlived all of them: again wide, and later than that.
    late = quantiles(learned, of, elapsed=1500.0)
    assert late[0] > 1500.0
    assert late[2] > 2 * late[0]


def test_a_class_without_runs_is_known_by_wider_ones_and_by_other_namespaces() -> None:
    learned = RunTimes()
    for number in range(30):
        learned.ended(RunClass(f"other-{number % 7}", 8, "Job"), 3600.0 / 6, 99 * DAY + number, 3600.0)
    assert quantiles(learned, RunClass("new", 8, "Job"))[1] == pytest.approx(600.0, rel=0.05)
    # Of another duration the share of it counts, not the seconds.
    assert quantiles(learned, RunClass("new", 8, "Job"), 7200.0)[1] == pytest.approx(1200.0, rel=0.2)
    for number in range(12):
        learned.ended(RunClass("new", 1, "Job", "low", "b"), 60.0, 99.5 * DAY + number, 3600.0)
    assert quantiles(learned, RunClass("new", 8, "PyTorchJob"))[1] < 100.0


def test_what_was_evicted_is_no_end() -> None:
    ends, stops = RunTimes(), RunTimes()
    for number in range(20):
        for learned, whole in ((ends, True), (stops, number % 2 == 0)):
            learned.ended(RunClass("team", 8), 300.0 if number % 2 else 3000.0, 99 * DAY + number, 3600.0, whole=whole)
    assert quantiles(ends, RunClass("team", 8))[1] < 1000.0 < quantiles(stops, RunClass("team", 8))[1]


def test_old_runs_count_less() -> None:
    learned, of = RunTimes(half_life_seconds=DAY), RunClass("team", 8)
    for number in range(10):
        learned.ended(of, 60.0, number, 3600.0)
    for number in range(3):
        learned.ended(of, 2000.0, 99 * DAY + number, 3600.0)
    assert quantiles(learned, of)[1] > 1500.0


def test_it_is_killed_at_its_deadline() -> None:
    law = RunTimes().expect(RunClass("team", 1), 0.0, None, most=500.0)
    assert law.quantile(0.99) == 500.0
    assert law.until(500.0) == 1.0


def test_no_class_pushes_out_another_and_no_namespace_what_is_known_of_others() -> None:
    learned = RunTimes()
    learned.ended(RunClass("team", 64), 5000.0, 1.0)
    learned.ended(RunClass("quiet", 8), 700.0, 2.0)
    for number in range(3000):
        learned.ended(RunClass("team", 1), 10.0, 3.0 + number)
    assert [run.gpus for run in learned._namespaces["team"]].count(64) == 1
    assert len(learned._namespaces["team"]) == OF_NAMESPACE
    assert len(learned._all) == OF_ALL
    assert ("quiet", 8) in [(name, run.gpus) for name, run in learned._all]
    for number in range(5000):  # one that makes classes without end
        learned.ended(RunClass("team", 1, template=str(number)), 10.0, 4000.0 + number)
    assert len(learned._namespaces["team"]) == OF_NAMESPACE
    assert "quiet" in learned._namespaces


def test_memory_is_bounded_and_the_longest_text_can_be_stored() -> None:
    learned = RunTimes()
    for number in range(3 * MOST_NAMESPACES):
        for run in range(OF_NAMESPACE if number >= 2 * MOST_NAMESPACES else 1):
            of = RunClass(f"{number:063}", 1024, f"kind-{run}", "class", f"template-{run}")
            learned.ended(of, 31_622_399.9, 1.7e9 + 100 * number + run, 31_622_399.9, whole=False)
        learned.expect(RunClass("any", number), 1.7e9, 60.0 + number)
    assert len(learned._namespaces) == MOST_NAMESPACES
    assert len(learned._all) == OF_ALL
    assert len(learned._laws) <= runtimes.MOST_LAWS
    assert min(learned._namespaces) == f"{2 * MOST_NAMESPACES:063}"  # those that ended longest ago are forgotten
    text = learned.dump()
    assert len(text.encode()) <= RUN_TIMES_BYTES
    stored = json.loads(text)["namespaces"]
    assert len(stored) == MOST_NAMESPACES
    assert all(12 < len(runs) < OF_NAMESPACE for runs in stored.values())
    assert all(
        runs == [list(run) for run in msgspec.to_builtins(learned._namespaces[name][-len(runs) :])]
        for name, runs in stored.items()
    )
    other = RunTimes()
    other.load(text)
    assert other.dump() == text


def drawn(seed: int, count: int) -> RunTimes:
    dice, learned = random.Random(seed), RunTimes()
    for number in range(count):
        of = RunClass(dice.choice("abc"), dice.choice((1, 2, 8)), dice.choice(("Job", "")), "", dice.choice("xy"))
        learned.ended(
            of, dice.lognormvariate(6, 2), float(number), dice.choice((None, 3600.0)), whole=dice.random() < 0.8
        )
    return learned


def test_a_stored_text_gives_the_same_laws() -> None:
    learned, other = drawn(1, 90), RunTimes()
    other.load(learned.dump())
    for name in ("a", "b", "c"):
        mine, theirs = (known.expect(RunClass(name, 8, "Job"), 100.0, 900.0) for known in (learned, other))
        parts = [i / 20 for i in range(1, 20)]
        for part in parts:  # those of other namespaces are the runs that are stored
            assert theirs.quantile(part) == pytest.approx(mine.quantile(part), rel=0.3)
    assert other.dump() == learned.dump()


def test_what_was_learned_before_the_text_was_read_is_kept() -> None:
    learned, other = drawn(1, 20), RunTimes()
    other.ended(RunClass("later", 8), 50.0, 1000.0)
    other.load(learned.dump())
    assert set(other._namespaces) == {"a", "b", "c", "later"}
    text = other.dump()
    other.load(text)
    assert other.dump() == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "{}",
        '{"format":1}',
        '{"format":1,"namespaces":{"a":[[1]]}}',
        '{"format":2,"namespaces":{}}',
        "9" * 1_000_001,
    ],
)
def test_a_text_that_is_damaged_is_an_error(text: str) -> None:
    with pytest.raises(Damaged):
        RunTimes().load(text)


def test_an_impossible_run_of_a_text_is_left_out() -> None:
    learned = RunTimes()
    learned.load(
        '{"format":1,"namespaces":{"a":[[1,1,1,-5.0,0.0,1.0,true],[1,1,1,1e300,0,1.0,true],[1,1,1,5.0,0,1.0,true]]}}'
    )
    assert [run.seconds for run in learned._namespaces["a"]] == [5.0]


def test_a_text_of_a_version_to_come_is_known_as_such() -> None:
    assert is_newer('{"format":2,"anything":[]}', FORMAT)
    assert not any(is_newer(text, FORMAT) for text in ['{"format":1,"namespaces":{}}', "x", "[]", '{"format":"2"}', ""])


@given(runs_drawn)
def test_quantiles_rise(runs: list[tuple[int, str, str, float, float | None, bool]]) -> None:
    learned = RunTimes()
    for number, (gpus, kind, template, seconds, stated, whole) in enumerate(runs):
        learned.ended(RunClass("team", gpus, kind, "", template), seconds, float(number), stated, whole=whole)
    for elapsed in (0.0, 59.0, 700.0, 1e7):
        law = learned.expect(RunClass("team", 4), 20.0, 3600.0)
        values = [law.quantile(i / 50, elapsed) for i in range(1, 50)]
        assert all(low <= high * (1 + 1e-9) for low, high in pairwise(values))
        assert values[0] >= elapsed


def test_runs_that_a_wrong_clock_dated_decide_nothing() -> None:
    learned = RunTimes()
    learned.ended(RunClass("a", 8), 100.0, 5.0)
    now = 57 * 365 * DAY
    assert learned.expect(RunClass("a", 8), now).quantile(0.5) == RunTimes().expect(RunClass("a", 8), now).quantile(0.5)


def law_of(learned: RunTimes, of: RunClass) -> RunTime:
    return learned.expect(of, 100 * DAY, 3600.0)


def test_10000_runs_of_one_namespace_hardly_move_what_others_know() -> None:
    """They weigh no more than OF_ONE runs, or than PART_OF_ONE of those of others: a twelfth of the sum."""
    dice, learned = random.Random(1), RunTimes()
    for number in range(160):
        learned.ended(RunClass(f"team-{number % 16}", 8), dice.uniform(600, 3000), 99 * DAY + number, 3600.0)
    new, team = RunClass("new", 8), RunClass("team-0", 8)
    of_new, of_team = law_of(learned, new), law_of(learned, team)
    for number in range(10_000):
        learned.ended(RunClass("flood", 8), 1.0, 99.5 * DAY + number / 10, 3600.0)
    for before, after, part in ((of_new, law_of(learned, new), 0.1), (of_team, law_of(learned, team), 0.05)):
        for seconds in (10.0, 500.0, 1000.0, 2000.0, 2900.0):
            assert after.until(seconds) == pytest.approx(before.until(seconds), abs=part)


# -- which gangs hold GPUs, since when, and of which class they are ----------------------------------------------------


GANG = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2"}


def world() -> World:
    made = World()
    for name in ("n1", "n2"):
        made.node(name, 8)
    return made


def runs_of(made: World) -> GangRuns:
    return GangRuns(made.cluster, made.verbs.claims.seats, RunTimes())


def kind(made: World, *pods: PodRecord) -> RunClass:
    return class_of(pods, made.cluster.gangs.objects)


def test_a_gang_and_a_single_pod() -> None:
    made = world()
    notes = {**GANG, "gpu-extender.io/duration": "1h"}
    made.pod("g-0", 4, "n1", start=WALL - 60, annotations=notes)
    made.pod("g-1", 2, "n2", start=WALL - 90, annotations=notes | {"gpu-extender.io/duration": "2h"})
    made.pod("alone", 2, "n1")
    made.pod("cpu", 0, "n1", start=WALL)
    made.pod("waits", 1)
    one, two = sorted(finish(runs_of(made).read(WALL)), key=lambda gang: gang.name, reverse=True)
    pods = [made.cluster.pods[f"uid-{name}"] for name in ("g-0", "g-1", "alone")]
    uids = ("uid-g-0", "uid-g-1")
    begun, gpus = WALL - 90, {"n1": 4, "n2": 2}
    assert one == GangRun("default/g", kind(made, *pods[:2]), begun, 7200.0, inf, begun + 7200, gpus, "default", uids)
    alone = kind(made, pods[2])
    assert two == GangRun("default/alone", alone, WALL, None, inf, inf, {"n1": 2}, "default", ("uid-alone",))
    assert one.kind.gpus == 6


def test_the_end_of_what_terminates_is_known() -> None:
    made = world()
    made.pod("a", 4, "n1", start=WALL - 60, terminating=WALL + 30)
    (gang,) = finish(runs_of(made).read(WALL))
    assert gang.most == 90.0


def test_what_is_the_same_is_not_read_again() -> None:
    made = world()
    made.pod("a", 4, "n1", start=WALL - 60)
    made.pod("b", 4, "n1", start=WALL - 60)
    runs = runs_of(made)
    before = {gang.name: gang for gang in finish(runs.read(WALL))}
    made.pod("b", 4, "n1", start=WALL - 60, annotations={"gpu-extender.io/duration": "1h"})
    after = {gang.name: gang for gang in finish(runs.read(WALL))}
    assert after["default/a"] is before["default/a"]
    assert (before["default/b"].declared, after["default/b"].declared) == (None, 3600.0)
    made.gone("a")
    assert [gang.name for gang in finish(runs.read(WALL))] == ["default/b"]
