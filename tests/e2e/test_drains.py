"""A node that an operator empties, on a real control plane: its pods are asked, budgets hold, and it is empty then."""

from __future__ import annotations

from tests.e2e import builders
from tests.e2e.api import Api
from tests.e2e.cluster import ControlPlane
from tests.e2e.kubelet import RAN_SECONDS
from tests.e2e.rights import grant
from tests.e2e.scene import V100, SceneFactory, quiet
from tests.e2e.test_evictions import events, evicted
from tests.e2e.test_preemption import classes
from tests.e2e.test_saving import OURS, request, settings
from tests.waiting import wait_for


def test_a_node_is_emptied(scene: SceneFactory, control_plane: ControlPlane, api: Api, namespace: str) -> None:
    """With no more rights than the manifests give, and no call of kube-scheduler."""
    grant(api, namespace, "deployment.yaml", "evictions/rights.yaml")
    account = control_plane.kubeconfig_of_account(namespace, "gpu-scheduler")
    cluster = scene(
        {"n1": V100}, settings=settings(namespace, 600), kubeconfig=account, kubelet={"termination_seconds": 1}
    )
    classes(cluster)
    cluster.pod("train", 4, priority_class="low", annotations={OURS + "saves-on-request": "20s", RAN_SECONDS: "60"})
    cluster.pod("guarded", 2, priority_class="low", labels={"app": "guarded"})
    cluster.pod("plain", 2, priority_class="low")
    cluster.pod("no-gpus", 0)
    cluster.running("train", "guarded", "plain", "no-gpus")
    api.create(builders.pdb("guard", namespace, {"app": "guarded"}, max_unavailable=0))
    cluster.server_sees_budgets(1)
    cluster.api.patch("Node", "n1", {"metadata": {"annotations": {OURS + "drain": ""}}})
    quiet(3)
    assert cluster.alive(["train", "guarded", "plain"]) == {"train", "guarded", "plain"}  # it is not cordoned
    cluster.api.patch("Node", "n1", {"spec": {"unschedulable": True}})
    asked = request(cluster)
    assert asked["by"] == "the drain of node n1"
    wait_for(lambda: cluster.alive(["plain"]) == set(), 60, "what saves nothing leaves")
    assert cluster.alive(["train", "guarded", "no-gpus"]) == {"train", "guarded", "no-gpus"}
    cluster.api.patch("Pod", "train", {"metadata": {"annotations": {OURS + "saved": asked["id"]}}}, namespace)
    wait_for(lambda: cluster.alive(["train"]) == set(), 60, "it has saved")
    waits = wait_for(lambda: [event for event in api.list("Event") if event["reason"] == "DrainWaits"], 60, "the Event")
    assert any("guard" in event["message"] for event in waits)
    assert "n1 is emptied" in cluster.explained("guarded")["sentence"]
    cluster.api.delete("PodDisruptionBudget", "guard", namespace)
    wait_for(lambda: cluster.alive(["guarded"]) == set(), 60, "the budget is gone")
    assert evicted(cluster) == 3
    assert cluster.alive(["no-gpus"]) == {"no-gpus"}
    assert len(events(cluster, "SaveRequested")) == 1
    assert cluster.evictions() == {}
