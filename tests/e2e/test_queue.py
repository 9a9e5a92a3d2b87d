"""The life of a gang behind our gate, on the real kube-scheduler: it waits whole, it starts whole, seats are kept."""

from __future__ import annotations

from typing import Any

from tests.e2e import builders
from tests.e2e.scene import H100, Scene, SceneFactory, quiet
from tests.waiting import wait_for

GATE = "gpu-extender.io/queue"
RACK = "cloud.provider.com/topology-rack"


def gated(cluster: Scene, name: str, gpus: int, **options: Any) -> Any:
    """A pod behind our gate."""
    return builders.pod(name, cluster.namespace, gpus, schedulingGates=[{"name": GATE}], grace=1, **options)


def job(cluster: Scene, name: str, pods: int, gpus: int, **options: Any) -> None:
    cluster.api.create(builders.job(name, pods, gated(cluster, name, gpus, **options)))


def pods_of(cluster: Scene, name: str) -> list[Any]:
    return cluster.api.list("Pod", cluster.namespace, labels=f"app={name}")


def nodes_of(cluster: Scene, name: str, pods: int, timeout: float = 60) -> list[str]:
    """Wait until all pods of a Job run; their nodes."""

    def look() -> list[str] | None:
        found = [pod for pod in pods_of(cluster, name) if pod["status"].get("phase") == "Running"]
        return sorted(pod["spec"]["nodeName"] for pod in found) if len(found) == pods else None

    return wait_for(look, timeout, lambda: str([(p["metadata"]["name"], p["status"]) for p in pods_of(cluster, name)]))


def end(cluster: Scene, name: str) -> None:
    """Delete a Job and its pods."""
    cluster.api.delete("Job", name, cluster.namespace)
    cluster.api.delete_all("Pod", cluster.namespace, labels=f"app={name}")


def waits(cluster: Scene, name: str) -> bool:
    """Whether all pods of a Job are behind their gate."""
    return all(pod["spec"].get("schedulingGates") for pod in pods_of(cluster, name))


def test_a_single_pod_lands_on_its_seat_and_gates_of_other_controllers_stay(scene: SceneFactory, settings: Any) -> None:
    cluster = scene({f"n{i}": H100 for i in range(3)}, settings=settings)
    foreign = {"name": "example.com/other"}
    cluster.api.create(builders.pod("two", cluster.namespace, 1, schedulingGates=[{"name": GATE}, foreign]))
    made = cluster.api.create(gated(cluster, "one", 2))
    cluster.uids["one"] = made["metadata"]["uid"]
    node = cluster.running("one")[0]
    pod = cluster.get("one")
    assert "schedulingGates" not in pod["spec"]
    planned = pod["metadata"]["annotations"]["gpu-extender.io/gpus"]
    assert frozenset(int(gpu) for gpu in planned.split(",")) == frozenset({0, 1})
    assert cluster.decisions("one")[0]["verb"] in ("bind", "filter")
    assert node in {"n0", "n1", "n2"}
    quiet(2)
    assert cluster.get("two")["spec"]["schedulingGates"] == [{"name": GATE}, foreign]


def test_a_gang_starts_in_one_rack(scene: SceneFactory, settings: Any) -> None:
    nodes = {f"n{i}": {**H100, "labels": {RACK: f"r{i % 3}"}} for i in range(9)}
    cluster = scene(nodes, settings=settings)
    job(cluster, "gang", 6, 4)
    found = nodes_of(cluster, "gang", 6)
    assert len(found) == 6
    assert len(set(found)) == 3
    assert len({int(name[1:]) % 3 for name in found}) == 1


def test_an_incomplete_gang_reserves_nothing(scene: SceneFactory, settings: Any) -> None:
    cluster = scene({"n1": H100}, settings=settings)
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "3"}
    for name in ("a", "b"):
        cluster.api.create(gated(cluster, name, 4, annotations=notes))
    quiet(2)
    cluster.api.create(gated(cluster, "alone", 8))
    cluster.running("alone")
    assert all(cluster.get(name)["spec"]["schedulingGates"] for name in "ab")
    cluster.api.delete("Pod", "alone", cluster.namespace)
    quiet(2)
    cluster.api.create(gated(cluster, "c", 0, annotations=notes))
    assert set(cluster.running("a", "b", "c")) == {"n1"}


def test_a_restart_in_the_middle_of_a_release_completes_it(scene: SceneFactory, settings: Any) -> None:
    cluster = scene({f"n{i}": H100 for i in range(8)}, settings=settings)
    for i in range(6):
        job(cluster, f"g{i}", 4, 2)
    for _ in range(3):
        quiet(0.4)
        cluster.extender.kill()
        cluster.extender.start()
    for i in range(6):
        assert len(nodes_of(cluster, f"g{i}", 4)) == 4


def test_a_gang_whose_node_is_lost_before_it_is_bound_is_placed_again(scene: SceneFactory, settings: Any) -> None:
    """A foreign CPU-only pod of a higher priority fills a seat: kube-scheduler rejects the pod there."""
    cluster = scene({f"n{i}": {**H100, "cpu": "16"} for i in range(3)}, settings=settings)
    cluster.scheduler.kill()  # the gang is released, and no pod of it is tried yet
    job(cluster, "gang", 2, 8, cpu="10")
    wait_for(
        lambda: [p for p in pods_of(cluster, "gang") if not p["spec"].get("schedulingGates")][1:],
        60,
        lambda: "two open pods",
    )
    seats = {pod["status"]["nominatedNodeName"] for pod in pods_of(cluster, "gang")}
    assert len(seats) == 2
    taken = sorted(seats)[0]
    cluster.api.create(builders.pod("foreign", cluster.namespace, 0, cpu="12", node_name=taken))
    cluster.scheduler.start()
    assert taken not in nodes_of(cluster, "gang", 2)
