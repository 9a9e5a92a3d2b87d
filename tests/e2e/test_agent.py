"""The agent on kubelet's own PodResources socket."""

from __future__ import annotations

import subprocess
import sys

import pytest

from extender.node.apiserver import ApiEndpoint
from extender.node.kubelet_api import Kubelet
from extender.topologies import annotation
from tests.e2e.build import build_device_manager
from tests.e2e.device_manager import pod
from tests.e2e.relay_rig import NODE, Rig

GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module", autouse=True)
def _program() -> None:
    build_device_manager()


def test_what_kubelet_says_over_its_socket() -> None:
    with Rig(direct=True) as rig:
        plugin = rig.start_plugin()
        assert Kubelet(rig.pod_resources).held() == []
        one = rig.run(pod("a", {"c1": 2, "c2": 1}))
        told = {held.container: held for held in Kubelet(rig.pod_resources).held()}
        assert told["c1"] == ("default", "a", "c1", GPU, tuple(sorted(one.ids("c1"))))
        assert told["c2"].devices == tuple(one.ids("c2"))
        plugin.set_health(3, False)
        rig.manager.wait_for(7)
        assert Kubelet(rig.pod_resources).healthy(GPU) == set(rig.uuids) - {rig.uuids[3]}


def test_the_command_writes_the_node_and_the_pods() -> None:
    """`gpu-extender agent --once` with nvidia-smi's text, on a node whose kubelet does not say what pods hold."""
    with Rig() as rig:
        plugin = rig.start_plugin()
        got = rig.run(pod("a", 2, plan="3,5"))
        assert rig.gpus(got.ids()) == {3, 5}
        plugin.set_health(6, False)
        rig.manager.wait_for(7)
        rig.api.put("nodes", {"metadata": {"name": NODE}, "status": {"nodeInfo": {"kubeletVersion": "v1.35.0"}}})
        text = rig.folder / "nvidia-smi.txt"
        text.write_text(_as_nvidia_smi(rig))
        mode = rig.folder / "mode"
        mode.write_text("plans\n")
        subprocess.run(
            [sys.executable, "-m", "extender", "agent", "--once", "--source", "file", "--text", str(text),
             "--node", NODE, "--api-server", rig.api.url, "--pod-resources", str(rig.pod_resources),
             "--mode-file", str(mode), "--gbps", "25"],
            check=True,
            timeout=60,
        )  # fmt: skip
        notes = ApiEndpoint(rig.api.url).get(f"/api/v1/nodes/{NODE}")["metadata"]["annotations"]
        stated = annotation.decode(notes[annotation.KEY])
        assert stated.links == rig.machine.links
        assert stated.health == (True,) * 6 + (False, True)
        assert notes["gpu-extender.io/relay"] == "1"
        held = ApiEndpoint(rig.api.url).get("/api/v1/namespaces/default/pods/a")["metadata"]["annotations"]
        assert held["gpu-extender.io/held-gpus"] == "3,5"


def _as_nvidia_smi(rig: Rig) -> str:
    """`nvidia-smi topo -m` and `-L` of the rig's machine."""
    size = range(rig.machine.gpus)
    rows = ["\t" + "\t".join(f"GPU{gpu}" for gpu in size)]
    for a in size:
        cells = ["X" if a == b else f"NV{rig.machine.links[a][b]}" if rig.machine.links[a][b] else "SYS" for b in size]
        rows.append(f"GPU{a}\t" + "\t".join(cells))
    return "\n".join(rows + [f"GPU {gpu}: Tesla V100-SXM2-16GB (UUID: {rig.uuids[gpu]})" for gpu in size]) + "\n"
