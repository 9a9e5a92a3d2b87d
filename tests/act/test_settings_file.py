"""The settings file that changes while the server runs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from extender.act import settings_file
from extender.act.settings_file import SettingsFile
from extender.settings import Settings
from tests.ask.test_nothing_changes import explainer
from tests.waiting import run_bounded
from tests.world import DGX1V, WALL, World, workload

HEAD = "apiVersion: gpu-extender.io/v1\nkind: GpuExtenderConfiguration\n"
SPREAD = "scorers: [{name: packing, weight: 2.5}]\n"


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_file, "SETTLE_SECONDS", 0.0)


def loaded(world: World, path: Path, text: str, before: str = HEAD) -> SettingsFile:
    """The controller, once it has seen `text` in the place of what was there."""
    file = path / "settings.yaml"
    file.write_text(before)
    controller = SettingsFile(file, world.verbs, world.metrics)
    file.write_text(text)
    run_bounded(controller.look())
    return controller


def reloads(world: World, result: str) -> float:
    return world.metric("settings_reloads_total", result=result)


def test_weights_and_cost_terms_count_at_once(world: World, tmp_path: Path) -> None:
    before = world.settings.hash
    world.node("a", links=DGX1V)
    world.filter(world.pod("one", 1))
    loaded(world, tmp_path, HEAD + SPREAD + "costs: [victims]\n")
    world.filter(world.pod("two", 1))
    after = world.cluster.settings.hash
    assert [(scorer.name, weight) for scorer, weight in world.verbs.policy.scorers] == [("packing", 2.5)]
    assert [cost.name for cost in world.verbs.policy.costs] == ["victims"]
    records = world.call("/debug/decisions", method="GET").json["decisions"]
    assert [one["settings"] for one in records] == [after, before]
    assert (world.metric("settings_info", hash=after), world.metric("settings_info", hash=before)) == (1, 0)
    assert reloads(world, "loaded") == 1
    flags = world.call("/flagz", method="GET").body.decode()
    assert "scorers[0].name=packing (set)" in flags


def test_a_file_that_is_wrong_changes_nothing(world: World, tmp_path: Path) -> None:
    before = world.verbs.policy.scorers
    controller = loaded(world, tmp_path, HEAD + "scorers: [{name: nothing, weight: 1}]\n")
    assert world.verbs.policy.scorers is before
    assert world.cluster.settings is world.settings
    assert (reloads(world, "invalid"), reloads(world, "loaded")) == (1, 0)
    run_bounded(controller.look())
    assert reloads(world, "invalid") == 1  # said once
    (tmp_path / "settings.yaml").unlink()
    run_bounded(controller.look())
    (tmp_path / "settings.yaml").write_text(HEAD + SPREAD)
    run_bounded(controller.look())
    assert reloads(world, "loaded") == 1


def test_what_needs_a_restart_is_named_and_the_rest_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    text = HEAD + SPREAD + "mode: shadow\nqueue: {enabled: true, queues: {lab: {weight: 2}}}\nserver: {port: 1}\n"
    loaded(world, tmp_path, text)
    settings = world.cluster.settings
    assert (settings.mode, settings.queue.enabled, settings.queue.queues["lab"].weight) == ("active", False, 2)
    assert settings.scorers[0].name == "packing"
    assert reloads(world, "partly") == 1
    assert "fields=['mode', 'queue.enabled']" in capsys.readouterr().out


def test_ceilings_that_stay_until_the_next_start_keep_their_cost_term(tmp_path: Path) -> None:
    ceilings = {"preemption": {"ceilings": {"batch": {"gpuHours": 1}}}}
    world = World(Settings.model_validate(ceilings))
    world.node("n", 4)
    world.pod("w", 4, "n", priority=1, start=WALL - 7200)
    urgent = workload("urgent", 4, priority=9, spec={"priorityClassName": "batch"})
    loaded(world, tmp_path, HEAD + SPREAD + "costs: [victims]\n")  # the file has no ceilings any more
    assert world.preempt(urgent, {"n": ["w"]}) == {}  # 8 GPU-hours
    assert "work_lost_gpu_seconds" in [cost.name for cost in world.verbs.policy.costs]
    assert [scorer.name for scorer, _ in world.verbs.policy.scorers] == ["packing"]
    (problem,) = [part["problem"] for part in world.call("/readyz", method="GET").json["degraded"]]
    assert problem.endswith("from the next start on: costs, preemption.ceilings")


def test_quotas_count_at_once(tmp_path: Path) -> None:
    world = World(Settings())
    loaded(world, tmp_path, HEAD + "queue: {queues: {lab: {weight: 3}}}\n")
    assert {name: one.weight for name, one in world.cluster.settings.queue.queues.items()} == {"lab": 3}


def test_an_explanation_is_by_the_policy_as_it_is(world: World, tmp_path: Path) -> None:
    world.node("a", 1)
    world.pod("old", 1, "a", start=WALL - 60, held=[0])
    world.pod("high", 1, priority=10)
    explains = explainer(world)

    def terms() -> list[int]:
        ways = explains.explain(explains.pod("default", "high")).as_json()["ways_out"]
        return [len(way["cost"]) for way in ways if way["kind"] == "evict"]

    assert terms() == [len(Settings().costs)]
    loaded(world, tmp_path, HEAD + "costs: [victims]\n")
    assert terms() == [1]


def test_a_file_that_is_being_written_is_read_when_it_is_whole(world: World, tmp_path: Path) -> None:
    """An editor that writes in place empties the file first, and an empty file is a valid one: all defaults."""
    quotas = "queue: {queues: {lab: {weight: 3}}}\n"
    controller = loaded(world, tmp_path, HEAD + quotas)
    file = tmp_path / "settings.yaml"

    async def written() -> None:
        file.write_text("")
        look = asyncio.create_task(controller.look())
        await asyncio.sleep(0)
        file.write_text(HEAD + SPREAD + quotas)
        await look

    run_bounded(written())
    assert (reloads(world, "loaded"), world.cluster.settings.queue.queues["lab"].weight) == (1, 3)
    run_bounded(controller.look())
    assert (reloads(world, "loaded"), len(world.verbs.policy.scorers)) == (2, 1)


def test_a_change_while_the_server_starts_is_seen(world: World, tmp_path: Path) -> None:
    """The settings are read first; then credentials are looked for, and the API server is asked."""
    file = tmp_path / "settings.yaml"
    file.write_text(HEAD + SPREAD)
    run_bounded(SettingsFile(file, world.verbs, world.metrics).look())
    assert (reloads(world, "loaded"), len(world.verbs.policy.scorers)) == (1, 1)
    run_bounded(SettingsFile(file, world.verbs, world.metrics).look())
    assert reloads(world, "loaded") == 1  # nothing has changed since the start


def test_a_pipe_is_not_read_again(world: World, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    run_bounded(SettingsFile(tmp_path / "pipe", world.verbs, world.metrics).look())
    assert world.cluster.settings is world.settings
