"""The policy that adds the queue's gate, on the real API server: which pods get it, and what stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from extender.act.queue.seat_store import SHARDS
from tests.e2e import builders, cleaning
from tests.e2e.api import Api, Object, Objects, path_of
from tests.e2e.cluster import ControlPlane
from tests.e2e.queueing import (
    GATED,
    LABEL,
    SCHEDULER,
    SYSTEM,
    gates,
    installed,
    other_policy,
    pod,
    queued_namespace,
    refusal,
    tried,
)
from tests.waiting import wait_for

OTHER, THIRD = "example.com/quota", "kueue.x-k8s.io/admission"


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[Api]:
    """The manifests are applied for all tests of this file; the cluster is cleaned after the last one."""
    with installed(control_plane.api):
        yield control_plane.api
    cleaning.clean(control_plane.api)


@pytest.fixture
def queued(api: Api) -> str:
    """A namespace with the label."""
    return queued_namespace(api)


def pods_of(api: Api, namespace: str, count: int) -> Objects:
    return wait_for(lambda: found if len(found := api.list("Pod", namespace)) >= count else None, 60, "the pods")


def without_gpus(name: str, namespace: str, **more: object) -> Object:
    return pod(name, namespace, 0, **more)


def test_pods_of_every_owner_get_the_gate(api: Api, queued: str) -> None:
    template = pod("t", queued, labels={"app": "set"})
    replicas = builders.replica_set("set", 2, pod("t", queued))
    deployment = {**replicas, "kind": "Deployment", "metadata": {"name": "set", "namespace": queued}}
    spec = {**replicas["spec"], "serviceName": "set", "template": {**replicas["spec"]["template"]}}
    stateful = {**replicas, "kind": "StatefulSet", "metadata": {"name": "set", "namespace": queued}, "spec": spec}
    api.create(template)
    api.create(builders.job("job", 2, pod("t", queued)))
    api.create(deployment)
    api.create(stateful)
    # The StatefulSet is OrderedReady: it makes its second pod only when the first is ready.
    found = pods_of(api, queued, 6)
    assert len(found) == 6
    owners = sorted(owner["kind"] for one in found for owner in one["metadata"].get("ownerReferences", ()))
    assert owners == ["Job", "Job", "ReplicaSet", "ReplicaSet", "StatefulSet"]
    assert all(gates(one) == GATED for one in found)
    [bare] = [one for one in found if one["metadata"]["name"] == "t"]
    [condition] = bare["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("PodScheduled", "SchedulingGated")


def test_what_asks_for_gpus_or_for_the_queue(api: Api, queued: str) -> None:
    asks = {
        "amd": pod("p", queued, resource="amd.com/gpu"),
        "shared": pod("p", queued, resource="nvidia.com/gpu.shared"),
        "second container": pod("p", queued, containers=[builders.container("a"), builders.container("b", 2)]),
        "init container": pod("p", queued, 0, init_containers=[builders.container("i", 1)]),
        "queue": without_gpus("p", queued, labels={"gpu-extender.io/queue": "team"}),
        "gang": without_gpus("p", queued, labels={"gpu-extender.io/gang": "g"}),
        "gang by annotation": without_gpus("p", queued, annotations={"gpu-extender.io/gang": "g"}),
    }
    assert {name: gates(tried(api, one)) for name, one in asks.items()} == dict.fromkeys(asks, GATED)
    # A limit is all that a person writes; the API server makes a request of it.
    limited = pod("p", queued)
    limited["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    assert gates(tried(api, limited)) == GATED


def test_what_gets_no_gate(api: Api, queued: str) -> None:
    api.create(builders.node("n1"))
    api.patch("Namespace", "kube-system", {"metadata": {"labels": LABEL}})
    unlabelled = str(api.create({**builders.namespace(""), "metadata": {"generateName": "e2e-"}})["metadata"]["name"])
    node = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": api.get("Node", "n1")["metadata"]["uid"]}
    mirror = pod("p", queued, node_name="n1", annotations={"kubernetes.io/config.mirror": "x"})
    mirror["metadata"]["ownerReferences"] = [{**node, "controller": True}]
    daemon = pod("p", queued)
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    daemon["metadata"]["ownerReferences"] = [owner]
    none = pod("p", queued)
    none["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "0"}}
    exempt = {
        "CPU only": without_gpus("p", queued, labels={"app": "x"}),
        "no GPUs": none,
        "no label on the namespace": pod("p", unlabelled),
        "kube-system": pod("p", "kube-system"),
        "placed": pod("p", queued, node_name="n1"),
        "mirror pod": mirror,
        "DaemonSet": daemon,
        "default scheduler": pod("p", queued, scheduler=""),
        "another scheduler": pod("p", queued, scheduler="volcano"),
        "another scheduler, our label": pod("p", queued, 0, scheduler="volcano", labels={"gpu-extender.io/gang": "g"}),
    }
    unplaced = pod("p", queued, annotations={"kubernetes.io/config.mirror": "x"})
    assert "must set spec.nodeName" in refusal(tried, api, unplaced)
    try:
        assert {name: gates(tried(api, one)) for name, one in exempt.items()} == {name: [] for name in exempt}
        assert gates(tried(api, pod("p", queued))) == GATED
    finally:
        api.patch("Namespace", "kube-system", {"metadata": {"labels": dict.fromkeys(LABEL)}})


def test_gates_of_others_stay_and_ours_comes_once(api: Api, queued: str) -> None:
    def made(*names: str) -> list[str]:
        gated = pod("p", queued, schedulingGates=[{"name": name} for name in names])
        return sorted(gates(tried(api, gated)))

    assert made(OTHER, THIRD) == sorted([OTHER, THIRD, *GATED])
    assert made(*GATED) == GATED
    assert made(OTHER, *GATED, THIRD) == sorted([OTHER, *GATED, THIRD])
    # A gate that a person sets needs no policy, no label and no GPUs.
    own = without_gpus("p", "default", schedulingGates=[{"name": GATED[0]}])
    assert gates(tried(api, own)) == GATED


def applied(api: Api, wanted: Object, **params: str) -> Object:
    """Server-side apply."""
    path = path_of("Pod", wanted["metadata"]["name"], wanted["metadata"]["namespace"])
    params = {"fieldManager": "test", "force": "true", **params}
    return api.request("PATCH", path, wanted, params=params, content_type="application/apply-patch+yaml")


def test_applying_a_pod_again_changes_nothing(api: Api, queued: str) -> None:
    wanted = pod("p", queued, schedulingGates=[{"name": OTHER}])
    for _ in range(2):
        assert sorted(gates(applied(api, wanted, dryRun="All"))) == sorted([OTHER, *GATED])
    assert api.find("Pod", "p", queued) is None
    first = applied(api, wanted)
    again = applied(api, wanted)
    assert sorted(gates(first)) == sorted(gates(again)) == sorted([OTHER, *GATED])
    assert again["spec"] == first["spec"]
    # An update that leaves the gates out removes them: whoever may update a pod may release it.
    del again["spec"]["schedulingGates"]
    assert gates(api.replace(again)) == []


def test_nothing_else_of_a_pod_changes(api: Api, queued: str, namespace: str) -> None:
    """Lists with equal keys, which a merge by keys could break, included."""
    odd = builders.container("main", 1)
    odd["env"] = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    odd["ports"] = [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}, {"containerPort": 80}]
    spec: Object = {
        "containers": [odd, builders.container("other")],
        "tolerations": [{"key": "a", "operator": "Exists"}, {"key": "a", "operator": "Exists"}],
        "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["x"]}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
        ],
    }
    free, gated = (tried(api, pod("p", where, **spec))["spec"] for where in (namespace, queued))
    assert gated.pop("schedulingGates") == [{"name": GATED[0]}]
    assert gated == free


@pytest.fixture
def notes_the_gate(api: Api) -> Iterator[None]:
    """A policy of another author: pods with its label get the scheduler's name and a GPU, and it notes whether our gate
    was there before."""
    for made in other_policy(noting(0)):
        api.create(made)
    yield
    api.delete("MutatingAdmissionPolicyBinding", "gpus")
    api.delete("MutatingAdmissionPolicy", "gpus")


def noting(edition: int) -> str:
    """The mutation of that policy. It notes its `edition` as well: the API server acts on a change a moment later."""
    return (
        f"Object{{metadata: Object.metadata{{annotations: {{'edition': '{edition}', 'ours-first': "
        "string(object.spec.?schedulingGates.orValue([]).exists(gate, gate.name.startsWith('gpu-extender')))}}, "
        "spec: Object.spec{schedulerName: 'gpu-scheduler', containers: [Object.spec.containers{name: 'main', "
        "resources: Object.spec.containers.resources{limits: {'nvidia.com/gpu': '1'}}}]}}"
    )


def evaluated_first(api: Api, namespace: str, ours: bool) -> None:
    """Waits until the API server evaluates our policy before the other one, or after it: the order is as it comes, and
    comes anew when a policy changes."""
    by_label = {"gpus-by": "policy", "gpu-extender.io/gang": "g"}  # ours needs no GPUs of the other then
    asks = pod("p", namespace, 0, labels=by_label)
    for edition in range(1, 100):
        mutations = [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": noting(edition)}}]
        api.patch("MutatingAdmissionPolicy", "gpus", {"spec": {"mutations": mutations}})

        def noted(edition: int = edition) -> Any:
            """What the policies write on a pod, once this edition is at work."""
            found = tried(api, asks)["metadata"].get("annotations", {})
            return found if found.get("edition") == str(edition) else None

        if wait_for(noted, 60, "the API server acts on the policy")["ours-first"] == str(ours).lower():
            return
    pytest.fail("the API server evaluates the policies in one order alone")


@pytest.mark.parametrize("ours_first", [True, False])
def test_gpus_that_another_policy_adds_count(api: Api, queued: str, notes_the_gate: None, ours_first: bool) -> None:
    """The pod has neither GPUs nor our scheduler's name when it is created."""
    evaluated_first(api, queued, ours_first)
    plain = builders.pod("p", queued, 0, labels={"gpus-by": "policy"})
    made = tried(api, plain)
    assert made["spec"]["schedulerName"] == SCHEDULER
    assert gates(made) == GATED
    others = tried(api, {**plain, "spec": {**plain["spec"], "schedulingGates": [{"name": OTHER}]}})
    assert sorted(gates(others)) == sorted([OTHER, *GATED])


def test_what_gated_pods_mean_to_quotas_and_owners(api: Api, queued: str) -> None:
    """The traps of docs/queue.md."""
    deadline = builders.job("late", 1, pod("t", queued))
    deadline["spec"]["activeDeadlineSeconds"] = 3
    api.create(deadline)
    replicas = builders.replica_set("slow", 1, pod("t", queued))
    slow = {**replicas, "kind": "Deployment", "metadata": {"name": "slow", "namespace": queued}}
    api.create({**slow, "spec": {**slow["spec"], "progressDeadlineSeconds": 3, "minReadySeconds": 1}})

    def conditions(kind: str, name: str) -> dict[str, str]:
        found = api.get(kind, name, queued).get("status", {}).get("conditions", ())
        return {one["type"]: one.get("reason", "") for one in found}

    wait_for(lambda: conditions("Job", "late").get("Failed") == "DeadlineExceeded", 60, "the Job's deadline")
    wait_for(
        lambda: conditions("Deployment", "slow").get("Progressing") == "ProgressDeadlineExceeded", 60, "no progress"
    )
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": queued}}
    api.create({**quota, "spec": {"hard": {"requests.nvidia.com/gpu": "3"}}})
    # The quota controller counts, and then admission learns it.
    wait_for(lambda: "exceeded quota" in refusal(tried, api, pod("all", queued, 4)), 60, "the quota's use")
    api.create(pod("first", queued, 2))
    assert "exceeded quota" in refusal(api.create, pod("second", queued, 2))


def test_the_rights_of_the_controller(api: Api, queued: str, control_plane: ControlPlane) -> None:
    """The server's account nominates, annotates and releases a pod, and keeps seats and a Lease; no more."""
    secret = control_plane.account_token(SYSTEM, SCHEDULER)
    api.create(pod("p", queued))
    with Api(control_plane.url, secret, control_plane.ca) as controller:

        def config_map(name: str) -> Object:
            return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": SYSTEM}}

        first = ("ConfigMap", "gpu-extender-seats-0", SYSTEM)
        wait_for(lambda: refusal(controller.get, *first).startswith("404"), 60, "the roles")
        nominated = {"status": {"nominatedNodeName": "n1"}}
        wait_for(
            lambda: not refusal(controller.patch, "Pod", "p", nominated, queued, subresource="status"), 60, "the roles"
        )
        released = {"metadata": {"annotations": {"gpu-extender.io/gpus": "0"}}, "spec": {"schedulingGates": None}}
        assert refusal(controller.patch, "Pod", "p", released, queued) == ""
        made = api.get("Pod", "p", queued)
        assert (gates(made), made["status"]["nominatedNodeName"]) == ([], "n1")
        for number in range(SHARDS):
            assert refusal(controller.create, config_map(f"gpu-extender-seats-{number}")) == ""
            data = {"data": {"seats": "{}"}}
            assert refusal(controller.patch, "ConfigMap", f"gpu-extender-seats-{number}", data, SYSTEM) == ""
        assert refusal(controller.get, *first) == ""
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        meta = {"name": "gpu-extender-queue", "namespace": SYSTEM}
        held = controller.create({**lease, "metadata": meta, "spec": {"holderIdentity": "a"}})
        assert refusal(controller.replace, {**held, "spec": {"holderIdentity": "b"}}) == ""
        api.create(config_map("settings"))
        forbidden = (
            refusal(controller.patch, "ConfigMap", "settings", {"data": {"a": "b"}}, SYSTEM),
            refusal(controller.delete, "Pod", "p", queued),
            refusal(controller.list, "ConfigMap", SYSTEM),
            refusal(controller.delete, *first),
            refusal(controller.patch, "ConfigMap", f"gpu-extender-seats-{SHARDS}", {"data": {"a": "b"}}, SYSTEM),
            refusal(controller.delete, "MutatingAdmissionPolicyBinding", "gpu-extender-queue"),
        )
        assert all(why.startswith("403") for why in forbidden), forbidden
