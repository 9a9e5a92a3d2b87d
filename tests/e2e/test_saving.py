"""Victims that are asked to save their work, on a real control plane: kube-scheduler is answered no victims, and we
evict once they have answered, or when their time is over."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.api import Api
from tests.e2e.cluster import ControlPlane
from tests.e2e.kubelet import RAN_SECONDS
from tests.e2e.rights import grant
from tests.e2e.scene import V100, Scene, SceneFactory
from tests.e2e.test_evictions import events, evicted
from tests.e2e.test_preemption import classes
from tests.waiting import wait_for

OURS = "gpu-extender.io/"


def settings(namespace: str, seconds: int) -> dict[str, Any]:
    return {
        "reservations": {"namespace": namespace},
        "evictions": {"enabled": True},
        "preemption": {"mostWaitSeconds": {"high": seconds}},
    }


def trained(cluster: Scene, needs: str) -> None:
    """A node full of training that has run for longer than it takes to save."""
    notes = {OURS + "saves-on-request": needs, RAN_SECONDS: "60"}
    cluster.pod("train", 8, priority_class="low", annotations=notes)
    cluster.running("train")


def request(cluster: Scene) -> dict[str, Any]:
    def asked() -> str:
        notes = cluster.get("train")["metadata"].get("annotations", {})
        return str(notes.get(OURS + "save-requested", ""))

    found: dict[str, Any] = json.loads(wait_for(asked, 60, "the request"))
    return found


def test_it_saves_and_the_preemptor_lands(
    scene: SceneFactory, control_plane: ControlPlane, api: Api, namespace: str
) -> None:
    """With no more rights than the manifests give."""
    grant(api, namespace, "deployment.yaml", "evictions/rights.yaml")
    account = control_plane.kubeconfig_of_account(namespace, "gpu-scheduler")
    cluster = scene(
        {"n1": V100}, settings=settings(namespace, 600), kubeconfig=account, kubelet={"termination_seconds": 1}
    )
    classes(cluster)
    trained(cluster, "10s")
    cluster.pod("urgent", 8, priority_class="high")
    asked = request(cluster)
    assert asked["by"] == f"{namespace}/urgent"
    conditions = {condition["type"]: condition for condition in cluster.get("train")["status"]["conditions"]}
    assert (conditions[OURS + "SaveRequested"]["status"], conditions["Ready"]["status"]) == ("True", "True")
    cluster.api.patch("Pod", "train", {"metadata": {"annotations": {OURS + "saved": asked["id"]}}}, namespace)
    assert cluster.running("urgent", timeout=60) == ["n1"]
    assert evicted(cluster) == 1
    assert cluster.evictions() == {}  # kube-scheduler itself evicted nobody
    [told] = wait_for(lambda: events(cluster, "SaveRequested"), 60, "the victim's event")
    assert asked["id"] in told["message"]
    record = next(one for one in cluster.decisions("urgent") if one["result"] == "asking")
    assert [one["name"] for one in record["victims"]] == ["train"]
    assert cluster.metric("gpu_extender_save_requests_total", 'result="asked"') == 1
    assert cluster.kubelets.truth.double_allocations == 0


def test_one_that_does_not_answer_is_evicted_when_its_time_is_over(scene: SceneFactory, namespace: str) -> None:
    """The server is killed while it waits: the next holder of the Lease asks no second time."""
    cluster = scene({"n1": V100}, settings=settings(namespace, 600), kubelet={"termination_seconds": 1})
    classes(cluster)
    trained(cluster, "10s")
    cluster.pod("urgent", 8, priority_class="high")
    asked = request(cluster)
    wait_for(lambda: events(cluster, "SaveRequested"), 60, "the victim's event")
    cluster.extender.restart()
    assert request(cluster) == asked
    assert cluster.running("urgent", timeout=90) == ["n1"]
    assert cluster.evictions() == {}
    assert len(events(cluster, "SaveRequested")) == 1
    assert asked["by"] == f"{namespace}/urgent"
    assert cluster.kubelets.truth.double_allocations == 0
