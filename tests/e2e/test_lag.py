"""Our view is behind, or the node itself is not complete yet: the pod waits some seconds, and nobody is evicted."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from tests.e2e.cluster import ControlPlane
from tests.e2e.lag import Lag
from tests.e2e.scene import H100, SceneFactory, quiet
from tests.waiting import wait_for


def test_our_watch_is_2_seconds_behind_while_a_node_joins(
    scene: SceneFactory, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """kube-scheduler knows the new node and asks about it; we do not. The full nodes' pods stay where they are."""
    with Lag(control_plane.url) as lag:
        kubeconfig = lag.kubeconfig(control_plane.kubeconfig(), tmp_path / "through-the-lag")
        cluster = scene({f"n{i}": H100 for i in range(2)}, kubeconfig=kubeconfig)
        names = cluster.full_of_low_pods()
        with lag.held():
            cluster.kubelets.add_node("new", **H100)
            cluster.scheduler_sees("new")
            began = time.monotonic()
            cluster.pod("urgent", 8, priority_class="high")
            wait_for(lambda: cluster.decisions("urgent"), 60, "the server is asked")
            quiet(2)
        assert cluster.running("urgent") == ["new"]
        waited = time.monotonic() - began
        decisions = [(d["verb"], d["result"]) for d in reversed(cluster.decisions("urgent"))]
        print(f"lag of 2 s: urgent runs after {waited:.1f} s, {lag.held_bytes} bytes were held, decisions {decisions}")
        assert lag.held_bytes > 0
        assert decisions[0] == ("filter", "try-again")  # it was asked while we did not know the node
        assert cluster.alive(names) == set(names)
        assert cluster.evictions() == {}


def test_the_watch_is_2_seconds_behind_while_a_full_node_empties(
    scene: SceneFactory, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """The scheduler sees the GPUs free before us: we refuse, it must not evict on the other node instead."""
    with Lag(control_plane.url) as lag:
        kubeconfig = lag.kubeconfig(control_plane.kubeconfig(), tmp_path / "through-the-lag")
        cluster = scene({f"n{i}": H100 for i in range(2)}, kubeconfig=kubeconfig)
        names = cluster.full_of_low_pods()
        where = dict(zip(names, cluster.running(*names), strict=True))
        ending = sorted(name for name in names if where[name] == "n0")
        staying = set(names) - set(ending)
        with lag.held():
            for name in ending:
                cluster.api.delete("Pod", name, cluster.namespace)
            cluster.kubelets.settle()
            cluster.scheduler_sees("n0")
            cluster.pod("urgent", 8, priority_class="high")
            wait_for(lambda: cluster.decisions("urgent"), 60, "the server is asked")
            quiet(2)
        assert cluster.running("urgent") == ["n0"]
        print("emptied behind a lag:", [(d["verb"], d["result"]) for d in reversed(cluster.decisions("urgent"))])
        assert cluster.alive(staying) == staying
        assert cluster.evictions() == {}


def test_a_pod_that_is_refused_by_what_was_true_before_the_event_lands_all_the_same(
    scene: SceneFactory, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """By count it fits all the time, so the question alone shows no lag: the pair is complete, we do not know it yet,
    and no other event follows. By itself kube-scheduler would try it again after 5 minutes."""
    with Lag(control_plane.url) as lag:
        kubeconfig = lag.kubeconfig(control_plane.kubeconfig(), tmp_path / "through-the-lag")
        cluster = scene({"p1": {"topology": "a100-pcie-4"}}, kubeconfig=kubeconfig)
        names = [f"one{i}" for i in range(4)]
        for name in names:
            cluster.pod(name, 1, grace=1)
        cluster.running(*names)
        holder = {next(iter(cluster.gpus(name))): name for name in names}
        for gpu in (0, 2):
            cluster.api.delete("Pod", holder[gpu], cluster.namespace)
        cluster.kubelets.settle()
        cluster.pod("pair", 2, links="required")
        cluster.unschedulable("pair", "the free GPUs are not linked")
        quiet(12)  # the longest backoff: the next event has it tried at once
        before = len(cluster.decisions("pair"))
        with lag.held():
            cluster.api.delete("Pod", holder[1], cluster.namespace)
            cluster.kubelets.settle()
            wait_for(lambda: len(cluster.decisions("pair")) > before, 60, "the server is asked")
            quiet(1)
        began = time.monotonic()
        assert cluster.running("pair", timeout=90) == ["p1"]
        print(f"refused by an old view: it runs {time.monotonic() - began:.0f} s after that is over")
        filtered = [d["result"] for d in cluster.decisions("pair") if d["verb"] == "filter"]
        assert filtered[0] == "fits"
        assert set(filtered[1:]) == {"refused"}


def test_a_device_plugin_restarts(scene: SceneFactory) -> None:
    """For 3 s the node offers no GPUs, though it has them. The pod lands there afterwards; nobody is evicted."""
    cluster = scene({"n1": H100})
    cluster.priorities(high=1000, low=10)
    cluster.pod("w", 4, priority_class="low", grace=1)
    cluster.running("w")
    cluster.kubelets.offer("n1", there=False)
    cluster.scheduler_sees("n1")
    cluster.pod("urgent", 4, priority_class="high")
    cluster.unschedulable("urgent", "nvidia.com/gpu")
    quiet(3)
    cluster.kubelets.offer("n1", there=True)
    assert cluster.running("urgent") == ["n1"]
    assert cluster.alive(["w"]) == {"w"}
    assert cluster.evictions() == {}
    assert cluster.kubelets.truth.double_allocations == 0


def test_a_device_plugin_restarts_beside_a_full_node(scene: SceneFactory) -> None:
    """As above, with a neighbour where eviction would help: 3 s of patience are cheaper than somebody's work."""
    cluster = scene({f"n{i}": H100 for i in range(2)})
    names = cluster.full_of_low_pods()
    cluster.kubelets.add_node("n2", **H100)
    wait_for(lambda: cluster.known_nodes().get("n2", {}).get("gpu_counts"), 60, "the server knows the node")
    cluster.kubelets.offer("n2", there=False)
    wait_for(lambda: not any(cluster.known_nodes()["n2"]["gpu_counts"].values()), 60, "the server knows the fault")
    cluster.scheduler_sees("n2")
    back = threading.Timer(3, cluster.kubelets.offer, ("n2", True))
    back.start()
    cluster.pod("urgent", 4, priority_class="high")
    landed: Any = cluster.running("urgent")
    back.join()
    decisions = [(d["verb"], d["result"], d["reasons"], d.get("why")) for d in reversed(cluster.decisions("urgent"))]
    print("device plugin away beside a full node:", landed, decisions)
    assert cluster.evictions() == {}
    assert cluster.alive(names) == set(names)
    assert landed == ["n2"]
