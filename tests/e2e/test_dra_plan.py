"""Planned allocation: the queue writes the allocation of ResourceClaims before it removes the gates.

The real kube-scheduler 1.37 binds the pods, the real claim controller makes and ends the claims. DRA_PODS: how many
pods come in the run under load.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from extender.objects.queueing import GATE, PINNED
from extender.sim import claims as dra
from tests import plain
from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.chaos import Chaos
from tests.e2e.scene import Scene, SceneFactory
from tests.e2e.test_dra import bound, publish
from tests.waiting import wait_for

PODS = int(os.environ.get("DRA_PODS", "24"))
PLAN = "gpu-extender.io/gpus"
TEMPLATE = "gpus-{}"
LINKED = {frozenset(pair) for pair in ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))}
"""The pairs of GPUs of the machine that two NVLinks join: the best ones."""


def scene_of(scene: SceneFactory, api: Api, planning: Any, nodes: int = 2, **device_class: Any) -> Scene:
    """Nodes whose GPUs a driver publishes, and templates of claims for 1, 2, 4 and 8 of them."""
    api.create({**dra.device_class(), **device_class})
    publish(api, *(f"n{i}" for i in range(nodes)))
    made = scene({}, settings=planning)
    for gpus in (1, 2, 4, 8):
        api.create(dra.claim(TEMPLATE.format(gpus), made.namespace, gpus, template=True))
    return made


def claiming(cluster: Scene, name: str, gpus: int, *, queued: bool = True, **options: Any) -> Object:
    """A pod with a claim from a template, behind our gate or foreign to us."""
    options = {
        "grace": 0,
        "schedulingGates": [{"name": GATE}] if queued else [],
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": TEMPLATE.format(gpus)}],
        **options,
    }
    return builders.pod(name, cluster.namespace, 0, **options)


def allocations(cluster: Scene) -> dict[str, list[tuple[str, str]]]:
    """Uid of a pod -> the devices (pool, name) of its claims."""
    found: dict[str, list[tuple[str, str]]] = {}
    for claim in cluster.api.list("ResourceClaim", cluster.namespace):
        for user in claim.get("status", {}).get("reservedFor", ()):
            results = claim["status"]["allocation"]["devices"]["results"]
            found.setdefault(user["uid"], []).extend((one["pool"], one["device"]) for one in results)
    return found


def planned(pod: Object) -> set[tuple[str, str]]:
    """The planned devices of a released pod (pool, name)."""
    notes = pod["metadata"]["annotations"]
    return {(notes[PINNED], f"gpu-{gpu}") for gpu in notes[PLAN].split(",")}


def as_planned(pod: Object, found: Mapping[str, list[tuple[str, str]]]) -> bool:
    """Whether the pod runs on its planned node with exactly its planned devices. `found`: as `allocations`."""
    meta = pod["metadata"]
    node = meta["annotations"].get(PINNED)
    return node is not None and pod["spec"].get("nodeName") == node and planned(pod) == set(found[meta["uid"]])


def twice(cluster: Scene) -> list[tuple[str, str]]:
    """Devices that are allocated to more than one claim now."""
    held: Counter[tuple[str, str]] = Counter()
    for claim in cluster.api.list("ResourceClaim"):
        allocation = claim.get("status", {}).get("allocation") or {}
        held.update((one["pool"], one["device"]) for one in allocation.get("devices", {}).get("results", ()))
    return [device for device, count in held.items() if count > 1]


def test_a_pod_lands_on_exactly_the_planned_devices(scene: SceneFactory, api: Api, planning: Any) -> None:
    """First fit would give gpu-0 and gpu-1, which one link joins."""
    cluster = scene_of(scene, api, planning)
    for number in range(3):
        cluster.api.create(claiming(cluster, f"p{number}", 2))
    for number in range(3):
        bound(cluster, f"p{number}")
        pod = cluster.get(f"p{number}")
        assert as_planned(pod, allocations(cluster))
        assert frozenset(map(int, pod["metadata"]["annotations"][PLAN].split(","))) in LINKED
    assert twice(cluster) == []


def test_required_links_are_met_by_devices_that_do_not_come_first(scene: SceneFactory, api: Api, planning: Any) -> None:
    """Once 0 and 1 are held, the first four devices are 2 to 5, which are not linked; 4 to 7 are."""
    cluster = scene_of(scene, api, planning, nodes=1)
    cluster.api.create(claiming(cluster, "foreign", 2, queued=False))
    bound(cluster, "foreign")
    assert allocations(cluster)[cluster.get("foreign")["metadata"]["uid"]] == [("n0", "gpu-0"), ("n0", "gpu-1")]
    cluster.scheduler.kill()
    cluster.api.create(claiming(cluster, "p", 4, annotations={"gpu-extender.io/links": "required"}))
    text = "the queue has allocated gpu-4, gpu-5, gpu-6, gpu-7 of n0"
    wait_for(lambda: text in explained(cluster, "p").get("sentence", ""), 60, lambda: str(explained(cluster, "p")))
    cluster.scheduler.start()
    bound(cluster, "p")
    assert as_planned(cluster.get("p"), allocations(cluster))
    assert planned(cluster.get("p")) == {("n0", f"gpu-{gpu}") for gpu in (4, 5, 6, 7)}


def explained(cluster: Scene, name: str) -> dict[str, Any]:
    """What explain states of a pod; empty while the pod is not known."""
    reply = plain.get(f"{cluster.extender.url}/debug/explain?pod={cluster.namespace}/{name}")
    return dict(reply.json())


def opened(cluster: Scene, name: str) -> Object:
    """Wait until the gate of a pod is open."""
    wait_for(lambda: not cluster.get(name)["spec"].get("schedulingGates"), 60, lambda: str(cluster.get(name)["status"]))
    return cluster.get(name)


def claims_of(cluster: Scene, name: str) -> list[Object]:
    return [
        claim
        for claim in cluster.api.list("ResourceClaim", cluster.namespace)
        if any(one["name"] == name for one in claim["metadata"].get("ownerReferences", ()))
    ]


def test_the_plan_survives_a_cycle_in_which_the_pod_fits_nowhere(scene: SceneFactory, api: Api, planning: Any) -> None:
    """A foreign pod fills the CPU of the planned node. Without the pin kube-scheduler would deallocate the claim, and
    take the first free devices of another node."""
    cluster = scene_of(scene, api, planning)
    cluster.scheduler.kill()
    cluster.api.create(claiming(cluster, "p", 2, cpu="60"))
    pod = opened(cluster, "p")
    node = pod["metadata"]["annotations"][PINNED]
    before = claims_of(cluster, "p")[0]["status"]["allocation"]
    cluster.api.create(builders.pod("foreign", cluster.namespace, 0, cpu="100", node_name=node, grace=0))
    cluster.scheduler.start()
    cluster.unschedulable("p", "Insufficient cpu", 60)
    assert claims_of(cluster, "p")[0]["status"]["allocation"] == before
    cluster.api.delete("Pod", "foreign", cluster.namespace)
    assert bound(cluster, "p") == node
    assert as_planned(cluster.get("p"), allocations(cluster))


def test_a_pod_whose_planned_node_is_lost_is_evicted_and_replaced(scene: SceneFactory, api: Api, planning: Any) -> None:
    cluster = scene_of(scene, api, planning)
    cluster.scheduler.kill()
    cluster.api.create(builders.job("work", 1, claiming(cluster, "work", 2)))

    def pods() -> list[Object]:
        return cluster.api.list("Pod", cluster.namespace, labels="app=work")

    wait_for(lambda: pods() and not pods()[0]["spec"].get("schedulingGates"), 60, lambda: str(pods()))
    lost = pods()[0]["metadata"]["annotations"][PINNED]
    cluster.api.delete("Node", lost)
    cluster.api.delete("ResourceSlice", f"{lost}-{dra.DRIVER}")
    cluster.scheduler.start()
    # The eviction, and the Job's next pod after a backoff, and its place in the queue.
    wait_for(lambda: any(pod["spec"].get("nodeName") for pod in pods()), 120, lambda: str(pods()))
    [pod] = [pod for pod in pods() if pod["spec"].get("nodeName")]
    assert pod["spec"]["nodeName"] != lost
    assert as_planned(pod, allocations(cluster))


def test_what_cannot_be_planned_is_left_to_kube_scheduler(scene: SceneFactory, api: Api, planning: Any) -> None:
    """A constraint of the claim is not evaluated: the pod is released without planned devices, and not pinned."""
    cluster = scene_of(scene, api, planning)
    cluster.scheduler.kill()  # so that there is time to ask about the pod
    made = dra.claim("alike", cluster.namespace, 2)
    attribute = f"{dra.DRIVER}/productName"
    made["spec"]["devices"]["constraints"] = [{"requests": ["gpus"], "matchAttribute": attribute}]
    cluster.api.create(made)
    claims = [{"name": "gpus", "resourceClaimName": "alike"}]
    pod = builders.pod("p", cluster.namespace, 0, schedulingGates=[{"name": GATE}], resourceClaims=claims, grace=0)
    cluster.api.create(pod)
    left = "kube-scheduler allocates its devices by first fit: the constraints of its claim cannot be evaluated"
    wait_for(
        lambda: explained(cluster, "p").get("sentence", "").endswith(left), 60, lambda: str(explained(cluster, "p"))
    )
    cluster.scheduler.start()
    bound(cluster, "p")
    assert PINNED not in cluster.get("p")["metadata"]["annotations"]


def test_the_configuration_of_class_and_claim_is_in_the_allocation(
    scene: SceneFactory, api: Api, planning: Any
) -> None:
    """As kube-scheduler writes it for the same claim. A claim that outlives its pod is free again."""

    def opaque(kind: str) -> Object:
        return {"opaque": {"driver": dra.DRIVER, "parameters": {"apiVersion": "test/v1", "kind": kind}}}

    made = dra.device_class()
    made["spec"]["config"] = [opaque("OfTheClass")]
    cluster = scene_of(scene, api, planning, spec=made["spec"])
    found: list[Object] = []
    for name in ("ours", "theirs"):
        claim = dra.claim(name, cluster.namespace, 2)
        claim["spec"]["devices"]["requests"] *= 2
        claim["spec"]["devices"]["requests"][1] = {**claim["spec"]["devices"]["requests"][0], "name": "more"}
        claim["spec"]["devices"]["config"] = [{"requests": ["more"], **opaque("OfTheClaim")}, opaque("OfAll")]
        cluster.api.create(claim)
        gates = [{"name": GATE}] if name == "ours" else []
        claims = [{"name": "gpus", "resourceClaimName": name}]
        pod = builders.pod(
            name, cluster.namespace, 0, schedulingGates=gates, resourceClaims=claims, grace=0,
            node_selector={"kubernetes.io/hostname": "n0"},
        )  # fmt: skip
        cluster.api.create(pod)
        bound(cluster, name)
        found.append(cluster.api.get("ResourceClaim", name, cluster.namespace))
    ours, theirs = (one["status"]["allocation"] for one in found)
    assert ours["devices"]["config"] == theirs["devices"]["config"]
    assert ours["nodeSelector"] == theirs["nodeSelector"]
    assert ours.keys() == theirs.keys()
    assert [one["request"] for one in ours["devices"]["results"]] == ["gpus", "gpus", "more", "more"]
    assert [one.keys() for one in ours["devices"]["results"]] == [one.keys() for one in theirs["devices"]["results"]]
    assert found[0]["metadata"]["finalizers"] == found[1]["metadata"]["finalizers"]
    cluster.api.delete("Pod", "ours", cluster.namespace)
    wait_for(
        lambda: "allocation" not in cluster.api.get("ResourceClaim", "ours", cluster.namespace).get("status", {}),
        60,
        "the claim is free again",
    )


def test_a_taint_rule_keeps_foreign_pods_off_and_planned_ones_pass(
    scene: SceneFactory, api: Api, planning: Any
) -> None:
    """The fence: with it the queue is the only allocator of these devices."""
    cluster = scene_of(scene, api, planning, nodes=1)
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "fence"},
        "spec": {
            "deviceSelector": {"driver": dra.DRIVER},
            "taint": {"key": "gpu-extender.io/planned", "effect": "NoSchedule"},
        },
    }
    cluster.api.create(rule)
    cluster.scheduler.restart()  # it knows the rule from its start on
    cluster.api.create(claiming(cluster, "foreign", 1, queued=False))
    cluster.unschedulable("foreign", "cannot allocate all claims", 60)
    cluster.api.create(claiming(cluster, "p", 4))
    bound(cluster, "p")
    assert as_planned(cluster.get("p"), allocations(cluster))
    assert "nodeName" not in cluster.get("foreign")["spec"]


def arriving(cluster: Scene, rng: random.Random) -> Iterator[tuple[Object, ...]]:
    """Single pods, gangs and foreign pods, PODS of them behind our gate."""
    number = 0
    while number < PODS:
        size = min(rng.choice((1, 1, 1, 4)), PODS - number)
        gpus = rng.choice((1, 2, 2, 4))
        notes = {"gpu-extender.io/gang": f"g{number}", "gpu-extender.io/gang-size": str(size)} if size > 1 else {}
        made = [claiming(cluster, f"p{number + i}", gpus, annotations=notes) for i in range(size)]
        if rng.random() < 0.5:
            made.append(claiming(cluster, f"foreign-{number}", rng.choice((1, 2)), queued=False))
        yield tuple(made)
        number += size


def test_planned_is_allocated_with_kills_and_foreign_pods(scene: SceneFactory, api: Api, planning: Any) -> None:
    """The server is killed at random points; kube-scheduler allocates to foreign pods on the same nodes meanwhile."""
    rng = random.Random(17)
    cluster = scene_of(scene, api, planning, nodes=PODS // 2 + 4)
    began = time.monotonic()
    names = [f"p{number}" for number in range(PODS)]
    chaos = Chaos()
    chaos.always(lambda: kill_at_random(cluster, chaos, random.Random(18)))
    with chaos:
        for made in arriving(cluster, rng):
            cluster.api.create_many(made)

        def all_bound() -> bool:
            found = cluster.api.list("Pod", cluster.namespace)
            return len(found) >= PODS and all(pod["spec"].get("nodeName") for pod in found)

        # After each kill the next server has the Lease only once it has expired: 15 s.
        wait_for(all_bound, 180 + PODS, "all pods are bound", every=0.5)
    assert chaos.errors == []
    found = allocations(cluster)
    pods = {pod["metadata"]["name"]: pod for pod in cluster.api.list("Pod", cluster.namespace)}
    right = [name for name in names if as_planned(pods[name], found)]
    doubled = twice(cluster)
    print(
        f"{PODS} pods, {len(pods) - PODS} foreign: {len(right)} allocated as planned, {len(doubled)} devices twice, "
        f"{time.monotonic() - began:.0f} s"
    )
    assert doubled == []
    wrong = {name: (pods[name]["metadata"]["annotations"], found[pods[name]["metadata"]["uid"]]) for name in names}
    assert {name: one for name, one in wrong.items() if name not in right} == {}


def kill_at_random(cluster: Scene, chaos: Chaos, rng: random.Random) -> None:
    """SIGKILL, and a new server, until the test ends; three times at most for few pods."""
    for _ in range(max(3, PODS // 30)):
        if chaos.ended.wait(rng.uniform(0.5, 4.0)):
            return
        cluster.extender.restart()
