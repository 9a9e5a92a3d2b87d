"""Evictions of our own on a real control plane: pods that are refused for links alone, where kube-scheduler up to 1.37
never asks who could go."""

from __future__ import annotations

from typing import Any

from extender.ask.text import terms
from extender.sim.machines import machine
from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.cluster import ControlPlane
from tests.e2e.rights import grant
from tests.e2e.scene import V100, Scene, SceneFactory, quiet
from tests.e2e.test_preemption import classes
from tests.waiting import wait_for

TORN = (0, 5)  # two GPUs of a DGX-1 without a direct link


def settings(namespace: str, *, enabled: bool = True) -> dict[str, Any]:
    return {
        "reservations": {"namespace": namespace},
        "evictions": {"enabled": enabled},
    }


def torn(cluster: Scene, *, labels: dict[str, str] | None = None, grace: int = 30) -> list[str]:
    """A full node of one-GPU pods, two of which go: the GPUs they leave are not linked. Those that stay."""
    assert machine("dgx1-v100").links[TORN[0]][TORN[1]] == 0
    names = [f"w{i}" for i in range(8)]
    for name in names:
        cluster.pod(name, 1, priority_class="low", grace=grace, labels=labels or {})
    cluster.running(*names)
    for name in names:
        if next(iter(cluster.gpus(name))) in TORN:
            cluster.api.delete("Pod", name, cluster.namespace, grace=0)
    left = cluster.alive(names)
    assert len(left) == 6
    return sorted(left)


def events(cluster: Scene, reason: str) -> list[Object]:
    return list(cluster.api.list("Event", cluster.namespace, fields=f"reason={reason}"))


def evicted(cluster: Scene) -> int:
    return int(cluster.metric("gpu_extender_evictions_total", 'result="evicted"'))


def test_one_goes_and_the_pod_lands_on_linked_gpus(
    scene: SceneFactory, control_plane: ControlPlane, api: Api, namespace: str
) -> None:
    """With no more rights than the manifests give."""
    grant(api, namespace, "deployment.yaml", "evictions/rights.yaml")
    account = control_plane.kubeconfig_of_account(namespace, "gpu-scheduler")
    cluster = scene({"n1": V100}, settings=settings(namespace), kubeconfig=account, kubelet={"termination_seconds": 2})
    classes(cluster)
    left = torn(cluster)
    cluster.pod("urgent", 2, links="required", priority_class="high")
    assert cluster.running("urgent", timeout=60) == ["n1"]
    assert machine("dgx1-v100").linked(cluster.gpus("urgent"))
    gone = set(left) - cluster.alive(left)
    print(f"evicted {sorted(gone)}, urgent on {sorted(cluster.gpus('urgent'))}")
    assert len(gone) == 1
    assert evicted(cluster) == 1
    assert cluster.evictions() == {}  # kube-scheduler itself evicted nobody
    [told] = wait_for(lambda: events(cluster, "ChosenAsVictim"), 60, "the victim's event")
    assert told["involvedObject"]["name"] in gone
    [planned] = wait_for(lambda: events(cluster, "EvictionPlanned"), 60, "the preemptor's event")
    assert planned["involvedObject"]["name"] == "urgent"
    record = next(one for one in cluster.decisions("urgent") if one["result"] == "evicting")
    assert [one["name"] for one in record["victims"]] == sorted(gone)
    cost = terms(record["cost"])
    for one in (told, planned):
        assert one["message"].startswith(f"plan {record['plan']}: ")
        assert one["message"].endswith(f"; cost: {cost}; no other node came into question")
    assert {one["term"]: one["value"] for one in record["cost"]}["victims"] == 1
    assert cluster.metric("gpu_extender_preemption_victims_sum", 'by="gpu-extender"') == 1
    assert cluster.metric("gpu_extender_victim_searches_total", 'proved="true",result="evict"') == 1
    kept = api.get("ConfigMap", "gpu-extender-reservations", namespace)
    wait_for(lambda: not api.get("ConfigMap", "gpu-extender-reservations", namespace).get("data"), 60, lambda: kept)
    assert cluster.kubelets.truth.double_allocations == 0


def test_with_the_flag_off_it_is_told(scene: SceneFactory, namespace: str) -> None:
    cluster = scene({"n1": V100}, settings=settings(namespace, enabled=False))
    classes(cluster)
    left = torn(cluster)
    cluster.pod("urgent", 2, links="required", priority_class="high")
    cluster.unschedulable("urgent", "gpu-extender: ")
    [told] = wait_for(lambda: events(cluster, "EvictionWouldHelp"), 60, "the event")
    assert "evictions.enabled: true" in told["message"]
    assert told["involvedObject"]["name"] == "urgent"
    assert "cost: highest priority of a victim " in told["message"]
    [kept, *_] = wait_for(
        lambda: [one for one in cluster.decisions("urgent") if one["verb"] == "evict"], 60, "the decision"
    )
    assert kept["eviction_would_help"]["flag"] == "evictions.enabled"
    quiet(3)
    assert cluster.alive(left) == set(left)
    assert not cluster.api.list("ConfigMap", namespace, fields="metadata.name=gpu-extender-reservations")


def test_a_budget_holds_it_up_until_it_allows_it(scene: SceneFactory, namespace: str) -> None:
    cluster = scene({"n1": V100}, settings=settings(namespace))
    classes(cluster)
    left = torn(cluster, labels={"app": "w"}, grace=1)
    cluster.api.create(builders.pdb("all", namespace, {"app": "w"}, min_available=6))

    def counted() -> bool:
        status = cluster.api.get("PodDisruptionBudget", "all", namespace).get("status", {})
        return bool(status.get("expectedPods") == 6 and status.get("disruptionsAllowed") == 0)

    wait_for(counted, 60, "the budget counts")
    cluster.server_sees_budgets(1)
    cluster.pod("urgent", 2, links="required", priority_class="high")
    wait_for(lambda: events(cluster, "EvictionNotAllowed"), 60, "it is told")
    quiet(8)
    assert cluster.alive(left) == set(left)
    cluster.api.patch("PodDisruptionBudget", "all", {"spec": {"minAvailable": 5}}, namespace)
    cluster.running("urgent", timeout=60)
    assert len(cluster.alive(left)) == 5


def test_killed_in_the_middle_nobody_else_goes(scene: SceneFactory, namespace: str) -> None:
    """The server is killed twice before the victim has gone. The next Lease is had 15 s later. Two GPUs of the node are
    free all the time, so that only the reservation keeps a rival off."""
    cluster = scene({"n1": V100}, settings=settings(namespace))
    cluster.kubelets.keeps_terminating = True
    classes(cluster)
    left = torn(cluster)
    cluster.pod("urgent", 2, links="required", priority_class="high")
    wait_for(lambda: len(cluster.alive(left)) == 5, 60, "an eviction")
    cluster.extender.restart()
    quiet(2)
    cluster.pod("rival", 1, priority_class="low")
    cluster.unschedulable("rival", "gpu-extender: ")
    assert len(cluster.kubelets.truth.holdings()["n1"]) <= 6
    cluster.extender.restart()
    cluster.kubelets.keeps_terminating = False

    def lands() -> bool:
        rival, urgent = cluster.get("rival"), cluster.get("urgent")  # in this order: urgent may come between
        assert urgent["spec"].get("nodeName") or not rival["spec"].get("nodeName")
        return bool(urgent["spec"].get("nodeName"))

    wait_for(lands, 120, "urgent has a node")
    cluster.running("urgent")
    assert machine("dgx1-v100").linked(cluster.gpus("urgent"))
    assert len(cluster.alive(left)) == 5
    cluster.running("rival", timeout=60)  # one GPU is left
    assert not cluster.gpus("rival") & cluster.gpus("urgent")
    assert cluster.kubelets.truth.double_allocations == 0
