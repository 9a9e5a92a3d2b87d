"""Servers that are forked: what waits for their ends."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e import forked


def test_several_threads_may_wait_for_one_server(tmp_path: Path) -> None:
    """Only one call of waitpid sees an end: the second one ended the process that forks, and each test after it."""
    server = forked.start(["--version"], tmp_path / "log", os.environ)
    waits = [server, *(forked.Forked(server._origin, server.pid) for _ in range(3))]
    with ThreadPoolExecutor(len(waits)) as threads:
        assert list(threads.map(lambda wait: wait.wait(30.0), waits)) == [0] * len(waits)
