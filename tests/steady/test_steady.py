"""What a long run is judged by; and a run of some seconds, whose figures prove nothing but that it runs."""

from __future__ import annotations

from pathlib import Path

from tests.steady.__main__ import rss, server
from tests.steady.accounts import WINDOW_SECONDS, Window, faults, length, table
from tests.steady.cluster import PODS, Api, Scheduler


def window(p99: float, size: float) -> Window:
    """98 calls of a millisecond and two slower ones."""
    return Window([0.001] * 98 + [p99] * 2, [size] * 3)


def test_the_last_window_is_judged_by_the_second() -> None:
    second = window(0.010, 100)
    assert faults([window(9, 900), second, window(9, 900), window(0.012, 105)]) == []
    assert faults([window(9, 900), second, window(0.0121, 106)]) == [
        "RSS 106.0 MiB is more than 1.05 x 100.0 MiB",
        "p99 12.10 ms is more than 1.2 x 10.00 ms",
    ]
    assert faults([second, second]) == faults([second, Window(), second]) == ["there are no three windows with calls"]
    assert table([second]).splitlines()[1].split() == ["1", "100", "1.00", "10.00", "100.0"]


def test_windows_are_hours_or_eighths() -> None:
    assert length(8 * 3600) == length(24 * 3600) == WINDOW_SECONDS
    assert length(240) == 30


def test_pods_are_placed_end_and_evict_while_watches_expire(tmp_path: Path) -> None:
    """600 pods over ten nodes, as fast as the server answers."""
    api = Api()
    with api.running() as url:
        scheduler = Scheduler(api, 10, seed=3)
        with server(tmp_path, url) as (process, client):
            for _ in range(600):
                scheduler.step(client)
            client.request("GET", "/metrics")
            page = client.getresponse().read().decode()
            assert rss(process.pid) > 10
    assert len(scheduler.calls) > 1200
    assert 'verb="preempt"' in page
    assert 'gpu_extender_decisions_total{reason="fits",verb="filter"}' in page
    assert len(api.stub.stored[PODS]) < 80  # what ended is gone
