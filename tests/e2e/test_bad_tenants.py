"""A tenant whose pods fail makes nodes unavailable to itself, and to nobody else."""

from __future__ import annotations

import time

from tests.e2e import builders
from tests.e2e.api import Object
from tests.e2e.kubelet import FAILS
from tests.e2e.scene import H100, Scene, SceneFactory
from tests.waiting import wait_for

RUNNING_SECONDS = 10.0  # "at once": far below the ten minutes for which a rejection lasts


def on(node: str) -> dict[str, str]:
    return {"kubernetes.io/hostname": node}


def tenant(cluster: Scene, name: str) -> str:
    made = cluster.api.create({**builders.namespace(""), "metadata": {"generateName": f"{name}-"}})
    return str(made["metadata"]["name"])


def ended(cluster: Scene, name: str, namespace: str) -> Object:
    """Wait until the pod has failed."""

    def look() -> Object | None:
        pod = cluster.api.get("Pod", name, namespace)
        return pod if pod["status"].get("phase") == "Failed" else None

    return wait_for(look, 60, lambda: f"{name}: {cluster.api.get('Pod', name, namespace)}")


def placed(cluster: Scene, name: str, namespace: str, node: str) -> float:
    """Wait until the pod runs on the node; the seconds since the call."""
    since = time.monotonic()

    def look() -> bool:
        pod = cluster.api.get("Pod", name, namespace)
        return bool(pod["status"].get("phase") == "Running" and pod["spec"]["nodeName"] == node)

    wait_for(look, 60, lambda: f"{name}: {cluster.api.get('Pod', name, namespace)}")
    waited = time.monotonic() - since
    print(f"{name} runs after {waited:.1f} s")
    return waited


def delete(cluster: Scene, name: str, namespace: str) -> None:
    """Wait until the pod no longer exists."""
    cluster.api.delete("Pod", name, namespace)
    wait_for(lambda: cluster.api.find("Pod", name, namespace) is None, 60, f"the deletion of {name}")


def events(cluster: Scene, namespace: str, reason: str) -> list[Object]:
    return [event for event in cluster.api.list("Event", namespace) if event.get("reason") == reason]


def test_failing_pods_of_one_tenant_reject_nodes_for_that_tenant_only(scene: SceneFactory) -> None:
    cluster = scene({"a": H100, "b": H100})
    other, third = tenant(cluster, "other"), tenant(cluster, "third")
    bare = [(f"bad-{node}{i}", node) for node in ("a", "b") for i in range(3)]
    for name, node in bare:
        cluster.pod(name, 1, node_selector=on(node), annotations={FAILS: ""})
    for name, node in bare:
        assert ended(cluster, name, cluster.namespace)["spec"]["nodeName"] == node
    wait_for(lambda: cluster.metric("gpu_extender_pod_failures_total", 'what="died"') == 6, 60, "six failures")
    # Another tenant's pods are placed on both nodes at once, though they have the very same image
    for node in ("a", "b"):
        cluster.api.create(builders.pod(f"good-{node}", other, 8, node_selector=on(node), grace=1))
        assert placed(cluster, f"good-{node}", other, node) < RUNNING_SECONDS
        delete(cluster, f"good-{node}", other)
    # The first tenant's are rejected, and the reason says for whom
    cluster.pod("again", 1)
    reason = "for pods of this namespace: its GPU pods failed on the node three times"
    message = cluster.unschedulable("again", f"2 gpu-extender: {reason}")
    assert message.startswith("0/2 nodes are available: 2 ")
    (decision, *_) = cluster.decisions("again")
    assert [(node["node"], node["scope"]) for node in decision["nodes"]] == [("a", "namespace"), ("b", "namespace")]
    assert cluster.metric("gpu_extender_failing_nodes") == 0
    assert cluster.metric("gpu_extender_failing_node_rejections", 'scope="namespace"') == 2
    # The tenant sees why, in one Event for both nodes; nobody else is told
    (told,) = wait_for(lambda: events(cluster, cluster.namespace, "NodeRejectedForNamespace"), 60, "an Event")
    assert told["involvedObject"]["name"].startswith("bad-")
    assert f"in common: namespace {cluster.namespace}, image registry.example/workload:1" in told["message"]
    assert not events(cluster, "default", "GPUPodsFail")

    # What kubelet reports still rejects the node for all: here for pods of two tenants
    cluster.kubelets.refuse(node="a")
    for name, space in (("x", other), ("y", other), ("z", third)):
        cluster.api.create(builders.pod(name, space, 1, node_selector=on("a")))
        assert ended(cluster, name, space)["status"]["reason"] == "UnexpectedAdmissionError"
    wait_for(lambda: cluster.metric("gpu_extender_failing_nodes") == 1, 60, "a node rejected for all")
    (node_event,) = wait_for(lambda: events(cluster, "default", "GPUPodsFail"), 60, "an Event on the node")
    assert node_event["involvedObject"]["name"] == "a"
    cluster.api.create(builders.pod("elsewhere", third, 8))
    placed(cluster, "elsewhere", third, "b")


def test_asking_past_the_scheduler_rejects_no_node_for_others(scene: SceneFactory) -> None:
    """With spec.nodeName a tenant has kubelet itself refuse its pods wherever it likes."""
    cluster = scene({"a": H100})
    other = tenant(cluster, "other")
    for i in range(4):
        cluster.pod(f"bad{i}", 9, node_name="a")
        assert ended(cluster, f"bad{i}", cluster.namespace)["status"]["reason"] == "UnexpectedAdmissionError"
    wait_for(lambda: cluster.metric("gpu_extender_pod_failures_total", 'what="refused"') == 4, 60, "four failures")
    cluster.api.create(builders.pod("good", other, 8))
    assert placed(cluster, "good", other, "a") < RUNNING_SECONDS
    assert cluster.metric("gpu_extender_failing_nodes") == 0
