"""kubelet's own device manager as a child process: the real sockets, driven line by line."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.e2e.build import build_device_manager

Object = dict[str, Any]
Devices = dict[str, dict[str, list[str]]]  # container -> resource -> device ids


class Admitted(NamedTuple):
    """What kubelet would say of the pod. `error` is "" when it was admitted."""

    devices: Devices
    error: str
    seconds: float

    def ids(self, container: str = "main", resource: str = "nvidia.com/gpu") -> list[str]:
        """The device ids of one container."""
        assert not self.error, self.error
        return self.devices[container][resource]


class DeviceManager:
    """Use as a context manager. `folder` is /var/lib/kubelet/device-plugins of a node that has only that."""

    def __init__(self, folder: Path, *, policy: str = "none", numa: int = 1, pod_resources: Path | None = None) -> None:
        self.folder = folder
        self.log = folder.parent / f"{folder.name}.log"
        self._command = [
            str(build_device_manager()), "-folder", str(folder), "-topology-policy", policy, "-numa", str(numa),
            "-pod-resources", "" if pod_resources is None else str(pod_resources), "-v", "4",
        ]  # fmt: skip
        self._child: subprocess.Popen[str] | None = None
        self._pods: dict[str, Object] = {}

    def __enter__(self) -> DeviceManager:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """kubelet starts; pods that it had admitted are known to it, as the API server would tell."""
        with self.log.open("a") as log:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._read()
        for pod in self._pods.values():
            self._do({"op": "known", "pod": pod})

    def stop(self, *, kill: bool = True) -> None:
        """kubelet goes; its checkpoint stays."""
        if self._child is None:
            return
        if kill:
            self._child.kill()
        elif self._child.stdin is not None:
            self._child.stdin.close()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        self._child = None

    def admit(self, pod: Object) -> Admitted:
        """The pod arrives at kubelet."""
        said = self._do({"op": "admit", "pod": pod})
        if not said.get("error"):
            self._pods[pod["metadata"]["uid"]] = pod
        return Admitted(said.get("devices") or {}, said.get("error", ""), said["seconds"])

    def remove(self, uid: str) -> None:
        """The pod has ended."""
        self._pods.pop(uid, None)
        self._do({"op": "remove", "uid": uid})

    def allocations(self) -> dict[str, Devices]:
        """Pod uid -> what it holds."""
        return dict(self._do({"op": "list"}).get("pods") or {})

    def allocatable(self, resource: str = "nvidia.com/gpu") -> int:
        """How many healthy devices the node's status would say."""
        return int((self._do({"op": "capacity"}).get("allocatable") or {}).get(resource, 0))

    def wait_for(self, devices: int, resource: str = "nvidia.com/gpu", timeout: float = 60) -> None:
        """Until the node has so many healthy devices."""
        until = time.monotonic() + timeout
        while (now := self.allocatable(resource)) != devices:
            assert time.monotonic() < until, (
                f"{now} devices of {resource}, not {devices}: {self.log.read_text()[-3000:]}"
            )
            time.sleep(0.02)

    def _do(self, request: Mapping[str, Any]) -> Object:
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(request) + "\n")
        self._child.stdin.flush()
        return self._read()

    def _read(self) -> Object:
        assert self._child is not None
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line, f"the device manager has ended: {self.log.read_text()[-3000:]}"
        said: Object = json.loads(line)
        return said


def pod(
    uid: str,
    gpus: int | Mapping[str, int] = 1,
    *,
    plan: str = "",
    init: Mapping[str, int] | None = None,
    sidecars: Sequence[str] = (),
    resource: str = "nvidia.com/gpu",
    resources: Mapping[str, int] | None = None,
    created: str = "2026-01-01T00:00:00Z",
    node: str = "node-1",
) -> Object:
    """A bound pod. `gpus`: of the container main, or by container; `init` likewise, `sidecars` of those restart always;
    `resources`: what main asks for besides."""

    def container(name: str, count: int, more: Mapping[str, int] | None = None) -> Object:
        limits = {name: str(count) for name, count in {resource: count, **(more or {})}.items() if count}
        restarts = {"restartPolicy": "Always"} if name in sidecars else {}
        return {"name": name, "image": "none", "resources": {"limits": limits, "requests": limits}, **restarts}

    mains = gpus if isinstance(gpus, Mapping) else {"main": gpus}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": uid,
            "namespace": "default",
            "uid": uid,
            "creationTimestamp": created,
            "annotations": {"gpu-extender.io/gpus": plan} if plan else {},
        },
        "spec": {
            "nodeName": node,
            "initContainers": [container(name, count) for name, count in (init or {}).items()],
            "containers": [container(name, count, resources) for name, count in mains.items()],
        },
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": created}],
        },
    }
