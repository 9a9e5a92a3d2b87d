"""Pods that hold devices by claims are evicted for a pod of the queue, which gets exactly what they leave.

The real kube-scheduler binds the pods and allocates the devices of foreign ones, the real claim controller deallocates.
No kubelet runs: the test ends what is evicted, as a kubelet does once the containers have stopped.
"""

from __future__ import annotations

from typing import Any

import pytest

from extender.sim import claims as dra
from tests.e2e.api import Api
from tests.e2e.build import release
from tests.e2e.scene import Scene, SceneFactory, quiet
from tests.e2e.test_dra import bound
from tests.e2e.test_dra_plan import LINKED, allocations, as_planned, claiming, planned, scene_of, twice
from tests.e2e.test_preemption import classes
from tests.waiting import wait_for

LOST = {"low-0": 0, "low-1": 1000, "low-2": 1000, "low-3": 1000, "low-4": 1000, "low-5": 0, "low-6": 100, "low-7": 0}
"""Seconds that each pod loses beside its age; low-N holds gpu-N. Of the linked pairs that of 5 and 7 is the cheapest,
and the claim of low-7 is another pod's too."""
SHARES = "shares"
RULES = pytest.mark.skipif(release() < "1.37", reason="before 1.37 DeviceTaintRules are off")


def full(scene: SceneFactory, api: Api, planning: Any, namespace: str) -> Scene:
    """A node each of whose GPUs a pod of low priority holds, as kube-scheduler hands them out."""
    chosen = planning | {"evictions": {"enabled": True, "lease": f"evictions-{namespace}"}}
    cluster = scene_of(scene, api, chosen, nodes=1)
    classes(cluster)
    cluster.api.create(dra.claim("shared", namespace, 1))
    by_name = {"resourceClaims": [{"name": "gpus", "resourceClaimName": "shared"}]}
    for name, seconds in LOST.items():
        notes = {"gpu-extender.io/restart-seconds": str(seconds)}
        claims = by_name if name == "low-7" else {}
        low(cluster, name, annotations=notes, **claims)
    low(cluster, SHARES, **by_name)
    return cluster


def low(cluster: Scene, name: str, **options: Any) -> None:
    """A pod of low priority, on its node."""
    cluster.api.create(claiming(cluster, name, 1, queued=False, priority_class="low", **{"grace": 30, **options}))
    bound(cluster, name)


def evicted(cluster: Scene) -> set[str]:
    """The pods of low priority that are terminating, or gone."""
    names = {*LOST, SHARES}
    return names - cluster.alive(names)


@RULES
def test_a_pod_gets_the_devices_of_the_pods_that_are_evicted_for_it(
    scene: SceneFactory, api: Api, planning: Any, namespace: str
) -> None:
    """Foreign pods wait for any GPU meanwhile, and the server is killed while the victims end."""
    cluster = full(scene, api, planning, namespace)
    foreign = [f"foreign-{number}" for number in range(3)]
    for name in foreign:
        cluster.api.create(claiming(cluster, name, 1, queued=False, priority_class="low"))
        cluster.unschedulable(name, "cannot allocate all claims", 60)
    notes = {"gpu-extender.io/links": "required"}
    cluster.api.create(claiming(cluster, "p", 2, priority_class="high", annotations=notes))
    wait_for(lambda: evicted(cluster) == {"low-5", "low-6"}, 60, lambda: str(evicted(cluster)))
    cluster.extender.restart()
    cluster.api.delete("Pod", "low-5", namespace, grace=0)
    quiet(1)
    assert cluster.get("p")["spec"].get("schedulingGates"), "the other victim holds its device"
    cluster.api.delete("Pod", "low-6", namespace, grace=0)
    bound(cluster, "p")
    pod = cluster.get("p")
    assert as_planned(pod, allocations(cluster))
    assert planned(pod) == {("n0", "gpu-5"), ("n0", "gpu-6")}
    assert frozenset((5, 6)) in LINKED
    wait_for(lambda: not cluster.api.list("DeviceTaintRule"), 60, lambda: str(cluster.api.list("DeviceTaintRule")))
    assert evicted(cluster) == {"low-5", "low-6"}
    assert twice(cluster) == []
    assert not any(cluster.get(name)["spec"].get("nodeName") for name in foreign)
