"""A GPU node of the e2e cluster on which everything that hands out GPUs is real: kubelet's device manager, the relay as
a process with its watch on the real API server, and a vendor's plugin on the gRPC API."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from extender.sim.kubelet import AdmissionRejected
from extender.sim.machines import gpu_uuid, machine
from tests.e2e.device_manager import DeviceManager, Object
from tests.e2e.relay_rig import RelayProcess
from tests.e2e.vendor_plugin import of_machine


class RealNode:
    """Use as a context manager. Restarts wait until the devices are there again, and admissions wait for them."""

    def __init__(self, node: str, topology: str | Mapping[str, Any], url: str, token: str, ca: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="node-", dir="/tmp"))
        for name in ("plugins", "kubelet"):
            (self._folder / name).mkdir()
        secret = self._folder / "token"
        secret.write_text(token)
        self._lock = threading.RLock()
        self._gpus = machine(topology).gpus
        self._index = {gpu_uuid(node, gpu): gpu for gpu in range(self._gpus)}
        self._manager = DeviceManager(self._folder / "kubelet")
        self.relay = RelayProcess(self._folder, url, "--token-file", str(secret), "--ca-file", str(ca), node=node)
        self._plugin = of_machine(self._folder / "plugins", topology, node)

    def __enter__(self) -> RealNode:
        self._manager.start()
        self.relay.start()
        self._plugin.start()
        self._manager.wait_for(self._gpus)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.relay.tail())
        self._plugin.stop()
        self.relay.stop()
        self._manager.stop()
        shutil.rmtree(self._folder)

    def admit(self, pod: Object) -> dict[str, frozenset[int]]:
        """Container -> GPUs; raises Refused."""
        with self._lock:
            got = self._manager.admit(pod)
            if got.error:
                raise AdmissionRejected(got.error)
            return {
                container: frozenset(self._index[device] for ids in resources.values() for device in ids)
                for container, resources in got.devices.items()
            }

    def remove(self, uid: str) -> None:
        """The pod has ended."""
        with self._lock:
            self._manager.remove(uid)

    def restart_kubelet(self) -> None:
        """Killed, and back."""
        with self._lock:
            self._manager.stop()
            self._manager.start()
            self._manager.wait_for(self._gpus)

    def restart_relay(self) -> None:
        """Killed, and back."""
        with self._lock:
            self.relay.stop(kill=True)
            self._manager.wait_for(0)
            self.relay.start()
            self._manager.wait_for(self._gpus)

    def restart_plugin(self) -> None:
        """Gone, and back."""
        with self._lock:
            self._plugin.stop()
            self._manager.wait_for(0)
            self._plugin.start()
            self._manager.wait_for(self._gpus)
