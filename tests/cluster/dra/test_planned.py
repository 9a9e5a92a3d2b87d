"""Who allocates the devices of a pod's claims, as its record has it, after any events in any order."""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec
import pytest

from extender.cluster.dra.claims import SHARED
from extender.objects.devices import PLANNED_NODE
from extender.objects.queueing import GATE, PINNED
from extender.objects.records import Kind
from extender.sim import claims as dra
from tests.act.queue.devices_rig import SETTINGS, world
from tests.cases import cases
from tests.cluster.dra.world import MACHINE, DraWorld
from tests.world import JSON, workload

MARK = {PLANNED_NODE: "n1"}
KINDS: Final[tuple[Kind, ...]] = (
    "ResourceClaim", "ResourceClaim", "Pod", "Pod", "DeviceClass", "ResourceSlice", "ResourceClaimTemplate",
    "DeviceTaintRule",
)  # fmt: skip
Objects = dict[tuple[Kind, str], JSON]


def claim(rng: random.Random, name: str) -> JSON:
    """A claim of any kind, allocated by the queue, by kube-scheduler, or not at all."""
    made = dra.claim(name, "default", rng.choice((1, 2)))
    made["metadata"]["uid"] = f"uid-claim-{name}"
    made["spec"]["devices"] |= rng.choice(({}, {}, {}, {"constraints": [{"matchAttribute": "x/y"}]}, {"requests": []}))
    if rng.random() < 0.5:
        made["metadata"]["annotations"] = MARK
    if rng.random() < 0.5:
        device = {"request": "gpus", "driver": dra.DRIVER, "pool": "n1", "device": f"gpu-{rng.randrange(8)}"}
        made["status"] = {"allocation": {"devices": {"results": [device]}}}
        if rng.random() < 0.3:
            user = f"p{rng.randrange(4)}"
            made["status"]["reservedFor"] = [{"resource": "pods", "name": user, "uid": f"uid-{user}"}]
    return made


def pod(rng: random.Random, name: str) -> JSON:
    """A pod that names any claims: gated, nominated, pinned or bound."""
    claims: list[JSON] = [
        {"name": c, "resourceClaimName": c} for c in rng.sample(("c0", "c1", "c2"), rng.choice((1, 2)))
    ]
    if rng.random() < 0.3:
        claims = [{"name": "t", "resourceClaimTemplateName": "t"}]
    spec: JSON = {"resourceClaims": claims}
    if rng.random() < 0.5:
        spec["schedulingGates"] = [{"name": GATE}]
    notes = {PINNED: "n1"} if rng.random() < 0.3 else {}
    node = "n1" if rng.random() < 0.15 else ""
    phase = "Running" if node else "Pending"
    made = workload(name, rng.choice((0, 0, 0, 1)), node=node, phase=phase, spec=spec, annotations=notes)
    if not node and rng.random() < 0.5:
        made["status"]["nominatedNodeName"] = "n1"
    return made


def changed(rng: random.Random) -> tuple[Kind, JSON]:
    """Any object in any state."""
    kind = rng.choice(KINDS)
    if kind == "ResourceClaim":
        return kind, claim(rng, f"c{rng.randrange(3)}")
    if kind == "Pod":
        return kind, pod(rng, f"p{rng.randrange(4)}")
    if kind == "DeviceClass":
        made = dra.device_class()
        if rng.random() < 0.4:
            made["spec"]["selectors"].append({"cel": {"expression": "true == true"}})
        return kind, made
    if kind == "ResourceSlice":
        return kind, dra.resource_slices("n1", MACHINE)[0]
    if kind == "ResourceClaimTemplate":
        stated = claim(rng, "t")
        meta = {"name": "t", "namespace": "default", "uid": "uid-t"}
        return kind, {"metadata": meta, "spec": {"spec": stated["spec"]}}
    spec = {"taint": {"key": "k", "effect": "NoSchedule"}, "deviceSelector": {"driver": dra.DRIVER}}
    return kind, {"metadata": {"name": "r", "uid": "uid-r"}, "spec": spec}


def settled(made: DraWorld) -> dict[str, Any]:
    """What is counted of the pods and the node, once everything is read again."""
    for _ in range(20):
        made.cluster.tick(made.now)
    pods = {
        uid: (one.planned, one.left_devices, one.gpus, one.claimed, one.devices, one.allocated, one.keeps_devices)
        for uid, one in made.cluster.pods.items()
    }
    node = made.cluster.nodes["n1"].devices
    return pods | {"n1": node and [(one.id, one.state) for one in node.gpus]}


@pytest.mark.parametrize("seed", range(cases(4)))
def test_it_does_not_depend_on_the_order_of_events(seed: int) -> None:
    rng = random.Random(f"planned-{seed}")
    made, there = world(SETTINGS, nodes=1), Objects()
    made.drop("DeviceClass", dra.device_class())
    for one in dra.resource_slices("n1", MACHINE):
        made.drop("ResourceSlice", one)
    for _ in range(60):
        kind, body = changed(rng)
        key = kind, body["metadata"]["name"]
        if key in there and rng.random() < 0.3:
            made.drop(kind, there.pop(key))
        else:
            there[key] = made.set(kind, body)
        fresh = world(SETTINGS, nodes=1)
        fresh.drop("DeviceClass", dra.device_class())
        for one in dra.resource_slices("n1", MACHINE):
            fresh.drop("ResourceSlice", one)
        for (one_kind, _), one in rng.sample(sorted(there.items(), key=lambda item: item[0]), len(there)):
            fresh.set(one_kind, one)
        assert settled(made) == settled(fresh), (key, sorted(there))


def test_a_pod_of_a_claim_with_many_users_costs_what_it_is() -> None:
    """A tenant may have thousands of pods that name one claim: an event about one of them reads no other again."""
    made = world(nodes=1)
    made.claim("shared", 1)
    for number in range(40):
        made.claimant(f"p{number}", "shared")
    made.cluster.tick(made.now)
    store, pod = made.cluster._nodes.dra, made.cluster.pods["uid-p7"]
    assert not store.stale
    store.pod(pod)
    store.pod(msgspec.structs.replace(pod, uid="uid-new"))
    store.gone("uid-new")
    assert not store.stale


def test_the_last_other_user_of_a_claim_leaves() -> None:
    made = world(nodes=1)
    made.claim("c", 1)
    spec = {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}], "schedulingGates": [{"name": GATE}]}
    bodies = [made.set("Pod", workload(f"p{number}", 0, phase="Pending", spec=spec)) for number in range(3)]
    for body in bodies[:0:-1]:
        assert made.cluster.pods["uid-p0"].left_devices == SHARED
        made.drop("Pod", body)
    assert made.cluster.pods["uid-p0"].planned


def test_a_released_pod_keeps_what_the_queue_allocated_when_its_class_is_narrowed() -> None:
    """Its devices are chosen: nothing is left that kube-scheduler could choose."""
    made = world(nodes=1)
    one = made.claim("c", 4, node="n1", devices=(4, 5, 6, 7))
    one["metadata"]["annotations"] = MARK
    made.set("ResourceClaim", one)
    spec = {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}
    facts: JSON = {"annotations": {PINNED: "n1"}, "nominated": "n1", "links": "required"}
    body = made.set("Pod", workload("p", 0, phase="Pending", spec=spec, **facts))
    narrow = dra.device_class()
    narrow["spec"]["selectors"].append({"cel": {"expression": "true == true"}})
    made.set("DeviceClass", narrow)
    assert made.cluster.pods["uid-p"].planned
    assert made.filter(body)["NodeNames"] == ["n1"]
