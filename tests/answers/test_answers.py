"""Every question that people ask is answered as it is recorded (`record.py` has how to record anew)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from tests.answers import record
from tests.answers.questions import answers

LEAST: Final = 300
"""Answers that are recorded."""
SHOWN: Final = 30
"""Differences of one cluster that are printed."""


@pytest.mark.parametrize("name", record.names())
def test_each_question_is_answered_as_recorded(name: str) -> None:
    scenario, before = record.read(name)
    found = list(differences(before, answers(scenario)))
    if found:
        more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        pytest.fail(
            "\n".join([f"cluster {name}:", *found[:SHOWN], *more, f"on purpose? {record.COMMAND}"]), pytrace=False
        )


def test_many_answers_are_recorded() -> None:
    sizes = {name: len(record.read(name)[1]) for name in record.names()}
    print(f"{sum(sizes.values())} answers of {len(sizes)} clusters")
    assert sum(sizes.values()) >= LEAST


def test_a_difference_names_the_question_and_the_place() -> None:
    before = {"top -o json": {"models": [{"free_gpus": 1}], "warnings": []}, "map -o json": {}}
    after = {"top -o json": {"models": [{"free_gpus": 2}, {}], "warnings": []}, "check -o json": {}}
    assert list(differences(before, after)) == [
        "  check -o json  before: nothing  after: {}",
        "  map -o json  before: {}  after: nothing",
        "  top -o json .models[0].free_gpus  before: 1  after: 2",
        "  top -o json .models[1]  before: nothing  after: {}",
    ]


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING: Final = _Nothing()


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """A line for each: question, path in the JSON, before, after."""
    for question in sorted(before.keys() | after.keys()):
        for path, old, new in _different(before.get(question, NOTHING), after.get(question, NOTHING), " "):
            yield f"  {question}{path.rstrip()}  before: {old!r}  after: {new!r}"


def _different(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _different(old.get(key, NOTHING), new.get(key, NOTHING), f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list):
        for at in range(max(len(old), len(new))):
            first, second = (some[at] if at < len(some) else NOTHING for some in (old, new))
            yield from _different(first, second, f"{path}[{at}]")
    elif old != new:
        yield path, old, new
