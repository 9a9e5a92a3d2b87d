"""The API server is away, or silent: how soon that is noticed, what waits for it, and how soon all is well after it.

kube-scheduler's own connection stays: only ours goes through the proxy. Where the API server itself goes away,
kube-scheduler comes back on its own time: client-go waits up to a minute after an outage, so a preemptor may wait for
that although we are current; /readyz and the metrics show how soon we are.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from extender.sim.machines import machine
from tests import plain
from tests.e2e.cluster import ControlPlane
from tests.e2e.lag import Lag
from tests.e2e.scene import H100, V100, Scene, SceneFactory, quiet
from tests.waiting import wait_for


@pytest.fixture
def lag(control_plane: ControlPlane) -> Iterator[Lag]:
    with Lag(control_plane.url) as lag:
        yield lag


@pytest.fixture
def kubeconfig(lag: Lag, control_plane: ControlPlane, tmp_path: Path) -> Path:
    return lag.kubeconfig(control_plane.kubeconfig(), tmp_path / "through-the-lag")


def dark(cluster: Scene) -> float:
    return cluster.metric("gpu_extender_dark_seconds")


def current_again(cluster: Scene, since: float) -> float:
    """Wait until nothing is dark; seconds since then."""
    wait_for(lambda: dark(cluster) == 0.0, 60, "all is watched again", every=0.05)
    return time.monotonic() - since


def readiness(cluster: Scene) -> int:
    return plain.get(f"{cluster.extender.url}/readyz").status_code


def test_no_pod_is_evicted_from_10_seconds_after_a_loss_on(scene: SceneFactory, lag: Lag, kubeconfig: Path) -> None:
    """The first request after the loss comes 11 s after it: it is the loss that counts, not the request.

    Once the connection is back, a preemptor is served within 10 s."""
    cluster = scene({f"n{i}": H100 for i in range(2)}, kubeconfig=kubeconfig)
    names = cluster.full_of_low_pods()
    with lag.cut():
        lost = time.monotonic()
        quiet(11)
        cluster.pod("urgent", 8, priority_class="high")
        wait_for(lambda: cluster.metric("gpu_extender_decisions_total", 'reason="dark"') >= 1, 60, "preempt is asked")
        asked = time.monotonic() - lost
        quiet(2)
        assert cluster.evictions() == {}
        assert cluster.alive(names) == set(names)
    back = time.monotonic()
    current = current_again(cluster, back)
    cluster.api.delete("Pod", "urgent", cluster.namespace)
    cluster.pod("again", 8, priority_class="high")
    cluster.running("again")
    served = time.monotonic() - back
    print(f"loss: preempt asked after {asked:.1f} s, no eviction; after the return: current {current:.1f} s, ")
    print(f"a preemptor runs {served:.1f} s after it")
    assert current < 10
    assert served < 10 + 2  # its pod is made, and its victims end, after all is current


def served_again(cluster: Scene, back: float, title: str) -> None:
    """A preemptor that is created now runs within 10 s of the return, and all is current by then."""
    cluster.pod("urgent", 8, priority_class="high")
    cluster.running("urgent")
    served = time.monotonic() - back
    current = current_again(cluster, back)
    print(f"{title}: after the return a preemptor runs {served:.1f} s, current for sure {current:.1f} s")
    assert served < 10
    assert current < 10
    assert cluster.kubelets.truth.double_allocations == 0


def test_readiness_ends_60_seconds_after_the_loss(
    scene: SceneFactory, kubeconfig: Path, control_plane: ControlPlane
) -> None:
    """The first request after the loss asks for the readiness. The API server itself is killed, and comes back;
    kube-scheduler is started anew then, since it would itself wait for up to a minute until it looks."""
    cluster = scene({f"n{i}": H100 for i in range(2)}, kubeconfig=kubeconfig)
    cluster.full_of_low_pods()
    quiet(1)
    control_plane.stop_apiserver()
    lost = time.monotonic()
    quiet(61)
    status, asked = readiness(cluster), time.monotonic() - lost
    control_plane.start_apiserver()
    back = time.monotonic()
    cluster.scheduler.restart()
    served_again(cluster, back, f"outage: /readyz said {status} {asked:.1f} s after the loss")
    wait_for(lambda: readiness(cluster) == 200, 60, "/readyz is 200 again", every=0.05)
    assert status == 503


def test_all_is_current_soon_after_the_api_server_returns(
    scene: SceneFactory, kubeconfig: Path, control_plane: ControlPlane
) -> None:
    """After a pause. kube-scheduler asks us within milliseconds, before we can have looked."""
    cluster = scene({f"n{i}": H100 for i in range(2)}, kubeconfig=kubeconfig)
    cluster.full_of_low_pods()
    quiet(1)
    os.killpg(control_plane.apiserver.pid, signal.SIGSTOP)
    try:
        quiet(30)
    finally:
        os.killpg(control_plane.apiserver.pid, signal.SIGCONT)
    served_again(cluster, time.monotonic(), "paused for 30 s")


def test_a_watch_that_stalls_silently_promises_no_links(scene: SceneFactory, lag: Lag, kubeconfig: Path) -> None:
    """45 s without a word, without bind: pods that require links wait, others are placed, and nobody is evicted.

    Each node has room for two of them, if they get the right GPUs."""
    cluster = scene({f"v{i}": V100 for i in range(4)}, kubeconfig=kubeconfig, bind=False)
    cluster.pod("before", 1)
    cluster.running("before")
    quiet(1)
    names = [f"tied{i}" for i in range(4)] + ["late0", "late1"]
    with lag.held():
        began = time.monotonic()
        for name, pause in zip(names, (2, 4, 3, 6, 12, 0), strict=True):
            cluster.pod(name, 3, links="required")
            quiet(pause)
        cluster.pod("loose", 1)
        assert cluster.running("loose", timeout=60)
        placed = [name for name in names if cluster.get(name)["spec"].get("nodeName")]
        cluster.unschedulable("late0", "the API server is silent", timeout=60)
        quiet(max(0.0, 45 - (time.monotonic() - began)))
        assert [name for name in names if cluster.get(name)["spec"].get("nodeName")] == placed
        assert dark(cluster) >= 40
    back = time.monotonic()
    current = current_again(cluster, back)
    cluster.running(*names)
    seconds = time.monotonic() - back
    wrong = {name: sorted(cluster.gpus(name)) for name in names if not machine("dgx1-v100").linked(cluster.gpus(name))}
    print(f"stall of 45 s: {len(placed)} pods that require links placed in it, current {current:.1f} s after it,")
    print(f"all {len(names)} run {seconds:.1f} s after it; unlinked {wrong}")
    assert wrong == {}
    assert current < 10
    assert cluster.evictions() == {}


def test_a_healthy_watch_that_resumes_has_no_dark_time(scene: SceneFactory) -> None:
    """15 s of an idle cluster: each turn says something, and no watch counts as opened again."""
    cluster = scene({"n0": H100})
    current_again(cluster, time.monotonic())  # /readyz asks for pods and nodes only
    ages = []
    until = time.monotonic() + 15
    while time.monotonic() < until:
        ages.append(cluster.metric("gpu_extender_cache_age_seconds", 'kind="Pod"'))
        assert dark(cluster) == 0.0
        time.sleep(0.2)
    restarts = cluster.metric("gpu_extender_watch_restarts_total")
    print(f"idle: the server was silent for {max(ages):.1f} s at most, watches opened again {restarts:.0f}")
    assert max(ages) < 5.0
    assert restarts == 0
