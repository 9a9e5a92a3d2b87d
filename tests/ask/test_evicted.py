"""What is known of a pod that was evicted, and of what may evict one that runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.ask.explain import Explainer
from extender.cli.explain import lines
from extender.cluster.cluster import Cluster
from extender.decide.evicted import Cause, EvictedPods
from extender.objects import decode
from extender.objects.records import Event
from extender.settings import Settings
from extender.times import Clock
from extender.web import pod_page
from extender.web.pages import Content
from tests.ask.asking import explained
from tests.world import JSON, WALL, World, workload


def classes(world: World) -> None:
    for name, value, policy in (("batch", 400, None), ("serve", 1000, None), ("train", 800, "Never")):
        wire = {"metadata": {"name": name, "uid": name}, "value": value}
        world.set("PriorityClass", wire | ({"preemptionPolicy": policy} if policy else {}))


def preempted() -> World:
    """`old` (2 GPUs for half an hour) and `young` are chosen for `serve`, which needs four."""
    world = World()
    world.node("n1", 4)
    world.node("n2", 2)
    world.pod("old", 2, "n1", start=WALL - 1800, held=(0, 1))
    world.pod("young", 2, "n1", start=WALL - 60, held=(2, 3))
    pod = world.pod("serve", 4, priority=1000)
    world.filter(pod)
    assert world.preempt(pod, {"n1": ["old", "young"]}) == {"n1": ["old", "young"]}
    return world


def term(cost: Any, name: str) -> Any:
    return next(one["value"] for one in cost if one["term"] == name)


def test_a_victim_is_explained_while_it_terminates_and_after_it_is_gone() -> None:
    world = preempted()
    assert explained(world, "default/old")["verdict"] == "runs"  # it may yet stay
    world.wall += 5
    world.pod("old", 2, "n1", start=WALL - 1800, held=(0, 1), terminating=WALL + 30)
    shown = explained(world, "default/old")
    assert (shown["verdict"], shown["node"], shown["gpus"]) == ("evicted", "n1", [0, 1])
    assert shown["sentence"].startswith("is being evicted from n1 (decided 5 s ago), with 1 other pod: kube-scheduler")
    world.gone("old")
    world.wall += 100
    shown = explained(world, "default/old")
    assert (shown["verdict"], shown["node"], shown["gpus"]) == ("evicted", None, None)
    assert shown["sentence"] == (
        "was evicted from n1 (decided 105 s ago), with 1 other pod: kube-scheduler preempted it for default/serve "
        "(priority 1,000); no other node came into question; it held 2 GPUs and lost 1 GPU-hour of work"
    )
    evicted = shown["evicted"]
    assert (evicted["by"], evicted["evictor"], evicted["at"]) == ("default/serve", "kube-scheduler", WALL)
    assert (evicted["gpu_count"], evicted["gpus"], evicted["victims"]) == (2, [0, 1], 2)
    assert evicted["work_lost_gpu_seconds"] == 3600
    assert term(evicted["cost"], "work_lost_gpu_seconds") == 3720  # of both
    assert [one["verb"] for one in shown["decisions"]] == ["preempt"]
    assert [one["verb"] for one in world.call("/debug/decisions?pod=default/old", method="GET").json["decisions"]] == [
        "preempt"
    ]
    text = "\n".join(lines(shown))
    assert "cost of the eviction of 2 pods: work lost 1.03 GPU-hours" in text


def test_why_another_eviction_was_dearer_is_told_in_words(world: World) -> None:
    for name, seconds in (("n1", 60), ("n2", 3600)):
        world.node(name, 4)
        world.pod(f"on-{name}", 4, name, start=WALL - seconds, held=(0, 1, 2, 3))
    pod = world.pod("serve", 4, priority=1000)
    world.filter(pod)
    assert world.preempt(pod, {"n1": ["on-n1"], "n2": ["on-n2"]}) == {"n1": ["on-n1"]}
    world.pod("on-n1", 4, "n1", start=WALL - 60, held=(0, 1, 2, 3), terminating=WALL + 30)
    sentence = explained(world, "default/on-n1")["sentence"]
    assert "; next best: 1 pod on node n2, loses by: work lost; " in sentence


def test_the_page_of_a_victim_says_what_evicted_it() -> None:
    world = preempted()
    world.gone("old")
    page = world.call("/pod?pod=default/old", method="GET", accept="text/html")
    assert page.status == 200
    assert b"For default/serve (priority 1,000)." in page.body
    assert b"Its eviction" in page.body
    assert b"All victims: work lost 1.03 GPU-hours, " in page.body


def test_a_chosen_pod_that_is_deleted_much_later_was_not_evicted() -> None:
    world = preempted()
    world.pod("old", 2, "n1", start=WALL - 1800, terminating=WALL + 700 + 30)
    assert explained(world, "default/old")["verdict"] == "runs"
    world.gone("old")
    reply = world.call("/debug/explain?pod=default/old", method="GET")
    assert reply.status == 404
    assert "has seen no eviction of it since it started" in reply.json["error"]["message"]
    assert "kubectl get events -n default --field-selector involvedObject.name=old" in reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("reason", "evictor", "why"),
    [
        ("PreemptionByScheduler", "kube-scheduler", "kube-scheduler preempted it"),
        ("EvictionByEvictionAPI", None, "it was evicted through the Eviction API"),
    ],
)
def test_an_eviction_that_this_server_did_not_answer_is_known_by_its_condition(
    reason: str, evictor: str | None, why: str
) -> None:
    world = World()
    world.node("n1", 4)
    wire = workload("old", 2, node="n1", phase="Running", start=WALL - 60, terminating=WALL + 30)
    wire["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": reason}]
    world.set("Pod", wire)
    world.gone("old")
    shown = explained(world, "default/old")
    evicted = shown["evicted"]
    assert (evicted["by"], evicted["evictor"], evicted["cost"], evicted["at"]) == (None, evictor, None, WALL)
    assert why in shown["sentence"]
    assert evicted["work_lost_gpu_seconds"] == 120


def test_a_new_pod_of_the_same_name_is_warned() -> None:
    world = preempted()
    world.gone("old")
    wire = workload("old", 1)
    wire["metadata"]["uid"] = "uid-again"
    world.set("Pod", wire)
    shown = explained(world, "default/old")
    assert shown["verdict"] != "evicted"
    assert shown["evicted"] is None
    warning = next(one for one in shown["warnings"] if one["code"] == "evicted-before")
    assert "for default/serve (priority 1,000)" in warning["message"]


def test_a_tenant_displaces_its_own_evicted_pods_and_keeps_nothing_long() -> None:
    cluster = Cluster(Settings())
    kept = EvictedPods(cluster, most=10)
    cluster.subscribe(kept)

    def evict(namespace: str, number: int) -> None:
        wire = workload(f"p{number}", 1, namespace=namespace, labels={"x": "y" * 60}, links="required")
        wire["metadata"]["uid"] = f"{namespace}-{number}"
        wire["metadata"]["annotations"]["gpu-extender.io/last-checkpoint"] = "z" * 200_000
        pod = decode.record("Pod", json.dumps(wire).encode(), cluster.gpu_names)
        cluster.apply([Event("Pod", "set", pod)], 0.0)
        kept.note([cluster.pods[f"{namespace}-{number}"]], Cause(None, "a test", at=WALL))
        cluster.apply([Event("Pod", "delete", pod)], 0.0)

    evict("quiet", 0)
    for number in range(1_000):
        evict("loud", number)
    assert len(kept) == 10
    victim = kept.latest("quiet", "p0")
    assert victim is not None
    assert not victim.pod.annotations
    assert not victim.pod.labels
    assert kept.latest("loud", "p0") is None
    assert kept.latest("loud", "p999") is not None


def test_a_running_pod_says_what_may_evict_it_and_at_what_cost(world: World) -> None:
    classes(world)
    world.node("n1", 4)
    world.pod("old", 2, "n1", start=WALL - 1800, priority=400)
    world.pod("beside", 1, "n1", start=WALL - 9_000, priority=400)
    world.pod("waits", 4, priority=1000, spec={"priorityClassName": "serve"})
    world.pod("never", 4, priority=1000, never=True, spec={"priorityClassName": "serve"})
    shown = explained(world, "default/old")
    assert (shown["verdict"], shown["evicted"]) == ("runs", None)
    assert shown["evictable_by"] == [{"priority_class": "serve", "priority": 1000, "pods": 1}]
    assert {one["term"]: one["value"] for one in shown["cost_now"]} == {
        "pdb_violations": 0, "highest_victim_priority": 400, "gangs_broken": 0, "work_lost_gpu_seconds": 3600,
        "grace_seconds": 30, "victims": 1, "freed_beyond_gpus": None, "leftover_fragmentation": None,
        "victims_stranded": 1,
    }  # fmt: skip
    text = "\n".join(lines(shown))
    assert "may be evicted by: serve (1 waiting)" in text
    assert "cost of its eviction now: highest priority of a victim 400" in text
    page = world.call("/pod?pod=default/old", method="GET", accept="text/html")
    assert b"PriorityClasses that may evict it" in page.body
    assert b"serve (1 waiting)" in page.body
    clock = Clock(lambda: world.now, lambda: world.wall)
    content = Content(world.verbs, Explainer(world.verbs, clock, lambda: None), clock, lambda: None)
    own = pod_page.page(content, {"pod": "default/old"}, True)
    assert own["evictable_by"] == [{"priority_class": "serve", "priority": 1000, "pods": None}]


def test_the_cost_counts_the_gang_that_would_break(world: World) -> None:
    world.node("n1", 8)
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-min": "2"}
    for name in ("a", "b"):
        world.pod(name, 2, "n1", start=WALL - 100, annotations=notes)
    cost = explained(world, "default/a")["cost_now"]
    assert (term(cost, "gangs_broken"), term(cost, "work_lost_gpu_seconds")) == (1, 400)


def test_a_protected_pod_has_no_price(world: World) -> None:
    classes(world)
    world.node("n1", 4)
    world.pod("old", 2, "n1", start=WALL - 60, annotations={"gpu-extender.io/protect-for": "10m"})
    shown = explained(world, "default/old")
    assert (shown["evictable_by"], shown["cost_now"]) == ([], None)


@pytest.mark.parametrize(
    ("node", "facts", "cause", "why"),
    [
        ("n1", {"annotations": {"gpu-extender.io/protect-for": "10m"}}, "protected", "it is protected until 20"),
        ("n1", {"owner": "DaemonSet"}, "daemonset", "a DaemonSet runs it"),
        ("n1", {"owner": "Node"}, "static", "kubelet runs it by itself (a static pod)"),
        ("gone", {}, "no-node", "its node does not exist"),
    ],
)
def test_why_a_pod_is_no_victim(world: World, node: str, facts: JSON, cause: str, why: str) -> None:
    world.node("n1", 4)
    world.pod("p", 2, node, start=WALL - 60, **facts)
    shown = explained(world)
    assert (shown["spared"]["cause"], shown["cost_now"]) == (cause, None)
    assert shown["spared"]["text"].startswith(why)
    assert f"  no pod may preempt it now: {shown['spared']['text']}" in list(lines(shown))
    world.pod("other", 1, "n1", start=WALL - 60)
    assert explained(world, "default/other")["spared"] is None
