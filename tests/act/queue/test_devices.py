"""Planned devices: allocated before the gates open, never twice, and taken back."""

from __future__ import annotations

from typing import Any

import pytest

from extender.act.queue import allocator
from extender.objects.devices import PLANNED_NODE as NOTE
from extender.objects.queueing import PINNED
from extender.objects.records import Event
from extender.settings import Settings
from extender.sim import claims as dra
from tests.act.queue.devices_rig import CLAIMS, PLAN, SETTINGS, DevicesRig, devices, world
from tests.act.queue.rig import gated
from tests.cluster.dra.world import MACHINE
from tests.kube import hostile
from tests.kube.api_server import Request
from tests.kube.objects import Objects
from tests.world import GPU

OFF = Settings.model_validate({"queue": {"enabled": True}})


async def test_the_seat_is_stated_then_allocated_then_the_gate_opens() -> None:
    async with devices(world()) as it:
        it.one.create(it.pod("p", 2))
        await it.turn()
        assert it.writes() == ["pod/p/status", "claim/p", "claim/p/status", "pod/p"]
        assert it.allocated("p") == it.planned("p")
        assert it.pinned("p") == it.one.pod("p")["status"]["nominatedNodeName"]
        claim = it.objects.stored[f"{CLAIMS}/p"]
        assert claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
        assert claim["status"]["allocation"]["allocationTimestamp"] == "2027-01-15T08:00:00Z"


async def test_a_gang_is_allocated_as_a_whole_before_its_first_gate_opens() -> None:
    async with devices(world()) as it:
        it.one.create(*it.gang("g", 3, 4))
        await it.turn()
        writes = it.writes()
        first = min(writes.index(f"pod/g-{i}") for i in range(3))
        assert all(writes.index(f"claim/g-{i}/status") < first for i in range(3))
        found = [it.allocated(f"g-{i}") for i in range(3)]
        assert found == [it.planned(f"g-{i}") for i in range(3)]
        assert len(set.union(*found)) == 12


async def test_each_gpu_counts_once_from_the_seat_to_the_start_of_the_pod() -> None:
    made = world(nodes=1)
    async with devices(made) as it:
        it.one.create(it.pod("p", 6))
        await it.turn(2)
        assert it.allocated("p")
        assert made.cluster.pods["uid-p"].gpus == (("nvidia.com/gpu", 6),)
        assert made.cluster.nodes["n1"].gpus == {"nvidia.com/gpu": 8}
        it.one.create(it.pod("q", 2), it.pod("r", 1))
        await it.turn(3)
        assert it.one.is_open("q")
        assert not it.one.is_open("r")
        assert it.allocated("p").isdisjoint(it.allocated("q"))
        it.allocate("p", "n1", *(device for _, device in it.allocated("p")), reserved="p")
        it.one.bind("p")
        await it.turn(2)
        assert made.held("n1")["p"][0] == "observed"
        assert made.free("n1") == 2
        assert not it.one.is_open("r")


async def test_a_duplicate_is_withdrawn_before_the_gate_opens_and_the_pod_gets_others() -> None:
    """kube-scheduler decided about another pod before it saw our allocation, and writes after it."""

    async with devices(world(nodes=1)) as it:
        it.claim("foreign", 1)
        it.one.create(it.pod("p", 2))
        taken: list[str] = []

        def write_late() -> None:
            if not taken and it.allocated("p"):
                taken.append(min(device for _, device in it.allocated("p")))
                it.allocate("foreign", "n1", taken[0], reserved="other")
                assert not it.one.is_open("p")

        it.before = write_late
        await it.turn(40)
        assert taken
        assert it.one.is_open("p")
        assert ("n1", taken[0]) not in it.allocated("p")
        assert it.allocated("p") == it.planned("p")
        last = it.writes()[::-1]
        assert last.index("pod/p") < last.index("claim/p/status")  # the gate opened after the last allocation


async def test_gates_wait_while_kube_scheduler_may_be_allocating_to_other_pods() -> None:
    made = world()
    async with devices(made) as it:
        it.foreign()
        it.one.create(it.pod("p", 2))
        await it.turn(5)
        assert it.allocated("p")
        assert not it.one.is_open("p")
        await it.turn(int(allocator.SETTLE_SECONDS / 0.2) + 1)
        assert it.one.is_open("p")


@pytest.mark.parametrize("case", ["terminating", "two claims", "more than a node has", "more by a resource"])
async def test_a_pod_that_gets_no_devices_makes_no_gate_wait(case: str) -> None:
    made = world()
    async with devices(made) as it:
        if case == "more by a resource":
            made.dra_class(extended_resource=GPU)
            made.pod("other", 16, spec={"containers": [{"name": "c", "resources": {"limits": {GPU: "16"}}}]})
        else:
            it.claim("foreign", 16 if case == "more than a node has" else 1)
            it.claim("free", 1)
            if case != "more than a node has":
                claim = it.objects.stored[f"{CLAIMS}/foreign"]
                meta = claim["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a.b/c"]}
                it.put("foreign", claim | {"metadata": meta})
            made.claimant("other", "foreign", *(["free"] if case == "two claims" else []))
        it.one.create(*it.gang("g", 2, 2))
        await it.turn(4)
        assert it.one.is_open("g-0")
        assert it.one.is_open("g-1")


async def test_a_pod_that_waits_delays_gangs_once_and_then_for_a_moment() -> None:
    async with devices(world(nodes=3)) as it:
        it.foreign()
        it.one.create(*it.gang("a", 2, 2))
        await it.turn(int(allocator.SETTLE_SECONDS / 0.2) + 2)
        assert it.one.is_open("a-0")
        it.one.create(*it.gang("b", 2, 2))
        await it.turn(2)
        assert it.allocated("b-0")
        assert not it.one.is_open("b-0")
        await it.turn(int(allocator.KNOWN_SECONDS / 0.2) + 1)
        assert it.one.is_open("b-0")
        it.claim("foreign-2", 1)
        it.world.claimant("new", "foreign-2")
        it.one.create(*it.gang("c", 2, 2))
        await it.turn(int(allocator.KNOWN_SECONDS / 0.2) + 4)
        assert it.allocated("c-0")
        assert not it.one.is_open("c-0"), "kube-scheduler may be trying the new pod"
        await it.turn(int(allocator.SETTLE_SECONDS / 0.2))
        assert it.one.is_open("c-0")


async def test_gangs_settle_beside_each_other() -> None:
    """One pod whose claim nobody can satisfy, for ever: each gang waits for its own time, and for no other gang."""

    async with devices(world()) as it:
        it.foreign()
        it.one.create(*(pod for name in "abc" for pod in it.gang(name, 2, 2)))
        await it.turn(int((allocator.SETTLE_SECONDS + 1.0) / 0.2))
        assert [it.one.is_open(f"{name}-{number}") for name in "abc" for number in range(2)] == [True] * 6


async def test_two_claims_of_the_queue_with_one_device_open_no_gate() -> None:
    """Another holder of the Lease gave the device to a pod that waits behind the gate too."""

    made = world(nodes=1)
    async with devices(made) as it:
        it.foreign("holds-back")
        it.one.create(it.pod("p", 1))
        await it.turn(2)
        [(_, device)] = it.allocated("p")
        it.claim("q", 1)
        it.allocate("q", "n1", device)
        made.claimant("q", "q", nominated="n1", annotations={PLAN: device.removeprefix("gpu-")})
        await it.turn(30)
        assert it.one.is_open("p")
        assert it.allocated("p") == it.planned("p")
        assert it.allocated("p").isdisjoint(it.allocated("q"))


async def test_a_duplicate_after_the_gate_opened_is_withdrawn_while_the_pod_is_not_tried() -> None:
    async with devices(world(nodes=1)) as it:
        it.claim("foreign", 1)
        it.one.create(it.pod("p", 2))
        await it.turn(2)
        assert it.one.is_open("p")
        it.allocate("foreign", "n1", min(device for _, device in it.allocated("p")), reserved="other")
        await it.turn(2)
        assert not it.allocated("p")


@pytest.mark.parametrize("harm", ["taint", "gone", "new-generation"])
async def test_a_device_that_is_lost_before_the_gate_opens_is_exchanged(harm: str) -> None:
    made = world(nodes=1)
    async with devices(made) as it:
        it.foreign()
        it.one.create(it.pod("p", 1))
        await it.turn(2)
        [(_, device)] = it.allocated("p")
        number = int(device.removeprefix("gpu-"))
        if harm == "taint":
            made.publish("n1", taints={number: "broken"})
        elif harm == "gone":
            [one] = dra.resource_slices("n1", MACHINE)
            one["spec"]["devices"][number]["name"] = "exchanged"
            made.set("ResourceSlice", one)
        else:  # a new generation has no devices before it is complete
            [one] = dra.resource_slices("n1", MACHINE, generation=2)
            one["spec"]["pool"]["resourceSliceCount"] = 2
            made.set("ResourceSlice", one)
        await it.turn(30)
        if harm == "gone":
            assert it.allocated("p") == {("n1", "exchanged")}
            assert it.one.is_open("p")
            return
        if harm == "new-generation":
            assert not it.one.is_open("p")
            assert not it.allocated("p")
            made.publish("n1", generation=3)
            await it.turn(30)
        else:
            assert it.allocated("p") != {("n1", device)}
        assert it.one.is_open("p")
        assert it.allocated("p") == it.planned("p")


async def test_a_release_that_is_taken_back_is_deallocated() -> None:
    """The API server lets one pod of the gang never start."""

    async with devices(world()) as it:
        it.one.create(*it.gang("g", 2, 4))
        it.objects.fail = refuse_opening
        await it.turn(80)
        assert "claim/g-0/status" in it.writes()
        assert not it.allocated("g-0")
        assert not it.allocated("g-1")
        assert not it.one.seats


def refuse_opening(request: Request) -> int:
    """No pod of the gang can be written but by its status."""
    opens = request.path.startswith("/api/v1/namespaces/default/pods/g-") and not request.path.endswith("/status")
    return 422 if request.method == "PATCH" and opens else 0


async def test_another_instance_goes_on_with_what_was_allocated() -> None:
    objects = Objects()
    first = world()
    async with devices(first, objects) as it:
        it.claim("foreign", 1)
        first.claimant("other", "foreign")
        it.one.create(it.pod("p", 2))
        await it.turn(2)
        before = it.allocated("p")
        assert before
        assert not it.one.is_open("p")
    second = world()
    second.now, second.wall = first.now + 30, first.wall + 30
    objects.said.clear()
    async with devices(second, objects) as it:
        it.watch()
        await it.turn(20)
        assert it.one.is_open("p")
        assert it.allocated("p") == before == it.planned("p")
        assert "claim/p/status" not in it.writes()


async def test_the_allocation_of_a_pod_that_is_deleted_is_taken_back() -> None:
    """Its claim is its own by name alone: nothing else would free the devices."""

    async with devices(world()) as it:
        it.one.create(it.pod("p", 2))
        await it.turn(2)
        it.one.delete("p")
        await it.turn(20)
        assert it.allocated("p")  # for a while
        await it.turn(60)
        assert not it.allocated("p")


async def test_an_allocation_that_is_not_used_ends_with_the_seat() -> None:
    made = world()
    async with devices(made) as it:
        it.one.create(it.pod("p", 2))
        await it.turn(2)
        made.now += made.settings.queue.seat_seconds
        made.wall += made.settings.queue.seat_seconds
        await it.turn(10)
        assert it.one.seats.of("uid-p") is None
        await it.turn(40)
        assert not it.allocated("p")


async def test_an_open_pod_that_fits_nowhere_for_a_moment_keeps_its_devices() -> None:
    """Its node has no room now, and better GPUs are free there by now."""

    async with devices(world(nodes=1)) as it:
        it.one.create(it.pod("first", 6))
        await it.turn(2)
        it.one.create(it.pod("p", 2))
        await it.turn(2)
        before = it.allocated("p")
        assert before
        it.one.delete("first")
        it.claim("first", 6)
        pod = it.one.pod("p")
        rejected = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no CPU"}
        it.objects.put(
            "/api/v1/namespaces/default/pods/p",
            {**pod, "status": {"phase": "Pending", "conditions": [rejected]}},
        )
        await it.turn(40)
        assert it.allocated("p") == before
        assert it.one.pod("p")["status"]["nominatedNodeName"] == it.pinned("p")


@pytest.mark.parametrize(
    "spec",
    [
        {"constraints": [{"matchAttribute": "gpu.nvidia.com/productName"}]},
        {"strange": 1},
        {"requests": [{"name": "gpus", "exactly": {"deviceClassName": dra.DRIVER, "count": 2, "strange": {}}}]},
    ],
)
async def test_what_is_not_known_is_left_to_kube_scheduler(spec: Any) -> None:
    async with devices(world()) as it:
        pod = it.pod("p", 2, claim=False)
        it.claim("p", 2, **spec)
        it.one.create(pod)
        await it.turn(3)
        assert it.one.is_open("p")
        assert (it.allocated("p"), it.pinned("p")) == (set(), "")
        assert "uid-p" in it.one.devices.left


async def test_without_the_rights_pods_start_as_before() -> None:
    async with devices(world()) as it:
        it.objects.fail = lambda request: 403 if request.path.startswith(f"{CLAIMS}/p/status") else 0
        it.one.create(it.pod("p", 2))
        await it.turn(3)
        assert it.one.is_open("p")
        assert (it.allocated("p"), it.pinned("p")) == (set(), "")


async def test_a_claim_that_two_pods_name_is_left_to_kube_scheduler() -> None:
    async with devices(world()) as it:
        pods = [it.pod("p", 2), it.pod("q", 2, claim=False)]
        pods[1]["spec"]["resourceClaims"][0]["resourceClaimName"] = "p"
        it.one.create(*pods)
        await it.turn(4)
        assert all(it.one.is_open(name) for name in "pq")
        assert not it.allocated("p")


def incomplete(it: DevicesRig) -> list[str]:
    """Why gangs are not complete."""
    report = it.one.controller.report
    assert report is not None
    return [one.text for one in report.waiting if one.code == "incomplete"]


async def test_a_pod_waits_while_a_template_or_claim_that_it_names_does_not_exist() -> None:
    """Nothing states what the pod asks for: without the wait it would be released as a pod without GPUs."""

    async with devices(world()) as it:
        templated, named = it.pod("p", 2, claim=False), it.pod("q", 2, claim=False)
        templated["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "t"}]
        it.one.create(templated, named)
        await it.turn(3)
        assert not it.one.is_open("p")
        assert not it.one.is_open("q")
        assert incomplete(it) == [
            "ResourceClaimTemplate default/t does not exist", "ResourceClaim default/q does not exist"
        ]  # fmt: skip
        it.world.set("ResourceClaimTemplate", dra.claim("t", "default", 2, template=True))
        it.claim("q", 2)
        await it.turn(3)
        assert it.one.is_open("q")
        assert it.allocated("q") == it.planned("q")
        assert incomplete(it) == ["a ResourceClaim of ResourceClaimTemplate default/t does not exist"]


@pytest.mark.parametrize("allocates", [False, True])
async def test_where_the_queue_allocates_nothing_no_pod_waits_for_its_claims(allocates: bool) -> None:
    """The setting is off, or no DeviceClass is known: templates need not be watched then."""

    made = world(SETTINGS if allocates else OFF)
    if allocates:
        made.drop("DeviceClass", dra.device_class())
    async with devices(made) as it:
        it.one.create(it.pod("p", 2, claim=False))
        await it.turn(3)
        assert it.one.is_open("p")


async def test_the_gate_waits_until_the_claim_is_created() -> None:
    async with devices(world()) as it:
        it.world.set("ResourceClaimTemplate", dra.claim("t", "default", 2, template=True))
        pod = it.pod("p", 2, claim=False)
        pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "t"}]
        it.one.create(pod)
        await it.turn(3)
        assert not it.one.is_open("p")
        assert not list(it.one.seats)  # a claim beyond a quota is never created
        it.claim("p-gpus-x", 2)
        stored = it.one.pod("p")
        made = {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "p-gpus-x"}]}
        it.objects.put("/api/v1/namespaces/default/pods/p", {**stored, "status": {**stored["status"], **made}})
        it.watch()
        await it.turn(3)
        assert it.one.is_open("p")
        assert it.allocated("p-gpus-x") == it.planned("p")


async def test_a_pod_with_claims_gets_no_seat_where_a_device_plugin_alone_offers_gpus() -> None:
    made = world(nodes=0)
    made.node("a", 8)
    async with devices(made) as it:
        it.one.create(it.pod("p", 2))
        await it.turn(3)
        assert not it.one.is_open("p")
        made.dra_node("n1")
        await it.turn(10)
        assert it.one.is_open("p")
        assert it.pinned("p") == "n1"


async def test_without_the_setting_nothing_is_allocated() -> None:
    made = world(OFF)
    async with devices(made) as it:
        it.one.create(it.pod("p", 2))
        await it.turn(3)
        assert it.one.is_open("p")
        assert it.writes() == ["pod/p/status", "pod/p"]
        it.allocate("p", "n1", "gpu-0", "gpu-1")
        assert made.cluster.pods["uid-p"].gpus == ()
        assert made.cluster.nodes["n1"].gpus == {"nvidia.com/gpu": 6}


async def test_a_gang_whose_node_is_lost_before_its_gates_open_is_allocated_elsewhere() -> None:
    made = world(nodes=3)
    async with devices(made) as it:
        it.foreign()
        it.one.create(*it.gang("g", 2, 8))
        await it.turn(2)
        lost = it.one.pod("g-0")["status"]["nominatedNodeName"]
        assert it.allocated("g-0")
        made.cluster.apply([Event("Node", "delete", made.cluster.nodes[lost])], made.now)
        for one in dra.resource_slices(lost, MACHINE):
            made.drop("ResourceSlice", one)
        await it.turn(60)
        assert all(it.one.is_open(name) for name in ("g-0", "g-1"))
        found = it.allocated("g-0") | it.allocated("g-1")
        assert len(found) == 16
        assert lost not in {node for node, _ in found}


@pytest.mark.parametrize("settings", [SETTINGS, OFF], ids=["planned", "not-planned"])
@pytest.mark.parametrize("served", [False, True])
async def test_a_pod_without_claims_gets_no_seat_where_gpus_are_for_claims_alone(
    settings: Settings, served: bool
) -> None:
    """kube-scheduler would reject the node: it offers no resource that the pod asks for."""

    made = world(settings)
    if served:
        made.dra_class(extended_resource=GPU)
    async with devices(made) as it:
        it.one.create(gated("p", 2))
        await it.turn(3)
        assert it.one.is_open("p") == served
        made.node("plugin", 8)
        it.one.create(gated("q", 2))
        await it.turn(3)
        assert it.one.is_open("q")
        assert served or it.one.pod("q")["status"]["nominatedNodeName"] == "plugin"


async def test_a_claim_that_another_pod_took_does_not_keep_the_gang_from_giving_back() -> None:
    """The pod was created after the allocation, and kube-scheduler gave it the claim before a pod of the gang was
    deleted."""

    made = world(nodes=1)
    async with devices(made) as it:
        it.foreign()
        it.one.create(*it.gang("g", 2, 2))
        await it.turn(2)
        assert not it.one.is_open("g-0")
        [node] = {pool for pool, _ in it.allocated("g-0")}
        it.allocate("g-0", node, *(device for _, device in it.allocated("g-0")), reserved="x")
        claim = it.objects.stored[f"{CLAIMS}/g-0"]
        it.put("g-0", {**claim, "metadata": {**claim["metadata"], "annotations": {NOTE: node}}})
        it.one.delete("g-1")
        await it.turn(30)
        assert it.allocated("g-0")  # the other pod's
        assert not it.one.seats


async def test_an_allocation_without_its_annotation_is_taken_back_and_not_offered() -> None:
    """The owner of a claim may write its annotations, and may name it in a pod that is never released."""

    made = world(nodes=1)
    async with devices(made) as it:
        it.foreign()
        it.one.create(it.pod("p", 2))
        await it.turn(2)
        assert it.allocated("p")
        claim = it.objects.stored[f"{CLAIMS}/p"]
        assert claim["metadata"]["annotations"] == {NOTE: "n1"}
        it.put("p", {**claim, "metadata": {**claim["metadata"], "annotations": {}}})
        it.one.delete("p")
        made.claimant("idle", "p", annotations={PINNED: "n1"})
        assert made.cluster.nodes["n1"].gpus == {"nvidia.com/gpu": 6}
        await it.turn(60)
        assert not it.allocated("p")
        assert made.cluster.nodes["n1"].gpus == {"nvidia.com/gpu": 8}


@pytest.mark.parametrize("depth", [40, 985, 1500])
async def test_a_claim_that_is_nested_too_deep_is_left_to_kube_scheduler_and_stops_no_other_pod(
    monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """A tenant writes the parameters of a driver: 10 KiB of them may be nested 5,000 levels deep."""
    async with devices(world()) as it:
        handled = it.objects.handled

        def nested(method: str, path: str, raw: bytes | None) -> tuple[int, Any]:
            status, stored = handled(method, path, raw)
            is_deep = method == "GET" and path == f"{CLAIMS}/p"
            return status, hostile.deep(stored, depth) if is_deep else stored

        monkeypatch.setattr(it.objects, "handled", nested)
        it.one.create(it.pod("p", 2), it.pod("q", 2))
        await it.turn(6, seconds=2.0)  # kube-scheduler may be allocating to p, which the gate of q waits for
        assert it.one.is_open("p")
        assert it.one.devices.left["uid-p"] == "it is nested deeper than 32 levels"
        assert it.one.is_open("q")
        assert it.allocated("q") == it.planned("q")
