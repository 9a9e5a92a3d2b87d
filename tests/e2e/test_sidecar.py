"""Two replicas of `manifests` on the real control plane, and what happens when a sidecar is down or hangs.

kube-scheduler and kubectl are real; kubelet's probes, restarts and back-off are played (`pod_container.py`).
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from extender.cli import kubectl as plugin
from extender.cli.kubectl import SCHEDULER, Kubectl, find, split
from tests.e2e import builders, containers_by_hand
from tests.e2e.api import Api, Object
from tests.e2e.build import build_kubectl
from tests.e2e.cluster import ControlPlane
from tests.e2e.conftest import KubeletsFactory, SchedulerFactory
from tests.e2e.kustomize import MANIFESTS, kubectl
from tests.e2e.pod_container import PodContainer
from tests.e2e.pod_runner import PodRunner
from tests.e2e.queueing import SYSTEM
from tests.waiting import wait_for

BIND_SECONDS = 30
"""From the end of a sidecar until pods with GPUs are bound again."""
DOWN_SECONDS = int(os.environ.get("SIDECAR_DOWN_SECONDS", "45"))
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
EXTENDER, KUBE_SCHEDULER = "gpu-extender", "kube-scheduler"


class Replicas:
    """Two replicas, both ready; one of them schedules."""

    def __init__(self, api: Api, runner: PodRunner) -> None:
        self.api = api
        self._runner = runner
        self._pods = 0

    def names(self) -> list[str]:
        pods = self.api.list("Pod", SYSTEM)
        return sorted(pod["metadata"]["name"] for pod in pods if _ready(pod))

    def leader(self) -> str:
        """The pod that holds the Lease; "" where none does."""
        lease = self.api.find("Lease", SCHEDULER, SYSTEM)
        return str((lease or {}).get("spec", {}).get("holderIdentity") or "").partition("_")[0]

    def container(self, pod: str, name: str) -> PodContainer:
        return self._runner.pod(pod).containers[name]

    def bind(self, seconds: float) -> float:
        """A new pod with a GPU is bound within so many seconds; returns after how many."""
        self._pods += 1
        name, began = f"gpu-pod-{self._pods}", time.monotonic()
        self.api.create(builders.pod(name, gpus=1, scheduler="gpu-scheduler", tolerations=[{"operator": "Exists"}]))
        wait_for(lambda: self.api.get("Pod", name, "default")["spec"].get("nodeName"), seconds, f"{name} is bound")
        self.api.delete("Pod", name, "default", grace=0)
        return time.monotonic() - began


def _ready(pod: Object) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))


@pytest.fixture
def replicas(
    control_plane: ControlPlane, api: Api, kubelets: KubeletsFactory, scheduler: SchedulerFactory, tmp_path: Path
) -> Iterator[Replicas]:
    containers_by_hand.needed()
    wait_for(lambda: api.find("Namespace", SYSTEM) is None, 120, "the namespace of the test before is gone")
    kubelets().add_node("gpu-1", topology="dgx-h100", taints=[TAINT])  # our own pods run on the other node
    scheduler({})  # the cluster's own, which places our pods
    kubeconfig = control_plane.kubeconfig()
    with PodRunner(control_plane, tmp_path / "pods") as runner:
        kubectl("apply", "-k", str(MANIFESTS), kubeconfig=kubeconfig)
        both = Replicas(api, runner)
        wait_for(lambda: len(both.names()) == 2 and both.leader(), 120, "two replicas are ready, and one schedules")
        both.bind(30)
        yield both
        kubectl("delete", "-k", str(MANIFESTS), kubeconfig=kubeconfig)


def health(capsys: pytest.CaptureFixture[str]) -> Object:
    """What `kubectl gpu-extender check --live` says; its exit code agrees."""
    capsys.readouterr()
    code = plugin.main(["check", "--live", "-o", "json"])
    shown: Object = json.loads(capsys.readouterr().out)
    assert code == (0 if shown["healthy"] else 1)
    return shown


@pytest.mark.parametrize("how", ["killed", "hung"])
def test_pods_are_bound_again_while_a_sidecar_is_down(
    replicas: Replicas,
    how: str,
    control_plane: ControlPlane,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig()))
    monkeypatch.setenv("KUBECTL_PATH", str(build_kubectl() / "kubectl"))
    first = replicas.leader()
    assert health(capsys)["healthy"]
    sidecar = replicas.container(first, EXTENDER)
    sidecar.held.set()
    began = time.monotonic()
    if how == "killed":
        sidecar.process.kill()
    else:
        os.killpg(sidecar.process.pid, signal.SIGSTOP)
    after = replicas.bind(BIND_SECONDS)
    [second] = {pod for pod in replicas.names() if pod != first} & {replicas.leader()}
    while time.monotonic() < began + DOWN_SECONDS:
        replicas.bind(5)
    shown = health(capsys)
    assert not shown["healthy"]
    assert {one["name"]: one["reachable"] for one in shown["replicas"]} == {first: False, second: True}
    [held] = [one for one in shown["leases"] if one["name"] == SCHEDULER]
    assert (held["holder"].partition("_")[0], held["problem"]) == (second, None)
    assert find(Kubectl(split([])[0]), SYSTEM, [SCHEDULER]).pod == second
    restarts = replicas.container(first, KUBE_SCHEDULER).restarts
    print(f"{how}: bound after {after:.1f} s, kube-scheduler was started {restarts} times again")
    assert replicas.container(second, KUBE_SCHEDULER).restarts == 0
    if how == "hung":
        os.killpg(sidecar.process.pid, signal.SIGCONT)
    sidecar.held.clear()
    wait_for(lambda: len(replicas.names()) == 2, 360, "the first replica is ready again")
    assert replicas.leader() == second


def test_a_sidecar_that_starts_again_at_once_moves_no_lease(replicas: Replicas) -> None:
    first = replicas.leader()
    replicas.container(first, EXTENDER).process.kill()
    replicas.bind(BIND_SECONDS)
    time.sleep(10)
    assert replicas.leader() == first
    assert replicas.container(first, KUBE_SCHEDULER).restarts == 0


def test_the_restarts_are_few_while_both_sidecars_are_down(replicas: Replicas) -> None:
    names = replicas.names()
    for name in names:
        replicas.container(name, EXTENDER).held.set()
        replicas.container(name, EXTENDER).process.kill()
    time.sleep(DOWN_SECONDS)
    for name in names:
        assert 1 <= replicas.container(name, KUBE_SCHEDULER).restarts <= 3
        replicas.container(name, EXTENDER).held.clear()
    print(f"bound {replicas.bind(60):.1f} s after both are back")
