"""Objects that tenants may write and no decoder likes, on a real API server: they affect nothing but themselves."""

from __future__ import annotations

from typing import Any

import pytest

from tests import plain
from tests.e2e import builders
from tests.e2e.scene import H100, Scene, SceneFactory
from tests.kube import hostile
from tests.waiting import wait_for


def page(cluster: Scene, path: str) -> Any:
    with plain.client() as http:
        answer = http.get(cluster.extender.url + path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def named(cluster: Scene, name: str) -> bool:
    """Whether /readyz and /debug/state both name the object; they answer 200 all the while."""
    told = [page(cluster, path)["warnings"] for path in ("/readyz", "/debug/state")]
    return all(any(f"{cluster.namespace}/{name}: " in one["message"] for one in warnings) for warnings in told)


def deep(cluster: Scene, name: str, gpus: int = 0, depth: int = 1500, **options: Any) -> None:
    """A pod whose managedFields are nested `depth` levels deep: 12 kB, and the API server takes them."""
    item = builders.pod(name, cluster.namespace, gpus, **options)
    item["metadata"]["managedFields"] = [
        {
            "manager": "tenant", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "time": "2026-01-01T00:00:00Z",
        }
    ]  # fmt: skip
    content = hostile.dumped(item, "fieldsV1", hostile.nested(depth))
    made = cluster.api.create_bytes("Pod", cluster.namespace, content)
    cluster.uids[name] = made["metadata"]["uid"]


def test_a_deeply_nested_object_ends_nothing(scene: SceneFactory) -> None:
    """In the watch, then in the list of a new process; a pod that holds GPUs holds them, and others are placed."""
    cluster = scene({"h0": H100, "h1": H100})
    cluster.pod("before", 1)
    cluster.running("before")
    deep(cluster, "deep", scheduler="another")
    wait_for(lambda: named(cluster, "deep"), 60, "the object is named")
    deep(cluster, "holds", 8, node_name="h1", depth=5000)
    wait_for(lambda: named(cluster, "holds"), 60, "the object is named")
    cluster.running("holds")
    cluster.pod("watched", 2)
    assert cluster.running("watched") == ["h0"]
    assert cluster.metric("gpu_extender_invalid_objects_total", 'reason="too-deep"') >= 2

    cluster.extender.restart()
    assert named(cluster, "deep")
    assert named(cluster, "holds")
    cluster.pod("listed", 3)
    assert cluster.running("listed") == ["h0"]
    cluster.api.delete("Pod", "deep", cluster.namespace, grace=0)
    wait_for(lambda: not named(cluster, "deep"), 60, "an object that is gone is not named")
    assert cluster.extender.running
    assert cluster.metric("gpu_extender_watch_defects_total") == 0
    assert cluster.kubelets.truth.double_allocations == 0


@pytest.mark.parametrize("limit", [{"memory": "1e30"}, {"cpu": "1e18"}], ids=["memory", "cpu"])
def test_a_pod_with_a_huge_quantity_holds_its_gpus(scene: SceneFactory, limit: dict[str, str]) -> None:
    """It runs on its node beside the scheduler, and holds eight GPUs; a preemptor evicts it and is bound."""
    cluster = scene({"h0": H100})
    cluster.priorities(high=1000, low=10)
    container = builders.container(gpus=8)
    container["resources"]["limits"] |= limit
    cluster.pod("huge", 8, containers=[container], node_name="h0", priority_class="low", grace=1)
    cluster.running("huge")
    wait_for(lambda: cluster.known().get(cluster.uids["huge"], {}).get("node") == "h0", 60, "the server knows it")
    waits = cluster.pod("waits", 1, priority_class="low")
    cluster.unschedulable("waits", "0/1 nodes are available")
    with plain.client() as http:  # kube-scheduler itself asks about no full node
        answer = http.post(f"{cluster.extender.url}/v1/filter", json={"Pod": waits, "NodeNames": ["h0"]}).json()
    assert not answer["NodeNames"]
    assert "pods that this one may not evict hold them" in str(answer)
    cluster.pod("urgent", 8, priority_class="high")
    assert cluster.running("urgent", timeout=60) == ["h0"]
    assert cluster.alive(["huge"]) == set()
    assert cluster.kubelets.truth.double_allocations == 0


def test_a_pod_that_is_too_long_gets_no_node_and_each_answer_names_why(scene: SceneFactory) -> None:
    """The API server takes 1,100 tolerations, and 1,100 containers."""
    cluster = scene({"h0": H100})
    cluster.pod("tolerant", 1, tolerations=[{"key": f"k{n}", "operator": "Exists"} for n in range(1_100)])
    containers = [builders.container(gpus=1), *({"name": f"c{n}", "image": "x"} for n in range(1_100))]
    cluster.pod("many", 1, containers=containers)
    for name, field in (("tolerant", "spec.tolerations"), ("many", "spec.containers")):
        cluster.unschedulable(name, "gets no node until it is created again with this corrected")
        shown = page(cluster, f"/debug/explain?pod={cluster.namespace}/{name}")
        assert shown["verdict"] == "never"
        assert f"corrected: {field}: " in shown["sentence"]
    cluster.pod("other", 8)
    assert cluster.running("other") == ["h0"]
