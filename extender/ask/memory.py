"""How much memory is left for a fork, which shares the memory of the server and copies the pages that either writes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

GROUP: Final = Path("/sys/fs/cgroup")
STATUS: Final = Path("/proc/self/status")
SPARE: Final = 64 << 20
"""Bytes that are left when a fork is made, beside SHARE."""
SHARE: Final = 4
"""A fork and the server copy so much of the memory that they share: one in SHARE pages (benchmarks.asking)."""
LEAST: Final = 32 << 20
"""Bytes: a fork that finds less left ends itself."""


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
    """Why there is not enough for a fork, "" where there is or it is not known."""
    free = left(group)
    try:
        needed = _field(status, "VmRSS:") * 1024 // SHARE + SPARE
    except (OSError, ValueError):
        return ""
    if free is None or free >= needed:
        return ""
    return f"an answer may need {needed >> 20} MiB, and {free >> 20} MiB are left of the memory limit"


def most_data(group: Path = GROUP, status: Path = STATUS) -> int | None:
    """Bytes of data that this process may have, as RLIMIT_DATA counts them: what it has, and what is left."""
    free = left(group)
    try:
        return None if free is None else _field(status, "VmData:") * 1024 + max(0, free)
    except (OSError, ValueError):
        return None


def _field(file: Path, name: str) -> int:
    """A number of a file with a name and a number on each line."""
    for line in file.read_text().splitlines():
        words = line.split()
        if words and words[0] == name:
            return int(words[1])
    return 0
