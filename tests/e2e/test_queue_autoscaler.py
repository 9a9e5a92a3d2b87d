"""Gangs that fit nowhere, on the real kube-scheduler: an autoscaler sees their pods, adds nodes, and they start whole.

The test plays the autoscaler: it acts on what Cluster Autoscaler and Karpenter act on, pods whose condition
PodScheduled is false with the reason Unschedulable, and that are not nominated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from extender.kube.client import ApiError
from tests.e2e.api import Api, Object, path_of
from tests.e2e.cluster import ControlPlane
from tests.e2e.rights import grant
from tests.e2e.scene import H100, Scene, SceneFactory, quiet
from tests.e2e.test_queue import job, nodes_of, pods_of
from tests.waiting import wait_for


def condition(pod: Object, kind: str) -> Object:
    """The pod's condition of this type; empty without one."""
    return next((one for one in pod["status"].get("conditions", ()) if one["type"] == kind), {})


def seen(cluster: Scene, name: str) -> list[Object]:
    """The pods of a Job for which an autoscaler would add nodes."""
    return [
        pod
        for pod in pods_of(cluster, name)
        if condition(pod, "PodScheduled").get("reason") == "Unschedulable"
        and not pod["status"].get("nominatedNodeName")
        and not pod["spec"].get("schedulingGates")
    ]


def test_gated_pods_grow_no_node(scene: SceneFactory, settings: Any) -> None:
    """By default: the pods are gated, and the first states that there is no place."""
    cluster = scene({"n1": H100}, settings=settings)
    job(cluster, "gang", 2, 8)
    first = wait_for(
        lambda: [pod for pod in pods_of(cluster, "gang") if condition(pod, "gpu-extender.io/Placeable")],
        60,
        "the condition",
    )
    stated = condition(first[0], "gpu-extender.io/Placeable")
    assert (len(first), stated["status"], stated["reason"]) == (1, "False", "NoPlace")
    assert condition(first[0], "PodScheduled")["reason"] == "SchedulingGated"  # the other conditions stay
    wait_for(lambda: cluster.metric("gpu_extender_queue_wanted_gpus", 'place="none"') == 16, 60, "they are counted")
    quiet(2)
    assert seen(cluster, "gang") == []


def test_an_autoscaler_sees_one_gang_and_it_starts_whole(scene: SceneFactory, settings: Any) -> None:
    settings["queue"]["autoscaler"] = "unnominated"
    cluster = scene({"n1": H100}, settings=settings)
    job(cluster, "gang", 3, 8)
    wait_for(lambda: len(seen(cluster, "gang")) == 3, 60, lambda: str([p["status"] for p in pods_of(cluster, "gang")]))
    told = condition(pods_of(cluster, "gang")[0], "PodScheduled")["message"]
    assert "waits in the queue until there is room for the whole gang" in told
    job(cluster, "next", 4, 8)
    quiet(3)
    assert seen(cluster, "next") == []  # one gang at a time
    # Two of three nodes are there: no part of the gang starts.
    cluster.kubelets.add_node("new-1", **H100)
    quiet(4)
    assert not any(pod["spec"].get("nodeName") for pod in pods_of(cluster, "gang"))
    cluster.kubelets.add_node("new-2", **H100)
    assert nodes_of(cluster, "gang", 3) == ["n1", "new-1", "new-2"]
    wait_for(lambda: len(seen(cluster, "next")) == 4, 60, lambda: str([p["status"] for p in pods_of(cluster, "next")]))
    assert cluster.kubelets.truth.double_allocations == 0


def schema() -> Object:
    """What ProvisioningRequest requires, of its fields that we write."""
    template = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
    pod_set = {
        "type": "object",
        "required": ["podTemplateRef", "count"],
        "properties": {"podTemplateRef": template, "count": {"type": "integer", "minimum": 1}},
    }
    spec = {
        "type": "object",
        "required": ["podSets", "provisioningClassName"],
        "properties": {
            "podSets": {"type": "array", "minItems": 1, "maxItems": 32, "items": pod_set},
            "provisioningClassName": {"type": "string"},
        },
    }
    return {"type": "object", "required": ["spec"], "properties": {"spec": spec}}


@pytest.fixture
def provisioning(api: Api) -> Iterator[None]:
    """The kind ProvisioningRequest is served."""
    group, plural = "autoscaling.x-k8s.io", "provisioningrequests"
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema()}}
    names = {"kind": "ProvisioningRequest", "plural": plural, "singular": "provisioningrequest"}
    meta = {
        "name": f"{plural}.{group}",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler"},
    }
    spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [version]}
    kind = "CustomResourceDefinition"
    api.create({"apiVersion": "apiextensions.k8s.io/v1", "kind": kind, "metadata": meta, "spec": spec})

    def served() -> bool:
        try:
            api.request("GET", path_of("ProvisioningRequest", namespace="default"))
        except ApiError:
            return False
        return True

    wait_for(served, 60, "the kind is served")
    yield
    api.delete(kind, str(meta["name"]))
    wait_for(lambda: api.find(kind, str(meta["name"])) is None, 60, "the kind is gone: its name comes again")


@pytest.mark.usefixtures("provisioning")
def test_a_provisioning_request_is_made_with_the_rights_of_the_manifests(
    scene: SceneFactory, control_plane: ControlPlane, api: Api, namespace: str
) -> None:
    grant(api, namespace, "deployment.yaml", "queue/controller.yaml", "provisioning-requests/rights.yaml")
    settings = {
        "reservations": {"namespace": namespace},
        "queue": {"enabled": True, "autoscaler": "provisioningRequest"},
    }
    account = control_plane.kubeconfig_of_account(namespace, "gpu-scheduler")
    cluster = scene({"n1": H100}, settings=settings, kubeconfig=account)
    job(cluster, "gang", 3, 8)
    [request] = wait_for(lambda: api.list("ProvisioningRequest", namespace), 60, "the request")
    [wanted] = request["spec"]["podSets"]
    assert wanted["count"] == 3
    template = api.get("PodTemplate", wanted["podTemplateRef"]["name"], namespace)["template"]
    assert template["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    name = request["metadata"]["name"]

    def consuming() -> bool:
        notes = [pod["metadata"].get("annotations", {}) for pod in pods_of(cluster, "gang")]
        return all(one.get("autoscaling.x-k8s.io/consume-provisioning-request") == name for one in notes)

    wait_for(consuming, 60, "the pods name the request")
    assert all(pod["spec"].get("schedulingGates") for pod in pods_of(cluster, "gang"))
    for node in ("new-1", "new-2"):
        cluster.kubelets.add_node(node, **H100)
    assert nodes_of(cluster, "gang", 3) == ["n1", "new-1", "new-2"]
