"""Who allocates the devices of a pod's claims, as explain and the queue state it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from extender.objects.devices import PLANNED_NODE
from extender.objects.queueing import GATE, PINNED
from extender.queue.report import MOST_WHYS, QueueReport, Waiting
from extender.settings import Settings
from extender.sim import claims as dra
from tests.act.queue.devices_rig import PLAN, SETTINGS, world
from tests.ask.asking import explained
from tests.cluster.dra.world import DraWorld
from tests.queue.gangs import gang
from tests.world import JSON, workload

QUEUE = "the queue chooses its devices, and writes the allocation before it opens the gate"
ATTRIBUTE = f"{dra.DRIVER}/productName"


def exactly(**more: Any) -> JSON:
    return {"exactly": {"deviceClassName": dra.DRIVER, "count": 2, **more}}


def claimed(made: DraWorld, request: JSON, **devices: Any) -> None:
    """The claim c with one request."""
    one = dra.claim("c", "default", 2)
    one["spec"]["devices"] = {"requests": [{"name": "gpus", **request}], **devices}
    made.set("ResourceClaim", one)


def pod(made: DraWorld, name: str = "p", *, gated: bool = True, **facts: Any) -> JSON:
    gates = {"schedulingGates": [{"name": GATE}]} if gated else {}
    spec = {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}], **gates}
    return made.set("Pod", workload(name, 0, phase="Pending", spec=spec, **facts))


@pytest.mark.parametrize(
    ("request_", "devices", "why"),
    [
        (exactly(selectors=[{"cel": {"expression": "true"}}]), {}, "the selectors of its claim cannot be evaluated"),
        (exactly(tolerations=[{"operator": "Exists"}]), {}, "the tolerations of its claim cannot be evaluated"),
        (exactly(capacity={"requests": {"memory": "1Gi"}}), {}, "the capacity of its claim cannot be evaluated"),
        (
            exactly(),
            {"constraints": [{"requests": ["gpus"], "matchAttribute": ATTRIBUTE}]},
            "the constraints of its claim cannot be evaluated",
        ),
        (exactly(allocationMode="All"), {}, "its claim asks for all devices of a node (allocationMode: All)"),
        (
            {"firstAvailable": [{"name": name, "deviceClassName": dra.DRIVER, "count": 2} for name in "ab"]},
            {},
            "its claim names alternatives (firstAvailable)",
        ),
    ],
)
def test_what_is_left_to_kube_scheduler_is_stated_with_the_reason(request_: JSON, devices: JSON, why: str) -> None:
    made = world()
    claimed(made, request_, **devices)
    pod(made)
    shown = explained(made)
    assert shown["devices"]["allocated_by"] == "kube-scheduler"
    assert shown["devices"]["why"] == why
    assert shown["sentence"].endswith(f"; kube-scheduler allocates its devices by first fit: {why}")
    [record] = made.cluster.pods.values()
    waiting = Waiting(replace(gang("g"), pods=(record,)), "head", "why")
    assert QueueReport(waiting=(waiting,)).entry(1)["left_devices"] == [why]


def test_a_class_that_narrows_is_named() -> None:
    made = world()
    narrow = dra.device_class("large")
    narrow["spec"]["selectors"].append({"cel": {"expression": "device.attributes['gpu.nvidia.com'].memory > 1"}})
    made.set("DeviceClass", narrow)
    claimed(made, exactly(deviceClassName="large"))
    pod(made)
    assert explained(made)["devices"]["why"] == (
        "DeviceClass large is not known to select every whole GPU of its driver"
    )


def test_a_claim_that_others_use_and_a_pod_without_the_gate() -> None:
    made = world()
    claimed(made, exactly())
    pod(made, gated=False)
    assert explained(made)["devices"]["why"] == "it does not wait behind the gate of the queue"
    pod(made)
    assert explained(made)["devices"]["text"] == QUEUE
    pod(made, "other")
    assert explained(made)["devices"]["why"] == "other pods use its claim too"


def test_the_plan_and_the_allocation_are_stated() -> None:
    made = world()
    claimed(made, exactly())
    pod(made)
    shown = explained(made)
    assert shown["devices"] == {
        "allocated_by": "queue", "why": None, "node": None, "names": [], "allocated": False, "text": QUEUE,
    }  # fmt: skip
    assert shown["sentence"].endswith(f"; {QUEUE}")
    pod(made, nominated="n1", annotations={PLAN: "0,3"})
    shown = explained(made)["devices"]
    assert (shown["node"], shown["names"], shown["allocated"]) == ("n1", ["gpu-0", "gpu-3"], False)
    assert shown["text"] == ("the queue plans gpu-0, gpu-3 of n1, and writes the allocation before it opens the gate")
    allocated = made.claim("c", 2, node="n1", devices=(0, 3))
    allocated["metadata"]["annotations"] = {PLANNED_NODE: "n1"}
    made.set("ResourceClaim", allocated)
    pod(made, gated=False, annotations={PLAN: "0,3", PINNED: "n1"})
    shown = explained(made)["devices"]
    assert (shown["node"], shown["names"], shown["allocated"]) == ("n1", ["gpu-0", "gpu-3"], True)
    assert shown["text"] == "the queue has allocated gpu-0, gpu-3 of n1"
    pod(made, gated=False, annotations={PLAN: "9,<b>", PINNED: "n1"})  # a tenant may write anything
    assert explained(made)["devices"]["names"] == []


def test_a_claim_that_its_controller_has_not_made_is_not_allocated() -> None:
    made = world()
    made.set("ResourceClaimTemplate", dra.claim("t", "default", 2, template=True))
    gates = {"schedulingGates": [{"name": GATE}]}
    spec = {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}], **gates}
    made.set("Pod", workload("p", 0, phase="Pending", spec=spec, nominated="n1", annotations={PLAN: "0,3"}))
    shown = explained(made)["devices"]
    assert (shown["names"], shown["allocated"]) == (["gpu-0", "gpu-3"], False)


def test_nothing_is_stated_where_the_queue_allocates_nothing() -> None:
    made = world(Settings.model_validate({"queue": {"enabled": True}}))
    claimed(made, exactly())
    pod(made)
    assert explained(made)["devices"] is None
    made = world(SETTINGS)
    made.pod("p", 2)
    assert explained(made)["devices"] is None


def test_a_gang_names_few_of_many_reasons() -> None:
    """The names of DeviceClasses are a tenant's: each pod of a large gang may state another."""
    made = world()
    claimed(made, exactly())
    pod(made)
    [record] = made.cluster.pods.values()
    pods = tuple(msgspec.structs.replace(record, left_devices=f"class {number}") for number in range(100))
    shown = QueueReport(waiting=(Waiting(replace(gang("g"), pods=pods), "head", "why"),)).entry(1)["left_devices"]
    assert shown == sorted(f"class {number}" for number in range(100))[:MOST_WHYS]


def test_a_pod_waits_for_devices_that_no_node_offers_by_the_reason_of_its_nodes() -> None:
    made = world()
    for name in list(made.cluster.nodes):
        made.publish(name, taints=dict.fromkeys(range(8), "broken"))
    claimed(made, exactly(), constraints=[{"requests": ["gpus"], "matchAttribute": ATTRIBUTE}])
    pod(made, gated=False)
    shown = explained(made)
    assert set(shown["reasons"]) == {shown["why"]["reason"]} == {"claim-unmet"}
