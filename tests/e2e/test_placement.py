"""Pods land where we say: packing, links, waiting, on the real kube-scheduler."""

from __future__ import annotations

from tests.e2e.api import wait_for
from tests.e2e.scene import SceneFactory, quiet

V100 = {"topology": "dgx1-v100"}
H100 = {"topology": "dgx-h100"}


def test_small_pods_go_together(scene: SceneFactory) -> None:
    cluster = scene({f"n{i}": H100 for i in range(4)})
    names = [f"p{i}" for i in range(8)]
    for name in names:
        cluster.pod(name, 1)
        cluster.running(name)
    assert len(set(cluster.running(*names))) == 1


def test_a_required_pod_waits_with_our_reason_and_lands_when_gpus_free(scene: SceneFactory) -> None:
    cluster = scene({"v1": V100}, kubelet={"seed": 3})
    cluster.pod("a", 4, links="required")  # {0-3} or {4-7}, both linked
    assert cluster.running("a") == ["v1"]
    cluster.pod("b", 1)
    cluster.running("b")
    cluster.pod("c", 4, links="required")
    message = cluster.unschedulable("c", "gpu-extender: ")
    assert "0/1 nodes are available" in message
    calls = cluster.filter_calls()
    quiet(10)
    assert cluster.filter_calls() - calls <= 2
    cluster.api.delete("Pod", "b", cluster.namespace, grace=1)
    assert cluster.running("c", timeout=15) == ["v1"]
    assert cluster.gpus("a") | cluster.gpus("c") == frozenset(range(8))
    assert cluster.gpus("a") in (frozenset(range(4)), frozenset(range(4, 8)))
