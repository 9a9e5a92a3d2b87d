"""The metrics: their names are a promise to dashboards, and no label grows with the cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from prometheus_client import generate_latest

from extender.cluster.ledger import Drift
from extender.cluster.pod_failures import What
from extender.kube.pod_writes import EvictionOutcome
from extender.metrics import BUCKETS, VALUES, Metrics, page
from extender.reservations.release import CAUSES
from tests.world import World

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"

PROMISED = {
    "gpu_extender_request_duration_seconds": ("verb", "result"),
    "gpu_extender_decisions": ("verb", "reason"),
    "gpu_extender_refused_nodes": ("code",),
    "gpu_extender_bad_requests": ("verb", "code"),
    "gpu_extender_certificate_reads": ("result",),
    "gpu_extender_certificate_not_after_seconds": ("file",),
    "gpu_extender_nodes_wanted": ("model",),
    "gpu_extender_waiting_pods": ("reason", "gpus"),
    "gpu_extender_partial_gangs": (),
    "gpu_extender_pending_pods": ("priority_class", "outranks"),
    "gpu_extender_pending_oldest_seconds": ("priority_class", "outranks"),
    "gpu_extender_partial_gang_gpus": (),
    "gpu_extender_connections_closed": ("limit",),
    "gpu_extender_handshakes_failed": (),
    "gpu_extender_reviews": ("kind", "result"),
    "gpu_extender_log_lines_dropped": (),
    "gpu_extender_log_lines_sampled": (),
    "gpu_extender_sampled_requests": (),
    "gpu_extender_record_bytes": (),
    "gpu_extender_record_lost": ("cause",),
    "gpu_extender_watch_restarts": ("kind",),
    "gpu_extender_watch_defects": ("kind",),
    "gpu_extender_invalid_objects": ("kind", "reason"),
    "gpu_extender_dark_seconds": (),
    "gpu_extender_cache_objects": ("kind",),
    "gpu_extender_cache_age_seconds": ("kind",),
    "gpu_extender_holds": (),
    "gpu_extender_plans": ("outcome",),
    "gpu_extender_failing_nodes": (),
    "gpu_extender_failing_node_rejections": ("scope",),
    "gpu_extender_pod_failures": ("what",),
    "gpu_extender_double_claimed_gpus": (),
    "gpu_extender_topology_disagreements": (),
    "gpu_extender_reservations": (),
    "gpu_extender_reservations_kept": (),
    "gpu_extender_reservation_writes": ("result",),
    "gpu_extender_reservation_write_duration_seconds": (),
    "gpu_extender_reservations_released": ("cause",),
    "gpu_extender_reservations_damaged": (),
    "gpu_extender_preemption_victims": ("by",),
    "gpu_extender_preemption_work_lost_gpu_seconds": ("by",),
    "gpu_extender_victim_searches": ("result", "proved"),
    "gpu_extender_victim_search_duration_seconds": (),
    "gpu_extender_events": ("result",),
    "gpu_extender_evictions": ("result",),
    "gpu_extender_evictions_leader": (),
    "gpu_extender_queue_leader": (),
    "gpu_extender_queue_waiting": ("reason", "pods"),
    "gpu_extender_queue_share": ("queue",),
    "gpu_extender_queue_failed_pins": ("outcome",),
    "gpu_extender_queue_wanted_gpus": ("queue", "model", "place"),
    "gpu_extender_queue_wait_seconds": ("pods",),
    "gpu_extender_queue_release_duration_seconds": (),
    "gpu_extender_queue_seats_ended": ("cause",),
    "gpu_extender_queue_held_gpu_seconds": ("state",),
    "gpu_extender_queue_evictions": ("outcome",),
    "gpu_extender_queue_absent_gpu_seconds": (),
    "gpu_extender_settings_info": ("hash",),
    "gpu_extender_settings_reloads": ("result",),
    "gpu_extender_degraded": ("part",),
    "gpu_extender_shadow_placements": ("outcome",),
    "gpu_extender_shadow_linked_pods": ("by",),
    "gpu_extender_shadow_ring_gbps": ("by",),
    "gpu_extender_shadow_whole_nodes_broken": ("by",),
    "gpu_extender_shadow_victims": ("by",),
    "gpu_extender_shadow_gangs_broken": ("by",),
    "gpu_extender_shadow_work_lost_gpu_seconds": ("by",),
}


def test_the_names_and_labels_are_those_promised() -> None:
    metrics = Metrics()
    ours = {
        value._name: tuple(value._labelnames)
        for name, value in vars(metrics).items()
        if name not in ("registry", "labels", "degraded")
    }
    assert ours == PROMISED
    assert {family.name for family in metrics.registry.collect()} == set(PROMISED)


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


def test_the_page_lists_exactly_what_a_server_prints() -> None:
    """By name and kind; what prometheus_client adds to each (its time of creation) is told on the page's top."""
    printed = World().call("/metrics", method="GET").body.decode()
    kinds = {
        name: kind for name, kind in re.findall(r"(?m)^# TYPE (\S+) (\w+)$", printed) if not name.endswith("_created")
    }
    told = re.findall(r"(?m)^\| `(gpu_extender_\w+)` \| (\w+) \| ([^|]+) \| ([^|]*) \|$", PAGE.read_text())
    assert {name: kind for name, kind, _, _ in told} == kinds
    assert len(told) == len(kinds)
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == len(told)
    for name, _, text, labels in told:
        assert f"# HELP {name} {text}\n" in printed
        promised = PROMISED[name.removesuffix("_total")]
        assert tuple(re.findall(r"`(\w+)`: ", labels)) == promised
    assert PAGE.read_text() == page(), "run: python -m extender.metrics > docs/metrics.md"


def test_the_values_on_the_page_are_those_of_the_code() -> None:
    def told(label: str) -> set[str]:
        return set(re.findall(r"`([\w-]+)`", VALUES[label]))

    assert told("reservations_released cause") == set(CAUSES)
    assert told("plans outcome") == set(get_args(Drift))
    assert told("pod_failures what") == set(get_args(What))
    outcomes = set(get_args(EvictionOutcome))
    assert told("evictions result") == outcomes | {f"dry-run-{one}" for one in outcomes - {"evicted", "gone"}}
    assert {key.partition(" ")[0] for key in VALUES if " " in key} <= {
        name.removeprefix("gpu_extender_") for name in PROMISED
    }
