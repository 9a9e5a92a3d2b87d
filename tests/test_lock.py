"""requirements.lock: what `make setup` and the image install is what was tested, on each Python and processor."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
PYTHONS = ("3.11.2", "3.12.0", "3.13.0", "3.14.0")
MACHINES = ("x86_64", "aarch64")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PARTS: dict[str, list[str]] = {
    "build": PROJECT["build-system"]["requires"],
    "project": PROJECT["project"]["dependencies"],
    **PROJECT["project"]["optional-dependencies"],
    **PROJECT["dependency-groups"],
}


def environment(python: str, machine: str) -> dict[str, str]:
    """The markers of CPython on Linux."""
    return {
        "implementation_name": "cpython",
        "implementation_version": python,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
        "sys_platform": "linux",
        "extra": "",
    }


def entries(text: str) -> list[tuple[Requirement, list[str]]]:
    """Each entry of a requirements file, with its hashes."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE))
    found = []
    for line in joined.splitlines():
        requirement, *hashes = re.split(r"\s+--hash=", line.strip())
        found.append((Requirement(requirement), hashes))
    return found


def locked(*parts: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "locked.py"), *parts],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def versions(text: str, python: str, machine: str) -> dict[str, str]:
    """What pip takes from it on such a machine."""
    found: dict[str, str] = {}
    for requirement, _ in entries(text):
        if requirement.marker is None or requirement.marker.evaluate(environment(python, machine)):
            [pin] = requirement.specifier
            assert pin.operator == "=="
            assert found.setdefault(canonicalize_name(requirement.name), pin.version) == pin.version
    return found


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_has_a_version_in_its_range_of_all_that_pyproject_names(python: str, machine: str) -> None:
    have = versions(LOCK, python, machine)
    for part, requirements in PARTS.items():
        for requirement in map(Requirement, requirements):
            version = have.get(canonicalize_name(requirement.name))
            assert version is not None, f"{part}: {requirement.name} is not locked: run `make lock`"
            assert Version(version) in requirement.specifier, f"{part}: {requirement} is locked at {version}"


def test_each_entry_has_hashes() -> None:
    for requirement, hashes in entries(LOCK):
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), requirement


def test_the_lock_names_no_host() -> None:
    """pip asks the index that the user has configured."""
    assert not re.search(r"://|--(extra-)?index-url|--find-links| @ ", LOCK)


@pytest.mark.parametrize("parts", [(part,) for part in PARTS] + [("build", "project"), ("project", "node")], ids=str)
def test_a_part_comes_with_all_that_it_needs(parts: tuple[str, ...]) -> None:
    """Of the packages that are installed here, which state their own requirements."""
    python = ".".join(map(str, sys.version_info[:3]))
    have = versions(locked(*parts), python, "x86_64")
    assert {canonicalize_name(Requirement(one).name) for part in parts for one in PARTS[part]} <= set(have)
    for name in have:
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, requires):
            if requirement.marker is None or requirement.marker.evaluate(environment(python, "x86_64")):
                assert canonicalize_name(requirement.name) in have, f"{name} needs {requirement}"


def test_what_runs_comes_without_tools_of_development() -> None:
    have = versions(locked("project", "node"), "3.13.0", "x86_64")
    assert {"starlette", "grpcio"} <= set(have)
    assert not {"pytest", "ruff", "playwright", "cython", "uv"} & set(have)


def test_ranges_are_those_of_pyproject() -> None:
    assert locked("--ranges", "build", "dist").splitlines() == PARTS["build"] + PARTS["dist"]


def test_the_image_gets_what_its_installation_reads() -> None:
    """What .dockerignore leaves out cannot be copied."""
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {"requirements.lock", ".ci/locked.py", ".ci/install", "pyproject.toml"} <= sent
    copied = " ".join(re.findall(r"^COPY (?!--)(.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)).split()
    assert {"requirements.lock", ".ci/locked.py", ".ci/install", "pyproject.toml"} <= set(copied)
