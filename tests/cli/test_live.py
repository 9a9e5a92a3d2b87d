"""`gpu-extender check --live`: one view of the health of all replicas."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from extender.cli import check
from tests.cli.canned import Cli, answer

Captured = pytest.CaptureFixture[str]
READY: dict[str, Any] = {
    "ready": True, "missing": [], "degraded": [], "generation": 7, "warnings": [], "settings": "aa", "version": "0.2.0",
}  # fmt: skip
NOW = datetime(2026, 11, 24, 12, 0, 0, tzinfo=UTC)


def test_a_server_that_is_well(server: str, cli: Cli) -> None:
    answer(READY)
    said = cli.out(["check", "--live", "--server", server])
    assert said == f"{server}: ready, version 0.2.0, settings aa\nhealthy\n"


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (
            {"degraded": [{"part": "settings", "problem": "the file is invalid"}]},
            200,
            "  settings: the file is invalid",
        ),
        ({"ready": False, "missing": ["pods: the first list"]}, 503, "  missing: pods: the first list"),
    ],
)
def test_a_server_that_is_not(change: dict[str, Any], status: int, words: str, server: str, cli: Cli) -> None:
    answer(READY | change, status)
    said = cli.out(["check", "--live", "--server", server], 1).splitlines()
    assert words in said
    assert said[-1] == "not healthy"


def test_a_replica_that_is_away_is_part_of_the_answer(server: str, cli: Cli) -> None:
    answer(READY)
    shown = cli.json(["check", "--live", "--server", server, "--server", "http://127.0.0.1:1", "-o", "json"], 1)
    assert (shown["apiVersion"], shown["kind"], shown["healthy"]) == ("gpu-extender.io/v1", "Health", False)
    well, away = shown["replicas"]
    assert (well["reachable"], well["ready"]) == (True, True)
    assert set(away) == set(well)
    assert (away["reachable"], away["ready"], away["degraded"]) == (False, None, None)
    assert away["error"]
    assert shown["leases"] is None


def test_an_answer_that_is_none_is_named(server: str, cli: Cli) -> None:
    answer(b"ok", 503)
    assert "not reachable: the answer is not JSON" in cli.out(["check", "--live", "--server", server], 1)


def test_servers_are_for_live_alone(cli: Cli) -> None:
    assert "--live" in cli.err(["check", "--server", "http://127.0.0.1:1"], 1)


def entry(settings: str) -> dict[str, Any]:
    return {"name": settings, "reachable": True, **READY, "settings": settings, "error": None}


def test_replicas_with_different_settings_are_not_healthy() -> None:
    shown = check.health([entry("aa"), entry("bb")], [])
    assert (check.health_code(shown), [one["code"] for one in shown["warnings"]]) == (1, ["settings-differ"])
    assert check.health_code(check.health([entry("aa"), entry("aa")], [])) == 0


def lease(name: str, holder: str, renewed: str) -> dict[str, Any]:
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}
    return {"metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("found", "needed", "problem"),
    [
        ([lease("x", "a_1", "2026-11-24T11:59:50.000000Z")], True, None),
        ([lease("x", "a_1", "2026-11-24T11:50:00.000000Z")], False, "its holder has not renewed it for 600 s"),
        ([lease("x", "", "2026-11-24T11:50:00.000000Z")], True, "no instance holds it"),
        ([lease("x", "", "2026-11-24T11:50:00.000000Z")], False, None),
        ([], True, "no instance holds it"),
        ([], False, None),
        ([lease("x", "a_1", "nonsense")], True, None),
        ([{"metadata": {"name": "x"}}], False, None),
    ],
)
def test_leases(found: list[dict[str, Any]], needed: bool, problem: str | None) -> None:
    [shown] = check.leases(found, [check.Wanted("x", needed)], NOW)
    assert shown["problem"] == problem
    assert check.health_code(check.health([entry("aa")], [shown])) == (problem is not None)
