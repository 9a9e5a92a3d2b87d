"""One version, stated wherever one is read, and a CHANGELOG that has it."""

from __future__ import annotations

import datetime
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.yaml_text import objects_in

ROOT = Path(__file__).parents[1]
VERSION = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
TAG = re.compile(r"\bgpu-extender:(\d[\w.+-]*)")
RELEASE = re.compile(r"^## (?!Unreleased$)(\S+)(?: - (\S+))?$", re.MULTILINE)


def read(path: str) -> Any:
    return objects_in(ROOT / path)[0]


def label() -> str:
    found = re.search(r'org\.opencontainers\.image\.version="([^"]*)"', (ROOT / "Dockerfile").read_text())
    return found[1] if found else ""


def tag() -> str:
    [image] = [one for one in read("manifests/versions/kustomization.yaml")["images"] if one["name"] == "gpu-extender"]
    return str(image["newTag"])


@pytest.mark.parametrize(
    ("place", "stated"),
    [
        ("the chart", read("manifests/Chart.yaml")["version"]),
        ("what the chart installs", read("manifests/Chart.yaml")["appVersion"]),
        ("manifests/versions", tag()),
        ("the image's label", label()),
        ("the CHANGELOG", RELEASE.findall((ROOT / "CHANGELOG.md").read_text())[0][0]),
    ],
)
def test_the_version_is_the_same_everywhere(place: str, stated: str) -> None:
    assert stated == VERSION, place


def test_every_tag_of_our_image_is_the_version() -> None:
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--", "Dockerfile", "README.md", "docs", "manifests"]
    answer = subprocess.run(listed, capture_output=True, check=False, timeout=60)
    if answer.returncode:
        pytest.skip("this is no clone: which files are the project's is not known")
    files = [ROOT / name for name in answer.stdout.decode().split("\0") if name.endswith(("file", ".md", ".yaml"))]
    found = {(path.name, stated) for path in files for stated in TAG.findall(path.read_text())}
    assert {"Dockerfile", "install.md"} <= {name for name, _ in found}
    assert {stated for _, stated in found} == {VERSION}


def test_each_release_of_the_changelog_has_its_date_and_the_newest_comes_first() -> None:
    releases = RELEASE.findall((ROOT / "CHANGELOG.md").read_text())
    numbers = [tuple(map(int, version.split("."))) for version, _ in releases]
    assert numbers == sorted(numbers, reverse=True)
    dates = {version: date for version, date in releases if date}
    assert [datetime.date.fromisoformat(date) for date in dates.values()]
    assert releases[-1][0] not in dates, "0.1.0 was not released"


def test_the_newest_release_states_how_to_come_to_it_and_how_to_go_back() -> None:
    _, *sections = (ROOT / "CHANGELOG.md").read_text().split("\n## ")
    newest = next(section for section in sections if not section.startswith("Unreleased\n"))
    assert "### Upgrade from" in newest
    assert "The way back" in newest
