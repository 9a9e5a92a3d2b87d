"""gpu-extender as it was at a commit, built from this repository's own history.

Its files and compiled kernels are kept in the user's cache (GPU_EXTENDER_CACHE, else ~/.cache/gpu-extender), one folder
for each commit and Python. It runs in this Python with the packages that are installed here.
"""

from __future__ import annotations

import fcntl
import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.e2e.build import cache_root

REPOSITORY: Final = Path(__file__).parents[2]
RELEASES: Final = {"0.2.0": "2eeaa08d47ce1831e6be4108393418ab77cc2ad0"}
COMPILE: Final = "from setuptools import setup; setup()"


class CommitUnavailable(Exception):
    """The commit cannot be built here; the message is the reason and what to do."""


def environment(tree: Path) -> dict[str, str]:
    """What to add to the environment, so that `python -m extender` and `import extender` are those of the tree. The
    working directory, which may be this repository, does not count."""
    return {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}


def folder(commit: str) -> Path:
    """Where the files and kernels of the commit are, or will be. `commit`: all 40 digits."""
    return cache_root() / "before" / f"{commit[:12]}-{sys.implementation.cache_tag}-{platform.machine()}"


def tree(commit: str, say: Callable[[str], None] = print) -> Path:
    """The folder with the files and kernels of the commit; built when it is not there yet. CommitUnavailable.

    A build becomes visible by one rename, so an interrupted one leaves nothing; a lock keeps two from building at once.
    """
    home = folder(commit)
    root = home.parent
    if home.is_dir():
        return home
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not home.is_dir():
                _build(commit, home, say)
    except OSError as error:
        raise CommitUnavailable(f"cannot write the cache {root}: {error}") from error
    return home


def _build(commit: str, home: Path, say: Callable[[str], None]) -> None:
    began = time.monotonic()
    say(f"building gpu-extender of commit {commit[:7]} (a minute on two idle processors)")
    with tempfile.TemporaryDirectory(prefix=".building-", dir=home.parent) as scratch:
        made = Path(scratch) / "tree"
        with tarfile.open(fileobj=io.BytesIO(_archive(commit))) as archive:
            archive.extractall(made, filter="data")
        compiled = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", COMPILE, "--quiet", "build_ext", "--inplace"],
            cwd=made, env={**os.environ, **environment(made)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if compiled.returncode:
            last = "; ".join(compiled.stderr.strip().splitlines()[-3:])
            raise CommitUnavailable(f"commit {commit[:7]} does not build with the packages of this Python: {last}")
        _smoke(commit, made)
        made.rename(home)
    say(f"built commit {commit[:7]} in {time.monotonic() - began:.0f} s: {home}")


def _archive(commit: str) -> bytes:
    """The files of the commit as a tar file."""
    try:
        made = subprocess.run(
            ["git", "-C", str(REPOSITORY), "archive", "--format=tar", commit], capture_output=True, check=False
        )
    except OSError as error:
        raise CommitUnavailable(f"git is needed to read commit {commit[:7]}: {error}") from error
    if made.returncode:
        why = made.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise CommitUnavailable(
            f"commit {commit[:7]} is not in this repository ({''.join(why)}): a shallow clone gets it with "
            "`git fetch --unshallow`, and an archive without history has no other commit"
        )
    return made.stdout


def _smoke(commit: str, made: Path) -> None:
    """Its command starts, and it is its own code that starts."""
    asked = "import extender.cli, ext_core.table as t; print(extender.cli.__file__, t.__file__)"
    answer = subprocess.run(
        [sys.executable, "-c", asked],
        env={**os.environ, **environment(made)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if answer.returncode or not all(Path(file).is_relative_to(made) for file in answer.stdout.split()):
        last = "; ".join(answer.stderr.strip().splitlines()[-3:]) or answer.stdout.strip()
        raise CommitUnavailable(f"commit {commit[:7]} does not start with the packages of this Python: {last}")
