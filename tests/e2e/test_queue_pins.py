"""Hard pins on the real kube-scheduler: a pod whose node is lost is evicted, and its gang is completed elsewhere."""

from __future__ import annotations

from typing import Any

from extender.objects.queueing import PINNED
from tests.e2e import builders
from tests.e2e.scene import H100, SceneFactory
from tests.e2e.test_queue import gated, nodes_of, pods_of
from tests.waiting import wait_for

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
POOL = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}


def test_a_pinned_pod_whose_node_is_lost_is_evicted_and_replaced(scene: SceneFactory, settings: Any) -> None:
    """kube-scheduler stands still from the release on, until the node is gone. The pods state terms of their own."""
    settings["queue"]["hardPins"] = True
    cluster = scene({f"n{i}": H100 for i in range(3)}, settings=settings)
    cluster.scheduler.kill()
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [POOL]}}}
    cluster.api.create(builders.job("gang", 2, gated(cluster, "gang", 8, affinity=affinity)))
    wait_for(
        lambda: [p for p in pods_of(cluster, "gang") if not p["spec"].get("schedulingGates")][1:],
        60,
        lambda: "two open pods",
    )
    for pod in pods_of(cluster, "gang"):
        node = pod["status"]["nominatedNodeName"]
        pin = {"key": "metadata.name", "operator": "In", "values": [node]}
        [term] = pod["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
        assert (term["matchFields"], pod["metadata"]["annotations"][PINNED]) == ([pin], node)
    lost = pods_of(cluster, "gang")[0]["status"]["nominatedNodeName"]
    cluster.kubelets.remove_node(lost)
    cluster.scheduler.start()
    found = nodes_of(cluster, "gang", 2)
    assert len(set(found)) == 2
    assert lost not in found
    for pod in pods_of(cluster, "gang"):
        if pod["spec"].get("nodeName"):
            assert pod["metadata"]["annotations"][PINNED] == pod["spec"]["nodeName"]
