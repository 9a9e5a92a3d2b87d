"""Real processes in the place of containers: each trains, saves in a known time when it is asked or terminated, and
keeps an account of the work that it did and lost.

The simulated kubelet runs the pod; this starts a process for each pod of a namespace that runs with the annotation
SAVES (seconds that saving takes), keeps the file of its request, `delay` seconds behind the API server as a kubelet is,
passes the SIGTERM of a deletion, and reports a process that ends by itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.e2e.api import Api, Object
from tests.e2e.kubelet import SimulatedKubelets

SAVES = "test.gpu-extender.io/saves-in"
REQUEST = "gpu-extender.io/save-requested"
RECIPES = Path(__file__).parents[2] / "docs" / "examples" / "saving"
LOOK_SECONDS = 0.1

TRAINS = """
import json, os, sys, time
from save_request import SAVED, begin, requested, should_save

saves, account = float(sys.argv[1]), sys.argv[2]
begin()
began, why = time.monotonic(), "killed"
saved = 0.0


def write():
    with open(account + ".new", "w") as file:
        json.dump({"ran": time.monotonic() - began, "saved": saved, "why": why}, file)
    os.replace(account + ".new", account)


while True:
    time.sleep(0.02)
    write()
    if should_save():
        asked = requested()
        worked = time.monotonic() - began
        if saves >= 0:
            time.sleep(saves)
            saved, why = worked, "asked" if asked else "terminated"
            write()
            sys.exit(SAVED)
        time.sleep(3600)
"""


@dataclass(slots=True)
class Account:
    """What one process did: seconds that it ran, seconds of work that it saved, and why it ended ("asked",
    "terminated", "killed")."""

    ran: float
    saved: float
    why: str

    @property
    def lost(self) -> float:
        """Seconds."""
        return self.ran - self.saved


@dataclass(slots=True)
class _Process:
    pod: Object
    process: subprocess.Popen[bytes]
    file: Path
    account: Path
    coming: list[tuple[float, str]] = field(default_factory=list)
    text: str = ""
    terminates: float = 0.0
    ended: bool = False


class Trainers(threading.Thread):
    """The processes of a namespace's pods. `delay`: seconds from a pod's annotation to the file."""

    def __init__(
        self, api: Api, kubelets: SimulatedKubelets, namespace: str, folder: Path, *, delay: float = 1.0
    ) -> None:
        super().__init__(daemon=True)
        self._api, self._kubelets, self._namespace, self._folder, self._delay = api, kubelets, namespace, folder, delay
        self._processes: dict[str, _Process] = {}
        self._stopping = threading.Event()

    def __enter__(self) -> Trainers:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self.join(10)
        for running in self._processes.values():
            running.process.kill()
            running.process.wait()

    def account(self, uid: str) -> Account:
        """Of the process of a pod that has run; also after its end."""
        made = json.loads((self._folder / uid / "account").read_text())
        return Account(made["ran"], made["saved"], made["why"])

    def run(self) -> None:
        """Looks at the pods until the end."""
        while not self._stopping.wait(LOOK_SECONDS):
            pods = {pod["metadata"]["uid"]: pod for pod in self._api.list("Pod", self._namespace)}
            for uid, pod in pods.items():
                if uid not in self._processes and self._trains(pod):
                    self._processes[uid] = self._launch(pod)
            for uid, running in self._processes.items():
                self._follow(running, pods.get(uid))

    @staticmethod
    def _trains(pod: Object) -> bool:
        return SAVES in pod["metadata"].get("annotations", {}) and pod["status"].get("phase") == "Running"

    def _launch(self, pod: Object) -> _Process:
        folder = self._folder / str(pod["metadata"]["uid"])
        folder.mkdir(parents=True)
        file, account = folder / "save-requested", folder / "account"
        file.write_text("")
        variables = dict(os.environ) | {"PYTHONPATH": str(RECIPES), "SAVE_REQUEST_FILE": str(file)}
        seconds = pod["metadata"]["annotations"][SAVES]
        process = subprocess.Popen([sys.executable, "-c", TRAINS, seconds, str(account)], env=variables)
        return _Process(pod, process, file, account)

    def _follow(self, running: _Process, pod: Object | None) -> None:
        if running.ended:
            return
        if (code := running.process.poll()) is not None:
            running.ended = True
            if not running.terminates:
                self._kubelets.exits(running.pod["metadata"]["uid"], code)
            return
        now = time.monotonic()
        if pod is None:
            running.process.kill()  # its grace is over
            return
        text = pod["metadata"].get("annotations", {}).get(REQUEST, "")
        if text != running.text:
            running.text = text
            running.coming.append((now + self._delay, text))
        while running.coming and running.coming[0][0] <= now:
            running.file.write_text(running.coming.pop(0)[1])
        if pod["metadata"].get("deletionTimestamp") and not running.terminates:
            running.terminates = now
            running.process.send_signal(signal.SIGTERM)
        elif not running.terminates:
            return
        grace = pod["metadata"].get("deletionGracePeriodSeconds", 0)
        if now > running.terminates + grace:
            running.process.kill()
