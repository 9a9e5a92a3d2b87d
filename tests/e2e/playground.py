"""`python -m tests.e2e.playground`: a cluster to try with kubectl, until Ctrl-C.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are real; nodes and kubelets are simulated, so no
container runs. gpu-extender answers the scheduler as `manifests/` configures it, with bind and the queue.
"""

from __future__ import annotations

import contextlib
import fcntl
import signal
import socket
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.e2e import builders, queueing
from tests.e2e.build import ControlPlaneUnavailable, build, build_kubectl, cache_root
from tests.e2e.cluster import ControlPlane
from tests.e2e.extender_process import ExtenderProcess
from tests.e2e.kubelet import SimulatedKubelets
from tests.e2e.queueing import SCHEDULER, SYSTEM
from tests.e2e.scene import CONFIG
from tests.yaml_text import objects_in

MANIFESTS = CONFIG.parent
VENV_BIN = Path(sys.executable).parent
PORT = 8888  # the commands ask it by default
SETTINGS = {"queue": {"enabled": True}}
RACK = "topology.kubernetes.io/rack"
NODES = {
    **{f"h100-{n}": ("dgx-h100", f"rack-{n // 4 + 1}") for n in range(8)},
    "v100-0": ("dgx1-v100", "rack-3"),
    "l4-0": ("l4-8", "rack-3"),
}
TAINT = {"key": builders.GPU, "value": "present", "effect": "NoSchedule"}


def _load(path: Path) -> dict[str, Any]:
    return dict(objects_in(path)[0])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _port(stack: ExitStack) -> int | None:
    """PORT where it is free and no other playground has taken it, else None. It is taken until `stack` ends: until the
    server listens, it looks free to two that start together."""
    lock = stack.enter_context((cache_root() / "playground.lock").open("w"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    return PORT if _is_free(PORT) else None


def scheduler_config(url: str) -> dict[str, Any]:
    """`manifests/kube-scheduler-config.yaml` for a scheduler that runs alone, with bind, asking `url`."""
    config = _load(CONFIG)
    config["leaderElection"] = {"leaderElect": False}
    config["extenders"][0] |= {"urlPrefix": f"{url}/v1", "bindVerb": "bind"}
    return config


def start(stack: ExitStack) -> tuple[ControlPlane, ExtenderProcess]:
    """Starts all parts; they end with `stack`."""
    control_plane = stack.enter_context(ControlPlane(build()))
    control_plane.api.create(builders.namespace(SYSTEM))
    account = {"name": SCHEDULER, "namespace": SYSTEM}
    control_plane.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    for manifest in queueing.objects():
        control_plane.api.create(manifest)
    kubelets = stack.enter_context(SimulatedKubelets(control_plane.api))
    for name, (topology, rack) in NODES.items():
        kubelets.add_node(name, topology=topology, labels={RACK: rack}, taints=[TAINT], plugin="relay")
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu-extender-playground-")))
    server = ExtenderProcess(
        folder,
        control_plane.logs,
        control_plane.kubeconfig(),
        control_plane.reaper,
        config={**_load(MANIFESTS / "gpu-extender.yaml"), **SETTINGS},
        port=_port(stack),
    )
    stack.callback(server.kill)
    server.start()
    control_plane.start_scheduler(scheduler_config(server.url))
    return control_plane, server


def main() -> int:
    """0 after Ctrl-C; 1 where the programs cannot be built."""
    try:
        kubectl = build_kubectl()
        build()
    except ControlPlaneUnavailable as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 1
    with ExitStack() as stack:
        control_plane, server = start(stack)
        print(
            f"A control plane with {len(NODES)} simulated GPU nodes runs until Ctrl-C. No container really runs.\n"
            f"The page: {server.url}/\n"
            "In another terminal:\n\n"
            f"cd {CONFIG.parents[1]}\n"
            f"export KUBECONFIG={control_plane.kubeconfig()}\n"
            f"export PATH={VENV_BIN}:{kubectl}:$PATH\n"
            f"export GPU_EXTENDER_SERVER={server.url}\n\n"
            "kubectl get nodes -L topology.kubernetes.io/rack,nvidia.com/gpu.product\n"
            "gpu-extender top\n",
            flush=True,
        )
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
