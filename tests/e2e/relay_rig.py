"""One GPU node in a folder: kubelet's device manager, the relay as a process, a vendor's plugin, and an API server."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from extender.sim.machines import gpu_uuids, machine, topology_annotation
from tests import plain
from tests.e2e.device_manager import Admitted, DeviceManager, Object
from tests.e2e.process import free_port
from tests.e2e.vendor_plugin import VendorPlugin, of_machine
from tests.node.fake_api import FakeApi
from tests.waiting import wait_for

NODE = "node-1"


class RelayProcess:
    """`gpu-extender relay` on the folders `plugins` and `kubelet` of a folder."""

    def __init__(self, folder: Path, url: str, *arguments: str, node: str = NODE) -> None:
        self.port = free_port()
        self.log = folder / "relay.log"
        self.command = [sys.executable, "-m", "extender", "relay", *arguments]
        self.command += ["--plugins", str(folder / "plugins"), "--kubelet", str(folder / "kubelet"), "--node", node]
        self.command += ["--api-server", url, "--probe", f"127.0.0.1:{self.port}"]
        self.child: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Returns the seconds until plugins can register."""
        begun = time.monotonic()
        known = self.log.read_bytes().count(b"relay of ") if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(self.command, stderr=log)
        wait_for(lambda: self.log.read_bytes().count(b"relay of ") > known, 60, self.tail, every=0.02)
        return time.monotonic() - begun

    def stop(self, *, kill: bool = False) -> None:
        """SIGTERM or SIGKILL, and wait for the end."""
        if self.child is not None:
            (self.child.kill if kill else self.child.terminate)()
            self.child.wait(60)
            self.child = None

    def counts(self) -> dict[str, float]:
        """What its metrics say."""
        with plain.client() as http:
            lines = http.get(f"http://127.0.0.1:{self.port}/metrics").text.splitlines()
        return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines if '"' in line}

    def livez(self) -> tuple[int, str]:
        """The liveness probe."""
        with plain.client() as http:
            answer = http.get(f"http://127.0.0.1:{self.port}/livez")
        return answer.status_code, answer.text.strip()

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text()[-4000:] if self.log.exists() else ""


class Rig:
    """Use as a context manager. With `direct` the plugin mounts kubelet's own folder, as without us."""

    def __init__(
        self, name: str = "dgx1-v100", *, direct: bool = False, policy: str = "none", pass_through: bool = False
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rig-", dir="/tmp"))  # a socket's path has 107 bytes at most
        self.plugins, self.kubelet = self.folder / "plugins", self.folder / "kubelet"
        self.plugins.mkdir()
        self.kubelet.mkdir()
        self.machine_name, self.machine = name, machine(name)
        self.uuids = gpu_uuids(NODE, self.machine)
        self.api = FakeApi()
        numa = len(set(self.machine.numa or (0,)))
        self.pod_resources = self.folder / "pod-resources.sock"
        self.manager = DeviceManager(self.kubelet, policy=policy, numa=numa, pod_resources=self.pod_resources)
        self.direct = direct
        self.relay = RelayProcess(self.folder, self.api.url, *(["--pass-through"] if pass_through else []))
        self.plugin: VendorPlugin | None = None
        self._plugins: list[VendorPlugin] = []

    def __enter__(self) -> Rig:
        self.api.__enter__()
        note = topology_annotation(self.machine, self.uuids)
        self.api.node(NODE, {"gpu-extender.io/topology": note})
        self.manager.start()
        if not self.direct:
            self.relay.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.relay.tail(), self.manager.log.read_text()[-2000:], file=sys.stderr)
        for plugin in self._plugins:
            plugin.stop()
        self.relay.stop()
        self.manager.stop()
        self.api.__exit__(None, None, None)
        shutil.rmtree(self.folder)

    def start_plugin(self, **options: object) -> VendorPlugin:
        """The vendor's plugin of this machine; waits until kubelet has its devices."""
        self.plugin = self.add(of_machine(self.socket_folder, self.machine_name, NODE, **options))
        self.manager.wait_for(self.machine.gpus)
        return self.plugin

    def add(self, plugin: VendorPlugin) -> VendorPlugin:
        """Start a plugin that this rig stops in the end."""
        self._plugins.append(plugin)
        plugin.start()
        return plugin

    @property
    def socket_folder(self) -> Path:
        """What the plugin takes for kubelet's folder."""
        return self.kubelet if self.direct else self.plugins

    def bind(self, *pods: Object, watched: bool = True) -> None:
        """The pods are bound; with `watched` their watch event is under way, and waited for."""
        for pod in pods:
            self.api.put("pods", pod)
        if watched:
            time.sleep(0.05)  # the relay does not say what its watch has brought; it is right without it, too

    def run(self, pod: Object, *, watched: bool = True) -> Admitted:
        """Bind, admit, and say that it runs."""
        self.bind(pod, watched=watched)
        return self.admit(pod)

    def admit(self, pod: Object) -> Admitted:
        """kubelet admits it, and says so."""
        admitted = self.manager.admit(pod)
        status = {"phase": "Failed", "startTime": "2026-01-01T00:00:01Z"}
        if not admitted.error:
            status["phase"] = "Running"
        self.api.put("pods", {**pod, "status": {**pod["status"], **status}})
        return admitted

    def end(self, pod: Object) -> None:
        """The pod is deleted."""
        self.manager.remove(pod["metadata"]["uid"])
        self.api.drop("pods", pod["metadata"]["uid"])

    def gpus(self, ids: Sequence[str]) -> set[int]:
        """Device ids as indices."""
        return {self.uuids.index(device.partition("::")[0]) for device in ids}
