"""Percentiles, the gate and the report, without a server."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from loadtest import report
from loadtest.figures import LEAST_CALLS, NULL, OURS, Figures, Row, percentiles

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


def test_events_are_compared_with_none() -> None:
    figures = measured([2.0], [1.0], Row("filter", 1000, 0))
    figures.add(Row("filter", 1000, 100), OURS, 3.0)
    figures.add(Row("bind", 1, 100), OURS, 3.0)
    found = figures.as_json()
    (line,) = report.beside_idle(found["rows"])
    assert line == "filter of 1000 names at 100 events/s: p99 is 1.50 x that at 0."
    assert line in report.page(found, "x")
