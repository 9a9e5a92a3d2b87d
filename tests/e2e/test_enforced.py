"""Whole scheduling runs with the relay and without: scheduler -> bind -> kubelet, and what the pods got."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from tests.e2e.cluster import ControlPlane
from tests.e2e.enforced_run import Got, judge, run
from tests.e2e.real_node import RealNode
from tests.e2e.scene import SceneFactory

MACHINES = {
    "v100-a": "dgx1-v100",
    "v100-b": "dgx1-v100",
    "pairs": "h100-nvl-8",
    "amd-like": "v100-8-permuted",
    "h100": "dgx-h100",
}


def figures(scene: SceneFactory, plugin: str, capsys: pytest.CaptureFixture[str]) -> Got:
    """One run, printed."""
    pods = int(os.environ.get("GPU_EXTENDER_ENFORCED", "50"))
    nodes = {name: {"topology": topology, "plugin": plugin} for name, topology in MACHINES.items()}
    cluster = scene(nodes, kubelet={"seed": 11, "start_seconds": 0.1, "report_seconds": 0.3})
    restarts = dict.fromkeys((pods // 3, 2 * pods // 3), cluster.extender.restart)
    trace = run(cluster, pods, restarts)
    truth = cluster.kubelets.truth
    got = judge(truth.log(), trace, MACHINES, stock=plugin != "relay")
    with capsys.disabled():
        print("\n" + got.text("relay" if plugin == "relay" else "stock plugin"))
    assert got.pods == pods
    assert truth.double_allocations == 0
    assert cluster.kubelets.errors == []
    counted = {
        outcome: cluster.metric("gpu_extender_plans_total", f'outcome="{outcome}"') for outcome in ("kept", "stock")
    }
    assert counted["kept"] > 0  # since the last restart
    assert (counted["stock"] > 0) == (plugin != "relay")
    return got


def test_every_pod_gets_its_planned_set(scene: SceneFactory, capsys: pytest.CaptureFixture[str]) -> None:
    """Two restarts of ours in between. 50 pods (GPU_EXTENDER_ENFORCED: another number)."""
    got = figures(scene, "relay", capsys)
    assert got.planned == got.pods
    assert (got.set_share, got.refused) == (1.0, 0)
    assert got.ring_share >= 0.95


def test_on_kubelets_own_device_manager(
    scene: SceneFactory, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    """scheduler -> bind -> relay -> device manager -> plugin, all real, with each of them restarted in between."""
    pods = int(os.environ.get("GPU_EXTENDER_ENFORCED", "50")) // 2
    machines = {"v100": "dgx1-v100", "pairs": "h100-nvl-8"}
    reach = (control_plane.url, control_plane.token("admin"), control_plane.ca)
    nodes = {name: {"topology": topology, "plugin": "relay"} for name, topology in machines.items()}
    with ExitStack() as stack:
        cluster = scene(nodes, kubelet={"seed": 11, "report_seconds": 0.3})
        real = {name: stack.enter_context(RealNode(name, machines[name], *reach)) for name in machines}
        for name, one in real.items():
            cluster.kubelets.truth.be_real(name, one)
        v100, pairs = real["v100"], real["pairs"]
        steps = (
            v100.restart_relay, pairs.restart_kubelet, v100.restart_plugin, cluster.extender.restart,
            v100.restart_kubelet, pairs.restart_relay,
        )  # fmt: skip
        trace = run(cluster, pods, {pods * (n + 1) // (len(steps) + 1): step for n, step in enumerate(steps)})
        truth = cluster.kubelets.truth
        got = judge(truth.log(), trace, machines, stock=False)
        with capsys.disabled():
            print("\n" + got.text("real relay"))
            print({name: one.relay.counts() for name, one in real.items()})
        assert (got.pods, got.planned, got.set_share, got.refused) == (pods, pods, 1.0, 0)
        assert got.ring_share >= 0.95


def test_without_the_relay_it_is_a_prediction(scene: SceneFactory, capsys: pytest.CaptureFixture[str]) -> None:
    """The stock plugin chooses: single GPUs at random, NVSwitch unseen; the share that came is printed beside."""
    got = figures(scene, "nvidia", capsys)
    assert got.set_share < 0.9
