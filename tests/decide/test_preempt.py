"""preempt: the cheapest victims that suffice, compared with trying every set; and everybody who is never evicted."""

from __future__ import annotations

import json
import os
import random
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from typing import Any, ClassVar, NamedTuple

import pytest

from extender.cluster.tables import Tables
from extender.policy import policy
from extender.policy.contracts import PodRequest, Reason
from extender.policy.reasons import REASONS
from extender.policy.rules import RULES
from extender.preemption import search
from extender.settings import Settings
from tests.world import DGX1V, GPU, JSON, WALL, World, pairs, refused, topology, workload

BLOCKS = int(os.environ.get("GPU_EXTENDER_PREEMPT_BLOCKS", "2"))  # of 30 random clusters, each with a seed of its own
NEW = Settings(scheduler_version="1.38")
LINKS_BUSY = next(reason.text for reason in REASONS.values() if reason.key == "links-busy")


def one_node(gpus: int = 4, *, priority: int = 1, **facts: Any) -> World:
    """Node n, full: a pod a pair of GPUs, low-0, low-1, ...; the later the younger."""
    world = World()
    world.node("n", gpus, links=pairs(gpus))
    for i in range(gpus // 2):
        world.pod(f"low-{i}", 2, "n", priority=priority, held=[2 * i, 2 * i + 1], start=WALL - 1000 + i, **facts)
    return world


def asks(gpus: int = 2, **facts: Any) -> JSON:
    facts.setdefault("priority", 10)
    return workload("p", gpus, **facts)


# -- the plain case ----------------------------------------------------------------------------------------------------


def test_the_one_who_loses_least_goes() -> None:
    world = one_node()
    assert world.preempt(asks(), {"n": ["low-0"]}) == {"n": ["low-1"]}
    shown = world.decision()
    assert shown["verb"] == "preempt"
    assert [victim["name"] for victim in shown["victims"]] == ["low-1"]
    assert {term["term"]: term["value"] for term in shown["cost"]}["work_lost_gpu_seconds"] == 2 * 999
    assert shown["certificate"]["proved"]


@pytest.mark.parametrize("arrival", ["ab", "ba"])
def test_of_equal_victims_the_name_decides_not_which_came_first(world: World, arrival: str) -> None:
    world.node("n", 4)
    for name in arrival:
        world.pod(name, 2, "n", priority=1, start=WALL - 1000)
    assert world.preempt(asks(), {"n": ["a", "b"]}) == {"n": ["b"]}


@pytest.mark.parametrize("priority", [10, 11])
def test_nobody_there_may_go(priority: int) -> None:
    world = one_node(priority=priority)
    assert world.preempt(asks(), {"n": ["low-0"]}) == {}


def test_pods_of_equal_or_higher_priority_never_go() -> None:
    for priority in (10, 11):
        world = one_node(priority=priority)
        world.pod("tiny", 0, "n", priority=1)
        assert world.preempt(asks(), {"n": ["low-0"]}) == {}
        assert world.decision()["result"] == "none"


@pytest.mark.parametrize("facts", [{"owner": "DaemonSet"}, {"annotations": {"kubernetes.io/config.mirror": "x"}}])
def test_daemonset_and_mirror_pods_never_go(facts: Any) -> None:
    world = one_node(**facts)
    world.pod("tiny", 0, "n", priority=1)
    assert world.preempt(asks(), {"n": ["low-0"]}) == {}
    world = World()
    world.node("n", 4)
    world.pod("spared", 2, "n", priority=1, start=WALL, **facts)
    world.pod("other", 2, "n", priority=2, start=WALL - 5000)
    assert world.preempt(asks(), {"n": ["spared"]}) == {"n": ["other"]}


def test_a_pod_that_may_not_preempt_evicts_nobody() -> None:
    world = one_node()
    assert world.preempt(asks(never=True), {"n": ["low-0"]}) == {}
    assert "Never" in world.decision()["why"]


def test_victims_come_by_descending_priority(world: World) -> None:
    world.node("n", 8)
    for i, priority in enumerate((3, 9, 1, 7)):
        world.pod(f"v{priority}", 2, "n", priority=priority, start=WALL - i)
    assert world.preempt(asks(8), {"n": ["v3"]}) == {"n": ["v9", "v7", "v3", "v1"]}


def test_one_node_is_answered_the_cheapest(world: World) -> None:
    for name, priority in (("a", 5), ("b", 4), ("c", 4)):
        world.node(name, 2)
        world.pod(f"v-{name}", 2, name, priority=priority, start=WALL - (20 if name == "b" else 10))
    assert world.preempt(asks(), {"a": ["v-a"], "b": ["v-b"], "c": ["v-c"]}) == {"c": ["v-c"]}
    certificate = world.decision()["certificate"]
    assert certificate["runner_up"]["node"] == "b"
    assert certificate["lost_on"] == "work_lost_gpu_seconds"


# -- the wire ----------------------------------------------------------------------------------------------------------


def ask(world: World, victims: Any, key: str = "NodeNameToMetaVictims", pod: JSON | None = None) -> JSON:
    whole = {"Pod": pod or asks(), "NodeNameToVictims": None, "NodeNameToMetaVictims": None} | {key: victims}
    answer: JSON = world.post("preempt", whole)["NodeNameToMetaVictims"]
    return answer


@pytest.mark.parametrize("pods", [[], None, [{"UID": "uid-low-0"}], [{"UID": "stale"}]])
def test_the_victims_are_found_whatever_was_offered(pods: Any) -> None:
    """An empty list is the placeholder of kube-scheduler 1.38; a stale uid is never echoed."""
    answer = ask(one_node(), {"n": {"Pods": pods, "NumPDBViolations": 0}})
    assert answer == {"n": {"Pods": [{"UID": "uid-low-1"}], "NumPDBViolations": 0}}


def test_whole_pods_are_understood_and_answered_by_uid() -> None:
    answer = ask(one_node(), {"n": {"Pods": [workload("low-0", 2, node="n")]}}, "NodeNameToVictims")
    assert answer == {"n": {"Pods": [{"UID": "uid-low-1"}], "NumPDBViolations": 0}}


@pytest.mark.parametrize("victims", [{}, None, {"n": None}, {"strange": {"Pods": [{"UID": "uid-low-0"}]}}])
def test_nothing_that_can_be_used_was_offered(victims: Any) -> None:
    assert ask(one_node(), victims) == {}


def test_an_unknown_node_next_to_a_known_one_is_left_out() -> None:
    assert one_node().preempt(asks(), {"strange": ["x"], "n": ["low-0"]}) == {"n": ["low-1"]}


def test_answered_uids_are_on_the_answered_node() -> None:
    """A pod that sits elsewhere by our watch cannot be a victim here: echoing its uid would fail the whole call."""
    world = one_node()
    world.node("m", 2)
    world.pod("elsewhere", 2, "m", priority=1, start=WALL)
    assert world.preempt(asks(), {"n": ["elsewhere"]}) == {"n": ["low-1"]}


# -- budgets -----------------------------------------------------------------------------------------------------------


def test_violations_are_counted_over_the_victims_that_are_answered() -> None:
    for allowed, expected in ((0, 2), (1, 1), (2, 0)):
        world = one_node(labels={"app": "a"})
        world.budget("b", allowed, {"app": "a"})
        answer = ask(world, {"n": {"Pods": [], "NumPDBViolations": 7}}, pod=asks(4))
        assert answer["n"]["NumPDBViolations"] == expected
        assert len(answer["n"]["Pods"]) == 2


def test_a_pod_that_its_budget_has_counted_already_violates_nothing() -> None:
    world = one_node(labels={"app": "a"})
    world.budget("b", 0, {"app": "a"}, disruptedPods={"low-0": "2026-11-21T10:00:00Z"})
    answer = ask(world, {"n": {"Pods": [], "NumPDBViolations": 1}})
    assert answer == {"n": {"Pods": [{"UID": "uid-low-0"}], "NumPDBViolations": 0}}


def test_a_budget_of_another_namespace_speaks_of_others() -> None:
    world = one_node(labels={"app": "a"}, namespace="team")
    world.budget("b", 0, {"app": "a"})
    assert ask(world, {"n": {"Pods": []}})["n"]["NumPDBViolations"] == 0


# -- what is answered again, and what is not ---------------------------------------------------------------------------


def test_asking_twice_never_evicts_twice() -> None:
    world = one_node(8)
    first = world.preempt(asks(4), {"n": ["low-0", "low-1"]})
    assert first == {"n": ["low-2", "low-3"]}
    world.now += 3
    world.node("m", 4)
    world.pod("cheaper", 4, "m", priority=0, start=WALL)
    assert world.preempt(asks(4), {"n": ["low-0"], "m": ["cheaper"]}) == first
    world.gone("low-3")
    assert world.preempt(asks(4), {"n": ["low-0"], "m": ["cheaper"]}) == {"n": ["low-2"]}
    world.gone("low-2")
    assert world.preempt(asks(4), {"m": ["cheaper"]}) == {}  # the scheduler is about to come back with the pod


def test_asking_again_with_a_lower_priority_evicts_no_pod_that_is_not_below_it() -> None:
    """A pod keeps its priority; a caller that does not is found by fuzzing."""
    world = one_node(8)
    assert world.preempt(asks(4), {"n": ["low-0", "low-1"]})
    lower = world.cluster.pods["uid-low-2"].priority
    assert world.preempt(workload(asks(4)["metadata"]["name"], 4, priority=lower), {"n": []}) == {}


def test_the_plan_reserves_what_its_victims_leave() -> None:
    world = one_node()
    world.preempt(asks(4), {"n": ["low-0", "low-1"]})
    world.gone("low-0", "low-1")
    other = workload("other", 2, priority=1)
    assert world.filter(other)["NodeNames"] == []
    assert world.filter(workload("higher", 2, priority=11))["NodeNames"] == ["n"]
    world.verbs.assumed.forget("uid-higher")
    assert world.filter(asks(4))["NodeNames"] == ["n"]


@pytest.mark.parametrize("settings", [Settings(), NEW], ids=["1.37", "1.38"])
def test_nobody_goes_while_our_view_may_be_behind(settings: Settings) -> None:
    world = World(settings)
    world.node("n", 2)
    world.pod("low", 2, "n", priority=1)
    assert world.filter(asks(), ["n", "joining"])["Error"]
    assert world.preempt(asks(), {"n": ["low"]}) == {}
    world.node("joining", 1)
    assert world.filter(asks(), ["n", "joining"])["Error"] == ""
    assert world.preempt(asks(), {"n": ["low"]}) == {"n": ["low"]}


def test_nobody_goes_where_the_pod_fits_now() -> None:
    world = one_node()
    world.gone("low-0")
    assert world.preempt(asks(), {"n": ["low-1"]}) == {}


def test_a_pod_that_is_ending_anyway_is_free() -> None:
    world = one_node(8)
    world.pod("low-0", 2, "n", priority=9, held=[0, 1], start=WALL - 10_000, terminating=WALL + 300)
    assert world.preempt(asks(), {"n": ["low-1"]}) == {"n": ["low-0"]}
    assert {term["term"]: term["value"] for term in world.decision()["cost"]}["victims"] == 0


def test_nobody_else_goes_where_waiting_for_the_ending_ones_is_enough() -> None:
    world = one_node()
    world.pod("low-0", 2, "n", priority=1, held=[0, 1], start=WALL - 1000, terminating=WALL + 20)
    answer = world.preempt(asks(), {"n": ["low-1"]})
    assert answer in ({}, {"n": ["low-0"]})


# -- exchange or floor -------------------------------------------------------------------------------------------------

ANTI = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "p"}}}]}}  # fmt: skip
NEAR = {"podAffinity": ANTI["podAntiAffinity"]}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "labelSelector": {}}
FLOORS: dict[str, JSON] = {
    "a host port": {
        "containers": [{"name": "main", "ports": [{"hostPort": 80}], "resources": {"limits": {GPU: "2"}}}],
    },
    "a volume claim": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
    "an ephemeral volume": {"volumes": [{"name": "v", "ephemeral": {}}]},
    "a resource claim": {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]},
    "required affinity": {"affinity": NEAR},
    "required anti-affinity": {"affinity": ANTI},
    "hard spread": {"topologySpreadConstraints": [SPREAD | {"whenUnsatisfiable": "DoNotSchedule"}]},
}  # fmt: skip
FREE: dict[str, JSON] = {
    "nothing": {},
    "soft spread": {"topologySpreadConstraints": [SPREAD | {"whenUnsatisfiable": "ScheduleAnyway"}]},
    "a node selector": {"nodeSelector": {"a": "b"}},
    "an empty directory": {"volumes": [{"name": "v", "emptyDir": {}}]},
}


@pytest.mark.parametrize("spec", FLOORS.values(), ids=FLOORS)
def test_offered_victims_stay_where_more_than_we_model_decides(spec: JSON) -> None:
    assert one_node().preempt(asks(spec=spec), {"n": ["low-0"]}) == {"n": ["low-0"]}
    # more GPUs than they free: the others are added to them
    world = one_node(8)
    more = asks(4, spec={key: part for key, part in spec.items() if key != "containers"})
    if "containers" not in spec:
        assert world.preempt(more, {"n": ["low-0"]}) == {"n": ["low-0", "low-3"]}


@pytest.mark.parametrize("spec", FREE.values(), ids=FREE)
def test_offered_victims_are_exchanged_where_we_model_everything(spec: JSON) -> None:
    assert one_node().preempt(asks(spec=spec), {"n": ["low-0"]}) == {"n": ["low-1"]}


def test_a_floor_that_we_can_not_see_leaves_the_node_out() -> None:
    spec = FLOORS["a volume claim"]
    assert one_node().preempt(asks(spec=spec), {"n": ["stranger"]}) == {}


def test_offered_victims_stay_where_a_pod_there_repels_the_preemptor() -> None:
    pod = asks(labels={"app": "p"})
    for labels, expected in (({"app": "p"}, "low-0"), ({"app": "other"}, "low-1")):
        world = one_node()
        world.pod("repels", 0, "n", priority=1, spec={"affinity": ANTI})
        pod["metadata"]["labels"] = labels
        assert world.preempt(pod, {"n": ["low-0"]}) == {"n": [expected]}


# -- nodes that were refused for links alone ---------------------------------------------------------------------------


def torn(world: World, name: str, priority: int = 1) -> None:
    """Four GPUs in pairs, one of each pair taken: two are free, and not linked."""
    world.node(name, 4, links=pairs(4))
    for k, gpu in enumerate((1, 3)):
        world.pod(f"{name}-{gpu}", 1, name, priority=priority, held=[gpu], start=WALL - 100 + k)


def test_a_node_that_the_latest_filter_refused_for_links_alone_is_legal(world: World) -> None:
    torn(world, "torn")
    world.node("busy", 2)
    world.pod("v", 2, "busy", priority=5, start=WALL)
    pod = asks(links="required")
    assert refused(world.filter(pod, ["torn"])) == {"torn": LINKS_BUSY}
    assert world.preempt(pod, {"busy": ["v"]}) == {"torn": ["torn-3"]}


def test_without_that_filter_call_it_is_not(world: World) -> None:
    torn(world, "torn")
    world.node("busy", 2, links=pairs(2))
    world.pod("v", 2, "busy", priority=5, start=WALL)
    assert world.preempt(asks(links="required"), {"busy": ["v"]}) == {"busy": ["v"]}


def test_it_is_the_latest_filter_that_counts(world: World) -> None:
    torn(world, "torn")
    world.node("busy", 2, links=pairs(2))
    world.pod("v", 2, "busy", priority=5, start=WALL)
    pod = asks(links="required")
    world.filter(pod, ["torn"])
    world.filter(pod, ["busy"])
    assert world.preempt(pod, {"busy": ["v"]}) == {"busy": ["v"]}


@pytest.mark.parametrize("spec", FLOORS.values(), ids=FLOORS)
def test_a_pod_that_is_not_all_modelled_stays_with_the_nodes_that_were_offered(world: World, spec: JSON) -> None:
    torn(world, "torn")
    world.node("busy", 2, links=pairs(2))
    world.pod("v", 2, "busy", priority=5, start=WALL)
    pod = asks(links="required", spec=spec)
    world.filter(pod, ["torn"])
    assert world.preempt(pod, {"busy": ["v"]}) == {"busy": ["v"]}


def test_a_placeholder_of_1_38_for_links_alone() -> None:
    world = World(NEW)
    torn(world, "torn")
    pod = asks(links="required")
    assert world.filter(pod)["FailedNodes"] == {"torn": LINKS_BUSY}
    assert world.preempt(pod, {"torn": []}) == {"torn": ["torn-3"]}


def test_a_node_where_no_eviction_makes_it_linked_is_left_out(world: World) -> None:
    torn(world, "torn", priority=10)
    world.node("unknown", 4)
    world.pod("v", 4, "unknown", priority=1)
    pod = asks(links="required")
    assert world.preempt(pod, {"torn": ["torn-1"], "unknown": ["v"]}) == {}


@pytest.mark.parametrize("failed", [7, 6])
def test_an_eviction_does_not_free_a_gpu_that_is_not_healthy(world: World, failed: int) -> None:
    """Before: status 503 where it was the last GPU, else a victim whose pair of GPUs is not whole."""
    health = json.dumps([gpu != failed for gpu in range(8)])
    stated = topology(pairs(8)).replace('"health":null', f'"health":{health}')
    world.node("n", 7, capacity=8, annotations={"gpu-extender.io/topology": stated})
    world.pod("old", 1, "n", priority=1, held=[0], start=WALL - 1000)
    world.pod("young", 2, "n", priority=1, held=[6, 7], start=WALL - 10)
    world.pod("important", 2, "n", priority=20, held=[2, 4])
    pod = asks(links="required")
    assert refused(world.filter(pod)) == {"n": LINKS_BUSY}
    assert world.preempt(pod, {"n": ["young"]}) == {"n": ["old"]}


def test_counting_alone_does_not_suffice_where_links_are_required(world: World) -> None:
    """Four GPUs in pairs: the young ones hold half a pair each, the old one a whole pair."""
    world.node("n", 4, links=pairs(4))
    for name, held, start in (("young-0", [1], 10), ("young-1", [2], 20), ("old-0", [0], 30), ("old-3", [3], 40)):
        world.pod(name, 1, "n", priority=1, held=held, start=WALL - start)
    chosen = world.preempt(asks(links="required"), {"n": ["young-0", "young-1"]})
    assert chosen in ({"n": ["old-0", "young-0"]}, {"n": ["young-0", "old-0"]})


# -- gangs and work ----------------------------------------------------------------------------------------------------


def test_a_gang_that_can_spare_a_member_is_not_broken() -> None:
    for minimum, expected in ((1, "member-0"), (2, "alone")):
        world = World()
        world.node("n", 3)
        world.pod("alone", 1, "n", priority=1, start=WALL - 500)
        for i in range(2):
            world.pod(
                f"member-{i}", 1, "n", priority=1, start=WALL - 100 + 0 * i - i,
                labels={"gpu-extender.io/gang": "g", "gpu-extender.io/gang-min": str(minimum)},
            )  # fmt: skip
        assert world.preempt(asks(1), {"n": ["alone"]}) == {"n": [expected]}


def test_a_checkpoint_makes_an_old_pod_cheap_and_a_slow_restart_dear() -> None:
    notes = {"gpu-extender.io/last-checkpoint": "2027-01-15T07:59:50+00:00"}  # ten seconds ago
    world = World()
    world.node("n", 4)
    world.pod("old", 2, "n", priority=1, start=WALL - 50_000, annotations=notes)
    world.pod("young", 2, "n", priority=1, start=WALL - 60)
    assert world.preempt(asks(), {"n": ["young"]}) == {"n": ["old"]}
    world = World()
    world.node("n", 4)
    notes["gpu-extender.io/restart-seconds"] = "600"
    world.pod("old", 2, "n", priority=1, start=WALL - 50_000, annotations=notes)
    world.pod("young", 2, "n", priority=1, start=WALL - 60)
    assert world.preempt(asks(), {"n": ["young"]}) == {"n": ["young"]}


def test_a_broken_gang_loses_the_work_of_all_its_members(world: World) -> None:
    world.node("n", 2)
    world.node("far", 8)
    for i, gang in enumerate(("g", "h")):
        labels = {"gpu-extender.io/gang": gang}
        world.pod(f"here-{gang}", 1, "n", priority=1, start=WALL - 100 - i, labels=labels)
        world.pod(f"far-{gang}", 4 - 3 * i, "far", priority=1, start=WALL - 1000, labels=labels)
    assert world.preempt(asks(1), {"n": ["here-g"]}) == {"n": ["here-h"]}


# -- against trying every set ------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A random cluster, its preemptor, and the running pods by node."""

    world: World
    preemptor: JSON
    nodes: dict[str, list[JSON]]
    budgets: list[tuple[str, int]]


CPU, PRIORITY = 16, 5


def made(rng: random.Random) -> Case:
    world = World(rng.choice([Settings(), NEW]))
    nodes: dict[str, list[JSON]] = {}
    starts = rng.sample(range(1, 5000), 60)
    for n in range(rng.randint(1, 3)):
        name = f"n{n}"
        gpus, links = rng.choice([(4, pairs(4)), (8, DGX1V), (4, None), (6, pairs(6))])
        world.node(name, gpus, links=links, cpu=str(CPU))
        free = list(range(gpus))
        rng.shuffle(free)
        nodes[name] = []
        cpu = CPU
        for i in range(rng.randint(2, 6)):
            takes = min(len(free), rng.choice([0, 1, 1, 1, 2, 2]))
            eats = min(cpu, rng.randint(0, 5))
            cpu -= eats
            held = [free.pop() for _ in range(takes)]
            labels, notes, start = {}, {}, WALL - starts.pop()
            if rng.random() < 0.5:
                labels["app"] = rng.choice("ab")
            if rng.random() < 0.4:
                labels["gpu-extender.io/gang"] = rng.choice("gh")
                labels["gpu-extender.io/gang-min"] = "1" if labels["gpu-extender.io/gang"] == "g" else "2"
            if rng.random() < 0.3:
                notes["gpu-extender.io/restart-seconds"] = str(rng.randint(0, 3000))
            pod = world.pod(
                f"{name}-{i}", takes, name, cpu=str(eats), priority=rng.choice([0, 1, 1, 1, 4, 7]), held=held,
                labels=labels, annotations=notes, start=start, grace=rng.choice([0, 30, 60]),
            )  # fmt: skip
            nodes[name].append(pod)
    budgets = [(app, rng.randint(0, 2)) for app in "ab" if rng.random() < 0.6]
    for app, allowed in budgets:
        world.budget(f"budget-{app}", allowed, {"app": app})
    links_wanted = rng.choice(["required", "required", "preferred"])
    preemptor = workload(
        "p", rng.choice([1, 2, 2, 3, 4]), cpu=str(rng.randint(1, 9)), priority=PRIORITY, links=links_wanted
    )
    return Case(world, preemptor, nodes, budgets)


def gpus_of(pod: JSON) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"].get(GPU, 0))


def cpu_of(pod: JSON) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])


def counts_fit(case: Case, node: str, without: tuple[JSON, ...] = ()) -> bool:
    """NodeResourcesFit, for GPUs and CPU."""
    stay = [pod for pod in case.nodes[node] if pod not in without]
    gpus = case.world.cluster.nodes[node].gpus.get(GPU, 0) - sum(map(gpus_of, stay))
    return gpus_of(case.preemptor) <= gpus and cpu_of(case.preemptor) <= CPU - sum(map(cpu_of, stay))


def important(pods: tuple[JSON, ...]) -> list[JSON]:
    """As kube-scheduler orders pods: higher priority, then earlier start."""
    return sorted(pods, key=lambda pod: (-pod["spec"]["priority"], pod["status"]["startTime"], pod["metadata"]["uid"]))


def violations(case: Case, pods: tuple[JSON, ...]) -> int:
    left = dict(case.budgets)
    count = 0
    for pod in important(pods):
        app = pod["metadata"]["labels"].get("app")
        if app in left:
            left[app] -= 1
            count += left[app] < 0
    return count


def price(case: Case, pods: tuple[JSON, ...]) -> tuple[int, ...]:
    """The cost as shapes.md orders it, in plain words."""
    everybody = [pod for there in case.nodes.values() for pod in there]
    broken = lost = 0
    losers = {pod["metadata"]["uid"]: pod for pod in pods}
    for gang, least in (("g", 1), ("h", 2)):
        members = [pod for pod in everybody if pod["metadata"]["labels"].get("gpu-extender.io/gang") == gang]
        go = [pod for pod in members if pod in pods]
        if go and len(members) > 1 and len(members) - len(go) < min(least, len(members)):
            broken += 1
            losers |= {pod["metadata"]["uid"]: pod for pod in members}
    for pod in losers.values():
        started = case.world.cluster.pods[pod["metadata"]["uid"]].start or 0
        restart = int(pod["metadata"]["annotations"].get("gpu-extender.io/restart-seconds", 0))
        lost += gpus_of(pod) * (int(WALL - started) + restart)
    return (
        violations(case, pods),
        max(pod["spec"]["priority"] for pod in pods),
        broken,
        lost,
        max(pod["spec"]["terminationGracePeriodSeconds"] for pod in pods),
        len(pods),
    )


def suffices(case: Case, node: str, pods: tuple[JSON, ...]) -> bool:
    """Whether the pod fits when these are gone: by counting, and by asking filter about such a cluster."""
    if not counts_fit(case, node, pods):
        return False
    for pod in pods:
        case.world.drop("Pod", pod)
    probe = json.loads(json.dumps(case.preemptor))
    probe["metadata"] |= {"uid": "uid-probe", "name": "probe"}
    passes = bool(case.world.filter(probe, [node])["NodeNames"])
    case.world.verbs.assumed.forget("uid-probe")
    for pod in pods:
        case.world.set("Pod", pod)
    return passes


def sets(case: Case, node: str) -> Iterator[tuple[JSON, ...]]:
    lower = [pod for pod in case.nodes[node] if pod["spec"]["priority"] < PRIORITY]
    for size in range(1, len(lower) + 1):
        yield from combinations(lower, size)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_answer_is_the_cheapest_of_all_sets_of_victims(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 random clusters that need an eviction, 1,200 in `make soak`, with observed positions, budgets and gangs; in
    half of them nodes are left out by their bounds."""
    monkeypatch.setattr(search, "FEW", block % 2 or search.FEW)
    monkeypatch.setattr(search, "FIRST", 1)
    rng = random.Random(block)
    answered = many = torn_apart = gangs = 0
    while answered < 30:
        case = made(rng)
        feasible = [node for node in case.nodes if counts_fit(case, node)]
        legal: dict[str, list[str]] = {}
        if feasible:
            said = case.world.filter(case.preemptor, feasible)
            if said["NodeNames"]:
                continue  # no preemption where the pod fits
            assert not said["Error"]
            legal |= {node: [] for node, text in refused(said).items() if text == LINKS_BUSY}
        offered: dict[str, list[str]] = {}
        for node, there in case.nodes.items():
            lower = [pod for pod in there if pod["spec"]["priority"] < PRIORITY]
            if node not in feasible and lower and counts_fit(case, node, tuple(lower)):
                offered[node] = [pod["metadata"]["name"] for pod in rng.sample(lower, rng.randint(0, len(lower)))]
        if not offered and not legal:
            continue
        best: tuple[tuple[int, ...], str] | None = None
        for node in {**offered, **legal}:
            for pods in sets(case, node):
                if suffices(case, node, pods):
                    best = min(best or (price(case, pods), node), (price(case, pods), node))
        answer = case.world.post(
            "preempt",
            {
                "Pod": case.preemptor,
                "NodeNameToMetaVictims": {
                    node: {"Pods": [{"UID": f"uid-{name}"} for name in names]} for node, names in offered.items()
                },
            },
        )["NodeNameToMetaVictims"]
        assert len(answer) == (best is not None)
        told = tuple(term["value"] for term in case.world.decision().get("cost", ()))[:6]
        case.world.verbs.reservations.drop("uid-p")  # it reserves what the victims leave
        for node, victims in answer.items():
            uids = [victim["UID"] for victim in victims["Pods"]]
            pods = tuple(pod for pod in case.nodes[node] if pod["metadata"]["uid"] in uids)
            assert len(pods) == len(uids) > 0
            assert suffices(case, node, pods)
            assert (price(case, pods), node) == best
            assert told == price(case, pods)
            gangs += told[2] > 0
            assert victims["NumPDBViolations"] == violations(case, pods)
            priorities = [case.world.cluster.pods[uid].priority for uid in uids]
            assert priorities == sorted(priorities, reverse=True)
            assert max(priorities) < PRIORITY
            answered += 1
            many += len(pods) > 1
            torn_apart += node in legal
    assert many >= 2
    assert torn_apart >= 1
    assert gangs >= 1


LEFT_OUT: list[Callable[[World], object]] = [
    lambda world: world.pod("nominated", 4, nominated="n", priority=20),  # it will take all that is freed
    lambda world: world.pod("nominated", 3, nominated="n", priority=10),
]


@pytest.mark.parametrize("prepare", LEFT_OUT)
def test_a_node_where_the_eviction_would_be_in_vain_by_our_filter_is_left_out(
    prepare: Callable[[World], object],
) -> None:
    world = one_node()
    prepare(world)
    assert world.preempt(asks(), {"n": ["low-0"]}) == {}


class Stubborn:
    """A rule that the search for victims knows nothing of: it refuses one row, whoever is gone."""

    name: ClassVar[str] = "stubborn"
    reasons: ClassVar[tuple[Reason, ...]] = ()

    def __init__(self, row: int) -> None:
        self.row = row

    def idle(self, tables: Tables, request: PodRequest) -> bool:
        return False

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        for i, row in enumerate(rows):
            if row == self.row and not out[i]:
                out[i] = 14


@pytest.mark.parametrize("few", [1, 128])
def test_the_last_word_has_our_own_filter(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FEW", few)
    monkeypatch.setattr(search, "FIRST", 1)
    for stubborn, expected in (([], {"a": ["v-a"]}), (["a"], {"b": ["v-b"]}), (["a", "b"], {})):
        rules = [*RULES, *(partial(Stubborn, "ab".index(name)) for name in stubborn)]
        monkeypatch.setattr(policy, "RULES", rules)
        world = World()
        for i, name in enumerate("ab"):
            world.node(name, 2)
            assert world.cluster.row(name) == i
            world.pod(f"v-{name}", 2, name, priority=1 + i)
        assert world.preempt(asks(), {"a": ["v-a"], "b": ["v-b"]}) == expected


def test_after_the_eviction_filter_passes_the_pod() -> None:
    world = one_node(8)
    (node, victims), *more = world.preempt(asks(4), {"n": ["low-0", "low-1"]}).items()
    assert not more
    world.gone(*victims)
    assert world.filter(asks(4, nominated=node), [node])["NodeNames"] == [node]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_pod_that_has_not_started_is_the_least_important(world: World) -> None:
    """It counts as started now, so that it is the one of the three that is beyond the budgets, and not two others."""
    world.node("n", 6)
    world.pod("new", 2, "n", labels={"a": "1", "b": "1"})
    world.pod("old-a", 2, "n", labels={"a": "1"}, start=WALL - 100)
    world.pod("old-b", 2, "n", labels={"b": "1"}, start=WALL - 100)
    for name in "ab":
        world.budget(name, 1, {name: "1"})
    offered = {"n": {"Pods": [{"UID": f"uid-{name}"} for name in ("new", "old-a", "old-b")], "NumPDBViolations": 1}}
    request = {"Pod": workload("p", 6, priority=9), "NodeNameToMetaVictims": offered}
    victims = world.post("preempt", request)["NodeNameToMetaVictims"]["n"]
    assert [one["UID"] for one in victims["Pods"]] == ["uid-old-a", "uid-old-b", "uid-new"]
    assert victims["NumPDBViolations"] == 1
    cost = {one["term"]: one["value"] for one in world.decision()["cost"]}
    assert cost["pdb_violations"] == 1


def test_a_defect_leaves_no_claim(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claims of a request end with it, however it ends: here where the answer of before is judged again."""
    world.node("n", 8)
    world.node("m", 8)
    world.pod("v", 8, "n")
    pod = world.set("Pod", asks(8))
    assert world.filter(workload("q", 8), ["m"])["NodeNames"] == ["m"]  # it is assumed there
    assert world.preempt(pod, {"n": ["v"]}) == {"n": ["v"]}

    def fails(*given: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(policy.Policy, "judge", fails)
    reply = world.call("/v1/preempt", json.dumps({"Pod": pod, "NodeNameToMetaVictims": {"n": {"Pods": []}}}).encode())
    assert reply.status == 503
    rows = [world.cluster.tables.nodes.node(world.cluster.row(name)) for name in "nm"]
    assert not any(any(row.claim) for row in rows)


# -- pods that kube-scheduler has placed, and that the watch has not brought to their node yet -------------------------


def unseen(world: World, gpus: int = 4, **facts: Any) -> World:
    """Node n: two GPUs are held by `seen`, and two by `placed`, as far as kube-scheduler knows."""
    world.node("n", gpus, links=pairs(gpus))
    world.pod("seen", 2, "n", priority=1, held=[0, 1], start=WALL - 1000)
    world.pod("placed", 2, **{"priority": 1} | facts)
    return world


@pytest.mark.parametrize(
    ("gpus", "links", "victims"),
    [
        (2, "ignore", ["placed"]),
        (2, "required", ["placed"]),
        (3, "ignore", ["seen", "placed"]),
        (4, "ignore", ["seen", "placed"]),
    ],
)
def test_a_pod_holds_gpus_where_it_is_offered_before_its_node_is_seen(
    world: World, gpus: int, links: str, victims: list[str]
) -> None:
    unseen(world)
    before = world.state()[1:5]
    pod = asks(gpus, annotations={"gpu-extender.io/links": links})
    assert world.preempt(pod, {"n": ["seen", "placed"]}) == {"n": victims}
    assert world.state()[1:5] == before
    shown = world.decision()["victims"]
    assert [(victim["name"], victim["gpu_count"]) for victim in shown] == [(name, 2) for name in victims]


@pytest.mark.parametrize("spec", FLOORS.values(), ids=FLOORS)
def test_such_a_pod_is_a_floor_too(world: World, spec: JSON) -> None:
    unseen(world)
    assert world.preempt(asks(2, spec=spec), {"n": ["placed"]}) == {"n": ["placed"]}


def test_a_pod_that_we_passed_there_ourselves_is_a_victim_too_and_stays_assumed(world: World) -> None:
    unseen(world)
    assert world.filter(workload("placed", 2, priority=1))["NodeNames"] == ["n"]
    assumed = world.verbs.assumed.kept
    assert world.preempt(asks(4), {"n": ["seen", "placed"]}) == {"n": ["seen", "placed"]}
    assert world.verbs.assumed.kept == assumed != []


def test_its_cost_counts(world: World) -> None:
    """Without it the pod would fit on n."""
    world.node("n", 2)
    world.pod("placed", 2, priority=5)
    world.node("m", 2)
    world.pod("other", 2, "m", priority=2, start=WALL - 5000)
    assert world.preempt(asks(2), {"m": ["other"], "n": ["placed"]}) == {"m": ["other"]}


def test_a_pod_that_is_protected_stays_there(world: World) -> None:
    unseen(world, annotations={"gpu-extender.io/protect-for": "600"})
    assert world.preempt(asks(2), {"n": ["placed"]}) == {"n": ["seen"]}
    assert world.preempt(workload("q", 4, priority=10), {"n": ["seen", "placed"]}) == {}


def test_an_offered_pod_that_is_gone_holds_nothing(world: World) -> None:
    unseen(world)
    world.gone("placed")
    assert world.preempt(asks(2), {"n": ["placed"]}) == {}
    assert world.preempt(workload("q", 4, priority=10), {"n": ["seen", "placed"]}) == {"n": ["seen"]}


# -- a victim with more GPUs than are asked for ------------------------------------------------------------------------


def one_gpu_asked(settings: Settings | None = None) -> World:
    """Full nodes whose pods lose the same: `a` has one pod of 4 GPUs, `b` to `e` one of 1 GPU each."""
    world = World(settings)
    for name, gpus in (("a", 4), ("b", 1), ("c", 1), ("d", 1), ("e", 1)):
        world.node(name, gpus)
        world.pod(f"on-{name}", gpus, name, priority=1, start=WALL)
    return world


def test_of_equal_victims_the_one_that_frees_no_more_than_is_asked_for() -> None:
    world = one_gpu_asked()
    offered = {name: [f"on-{name}"] for name in "abcde"}
    assert world.preempt(asks(1), offered) == {"b": ["on-b"]}
    shown = world.decision()
    assert shown["certificate"]["proved"]
    world = one_gpu_asked()
    assert world.preempt(asks(1), {"a": ["on-a"], "e": ["on-e"]}) == {"e": ["on-e"]}
    shown = world.decision()
    runner_up = shown["certificate"]["runner_up"]
    assert (runner_up["node"], shown["certificate"]["lost_on"]) == ("a", "freed_beyond_gpus")
    of = [{term["term"]: term["value"] for term in cost} for cost in (shown["cost"], runner_up["cost"])]
    assert [cost["freed_beyond_gpus"] for cost in of] == [0, 3]


def test_what_is_free_beside_a_victim_is_not_freed_by_its_eviction(world: World) -> None:
    """Of 4 GPUs that are asked for 3 are free on `a`, where a pod of 1 suffices; on `b` a pod of 2 frees one more."""
    for name, free, held in (("a", 3, 1), ("b", 3, 2)):
        world.node(name, free + held)
        world.pod(f"on-{name}", held, name, priority=1, start=WALL)
    assert world.preempt(asks(4), {"b": ["on-b"], "a": ["on-a"]}) == {"a": ["on-a"]}
    shown = world.decision()
    of = [
        {term["term"]: term["value"] for term in cost}
        for cost in (shown["cost"], shown["certificate"]["runner_up"]["cost"])
    ]
    assert [cost["freed_beyond_gpus"] for cost in of] == [0, 1]


def test_without_the_term_the_name_decides() -> None:
    terms = [name for name in Settings().costs if name != "freed_beyond_gpus"]
    world = one_gpu_asked(Settings.model_validate({"costs": terms}))
    assert world.preempt(asks(1), {name: [f"on-{name}"] for name in "abcde"}) == {"a": ["on-a"]}
    assert world.decision()["certificate"]["lost_on"] == "node name"


@pytest.mark.parametrize("memory", [False, True])
def test_no_pod_is_evicted_for_cpu_or_memory_that_a_terminating_pod_leaves(memory: bool) -> None:
    """The pod that is terminating is of equal priority: it cannot be a victim, and leaves what the pod lacks in 5 s. Of
    one with a grace of 30 s that is so also where our clock is 120 s behind that of the API server."""
    for seconds, grace, left, evicts in ((5, 30, 4, False), (600, 600, 4, True), (150, 30, 4, False), (5, 30, 1, True)):
        world = World()
        world.node("n", 8, cpu="10", memory="10Gi")
        size = {"memory": f"{left}Gi"} if memory else {"cpu": str(left)}
        four = {"memory": "4Gi"} if memory else {"cpu": "4"}
        world.pod("ending", 1, "n", priority=10, terminating=WALL + seconds, grace=grace, start=WALL - 600, **size)
        world.pod("victim", 1, "n", start=WALL - 3600, **four)
        world.pod("other", 1, "n", priority=10, start=WALL - 3600, **({"memory": "2Gi"} if memory else {"cpu": "2"}))
        if left == 1:
            world.pod("more", 1, "n", priority=10, **({"memory": "3Gi"} if memory else {"cpu": "3"}))
        assert world.preempt(asks(2, **four), {"n": ["victim"]}) == ({"n": ["victim"]} if evicts else {})
        if not evicts:
            assert world.decision()["why"] == "the pod will fit on n when the pods that are terminating there are gone"


@pytest.mark.parametrize("ends", [True, False])
def test_no_pod_is_evicted_while_a_terminating_pod_leaves_enough_beside_a_reservation(world: World, ends: bool) -> None:
    """The free GPUs of `n` are another preemptor's, whose nomination kube-scheduler has cleared: it names the node to
    filter, and offers it to preempt no more."""
    world.node("n", 8)
    world.node("m", 2)
    world.pod("for-first", 4, "n", priority=1, start=WALL - 100)
    world.pod("ending", 2, "n", priority=1, terminating=WALL + 5 if ends else None, start=WALL - 600)
    world.pod("other", 2, "n", priority=10, start=WALL - 3600)
    world.pod("victim", 2, "m", priority=1, start=WALL - 10)
    assert world.preempt(workload("first", 4, priority=10), {"n": ["for-first"]}) == {"n": ["for-first"]}
    world.gone("for-first")
    world.verbs.freshness.counted = True
    world.filter(asks(2), ["n"])
    reason = "gpus-releasing" if ends else "gpus-reserved"
    assert world.decision()["reasons"] == {reason: 1}
    assert world.preempt(asks(2), {"m": ["victim"]}) == ({} if ends else {"m": ["victim"]})
