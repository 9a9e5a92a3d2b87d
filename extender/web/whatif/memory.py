"""Whether the container has memory for a copy of the cluster beside the cluster itself."""

from __future__ import annotations

from pathlib import Path
from typing import Final

GROUP: Final = Path("/sys/fs/cgroup")
STATUS: Final = Path("/proc/self/status")
SPARE: Final = 64 << 20
"""Bytes that stay free."""


def left(group: Path = GROUP) -> int | None:
    """Bytes that are left of the memory limit; None where there is no limit, or it is not known."""
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((group / "memory.current").read_text()) - _field(group / "memory.stat", "inactive_file")
        return int(limit) - used
    except (OSError, ValueError):
        return None  # no cgroup v2, or not Linux


def lacking(group: Path = GROUP, status: Path = STATUS) -> str:
    """Why there is not enough, "" where there is or it is not known. The copy takes at most as much as this process."""
    there = left(group)
    try:
        needed = _field(status, "VmRSS:") * 1024 + SPARE
    except (OSError, ValueError):
        return ""
    if there is None or there >= needed:
        return ""
    return f"a copy of the cluster may need {needed >> 20} MiB, and {there >> 20} MiB are left of the memory limit"


def _field(file: Path, name: str) -> int:
    """A number of a file with a name and a number on each line."""
    for line in file.read_text().splitlines():
        words = line.split()
        if words and words[0] == name:
            return int(words[1])
    return 0
