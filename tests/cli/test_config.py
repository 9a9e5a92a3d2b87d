"""`config`: what is wrong with a file, what the fields mean, and a file of defaults that is read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from extender.cli import main
from extender.cli.options import known
from extender.settings import Known, Settings, override_server, parse_settings, read_settings
from tests.cli.canned import Cli

HEAD = "apiVersion: gpu-extender.io/v1\nkind: GpuExtenderConfiguration\n"


def test_a_valid_file_is_named_with_its_hashes(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(HEAD + "mode: shadow\nschedulerWeight: 1\n")
    answer = cli.json(["config", "validate", str(file), "-o", "json"])
    settings = Settings(mode="shadow", scheduler_weight=1)
    assert (answer["mode"], answer["settings_hash"]) == ("shadow", settings.hash)
    assert answer["policy_hash"] == settings.policy_hash == Settings().policy_hash  # it decides alike
    assert [one["code"] for one in answer["warnings"]] == ["scheduler-weight"]
    assert "is valid: mode shadow" in cli.out(["config", "validate", str(file)])


def test_the_hash_is_that_of_a_server_with_other_listeners(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The manifests name host and ports as options of `serve`, which `config validate` has not."""
    file = tmp_path / "settings.yaml"
    file.write_text(HEAD + "hold: {seconds: 7}\nserver: {port: 8001}\n")
    assert main(["config", "validate", str(file), "-o", "json"]) == 0
    stated = json.loads(capsys.readouterr().out)["settings_hash"]
    read = read_settings(file, known())
    given = {"host": "0.0.0.0", "port": 9, "metrics.port": 10, "allow_unprotected": True}
    assert override_server(read, given).hash == stated
    assert Settings().hash != stated


def test_all_that_is_wrong_is_named(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(HEAD + "mode: shade\nqueues: {}\n")
    said = cli.err(["config", "validate", str(file)], 1)
    assert "mode, line 3: is 'shade'; allowed: active, shadow" in said
    assert "queues, line 4: is not a field" in said
    assert main(["config", "validate"]) == 1
    assert main(["config", "validate", str(tmp_path / "none")]) == 1


def test_fields_are_explained(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    said = cli.out(["config", "explain", "queue.strict"])
    assert said.startswith("queue.strict  (default false)\n    Whether no gang starts")
    assert main(["config", "explain", "claims", "-o", "json"]) == 0
    fields = [one["field"] for one in json.loads(capsys.readouterr().out)["fields"]]
    assert "claims.protectForSeconds" in fields
    assert all(one.startswith("claims.") for one in fields)
    assert "server.port" in cli.out(["config", "explain"])
    assert "is not a field" in cli.err(["config", "explain", "queu"], 1)


@pytest.mark.parametrize("form", ["text", "json", "yaml"])
def test_the_defaults_are_a_valid_file(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "defaults", "-o", form]) == 0
    everything = Settings()
    known = Known(scorers={one.name for one in everything.scorers}, costs=set(everything.costs))
    assert parse_settings(capsys.readouterr().out, known) == everything


def test_links_of_the_reference_page_are_pages_in_a_terminal(cli: Cli) -> None:
    said = cli.out(["config", "explain", "preemption"])
    assert "](" not in said
    assert "EvictionRequest (docs/saving-operators.md#evictionrequest)" in said
    assert "(docs/preemption.md#ceilings)" in said
