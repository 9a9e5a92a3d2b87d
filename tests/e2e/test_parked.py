"""Preemptors that could evict no pod for a while are tried again as soon as that is possible: no pod ends meanwhile."""

from __future__ import annotations

import time

from tests.e2e.api import Api
from tests.e2e.cluster import ControlPlane
from tests.e2e.rights import grant, without
from tests.e2e.scene import H100, Scene, SceneFactory, quiet
from tests.e2e.test_evictions import settings
from tests.waiting import wait_for

MOST_SECONDS = 15.0


def bound_soon(cluster: Scene) -> None:
    since = time.monotonic()
    cluster.running("urgent", timeout=60)
    waited = time.monotonic() - since
    print(f"the preemptor runs {waited:.1f} s after")
    assert waited < MOST_SECONDS
    assert cluster.get("urgent")["status"].get("nominatedNodeName", "") in (
        "",
        cluster.get("urgent")["spec"]["nodeName"],
    )


def test_once_reservations_may_be_written_again(
    scene: SceneFactory, control_plane: ControlPlane, api: Api, namespace: str
) -> None:
    """And `explain` names what was not allowed."""
    grant(api, namespace, "deployment.yaml")
    account = control_plane.kubeconfig_of_account(namespace, "gpu-scheduler")
    cluster = scene({f"n{i}": H100 for i in range(2)}, settings=settings(namespace, enabled=False), kubeconfig=account)
    names = cluster.full_of_low_pods()
    with without(api, namespace, "gpu-extender", "configmaps"):
        quiet(2)
        cluster.pod("urgent", 4, priority_class="high")
        result = 'reason="not-reserved"'
        wait_for(lambda: cluster.metric("gpu_extender_decisions_total", result), 60, "preempt is asked")
        sentence = cluster.explained("urgent")["sentence"]
        assert "evicted no pod: the reservation is not kept: " in sentence
        assert "403" in sentence
        assert "configmaps" in sentence
        quiet(8)
        assert cluster.metric("gpu_extender_decisions_total", result) == 1  # it is parked
        assert cluster.alive(names) == set(names)
    bound_soon(cluster)
    assert len(cluster.alive(names)) == 3


def test_once_a_server_is_back_that_met_no_call(scene: SceneFactory) -> None:
    """Its call met a dead server."""
    cluster = scene({f"n{i}": H100 for i in range(2)})
    names = cluster.full_of_low_pods()
    cluster.extender.kill()
    cluster.pod("urgent", 4, priority_class="high")
    cluster.unschedulable("urgent", "Insufficient nvidia.com/gpu")
    quiet(8)
    cluster.extender.start()
    bound_soon(cluster)
    assert len(cluster.alive(names)) == 3
