"""Histories of random clusters, recorded and answered again: the same bytes, also from a snapshot in their middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journal import recorded
from tests.replay import player


@pytest.mark.parametrize(
    ("name", "every"),
    [*((name, 7) for name in player.names()[::2]), ("costs-1", 0), ("nvswitch-4", 0), ("shares-2", 1)],
)
def test_a_history_is_answered_with_the_same_bytes(name: str, every: int, tmp_path: Path) -> None:
    settings, steps = player.read(name)
    files = recorded.drive(settings, steps, tmp_path, every=every)
    found = recorded.report(tmp_path)
    assert found["first_difference"] is None
    assert (found["identical"], found["warnings"]) == (found["requests"], [])
    assert found["requests"] == sum("verb" in step for step in steps)
    assert len(files) >= (len(steps) // 7 if every else 1)
