"""What a look at the queue costs: the benchmark's queues wait as they should, and its numbers are printed."""

from __future__ import annotations

import json

import pytest

from benchmarks import look
from benchmarks.look import Queue

SMALL = (
    Queue("empty", 0, 0, 0),
    Queue("gangs", 3, 2, 8),
    Queue("start", 3, 2, 8, starts=True),
    Queue("singles", 5, 1, 1, delays=True),
)


@pytest.mark.parametrize(("pods", "more"), [("1", []), ("8", []), ("2", ["--learned"])])
def test_it_prints_json(
    pods: str, more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(look, "QUEUES", SMALL)
    assert look.main(["--nodes", "40", "--pods", pods, "--rounds", "1", *more, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "LookBenchmark"
    assert [row["queue"] for row in document["rows"]] == ["empty", "gangs", "start", "singles"]
    assert all(row["again_ms"] >= row["again_longest_ms"] >= 0 for row in document["rows"])
