"""The metrics: docs/metrics.md is a promise to dashboards, and states exactly what a server prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from prometheus_client import generate_latest

from extender.cluster.ledger import Drift
from extender.cluster.pod_failures import What
from extender.kube.pod_writes import EvictionOutcome
from extender.metrics import BUCKETS, Metrics
from extender.reservations.reservations import CAUSES
from tests.pages.reference import LABEL_VALUES
from tests.world import World

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"


def test_buckets_pass_the_schedulers_default_timeout() -> None:
    assert len(BUCKETS) == 17
    assert BUCKETS[0] == 0.0001
    assert BUCKETS[-2] < 5 < BUCKETS[-1]  # seconds


def test_two_sets_do_not_meet_and_values_are_printed() -> None:
    one, other = Metrics(), Metrics()
    one.bad_requests.labels("filter", "bad-request").inc()
    line = b'gpu_extender_bad_requests_total{code="bad-request",verb="filter"} 1.0'
    assert line in generate_latest(one.registry)
    assert line not in generate_latest(other.registry)


def test_the_page_lists_exactly_what_a_server_prints(world: World) -> None:
    """By name, kind and labels; what prometheus_client adds to each (its time of creation) is told on the page's top.
    tests/test_pages.py compares the page with the code: a name that changes there is a promise that is broken."""
    printed = world.call("/metrics", method="GET").body.decode()
    kinds = {
        name: kind for name, kind in re.findall(r"(?m)^# TYPE (\S+) (\w+)$", printed) if not name.endswith("_created")
    }
    told = re.findall(r"(?m)^\| `(gpu_extender_\w+)` \| (\w+) \| ([^|]+) \| ([^|]*) \|$", PAGE.read_text())
    assert {name: kind for name, kind, _, _ in told} == kinds
    assert len([line for line in PAGE.read_text().splitlines() if line.startswith("| `")]) == len(told) == len(kinds)
    named = {value._name: value._labelnames for value in vars(world.metrics).values() if hasattr(value, "_labelnames")}
    for name, _, text, labels in told:
        assert f"# HELP {name} {text}\n" in printed
        assert tuple(re.findall(r"(?:^|; )`(\w+)`(?=:|;|$)", labels)) == named[name.removesuffix("_total")]


def test_the_values_on_the_page_are_those_of_the_code() -> None:
    def told(label: str) -> set[str]:
        return set(re.findall(r"`([\w-]+)`", LABEL_VALUES[label]))

    assert told("reservations_released cause") == set(CAUSES)
    assert told("plans outcome") == set(get_args(Drift))
    assert told("pod_failures what") == set(get_args(What))
    outcomes = set(get_args(EvictionOutcome))
    assert told("evictions result") == outcomes | {f"dry-run-{one}" for one in outcomes - {"evicted", "gone"}}
    assert {key.partition(" ")[0] for key in LABEL_VALUES if " " in key} <= {
        family.name.removeprefix("gpu_extender_") for family in Metrics().registry.collect()
    }
