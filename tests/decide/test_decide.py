"""filter and prioritize: what a pod asks for, what it is measured against, and what is said of a node that refuses."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from extender.decide.verbs import SAMPLED_SECONDS
from extender.policy.contracts import Class
from extender.policy.policy import Policy
from extender.policy.reasons import REASONS
from extender.reservations.reservations import Reservation
from extender.settings import Settings, Shortlist
from tests.calls import calls_of
from tests.world import AMD, GPU, JSON, TEXT, World, logged, pairs, refused, workload

NEW = Settings(scheduler_version="1.38")
OLD = Settings()


def switch(gpus: int = 8) -> list[list[int]]:
    return [[2 if a != b else 0 for b in range(gpus)] for a in range(gpus)]


def fits(world: World, pod: Any, node: str = "n") -> bool:
    """Whether filter lets the pod onto one node, asked as a new pod."""
    world.verbs.assumed.forget(pod["metadata"]["uid"])
    answer = world.filter(pod, [node])
    world.verbs.assumed.forget(pod["metadata"]["uid"])
    return bool(answer["NodeNames"])


# -- what a pod asks for ----------------------------------------------------------------------------------------------


def container(name: str, gpus: str | None, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": {GPU: gpus}} if gpus is not None else {}} | more


def both(containers: list[Any], first: list[Any]) -> dict[str, Any]:
    return {"containers": containers, "initContainers": first}


ASKS: list[tuple[str, dict[str, Any], int]] = [
    ("limits alone", {"containers": [container("a", "3")]}, 3),
    ("requests alone", {"containers": [{"name": "a", "resources": {"requests": {GPU: "3"}}}]}, 3),
    ("containers add up", {"containers": [container("a", "2"), container("b", "1")]}, 3),
    ("an init container that asks for more", both([container("a", "1")], [container("i", "5")]), 5),
    ("an init container that asks for less", both([container("a", "4")], [container("i", "3")]), 4),
    ("init containers run one by one", both([container("a", "1")], [container("i", "2"), container("j", "2")]), 2),
    (
        "a sidecar stays",
        {"containers": [container("a", "2")], "initContainers": [container("i", "3", restartPolicy="Always")]},
        5,
    ),
    (
        "an init container next to a sidecar that was started before",
        {
            "containers": [container("a", "1")],
            "initContainers": [container("s", "2", restartPolicy="Always"), container("i", "4")],
        },
        6,
    ),
    (
        "an init container before a sidecar",
        {
            "containers": [container("a", "1")],
            "initContainers": [container("i", "4"), container("s", "2", restartPolicy="Always")],
        },
        4,
    ),
    ("overhead", {"containers": [container("a", "2")], "overhead": {GPU: "1"}}, 3),
    ("a quantity with a suffix", {"containers": [container("a", "3000m")]}, 3),
]


@pytest.mark.parametrize(("spec", "gpus"), [case[1:] for case in ASKS], ids=[case[0] for case in ASKS])
def test_gpus_are_summed_as_kubernetes_sums_them(world: World, spec: dict[str, Any], gpus: int) -> None:
    world.node("exact", gpus)
    world.node("short", gpus - 1)
    answer = world.filter(workload("p", spec=spec))
    assert answer["NodeNames"] == ["exact"]
    assert answer["FailedAndUnresolvableNodes"] == {"short": TEXT["too-few-gpus" if gpus > 1 else "no-gpu-resource"]}
    assert world.decision()["pod"]["gpus"] == {GPU: gpus}


def test_each_of_two_resource_names_has_to_fit(world: World) -> None:
    for name, amounts in {"both": {GPU: "2", AMD: "2"}, "nvidia": {GPU: "8"}, "amd": {AMD: "8"}}.items():
        status = {"cpu": "64", "memory": "512Gi", "pods": "110", **amounts}
        world.set("Node", {"metadata": {"name": name}, "status": {"allocatable": status, "capacity": status}})
    pod = workload("p", spec={"containers": [{"name": "a", "resources": {"limits": {GPU: "1", AMD: "2"}}}]})
    answer = world.filter(pod)
    assert answer["NodeNames"] == ["both"]
    assert set(refused(answer)) == {"nvidia", "amd"}
    assert world.filter(workload("q", 4, resource=AMD))["NodeNames"] == ["amd"]


def test_a_quantity_of_0_of_one_name_does_not_hide_the_other(world: World) -> None:
    world.node("n", 4)
    pod = workload("p", spec={"containers": [{"name": "a", "resources": {"limits": {GPU: "4", AMD: "0"}}}]})
    assert fits(world, pod)


# -- what it is measured against ---------------------------------------------------------------------------------------

COUNTED: list[tuple[str, Callable[[World], object], bool]] = [
    ("nothing", lambda w: None, True),
    ("a running pod", lambda w: w.pod("r", 1, "n"), False),
    ("a bound pod that has not started", lambda w: w.pod("r", 1, "n", phase="Pending"), False),
    ("a terminating pod", lambda w: w.pod("r", 1, "n", terminating=w.wall), False),
    ("a pod of unknown phase", lambda w: w.pod("r", 1, "n", phase="Unknown"), False),
    ("a succeeded pod", lambda w: w.pod("r", 1, "n", phase="Succeeded"), True),
    ("a failed pod", lambda w: w.pod("r", 1, "n", phase="Failed"), True),
    ("a pod elsewhere", lambda w: w.pod("r", 1, "other"), True),
    ("a pod with the other resource", lambda w: w.pod("r", 1, "n", resource=AMD), True),
    ("a nominated pod of higher priority", lambda w: w.pod("r", 1, nominated="n", priority=6), False),
    ("a nominated pod of equal priority", lambda w: w.pod("r", 1, nominated="n", priority=5), False),
    ("a nominated pod of lower priority", lambda w: w.pod("r", 1, nominated="n", priority=4), True),
    ("its own nomination", lambda w: w.pod("p", 8, nominated="n", priority=5), True),
    ("a nominated pod that goes", lambda w: w.pod("r", 1, nominated="n", priority=6, terminating=w.wall), True),
    ("a nominated pod without GPUs", lambda w: w.pod("r", 0, nominated="n", priority=6), True),
    ("a held pod", lambda w: w.filter(workload("r", 1), ["n"]), False),
    ("its own hold", lambda w: w.filter(workload("p", 8, priority=5), ["n"]), True),
]


@pytest.mark.parametrize(("prepare", "there"), [case[1:] for case in COUNTED], ids=[case[0] for case in COUNTED])
def test_what_counts_as_taken(world: World, prepare: Callable[[World], object], there: bool) -> None:
    world.node("n", 8)
    world.node("other", 8)
    prepare(world)
    assert fits(world, workload("p", 8, priority=5)) == there


def test_another_nominated_pod_costs_a_call_a_few_steps() -> None:
    spent = []
    for count in (0, 100):
        world = World()
        world.node("n", 8)
        for i in range(count):
            world.node(f"other-{i}", 8)
            world.pod(f"r{i}", 1, nominated=f"other-{i}", priority=6)
        assert fits(world, workload("p", 8, priority=5))
        spent.append(calls_of(lambda: fits(world, workload("p", 8, priority=5))))  # noqa: B023
    assert (spent[1] - spent[0]) / 100 < 20, "calls of functions for each nominated pod"


def test_a_pod_that_changes_is_counted_as_it_is_now(world: World) -> None:
    world.node("n", 8)
    pod = world.pod("r", 3, "n")
    assert fits(world, workload("p", 5))
    assert not fits(world, workload("p", 6))
    world.set("Pod", pod | {"status": {"phase": "Succeeded"}})
    assert fits(world, workload("p", 8))
    world.pod("r2", 3, "n")
    world.gone("r2")
    assert fits(world, workload("p", 8))


def test_a_node_that_comes_back_has_its_pods_still(world: World) -> None:
    node = world.node("n", 8)
    world.pod("r", 3, "n")
    world.drop("Node", node)
    world.node("n", 8)
    assert not fits(world, workload("p", 6))
    assert fits(world, workload("p", 5))


# -- why a node is refused ---------------------------------------------------------------------------------------------


def _held_positions(world: World, priority: int) -> None:
    world.node("n", 4, links=pairs(4))
    world.pod("a", 1, "n", priority=priority, held=[1])
    world.pod("b", 1, "n", priority=priority, held=[3])


def _node(gpus: int, **facts: Any) -> Callable[[World], None]:
    return lambda world: (world.node("n", gpus, **facts), None)[1]


def _with(gpus: int, *acts: Callable[[World], object], **facts: Any) -> Callable[[World], None]:
    def prepare(world: World) -> None:
        world.node("n", gpus, **facts)
        for act in acts:
            act(world)

    return prepare


def _evicting_elsewhere(world: World) -> None:
    world.node("n", 2)
    world.verbs.reservations.add(Reservation("uid-p", "ok", ("uid-v",), (0, 0, 1, 2, 0), 5, world.now, own=True))


def _three_failures(world: World) -> None:
    world.node("n", 2)
    for i in range(3):
        pod = world.pod(f"bad{i}", 2, "n", phase="Pending")
        world.set("Pod", pod | {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}})


def _three_deaths(world: World) -> None:
    world.node("n", 2)
    for i in range(3):
        pod = world.pod(f"bad{i}", 2, "n", phase="Pending")
        world.set("Pod", pod | {"status": {"phase": "Failed"}})


WHY: dict[str, tuple[Callable[[World], None], str]] = {
    "unknown-node": (lambda world: None, ""),
    "freed-elsewhere": (_evicting_elsewhere, ""),
    "no-gpu-resource": (_node(0), ""),
    "device-plugin-away": (_node(0, capacity=8), ""),
    "node-failing": (_three_failures, ""),
    "node-failing-namespace": (_three_deaths, ""),
    "too-few-gpus": (_node(1), ""),
    "gpus-promised": (_with(2, lambda w: w.filter(workload("first", 1), ["n"])), ""),
    "gpus-reserved": (_with(2, lambda w: w.pod("nominated", 2, nominated="n", priority=50)), ""),
    "gpus-releasing": (_with(2, lambda w: w.pod("going", 2, "n", priority=50, terminating=w.wall)), ""),
    "gpus-busy": (_with(2, lambda w: w.pod("low", 1, "n", priority=4)), ""),
    "gpus-held": (_with(2, lambda w: w.pod("equal", 1, "n", priority=5)), ""),
    "links-shared": (_node(8, labels={"nvidia.com/gpu.count": "2", "nvidia.com/gpu.replicas": "4"}), "required"),
    "links-unknown": (_node(2), "required"),
    "links-never": (_node(2, links=[[0, 0], [0, 0]]), "required"),
    "links-pending": (_with(4, lambda w: w.pod("fresh", 2, "n", phase="Pending"), links=pairs(4)), "required"),
    "links-busy": (lambda world: _held_positions(world, 4), "required"),
    "links-held": (lambda world: _held_positions(world, 5), "required"),
}


def test_who_is_protected_can_not_be_evicted_until_then() -> None:
    world = World(NEW)
    world.node("n", 2, links=switch(2))
    world.pod("low", 2, "n", held=(0, 1), start=world.wall - 60, annotations={"gpu-extender.io/protect-for": "10m"})
    pod = workload("p", 2, priority=5)
    answer = world.filter(pod, ["n"])
    assert answer["FailedAndUnresolvableNodes"] == {"n": TEXT["gpus-held"]}
    assert world.preempt(pod, {"n": ["low"]}) == {}
    world.now, world.wall = world.now + 600, world.wall + 600
    assert world.filter(pod, ["n"])["FailedNodes"] == {"n": TEXT["gpus-busy"]}
    assert world.preempt(pod, {"n": ["low"]}) == {"n": ["low"]}


ALONE = sorted(WHY.keys() - {"freed-elsewhere"})  # those of a node that is the only one named


def test_every_reason_is_tried() -> None:
    # tests/cluster/test_plugin_faults.py, tests/act, tests/test_doubt.py, and here test_seats.py, test_nics.py,
    # test_links_at_once.py, test_claims_unmet.py
    elsewhere = {
        "claim-unmet",
        "nics-unknown",
        "nics-never",
        "nics-pending",
        "nics-held",
        "plugin-panics",
        "plugin-lost-gpu",
        "freed-elsewhere",
        "view-stale",
        "seat-elsewhere",
        "seat-moves",
        "queued",
        "links-beside",
        "links-started",
        "gpus-for-a-date",
    }
    assert {reason.key for reason in REASONS.values()} == set(WHY) | elsewhere


@pytest.mark.parametrize("settings", [OLD, NEW], ids=["1.37", "1.38"])
@pytest.mark.parametrize("key", sorted(WHY))
def test_a_reason_and_the_map_that_it_stands_in(key: str, settings: Settings) -> None:
    world = World(settings)
    prepare, links = WHY[key]
    prepare(world)
    world.node("ok", 2, links=switch(2))
    reason = next(reason for reason in REASONS.values() if reason.key == key)
    answer = world.filter(workload("p", 2, priority=5, links=links), ["n", "ok"])
    assert answer["NodeNames"] == ["ok"]
    assert answer["Error"] == ""
    hopeless = settings is OLD or reason.cls is Class.HOPELESS or key == "unknown-node"
    assert answer["FailedNodes"] == ({} if hopeless else {"n": reason.text})
    assert answer["FailedAndUnresolvableNodes"] == ({"n": reason.text} if hopeless else {})
    assert world.metric("refused_nodes_total", code=key) == 1
    shown = {node["node"]: node for node in world.decision(pod="default/p")["nodes"]}
    assert shown["n"]["reason"] == key
    assert shown["n"]["class"] == reason.cls.value
    assert shown["ok"]["fits"]


@pytest.mark.parametrize("settings", [OLD, NEW], ids=["1.37", "1.38"])
@pytest.mark.parametrize("key", ALONE)
def test_only_a_view_that_may_be_behind_is_an_error(key: str, settings: Settings) -> None:
    """An Error makes kube-scheduler try again within seconds and evict nobody."""
    world = World(settings)
    prepare, links = WHY[key]
    prepare(world)
    reason = next(reason for reason in REASONS.values() if reason.key == key)
    answer = world.filter(workload("p", 2, priority=5, links=links), ["n"])
    if reason.cls is Class.TRANSIENT and not reason.lasting:
        assert answer == {
            "Nodes": None,
            "NodeNames": None,
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {},
            "Error": reason.text,
        } or (not answer["NodeNames"] and answer["Error"] == reason.text)
    else:
        assert answer["Error"] == ""
        assert answer["NodeNames"] == []
        assert refused(answer) == {"n": reason.text}


@pytest.mark.parametrize("settings", [OLD, NEW], ids=["1.37", "1.38"])
@pytest.mark.parametrize("key", sorted(set(ALONE) - {"unknown-node"}))
def test_a_nominated_pod_never_gets_an_error(key: str, settings: Settings) -> None:
    """It would clear the nomination. Its node is in FailedNodes unless it is hopeless: else it preempts again."""
    world = World(settings)
    prepare, links = WHY[key]
    prepare(world)
    reason = next(reason for reason in REASONS.values() if reason.key == key)
    answer = world.filter(workload("p", 2, priority=5, links=links, nominated="n"), ["n"])
    assert answer["Error"] == ""
    assert answer["NodeNames"] == []
    where = "FailedAndUnresolvableNodes" if reason.cls is Class.HOPELESS else "FailedNodes"
    assert answer[where] == {"n": reason.text}
    assert list(refused(answer)) == ["n"]


def test_a_nominated_node_that_we_do_not_know_is_in_failed_nodes(world: World) -> None:
    """In the other map the pod may preempt a second time (contract, T4)."""
    world.node("a", 1)
    answer = world.filter(workload("p", 2, priority=5, nominated="n"), ["n"])
    assert answer["Error"] == ""
    assert answer["FailedNodes"] == {"n": TEXT["unknown-node"]}


def test_the_nominated_node_alone_is_in_failed_nodes_up_to_1_37(world: World) -> None:
    for name in ("a", "b", "c"):
        world.node(name, 2)
        world.pod(f"low-{name}", 2, name, priority=1)
    answer = world.filter(workload("p", 2, priority=5, nominated="b"))
    assert answer["FailedNodes"] == {"b": TEXT["gpus-busy"]}
    assert answer["FailedAndUnresolvableNodes"] == {"a": TEXT["gpus-busy"], "c": TEXT["gpus-busy"]}


def test_a_transient_refusal_next_to_a_plain_one_is_an_error_while_nothing_fits(world: World) -> None:
    world.node("a", 1)
    answer = world.filter(workload("p", 2), ["a", "new"])
    assert answer["Error"] == TEXT["unknown-node"]


def test_a_node_that_stays_unknown_is_refused_plainly_in_the_end(world: World) -> None:
    world.node("a", 1)
    assert world.filter(workload("p", 2), ["a", "strange"])["Error"]
    world.now += 61
    answer = world.filter(workload("p", 2), ["a", "strange"])
    assert answer["Error"] == ""
    assert set(refused(answer)) == {"a", "strange"}


def test_a_device_plugin_that_stays_away_means_no_gpus(world: World) -> None:
    world.node("n", 0, capacity=8)
    assert world.filter(workload("p", 1))["Error"] == TEXT["device-plugin-away"]
    world.now += 61
    answer = world.filter(workload("p", 1))
    assert refused(answer) == {"n": TEXT["no-gpu-resource"]}
    assert answer["Error"] == ""


def test_every_candidate_is_answered_for_exactly_once() -> None:
    world = World(Settings(shortlist=Shortlist(size=0)))
    for i in range(30):
        world.node(f"n{i:02}", i % 5)
    names = [*world.cluster.nodes, "strange"]
    answer = world.filter(workload("p", 2), names)
    said = [*answer["NodeNames"], *answer["FailedNodes"], *answer["FailedAndUnresolvableNodes"]]
    assert sorted(said) == sorted(names)


def test_reasons_hold_nothing_that_varies() -> None:
    """kube-scheduler counts equal strings."""
    for reason in REASONS.values():
        assert not any(letter.isdigit() for letter in reason.text.replace("gpu-extender", ""))


# -- GPUs by DRA -------------------------------------------------------------------------------------------------------


def test_a_node_without_the_resource_passes_last_where_a_device_class_serves_the_name(world: World) -> None:
    world.node("dra", 0)
    world.node("plain", 8)
    world.set("DeviceClass", {"metadata": {"name": "gpu.example.com"}, "spec": {"extendedResourceName": GPU}})
    pod = workload("p", 2)
    assert world.filter(pod)["NodeNames"] == ["plain", "dra"]
    points = world.prioritize(pod)
    assert points["plain"] == 10
    assert points["dra"] < points["plain"]
    shown = {node["node"]: node for node in world.decision(pod="default/p")["nodes"]}
    assert shown["dra"]["score"] < shown["plain"]["score"]
    assert shown["dra"]["score"] == min(node["score"] for node in shown.values())


def test_debug_decisions_says_which_nodes_dra_serves(world: World) -> None:
    world.node("bare", 0)
    world.node("plain", 8)
    world.set("DeviceClass", {"metadata": {"name": "gpu.example.com"}, "spec": {"extendedResourceName": GPU}})
    world.filter(workload("p", 2))
    shown = {node["node"]: node for node in world.decision()["nodes"]}
    assert shown["bare"]["served_by"] == "DRA"
    assert "served_by" not in shown["plain"]


def test_a_device_class_of_another_name_changes_nothing(world: World) -> None:
    world.node("n", 0)
    world.set("DeviceClass", {"metadata": {"name": "x"}, "spec": {"extendedResourceName": "example.com/fpga"}})
    assert refused(world.filter(workload("p", 2))) == {"n": TEXT["no-gpu-resource"]}


# -- sampling ----------------------------------------------------------------------------------------------------------


FLEET = [f"n{at:03}" for at in range(110)]


def fleet(**facts: Any) -> World:
    world = World()
    for name in FLEET:
        world.node(name, 8, **facts)
    return world


def test_a_sampling_scheduler_is_counted_and_warned_of_once() -> None:
    world = fleet()
    world.node("cordoned", 8, unschedulable=True)
    world.node("no-gpus", 0)
    with logged() as lines:
        world.filter(workload("all", 1), FLEET)
        assert world.metric("sampled_requests_total") == 0
        for _ in range(3):
            world.now += SAMPLED_SECONDS
            world.filter(workload("some", 1), FLEET[:100])
        assert world.decision()["sampled"] == {"named": 100, "schedulable_gpu_nodes": 110, "left_out": 10}
        world.filter(workload("some", 1), FLEET[:100])  # too early
        world.filter(workload("no-gpus"), FLEET[:100])
    assert world.metric("sampled_requests_total") == 3
    assert sum("percentageOfNodesToScore" in line["event"] for line in lines) == 1


def test_nodes_that_kube_scheduler_rejects_itself_are_no_sample() -> None:
    """It names no node that is full, short of CPU, tainted or not selected."""
    world = fleet(labels={"pool": "a"})
    for name, gpus in zip(FLEET[100:], (8, 8, 8, 8, 7, 7, 0, 0, 0, 0), strict=True):
        if gpus:
            world.pod(f"on-{name}", gpus, node=name, phase="Running")
        else:
            world.node(name, 8, labels={"pool": "b"})
    world.filter(workload("p", 2, spec={"nodeSelector": {"pool": "a"}}), FLEET[:100])
    assert world.metric("sampled_requests_total") == 0
    world.now += SAMPLED_SECONDS
    world.filter(workload("q", 1), FLEET[:100])  # six of the others fit
    assert world.metric("sampled_requests_total") == 1


def test_fewer_nodes_than_the_least_sample_are_no_sample() -> None:
    """The nominated node alone, for example; and a few nodes may have pods that only kube-scheduler knows yet."""
    world = fleet()
    for named in (FLEET[:1], FLEET[:99], FLEET[:106]):
        world.now += 1
        world.filter(workload("p", 1, nominated=FLEET[0]), named)
    world.now += 1
    world.filter(workload("v", 1, spec={"volumes": [{"name": "x", "ephemeral": {}}]}), FLEET[:100])
    assert world.metric("sampled_requests_total") == 0


# -- shortlist ---------------------------------------------------------------------------------------------------------


def many(settings: Settings | None = None, nodes: int = 40) -> World:
    """Nodes with 0..3 of 8 GPUs taken, so that their order matters."""
    world = World(settings)
    for i in range(nodes):
        world.node(f"n{i:02}", 8)
        if i % 4:
            world.pod(f"r{i:02}", i % 4, f"n{i:02}")
    return world


def test_the_first_attempt_gets_the_best_16_and_a_retry_all() -> None:
    world = many()
    first = world.filter(workload("p", 1))
    assert len(first["NodeNames"]) == 16
    assert refused(first) == {}
    world.now += 599
    retry = world.filter(workload("p", 1))
    assert len(retry["NodeNames"]) == 40
    assert retry["NodeNames"][:16] == first["NodeNames"]
    assert refused(retry) == {}
    world.now += 601
    assert len(world.filter(workload("p", 1))["NodeNames"]) == 16


def test_the_best_come_first() -> None:
    world = many()
    pod = workload("p", 1)
    names = world.filter(pod)["NodeNames"]
    full = [f"n{i:02}" for i in range(3, 40, 4)]  # 3 of 8 taken: they pack best
    assert names[:10] == full
    shown = [node["score"] for node in world.decision()["nodes"] if node["answered"]]
    assert len(shown) == 16
    assert shown == sorted(shown, reverse=True)


@pytest.mark.parametrize("size", [0, 1, 5, 100])
def test_the_size_of_the_shortlist(size: int) -> None:
    world = many(Settings(shortlist=Shortlist(size=size)))
    assert len(world.filter(workload("p", 1))["NodeNames"]) == (min(size, 40) or 40)


PREFERS: dict[str, dict[str, Any]] = {
    "node affinity": {
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
                ]
            }
        }
    },
    "pod affinity": {
        "affinity": {
            "podAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {}}}
                ]
            }
        }
    },
    "soft spread": {
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
        ]
    },
}


@pytest.mark.parametrize("spec", PREFERS.values(), ids=PREFERS)
def test_a_pod_with_preferences_of_its_own_gets_all(spec: dict[str, Any]) -> None:
    whole = workload("p", 1)
    whole["spec"] |= spec
    assert len(many().filter(whole)["NodeNames"]) == 40


# -- holds -------------------------------------------------------------------------------------------------------------


def test_the_second_pod_is_judged_with_the_firsts_gpus_taken(world: World) -> None:
    world.node("a", 8)
    world.node("b", 4)
    assert world.filter(workload("first", 4))["NodeNames"] == ["b", "a"]  # it will most likely take b
    assert world.filter(workload("second", 4))["NodeNames"] == ["a"]
    assert world.filter(workload("third", 4))["NodeNames"] == ["a"]
    answer = world.filter(workload("fourth", 4))
    assert answer["Error"] == TEXT["gpus-promised"]
    assert world.verbs.assumed.count(world.now) == 3


ASSUMED: dict[str, tuple[dict[str, Any], str]] = {
    "lower": ({"priority": 4}, "gpus-busy"),
    "equal": ({"priority": 5}, "gpus-held"),
    "protected": ({"annotations": {"gpu-extender.io/protect-for": "10m"}}, "gpus-held"),
    "of a DaemonSet": ({"owner": "DaemonSet"}, "gpus-held"),
    "too few GPUs": ({"gpus": 3}, "gpus-held"),
}


def _assumed(settings: Settings, *, seen: bool = True, gpus: int = 4, **facts: Any) -> World:
    """Of 8 GPUs a pod of a lower priority holds 4, an equal one what is left, and the assumed pod 4 or less."""
    world = World(settings)
    world.node("n", 8)
    world.pod("low", 4, "n")
    if gpus < 4:
        world.pod("other", 4 - gpus, "n", priority=5)
    pod = workload("assumed", gpus, **facts)
    if seen:
        world.set("Pod", pod)
    assert world.filter(pod)["NodeNames"] == ["n"]
    assert world.verbs.assumed.count(world.now) == 1
    return world


@pytest.mark.parametrize(("facts", "key"), ASSUMED.values(), ids=ASSUMED)
def test_an_assumed_pod_of_a_lower_priority_is_a_possible_victim(facts: JSON, key: str) -> None:
    """It is on the node in a moment, or expires: with the pod that runs there all 8 GPUs are to be had."""
    world = _assumed(NEW, **facts)
    answer = world.filter(workload("p", 8, priority=5))
    assert refused(answer) == {"n": TEXT[key]}
    assert answer["FailedNodes"] == ({"n": TEXT[key]} if key == "gpus-busy" else {})
    assert world.decision()["reasons"] == {key: 1}


def test_so_is_one_that_the_watch_has_not_brought_at_all() -> None:
    answer = _assumed(NEW, seen=False).filter(workload("p", 8, priority=5))
    assert answer["FailedNodes"] == {"n": TEXT["gpus-busy"]}


def test_a_pod_does_not_preempt_elsewhere_for_an_assumed_pod_on_its_nominated_node() -> None:
    """FailedAndUnresolvableNodes would let kube-scheduler 1.37 evict pods on a second node."""
    world = _assumed(OLD)
    world.pod("low", 4, "n", terminating=world.wall)  # its eviction is under way
    answer = world.filter(workload("p", 8, priority=5, nominated="n"))
    assert (answer["FailedNodes"], answer["FailedAndUnresolvableNodes"]) == ({"n": TEXT["gpus-busy"]}, {})


def test_what_waits_for_an_assumed_pod_alone_evicts_no_pod() -> None:
    """Of the 8 GPUs 4 are assumed, and 4 would be free without it: nothing else stands in the way."""
    world = _assumed(NEW)
    assert world.filter(workload("p", 4, priority=5))["Error"] == TEXT["gpus-promised"]
    world.now += 5
    assert world.filter(workload("p", 4, priority=5))["NodeNames"] == ["n"]


def test_the_second_pod_packs_onto_what_remains(world: World) -> None:
    world.node("a", 8)
    world.node("b", 8)
    best = world.filter(workload("first", 2))["NodeNames"][0]
    assert world.filter(workload("second", 2))["NodeNames"][0] == best
    assert world.prioritize(workload("third", 2))[best] == 10


def test_prioritize_moves_the_hold(world: World) -> None:
    world.node("a", 8)
    world.node("b", 8)
    world.filter(workload("first", 8))
    assert world.prioritize(workload("first", 8), ["b"]) == {"b": 10}  # another extender took a away
    assert world.filter(workload("second", 8))["NodeNames"] == ["a"]


def test_a_hold_ends_after_5_seconds(world: World) -> None:
    world.node("a", 8)
    world.filter(workload("first", 8))
    world.now += 4.99
    assert world.filter(workload("second", 8))["Error"] == TEXT["gpus-promised"]
    world.now += 0.02
    assert world.filter(workload("second", 8))["NodeNames"] == ["a"]


def test_a_hold_ends_when_the_watch_brings_the_pod(world: World) -> None:
    world.node("a", 8)
    world.node("b", 8)
    world.filter(workload("first", 8))  # it will most likely take a
    world.pod("first", 8, "b", phase="Pending")
    assert world.filter(workload("second", 8))["NodeNames"] == ["a"]


def test_a_hold_ends_when_the_pod_is_deleted(world: World) -> None:
    world.node("a", 8)
    first = world.pod("first", 8)
    world.filter(first)
    world.gone("first")
    assert world.filter(workload("second", 8))["NodeNames"] == ["a"]


def test_a_pod_that_was_refused_holds_nothing(world: World) -> None:
    world.node("a", 8)
    world.filter(workload("first", 6))
    world.node("a", 4)
    assert world.filter(workload("first", 6))["NodeNames"] == []
    assert world.filter(workload("second", 4))["NodeNames"] == ["a"]


# -- points ------------------------------------------------------------------------------------------------------------


def test_the_best_candidate_alone_has_10() -> None:
    world = many()
    points = world.prioritize(workload("p", 1))
    assert len(points) == 40
    assert all(type(point) is int and 0 <= point <= 10 for point in points.values())
    assert [node for node, point in points.items() if point == 10] == ["n03"]
    request = next(world.verbs.decisions.latest()).request
    rows = array("i", [world.cluster.row(name) for name in points])
    scores, _ = Policy.of(world.settings).score(world.cluster.tables, request, rows)
    pairs = sorted(zip(scores, points.values(), strict=True), key=lambda pair: -pair[0])
    assert [point for _, point in pairs] == sorted(points.values(), reverse=True)
    shown = [(node["score"], node["points"]) for node in world.decision()["nodes"] if "score" in node]
    assert shown == pairs[:16]


def test_points_for_hosts_that_we_do_not_know_are_0(world: World) -> None:
    world.node("a", 8)
    assert world.prioritize(workload("p", 1), ["strange", "a"]) == {"a": 10, "strange": 0}


def test_better_links_win_between_nodes_that_are_otherwise_alike(world: World) -> None:
    world.node("a", 4, links=[[0] * 4 for _ in range(4)])
    world.node("b", 4, links=switch(4))
    assert world.filter(workload("p", 2))["NodeNames"] == ["b", "a"]
    assert world.prioritize(workload("p", 2))["b"] == 10
