"""The product as its users run it: a process of its own, told by a file and a kubeconfig."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests import plain
from tests.e2e import forked
from tests.e2e.process import Component, Reaper, free_port

GPU = "nvidia.com/gpu"
SETTINGS_HEAD = {"apiVersion": "gpu-extender.io/v1", "kind": "GpuExtenderConfiguration"}
_PROGRAM = (sys.executable, "-m", "extender")
_LOCAL = {"NO_PROXY": "127.0.0.1,localhost"}


class ExtenderProcess(Component):
    """``<python> -m extender serve``; the port stays the same over restarts."""

    def __init__(
        self,
        folder: Path,
        logs: Path,
        kubeconfig: Path,
        reaper: Reaper,
        *,
        config: Mapping[str, Any] | str = "",
        arguments: Sequence[str] = (),
        number: int = 0,
        env: Mapping[str, str] | None = None,
        probe_port: int | None = None,
        port: int | None = None,
    ) -> None:
        """``config`` is the text of the settings file, or a mapping that gets its head and is written as JSON; ``env``
        is added to the environment; ``probe_port``: of a listener in plain HTTP, where that of the verbs has TLS;
        ``port``: a free one, unless given."""
        self.port = port or free_port()
        self._probe_url = f"http://127.0.0.1:{probe_port or self.port}"
        self.url = f"http://127.0.0.1:{self.port}"
        self._file = file = folder / f"extender-{number}.yaml"
        self.configure(config)
        super().__init__(
            "extender",
            [
                *_PROGRAM,
                "serve",
                f"--config={file}",
                f"--kubeconfig={kubeconfig}",
                f"--port={self.port}",
                *arguments,
            ],
            logs / f"extender-{number}.log",
            reaper,
            env={**_LOCAL, **(env or {})},
        )

    def start(self) -> None:
        """Starts it and waits for /readyz."""
        super().start()
        self.wait_ready()

    def _spawn(self) -> subprocess.Popen[bytes] | forked.Forked:
        """An environment of its own, which may name another tree, counts from the start of the interpreter on."""
        if self._env != {**os.environ, **_LOCAL}:
            return super()._spawn()
        return forked.start(self.argv[len(_PROGRAM) :], self.log, self._env)

    def configure(self, config: Mapping[str, Any] | str) -> None:
        """Write the settings; they count from its next start on."""
        self._file.write_text(config if isinstance(config, str) else json.dumps(SETTINGS_HEAD | dict(config), indent=1))

    def restart(self) -> None:
        """SIGKILL and a fresh start on the same port."""
        self.kill()
        self.start()

    def become(self, env: Mapping[str, str]) -> None:
        """SIGTERM, and a fresh start on the same port with this added to the environment: another version where it
        names another tree (`commits.environment`)."""
        self.stop()
        self._env = {**os.environ, **_LOCAL, **env}
        self.start()

    def wait_ready(self, timeout: float = 60) -> None:
        """Waits until /readyz answers 200; seconds."""
        deadline, answered = time.monotonic() + timeout, "no answer"
        with plain.client(timeout=5) as http:
            while time.monotonic() < deadline:
                self.alive_or_raise()
                with contextlib.suppress(httpx.HTTPError):
                    answer = http.get(f"{self._probe_url}/readyz")
                    if answer.status_code == 200:
                        return
                    answered = answer.text
                time.sleep(0.05)
        raise TimeoutError(f"the extender is not ready after {timeout} s: {answered}\n{self.tail()}")


def extender_entry(url: str, **changes: Any) -> dict[str, Any]:
    """The ``extenders`` entry of a KubeSchedulerConfiguration that the product recommends for itself."""
    return {
        "urlPrefix": f"{url}/v1",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": 12,
        "nodeCacheCapable": True,
        "ignorable": False,
        "httpTimeout": "5s",
        "managedResources": [{"name": GPU, "ignoredByScheduler": False}],
        **changes,
    }
