from __future__ import annotations

import copy
import itertools
import random
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from ext_core import gather
from ext_core.ask import Ask
from extender.cluster import dump
from extender.cluster.dra.claims import ResourceClaims
from extender.objects.cel.library import LONGEST_PATTERN
from extender.objects.devices import FENCE, FINALIZER
from extender.objects.records import Kind
from extender.preemption.gang_plan import HIGHEST
from extender.settings import Settings
from extender.sim import claims as dra
from extender.sim.machines import gpu_uuids, machine
from tests.cases import cases
from tests.cluster.dra.world import MACHINE, DraWorld
from tests.world import GPU, JSON, refused, workload

DEVICES = tuple(range(8))


def world() -> DraWorld:
    made = DraWorld()
    made.dra_class()
    made.dra_node("n1")
    return made


def test_a_node_offers_what_its_driver_publishes() -> None:
    made = world()
    node = made.cluster.nodes["n1"]
    assert (node.gpus, node.gpu_capacity) == ({GPU: 8}, {GPU: 8})
    assert made.cluster.gpus.topologies["n1"].source == "annotation"
    for one in dra.resource_slices("n1", MACHINE):
        made.drop("ResourceSlice", one)
    assert (made.cluster.nodes["n1"].gpus, made.cluster.nodes["n1"].devices) == ({}, None)


def test_an_allocation_is_an_observation() -> None:
    made = world()
    made.claim("c", 2, node="n1", devices=[0, 3], pods=["p"])
    made.claimant("p", "c", node="n1")
    assert made.held("n1") == {"p": ("observed", (0, 3))}
    assert made.cluster.pods["uid-p"].gpus == ((GPU, 2),)
    assert made.free("n1") == 6


def test_the_device_is_found_by_its_uuid_whatever_the_order_of_the_slice() -> None:
    made = DraWorld()
    made.dra_class()
    made.dra_node("n1", order=[5, 1, 0, 7, 6, 2, 4, 3])
    made.claim("c", 1, node="n1", devices=[5], pods=["p"])
    made.claimant("p", "c", node="n1")
    assert made.held("n1") == {"p": ("observed", (5,))}


def test_without_uuids_in_the_graph_the_pci_address_decides() -> None:
    made = DraWorld()
    made.dra_class()
    made.dra_node("n1", annotated=False, order=[5, 1, 0, 7, 6, 2, 4, 3])
    made.claim("c", 1, node="n1", devices=[5], pods=["p"])
    made.claimant("p", "c", node="n1")
    assert made.held("n1") == {"p": ("observed", (5,))}


def test_an_index_that_is_published_counts_before_the_pci_address() -> None:
    made = DraWorld()
    made.node("n1", 0)
    (one,) = dra.resource_slices("n1", MACHINE)
    for device in one["spec"]["devices"]:
        device["attributes"]["index"] = {"int": 7 - int(device["name"][-1])}
    made.set("ResourceSlice", one)
    made.claim("c", 1, node="n1", devices=[5], pods=["p"])
    made.claimant("p", "c", node="n1")
    assert made.held("n1") == {"p": ("observed", (2,))}


def test_what_cannot_be_mapped_is_held_at_an_unknown_place() -> None:
    made = DraWorld()
    made.node("n1", 0)
    (one,) = dra.resource_slices("n1", MACHINE)
    for device in one["spec"]["devices"]:
        del device["attributes"]["resource.kubernetes.io/pciBusID"]
    made.set("ResourceSlice", one)
    made.claim("c", 2, node="n1", devices=[5, 6], pods=["p"])
    made.claimant("p", "c", node="n1")
    assert made.held("n1") == {"p": ("unknown", None)}
    assert made.free("n1") == 6


@pytest.mark.parametrize("order", list(itertools.permutations(range(5))), ids=str)
def test_the_order_of_the_events_does_not_matter(order: tuple[int, ...]) -> None:
    made, usual = DraWorld(), world()
    acts: list[Callable[[DraWorld], Any]] = [
        lambda it: it.dra_class(),
        lambda it: it.dra_node("n1"),
        lambda it: it.claim("c", 2, node="n1", devices=[0, 3], pods=["p"]),
        lambda it: it.claimant("p", "c", node="n1"),
        lambda it: it.claimant("q", "d"),
    ]
    usual.claim("d", 3)
    made.claim("d", 3)
    for act in acts:
        act(usual)
    for at in order:
        acts[at](made)
    assert made.held("n1") == usual.held("n1") == {"p": ("observed", (0, 3))}
    assert dict(made.cluster.nodes) == dict(usual.cluster.nodes)
    assert dict(made.cluster.pods) == dict(usual.cluster.pods)
    assert made.cluster.pods["uid-q"].gpus == ((GPU, 3),)


def test_what_is_allocated_to_no_pod_of_the_node_is_not_free() -> None:
    made = world()
    made.claim("planned", 2, node="n1", devices=[0, 3])
    assert made.free("n1") == 6
    assert [one.state for one in made.cluster.nodes["n1"].devices.gpus].count("allocated") == 2  # type: ignore[union-attr]
    made.claim("planned", 2)
    assert made.free("n1") == 8


def test_a_device_is_held_until_its_claim_is_deallocated() -> None:
    made = world()
    made.claim("c", 2, node="n1", devices=[0, 3], pods=["p"])
    made.claimant("p", "c", node="n1")
    made.gone("p")
    assert made.free("n1") == 6
    made.claim("c", 2)
    assert made.free("n1") == 8


def test_a_pod_without_a_node_asks_for_what_is_not_allocated() -> None:
    made = world()
    made.claim("c", 2)
    made.claimant("p", "c")
    assert made.cluster.pods["uid-p"].gpus == ((GPU, 2),)
    made.claim("c", 2, node="n1", devices=[0, 3], pods=["p"])
    pod = made.cluster.pods["uid-p"]
    assert (pod.gpus, pod.allocated) == ((), True)
    assert made.free("n1") == 6


def test_a_pod_without_claims_costs_no_look_at_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    made = world()
    made.claim("c", 2)
    made.pod("waits", 2)
    made.pod("runs", 2, "n1")
    made.claimant("claims", "c")

    def look(*arguments: object) -> None:
        raise AssertionError("claims are looked at")

    for method in ("named_by", "reserved"):
        monkeypatch.setattr(ResourceClaims, method, look)
    for uid in ("uid-waits", "uid-runs"):
        pod = made.cluster.pods[uid]
        assert made.cluster.dra.read(pod) is pod
    with pytest.raises(AssertionError, match="looked at"):
        made.cluster.dra.read(made.cluster.pods["uid-claims"])


def test_equal_claims_ask_for_what_classes_and_nodes_have_now() -> None:
    made = world()
    for name in ("first", "second"):
        claim = dra.claim(name, "default", 1)
        exactly = claim["spec"]["devices"]["requests"][0]["exactly"]
        exactly["allocationMode"] = "All"
        exactly.pop("count", None)
        made.set("ResourceClaim", claim)
        made.claimant(f"p-{name}", name)

    def asked() -> set[tuple[tuple[str, int], ...]]:
        made.claimant("p-second", "second", labels={"changed": str(made.cluster.generation)})
        return {made.cluster.pods[f"uid-p-{name}"].gpus for name in ("first", "second")}

    assert asked() == {((GPU, 8),)}
    made.node("n2", 0)
    for one in dra.resource_slices("n2", machine("dgx1-v100", 4)):
        made.set("ResourceSlice", one)
    assert asked() == {((GPU, 4),)}
    made.dra_class(kind="mig")
    assert asked() == {()}
    made.dra_class()
    assert asked() == {((GPU, 4),)}


def test_a_pod_that_is_assumed_counts_once_while_its_claim_is_allocated_already() -> None:
    made = world()
    made.claim("c", 4)
    first = made.claimant("p", "c")
    made.filter(first)
    made.claim("c", 4, node="n1", devices=[0, 1, 2, 3], pods=["p"])
    made.claim("d", 4)
    assert made.filter(made.claimant("q", "d"))["NodeNames"] == ["n1"]
    made.claim("e", 5)
    assert made.filter(made.claimant("r", "e"))["NodeNames"] == []


def test_a_template_counts_until_its_claim_is_created() -> None:
    made = world()
    made.set("ResourceClaimTemplate", dra.claim("t", "default", 3, template=True))
    spec = {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]}
    pod = workload("p", 0, spec=spec)
    made.set("Pod", pod)
    assert made.cluster.pods["uid-p"].gpus == ((GPU, 3),)
    pod["status"]["resourceClaimStatuses"] = [{"name": "g", "resourceClaimName": "p-g-x"}]
    made.claim("p-g-x", 3, node="n1", devices=[1, 2, 4], pods=["p"])
    made.set("Pod", copy.deepcopy(pod) | {"spec": pod["spec"] | {"nodeName": "n1"}})
    assert made.held("n1") == {"p": ("observed", (1, 2, 4))}


def test_an_extended_resource_is_counted_once() -> None:
    made = world()
    made.dra_class(name="served", extended_resource=GPU)
    pod = made.pod("p", 2)
    assert made.filter(pod)["NodeNames"] == ["n1"]
    made.claim("p-extended-resources-x", 2, node="n1", devices=[4, 5], pods=["p"])
    pod["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "p-extended-resources-x"}
    counts = []
    for node in ("", "n1"):
        pod["spec"]["nodeName"] = node
        made.set("Pod", pod)
        counts.append(made.cluster.pods["uid-p"].gpus)
    assert counts == [(), ((GPU, 2),)]
    assert made.held("n1") == {"p": ("observed", (4, 5))}
    assert made.free("n1") == 6


def test_a_pod_that_asks_by_another_name_holds_what_is_allocated() -> None:
    made = world()
    pod = made.pod("p", 2, node="n1", resource="deviceclass.resource.kubernetes.io/gpu.nvidia.com")
    pod["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "p-extended-resources-x"}
    made.set("Pod", pod)
    made.claim("p-extended-resources-x", 2, node="n1", devices=[4, 5], pods=["p"])
    assert made.held("n1") == {"p": ("observed", (4, 5))}
    assert made.free("n1") == 6


def test_a_class_that_may_serve_something_else_is_not_counted() -> None:
    made = world()
    made.claim("c", 2, node="n1", devices=[0, 3], pods=["p"])
    made.claimant("p", "c", node="n1")
    made.dra_class(name="parts", kind="mig", extended_resource=GPU)
    assert (made.cluster.nodes["n1"].gpus, made.cluster.pods["uid-p"].gpus) == ({}, ())
    made.drop("DeviceClass", dra.device_class("parts"))
    assert made.held("n1") == {"p": ("observed", (0, 3))}


def test_devices_that_cannot_be_allocated_are_not_free() -> None:
    made = DraWorld()
    made.dra_class()
    made.dra_node("n1", taints={2: "gpu.nvidia.com/xid"})
    assert made.free("n1") == 7
    made.claim("c", 1, node="n1", devices=[2], pods=["p"])
    made.claimant("p", "c", node="n1")  # it tolerates the taint
    assert made.free("n1") == 7
    assert refused(made.filter(workload("q", 8))) == {"n1": refused(made.filter(workload("r", 8)))["n1"]}


def test_a_gpu_of_which_a_part_is_allocated_is_not_free() -> None:
    made = DraWorld()
    made.dra_class()
    made.dra_node("n1", divisible=True)
    assert made.free("n1") == 8
    made.claim("c", 1, node="n1", devices=["gpu-3-mig-1g10gb-19-0"], pods=["p"])
    made.claimant("p", "c", node="n1")
    assert made.free("n1") == 7
    assert made.cluster.pods["uid-p"].gpus == ()
    devices = made.cluster.nodes["n1"].devices
    assert devices is not None
    assert [one.id for one in devices.gpus if one.state == "divided"] == ["gpu.nvidia.com/n1/gpu-3"]
    assert devices.others == 8


def test_a_device_for_several_claims_is_no_whole_gpu() -> None:
    made = DraWorld()
    made.node("n1", 0)
    (one,) = dra.resource_slices("n1", MACHINE)
    for device in one["spec"]["devices"][:3]:
        device["allowMultipleAllocations"] = True
    made.set("ResourceSlice", one)
    devices = made.cluster.nodes["n1"].devices
    assert devices is not None
    assert (len(devices.gpus), devices.others, made.cluster.nodes["n1"].gpus) == (5, 3, {GPU: 5})


def test_admin_access_takes_nothing() -> None:
    made = world()
    made.claim("c", 2, node="n1", devices=[0, 3], pods=["p"], admin=True)
    made.claimant("p", "c", node="n1")
    assert (made.free("n1"), made.cluster.pods["uid-p"].gpus) == (8, ())


def test_a_shared_claim_counts_once_and_stays_with_the_pods_that_are_left() -> None:
    made = world()
    made.claim("c", 2, node="n1", devices=[0, 3], pods=["p", "q"])
    made.claimant("p", "c", node="n1")
    made.claimant("q", "c", node="n1")
    assert made.held("n1") == {"p": ("observed", (0, 3))}
    assert made.free("n1") == 6
    made.gone("p")
    assert made.held("n1") == {"q": ("observed", (0, 3))}
    assert made.free("n1") == 6


def test_only_a_complete_pool_of_the_highest_generation_counts() -> None:
    made = DraWorld()
    made.dra_node("n1", divisible=True)
    newer = dra.resource_slices("n1", MACHINE, divisible=True, generation=2)
    made.set("ResourceSlice", newer[1])
    assert made.cluster.nodes["n1"].gpus == {}
    made.set("ResourceSlice", newer[0])
    assert made.cluster.nodes["n1"].gpus == {GPU: 8}


@pytest.mark.parametrize(
    ("plugin", "labels", "together"),
    [(8, {}, 8), (4, {}, 12), (4, {"nvidia.com/gpu.count": "8"}, 8), (4, {"nvidia.com/gpu.count": "x"}, 12)],
)
def test_plugin_and_driver_together_count_each_gpu_once(plugin: int, labels: dict[str, str], together: int) -> None:
    made = DraWorld()
    made.node("n1", plugin, labels=labels)
    made.publish("n1")
    assert made.cluster.nodes["n1"].gpus == {GPU: together}
    for one in dra.resource_slices("n1", MACHINE):
        made.drop("ResourceSlice", one)
    assert made.cluster.nodes["n1"].gpus == {GPU: plugin}


def test_labels_of_a_device_plugin_do_not_divide_the_gpus_of_a_driver() -> None:
    made = DraWorld()
    made.dra_class()
    made.node("n1", 0, labels={"nvidia.com/gpu.product": "Tesla-V100-SHARED", "nvidia.com/gpu.replicas": "4"})
    made.publish("n1")
    made.claim("c", 2, node="n1", devices=[0, 3], pods=["p"])
    made.claimant("p", "c", node="n1")
    assert made.held("n1") == {"p": ("observed", (0, 3))}


PLANS = Settings.model_validate({"queue": {"enabled": True, "plannedAllocation": True}})


def test_pods_that_hold_claims_are_no_victims_where_the_queue_allocates_none() -> None:
    """kube-scheduler frees no device by preemption."""
    made = world()
    made.claim("c", 8, node="n1", devices=DEVICES, pods=["p"])
    made.claimant("p", "c", node="n1")
    answer = made.filter(workload("q", 2, priority=100))
    assert "may not evict" in refused(answer)["n1"]
    assert made.preempt(workload("q", 2, priority=100), {"n1": []}) == {}


def test_nor_are_pods_by_an_extended_resource_whose_claim_is_seen_later() -> None:
    made = world()
    made.dra_class(name="served", extended_resource=GPU)
    pod = made.pod("p", 8, node="n1")
    assert "may not evict" not in refused(made.filter(workload("q", 2, priority=100)))["n1"]
    pod["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "x"}
    made.set("Pod", pod)
    made.claim("x", 8, node="n1", devices=DEVICES, pods=["p"])
    assert "may not evict" in refused(made.filter(workload("q", 2, priority=100)))["n1"]


@pytest.mark.parametrize(("rule", "usable"), [
    ({"pool": "n1", "device": "gpu-3"}, 7),
    ({"driver": dra.DRIVER}, 0),
    ({"driver": dra.DRIVER, "pool": "n1"}, 0),
    ({"driver": "other"}, 8),
    ({"pool": "n2"}, 8),
    ({}, 8),
    ({"driver": dra.DRIVER, "effect": "None"}, 8),
    ({"driver": dra.DRIVER, "effect": "NoExecute"}, 0),
])  # fmt: skip
def test_a_rule_taints_the_devices_that_it_selects(rule: dict[str, str], usable: int) -> None:
    made = world()
    one = made.taint_rule(**rule)
    assert made.free("n1") == usable
    made.drop("DeviceTaintRule", one)
    assert made.free("n1") == 8


@pytest.mark.parametrize(("plans", "usable"), [(False, 0), (True, 8)])
def test_the_fence_keeps_devices_from_all_but_the_queue(plans: bool, usable: int) -> None:
    made = DraWorld(PLANS if plans else None)
    made.dra_class()
    made.taint_rule("fence", FENCE, driver=dra.DRIVER)
    made.dra_node("n1")
    assert made.free("n1") == usable


def full(**claim: Any) -> DraWorld:
    """A node all of whose GPUs the pod p holds. `claim`: of its claim."""
    made = DraWorld(PLANS)
    made.dra_class()
    made.dra_node("n1")
    made.claim("c", 8, **{"node": "n1", "devices": DEVICES, "pods": ["p"], **claim})
    made.claimant("p", "c", node="n1")
    return made


def is_victim(made: DraWorld) -> bool:
    """Whether the pod p is a possible victim of a gang in the queue: by its record, and by the tables."""
    cluster, rows = made.cluster, array("i", [made.cluster.row("n1")])
    ask = Ask((0, 0, 1, 2, *[0] * (len(cluster.resources) - 4)), priority=HIGHEST)
    found = bool(gather.victims(cluster.tables.nodes, cluster.tables.pods, ask, rows).pods)
    assert cluster.pods["uid-p"].keeps_devices != found
    return found


def test_a_pod_whose_devices_are_free_after_its_end_is_a_victim_for_the_queue_alone() -> None:
    assert is_victim(full(owner="p"))
    made = full()
    assert is_victim(made)
    assert "may not evict" in refused(made.filter(workload("q", 2, priority=100)))["n1"]
    assert made.preempt(workload("q", 2, priority=100), {"n1": []}) == {}


@pytest.mark.parametrize("why", [
    "it-has-no-finalizer", "reserved-for-another-pod-too", "reserved-for-a-pod-group", "of-another-pod",
])  # fmt: skip
def test_a_claim_that_stays_allocated_makes_its_pod_no_victim(why: str) -> None:
    made = full()
    claim = made.claim("c", 8, node="n1", devices=DEVICES, pods=["p"], owner="q" * (why == "of-another-pod"))
    if why == "it-has-no-finalizer":
        claim["metadata"]["finalizers"] = ["example.com/other"]
    elif why == "reserved-for-another-pod-too":
        claim["status"]["reservedFor"].append({"resource": "pods", "name": "q", "uid": "uid-q"})
    elif why == "reserved-for-a-pod-group":
        claim["status"]["reservedFor"].append({"resource": "podgroups", "apiGroup": "x", "name": "q", "uid": "uid-q"})
    made.set("ResourceClaim", claim)
    assert not is_victim(made)
    made.claim("c", 8, node="n1", devices=DEVICES, pods=["p"])
    assert is_victim(made)


def test_a_claim_that_a_waiting_pod_names_too_makes_its_pod_no_victim() -> None:
    made = full()
    waits = made.claimant("q", "c")
    assert not is_victim(made)
    made.drop("Pod", waits)
    assert is_victim(made)


def test_a_claim_by_name_of_a_pod_whose_owner_makes_another_one_makes_it_no_victim() -> None:
    """The next pod names the same claim, and may be bound before the claim is deallocated."""
    job = [{"kind": "Job", "apiVersion": "batch/v1", "name": "j", "uid": "uid-j", "controller": True}]
    for owner, expected in (("", False), ("p", True)):
        made = full(owner=owner)
        pod = made.claimant("p", "c", node="n1")
        pod["metadata"]["ownerReferences"] = job
        made.set("Pod", pod)
        assert is_victim(made) == expected


def test_a_device_that_is_tainted_or_allocated_twice_makes_its_pod_no_victim() -> None:
    made = full()
    made.publish("n1", taints={3: "broken"})
    assert not is_victim(made)
    made.publish("n1")
    assert is_victim(made)
    for rule in ({"device": "gpu-3"}, {"driver": dra.DRIVER, "pool": "n1", "device": "gpu-3"}):
        one = made.taint_rule(**rule)
        assert not is_victim(made)
        made.drop("DeviceTaintRule", one)
        assert is_victim(made)
    other = made.claim("other", 1, node="n1", devices=[3])
    assert not is_victim(made)
    made.drop("ResourceClaim", other)
    assert is_victim(made)


def test_a_terminating_pod_whose_claim_stays_allocated_releases_nothing() -> None:
    made = full()
    for keeps, said in ((False, "terminating"), (True, "may not evict")):
        made.claim("c", 8, node="n1", devices=DEVICES, pods=["p", "q"] if keeps else ["p"])
        made.claimant("p", "c", node="n1", terminating=made.wall + 30)
        assert said in refused(made.filter(workload("rival", 2, priority=100)))["n1"]


# -- what tenants write ------------------------------------------------------------------------------------------------


def test_a_claim_that_names_devices_in_its_specification_takes_none() -> None:
    made = world()
    hostile = dra.claim("c", "default", 8)
    hostile["spec"]["devices"]["config"] = [{"opaque": {"driver": dra.DRIVER, "parameters": {"device": "gpu-0"}}}]
    hostile["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    made.set("ResourceClaim", hostile)
    made.claimant("p", "c")
    assert made.free("n1") == 8


@pytest.mark.parametrize(
    "status",
    [
        {"allocation": {"devices": {"results": [{"driver": dra.DRIVER, "pool": "n1", "device": "gpu-0"}] * 100_000}}},
        {"allocation": {"devices": {"results": [{"driver": "x", "pool": "y" * 10_000, "device": "z"}]}}},
        {"allocation": {"devices": {"results": None}}, "reservedFor": None},
        {"allocation": {}, "reservedFor": [{"resource": "podgroups", "apiGroup": "x", "uid": "uid-p"}]},
        {"reservedFor": [{"resource": "pods", "name": "p", "uid": "uid-p"}] * 10_000},
        {},
        None,
    ],
)
def test_odd_statuses_harm_nothing(status: Any) -> None:
    made = world()
    made.claimant("p", "c", node="n1")
    made.set("ResourceClaim", dra.claim("c", "default", 1) | {"status": status})
    assert made.free("n1") in (7, 8)
    assert made.cluster.faults == 0
    made.drop("ResourceClaim", dra.claim("c", "default", 1))
    assert made.free("n1") == 8


def test_a_claim_of_another_namespace_gives_a_pod_nothing() -> None:
    made = world()
    foreign = made.claim("c", 2, node="n1", devices=[0, 3], pods=["p"])
    made.drop("ResourceClaim", foreign)
    foreign["metadata"]["namespace"] = "other"
    made.set("ResourceClaim", foreign)
    made.claimant("p", "c", node="n1")
    assert made.cluster.pods["uid-p"].gpus == ()


def test_a_device_that_two_claims_name_is_counted_for_both() -> None:
    made = world()
    for name in ("p", "q"):
        made.claim(f"of-{name}", 1, node="n1", devices=[0], pods=[name])
        made.claimant(name, f"of-{name}", node="n1")
    assert made.held("n1") == {"p": ("observed", (0,)), "q": ("observed", (0,))}
    assert made.cluster.gpus.ledgers["n1"].doubled == 1


def _acts(rng: random.Random, names: int, *, nominated: bool) -> list[tuple[str, Kind, JSON]]:
    made: list[tuple[str, Kind, JSON]] = []
    for _ in range(30):
        name, node = f"p{rng.randrange(names)}", f"n{rng.randrange(2)}"
        what = rng.random()
        if what < 0.35:
            one = dra.claim(f"c{rng.randrange(names)}", "default", rng.choice((1, 2, 4)))
            one["metadata"]["finalizers"] = rng.choice(([], [FINALIZER], [FINALIZER]))
            if rng.random() < 0.7:
                devices = rng.sample(("gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-1-mig-1g10gb-19-0"), 2)
                results = [{"driver": dra.DRIVER, "pool": node, "device": device} for device in devices]
                pods = [f"uid-p{n}" for n in range(names) if rng.random() < (0.1 if nominated else 0.4)]
                reserved = [{"resource": "pods", "uid": uid} for uid in pods]
                one["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
            made.append((rng.choice(("set", "set", "drop")), "ResourceClaim", one))
        elif what < 0.7:
            claims = [{"name": f"x{n}", "resourceClaimName": f"c{rng.randrange(names)}"} for n in range(2)]
            where = rng.choice(("", "", node) if nominated else ("", node, node))
            phase = "Running" if where else "Pending"  # none settles: that depends on when it was seen first
            pod = workload(name, rng.choice((0, 1)), node=where, phase=phase, spec={"resourceClaims": claims})
            if nominated and not where:
                pod["status"]["nominatedNodeName"] = rng.choice(("n0", "n1", ""))
            made.append((rng.choice(("set", "set", "drop")), "Pod", pod))
        elif what < 0.74:
            selector = {"driver": dra.DRIVER, "pool": node, "device": rng.choice(("gpu-0", "gpu-1"))}
            kept = {name: value for name, value in selector.items() if rng.random() < 0.7}
            taint = {"key": rng.choice(("broken", FENCE)), "effect": rng.choice(("NoSchedule", "None"))}
            rule = {"metadata": {"name": f"r{rng.randrange(3)}"}, "spec": {"deviceSelector": kept, "taint": taint}}
            made.append((rng.choice(("set", "drop")), "DeviceTaintRule", rule))
        elif what < 0.85:
            divisible = rng.random() < 0.5
            slices = dra.resource_slices(node, MACHINE, divisible=divisible, generation=rng.randrange(3))
            made += [(rng.choice(("set", "set", "set", "drop")), "ResourceSlice", one) for one in slices]
        else:
            one = dra.device_class(rng.choice(("gpu.nvidia.com", "b")), kind=rng.choice(("gpu", "mig")))
            if rng.random() < 0.3:
                one["spec"]["extendedResourceName"] = GPU
            made.append((rng.choice(("set", "drop")), "DeviceClass", one))
    return made


@pytest.mark.parametrize("plans", [False, True])
@pytest.mark.parametrize("seed", range(cases(16)))
def test_any_order_of_events_ends_as_a_fresh_cluster_begins(seed: int, plans: bool) -> None:
    """`plans`: the queue allocates devices, for pods that are nominated."""
    rng = random.Random(seed)
    settings = Settings.model_validate({"queue": {"enabled": plans, "plannedAllocation": plans}})
    made = DraWorld(settings)
    there: dict[tuple[Kind, str], JSON] = {}
    for name in ("n0", "n1"):
        there["Node", name] = made.node(name, rng.choice((0, 0, 4)))
    for act, kind, one in _acts(rng, 5, nominated=plans):
        key = (kind, one["metadata"]["name"])
        if act == "set":
            there[key] = made.set(kind, one)
        elif key in there:
            made.drop(kind, there.pop(key))
    fresh = DraWorld(settings)
    objects = list(there.items())
    rng.shuffle(objects)
    for (kind, _), one in objects:
        fresh.set(kind, one)
    assert dict(made.cluster.nodes) == dict(fresh.cluster.nodes)
    assert dict(made.cluster.pods) == dict(fresh.cluster.pods)
    for name in ("n0", "n1"):
        assert made.cluster.gpus.ledgers[name] == fresh.cluster.gpus.ledgers[name]
        assert made.free(name) == fresh.free(name)
    states = [dump.state(one.cluster) for one in (made, fresh)]
    assert states[0]["nodes"] == states[1]["nodes"]
    assert states[0]["pods"] == states[1]["pods"]
    for (kind, _), one in there.items():
        if kind not in ("Node", "Pod"):
            made.drop(kind, one)
    assert all(node.devices is None for node in made.cluster.nodes.values())
    assert not made.cluster.dra.claims.records


# -- which devices kube-scheduler takes --------------------------------------------------------------------------------


def passes(made: DraWorld, gpus: int, **exactly: Any) -> bool:
    """Whether the node passes for a pod whose claim asks for linked GPUs."""
    wanted = dra.claim("c", "default", gpus)
    wanted["spec"]["devices"]["requests"][0]["exactly"] |= exactly
    made.set("ResourceClaim", wanted)
    pod = made.claimant("p", "c", links="required")
    return bool(made.filter(pod)["NodeNames"])


def linked(*gpus: int) -> bool:
    return MACHINE.linked(gpus)


@pytest.mark.parametrize("taken", [(), (0,), (1, 2), (0, 1, 2), (0, 3, 4), (2, 3, 5, 6), (1, 3, 4, 5, 6)])
def test_required_links_are_certain_where_the_first_free_gpus_are_linked(taken: tuple[int, ...]) -> None:
    for wanted in (2, 3):
        made = world()
        if taken:
            made.claim("held", len(taken), node="n1", devices=taken, pods=["q"])
            made.claimant("q", "held", node="n1")
        first = [gpu for gpu in DEVICES if gpu not in taken][:wanted]
        assert passes(made, wanted) == linked(*first), (taken, first)


@pytest.mark.parametrize(("order", "gpus"), [((1, 0), 2), ((0, 5), 2), ((1, 2, 0), 3), ((4, 0, 3), 3)])
def test_the_order_of_the_slices_decides_which_gpus_come_first(order: tuple[int, ...], gpus: int) -> None:
    made = DraWorld()
    made.dra_class()
    made.dra_node("n1", order=[*order, *(gpu for gpu in range(8) if gpu not in order)])
    assert passes(made, gpus) == linked(*order)
    assert passes(made, 1)


def test_while_a_pod_is_on_its_way_only_what_holds_for_any_set_is_certain() -> None:
    made = world()
    selectors = [{"cel": {"expression": "true"}}]
    made.claim("other", 1)
    assert made.filter(made.claimant("q", "other"))["NodeNames"] == ["n1"]
    assert not passes(made, 2, selectors=selectors)
    made.claim("other", 1, node="n1", devices=[0], pods=["q"])
    made.claimant("q", "other", node="n1")
    assert passes(made, 2, selectors=selectors) == linked(1, 2)


@pytest.mark.parametrize(
    "exactly",
    [
        {"selectors": [{"cel": {"expression": "true"}}]},
        {"tolerations": [{"operator": "Exists"}]},
        {"capacity": {"requests": {"memory": "1Gi"}}},
    ],
)
def test_a_request_that_is_not_plain_is_predicted_too(exactly: JSON) -> None:
    assert passes(world(), 3, **exactly) == linked(0, 1, 2)
    assert passes(world(), 4, **exactly) == linked(0, 1, 2, 3)


@pytest.mark.parametrize(("first", "second"), [(0, 5), (1, 2), (0, 4), (2, 5)])
def test_required_links_are_those_of_the_gpus_that_selectors_leave(first: int, second: int) -> None:
    uuids = gpu_uuids("n1", MACHINE)
    text = f"device.attributes['{dra.DRIVER}'].uuid in ['{uuids[first]}', '{uuids[second]}']"
    assert passes(world(), 2, selectors=[{"cel": {"expression": text}}]) == linked(first, second)


def test_a_selector_that_is_not_evaluated_makes_no_set_certain() -> None:
    text = f"device.attributes['{dra.DRIVER}'].uuid.matches('^GPU|{'x' * LONGEST_PATTERN}')"
    assert not passes(world(), 2, selectors=[{"cel": {"expression": text}}])


def test_a_claim_with_constraints_is_predicted_too() -> None:
    made = world()
    wanted = dra.claim("c", "default", 2)
    wanted["spec"]["devices"]["constraints"] = [{"matchAttribute": "gpu.nvidia.com/productName"}]
    made.set("ResourceClaim", wanted)
    assert made.filter(made.claimant("p", "c", links="required"))["NodeNames"] == ["n1"]


def test_a_class_that_selects_fewer_gpus_is_counted_and_not_predicted() -> None:
    made = world()
    narrow = dra.device_class(extended_resource=GPU)
    narrow["spec"]["selectors"].append({"cel": {"expression": "device.attributes['x'].y == 1"}})
    made.set("DeviceClass", narrow)
    assert made.free("n1") == 8
    assert not passes(made, 2)
    assert made.filter(made.pod("served", 2, links="required"))["NodeNames"] == []
    made.dra_class(extended_resource=GPU)
    assert made.filter(made.pod("served", 2, links="required"))["NodeNames"] == ["n1"]


def test_whether_pods_get_the_gpus_of_a_node_by_claims_alone() -> None:
    """Until a DeviceClass serves the resource, or a device plugin offers it."""
    made = world()

    def alone(node: str = "n1") -> bool:
        devices = made.cluster.nodes[node].devices
        assert devices is not None
        return devices.for_claims_alone

    assert alone()
    made.dra_class(extended_resource=GPU)
    assert not alone()
    made.dra_class()
    assert alone()
    made.dra_node("n2", plugin=8)
    assert not alone("n2")


def test_a_pool_in_which_two_devices_have_one_name_has_no_device() -> None:
    """As in kube-scheduler: it is invalid. Without the second slice it is valid again."""
    made = world()
    [first] = dra.resource_slices("n1", MACHINE)
    second = copy.deepcopy(first)
    second["metadata"]["name"] += "-b"
    for one in (first, second):
        one["spec"]["pool"]["resourceSliceCount"] = 2
        made.set("ResourceSlice", one)
    assert made.cluster.nodes["n1"].gpus == {}
    assert made.cluster.dra.published.invalid() == {(dra.DRIVER, "n1"): "gpu-0"}
    made.drop("ResourceSlice", second)
    made.set("ResourceSlice", dra.resource_slices("n1", MACHINE)[0])
    assert made.cluster.nodes["n1"].gpus == {GPU: 8}
    assert made.cluster.dra.published.invalid() == {}
