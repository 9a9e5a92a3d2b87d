"""Failing pods of one tenant reject nodes for its pods only; the server over it, asked as kube-scheduler asks."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from extender.cluster import node_health as health_module
from extender.cluster.node_health import NodeHealth
from extender.cluster.pod_failures import KEPT_OF_TENANT, KEPT_OF_TENANTS
from extender.objects import records
from extender.objects.pods import MOST_IMAGES, MOST_OF_IMAGE
from extender.objects.records import PodRecord
from extender.settings import FailingNodes, Placement, Settings
from tests.calls import calls_of
from tests.fuzz.sizes import sizes
from tests.objects.test_failure_cause import NVML
from tests.world import GPU, JSON, TEXT, World, refused, workload

DEAD: JSON = {"phase": "Failed"}
ADMISSION: JSON = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
FOR_ALL, FOR_ONE = TEXT["node-failing"], TEXT["node-failing-namespace"]


def pod(name: str, gpus: int = 1, *, namespace: str, image: str = "app:1", account: str = "", **facts: Any) -> JSON:
    made = workload(name, gpus, namespace=namespace, **facts)
    made["spec"]["containers"][0]["image"] = image
    made["spec"] |= {"serviceAccountName": account} if account else {}
    return made


def fails(world: World, name: str, node: str, status: JSON = DEAD, **facts: Any) -> None:
    """Bound, and failed in the same second."""
    made = pod(name, node=node, **facts)
    world.set("Pod", made)
    world.set("Pod", made | {"status": status})


def runs(world: World, name: str, node: str, namespace: str) -> None:
    made = pod(name, node=node, namespace=namespace)
    world.set("Pod", made)
    world.set("Pod", made | {"status": {"phase": "Running"}})


def why(world: World, namespace: str) -> dict[str, str]:
    """Why each node is rejected for a pod of the namespace."""
    return refused(world.filter(pod("p", namespace=namespace)))


def two(settings: Settings | None = None) -> World:
    world = World(settings)
    world.node("n1", 8)
    world.node("n2", 8)
    return world


def attacked(world: World) -> None:
    """Six bare pods of one tenant fail, three on each node; each has an image and a service account of its own."""
    for i in range(6):
        node = f"n{i // 3 + 1}"
        fails(world, f"bad{i}", node, namespace="evil", image=f"evil:{i}", account=f"account-{i}")


@pytest.fixture
def world() -> World:
    return two()


def test_six_bare_pods_reject_both_nodes_for_their_namespace_only(world: World) -> None:
    attacked(world)
    assert why(world, "evil") == {"n1": FOR_ONE, "n2": FOR_ONE}
    assert world.filter(pod("p", namespace="good"))["NodeNames"] == ["n1", "n2"]
    assert world.cluster.health.refused() == []
    world.call("/metrics", method="GET")
    assert world.metric("failing_nodes") == 0
    assert world.metric("failing_node_rejections", scope="namespace") == 2
    assert world.metric("failing_node_rejections", scope="all") == 0
    assert world.metric("pod_failures_total", what="died") == 6
    world.now += 600.0
    assert why(world, "evil") == {}
    world.call("/metrics", method="GET")
    assert world.metric("failing_node_rejections", scope="namespace") == 0


def test_a_tenants_failures_are_doubt_for_its_pods_only(world: World) -> None:
    fails(world, "bad", "n1", namespace="evil")
    assert world.filter(pod("p", namespace="evil"))["NodeNames"] == ["n2", "n1"]
    assert world.filter(pod("p", namespace="good"))["NodeNames"] == ["n1", "n2"]
    shown = {node["node"]: node for node in world.decision(pod="good/p")["nodes"]}
    assert shown["n1"]["scores"]["bad_nodes"]["raw"] == 1.0
    assert "failures" not in shown["n1"]  # nor is another tenant's failure told where it does not count
    fails(world, "reported", "n1", ADMISSION, namespace="evil")
    assert world.filter(pod("q", namespace="good"))["NodeNames"] == ["n2", "n1"]
    assert world.decision(pod="good/q")["nodes"][1]["scores"]["bad_nodes"]["raw"] == 0.5
    world.filter(pod("q", namespace="evil"))
    assert world.decision(pod="evil/q")["nodes"][1]["scores"]["bad_nodes"]["raw"] == 1 / 3


def test_the_decision_says_which_scope_rejected(world: World) -> None:
    attacked(world)
    for i in range(3):
        fails(world, f"reported{i}", "n2", ADMISSION, namespace="good")
    world.filter(pod("p", namespace="evil"))
    nodes = {node["node"]: node for node in world.decision(pod="evil/p")["nodes"]}
    assert (nodes["n1"]["scope"], nodes["n2"]["scope"]) == ("namespace", "all")
    assert nodes["n1"]["reason"] == "node-failing-namespace"
    assert nodes["n1"]["class"] == "transient"
    assert "for pods of this namespace" in nodes["n1"]["text"]
    assert [one["pod"] for one in nodes["n1"]["failures"]] == ["evil/bad0", "evil/bad1", "evil/bad2"]


@pytest.mark.parametrize(
    ("image", "account", "rejected"),
    [("other:1", "default", True), ("evil:1", "default", False)],  # an image in common is suspected first
)
def test_two_independent_parties_reject_a_node_for_all(world: World, image: str, account: str, rejected: bool) -> None:
    fails(world, "a", "n1", namespace="one", image="evil:1")
    fails(world, "b", "n1", namespace="one", image="evil:1")
    fails(world, "c", "n1", namespace="two", image=image, account=account)
    assert why(world, "good") == ({"n1": FOR_ALL} if rejected else {})


def test_kubelets_word_of_one_tenants_pods_is_enough(world: World) -> None:
    broken: JSON = {
        "phase": "Pending",
        "containerStatuses": [
            {"name": "main", "restartCount": 2, "state": {"waiting": {"reason": "RunContainerError", "message": NVML}}}
        ],
    }
    fails(world, "a", "n1", ADMISSION, namespace="one")
    fails(world, "b", "n1", ADMISSION, namespace="two")
    for _ in range(2):  # a pod counts once, however often its container is tried
        fails(world, "c", "n1", broken, namespace="one")
    assert why(world, "good") == {"n1": FOR_ALL}
    world.call("/metrics", method="GET")
    assert world.metric("pod_failures_total", what="runtime") == 1


def test_asking_past_the_scheduler_counts_for_the_tenant_only(world: World) -> None:
    """spec.nodeName, and more GPUs than are free: kubelet answers UnexpectedAdmissionError."""
    message = f"Allocate failed due to requested number of devices unavailable for {GPU}. Requested: 9, Available: 8"
    for i in range(3):
        fails(world, f"a{i}", "n1", ADMISSION | {"message": message}, namespace="evil")
        fails(world, f"b{i}", "n2", {"phase": "Failed", "reason": f"OutOf{GPU}"}, namespace="evil")
    assert why(world, "good") == {}
    assert why(world, "evil") == {"n1": FOR_ONE, "n2": FOR_ONE}


def test_a_pod_that_names_another_tenants_owner_takes_nothing_back(world: World) -> None:
    """An owner's uid may stand in any pod: only pods of its own namespace blame a workload."""
    for i in range(3):
        fails(world, f"honest{i}", "n1", namespace="good", owner="Job")
    for i, node in enumerate(("n1", "n2")):
        fails(world, f"forged{i}", node, namespace="evil", owner="Job")  # with the same uid-owner
    assert why(world, "good") == {"n1": FOR_ONE}


def test_who_clears_what(world: World) -> None:
    attacked(world)
    fails(world, "mine", "n1", namespace="good", image="good:1")
    assert why(world, "third") == {"n1": FOR_ALL}  # two parties
    world.now += 1.0
    runs(world, "healthy", "n1", "good")
    world.now += 60.0
    assert why(world, "third") == {}
    assert why(world, "evil") == {"n1": FOR_ONE, "n2": FOR_ONE}  # what another tenant's pods do proves nothing here
    assert world.cluster.health.doubt("n1", world.now, "good") == 0.0
    runs(world, "repaired", "n1", "evil")
    world.now += 60.0
    assert why(world, "evil") == {"n2": FOR_ONE}


def test_a_device_that_was_handed_to_any_pod_clears_what_kubelet_reported(world: World) -> None:
    for i in range(3):
        fails(world, f"a{i}", "n1", ADMISSION, namespace="one")
    assert why(world, "good") == {"n1": FOR_ALL}
    world.now += 1.0
    runs(world, "healthy", "n1", "two")
    world.now += 60.0
    assert why(world, "good") == why(world, "one") == {}


def test_a_pod_that_asks_the_runtime_for_no_gpu_clears_nothing_of_others(world: World) -> None:
    """With NVIDIA_VISIBLE_DEVICES=void it runs on a node whose driver is not loaded."""
    broken: JSON = {
        "phase": "Pending",
        "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "RunContainerError", "message": NVML}}}],
    }
    for i in range(3):
        fails(world, f"a{i}", "n1", broken, namespace="one")
    assert why(world, "good") == {"n1": FOR_ALL}
    world.now += 1.0
    runs(world, "void", "n1", "evil")
    world.now += 60.0
    assert why(world, "good") == {"n1": FOR_ALL}
    runs(world, "repaired", "n1", "one")
    world.now += 60.0
    assert why(world, "good") == {}


def test_rows_follow_their_nodes(world: World) -> None:
    """A node that goes takes what was held on it along; another that gets its row starts clean."""
    attacked(world)
    world.drop("Node", {"metadata": {"name": "n1", "uid": "uid-n1"}})
    world.node("n3", 8)
    assert why(world, "evil") == {"n2": FOR_ONE}
    world.drop("Node", {"metadata": {"name": "n2", "uid": "uid-n2"}})
    assert world.cluster.tables.places.namespaces() == []
    for i in range(3):  # listed before its node
        fails(world, f"early{i}", "n4", namespace="evil")
    assert world.cluster.tables.places.namespaces() == []
    world.node("n4", 8)
    assert why(world, "evil") == {"n4": FOR_ONE}


@pytest.mark.parametrize(
    ("reject", "own", "others"),
    [("all", FOR_ALL, FOR_ALL), ("namespace", FOR_ONE, ""), ("none", "", "")],
)
def test_the_setting_says_whose_pods_are_rejected(reject: Any, own: str, others: str) -> None:
    world = two(Settings(failing_nodes=FailingNodes(reject=reject)))
    for i in range(3):
        fails(world, f"a{i}", "n1", ADMISSION, namespace="one")
    assert why(world, "one") == ({"n1": own} if own else {})
    assert why(world, "good") == ({"n1": others} if others else {})
    assert world.filter(pod("q", namespace="good"))["NodeNames"][0] == "n2"  # the scorer stays


def test_the_settings_numbers_count_and_stand_in_the_texts() -> None:
    world = two(Settings(failing_nodes=FailingNodes(failures=2, window_seconds=120)))
    for i in range(2):
        fails(world, f"a{i}", "n1", ADMISSION, namespace="one")
    text = "gpu-extender: GPU pods failed on the node twice within 2 minutes"
    assert why(world, "good") == {"n1": text}
    assert world.decision(pod="good/p")["nodes"][1]["text"] == text
    world.now += 120.0
    assert why(world, "good") == {}


def test_a_group_begins_where_its_namespace_may_go() -> None:
    """The scorer topology_level counts no room on nodes that are rejected for the group's own namespace."""
    world = two(Settings(placement=Placement(default="pack")))
    for i in range(3):
        fails(world, f"bad{i}", "n1", namespace="evil")
    members = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-min": "2"}
    scores = {}
    for namespace in ("evil", "good"):
        member = pod("member", 4, namespace=namespace, annotations=members)
        world.filter(member)
        (decision,) = world.call(f"/debug/decisions?pod={namespace}/member&most=1", method="GET").json["decisions"]
        scores[namespace] = {
            node["node"]: node["scores"]["topology_level"]["raw"] for node in decision["nodes"] if node["fits"]
        }
    assert scores["good"]["n1"] == scores["good"]["n2"] == scores["evil"]["n2"]
    assert list(scores["evil"]) == ["n2"]


# -- bounds ------------------------------------------------------------------------------------------------------------


def record(name: str, namespace: str, node: str, status: JSON) -> PodRecord:
    return records.pod(pod(name, node=node, namespace=namespace) | {"status": status}, frozenset({GPU}))


def test_state_and_work_stay_bounded_under_a_flood() -> None:
    """4,000 failing pods of 20 tenants on 500 nodes, as fast as they come: memory is bounded, and so is each tick."""
    health, chance, spent = NodeHealth(), random.Random(3), []
    shape = record("p", "ns", "node", {"phase": "Pending"})
    for i in range(4_000):
        now = i / 20
        space, node, image = f"ns-{chance.randrange(20)}", f"node-{chance.randrange(500)}", f"a:{chance.randrange(50)}"
        facts = {"uid": f"uid-{i}", "name": f"p{i}", "namespace": space, "node": node, "images": (image,)}
        bound = msgspec.structs.replace(shape, **facts)
        health.pod(bound, None, now)
        health.pod(msgspec.structs.replace(bound, phase="Failed"), bound, now)
        if i % 20 == 0:
            spent.append(calls_of(lambda: health.tick(now)))  # noqa: B023
            health.stale.clear()
            health.verdicts.stale_tenants.clear()
    assert 1_500 < len(health) <= KEPT_OF_TENANTS
    assert all(len(health.verdicts.standings(f"ns-{i}")) <= KEPT_OF_TENANT for i in range(20))
    assert not health._starts
    assert max(spent) < 100_000, "functions that a tick calls; at most 41,000 here"
    for second in range(200):
        health.tick(1e6 + 10 * second)
        health.stale.clear()
    health.verdicts.stale_tenants.clear()
    assert sizes(health) == sizes(NodeHealth())  # nothing is left


def test_what_is_remembered_of_pods_that_ended_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "MOST_JUDGED", 100)
    health = NodeHealth()
    shape = record("p", "ns", "node", {"phase": "Pending"})
    for i in range(1_000):
        bound = msgspec.structs.replace(shape, uid=f"uid-{i}", name=f"p{i}")
        health.pod(bound, None, float(i))
        health.pod(msgspec.structs.replace(bound, phase="Failed"), bound, float(i))
        health.gone(bound, float(i))
        health.tick(float(i))
    assert len(health._judged) <= 110  # what has come since it was trimmed, every five seconds
    assert len(health._left) <= 70


def test_what_the_record_keeps_of_images_is_bounded() -> None:
    made = pod("p", namespace="evil")
    made["spec"]["containers"] = [
        {"name": f"c{i}", "image": f"{i:03d}" + "x" * 5_000, "resources": {"limits": {GPU: "1"}}} for i in range(20)
    ]
    kept = records.pod(made, frozenset({GPU})).images
    assert len(kept) == MOST_IMAGES
    assert all(len(image) == MOST_OF_IMAGE for image in kept)
    plain = records.pod(pod("q", 0, namespace="evil"), frozenset({GPU}))
    assert (plain.images, plain.service_account, plain.fault) == ((), "default", "")
