"""A node whose device plugin fails looks the emptiest of all, and draws no second pod."""

from __future__ import annotations

from tests.e2e import builders
from tests.e2e.scene import H100, Scene, SceneFactory
from tests.waiting import wait_for


def fails(cluster: Scene, name: str) -> None:
    """Wait until the pod was bound to the bad node and has failed there."""

    def seen() -> bool:
        return bool(cluster.get(name)["status"].get("reason") == "UnexpectedAdmissionError")

    wait_for(seen, 60, lambda: f"{name}: {cluster.get(name)}")
    assert cluster.get(name)["spec"]["nodeName"] == "bad"


def test_the_second_pod_avoids_the_node_and_after_three_it_is_refused(scene: SceneFactory) -> None:
    cluster = scene({"bad": H100, "good": H100})
    cluster.api.create(builders.priority_class("high", 1000))
    cluster.kubelets.refuse(node="bad")
    for i in range(2):  # the order of the names decides between nodes that are alike
        cluster.pod(f"first{i}", 1, node_selector={"kubernetes.io/hostname": "bad"})
        fails(cluster, f"first{i}")
    # the server's watch may be a moment behind ours
    wait_for(lambda: cluster.metric("gpu_extender_pod_failures_total", 'what="admission"') == 2, 60, "two failures")
    cluster.pod("second", 4, grace=1)
    assert cluster.running("second") == ["good"]
    # Where nothing else has room the node is tried again: a third time, and then no more
    cluster.pod("third", 8)
    fails(cluster, "third")
    wait_for(lambda: cluster.metric("gpu_extender_failing_nodes") == 1, 60, "a failing node")
    cluster.pod("fourth", 8)
    message = cluster.unschedulable("fourth", "GPU pods failed on the node three times within ten minutes")
    assert message.startswith("0/2 nodes are available: 1 ")
    cluster.pod("small", 4, grace=1)
    assert cluster.running("small") == ["good"]
    # Nobody is kept from preempting elsewhere
    cluster.pod("urgent", 8, priority_class="high")
    assert cluster.running("urgent") == ["good"]
    assert cluster.evictions(1).keys() == {cluster.uids["urgent"]}

    def told() -> list[str]:
        events = cluster.api.list("Event", "default")
        return [event["involvedObject"]["name"] for event in events if event.get("reason") == "GPUPodsFail"]

    assert wait_for(told, 60, "an Event on the node") == ["bad"]
