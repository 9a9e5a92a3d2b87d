"""What CI runs of `make fuzz`: the same few cases on every machine; and that the fuzzer finds what is broken
on purpose."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fuzz import PARTS, engine
from tests.fuzz.__main__ import show
from tests.fuzz.asking import check_answer
from tests.fuzz.engine import Broken, Outcome, Part, Step, replay, run, shrink
from tests.fuzz.hostile import cut, cuts, mutated, render

SEED = 11  # fixed: a change fails on what it broke; `make fuzz` takes another each time
CASES = {"bodies": 2000, "objects": 100, "settings": 200, "clusters": 100}
SECONDS = 600.0  # for a part that became slow


@pytest.mark.parametrize("part", PARTS, ids=[part.name for part in PARTS])
def test_nothing_fails(part: Part, tmp_path: Path) -> None:
    """GPU_EXTENDER_FUZZ_SEED: another seed."""
    seed = int(os.environ.get("GPU_EXTENDER_FUZZ_SEED", SEED))
    report = run([part], seed, seconds=SECONDS, cases=CASES[part.name], folder=tmp_path)
    print(f"seed {seed}\n{show(report)}")
    assert report.tallies[part.name].cases >= CASES[part.name] or report.failures
    assert not report.failures, show(report)


@pytest.mark.parametrize("part", PARTS, ids=[part.name for part in PARTS])
def test_a_seed_makes_the_same_steps(part: Part) -> None:
    first, again = (part.steps(random.Random("5/x/1")) for _ in range(2))
    assert first == again
    assert first != part.steps(random.Random("5/x/2"))


class _Adder:
    """A part whose world breaks once the numbers that came add up to 100 or more."""

    name = "adder"

    def steps(self, rng: random.Random) -> list[Step]:
        return [{"add": rng.randrange(30), "noise": ["x"]} for _ in range(40)]

    @contextmanager
    def world(self) -> Iterator[_AdderWorld]:
        yield _AdderWorld()


class _AdderWorld:
    def __init__(self) -> None:
        self.total = 0

    def play(self, step: Step) -> None:
        self.total += step["add"]
        if self.total >= 100:
            raise Broken("the sum is too large", str(self.total))

    def end(self) -> None:
        return None


def test_a_failure_is_shrunk_saved_and_replayed(tmp_path: Path) -> None:
    report = run([_Adder()], 3, seconds=30, cases=1, folder=tmp_path)
    (found,) = report.failures.values()
    assert found.signature == "the sum is too large"
    assert 4 <= len(found.steps) <= 8  # of 40, each at most 29
    assert all("noise" not in step for step in found.steps)
    assert found.file is not None
    assert replay([_Adder()], found.file).signature == found.signature
    assert "seed 3, episode 0" in show(report)
    assert str(found.file) in show(report)


class _Waits(_Adder):
    """A part whose world never ends a step. `spins`: it uses CPU time meanwhile."""

    def __init__(self, *, spins: bool) -> None:
        self.spins = spins

    def play(self, step: Step) -> None:
        while True:
            if not self.spins:
                time.sleep(60.0)

    def end(self) -> None:
        return None

    @contextmanager
    def world(self) -> Iterator[_Waits]:  # type: ignore[override]
        yield self


def test_an_episode_that_does_not_end_is_found_by_its_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that waits for ever by the clock, after a time that no load of the machine explains."""
    for spins, limit, text in ((True, "HANG_SECONDS", "1 s of CPU time"), (False, "BLOCKED_SECONDS", "1 s;")):
        with monkeypatch.context() as patch:
            patch.setattr(engine, limit, 1)
            done = engine.play(_Waits(spins=spins), [{}])
        assert done.signature == "a case does not end"
        assert text in done.detail


def test_shrinking_ends_in_time() -> None:
    steps = [{"add": 3} for _ in range(40)]
    part = _Adder()
    done = run([part], 3, seconds=30, cases=1).failures["adder: the sum is too large"]
    assert shrink(part, steps, Outcome(40, done.signature), 0.0)[0] == steps


def test_markers_are_written_out() -> None:
    assert render({"a": "@deep:2", "b": "@raw:ff", "c": "@long:3", "k": 1, "k#1": 2}) == (
        b'{"a":{"f:a":{"f:a":{}}},"b":\xff,"c":"xxx","k":1,"k":2}'
    )
    assert render(["@lists:2"]) == b"[[[]]]"


def test_mutations_can_be_written() -> None:
    rng = random.Random(7)
    value = {"Pod": {"metadata": {"name": "x"}}, "NodeNames": ["a", "b"]}
    made = {cut(render(mutated(rng, value, 3)), cuts(rng)) for _ in range(500)}
    assert len(made) > 450


def test_a_number_of_any_length_is_json() -> None:
    """Whole nodes come back as they were sent."""
    raw = b'{"Nodes":{"items":[{"spec":%s}]}}' % (b"9" * 5000)
    assert check_answer("filter", 200, raw)["Nodes"]["items"] == [{"spec": "9" * 5000}]


def test_only_the_fuzz_profile_is_random_everywhere() -> None:
    assert settings.get_profile("ci").derandomize
    assert not settings.get_profile("fuzz").derandomize
    assert settings.get_profile("fuzz").print_blob
