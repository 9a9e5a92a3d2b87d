"""The targets table: what is read from the measurements, and what is printed of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import scheduler_table, targets
from benchmarks.spread import Line, Spread, at_most, ratios, targets_table


def test_the_ratios_are_those_of_each_round() -> None:
    found = ratios([1.0, 30.0, 2.0], [1.0, 10.0, 4.0])
    assert found == Spread(1.0, 0.5, 3.0)
    assert found.text() == "1.00 (0.50 to 3.00)"
    assert ratios([1.0], [float("nan")]).text() == "-"


def test_a_line_is_met_lost_or_not_measured() -> None:
    assert at_most("m", "<= 2", Spread(2.0, 1.0, 3.0), 2.0).met is True
    assert at_most("m", "<= 2", Spread(2.1, 1.0, 3.0), 2.0).met is False
    assert at_most("m", "<= 2", Spread.of([]), 2.0) == Line("m", "<= 2", "not measured", None)


def test_the_lines_of_all_tables_are_read_and_the_losses_named() -> None:
    lines = [Line("a", "<= 1", "0.5", True), Line("b", "<= 1", "2.0", False), Line("c", "aim", "1", None)]
    text = f"| other | table |\n|---|---|\n| x | y |\n\n{targets_table(lines)}\n\nwords\n"
    read = targets.lines_of(text + text)
    assert read == [["a", "<= 1", "0.5", "met"], ["b", "<= 1", "2.0", "LOST"], ["c", "aim", "1", "-"]] * 2
    shown = targets.summary(targets.Outcome(read[:3], ["z: it broke"], ["y: 15,000 nodes"]))
    assert "1 of 2 targets are met." in shown
    assert shown.endswith("lost: b\nFAILED: z: it broke\nnot measured, use --full: y: 15,000 nodes")


def test_the_tables_are_written_as_csv_and_the_targets_into_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results").mkdir()
    stale = tmp_path / "results/watch-2.csv"
    kept = tmp_path / "results/watch-by-hand.csv"
    for file in (stale, kept):
        file.write_text("old")
    page = tmp_path / "performance.md"
    page.write_text("head\n\n<!-- targets -->\n\nold\n\n<!-- /targets -->\n\ntail\n")
    lines = targets_table([Line("a", "<= 1", "0.5", True), Line("b", "<= 1", "2.0", False)])
    monkeypatch.setattr(targets, "PARTS", (targets.Part("watch"),))
    monkeypatch.setattr(targets, "run", lambda part, whole: (f"| x, y | |\n|---|--:|\n| - | 1 |\n\n{lines}\n", ""))
    assert targets.main(["--write", str(tmp_path)]) == 0
    assert (tmp_path / "results/watch.csv").read_text() == '"x, y",\n-,1\n'
    assert (stale.exists(), kept.read_text()) == (False, "old")
    text = page.read_text()
    assert "1 of 2 targets are met ([targets.csv](results/targets.csv)). **Lost** are:\n\n- b: <= 1, got 2.0\n" in text
    assert (tmp_path / "results/targets.csv").read_text().splitlines()[1:] == ["a,<= 1,0.5,met", "b,<= 1,2.0,LOST"]
    assert "old" not in text
    assert text.endswith("<!-- /targets -->\n\ntail\n")


def row(arm: str, sampling: str, number: int, *, nominated: bool = False, time: float = 1.0, cpu: float = 1.0) -> Any:
    spent = {"algorithm_ms": time, "scheduler_cpu_ms": cpu / 2, "extender_cpu_ms": cpu / 2, "cpu_ms": cpu}
    calls = {"filter": {"made": 10, "mean_ms": 0.5}} if arm == "ours" else {}
    where = {"nodes": 50, "arm": arm, "sampling": sampling, "nominated": nominated, "round": number, "calls": calls}
    return where | spent | {"pods": 10, "landed": 10 if nominated else 0, "attempts": 10}


def test_the_targets_of_the_scheduler() -> None:
    rows = []
    for number in range(3):
        for sampling in ("all", "sampled"):
            slow = 1.0 + number  # the machine is slower from round to round: no ratio shows it
            rows.append(row("none", sampling, number, time=10 * slow))
            rows.append(row("null", sampling, number, time=5 * slow, cpu=4 * slow))
            rows.append(row("ours", sampling, number, time=6 * slow, cpu=4.4 * slow))
            rows.append(row("before", sampling, number, time=8 * slow, cpu=14 * slow))
            rows.append(row("ours", sampling, number, nominated=True, time=1 * slow))
    got = {line.measure: (line.got, line.met) for line in scheduler_table.targets(rows)}
    where = "50 nodes, all nodes scored"
    assert got[f"CPU of kube-scheduler and extender, {where}"] == ("1.10 (1.10 to 1.10)", True)
    assert got[f"algorithm time of nominated pods, {where}"] == ("0.100 (0.100 to 0.100)", False)
    assert got["algorithm time of nominated pods, 50 nodes, default sampling"] == ("0.100 (0.100 to 0.100)", True)
    assert got[f"extender CPU, {where}"] == ("0.31 (0.31 to 0.31)", True)
    assert "30 of 30" in scheduler_table.report(rows)
