"""What a long run is judged by; and a run of some seconds, whose figures prove nothing but that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.steady.__main__ import parsed, rss, server
from tests.steady.accounts import Plan, Window, faults, table
from tests.steady.cluster import PODS, Api, Scheduler


def window(p99: float, size: float) -> Window:
    """98 calls of a millisecond and two slower ones."""
    return Window([0.001] * 98 + [p99] * 2, [size] * 3, pods=50)


SHORT = Plan(hours=0.01, real=0.01, rate=4)
"""144 pods."""


def test_the_last_window_is_judged_by_the_second() -> None:
    second = window(0.010, 100)
    assert faults(SHORT, [window(9, 900), second, window(0.012, 105)]) == []
    assert faults(SHORT, [window(9, 900), second, window(0.0121, 106)]) == [
        "RSS 106.0 MiB is more than 1.05 x 100.0 MiB",
        "p99 12.10 ms is more than 1.2 x 10.00 ms",
    ]
    none = Window(pods=50)
    for windows in ([second, second, none], [second, none, second], [Window(pods=50), window(9, 9)]):
        assert faults(SHORT, windows)[-1] == "there are no three windows with calls"
    assert table([second]).splitlines()[1].split() == ["1", "50", "100", "1.00", "10.00", "100.0"]


def test_a_run_that_played_fewer_pods_than_stated_is_no_steady_one() -> None:
    three = [window(0.01, 100) for _ in range(3)]
    assert faults(Plan(1, 1, rate=150 / 0.9 / 3600), three) == []
    [fault] = faults(Plan(2, 1, rate=84 / 3600), three)
    assert fault.startswith("150 of 168 pods, 0.0 a second: less than 0.9 of them")


def test_windows_are_played_hours_or_eighths() -> None:
    assert Plan(8, 8).window == Plan(24, 24).window == 3600
    assert Plan(8, 1).window == Plan(1, 1).window == 450
    assert Plan(16, 1).window == 225
    assert Plan(1 / 15, 1 / 15).window == pytest.approx(30)


def test_played_hours_have_the_pods_of_real_ones() -> None:
    assert Plan(8, 1).pods == Plan(8, 8).pods == 288_000
    assert (Plan(8, 1).real_rate, Plan(8, 1).seconds) == (80, 3600)


@pytest.mark.parametrize("given", ["--hours 8 --real 0.5", "--hours 2 --real 3", "--hours 0.2 --real 0"])
def test_an_hour_at_least_is_real(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parsed(given.split())
    assert "--real: above 0, at most --hours, and at least 1 where --hours is" in capsys.readouterr().err


def test_the_options() -> None:
    assert parsed(["--hours", "8", "--real", "1"])[0] == Plan(8, 1)
    assert parsed(["--hours", "0.2", "--real", "0.1", "--rate", "5"])[0] == Plan(0.2, 0.1, 5)
    assert parsed([])[0] == Plan(8, 8)


def test_pods_are_placed_end_and_evict_while_watches_expire(tmp_path: Path) -> None:
    """300 pods over ten nodes, as fast as the server answers."""
    api = Api()
    with api.running() as url:
        scheduler = Scheduler(api, 10, seed=3)
        with server(tmp_path, url) as (process, client):
            for _ in range(300):
                scheduler.step(client)
            client.request("GET", "/metrics")
            page = client.getresponse().read().decode()
            assert rss(process.pid) > 10
    assert len(scheduler.calls) > 600
    assert 'verb="preempt"' in page
    assert 'gpu_extender_decisions_total{reason="fits",verb="filter"}' in page
    assert len(api.stub.stored[PODS]) < 80  # what ended is gone
