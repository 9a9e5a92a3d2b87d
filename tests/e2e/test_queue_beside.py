"""The queue beside what shares the cluster with it: the stock scheduler, RBAC, pods without GPUs, Kueue."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from extender.act.queue.seat_store import SHARDS
from extender.kube.client import ApiError
from tests.e2e import builders
from tests.e2e.api import Api, Objects
from tests.e2e.cluster import ControlPlane
from tests.e2e.conftest import KubeletsFactory, SchedulerFactory
from tests.e2e.rights import denied, grant
from tests.e2e.scene import H100, Scene, SceneFactory, quiet
from tests.e2e.test_queue import GATE, RACK, end, gated, nodes_of, pods_of
from tests.e2e.test_queue import job as queued_job
from tests.waiting import wait_for

PLAN = "gpu-extender.io/gpus"
ADMISSION, TOPOLOGY = "kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"
PODS = 6  # of a gang: 60 % of ten places


def states(pods: Objects) -> dict[str, tuple[str, str]]:
    """Phase and node by uid."""
    return {pod["metadata"]["uid"]: (pod["status"]["phase"], pod["spec"].get("nodeName", "")) for pod in pods}


def grow_in_turn(api: Api, namespace: str, pod: Callable[[], Any], *names: str) -> None:
    """Jobs whose pods exist one by one, in turn: as two controllers create them that start at the same time."""
    for number in range(1, PODS + 1):
        for name in names:
            if number == 1:
                made = builders.job(name, PODS, pod())
                made["spec"]["parallelism"] = 1
                api.create(made)
            else:
                api.patch("Job", name, {"spec": {"parallelism": number}}, namespace)
            wait_for(partial(_are, api, namespace, name, number), 60, f"{number} pods of {name}")


def _are(api: Api, namespace: str, name: str, count: int) -> bool:
    return len(api.list("Pod", namespace, labels=f"app={name}")) == count


# -- two gangs that need 60 % of the GPUs each ---------------------------------------------------------------------


def test_the_stock_scheduler_leaves_both_gangs_half_started(
    api: Api, namespace: str, kubelets: KubeletsFactory, scheduler: SchedulerFactory
) -> None:
    """Without us and without gates: each gang holds half of the cluster and waits for the other, for ever."""
    cluster = kubelets()
    for i in range(5):
        cluster.add_node(f"n{i}", **H100)
    scheduler()
    grow_in_turn(api, namespace, lambda: builders.pod("", namespace, 4, grace=1), "first", "second")

    def pods(name: str) -> Objects:
        return api.list("Pod", namespace, labels=f"app={name}")

    def running(name: str) -> int:
        return sum(pod["status"]["phase"] == "Running" for pod in pods(name))

    wait_for(lambda: running("first") + running("second") == 10, 60, "all ten places are taken")
    before = {name: states(pods(name)) for name in ("first", "second")}
    quiet(5)
    assert {name: states(pods(name)) for name in ("first", "second")} == before
    for found in before.values():
        phases = [phase for phase, _ in found.values()]
        assert (phases.count("Running"), phases.count("Pending")) == (5, 1)
    # Only the end of one lets the other run.
    api.delete("Job", "first", namespace)
    api.delete_all("Pod", namespace, labels="app=first")
    wait_for(lambda: running("second") == PODS, 60, "the second gang is whole")


def test_the_queue_runs_them_one_after_the_other(scene: SceneFactory, settings: Any) -> None:
    """The same two Jobs, created in the same order."""
    cluster = scene({f"n{i}": H100 for i in range(5)}, settings=settings)
    notes = {"gpu-extender.io/gang-size": str(PODS), "gpu-extender.io/gang-min": str(PODS)}
    grow_in_turn(cluster.api, cluster.namespace, lambda: gated(cluster, "", 4, annotations=notes), "first", "second")
    assert len(nodes_of(cluster, "first", PODS)) == PODS
    quiet(3)
    assert all(pod["spec"].get("schedulingGates") for pod in pods_of(cluster, "second"))
    end(cluster, "first")
    assert len(nodes_of(cluster, "second", PODS)) == PODS


# -- rights --------------------------------------------------------------------------------------------------------


def test_the_account_of_the_manifests_suffices(
    scene: SceneFactory, control_plane: ControlPlane, api: Api, namespace: str
) -> None:
    """The server runs with the token of its ServiceAccount, and with the rights of `manifests/` and `manifests/queue`:
    gangs start, and not one request is refused."""
    grant(api, namespace, "deployment.yaml", "queue/controller.yaml")
    account = control_plane.kubeconfig_of_account(namespace, "gpu-scheduler")
    before = denied(control_plane)
    settings = {
        "reservations": {"namespace": namespace},
        "queue": {"enabled": True},
    }
    cluster = scene({f"n{i}": H100 for i in range(2)}, settings=settings, kubeconfig=account)
    queued_job(cluster, "gang", 4, 4)
    assert len(nodes_of(cluster, "gang", 4)) == 4  # else the other one may be whole first
    queued_job(cluster, "late", 2, 8)
    wait_for(lambda: "Waiting" in reasons(api, namespace), 60, "the gang that waits has its Event")
    end(cluster, "gang")
    assert len(nodes_of(cluster, "late", 2)) == 2
    wait_for(lambda: "Started" in reasons(api, namespace), 60, "the gangs that start have theirs")
    assert cluster.metric("gpu_extender_events_total", 'result="forbidden"') == 0
    assert denied(control_plane) == before
    wait_for(lambda: not kept(api, namespace), 60, "bound seats leave the ConfigMaps")
    # What is refused is counted: this account may not read secrets.
    token = json.loads(account.read_text())["users"][0]["user"]["token"]
    with Api(control_plane.url, token, control_plane.ca) as own, pytest.raises(ApiError):
        own.request("GET", f"/api/v1/namespaces/{namespace}/secrets")
    assert denied(control_plane) == before + 1


def reasons(api: Api, namespace: str) -> set[str]:
    """Of the Events in the namespace."""
    return {event["reason"] for event in api.list("Event", namespace)}


def kept(api: Api, namespace: str) -> list[str]:
    """The gangs whose seats are in ConfigMaps."""
    maps = (api.find("ConfigMap", f"gpu-extender-seats-{shard}", namespace) for shard in range(SHARDS))
    return [key for one in maps if one is not None for key in one.get("data") or {}]


# -- pods without GPUs ---------------------------------------------------------------------------------------------


def test_pods_without_gpus_never_ask_us(scene: SceneFactory, settings: Any) -> None:
    """kube-scheduler binds them itself; we bind those with GPUs."""
    cluster = scene({"n1": H100}, settings=settings)
    cluster.pod("gpu", 1)
    cluster.running("gpu")
    calls = "gpu_extender_request_duration_seconds_count"
    # The last call of this pod is counted once the API server has answered: the pod may run before that.
    wait_for(lambda: cluster.metric(calls, 'verb="bind"') == 1, 60, "bind is counted")
    asked = cluster.metric(calls)
    names = [f"cpu-{i}" for i in range(5)]
    for name in names:
        cluster.pod(name, 0)
    assert cluster.running(*names) == ["n1"] * 5
    assert cluster.metric(calls) == asked
    assert {one["verb"] for one in cluster.decisions("gpu")} == {"filter", "bind"}
    assert [cluster.decisions(name) for name in names] == [[]] * 5
    planned = [PLAN in cluster.get(name)["metadata"].get("annotations", {}) for name in ("gpu", *names)]
    assert planned == [True, *[False] * 5]


@pytest.mark.parametrize("priority", ["equal", "lower"])
def test_nomination_keeps_pods_without_gpus_off_the_seats(scene: SceneFactory, settings: Any, priority: str) -> None:
    """They never ask us, and need the CPU of a seat: kube-scheduler itself keeps it for the nominated pod."""
    cluster = scene({f"n{i}": {**H100, "cpu": "16"} for i in range(3)}, settings=settings)
    cluster.api.create(builders.priority_class("some", 100))
    cluster.scheduler.kill()  # the gang is released, and no pod of it is tried yet
    queued_job(cluster, "gang", 2, 8, cpu="10", priority_class="some")
    wait_for(
        lambda: [pod for pod in pods_of(cluster, "gang") if not pod["spec"].get("schedulingGates")][1:],
        60,
        "two open pods",
    )
    seats = sorted(pod["status"]["nominatedNodeName"] for pod in pods_of(cluster, "gang"))
    [free] = {"n0", "n1", "n2"} - set(seats)
    # Their names come first, so a scheduler that starts now tries them first.
    options: dict[str, Any] = {"cpu": "12", "priority_class": "some"} if priority == "equal" else {"cpu": "12"}
    for i in range(3):
        cluster.pod(f"a-cpu-{i}", 0, **options)
    cluster.scheduler.start()
    assert nodes_of(cluster, "gang", 2) == seats

    def decided() -> Objects | None:
        """The pods without GPUs, once each is bound or rejected."""
        found = [cluster.get(f"a-cpu-{i}") for i in range(3)]
        return found if all(pod["spec"].get("nodeName") or pod["status"].get("conditions") for pod in found) else None

    found = wait_for(decided, 60, "kube-scheduler has tried all")
    assert sorted(pod["spec"].get("nodeName", "") for pod in found) == ["", "", free]


# -- Kueue ---------------------------------------------------------------------------------------------------------


def kueue_pod(cluster: Scene, name: str, gpus: int, *gates: str) -> None:
    """A pod of a plain pod group of Kueue, in both queues."""
    made = gated(
        cluster,
        name,
        gpus,
        labels={"kueue.x-k8s.io/pod-group-name": "group", "kueue.x-k8s.io/queue-name": "team"},
        annotations={
            "kueue.x-k8s.io/pod-group-total-count": "2",
            "kueue.x-k8s.io/podset-required-topology": RACK,
        },
    )
    made["spec"]["schedulingGates"] += [{"name": gate} for gate in gates]
    cluster.api.create(made)


def admit(cluster: Scene, name: str, *left: str, **selector: str) -> None:
    """What Kueue does: its gate goes, and the pod gets the node selector of its flavor, or of its topology domain."""
    labels = {key.replace("__", "/"): value for key, value in selector.items()}
    gates = [{"name": gate} for gate in (GATE, *left)]
    cluster.api.patch("Pod", name, {"spec": {"schedulingGates": gates, "nodeSelector": labels}}, cluster.namespace)


def test_pods_of_kueue_are_placed_once_it_has_admitted_them(scene: SceneFactory, settings: Any) -> None:
    """In the flavor that it chose, and in one domain of the topology that they require."""
    nodes = {f"n{i}": {**H100, "labels": {RACK: f"r{i // 2}", "flavor": "ab"[i // 4]}} for i in range(8)}
    cluster = scene(nodes, settings=settings)
    for name in ("one", "two"):
        kueue_pod(cluster, name, 8, ADMISSION)
    quiet(2)
    assert not any(cluster.get(name)["status"].get("nominatedNodeName") for name in ("one", "two"))
    admit(cluster, "one", flavor="b")
    quiet(2)  # one pod of two: Kueue has not admitted the gang
    assert [gate["name"] for gate in cluster.get("one")["spec"]["schedulingGates"]] == [GATE]
    admit(cluster, "two", flavor="b")
    found = cluster.running("one", "two")
    assert set(found) in ({"n4", "n5"}, {"n6", "n7"})


def test_the_domain_that_kueue_chose_stays(scene: SceneFactory, settings: Any) -> None:
    """With topology-aware scheduling Kueue names the host of each pod, and drops its second gate: we reserve the
    GPUs there."""
    cluster = scene({f"n{i}": {**H100, "labels": {RACK: f"r{i // 2}"}} for i in range(4)}, settings=settings)
    for name in ("one", "two"):
        kueue_pod(cluster, name, 8, ADMISSION, TOPOLOGY)
    for name in ("one", "two"):
        admit(cluster, name, TOPOLOGY)
    quiet(2)
    assert not any(cluster.get(name)["status"].get("nominatedNodeName") for name in ("one", "two"))
    for name, node in (("one", "n3"), ("two", "n2")):
        admit(cluster, name, **{"kubernetes.io__hostname": node})
    assert cluster.running("one", "two") == ["n3", "n2"]
    assert cluster.get("one")["metadata"]["annotations"]["gpu-extender.io/gpus"]
