"""Percentiles, the gate and the report, without a server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest import plot, report
from loadtest.figures import LEAST_CALLS, NULL, OURS, Figures, Row, percentiles
from tests.needs import lacking

FILTER = Row("filter", 1000)
SHARES = {"p50": Fraction(1, 2), "p90": Fraction(9, 10), "p99": Fraction(99, 100), "p999": Fraction(999, 1000)}
MS = st.floats(0.01, 1e4, allow_nan=False)


def measured(ours: list[float], null: list[float], row: Row = FILTER) -> Figures:
    figures = Figures()
    for server, spent in ((OURS, ours), (NULL, null)):
        for one in spent:
            figures.add(row, server, one)
    return figures


@given(st.lists(MS, min_size=1, max_size=3000))
def test_a_percentile_is_the_least_time_that_its_share_of_the_calls_does_not_exceed(spent: list[float]) -> None:
    found = percentiles(spent)
    for key, share in SHARES.items():
        least = min(ms for ms in spent if Fraction(sum(one <= ms for one in spent), len(spent)) >= share)
        assert found[key] == least
    assert (found["calls"], found["max"]) == (len(spent), max(spent))


def test_percentiles_of_known_times() -> None:
    found = percentiles([float(i) for i in range(1000, 0, -1)])
    assert found == {"calls": 1000, "p50": 500.0, "p90": 900.0, "p99": 990.0, "p999": 999.0, "max": 1000.0}


def test_the_gate_is_a_ratio_to_the_null() -> None:
    slow = measured([80.0] * 100, [1.0] * 100)
    assert slow.summary()[0]["ratio"] == {"p50": 80.0, "p99": 80.0}
    assert [why.partition(":")[2] for why in slow.verdict(True)] == [" p50 is 80.0 x the null's, more than 8"]
    assert slow.verdict(False) == []
    assert measured([8000.0] * 100, [1000.0] * 100).verdict(True) == []


def test_percentiles_of_few_calls_decide_nothing() -> None:
    assert measured([80.0] * 99, [1.0] * 100).verdict(True) == []
    tail = [1.0] * 97 + [99.0] * 3
    assert measured(tail, [1.0] * 100).verdict(True) == []
    many = measured(tail * 10, [1.0] * LEAST_CALLS["p99"])
    assert [why.partition(":")[2] for why in many.verdict(True)] == [" p99 is 99.0 x the null's, more than 16"]


def test_limits_are_higher_while_events_come() -> None:
    for churn, passes in ((None, False), (0, False), (1000, True)):
        figures = measured([9.0] * 100, [1.0] * 100, Row("filter", 1000, churn))
        assert (figures.verdict(True) == []) is passes


def test_errors_few_requests_and_verbs_that_were_never_asked_fail() -> None:
    figures = measured([1.0], [1.0])
    figures.expected = {"filter", "preempt"}
    for i in range(7):
        figures.fail(f"wrong {i}")
    assert figures.verdict(False) == [*(f"wrong {i}" for i in range(5)), "7 requests failed"]
    assert figures.missing(10) == [
        "2 requests were made, fewer than 10: this measured nothing",
        "never asked: preempt",
    ]
    assert measured([1.0], [1.0]).missing(2) == []


class Cells(HTMLParser):
    """The text of each table cell, and of the script with the figures."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.script, self._into = "", ""
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.outside += [str(text) for key, text in attributes if key in ("src", "href", "data", "action")]
        self._into = tag
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._into = ""

    def handle_data(self, text: str) -> None:
        if self._into == "td":
            self.rows[-1][-1] += text
        elif self._into == "script":
            self.script += text


@pytest.fixture
def found() -> dict[str, Any]:
    figures = measured([0.5 + i % 97 / 10 for i in range(3000)], [0.4 + i % 31 / 20 for i in range(3000)])
    figures.add(Row("preempt", 100, 1000), OURS, 3.25)
    figures.add(Row("page </script><b>", 0), OURS, 1.0)
    return figures.as_json()


def test_the_report_has_the_recorded_numbers_and_needs_no_network(found: dict[str, Any]) -> None:
    text = report.page({**found, "failures": ["a <b> failed"], "sent": {"1000": 998.6}}, "http://a&b")
    cells = Cells()
    cells.feed(text)
    assert cells.rows[1:] == [report.cells(row) for row in found["rows"]]
    assert json.loads(cells.script)["rows"] == found["rows"]
    assert cells.outside == []
    assert "url(" not in text
    assert "default-src 'none'" in text
    assert "a &lt;b&gt; failed" in text
    assert "<b>" not in text
    assert "999 sent" in text
    ours = next(row for row in found["rows"] if row["verb"] == "filter")
    spent = sorted(next(one["ms"] for one in found["times"] if one["verb"] == "filter" and one["server"] == OURS))
    assert (ours[OURS]["p50"], ours[OURS]["p99"]) == (spent[1499], spent[2969])
    assert f"| filter | 1000 |  | 3000 | {spent[1499]:.2f} |" in report.table(found["rows"])


def test_events_are_compared_with_none() -> None:
    figures = measured([2.0], [1.0], Row("filter", 1000, 0))
    figures.add(Row("filter", 1000, 100), OURS, 3.0)
    figures.add(Row("bind", 1, 100), OURS, 3.0)
    found = figures.as_json()
    (line,) = report.beside_idle(found["rows"])
    assert line == "filter of 1000 names at 100 events/s: p99 is 1.50 x that at 0."
    assert line in report.page(found, "x")


@given(st.lists(MS, min_size=1, max_size=2000))
def test_a_curve_has_measured_times_at_their_ranks_and_ends_at_the_longest(spent: list[float]) -> None:
    spent.sort()
    points = list(plot.points(spent))
    for tens, ms in points:
        rank = round(len(spent) * (1 - 10**-tens))
        assert spent[rank] == ms
    assert points[0] == (0.0, spent[0])
    assert points[-1][1] == spent[-1]
    assert len(points) <= plot.POINTS + 1


def test_a_browser_shows_a_curve_for_each_row_and_server(found: dict[str, Any], tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        lacking("Chromium is not installed (Debian: apt install chromium)")
    file = tmp_path / "report.html"
    file.write_text(report.page(found, "our own server"))
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [browser, *words, "--window-size=1200,1200", f"--screenshot={tmp_path / 'page.png'}", "--dump-dom"]
    shown = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=60, check=True).stdout
    assert len(re.findall(r"<polyline", shown)) == len(found["times"]) == 4
    assert shown.count("<svg") == 3
