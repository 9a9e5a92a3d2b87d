"""Pods with claims over a file: behind our gate any linked set will do, else what kube-scheduler takes first."""

from __future__ import annotations

import pytest

from extender.cluster.statements import PLAN
from extender.objects.devices import PLANNED_NODE
from extender.objects.queueing import GATE, PINNED
from extender.settings import Settings
from extender.sim import claims as dra
from extender.sim.machines import SimNode, gpu_uuids, topology_annotation
from tests.ask.whatif.asking import ask, snapshot
from tests.cluster.dra.world import MACHINE
from tests.world import JSON, workload

REQUIRED = {"gpu-extender.io/links": "required"}
OFF = Settings.model_validate({"queue": {"enabled": True, "plannedAllocation": False}})


def cluster() -> list[JSON]:
    """A node whose GPUs 0 and 1 are held, and a claim for four."""
    node = SimNode("n1", MACHINE, device_plugin=False).object()
    node["metadata"].setdefault("annotations", {})["gpu-extender.io/topology"] = topology_annotation(
        MACHINE, gpu_uuids("n1", MACHINE)
    )
    old = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **dra.claim("old", "default", 2)}
    results = [{"request": "gpus", "driver": dra.DRIVER, "pool": "n1", "device": f"gpu-{i}"} for i in (0, 1)]
    old["status"] = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": "old", "uid": "uid-old"}],
    }
    holder = workload("old", 0, node="n1", spec={"resourceClaims": [{"name": "c", "resourceClaimName": "old"}]})
    return [
        {"kind": "Node", **node}, dra.device_class(), *dra.resource_slices("n1", MACHINE), old,
        {"kind": "Pod", **holder},
        {"kind": "ResourceClaim", **dra.claim("new", "default", 4)},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gated", "settings", "gpus"),
    [(True, None, [4, 5, 6, 7]), (False, None, None), (True, OFF, None)],
    ids=["behind the gate", "without the gate", "the settings state otherwise"],
)
def test_required_links(gated: bool, settings: Settings | None, gpus: list[int] | None) -> None:
    gates = {"schedulingGates": [{"name": GATE}]} if gated else {}
    spec = {"resourceClaims": [{"name": "c", "resourceClaimName": "new"}], **gates}
    pod = {"kind": "Pod", **workload("p", 0, phase="Pending", spec=spec, annotations=REQUIRED)}
    [result] = ask(cluster(), [pod], settings=settings)["results"]
    assert result["gpus"] == gpus
    assert result["verdict"] == ("fits" if gpus else "cannot")


@pytest.mark.parametrize(
    ("kept", "lacks"), [(0, "DeviceClass gpu.nvidia.com"), (1, "ResourceClaimTemplate default/gone")]
)
@pytest.mark.parametrize("gang", [True, False])
def test_what_a_claim_lacks_is_named_and_the_pod_cannot_be_placed(kept: int, lacks: str, gang: bool) -> None:
    """Also in a cluster without any DeviceClass, where the template of the question names one."""
    claim = {"name": "c", "resourceClaimTemplateName": "t" if not kept else "gone"}
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2"} if gang else {}
    template: JSON = {"metadata": {"name": "t", "namespace": "default"}, "spec": dra.claim("t", "default", 4)}
    template |= {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    pods = [
        {"kind": "Pod", **workload(f"p{number}", 0, spec={"resourceClaims": [claim]}, annotations=notes)}
        for number in range(2 if gang else 1)
    ]
    answer = ask(cluster() if kept else cluster()[:1], [template, *pods])
    assert {result["verdict"] for result in answer["results"]} == {"cannot"}
    absent = [entry["message"] for entry in answer["warnings"] if entry["code"] == "claim-absent"]
    assert len(absent) == len(pods)
    assert all(f"{lacks} does not exist" in message for message in absent)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("by_template", [True, False])
@pytest.mark.parametrize("gang", [True, False])
def test_a_pod_that_is_placed_holds_what_its_claims_ask_for(gated: bool, by_template: bool, gang: bool) -> None:
    """Six GPUs are free: the next pod with a claim for four has no place. The queue takes the best set, kube-scheduler
    the first free devices."""
    template = {
        "metadata": {"name": "t", "namespace": "default"},
        "spec": {"spec": dra.claim("t", "default", 4)["spec"]},
    }
    items = [*cluster()[:-1], {"kind": "ResourceClaimTemplate", **template}]
    pods = []
    for number in range(2):
        name = f"p{number}"
        items.append({"kind": "ResourceClaim", **dra.claim(name, "default", 4)})
        ref = {"resourceClaimTemplateName": "t"} if by_template else {"resourceClaimName": name}
        spec: JSON = {"resourceClaims": [{"name": "c", **ref}]}
        if gated:
            spec["schedulingGates"] = [{"name": GATE}]
        notes = {"gpu-extender.io/gang": name, "gpu-extender.io/gang-size": "1"} if gang else {}
        pods.append({"kind": "Pod", **workload(name, 0, phase="Pending", spec=spec, annotations=notes)})
    first, second = ask(items, pods)["results"]
    assert (first["verdict"], first["gpus"]) == ("fits", [4, 5, 6, 7] if gated else [2, 3, 4, 5])
    assert second["verdict"] == "cannot"


@pytest.mark.parametrize("reserved", [True, False])
def test_a_released_pod_takes_the_devices_that_wait_for_it(reserved: bool) -> None:
    claim = {"kind": "ResourceClaim", **dra.claim("new", "default", 4)}
    claim["metadata"]["annotations"] = {PLANNED_NODE: "n1"}
    results = [{"request": "gpus", "driver": dra.DRIVER, "pool": "n1", "device": f"gpu-{i}"} for i in (4, 5, 6, 7)]
    claim["status"] = {"allocation": {"devices": {"results": results}}}
    if reserved:
        claim["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "uid-p"}]
    spec = {"resourceClaims": [{"name": "c", "resourceClaimName": "new"}]}
    notes = {PINNED: "n1", PLAN: "4,5,6,7"}
    released = workload("p", 0, phase="Pending", spec=spec, annotations=notes, nominated="n1")
    copy = snapshot([*cluster()[:-1], claim, {"kind": "Pod", **released}], None)
    copy.place(copy.cluster.pods["uid-p"], "n1", 0b11110000)
    tables, row = copy.cluster.tables, copy.cluster.row("n1")
    assert tables.nodes.alloc_of(row)[3] - tables.nodes.used_of(row)[3] == 2
    assert {one.uid: one.gpus for one in copy.cluster.gpus.ledgers["n1"].holdings} == {
        "uid-old": (0, 1), "uid-p": (4, 5, 6, 7),
    }  # fmt: skip
