"""promtool: the one on PATH, else that of Debian's package prometheus, unpacked in the cache and not installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.e2e.build import ControlPlaneUnavailable, cache_root, only_one


def promtool() -> Path:
    """The program. ControlPlaneUnavailable with the reason where it cannot be had."""
    if found := shutil.which("promtool"):
        return Path(found)
    root = cache_root() / "promtool"
    program = root / "usr" / "bin" / "promtool"
    try:
        with only_one(cache_root() / "promtool.lock"):
            if not program.is_file():
                _unpack(root)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        raise ControlPlaneUnavailable(f"no promtool on PATH, and none from Debian: {reason}") from error
    return program


def _unpack(root: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".promtool-", dir=cache_root()) as scratch:
        download = ["apt-get", "-o", "Acquire::Retries=3", "download", "prometheus"]
        try:
            subprocess.run(download, cwd=scratch, check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError:  # a bare machine has no lists of packages yet
            subprocess.run(["apt-get", "update", "-qq"], check=True, capture_output=True, text=True)
            subprocess.run(download, cwd=scratch, check=True, capture_output=True, text=True)
        [package] = Path(scratch).glob("*.deb")
        made = Path(scratch) / "made"
        subprocess.run(["dpkg-deb", "-x", str(package), str(made)], check=True, capture_output=True, text=True)
        made.rename(root)
