"""`make loadtest`: both runs against servers of its own, with Python alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.__main__ import main

ROOT = Path(__file__).parents[2]


def test_a_short_run_has_its_table_and_a_note_and_needs_no_control_plane(tmp_path: Path) -> None:
    """A second of load in each run: far too few requests to judge anything."""
    words = ["--seconds=2", "--names=20,50", f"--report={tmp_path / 'report.html'}"]
    ended = subprocess.run(
        [sys.executable, "-m", "loadtest", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "GPU_EXTENDER_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    first, *_ = ended.stderr.splitlines()
    assert re.fullmatch(r"loadtest: 2 s of load in two runs; their servers take about \d+ s more to start", first)
    for cells in ("| filter | 20 |  |", "| filter | 50 |  |", "| filter | 1000 | 0 |", "| filter | 1000 | 1000 |"):
        assert cells in ended.stdout
    assert "Note: 2 s are a short run" in ended.stdout
    assert "real API server" not in ended.stdout + ended.stderr
    assert not (tmp_path / "cache").exists(), "a control plane was built"
    assert (tmp_path / "report.html").exists()


def test_it_says_first_what_a_control_plane_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(*_: object) -> None:
        raise RuntimeError("not now")

    monkeypatch.setattr("loadtest.__main__.run", ends)
    assert main(["--rate-seconds", "8"]) == 1
    said = capsys.readouterr().err
    assert "60 s of load" in said
    assert "building it takes about 4 minutes" in said
