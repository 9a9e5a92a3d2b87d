"""Gangs in the queue whose claims have other forms than a number, on the real control plane: the gates open only where
all pods get their devices at once. kube-scheduler 1.37 allocates these devices itself."""

from __future__ import annotations

import time
from typing import Any

import pytest

from extender.objects.queueing import GATE
from extender.sim import claims as dra
from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.scene import Scene, SceneFactory
from tests.e2e.test_dra import bound, publish
from tests.e2e.test_dra_plan import allocations, twice
from tests.waiting import wait_for

QUIET_SECONDS = 4.0  # a gang that fits starts within one
PODS = ("g-0", "g-1")


def exactly(**what: Any) -> Object:
    return {"name": "gpus", "exactly": {"deviceClassName": dra.DRIVER, **what}}


def choices(*counts: int) -> Object:
    """The first of these numbers that is available."""
    named = [{"name": f"of-{count}", "deviceClassName": dra.DRIVER, "count": count} for count in counts]
    return {"name": "gpus", "firstAvailable": named}


FORMS: dict[str, tuple[Object, bool, int, int]] = {
    # the request, whether one claim is shared, how many nodes the gang needs, devices of each pod
    "All": (exactly(allocationMode="All"), False, 2, 8),
    "firstAvailable": (choices(8, 4), False, 2, 8),
    "shared": (exactly(allocationMode="ExactCount", count=8), True, 1, 8),
}


def hold(cluster: Scene, name: str, node: str, gpus: int) -> None:
    """A pod outside the queue that holds GPUs of a node."""
    cluster.api.create(dra.claim(name, cluster.namespace, gpus))
    claims = [{"name": "gpus", "resourceClaimName": name}]
    host = {"kubernetes.io/hostname": node}
    cluster.api.create(builders.pod(name, cluster.namespace, 0, resourceClaims=claims, node_selector=host, grace=0))
    bound(cluster, name)


def gang(cluster: Scene, request: Object, *, shared: bool) -> None:
    """Two pods, with a claim each or one for both."""
    spec = {"devices": {"requests": [request]}}
    kind = "ResourceClaim" if shared else "ResourceClaimTemplate"
    meta = {"name": "form", "namespace": cluster.namespace}
    body = spec if shared else {"spec": spec}
    cluster.api.create({"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": meta, "spec": body})
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2"}
    claims = [{"name": "gpus", ("resourceClaimName" if shared else "resourceClaimTemplateName"): "form"}]
    for name in PODS:
        options: dict[str, Any] = {"schedulingGates": [{"name": GATE}], "annotations": notes, "grace": 0}
        cluster.api.create(builders.pod(name, cluster.namespace, 0, resourceClaims=claims, **options))


def is_gated(cluster: Scene, name: str) -> bool:
    return bool(cluster.get(name)["spec"].get("schedulingGates"))


@pytest.mark.parametrize("form", FORMS)
def test_gates_open_only_where_all_pods_of_a_gang_get_their_devices(
    scene: SceneFactory, api: Api, planning: Any, form: str
) -> None:
    """Both nodes are in part held by others: no gate opens. Then as many nodes are free as the gang needs."""
    request, shared, nodes, devices = FORMS[form]
    api.create(dra.device_class())
    publish(api, "n0", "n1")
    cluster = scene({}, settings=planning)
    hold(cluster, "held-0", "n0", 5)
    hold(cluster, "held-1", "n1", 5)
    gang(cluster, request, shared=shared)
    time.sleep(QUIET_SECONDS)
    assert [is_gated(cluster, name) for name in PODS] == [True, True]
    cluster.api.delete("Pod", "held-0", cluster.namespace, grace=0)
    if nodes == 2:
        time.sleep(QUIET_SECONDS)
        assert [is_gated(cluster, name) for name in PODS] == [True, True], "one node is free, and two are needed"
        cluster.api.delete("Pod", "held-1", cluster.namespace, grace=0)
    wait_for(lambda: not any(is_gated(cluster, name) for name in PODS), 60, lambda: str(cluster.get(PODS[0])))
    for name in PODS:
        bound(cluster, name)
    pods = [cluster.get(name) for name in PODS]
    assert len({pod["spec"]["nodeName"] for pod in pods}) == nodes
    found = allocations(cluster)
    for pod in pods:
        held = found[pod["metadata"]["uid"]]
        assert {pool for pool, _ in held} == {pod["spec"]["nodeName"]}
        assert len(held) == devices
    assert twice(cluster) == []
