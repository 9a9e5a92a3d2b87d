"""The workflows in .github: what actionlint says of them, and what they take from other files."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.build import ROOT, build_actionlint

WORKFLOWS = ROOT / ".github" / "workflows"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def lint(*files: Path) -> subprocess.CompletedProcess[str]:
    words = [str(build_actionlint()), "-shellcheck=", "-pyflakes=", *map(str, files)]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)


def workflow(name: str) -> Any:
    return yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text())


def notes(number: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([".ci/release", number], capture_output=True, text=True, check=False, cwd=ROOT)


def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    outcome = lint(*sorted(WORKFLOWS.glob("*.yml")))
    assert (outcome.returncode, outcome.stdout) == (0, "")
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("on: push\njobs: {a: {runs-on: ubuntu-24.04, steps: [{run: echo, needs: b}]}}\n")
    assert lint(wrong).returncode == 1


def test_each_python_of_the_project_is_tested_and_has_a_wheel() -> None:
    pythons = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", line)}
    assert set(workflow("test")["jobs"]["each-python"]["strategy"]["matrix"]["python"]) == pythons
    built = next(step["run"] for step in workflow("release")["jobs"]["wheels"]["steps"] if "run" in step)
    assert set(re.findall(r"/opt/python/cp3(\d+)-", built)) == {python.partition(".")[2] for python in pythons}


def test_the_notes_of_this_version_are_its_part_of_the_changelog() -> None:
    text = notes(PROJECT["version"]).stdout
    assert text.strip()
    assert text in (ROOT / "CHANGELOG.md").read_text()
    assert "\n## " not in text


@pytest.mark.parametrize("number", ["0.1.0", "9.9.9", "0.2"])
def test_a_release_of_another_version_is_an_error(number: str) -> None:
    outcome = notes(number)
    assert outcome.returncode == 1
    assert f"does not state version {number}" in outcome.stderr
