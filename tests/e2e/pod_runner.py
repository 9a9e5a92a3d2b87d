"""A node whose kubelet runs pods as processes of this machine: the pods of our own manifests, as they are applied.

What a real kubelet does for them: containers in their order, sidecars first; their probes and restarts
(`pod_container.py`); the end of a deleted pod; ports that kubectl forwards. Images and users are not part of it
(`containers_by_hand.py`).
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from types import TracebackType

from extender.kube.client import ApiError, NoAnswer
from tests.e2e import builders, containers_by_hand
from tests.e2e.api import Api, Object
from tests.e2e.build import build_kubectl
from tests.e2e.cluster import ControlPlane
from tests.e2e.pod_container import PodContainer
from tests.e2e.pod_network import PodNetwork
from tests.e2e.process import Component, free_port, wait_until_listening

NODE = "control-plane"
PORT = 8888
START_SECONDS = 60.0
PROBE_SECONDS = 0.5


class RunningPod(threading.Thread):
    """One pod, from its start until `end`. It writes the pod's status."""

    def __init__(self, control_plane: ControlPlane, pod: Object, folder: Path) -> None:
        super().__init__(daemon=True)
        self.pod = pod
        self.name, self.namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        self._control_plane = control_plane
        self._folder = folder
        self.containers: dict[str, PodContainer] = {}
        """By name, in the order in which they start."""
        self._ended = threading.Event()
        self._network = PodNetwork.of(control_plane)
        self.address = self._network.forwarded(PORT)

    def run(self) -> None:
        """Starts the containers, then follows their probes."""
        try:
            self._start()
            while not self._ended.wait(PROBE_SECONDS):
                self._write(all(container.ready for container in self.containers.values()))
        finally:
            for container in reversed(self.containers.values()):
                container.end()
            self._network.close()

    def end(self) -> None:
        """Ends the containers, the last one first."""
        self._ended.set()
        self.join()

    def tails(self) -> str:
        """The last lines of each container."""
        texts = [f"--- {self.name} {one.name}\n{one.process.tail(15)}" for one in self.containers.values()]
        return "\n".join(texts)

    def _start(self) -> None:
        api, spec = self._control_plane.api, self.pod["spec"]
        names = [volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume]
        objects = [{**api.get("ConfigMap", name, self.namespace), "kind": "ConfigMap"} for name in names]
        sidecars = spec.get("initContainers", [])
        for container in [*sidecars, *spec["containers"]]:
            process = containers_by_hand.start(
                self._control_plane, self.pod, container, objects, self._folder / self.name, self._network.enter
            )
            grace = spec.get("terminationGracePeriodSeconds", 30)
            kept = self.containers[container["name"]] = PodContainer(container, process, self._network.enter, grace)
            kept.begin()
            while container in sidecars and not kept.started.is_set() and not self._ended.wait(PROBE_SECONDS):
                pass

    def _write(self, ready: bool) -> None:
        state = {"type": "Ready", "status": str(ready)}
        status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [state]}
        with contextlib.suppress(ApiError, NoAnswer):
            api = self._control_plane.api
            api.patch("Pod", self.name, {"status": status}, self.namespace, how="strategic", subresource="status")


class PodRunner:
    """A context manager. While it lasts the node NODE runs the pods that are bound to it."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        """`folder`: where files of the containers are kept."""
        self._control_plane = control_plane
        self._folder = folder
        self._api: Api = control_plane.api
        self._pods: dict[str, RunningPod] = {}
        self._port = free_port()
        log = control_plane.logs / f"kubelet-{self._port}.log"
        self._kubelet = Component("kubelet", [], log, control_plane.reaper)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> PodRunner:
        node = builders.node(NODE, 0)
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
        node["status"] |= {"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}}}
        self._api.create(node)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note("\n".join(pod.tails() for pod in self._pods.values()))
        self._ended.set()
        self._thread.join()
        for pod in self._pods.values():
            pod.end()
        self._kubelet.kill()

    def pod(self, name: str) -> RunningPod:
        """A pod that runs here. KeyError."""
        return {pod.name: pod for pod in list(self._pods.values())}[name]

    def _look(self) -> None:
        while not self._ended.wait(0.2):
            with contextlib.suppress(ApiError, NoAnswer):
                self._once()

    def _once(self) -> None:
        bound = {pod["metadata"]["uid"]: pod for pod in self._api.list("Pod", fields=f"spec.nodeName={NODE}")}
        before = set(self._pods)
        for uid, pod in bound.items():
            if uid not in self._pods and "deletionTimestamp" not in pod["metadata"]:
                self._pods[uid] = RunningPod(self._control_plane, pod, self._folder)
                self._pods[uid].start()
        for uid in [uid for uid in self._pods if "deletionTimestamp" in bound.get(uid, GONE)["metadata"]]:
            self._pods.pop(uid).end()
        if set(self._pods) != before:
            self._forward()
        for uid, pod in bound.items():
            if "deletionTimestamp" in pod["metadata"]:
                self._api.delete("Pod", pod["metadata"]["name"], pod["metadata"]["namespace"], grace=0, uid=uid)

    def _forward(self) -> None:
        """Starts the forwarding kubelet anew: it is told its pods at its start."""
        self._kubelet.kill()
        ca = self._control_plane.ca
        pods = [f"{pod.namespace}/{pod.name}:{PORT}={pod.address}" for pod in self._pods.values()]
        program = str(build_kubectl() / "kubelet")
        self._kubelet.argv = [program, f"127.0.0.1:{self._port}", str(ca), str(ca.with_suffix(".key")), *pods]
        self._kubelet.start()
        wait_until_listening(self._kubelet, self._port)


GONE: Object = {"metadata": {"deletionTimestamp": ""}}
