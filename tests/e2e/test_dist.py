"""What users install: the wheel in an empty environment, and the root file system of the image.

No container runtime is needed: the last stage of the Dockerfile is an interpreter with its libraries, and the folder
that `.ci/install` makes. Here the interpreter is that of the tests. Not tried: the base images, buildx, arm64.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.e2e import containers_by_hand

ROOT = Path(__file__).parents[2]
PYTHON = os.path.realpath(sys.executable)
OLDEST_GLIBC = 28
IMPORT_ALL = """
import importlib, pkgutil, extender, ext_core
for package in (extender, ext_core):
    assert "/opt/gpu-extender/" in package.__file__
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name not in ("extender.__main__", "ext_core._build"):
            importlib.import_module(module.name)
"""
"""ext_core._build needs Cython: it compiles the package."""


def call(*words: str, **env: str) -> str:
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make dist` makes it, for this Python; not optimized, which `make setup` is."""
    made = tmp_path_factory.mktemp("dist")
    call(".ci/dist", PYTHON, DIST=str(made), EXT_CORE_OPTIMIZE="0")
    [found] = made.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def image(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root file system; its interpreter reaches nothing outside of it after chroot."""
    containers_by_hand.needed()
    root = tmp_path_factory.mktemp("image")
    root.chmod(0o755)
    for name in ("opt", "tmp"):
        (root / name).mkdir()
    # The folder has its place in the image while it is made: its commands name their interpreter by its path.
    install = f"mount --bind {root}/opt /opt && exec .ci/install {PYTHON} {wheel} /opt/gpu-extender"
    call("unshare", "--mount", "--propagation", "private", "sh", "-c", install)
    library = Path(sysconfig.get_path("stdlib"))
    objects = [Path(PYTHON), *(library / "lib-dynload").glob("*.so"), *(root / "opt").rglob("*.so")]
    linked = subprocess.run(["ldd", *map(str, objects)], capture_output=True, text=True, check=False).stdout
    needed = {Path(path) for path in re.findall(r"(/\S+)(?= \(0x)", linked)}
    for path in [Path(PYTHON), *(path for path in needed if root not in path.parents)]:
        (root / path.parent.relative_to("/")).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path.relative_to("/"))
    left_out = shutil.ignore_patterns("test", "tests", "site-packages", "dist-packages", "idlelib")
    shutil.copytree(library, root / library.relative_to("/"), ignore=left_out, dirs_exist_ok=True)
    return root


def inside(image: Path, *words: str) -> str:
    """Run in the image as manifests/ run it: a read-only root, /tmp apart, user 65532 without any right."""
    steps = (
        f"mount --bind {image} {image} && mount -o bind,remount,ro {image} && mount -t tmpfs tmpfs {image}/tmp"
        f' && exec setpriv --no-new-privs chroot --userspec=65532:65532 {image} "$@"'
    )
    return call(
        "unshare", "--mount", "--propagation", "private", "sh", "-c", steps, "sh", *words,
        PATH=f"/opt/gpu-extender/bin:{os.environ['PATH']}", PYTHONDONTWRITEBYTECODE="1", HOME="/tmp",
    )  # fmt: skip


def test_the_wheel_runs_on_every_current_linux(wheel: Path) -> None:
    major, minor = sys.version_info[:2]
    found = re.search(rf"-cp{major}{minor}-cp{major}{minor}-.*manylinux_2_(\d+)_\w+\.whl$", wheel.name)
    assert found, wheel.name
    assert int(found[1]) <= OLDEST_GLIBC


def test_every_module_imports_in_an_empty_environment(image: Path) -> None:
    assert inside(image, "python", "-I", "-c", IMPORT_ALL) == ""


def test_the_demo_runs_from_the_wheel(image: Path) -> None:
    """Every answer of the server in it is checked by the demo itself."""
    assert "all scenes came out as they state" in inside(image, "gpu-extender", "demo", "--once")


def test_the_list_of_components_has_what_is_installed(image: Path) -> None:
    listed = json.loads((image / "opt" / "gpu-extender" / "sbom.json").read_text())
    names = {part["name"].lower().replace("_", "-") for part in listed["components"]}
    assert {"gpu-extender", "starlette", "uvicorn", "orjson", "kubernetes", "grpcio"} <= names
    files = (image / "opt" / "gpu-extender" / "lib").glob("python*/site-packages/*.dist-info")
    assert len(listed["components"]) == len(list(files))
