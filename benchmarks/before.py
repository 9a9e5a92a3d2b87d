"""The arm `before`: gpu-extender as it was at one commit, built from this repository's own history.

    python -m benchmarks.before      builds it where it is not there yet, and prints its folder

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

COMMIT: Final = "fba418f670f80cfacfbe57ac39145b6cd0c8d9be"
REPOSITORY: Final = Path(__file__).parents[1]
COMPILE: Final = "from setuptools import setup; setup()"


class BeforeUnavailable(Exception):
    """The commit cannot be built here; the message is the reason and what to do."""


def environment(tree: Path) -> dict[str, str]:
    """What to add to the environment, so that `python -m extender` and `import extender` are those of the tree. The
    working directory, which may be this repository, does not count."""
    return {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}


def tree(say: Callable[[str], None] = print) -> Path:
    """The folder with the files and kernels of COMMIT; built when it is not there yet. BeforeUnavailable.

    A build becomes visible by one rename, so an interrupted one leaves nothing; a lock keeps two from building at once.
    """
    root = cache_root() / "before"
    home = root / f"{COMMIT[:12]}-{sys.implementation.cache_tag}-{platform.machine()}"
    if home.is_dir():
        return home
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not home.is_dir():
                _build(home, say)
    except OSError as error:
        raise BeforeUnavailable(f"cannot write the cache {root}: {error}") from error
    return home


def _build(home: Path, say: Callable[[str], None]) -> None:
    began = time.monotonic()
    say(f"building commit {COMMIT[:7]}, the arm `before` (about a minute)")
    with tempfile.TemporaryDirectory(prefix=".building-", dir=home.parent) as scratch:
        made = Path(scratch) / "tree"
        with tarfile.open(fileobj=io.BytesIO(_archive())) as archive:
            archive.extractall(made, filter="data")
        compiled = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", COMPILE, "--quiet", "build_ext", "--inplace"],
            cwd=made, env={**os.environ, **environment(made)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if compiled.returncode:
            last = "; ".join(compiled.stderr.strip().splitlines()[-3:])
            raise BeforeUnavailable(f"commit {COMMIT[:7]} does not build with the packages of this Python: {last}")
        _smoke(made)
        made.rename(home)
    say(f"built commit {COMMIT[:7]} in {time.monotonic() - began:.0f} s: {home}")


def _archive() -> bytes:
    """The files of COMMIT as a tar file."""
    try:
        made = subprocess.run(
            ["git", "-C", str(REPOSITORY), "archive", "--format=tar", COMMIT], capture_output=True, check=False
        )
    except OSError as error:
        raise BeforeUnavailable(f"git is needed to read commit {COMMIT[:7]}: {error}") from error
    if made.returncode:
        why = made.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise BeforeUnavailable(
            f"commit {COMMIT[:7]} is not in this repository ({''.join(why)}): a shallow clone gets it with "
            "`git fetch --unshallow`, and an archive without history has no arm `before`"
        )
    return made.stdout


def _smoke(made: Path) -> None:
    """Its command starts, and it is its own code that starts."""
    asked = "import extender.cli, ext_core.table as t; print(extender.cli.__file__, t.__file__)"
    answer = subprocess.run(
        [sys.executable, "-c", asked],
        env={**os.environ, **environment(made)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if answer.returncode or not all(Path(file).is_relative_to(made) for file in answer.stdout.split()):
        last = "; ".join(answer.stderr.strip().splitlines()[-3:]) or answer.stdout.strip()
        raise BeforeUnavailable(f"commit {COMMIT[:7]} does not start with the packages of this Python: {last}")


def main() -> int:
    """Builds, and prints the folder on standard output."""

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        print(tree(say))
    except BeforeUnavailable as reason:
        say(f"before: {reason}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
