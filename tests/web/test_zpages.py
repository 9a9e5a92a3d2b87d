"""/statusz and /flagz, and the hash of the settings wherever it is stated."""

from __future__ import annotations

from extender.settings import Settings
from tests.world import World


def text(world: World, path: str) -> list[str]:
    return world.call(path, method="GET").body.decode().splitlines()


def test_the_status_names_the_program_and_its_settings() -> None:
    world = World(Settings(mode="shadow"))
    lines = text(world, "/statusz")
    assert lines[0] == "gpu-extender statusz"
    assert "Mode: shadow" in lines
    assert f"Settings: {world.settings.hash}" in lines
    assert "/debug/shadow" in next(line for line in lines if line.startswith("Paths: "))


def test_the_flags_are_all_fields_with_those_that_are_set() -> None:
    lines = text(World(Settings(mode="shadow")), "/flagz")
    assert "mode=shadow (set)" in lines
    assert "queue.enabled=False" in lines
    assert "scorers[0].name=bad_nodes" in lines
    assert [line for line in lines if line.endswith(" (set)")] == ["mode=shadow (set)"]


def test_health_checks_are_counted(world: World) -> None:
    missing = ["pods"]
    world.core.source.missing = lambda: missing  # type: ignore[method-assign]
    for _ in range(2):
        world.call("/readyz", method="GET")
    missing.clear()
    for path in ("/readyz", "/livez"):
        world.call(path, method="GET")
    lines = text(world, "/metrics/slis")
    assert 'kubernetes_healthcheck{name="lists",type="readyz"} 1.0' in lines
    assert 'kubernetes_healthchecks_total{name="lists",status="error",type="readyz"} 2.0' in lines
    assert 'kubernetes_healthchecks_total{name="watches",status="success",type="readyz"} 1.0' in lines
    assert 'kubernetes_healthchecks_total{name="ping",status="success",type="livez"} 1.0' in lines


def test_metrics_and_records_state_the_hash(world: World) -> None:
    world.node("a")
    world.filter(world.pod("one", 1))
    assert world.decision()["settings"] == world.settings.hash
    assert world.metric("settings_info", hash=world.settings.hash) == 1
    assert Settings(mode="shadow").hash != world.settings.hash
