"""Evictions of pods that hold devices by claims: what they leave is the gang's, and none is evicted in vain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from extender.act.queue import evicting
from extender.objects.devices import FENCE, FINALIZER
from extender.server.acting import _left_of_queue
from extender.settings import Settings
from extender.sim import claims as dra
from tests.act.queue.devices_rig import CLAIMS, RULES, DevicesRig, devices, world
from tests.act.queue.rig import PODS, gated, settings
from tests.act.queue.test_evicting import Evicted, in_vain
from tests.act.test_reservations import connected
from tests.cluster.dra.world import DraWorld
from tests.kube.objects import Objects
from tests.world import JSON, pairs, workload

EVICTING = settings(evictions=True, plannedAllocation=True)

NODES = ("n1", "n2")


class Full:
    """Two nodes, each full with a pod of low priority whose claim was made for it."""

    def __init__(self, it: DevicesRig) -> None:
        self.it, self.evicted = it, Evicted(it.one)
        for node in NODES:
            self.hold(f"low-{node}", node)

    def hold(self, name: str, node: str, **facts: Any) -> None:
        """A running pod that has all GPUs of the node."""
        it = self.it
        it.claim(name, 8)
        made = it.objects.stored[f"{CLAIMS}/{name}"]
        pod = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": f"uid-{name}", "controller": True}
        made["metadata"] |= {"finalizers": [FINALIZER], "ownerReferences": [pod]}
        it.allocate(name, node, *(f"gpu-{gpu}" for gpu in range(8)), reserved=name)
        spec: JSON = {"resourceClaims": [{"name": "gpus", "resourceClaimName": name}]}
        facts = {"priority": -5, **facts}
        it.one.create(workload(name, 0, node=node, phase="Running", spec=spec, **facts))

    def end(self, name: str) -> None:
        """The pod does not exist any more; its claim is allocated still."""
        del self.it.objects.stored[f"{PODS}/{name}"]
        self.it.world.gone(name)

    def deallocate(self, name: str) -> None:
        """The claim controller has seen that the pod has ended."""
        self.it.world.drop("ResourceClaim", self.it.objects.stored.pop(f"{CLAIMS}/{name}"))

    def change(self, name: str, change: Callable[[JSON], object]) -> None:
        """Change the claim of a pod."""
        made = self.it.objects.stored[f"{CLAIMS}/{name}"]
        change(made)
        self.it.put(name, made)


async def test_the_devices_that_victims_leave_are_allocated_to_the_gang_once_they_are_free() -> None:
    async with devices(world(EVICTING)) as it:
        full = Full(it)
        it.one.create(*it.gang("g", 2, 8))
        await it.turn(2)
        assert sorted(full.evicted.tried) == ["low-n1", "low-n2"]
        full.end("low-n1")
        full.end("low-n2")
        full.deallocate("low-n1")
        it.one.create(it.pod("rival", 4))
        await it.turn(10)
        assert not it.allocated("g-0")
        assert not it.allocated("g-1")
        assert not it.one.is_open("rival")
        assert len(it.one.seats) == 2, "devices that are allocated still are no reason to give seats back"
        full.deallocate("low-n2")
        await it.turn(5)
        assert it.one.is_open("g-0")
        assert it.one.is_open("g-1")
        assert [it.allocated(f"g-{i}") for i in range(2)] == [it.planned(f"g-{i}") for i in range(2)]
        assert not it.one.is_open("rival")
        assert sorted(full.evicted.tried) == ["low-n1", "low-n2"]
        assert in_vain(it.one) == (2, 0)


async def test_claims_that_are_never_deallocated_end_the_wait() -> None:
    """The claim controller is down: the seats are given back, and no other pod is evicted for the gang."""

    async with devices(world(EVICTING, nodes=1)) as it:
        it.world.dra_node("n2")
        full = Full(it)
        it.one.create(it.pod("p", 8))
        await it.turn(2)
        [name] = full.evicted.tried
        full.end(name)
        await it.turn(int(evicting.DEALLOCATED_SECONDS / 0.2) - 5)
        assert it.one.seats
        await it.turn(10)
        assert not it.one.is_open("p")
        assert in_vain(it.one) == (0, 1)


def share(claim: JSON) -> None:
    claim["status"]["reservedFor"].append({"resource": "pods", "name": "other", "uid": "uid-other"})


async def test_a_pod_whose_claim_stays_allocated_is_never_evicted() -> None:
    async with devices(world(EVICTING)) as it:
        full = Full(it)
        full.change("low-n1", share)
        full.change("low-n2", lambda claim: claim["metadata"].pop("finalizers"))
        it.one.create(it.pod("p", 2))
        await it.turn(10)
        assert full.evicted.tried == []
        assert not it.one.seats


async def test_a_victim_whose_claim_is_shared_before_its_eviction_is_left_alone() -> None:
    """A budget keeps the second victim for a while. Meanwhile its claim becomes that of another pod, too."""

    async with devices(world(EVICTING)) as it:
        full = Full(it)
        full.evicted.refused.add("real low-n2")
        it.one.create(*it.gang("g", 2, 8))
        await it.turn(3)
        assert full.evicted.tried == ["low-n1"]
        full.change("low-n2", share)
        full.evicted.refused.clear()
        await it.turn(60)
        assert full.evicted.tried == ["low-n1"]
        assert not it.one.seats
        assert in_vain(it.one) == (0, 1)


@pytest.mark.parametrize("why", ["constraints", "the-claim-of-another-pod-too"])
async def test_no_pod_is_evicted_for_devices_that_kube_scheduler_allocates(why: str) -> None:
    async with devices(world(EVICTING)) as it:
        full = Full(it)
        pod = it.pod("p", 2)
        if why == "constraints":
            it.claim("p", 2, constraints=[{"matchAttribute": "gpu.nvidia.com/productName"}])
        else:
            it.world.claimant("q", "p")
        it.one.create(pod)
        await it.turn(10)
        assert full.evicted.tried == []


async def test_devices_are_kept_from_kube_scheduler_from_before_the_eviction_until_the_gates_open() -> None:
    async with devices(world(EVICTING, nodes=1)) as it:
        it.world.dra_node("n2")
        full = Full(it)
        whole = {("n1", f"gpu-{gpu}") for gpu in range(8)}
        full.change("low-n2", share)
        it.one.create(it.pod("p", 2))
        await it.turn(3)
        assert full.evicted.tried == ["low-n1"]
        assert it.fenced() == whole
        said = [path for method, path in it.objects.said if method in ("POST", "DELETE")]
        assert said.index(RULES) < said.index(f"{PODS}/low-n1/eviction", said.index(RULES)), "fenced before evicted"
        full.end("low-n1")
        await it.turn(3)
        assert it.fenced() == whole
        full.deallocate("low-n1")
        await it.turn(3)
        assert it.one.is_open("p")
        await it.turn(1)
        assert it.fenced() == set()


async def test_free_gpus_of_device_plugins_are_no_place_for_a_pod_with_claims() -> None:
    made = world(EVICTING)
    made.node("plugin", 8, links=pairs(8))
    async with devices(made) as it:
        full = Full(it)
        it.one.create(it.pod("p", 2))
        await it.turn(3)
        assert len(full.evicted.tried) == 1


async def test_a_fence_of_the_administrator_is_enough() -> None:
    async with devices(world(EVICTING)) as it:
        full = Full(it)
        spec = {"deviceSelector": {"driver": dra.DRIVER}, "taint": {"key": FENCE, "effect": "NoSchedule"}}
        it.world.set("DeviceTaintRule", {"metadata": {"name": "fence", "uid": "u"}, "spec": spec})
        it.one.create(it.pod("p", 2))
        await it.turn(3)
        assert len(full.evicted.tried) == 1
        assert it.fenced() == set()


@pytest.mark.parametrize("status", [403, 404])
async def test_where_devices_cannot_be_kept_no_pod_is_evicted(status: int) -> None:
    """The rights are missing, or DeviceTaintRules are not served (before Kubernetes 1.37)."""

    async with devices(world(EVICTING)) as it:
        full = Full(it)
        before = it.objects.fail
        it.objects.fail = lambda request: status if request.path.startswith(RULES) else before(request)
        it.one.create(it.pod("p", 2))
        await it.turn(10)
        assert full.evicted.tried == []
        assert not it.one.seats


async def fenced(objects: Objects) -> DraWorld:
    """A server that has evicted pods for a pod of the queue, and has ended; its rules keep all 8 devices."""
    first = world(EVICTING)
    async with devices(first, objects) as it:
        Full(it)
        it.one.create(it.pod("p", 2))
        await it.turn(3)
        assert len(it.fenced()) == 8
    return first


async def test_the_next_holder_of_the_lease_lifts_fences_that_no_seat_needs() -> None:
    """The pod was deleted while its victims ended. The rules of others stay."""

    objects = Objects()
    first = await fenced(objects)
    selected, taint = {"pool": "n1", "device": "gpu-7"}, {"key": FENCE, "effect": "NoSchedule"}
    spec = {"deviceSelector": selected, "taint": taint}
    objects.put(f"{RULES}/theirs", {"metadata": {"name": "theirs"}, "spec": spec})
    del objects.stored[f"{PODS}/p"]
    second = world(EVICTING)
    second.now, second.wall = first.now + 30, first.wall + 30
    async with devices(second, objects) as it:
        it.watch()
        await it.turn(50)
        assert it.fenced() == {("n1", "gpu-7")}


@pytest.mark.parametrize("queue", [True, False])
async def test_no_fence_stays_once_the_queue_allocates_nothing_any_more(queue: bool) -> None:
    """After a restart with other settings: kube-scheduler would allocate none of these devices."""
    objects = Objects()
    first = await fenced(objects)
    second = world(settings(evictions=True) if queue else Settings())
    second.now, second.wall = first.now + 30, first.wall + 30
    async with devices(second, objects) as it, connected(objects) as api:
        it.watch()
        left = _left_of_queue(second.core, api, "kube-system", "next")
        for _ in range(30):
            if queue:
                await it.turn()
            else:
                await left.look()
                second.now += 0.2
                it.watch()
        assert it.fenced() == set()


async def test_no_pod_with_claims_is_evicted_for_a_pod_without() -> None:
    """kube-scheduler allocates devices to a pod that asks for an extended resource."""

    async with devices(world(EVICTING)) as it:
        full = Full(it)
        it.one.create(gated("p", 2))
        await it.turn(10)
        assert full.evicted.tried == []


async def test_no_pod_with_claims_is_evicted_where_the_queue_allocates_none() -> None:
    made: DraWorld = world(settings(evictions=True, plannedAllocation=False))
    async with devices(made) as it:
        full = Full(it)
        it.one.create(it.pod("p", 2))
        await it.turn(10)
        assert full.evicted.tried == []
