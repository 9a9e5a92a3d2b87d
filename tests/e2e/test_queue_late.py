"""Gangs whose owner creates part of the pods only once others run, by the real controllers of JobSet, LeaderWorkerSet
and StatefulSet: they start whole or not at all, and nothing gets between their pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.api import Object
from tests.e2e.cluster import ControlPlane
from tests.e2e.gang_controllers import JOBSET, LWS, build, running
from tests.e2e.scene import H100, Scene, SceneFactory, quiet
from tests.e2e.test_queue import RACK, gated
from tests.waiting import wait_for

LEADER_WORKER_SET = "leaderworkerset.sigs.k8s.io/"
PLAN = "gpu-extender.io/gpus"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
RACK_OF = {"n0": "r0", "n1": "r0", "n2": "r1", "n3": "r1"}
NODES = {name: {**H100, "labels": {RACK: rack}} for name, rack in RACK_OF.items()}  # of eight GPUs each


@pytest.fixture(scope="module")
def controllers() -> Path:
    return build()


@pytest.fixture
def job_sets(api: Any, control_plane: ControlPlane, controllers: Path) -> Iterator[None]:
    with running(control_plane, controllers, JOBSET):
        yield


@pytest.fixture
def leader_worker_sets(api: Any, control_plane: ControlPlane, controllers: Path) -> Iterator[None]:
    with running(control_plane, controllers, LWS):
        yield


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    """With 20 s for a pod to come."""
    return {"queue": settings["queue"] | {"absentSeatSeconds": 20}}


def template(cluster: Scene, gpus: int, **meta: Any) -> Object:
    """A pod template behind our gate."""
    pod = gated(cluster, "template", gpus)
    return {"metadata": meta, "spec": pod["spec"]}


def job_set(cluster: Scene, spec: Object, roles: dict[str, int], gpus: int, **notes: str) -> None:
    """A JobSet of one Job for each role, of so many pods."""
    jobs = [
        {"name": role, "replicas": 1,
         "template": {"spec": {"parallelism": pods, "completions": pods, "completionMode": "Indexed",
                               "backoffLimit": 0, "template": template(cluster, gpus)}}}
        for role, pods in roles.items()
    ]  # fmt: skip
    cluster.api.create({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"name": "js", "namespace": cluster.namespace, "annotations": notes},
        "spec": {"replicatedJobs": jobs, **spec},
    })  # fmt: skip


def leader_worker_set(cluster: Scene, startup: str, size: int, gpus: int, **notes: str) -> None:
    cluster.api.create({
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": "lws", "namespace": cluster.namespace, "annotations": notes},
        "spec": {
            "replicas": 1, "startupPolicy": startup,
            "leaderWorkerTemplate": {"size": size, "workerTemplate": _restarting(template(cluster, gpus))},
        },
    })  # fmt: skip


def _restarting(made: Object) -> Object:
    made["spec"]["restartPolicy"] = "Always"
    return made


def pods(cluster: Scene) -> dict[str, Object]:
    """By name, all but those that the test itself has created."""
    found = cluster.api.list("Pod", cluster.namespace)
    return {pod["metadata"]["name"]: pod for pod in found if pod["metadata"].get("ownerReferences")}


def run(cluster: Scene, count: int, timeout: float = 60) -> dict[str, Object]:
    """Wait until so many pods run, and no more exist."""

    def look() -> dict[str, Object] | None:
        found = pods(cluster)
        done = [pod for pod in found.values() if pod["status"].get("phase") == "Running"]
        return found if len(done) == len(found) == count else None

    return wait_for(look, timeout, lambda: str({name: pod["status"] for name, pod in pods(cluster).items()}))


def created(found: dict[str, Object]) -> list[str]:
    """The names in the order of creation."""
    return sorted(found, key=lambda name: (found[name]["metadata"]["creationTimestamp"], name))


def seats(found: dict[str, Object]) -> set[tuple[str, str]]:
    """(node, planned GPUs)."""
    return {(pod["spec"]["nodeName"], pod["metadata"]["annotations"][PLAN]) for pod in found.values()}


def rival(cluster: Scene) -> None:
    """Single pods that want whatever a gang would leave."""
    for i in range(4):
        cluster.api.create(gated(cluster, f"rival-{i}", 8))


def rivals_on(cluster: Scene) -> list[str]:
    """The nodes that the rivals got."""
    found = [cluster.get(f"rival-{i}") for i in range(4)]
    return sorted(pod["spec"]["nodeName"] for pod in found if "nodeName" in pod["spec"])


def starts_whole(cluster: Scene, count: int) -> dict[str, Object]:
    """The gang asks for three of four nodes. Rivals come once its first pod runs: they get the fourth node and no
    more, however long the others take to come."""
    wait_for(lambda: any(p["status"].get("phase") == "Running" for p in pods(cluster).values()), 60, "the first pod")
    rival(cluster)
    found = run(cluster, count)
    wait_for(lambda: rivals_on(cluster), 60, "a rival has the fourth node")
    quiet(2)
    assert len(rivals_on(cluster)) == 1
    assert not {pod["spec"]["nodeName"] for pod in found.values()} & set(rivals_on(cluster))
    assert len(seats(found)) == count
    ended = "gpu_extender_queue_seats_ended_total"
    wait_for(lambda: cluster.metric(ended, 'cause="bound"') >= count, 60, "the seats of bound pods have ended")
    assert cluster.metric(ended, 'cause="not-created"') == 0
    assert cluster.metric("gpu_extender_queue_absent_gpu_seconds_total") > 0
    return found


def waits_whole(cluster: Scene, make: Callable[[], None], count: int) -> None:
    """A gang that asks for three nodes while two are free: not even its first pod starts."""
    cluster.pod("blocker", 8)
    cluster.pod("blocker-2", 8)
    cluster.running("blocker", "blocker-2")
    make()
    wait_for(lambda: pods(cluster), 60, "the first pod")
    quiet(3)
    assert all(pod["spec"].get("schedulingGates") for pod in pods(cluster).values())
    for name in ("blocker", "blocker-2"):
        cluster.api.delete("Pod", name, cluster.namespace, grace=0)
    assert len(run(cluster, count)) == count


def test_a_job_set_in_order(scene: SceneFactory, settings: Any, job_sets: None) -> None:
    cluster = scene(NODES, settings=settings, kubelet={"start_seconds": 1.0})
    job_set(cluster, {"startupPolicy": {"startupPolicyOrder": "InOrder"}}, {"driver": 1, "workers": 2}, 8)
    found = starts_whole(cluster, 3)
    assert [name.split("-")[1] for name in created(found)] == ["driver", "workers", "workers"]


def test_a_job_set_in_order_waits_whole(scene: SceneFactory, settings: Any, job_sets: None) -> None:
    cluster = scene(NODES, settings=settings)
    policy = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}
    waits_whole(cluster, lambda: job_set(cluster, policy, {"driver": 1, "workers": 2}, 8), 3)


def test_a_job_set_with_exclusive_topology(scene: SceneFactory, settings: Any, job_sets: None) -> None:
    """Its followers are refused at creation until the leader has a node; then they must be in the leader's rack. A
    small pod comes in between: it would fit on their rack, and gets a node of the other one."""
    cluster = scene(NODES, settings=settings, kubelet={"start_seconds": 1.0})
    job_set(cluster, {}, {"workers": 4}, 4, **{EXCLUSIVE: RACK})
    wait_for(lambda: any(p["spec"].get("nodeName") for p in pods(cluster).values()), 60, "the leader has a node")
    rival(cluster)
    found = run(cluster, 4)
    racks = {RACK_OF[pod["spec"]["nodeName"]] for pod in found.values()}
    assert len(racks) == 1
    wait_for(lambda: len(rivals_on(cluster)) == 2, 60, "two rivals have the other rack")
    quiet(2)
    assert [RACK_OF[node] for node in rivals_on(cluster)] == sorted({"r0", "r1"} - racks) * 2
    # Where kubelet gave the leader other GPUs than it states, the followers are placed again by what is held.
    held = {
        pod["spec"]["nodeName"] + str(cluster.kubelets.truth.gpus_of(pod["metadata"]["uid"])) for pod in found.values()
    }
    assert len(held) == 4


def test_a_leader_worker_set_whose_workers_wait_for_the_leader(
    scene: SceneFactory, settings: Any, leader_worker_sets: None
) -> None:
    cluster = scene(NODES, settings=settings, kubelet={"start_seconds": 1.0})
    leader_worker_set(cluster, "LeaderReady", 3, 8)
    assert created(starts_whole(cluster, 3))[0] == "lws-0"


def test_a_leader_worker_set_with_exclusive_topology(
    scene: SceneFactory, settings: Any, leader_worker_sets: None
) -> None:
    """The workers are created once the leader has a node."""
    cluster = scene(NODES, settings=settings, kubelet={"start_seconds": 1.0})
    leader_worker_set(cluster, "LeaderCreated", 4, 4, **{LEADER_WORKER_SET + "exclusive-topology": RACK})
    found = run(cluster, 4)
    assert len({RACK_OF[pod["spec"]["nodeName"]] for pod in found.values()}) == 1
    assert len(seats(found)) == 4


def test_a_leader_worker_set_that_is_created_in_part_gives_its_seats_up(
    scene: SceneFactory, settings: Any, leader_worker_sets: None
) -> None:
    """The leader never becomes ready, so its workers never come: an Event says so, and others get the nodes."""
    cluster = scene(NODES, settings=settings, kubelet={"start_seconds": 600.0})
    leader_worker_set(cluster, "LeaderReady", 3, 8)
    wait_for(lambda: any(p["spec"].get("nodeName") for p in pods(cluster).values()), 60, "the leader is bound")
    rival(cluster)
    wait_for(lambda: rivals_on(cluster), 60, "a rival has the fourth node")
    quiet(3)
    assert len(rivals_on(cluster)) == 1
    wait_for(lambda: len(rivals_on(cluster)) == 3, 60, lambda: rivals_on(cluster))
    assert cluster.metric("gpu_extender_queue_seats_ended_total", 'cause="not-created"') == 2
    told = wait_for(
        lambda: cluster.api.list("Event", cluster.namespace, fields="reason=Incomplete"), 60, "the Event is written"
    )
    assert len(told) == 1


def test_a_stateful_set_in_order(scene: SceneFactory, settings: Any) -> None:
    cluster = scene(NODES, settings=settings, kubelet={"start_seconds": 1.0})
    labels = {"app": "set"}
    made = template(cluster, 8, labels=labels, annotations={"gpu-extender.io/gang-size": "3"})
    cluster.api.create({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "set", "namespace": cluster.namespace},
        "spec": {"replicas": 3, "serviceName": "set", "selector": {"matchLabels": labels},
                 "template": _restarting(made)},
    })  # fmt: skip
    assert created(starts_whole(cluster, 3)) == ["set-0", "set-1", "set-2"]


def test_a_restart_between_the_leader_and_its_workers(
    scene: SceneFactory, settings: Any, leader_worker_sets: None
) -> None:
    """The next process knows the seats of the workers from the ConfigMaps."""
    cluster = scene(NODES, settings=settings, kubelet={"start_seconds": 4.0})
    leader_worker_set(cluster, "LeaderReady", 3, 8)
    wait_for(lambda: any(p["spec"].get("nodeName") for p in pods(cluster).values()), 60, "the leader is bound")
    cluster.extender.kill()
    rival(cluster)
    cluster.extender.start()
    found = run(cluster, 3, timeout=90)
    assert len(seats(found)) == 3
    assert len(rivals_on(cluster)) <= 1
