"""A server that is driven by hand and records what happens to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from extender.journal.files import Writer
from extender.journal.recorder import RecordedCluster, Recorder, header_of
from extender.journal.report import ReplayReport
from extender.metrics import Metrics
from extender.settings import Settings
from tests.replay.player import Player
from tests.waiting import wait_for
from tests.world import JSON


def cluster(settings: Settings, folder: Path, metrics: Metrics | None = None, *, live: bool = False) -> RecordedCluster:
    """A cluster that is recorded in the folder once a server is over it."""
    metrics = metrics or Metrics()
    recorder = Recorder(Writer(folder, settings.record, metrics), metrics, header_of(settings, live=live))
    return RecordedCluster(settings, recorder, live=live)


def settings_of(wire: JSON) -> Settings:
    """Settings of JSON."""
    return Settings.model_validate_json(json.dumps(wire))


def drive(settings: JSON, steps: list[JSON], folder: Path, *, every: int = 0) -> list[Path]:
    """Record these steps (tests.replay.player). `every`: begin a new file after so many, 0: only where one is full.
    The files."""
    recorded = cluster(settings_of(settings), folder)
    player = Player(settings, recorded)
    for number, step in enumerate(steps):
        if every and number % every == 0:
            recorded.recorder.begin_file()
        if "verb" in step:
            player.ask(step)
        else:
            player.change(step)
    # Closing waits for 3 s: on a busy machine that is too short for hundreds of files.
    wait_for(lambda: recorded.recorder.written, 120)
    recorded.recorder.close()
    return sorted(folder.glob("*.record"))


def report(folder: Path, other: Settings | None = None) -> Mapping[str, Any]:
    """What replay reports."""
    return ReplayReport(folder, other).make()


__all__ = ["cluster", "drive", "report", "settings_of", "wait_for"]
