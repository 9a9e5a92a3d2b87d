"""Links of pods whose claims the queue allocates: any linked set of free devices will do."""

from __future__ import annotations

from typing import Any

import pytest

from extender.cluster.dra.claims import NOT_GATED
from extender.objects.queueing import GATE
from extender.settings import Settings
from extender.sim import claims as dra
from tests.act.queue.devices_rig import SETTINGS, devices, world
from tests.cluster.dra.world import MACHINE, DraWorld

REQUIRED = {"gpu-extender.io/links": "required"}
GATES = {"schedulingGates": [{"name": GATE}]}
SHARED = [{"name": "gpus", "resourceClaimName": "shared"}]
QUAD = {("n1", f"gpu-{gpu}") for gpu in (4, 5, 6, 7)}
"""The linked four of the GPUs 2 to 7. The first four, 2 to 5, are not linked."""


def used(settings: Settings = SETTINGS) -> DraWorld:
    """A node whose GPUs 0 and 1 are held."""
    made = world(settings, nodes=1)
    made.claim("old", 2, node="n1", devices=(0, 1), pods=("old",))
    made.claimant("old", "old", node="n1")
    return made


@pytest.mark.parametrize("order", [(), (7, 2, 1, 0, 3, 4, 5, 6)])
async def test_a_gated_pod_gets_a_linked_set_that_does_not_come_first(order: tuple[int, ...]) -> None:
    made = used()
    made.publish("n1", order=order)
    async with devices(made) as it:
        it.one.create(it.pod("p", 4, annotations=REQUIRED))
        await it.turn(3)
        assert it.one.is_open("p")
        assert it.allocated("p") == it.planned("p") == QUAD
        assert made.filter(it.one.pod("p"))["NodeNames"] == ["n1"]  # the released pod


async def test_the_pods_of_a_gang_get_linked_sets_of_one_node() -> None:
    made = used()
    async with devices(made) as it:
        notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "3", **REQUIRED}
        it.one.create(*(it.pod(f"g-{number}", 2, annotations=notes) for number in range(3)))
        await it.turn(3)
        shapes, (shape, _, _) = made.cluster.tables.shapes, made.cluster.tables.nodes.graph_of(0)
        masks = [sum(1 << int(name.removeprefix("gpu-")) for _, name in it.allocated(f"g-{i}")) for i in range(3)]
        assert sum(masks) == 0b11111100
        assert all(shapes.linked(shape, mask) for mask in masks)


def reasons(made: DraWorld, pod: Any) -> set[str]:
    answer = made.filter(pod)
    return {*(answer["FailedNodes"] or {}).values(), *(answer["FailedAndUnresolvableNodes"] or {}).values()}


def test_a_pod_without_the_gate_is_judged_by_what_comes_first() -> None:
    made = used()
    made.claim("p", 4)
    [why] = reasons(made, made.claimant("p", "p", annotations=REQUIRED))
    assert "not linked" in why


@pytest.mark.parametrize("case", ["off", "constraints", "device plugin", "shared claim", "skipped operations"])
async def test_what_is_left_to_kube_scheduler_is_judged_by_what_comes_first(case: str) -> None:
    """Behind the gate too: the queue allocates nothing of these, so the first devices are not linked."""

    off = Settings.model_validate({"queue": {"enabled": True}})
    made = used(off if case == "off" else SETTINGS)
    if case == "device plugin":
        made.dra_node("n1", plugin=8)
    if case == "skipped operations":
        [one] = dra.resource_slices("n1", MACHINE)
        one["spec"]["skipNodeOperations"] = ["Prepare"]
        made.set("ResourceSlice", one)
    async with devices(made) as it:
        constrained = {"constraints": [{"matchAttribute": f"{dra.DRIVER}/productName"}]}
        it.claim("p", 4, **(constrained if case == "constraints" else {}))
        it.one.create(it.pod("p", 4, claim=False, annotations=REQUIRED))
        if case == "shared claim":
            made.claimant("q", "p")
        await it.turn(5)
        assert not made.cluster.pods["uid-p"].nominated_node


async def test_pods_that_are_equal_but_for_who_allocates_are_judged_apart() -> None:
    """The second pod of the gang gets what kube-scheduler takes first: not certain to be linked."""

    made = used()
    async with devices(made) as it:
        notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2", **REQUIRED}
        it.claim("g-1", 2)
        made.claimant("other", "g-1")  # so the queue does not allocate it
        it.one.create(it.pod("g-0", 2, annotations=notes), it.pod("g-1", 2, claim=False, annotations=notes))
        await it.turn(5)
        assert not any(made.cluster.pods[f"uid-g-{number}"].nominated_node for number in range(2))


async def test_a_pod_does_not_wait_behind_one_that_is_equal_but_for_who_allocates() -> None:
    """No set of the first pod is certain to be linked, whatever ends."""

    made = used()
    async with devices(made) as it:
        it.claim("left", 4, constraints=[{"matchAttribute": f"{dra.DRIVER}/productName"}])
        it.one.create(it.pod("left", 4, claim=False, annotations=REQUIRED), it.pod("p", 4, annotations=REQUIRED))
        await it.turn(4)
        assert not it.one.is_open("left")
        assert it.allocated("p") == QUAD


async def test_a_pod_with_a_claim_for_nothing_is_left_before_its_release() -> None:
    """The queue cannot allocate it. It would release the pod for a linked set, and kube-scheduler takes another."""

    made = used()
    async with devices(made) as it:
        it.claim("nothing", 1, requests=[])
        one = it.pod("p", 4, annotations=REQUIRED)
        one["spec"]["resourceClaims"].append({"name": "nothing", "resourceClaimName": "nothing"})
        it.one.create(one)
        await it.turn(4)
        record = made.cluster.pods["uid-p"]
        assert (record.planned, record.left_devices) == (False, "its claim asks for no devices")
        assert not record.nominated_node


def test_a_pod_whose_claim_kube_scheduler_has_allocated_is_not_planned() -> None:
    """It nominates the pod meanwhile. A binding that fails leaves the allocation: 2 to 5 are not linked."""
    made = used()
    made.claim("p", 4, node="n1", devices=(2, 3, 4, 5))
    pod = made.claimant("p", "p", annotations=REQUIRED)
    pod["status"]["nominatedNodeName"] = "n1"
    made.set("Pod", pod)
    record = made.cluster.pods["uid-p"]
    assert (record.planned, record.left_devices) == (False, NOT_GATED)
    [why] = reasons(made, pod)
    assert "not linked" in why


def test_a_pod_whose_claim_is_deleted_is_not_planned() -> None:
    made = used()
    claim = made.claim("p", 4)
    pod = made.claimant("p", "p")
    made.set("Pod", {**pod, "spec": {**pod["spec"], **GATES}})
    assert made.cluster.pods["uid-p"].planned
    made.drop("ResourceClaim", claim)
    assert not made.cluster.pods["uid-p"].planned
    made.claim("p", 4)
    made.claimant("p", "p")
    assert made.cluster.pods["uid-p"].left_devices
    made.drop("ResourceClaim", claim)
    assert not made.cluster.pods["uid-p"].left_devices


async def test_a_gated_pod_does_not_hide_another_that_names_its_claim() -> None:
    """kube-scheduler may be allocating devices to the other one: the gates stay closed for 2 s."""

    made = used()
    async with devices(made) as it:
        it.claim("shared", 1)
        made.set("Pod", it.pod("hidden", 1, claim=False) | {"spec": {**GATES, "resourceClaims": SHARED}})
        made.claimant("other", "shared")
        it.one.create(it.pod("p", 2))
        await it.turn(3)
        assert it.allocated("p")
        assert not it.one.is_open("p")
        await it.turn(3, seconds=2.0)
        assert it.one.is_open("p")
