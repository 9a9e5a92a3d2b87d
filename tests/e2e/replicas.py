"""The replicas of the product as pods, and a kubelet whose ports can be forwarded: what `kubectl gpu-extender` meets.

The kubelet forwards by kubelet's own streaming code (`kubectl/cmd/kubelet`). A pod has no network of its own here: the
kubelet is told where the server of each pod really listens.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.e2e import builders
from tests.e2e.api import Api
from tests.e2e.cluster import ControlPlane
from tests.e2e.process import Component, free_port, wait_until_listening
from tests.e2e.queueing import SYSTEM
from tests.installed import ROOT, install
from tests.waiting import wait_for
from tests.yaml_text import objects_in

NODE = "control-plane"
PORT = 8888
LABELS = {"app.kubernetes.io/name": "gpu-extender", "app.kubernetes.io/component": "scheduler"}


def installed(api: Api) -> None:
    """The namespace of the replicas, with what a reader may do there."""
    wait_for(lambda: api.find("Namespace", SYSTEM) is None, 120, "the namespace of the test before is gone")
    api.create(builders.namespace(SYSTEM))
    rights = objects_in(ROOT / "manifests" / "reader.yaml")
    api.create(next(made for made in rights if made["kind"] == "Role"))


@contextmanager
def replicas(
    control_plane: ControlPlane, binaries: Path, pods: Mapping[str, tuple[str, str]], ports: Mapping[str, str]
) -> Iterator[Component]:
    """`pods`: name -> (host name, HOST:PORT where its server listens). `binaries`: of build_kubectl; `ports`: further
    ports of pods, NAMESPACE/POD:PORT -> HOST:PORT."""
    api, port = control_plane.api, free_port()
    served = {f"{SYSTEM}/{name}:{PORT}": at for name, (_, at) in pods.items()} | dict(ports)
    kubelet = Component(
        "kubelet",
        [str(binaries / "kubelet"), f"127.0.0.1:{port}", str(control_plane.ca),
         str(control_plane.ca.with_suffix(".key")), *(f"{pod}={at}" for pod, at in served.items())],
        control_plane.logs / f"kubelet-{port}.log", control_plane.reaper,
    )  # fmt: skip
    kubelet.start()
    try:
        wait_until_listening(kubelet, port)
        node = builders.node(NODE, 0)
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
        node["status"] |= {"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
        api.create(node)
        for name, (host, _) in pods.items():
            made = builders.pod(name, SYSTEM, labels=LABELS, node_name=NODE, grace=0, hostname=host)
            api.create(made)
            running(api, name)
        yield kubelet
    finally:
        kubelet.kill()


def running(api: Api, name: str) -> None:
    """What a kubelet writes of a pod that is ready."""
    ready = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [ready]}
    api.patch("Pod", name, {"status": status}, SYSTEM, subresource="status")


def on_path(folder: Path, binaries: Path) -> str:
    """A PATH with kubectl and with what the wheel installs, and little else."""
    shutil.copy(binaries / "kubectl", folder / "kubectl")
    install(folder)
    return f"{folder}:/usr/bin:/bin"
