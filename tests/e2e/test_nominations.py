"""What kube-scheduler does with `status.nominatedNodeName` of a gated pod, which another program wrote.

The queue relies on the first test of this file, not on the others: filter knows the seats in any case. Run it for an
older release with `GPU_EXTENDER_KUBERNETES=1.36.3`.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e import builders
from tests.e2e.api import Api
from tests.e2e.build import release
from tests.e2e.conftest import SchedulerFactory
from tests.waiting import wait_for

HOLD = "example.com/hold"
PODS = 20
FORGETS = {"1.34", "1.35", "1.36"}
"""Releases whose kube-scheduler forgets the nominations of gated pods with a restart, until the pod's next update."""
MINOR = release().rpartition(".")[0]


def nodes(api: Api, *names: str, cpu: str = "16") -> None:
    for name in names:
        api.create(builders.node(name, cpu=cpu))


def gated(api: Api, namespace: str, name: str, node: str, cpu: str = "10") -> None:
    """A gated pod that is nominated to the node."""
    api.create(builders.pod(name, namespace, 0, cpu=cpu, grace=0, schedulingGates=[{"name": HOLD}]))
    api.patch("Pod", name, {"status": {"nominatedNodeName": node}}, namespace, subresource="status")


def release_pod(api: Api, namespace: str, name: str) -> None:
    api.patch("Pod", name, {"spec": {"schedulingGates": None}}, namespace)


def state(api: Api, namespace: str, name: str) -> str | None:
    """The pod's node, "" once kube-scheduler has rejected it, None before."""
    pod = api.get("Pod", name, namespace)
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    found = [one for one in pod["status"].get("conditions", ()) if one["type"] == "PodScheduled"]
    return "" if found and found[0].get("reason") == "Unschedulable" else None


def decided(api: Api, namespace: str, name: str) -> str:
    """As `state`, once there is one."""

    def look() -> list[str] | None:
        found = state(api, namespace, name)
        return None if found is None else [found]

    return wait_for(look, 60, f"kube-scheduler has tried {name}")[0]


def intruder(api: Api, namespace: str, name: str, node: str) -> str:
    """A pod of the same priority that fits on this node alone, beside nothing else; where it is, "" where nowhere."""
    selector = {"kubernetes.io/hostname": node}
    api.create(builders.pod(name, namespace, 0, cpu="12", grace=0, node_selector=selector))
    found = decided(api, namespace, name)
    api.delete("Pod", name, namespace)
    wait_for(lambda: api.find("Pod", name, namespace) is None, 60, "the intruder is gone")
    return found


def test_released_pods_land_on_their_nominated_nodes(api: Api, namespace: str, scheduler: SchedulerFactory) -> None:
    """Which no score would choose: each node has room for one, and the names are drawn against the order."""
    nodes(api, *(f"n{i}" for i in range(PODS * 2)))
    scheduler()
    places = {f"p{i}": f"n{i * 7 % (PODS * 2)}" for i in range(PODS)}
    for name, node in places.items():
        gated(api, namespace, name, node)
    for name in places:
        release_pod(api, namespace, name)
    assert {name: decided(api, namespace, name) for name in places} == places


def test_the_nomination_of_a_gated_pod_keeps_others_off(api: Api, namespace: str, scheduler: SchedulerFactory) -> None:
    nodes(api, "n1", "n2")
    scheduler()
    gated(api, namespace, "seat", "n1")
    assert intruder(api, namespace, "a", "n1") == ""
    release_pod(api, namespace, "seat")
    assert decided(api, namespace, "seat") == "n1"


@pytest.mark.parametrize("is_open", [False, True], ids=["gated", "released"])
def test_nominations_after_a_restart_of_the_scheduler(
    api: Api, namespace: str, scheduler: SchedulerFactory, is_open: bool
) -> None:
    nodes(api, "n1", "n2")
    running: Any = scheduler()
    if is_open:
        running.kill()
        gated(api, namespace, "seat", "n1")
        release_pod(api, namespace, "seat")
        running.start()
        assert decided(api, namespace, "seat") == "n1"
        return
    gated(api, namespace, "seat", "n1")
    running.restart()
    assert intruder(api, namespace, "a", "n1") == ("n1" if MINOR in FORGETS else "")
    api.patch("Pod", "seat", {"metadata": {"annotations": {"example.com/x": "1"}}}, namespace)
    assert intruder(api, namespace, "b", "n1") == ""  # with its next update the nomination counts again
    release_pod(api, namespace, "seat")
    assert decided(api, namespace, "seat") == "n1"
