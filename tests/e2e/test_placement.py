"""Pods land where we say: packing, links, waiting, on the real kube-scheduler."""

from __future__ import annotations

from tests.e2e.scene import H100, PAIRS, V100, SceneFactory, quiet


def test_small_pods_go_together(scene: SceneFactory) -> None:
    cluster = scene({f"n{i}": H100 for i in range(4)})
    names = [f"p{i}" for i in range(8)]
    for name in names:
        cluster.pod(name, 1)
        cluster.running(name)
    assert len(set(cluster.running(*names))) == 1


def test_four_gpus_of_a_dgx_1v(scene: SceneFactory) -> None:
    """Empty, the stock plugin hands out one of the two quads: certain. A second pod of four gets the other one."""
    cluster = scene({"v1": V100})
    cluster.pod("a", 4, links="required")
    assert cluster.running("a") == ["v1"]
    cluster.pod("b", 4, links="required")
    assert cluster.running("b") == ["v1"]
    assert {cluster.gpus("a"), cluster.gpus("b")} == {frozenset(range(4)), frozenset(range(4, 8))}


def test_a_required_pod_waits_with_our_reason_and_lands_when_gpus_free(scene: SceneFactory) -> None:
    cluster = scene({"p1": PAIRS})
    names = [f"one{i}" for i in range(4)]
    for name in names:
        cluster.pod(name, 1, grace=1)
    cluster.running(*names)
    holder = {next(iter(cluster.gpus(name))): name for name in names}
    for gpu in (0, 2):  # GPUs 0 and 2 are free now, and not joined
        cluster.api.delete("Pod", holder[gpu], cluster.namespace)
    cluster.kubelets.settle()
    cluster.pod("pair", 2, links="required")
    message = cluster.unschedulable("pair", "gpu-extender: the free GPUs are not linked")
    assert message.startswith("0/1 nodes are available: 1 gpu-extender: ")
    calls = cluster.filter_calls()
    quiet(12)
    assert cluster.filter_calls() - calls <= 2  # 10 a minute
    cluster.api.delete("Pod", holder[1], cluster.namespace)
    assert cluster.running("pair", timeout=90) == ["p1"]
    assert cluster.gpus("pair") == {0, 1}
