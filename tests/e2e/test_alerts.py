"""promtool judges the rules, each alert by a series that fires it and one that does not, and the page of metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extender.act import settings_file
from extender.act.controller import Supervisor
from extender.act.gated import UNLED_SECONDS
from extender.act.settings_file import SettingsFile
from extender.metrics import Metrics
from extender.queue.report import QueueLeader
from extender.settings import Settings
from tests.act.queue.rig import rig
from tests.act.queue.test_controller import gang
from tests.act.queue.test_unled import Lease, posted
from tests.act.queue.test_unled import gated as gated_pods
from tests.act.test_settings_file import HEAD
from tests.e2e.promtool import promtool
from tests.server.certificate_files import serving as serving_certificate
from tests.server.certificate_files import trusting, written
from tests.server.served import serving
from tests.server.test_certificates import ask
from tests.test_defects import Failing
from tests.test_monitoring import ALERTS, METRIC, RULES, panels
from tests.waiting import wait_for
from tests.world import World, pairs

HEALTHY = {"gpu_extender_dark_seconds": "0x300"}
"""Without it GpuExtenderNotReady fires."""


class Case(NamedTuple):
    """Series of one sample a minute, as promtool writes them.

    With `fires` the alert fires at `minute`; `quiet` stays just below its threshold.
    """

    minute: int
    fires: dict[str, str]
    quiet: dict[str, str]


REFUSED = 'gpu_extender_decisions_total{verb="filter",reason="refused"}'
LATE = 'gpu_extender_request_duration_seconds_bucket{verb="filter",le="%s"}'
WAITS = 'gpu_extender_pending_oldest_seconds{priority_class="%s",outranks="%s"}'
SAVES = 'gpu_extender_save_requests_total{result="%s"}'
DEFECTS = 'gpu_extender_watch_defects_total{kind="Pod"}'
CASES = {
    "GpuExtenderNotReady": Case(5, {"gpu_extender_dark_seconds": "0 60x10"}, HEALTHY),
    "GpuExtenderWatchDown": Case(
        5,
        {'gpu_extender_dark_seconds{instance="a"}': "31x10", 'gpu_extender_dark_seconds{instance="b"}': "0x10"},
        {"gpu_extender_dark_seconds": "30x10"},
    ),
    "GpuExtenderNodesSampled": Case(
        40, {"gpu_extender_sampled_requests_total": "0+1x60"}, {"gpu_extender_sampled_requests_total": "0x5 1x60"}
    ),
    "GpuExtenderPodsRejectedEverywhere": Case(
        # A retry every five minutes; and a pod that waits for one hour.
        150, {REFUSED: " ".join(f"{n}x4" for n in range(60))}, {REFUSED: "0+1x60 60x200"},
    ),
    "GpuExtenderClassOutranked": Case(
        30,
        {WAITS % ("serve", "true"): "0+60x60"},
        {WAITS % ("serve", "true"): "0+60x14 0+60x45", WAITS % ("batch", "false"): "0+60x60"},
    ),
    "GpuExtenderClassWaits": Case(
        380, {WAITS % ("batch", "false"): "0+60x400"}, {WAITS % ("batch", "false"): "0+55x400"}
    ),
    "GpuExtenderGangPartial": Case(
        15, {"gpu_extender_partial_gangs": "2x20"}, {"gpu_extender_partial_gangs": "2x8 0x12"}
    ),
    "GpuExtenderNeedlessEvictions": Case(
        60,
        {'gpu_extender_reservations_released_total{cause="victims-stay"}': "0+1x60",
         'gpu_extender_reservations_released_total{cause="bound"}': "0+8x60"},
        {'gpu_extender_reservations_released_total{cause="victims-stay"}': "0+1x60",
         'gpu_extender_reservations_released_total{cause="bound"}': "0+10x60",
         'gpu_extender_queue_evictions_total{outcome="in-vain"}': "1x60",
         'gpu_extender_victim_searches_total{result="evict",proved="true"}': "0+1x60",
         'gpu_extender_victim_searches_total{result="evict",proved="false"}': "0x60"},
    ),
    "GpuExtenderReservationsNotWritten": Case(
        12, {"gpu_extender_reservations_kept": "0x20"},
        {"gpu_extender_reservations_kept": "1x20", 'gpu_extender_reservation_writes_total{result="ok"}': "0+5x20"},
    ),
    "GpuExtenderPlansNotKept": Case(
        60,
        {'gpu_extender_plans_total{outcome="taken"}': "0+3x60", 'gpu_extender_plans_total{outcome="kept"}': "0+97x60"},
        {'gpu_extender_plans_total{outcome="taken"}': "0+1x60", 'gpu_extender_plans_total{outcome="kept"}': "0+99x60",
         'gpu_extender_plans_total{outcome="exchanged"}': "0+50x60"},
    ),
    "GpuExtenderNodeFailsPods": Case(
        12, {"gpu_extender_failing_nodes": "1x20"}, {"gpu_extender_failing_nodes": "1x8 0x20"}
    ),
    "GpuExtenderSlow": Case(
        30,
        {LATE % "0.1": "0+90x60", LATE % "0.4": "0+100x60", LATE % "+Inf": "0+100x60"},
        {LATE % "0.1": "0+100x60", LATE % "0.4": "0+100x60", LATE % "+Inf": "0+100x60"},
    ),
    "GpuExtenderDegraded": Case(
        20,
        {'gpu_extender_degraded{part="settings"}': "0x3 1x20"},
        {
            'gpu_extender_degraded{part="settings"}': "1x10 0x3 1x10",
            'gpu_extender_degraded{part="reservations"}': "1x30",
        },
    ),
    "GpuExtenderCertificateExpires": Case(
        # The clock of promtool begins at 0: after 90 minutes 7 days are left, less 60 s.
        90,
        {'gpu_extender_certificate_not_after_seconds{file="/tls/tls.crt"}': f"{7 * 86_400 + 1_740}x100"},
        {'gpu_extender_certificate_not_after_seconds{file="/tls/tls.crt"}': f"{7 * 86_400 + 5_460}x100"},
    ),
    "GpuExtenderGangsNeverStart": Case(
        20,
        {'gpu_extender_queue_waiting{reason="never",pods="2-8"}': "0x3 1x20"},
        {'gpu_extender_queue_waiting{reason="never",pods="2-8"}': "1x10 0x3 1x10",
         'gpu_extender_queue_waiting{reason="head",pods="2-8"}': "1x30"},
    ),
    "GpuExtenderGpusClaimedTwice": Case(
        10, {"gpu_extender_double_claimed_gpus": "1x20"}, {"gpu_extender_double_claimed_gpus": "1x3 0x3 1x10"}
    ),
    "GpuExtenderWatchDefects": Case(
        60, {DEFECTS: "0x30 1x40"}, {DEFECTS: "1x70"}  # it counts before the first look at it
    ),
    "GpuExtenderHandshakesFail": Case(
        45, {"gpu_extender_handshakes_failed_total": "0+1x60"}, {"gpu_extender_handshakes_failed_total": "0x5 9x60"}
    ),
    "GpuExtenderSaveRequestsIgnored": Case(
        120,
        {SAVES % "ignored": "0x9 4x200", SAVES % "late": "0x9 2x200", SAVES % "saved": "0x9 5x200"},
        {SAVES % "ignored": "0x9 4x200", SAVES % "saved": "0x9 5x200", SAVES % "withdrawn": "0x200"},
    ),
}  # fmt: skip


def never_starts(_: Path) -> World:
    """A gang of more GPUs than all nodes have."""
    world = World(Settings.model_validate({"queue": {"enabled": True}}))
    world.node("n", 8)

    async def test() -> None:
        async with rig(world) as queue:
            queue.create(*gang("huge", 2, 8))
            await queue.turn()

    asyncio.run(test())
    return world


def claims_a_gpu_twice(_: Path) -> World:
    world = World()
    world.node("n", 4, links=pairs(4))
    world.pod("a", 2, "n", held=[0, 1])
    world.pod("b", 2, "n", held=[1, 2])
    return world


def has_a_defect(_: Path) -> World:
    """A source raises once."""
    source = Failing(RuntimeError("x"))
    world = World(source=source)
    supervisor = Supervisor([source], restart_seconds=0.0)

    async def test() -> None:
        task = asyncio.create_task(supervisor.run())
        await asyncio.wait_for(source.running.wait(), 10)
        task.cancel()

    asyncio.run(test())
    for kind, count in supervisor.defects.items():
        world.server.supervisor.defects[kind] += count
    return world


def rejects_a_client(folder: Path) -> World:
    """A client without a certificate asks for a placement."""
    ca = trustme.CA()
    with serving({"tls": written(folder / "tls", serving_certificate(ca), ca).tls("kube-scheduler")}) as (
        world,
        [port],
    ):
        with contextlib.suppress(OSError):
            ask(port, trusting(ca, None))
        wait_for(lambda: world.metric("handshakes_failed_total") > 0)
    return world


def has_no_leader(_: Path) -> World:
    """A gated pod, and no instance holds the Lease of the queue."""
    world = gated_pods()
    posted(world, Lease(lambda: ""), QueueLeader(True), 2 * UNLED_SECONDS)
    return world


def reads_invalid_settings(folder: Path) -> World:
    world, file = World(), folder / "settings.yaml"
    file.write_text(HEAD)
    controller = SettingsFile(file, world.verbs, world.metrics)
    file.write_text(HEAD + "scorers: [{name: nothing, weight: 1}]\n")
    asyncio.run(controller.look())
    return world


HAPPENS: dict[Callable[[Path], World], str] = {
    never_starts: "GpuExtenderGangsNeverStart",
    claims_a_gpu_twice: "GpuExtenderGpusClaimedTwice",
    has_a_defect: "GpuExtenderWatchDefects",
    rejects_a_client: "GpuExtenderHandshakesFail",
    has_no_leader: "GpuExtenderDegraded",
    reads_invalid_settings: "GpuExtenderDegraded",
}


@pytest.fixture(scope="module")
def program() -> Path:
    return promtool()


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As Prometheus Operator hands them to Prometheus. JSON is YAML."""
    file = tmp_path_factory.mktemp("rules") / "rules.yaml"
    file.write_text(json.dumps(RULES["spec"]))
    return file


def call(program: Path, *words: str, stdin: bytes | None = None) -> str:
    done = subprocess.run([program, *words], input=stdin, capture_output=True, check=False, timeout=120)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == {alert["alert"] for alert in ALERTS}


def test_the_rules_are_valid(program: Path, rules: Path) -> None:
    assert f"SUCCESS: {len(ALERTS)} rules found" in call(program, "check", "rules", str(rules))


def test_the_dashboard_is_promql(program: Path, tmp_path: Path) -> None:
    """With Grafana's variables replaced by a time."""
    queries = [re.sub(r"\$__(rate_interval|range)", "5m", expression) for _, expression, _ in panels()]
    recorded = [{"record": f"dashboard:query{n}", "expr": query} for n, query in enumerate(queries)]
    path = tmp_path / "dashboard.yaml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": recorded}]}))
    assert f"SUCCESS: {len(queries)} rules found" in call(program, "check", "rules", str(path))


def group(name: str, series: Mapping[str, str], expression: str, minute: int, value: int) -> dict[str, Any]:
    """A test of promtool's: the value at that minute. It compares whole alerts; here counts how many fire."""
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [
            {"expr": expression, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": value}]}
        ],
    }


def judged(program: Path, rules: Path, folder: Path, groups: list[dict[str, Any]]) -> None:
    """promtool finds each of them right; it prints the names of others."""
    file = folder / "tests.yaml"
    file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": groups}))
    assert "SUCCESS" in call(program, "test", "rules", str(file))


def firing(alert: str) -> str:
    return f'count(count by (alertname) (ALERTS{{alertname="{alert}",alertstate="firing"}})) or vector(0)'


def test_each_alert_fires_at_its_threshold_alone(program: Path, rules: Path, tmp_path: Path) -> None:
    """And GpuExtenderNotReady not for metrics that were never read, or last more than a day ago; for those of an
    instance that is gone it does."""
    groups = []
    for alert, case in CASES.items():
        count = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
        for series, fires in ((case.fires, 1), (case.quiet, 0)):
            others = {} if any("dark_seconds" in name for name in series) else HEALTHY
            groups.append(group(f"{alert} {fires}", {**others, **series}, count, case.minute, fires))
    for values, minute, fires in (("0x10 _x60", 60, 1), ("_x70", 60, 0), ("0x5 _x1600", 1590, 0)):
        groups.append(
            group(values, {"gpu_extender_dark_seconds": values}, firing("GpuExtenderNotReady"), minute, fires)
        )
    judged(program, rules, tmp_path, groups)


def as_exported(world: World, alert: str) -> dict[str, str]:
    """What a server prints of the series that an alert reads. A counter rises as often each minute as it did here."""
    [expression] = [one["expr"] for one in ALERTS if one["alert"] == alert]
    read = {name for name, _, _ in METRIC.findall(expression)}
    page = world.call("/metrics", method="GET").body.decode()
    series = {}
    for family in text_string_to_metric_families(page):
        for name, labels, value, *_ in family.samples:
            if name in read:
                chosen = ",".join(f'{label}="{text}"' for label, text in labels.items())
                step = value if family.type == "counter" else 0
                series[f"{name}{{{chosen}}}"] = f"{value - step:g}+{step:g}x60"
    return series


def test_what_happens_in_a_server_fires_the_alert(
    program: Path, rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_file, "SETTLE_SECONDS", 0.0)
    groups = []
    for happens, alert in HAPPENS.items():
        folder = tmp_path / happens.__name__
        folder.mkdir()
        for world, fires in ((happens(folder), 1), (World(), 0)):
            series = as_exported(world, alert)
            assert series or not fires
            groups.append(group(f"{happens.__name__} {fires}", {**HEALTHY, **series}, firing(alert), 50, fires))
    judged(program, rules, tmp_path, groups)


def test_the_page_of_metrics_keeps_the_conventions(program: Path) -> None:
    call(program, "check", "metrics", stdin=generate_latest(Metrics().registry))
