"""Pods that get GPUs by DRA, asked about over a cluster from a file."""

from __future__ import annotations

import json

import pytest

from extender.ask import frozen, offline
from extender.ask.whatif.question import Added, Changes
from extender.errors import BadInput
from extender.objects.queueing import GATE
from extender.objects.resources import OF_CLASS
from extender.settings import Settings
from extender.sim import claims as dra
from extender.sim.machines import gpu_uuids, topology_annotation
from extender.sim.machines import machine as catalogued
from tests.ask.asking import raw
from tests.ask.whatif.asking import ask
from tests.world import GPU, JSON, WALL, machine, workload

MACHINE = catalogued("dgx1-v100")


def node(name: str, *taken: int) -> list[JSON]:
    note = topology_annotation(MACHINE, gpu_uuids(name, MACHINE))
    made = [{"kind": "Node"} | machine(name, 0, annotations={"gpu-extender.io/topology": note})]
    made += dra.resource_slices(name, MACHINE)
    results = [{"driver": dra.DRIVER, "pool": name, "device": f"gpu-{gpu}"} for gpu in taken]
    held = dra.claim(f"held-{name}", "default", len(taken))
    reserved = [{"resource": "pods", "name": f"p-{name}", "uid": f"uid-p-{name}"}]
    held["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
    claims = [{"name": "g", "resourceClaimName": f"held-{name}"}]
    pod = workload(f"p-{name}", 0, node=name, phase="Running", spec={"resourceClaims": claims})
    return [*made, held, {"kind": "Pod"} | pod] if taken else made


def claimant(name: str, key: str, claim: str) -> JSON:
    spec = {"resourceClaims": [{"name": "g", key: claim}]}
    return {"kind": "Pod", "apiVersion": "v1"} | workload(name, 0, spec=spec)


@pytest.mark.parametrize("template", [False, True])
@pytest.mark.parametrize(("gpus", "verdict"), [(2, "fits"), (3, "cannot")])
def test_what_a_claim_asks_for(gpus: int, verdict: str, template: bool) -> None:
    cluster = [dra.device_class(), *node("n1", 0, 1, 2, 3, 4, 5)]
    wanted = dra.claim("wanted", "default", gpus, template=template)
    asking = claimant("q", "resourceClaimTemplateName" if template else "resourceClaimName", "wanted")
    for items, objects in (([*cluster, wanted], [asking]), (cluster, [asking, wanted])):
        answer = ask(items, objects)
        (result,) = answer["results"]
        assert (result["verdict"], result["gpus"]) == (verdict, [6, 7] if verdict == "fits" else None)
        (holding,) = answer["holdings"]
        assert (holding["how"], holding["gpus"]) == ("observed", [0, 1, 2, 3, 4, 5])


def test_a_quota_of_claims_is_said_to_be_unchecked() -> None:
    cluster = [dra.device_class(), *node("n1"), dra.claim("wanted", "default", 2, template=True)]
    name = f"{dra.DRIVER}.deviceclass.resource.k8s.io/devices"
    quota = {"kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {name: "1"}}}
    answer = ask([*cluster, quota], [claimant("q", "resourceClaimTemplateName", "wanted")])
    (message,) = [one["message"] for one in answer["warnings"] if one["code"] == "quota-not-checked"]
    assert f"ResourceQuota default/q limits {name}, which is not checked" in message
    plain = {"kind": "Pod"} | workload("plain", 1)
    assert "quota-not-checked" not in {one["code"] for one in ask([*cluster, quota], [plain])["warnings"]}


def test_a_claim_that_cannot_be_read() -> None:
    broken = dra.claim("wanted", "default", 1) | {"spec": 7}
    asking = claimant("q", "resourceClaimName", "wanted")
    answer = ask([dra.device_class(), *node("n1")], [asking, broken])
    warned = {entry["code"]: entry["message"] for entry in answer["warnings"]}
    assert answer["results"][0]["verdict"] == "cannot"
    assert warned["object-left-out"].startswith("ResourceClaim default/wanted is left out: ")
    assert "ResourceClaim default/wanted does not exist" in warned["claim-absent"]


@pytest.mark.parametrize("resource", [GPU, f"{OF_CLASS}{dra.DRIVER}"])
def test_pods_whose_gpus_a_class_serves_get_different_ones(resource: str) -> None:
    serving = dra.device_class(extended_resource=GPU)
    pods: list[JSON] = [{"kind": "Pod", "apiVersion": "v1"} | workload(f"q{at}", 0) for at in range(4)]
    for pod in pods:
        pod["spec"]["containers"][0]["resources"] = {"limits": {resource: "2"}}
    results = ask([serving, *node("n1", 0, 3)], pods)["results"]
    assert [(one["verdict"], one["gpus"]) for one in results] == [
        ("fits", [1, 2]), ("fits", [4, 5]), ("fits", [6, 7]), ("cannot", None)
    ]  # fmt: skip


def test_a_pod_asks_for_a_class_and_for_what_another_serves() -> None:
    pod: JSON = {"kind": "Pod", "apiVersion": "v1"} | workload("q", 2)
    limits = pod["spec"]["containers"][0]["resources"]
    limits["limits"] = {GPU: "2", f"{OF_CLASS}{dra.DRIVER}": "1"}
    limits["requests"] = {}
    answer = ask([dra.device_class(extended_resource=GPU), *node("n1")], [pod, pod | {"metadata": {"name": "r"}}])
    assert [one["gpus"] for one in answer["results"]] == [[0, 1, 2], [3, 4, 5]]


def test_devices_that_are_not_counted_are_not_checked() -> None:
    """Parts of GPUs serve the resource: how many are left is not known."""
    items = [dra.device_class("mig", kind="mig", extended_resource=GPU), *node("n1")]
    answer = ask(items, [{"kind": "Pod", "apiVersion": "v1"} | workload("q", 1)])
    [text] = [one["message"] for one in answer["warnings"] if one["code"] == "not-all-checked"]
    assert f"devices of the DeviceClass that serves {GPU} (default/q)" in text


@pytest.mark.parametrize(("served", "verdict"), [(False, "cannot"), (True, "fits")])
def test_gpus_for_claims_alone_are_none_for_a_pod_without(served: bool, verdict: str) -> None:
    """Unless a DeviceClass serves the resource."""
    serving = dra.device_class(extended_resource=GPU) if served else dra.device_class()
    pod = {"kind": "Pod", "apiVersion": "v1"} | workload("q", 2)
    (result,) = ask([serving, *node("n1")], [pod])["results"]
    assert result["verdict"] == verdict
    assert result["reasons"] == ({} if served else {"gpus-by-claims-alone": 1})
    assert served or not [way for way in result["ways_out"] if way["kind"] in ("smaller", "add-nodes")]


def test_a_way_out_that_adds_nodes_is_what_adding_them_gives() -> None:
    """The added node has the devices that are published for the one that it is like."""
    cluster = [dra.device_class(), *node("n1", 0, 1, 2, 3), dra.claim("wanted", "default", 8)]
    asking = claimant("q", "resourceClaimName", "wanted")
    (result,) = ask(cluster, [asking])["results"]
    [spec] = [one["spec"] for one in result["ways_out"] if one["kind"] == "add-nodes"]
    assert spec == {"count": 1, "like": "n1"}
    (added,) = ask(cluster, [asking], changes=Changes(add=(Added(spec["count"], spec["like"]),)))["results"]
    assert (added["verdict"], added["node"], added["gpus"]) == ("fits", "n1-copy-1", list(range(8)))


def test_a_gang_with_claims_is_told_how_many_nodes_it_lacks() -> None:
    cluster = [dra.device_class(), *node("n1", 0, 1, 2, 3), dra.claim("eight", "default", 8, template=True)]
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "3"}
    pods = [claimant(f"q{i}", "resourceClaimTemplateName", "eight") for i in range(3)]
    for one in pods:
        one["metadata"]["annotations"] = notes
    [group] = ask(cluster, pods)["groups"]
    [spec] = [one["spec"] for one in group["ways_out"] if one["kind"] == "add-nodes"]
    assert spec == {"count": 3, "like": "n1"}
    answer = ask(cluster, pods, changes=Changes(add=(Added(3, "n1"),)))
    assert {one["node"] for one in answer["results"]} == {"n1-copy-1", "n1-copy-2", "n1-copy-3"}


def test_a_claim_gets_no_gpu_of_a_device_plugin() -> None:
    plugin = {"kind": "Node"} | machine("n2", 8)
    wanted = dra.claim("wanted", "default", 2)
    (result,) = ask([dra.device_class(), plugin, wanted], [claimant("q", "resourceClaimName", "wanted")])["results"]
    assert (result["verdict"], result["reasons"]) == ("cannot", {"no-gpus-by-claims": 1})
    assert set(result["remedies"]) == {"no-gpus-by-claims"}


def in_beta(one: JSON, version: str) -> JSON:
    """The object as `resource.k8s.io/v1beta1` or `v1beta2` has it."""
    made: JSON = json.loads(json.dumps(one)) | {"apiVersion": f"resource.k8s.io/{version}"}
    if version == "v1beta1" and "spec" in made:
        spec = made["spec"].get("spec", made["spec"])
        for device in spec.get("devices", ()) if made["kind"] == "ResourceSlice" else ():
            device["basic"] = {key: device.pop(key) for key in list(device) if key != "name"}
        for request in spec["devices"]["requests"] if "Claim" in made["kind"] else ():
            request |= request.pop("exactly", {})
    return made


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
@pytest.mark.parametrize(("gpus", "verdict"), [(2, "fits"), (3, "cannot")])
def test_objects_of_earlier_versions_count_as_those_of_v1(version: str, gpus: int, verdict: str) -> None:
    cluster = [dra.device_class(), *node("n1", 0, 1, 2, 3, 4, 5), dra.claim("wanted", "default", gpus, template=True)]
    kinds = ("DeviceClass", "ResourceSlice", "ResourceClaim", "ResourceClaimTemplate")
    items = [in_beta(one, version) if one["kind"] in kinds else one for one in cluster]
    (result,) = ask(items, [claimant("q", "resourceClaimTemplateName", "wanted")])["results"]
    assert (result["verdict"], result["gpus"]) == (verdict, [6, 7] if verdict == "fits" else None)


def requesting(name: str, request: JSON) -> JSON:
    made = dra.claim(name, "default", 1)
    made["spec"]["devices"]["requests"] = [{"name": "r"} | request]
    return made


def test_a_claim_for_all_devices_takes_a_node_of_which_none_is_taken() -> None:
    wanted = requesting("all", {"exactly": {"deviceClassName": dra.DRIVER, "allocationMode": "All"}})
    asking = claimant("q", "resourceClaimName", "all")
    (result,) = ask([dra.device_class(), *node("n1", 0, 1, 2, 3), wanted], [asking])["results"]
    assert result["verdict"] == "cannot"
    (result,) = ask([dra.device_class(), *node("n1", 0), *node("n2"), wanted], [asking])["results"]
    assert (result["verdict"], result["node"], result["gpus"]) == ("fits", "n2", list(range(8)))


@pytest.mark.parametrize(("free", "gpus"), [(5, 4), (3, 2), (1, None)])
def test_of_several_numbers_the_first_that_fits_is_taken(free: int, gpus: int | None) -> None:
    numbers = [{"name": f"n{one}", "deviceClassName": dra.DRIVER, "count": one} for one in (4, 2)]
    cluster = [dra.device_class(), *node("n1", *range(8 - free)), requesting("some", {"firstAvailable": numbers})]
    (result,) = ask(cluster, [claimant("q", "resourceClaimName", "some")])["results"]
    assert result["verdict"] == ("cannot" if gpus is None else "fits")
    assert gpus is None or len(result["gpus"]) == gpus


@pytest.mark.parametrize("gang", [False, True])
def test_pods_that_share_a_claim_are_on_one_node_and_count_it_once(gang: bool) -> None:
    cluster = [dra.device_class(), *node("n1"), *node("n2"), dra.claim("shared", "default", 8)]
    pods = [claimant(name, "resourceClaimName", "shared") for name in "ab"]
    for one in pods if gang else ():
        one["metadata"]["annotations"] = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2"}
    eight = {"kind": "Pod", "apiVersion": "v1"} | claimant("c", "resourceClaimTemplateName", "eight")
    more = dra.claim("eight", "default", 8, template=True)
    results = ask([*cluster, more], [*pods, eight])["results"]
    assert [(one["verdict"], one["node"]) for one in results] == [("fits", "n1"), ("fits", "n1"), ("fits", "n2")]


def test_a_pod_whose_claim_another_pod_holds_goes_to_its_node() -> None:
    cluster = [dra.device_class(), *node("n1"), *node("n2", 0, 1)]
    (result,) = ask(cluster, [claimant("q", "resourceClaimName", "held-n2")])["results"]
    assert (result["verdict"], result["node"]) == ("fits", "n2")


def parts(count: int) -> JSON:
    """A template for so many MIG devices."""
    exactly = {"deviceClassName": "mig", "count": count}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    return {
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "parts", "namespace": "default"},
        "spec": {"spec": spec},
    }


def test_a_pod_without_whole_gpus_that_fits_nowhere_evicts_none() -> None:
    """Nor is another node with as few devices a way out."""
    divided = [{"kind": "Node"} | machine("n1", 0), *dra.resource_slices("n1", MACHINE, divisible=True)]
    classes, asking = (
        [dra.device_class(), dra.device_class("mig", kind="mig")],
        claimant("q", "resourceClaimTemplateName", "parts"),
    )
    (result,) = ask([*classes, *divided, parts(9)], [asking])["results"]
    assert (result["verdict"], result["reasons"], result["victims"]) == ("cannot", {"claim-unmet": 1}, [])
    assert result["ways_out"] == []
    holder = claimant("p", "resourceClaimTemplateName", "parts")
    _, result = ask([*classes, *divided, parts(8)], [holder, asking])["results"]
    assert [way["spec"] for way in result["ways_out"]] == [{"count": 1, "like": "n1"}]


def test_a_node_without_slices_has_no_gpus_for_a_resource_of_which_the_devices_are_counted() -> None:
    served = dra.device_class(extended_resource=GPU)
    empty, asking = {"kind": "Node"} | machine("cpu", 0), {"kind": "Pod"} | workload("q", 1)
    full = node("n1", *range(8))
    (result,) = ask([served, *full, empty], [asking])["results"]
    assert (result["verdict"], result["reasons"].get("no-gpu-resource")) == ("cannot", 1)
    (unread,) = ask([served, empty], [asking])["results"]
    assert unread["verdict"] == "fits"
    spread = dra.resource_slices("any", MACHINE)
    for resource_slice in spread:
        resource_slice["spec"] = {k: v for k, v in resource_slice["spec"].items() if k != "nodeName"} | {
            "allNodes": True
        }
    (result,) = ask([served, *full, empty, *spread], [asking])["results"]
    assert result["verdict"] == "fits"


def test_a_claim_or_class_that_does_not_exist_is_named() -> None:
    asking = claimant("q", "resourceClaimName", "gone")
    asking["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
    asking["spec"]["resourceClaims"].append({"name": "h", "resourceClaimTemplateName": "parts"})
    cluster = [dra.device_class(), {"kind": "Node"} | machine("plugin", 8), parts(1)]
    for items, name in (
        (cluster, "ResourceClaim default/gone"),
        ([*cluster, dra.claim("gone", "default", 1)], "DeviceClass mig"),
    ):
        messages = [entry["message"] for entry in ask(items, [asking])["warnings"] if entry["code"] == "claim-absent"]
        assert [f"{name} does not exist" in message for message in messages] == [True]


def divided(name: str) -> list[JSON]:
    """A node of eight GPUs, each of which may be divided; the UUIDs end in their numbers."""
    slices = dra.resource_slices(name, MACHINE, divisible=True)
    for device in slices[1]["spec"]["devices"][:8]:
        device["attributes"]["uuid"] = {"string": f"GPU-{name}-{device['name'].removeprefix('gpu-')}"}
    return [{"kind": "Node"} | machine(name, 0), *slices]


def whole(gpus: int) -> JSON:
    return dra.claim("whole", "default", gpus, template=True)


def chosen(gpus: int) -> JSON:
    made = dra.claim("chosen", "default", gpus, template=True)
    text = f"device.attributes['{dra.DRIVER}'].uuid.matches('-[0-3]$')"
    made["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": text}}]
    return made


QUEUE = Settings.model_validate({"queue": {"enabled": True}})


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("templates", "pods", "least", "fitting"),
    [
        ([whole(8), parts(1)], ["whole"] * 4 + ["parts"], 5, 4),
        ([whole(7), parts(1)], ["whole"] * 4 + ["parts"], 4, 0),
        ([chosen(2)], ["chosen"] * 9, 5, 8),
        ([parts(7)], ["parts"] * 9, 9, 8),
        ([whole(2), chosen(2)], ["whole", "chosen", "chosen"], 2, 2),
    ],
)
def test_a_gang_goes_where_the_devices_meet_all_its_claims_together(
    templates: list[JSON], pods: list[str], least: int, fitting: int, gated: bool
) -> None:
    """Behind the gate of the queue and without it. `least`: nodes that it needs; `fitting`: pods that fit on one less,
    0 where GPUs by number tell that."""
    asking = [claimant(f"q{at}", "resourceClaimTemplateName", name) for at, name in enumerate(pods)]
    for pod in asking:
        pod["metadata"]["annotations"] = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": str(len(pods))}
        if gated:
            pod["spec"]["schedulingGates"] = [{"name": GATE}]
    classes = [dra.device_class(), dra.device_class("mig", kind="mig")]
    for nodes in (least, least - 1):
        items = [*classes, *templates, *(one for at in range(nodes) for one in divided(f"n{at}"))]
        answer = ask(items, asking, settings=QUEUE if gated else None)
        [group] = answer["groups"]
        claims = [warning for warning in answer["warnings"] if warning["code"].startswith("claim")]
        if nodes == least:
            assert (group["verdict"], claims) == ("fits", [])
        elif "whole" in pods and "chosen" in pods:
            # Any two GPUs first, and those that the selector names are gone: that order is not ours to choose.
            assert (group["verdict"], [warning["code"] for warning in claims]) == ("fits", ["claim-unknown"])
            text = "request gpus of claim chosen is met on n0 depends on the order in which kube-scheduler takes"
            assert text in claims[0]["message"]
        elif not fitting:
            assert (group["verdict"], claims) == ("cannot", [])
        else:
            assert (group["verdict"], [warning["code"] for warning in claims]) == ("cannot", ["claim-unmet"])
            assert " beside the claims of its other pods there: no device is left that matches" in claims[0]["message"]
            assert f"{fitting} of {len(pods)} pods fit now" in group["text"]


def test_a_pod_with_devices_of_another_driver_is_not_ours_and_lacks_no_claim() -> None:
    """The claim of a template is created with the pod."""
    other = dra.device_class("other") | {
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'o.example'"}}]}
    }
    wanted = dra.claim("others", "default", 1, device_class="other", template=True)
    with pytest.raises(BadInput, match=r"it is not ours: it asks for devices of DeviceClass other"):
        ask([dra.device_class(), other, *node("n1"), wanted], [claimant("q", "resourceClaimTemplateName", "others")])


def test_no_further_node_helps_a_claim_that_its_devices_do_not_meet() -> None:
    """To the verdict on a pod as to a what-if."""
    unmet = dra.claim("wanted", "default", 2)
    unmet["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": "false"}}]
    items = [dra.device_class(), *node("n1"), unmet, claimant("q", "resourceClaimName", "wanted")]
    (result,) = ask(items, pods=[("default", "q")])["results"]
    settings = Settings()
    events = frozen.parse(raw(items), frozenset(one.name for one in settings.resources))
    explained = offline.explain(settings, events, ("default", "q"), WALL)
    assert explained["ways_out"] == result["ways_out"] == []
