"""Whether there is memory for an answer."""

from __future__ import annotations

from pathlib import Path

from extender.ask.forks import memory_lacking


def test_no_copy_is_made_where_memory_is_short(tmp_path: Path) -> None:
    for name, text in {
        "memory.max": "1000000000",
        "memory.current": "950000000",
        "memory.stat": "inactive_file 0",
    }.items():
        (tmp_path / name).write_text(text + "\n")
    status = tmp_path / "status"
    status.write_text("Name:\tx\nVmRSS:\t  100000 kB\n")
    assert "are left" in memory_lacking(tmp_path, status)
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 500000000\n")
    assert memory_lacking(tmp_path, status) == ""
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_lacking(tmp_path, status) == ""
    assert memory_lacking(tmp_path / "none", status) == ""
