"""The servers that the load test starts itself: ours, over a frozen fleet or over the stub, and the null beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import fleet
from benchmarks.serving import Connection, Served, Servers, request
from benchmarks.verbs import SETTINGS
from loadtest import recording

LIVE = {"reservations": {"store": "memory"}, "events": {"enabled": False}}  # the stub keeps neither


class Own:
    """Our server and the null; `close` ends everything, and so does the end of this process."""

    def __init__(self) -> None:
        self._servers = Servers()
        self._stub: subprocess.Popen[bytes] | None = None
        self._control: Connection | None = None
        self.ours: Served | None = None
        self.null: Served | None = None

    def start_frozen(self, nodes: int) -> None:
        """Ours over a part-filled fleet, in which nothing happens."""
        self.ours = self._servers.ours(fleet.part_filled(nodes), SETTINGS)
        self.null = self._servers.null("starlette")

    def start_live(self, nodes: int, pending: int, file: Path = recording.FILE) -> None:
        """Ours over the stub of an API server, which replays the recorded stream. ValueError: no such recording."""
        recording.read(file)
        words = [f"--nodes={nodes}", f"--pending={pending}", f"--recording={file}"]
        self._stub = subprocess.Popen(
            [sys.executable, "-m", "loadtest.stub", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._stub.stdout is not None
        url = self._stub.stdout.readline().decode().strip()
        if not url:
            raise RuntimeError("the stub of an API server does not start")
        self._control = Connection(int(url.rpartition(":")[2]))
        self.ours = self._servers.watching(_kubeconfig(self._servers.folder, url), {**SETTINGS, **LIVE})
        self.null = self._servers.null("starlette")

    def rate(self, events: float) -> None:
        """Events a second from now on."""
        assert self._control is not None
        self._control.send(request("PUT", f"/rate/{events:g}"))

    def sent(self) -> dict[str, int]:
        """What the stub has sent so far."""
        assert self._control is not None
        found: dict[str, int] = json.loads(self._control.send(request("GET", "/sent")).body)
        return found

    def tail(self) -> str:
        """The ends of the logs, for a failure's message."""
        return self._servers.tail()

    def close(self) -> None:
        """Ends all processes."""
        if self._control is not None:
            self._control.close()
        self._servers.close()
        if self._stub is not None:
            self._stub.kill()
            self._stub.communicate()


def _kubeconfig(folder: Path, url: str) -> Path:
    config: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": "stub"}
    config["users"] = [{"name": "stub", "user": {"token": "none"}}]
    config["clusters"] = [{"name": "stub", "cluster": {"server": url}}]
    config["contexts"] = [{"name": "stub", "context": {"cluster": "stub", "user": "stub"}}]
    file = folder / "kubeconfig"
    file.write_text(json.dumps(config))
    return file
