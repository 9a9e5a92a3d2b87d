"""A node of a control plane: its own /etc and loopback, and a kubelet that runs its static pods as processes.

What a real kubelet does for them: it runs the manifests of a folder, starts a pod anew when its manifest changes or a
container ends, and shows each as a mirror pod. Images are not part of it (`containers_by_hand.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import shutil
import subprocess
import threading
from pathlib import Path
from types import TracebackType

from yaml import YAMLError

from extender.kube.client import ApiError, NoAnswer
from tests.e2e import builders, containers_by_hand
from tests.e2e.api import Object
from tests.e2e.cluster import ControlPlane
from tests.e2e.pod_network import PodNetwork
from tests.e2e.process import Component
from tests.yaml_text import objects_in

NODE = "control-plane"
LOOK_SECONDS = 0.3
ROUTE = "ip address add 192.0.2.10/32 dev lo && ip route add default dev lo"
"""kubeadm looks for the address of a default route, although nothing here uses it."""


class StaticNode:
    """A context manager. While it lasts the node NODE runs what is in `etc`/kubernetes/manifests."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        """`folder`: new; its `etc` is the node's /etc, a copy of the machine's."""
        self.etc = folder / "etc"
        shutil.copytree("/etc", self.etc, symlinks=True, ignore=shutil.ignore_patterns("kubernetes"))
        self.manifests = self.etc / "kubernetes" / "manifests"
        self.manifests.mkdir(parents=True)
        self._control_plane, self._api, self._folder = control_plane, control_plane.api, folder
        self._network = PodNetwork.of(control_plane)
        subprocess.run([*self._network.enter, "sh", "-c", ROUTE], check=True, timeout=30)
        own_etc = f'mount --bind {shlex.quote(str(self.etc))} /etc && exec "$@"'
        isolated = ("unshare", "--mount", "--propagation", "private", "--", "sh", "-c", own_etc, "sh")
        self.enter = (*self._network.enter, *isolated)
        """The words before a command that runs on the node."""
        self._pods: dict[str, _Pod] = {}
        self._seen: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> StaticNode:
        self._api.create(builders.node(NODE, 0))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if error is not None:
            error.add_note("\n".join(pod.tails() for pod in self._pods.values()))
        for pod in self._pods.values():
            pod.end()
        self._network.close()

    def forwarded(self, port: int) -> str:
        """HOST:PORT on the machine that leads to this port of the node's loopback."""
        return self._network.forwarded(port)

    def users(self, name: str) -> set[int]:
        """Who runs the processes of the manifest NAME.yaml; none if there are none."""
        pod = self._pods.get(f"{name}.yaml")
        return pod.users() if pod else set()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            with contextlib.suppress(ApiError, NoAnswer, YAMLError):
                self._once()

    def _once(self) -> None:
        """A file counts when it is the same at two looks: it may be half written at the first one."""
        found = {file.name: text for file in self.manifests.glob("*.yaml") if (text := file.read_text()).strip()}
        settled = {name: text for name, text in found.items() if self._seen.get(name) == text}
        self._seen = found
        for name in [name for name, pod in self._pods.items() if name not in found]:
            self._pods[name].end()
            del self._pods[name]
        for name, text in settled.items():
            if name not in self._pods or self._pods[name].text != text:
                if name in self._pods:
                    self._pods.pop(name).end()
                self._pods[name] = _Pod(self._control_plane, text, self._folder, self.enter)
                self._pods[name].begin()
            self._pods[name].follow()


class _Pod:
    """One manifest."""

    def __init__(self, control_plane: ControlPlane, text: str, folder: Path, enter: tuple[str, ...]) -> None:
        self.text = text
        self._api, self._enter = control_plane.api, enter
        pod: Object = objects_in(text)[0]
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        stage = folder / "pods" / f"{pod['metadata']['name']}-{digest}"
        shutil.rmtree(stage, ignore_errors=True)
        self._containers: list[Object] = pod["spec"]["containers"]
        self._processes: list[Component] = [
            containers_by_hand.start(control_plane, pod, container, [], stage, enter) for container in self._containers
        ]
        meta = pod["metadata"]
        self._mirror: Object = {
            **pod,
            "metadata": {
                **meta, "name": f"{meta['name']}-{NODE}", "annotations": {"kubernetes.io/config.mirror": digest},
            },
            "spec": {**pod["spec"], "nodeName": NODE},
        }  # fmt: skip
        self._name, self._namespace = self._mirror["metadata"]["name"], meta["namespace"]

    def begin(self) -> None:
        self._api.create(self._mirror)
        for process in self._processes:
            process.start()

    def follow(self) -> None:
        """Starts what has ended, and writes the status."""
        for process in self._processes:
            if not process.running:
                process.start()
        ready = all(containers_by_hand.probe(one, "readinessProbe", self._enter) for one in self._containers)
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
        self._api.patch("Pod", self._name, {"status": status}, self._namespace, how="strategic", subresource="status")

    def end(self) -> None:
        for process in reversed(self._processes):
            process.stop()
        with contextlib.suppress(ApiError, NoAnswer):
            self._api.delete("Pod", self._name, self._namespace, grace=0)

    def users(self) -> set[int]:
        """The user ids of the processes that run."""
        found = set()
        for process in self._processes:
            with contextlib.suppress(FileNotFoundError):
                found.add(Path(f"/proc/{process.pid}").stat().st_uid)
        return found

    def tails(self) -> str:
        """The last lines of each container."""
        return "\n".join(f"--- {self._name} {process.name}\n{process.tail(25)}" for process in self._processes)
