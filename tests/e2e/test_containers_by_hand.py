"""Containers that tests start by hand run wherever the clone lies; no control plane."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.e2e import containers_by_hand
from tests.e2e.containers_by_hand import kept


def test_programs_below_a_folder_that_the_pod_mounts_stay_where_they_are(tmp_path: Path) -> None:
    """As of a clone in /tmp, with its .venv in it, where the pod has an empty /tmp."""
    containers_by_hand.needed()
    clone, other = tmp_path / "a clone", tmp_path / "other"
    for folder in (clone / ".venv", other):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    before, after = kept(0, tmp_path, "/run/stage/tmp", {clone, clone / ".venv", Path("/usr")})
    steps = [
        "mount -t tmpfs tmpfs /run",
        "mkdir -p /run/stage/tmp",
        *before,
        f"mount --bind /run/stage/tmp {tmp_path}",
        *after,
        f"cd {tmp_path} && find . -type f",
    ]
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", "\n".join(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["./a clone/.venv/file"]


def test_a_clone_that_the_pod_covers_itself_is_an_error() -> None:
    with pytest.raises(ValueError, match="clone into another folder"):
        kept(0, Path("/tmp"), "/run/stage/tmp", {Path("/tmp")})
