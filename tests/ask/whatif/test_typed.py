"""Manifests as people type them, which no API server has read: the answer is that for the pods made of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from extender.settings import Settings
from tests.ask.checks.test_check import checked
from tests.ask.whatif.asking import ask
from tests.ask.whatif.test_engine import PREFIX, node, pod, running, template
from tests.ask.whatif.test_owners import owner, ranks, read
from tests.world import DGX1V, JSON, machine
from tests.yaml_text import objects_in

PLACEMENT = "gpu-extender.io/placement"
HOSTNAME = "kubernetes.io/hostname"


def codes(answer: JSON) -> list[str]:
    return [one["code"] for one in answer["warnings"]]


def message(answer: JSON, code: str) -> str:
    (found,) = [one["message"] for one in answer["warnings"] if one["code"] == code]
    return str(found)


# ---- replicas apart


def serving(kind: str = "Deployment", replicas: int = 3, **meta: Any) -> JSON:
    spread = template(1) | {"metadata": {"annotations": {PLACEMENT: "spread"}}}
    return owner("apps/v1", kind, {"replicas": replicas, "template": spread}, **meta)


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet"])
def test_replicas_that_are_spread_get_a_node_each(kind: str) -> None:
    """An owner in a file has no uid; its pods are siblings all the same, as they are live."""
    answer = ask([node(name) for name in "abc"], [serving(kind)])
    assert sorted(one["node"] for one in answer["results"]) == ["a", "b", "c"]


def test_owners_of_one_name_in_two_namespaces_are_two() -> None:
    other = serving()
    other["metadata"]["namespace"] = "other"
    answer = ask([node(name) for name in "abc"], [serving(), other])
    assert sorted(one["node"] for one in answer["results"]) == ["a", "a", "b", "b", "c", "c"]


def of_replica_set(name: str, on: str, owned: str, uid: str) -> JSON:
    made = running(name, on, [0], namespace="team")
    made["metadata"]["labels"] = {"pod-template-hash": owned.rpartition("-")[2]}
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owned, "uid": uid, "controller": True}
    ]
    return made


def test_replicas_that_run_count_as_siblings_of_those_that_come() -> None:
    """A Deployment owns its pods by a ReplicaSet."""
    there = [of_replica_set("x", "a", "o-7f9c", "u1"), of_replica_set("y", "b", "o-7f9c", "u1")]
    answer = ask([*(node(name) for name in "abc"), *there], [serving(replicas=1)])
    assert [one["node"] for one in answer["results"]] == ["c"]


# ---- what is not checked


def affine(kind: str, way: str, *terms: JSON) -> JSON:
    return {"affinity": {kind: {f"{way}DuringSchedulingIgnoredDuringExecution": list(terms)}}}


APART = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "x"}}}
PREFERRED = affine("podAntiAffinity", "preferred", {"weight": 100, "podAffinityTerm": APART})
SOFT = {
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": HOSTNAME, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    ]
}
HARD = {"topologySpreadConstraints": [SOFT["topologySpreadConstraints"][0] | {"whenUnsatisfiable": "DoNotSchedule"}]}


@pytest.mark.parametrize("spec", [PREFERRED, SOFT])
@pytest.mark.parametrize(("weight", "effect"), [(150, "outweighs"), (None, "beside our points")])
def test_a_preference_that_decides_nothing_is_named(spec: JSON, weight: int | None, effect: str) -> None:
    settings = Settings(scheduler_weight=weight)
    made = owner("apps/v1", "Deployment", {"template": template(1, **spec)})
    assert effect in message(ask([node("a")], [made], settings=settings), "preference-not-counted")


def test_what_only_kube_scheduler_checks_is_named_in_the_warning() -> None:
    """The text output prints the warnings, and no list `not_checked`."""
    made = pod("p", 1, spec=HARD | affine("podAffinity", "required", APART))
    answer = ask([node("a")], [made])
    text = message(answer, "not-all-checked")
    assert text.endswith("kube-scheduler decides it: pod affinity (default/p), topology spread constraints (default/p)")
    assert answer["results"][0]["not_checked"] == ["pod affinity", "topology spread constraints"]
    assert "not-all-checked" not in codes(ask([node("a")], [pod("p", 1)]))


def test_one_warning_names_what_is_not_checked_of_all_pods() -> None:
    zones = {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {"app": "x"}}}
    pods = [
        pod("a", 1, spec=affine("podAntiAffinity", "required", zones)),
        pod("b", 1, spec=HARD),
        pod("c", 1, spec=HARD),
    ]
    answer = ask([node("n")], pods)
    assert codes(answer).count("not-all-checked") == 1
    assert message(answer, "not-all-checked").endswith(
        "pod anti-affinity by topology.kubernetes.io/zone (default/a), "
        "topology spread constraints (default/b and 1 more pod)"
    )


def test_anti_affinity_of_the_pod_itself_by_node_is_checked() -> None:
    spec = affine("podAntiAffinity", "required", APART)
    running = pod("r", 1, node="a", labels={"app": "x"})
    answer = ask([node("a"), node("b"), running], [pod("p", 1, spec=spec)])
    assert (answer["results"][0]["node"], answer["results"][0]["not_checked"]) == ("b", [])


@pytest.mark.parametrize(("key", "nodes"), [("matchLabelKeys", ["a", "a"]), ("mismatchLabelKeys", ["a", "b"])])
def test_label_keys_of_anti_affinity(key: str, nodes: list[str]) -> None:
    """The API server adds them to the selector: other versions (or only other versions) of the app are kept off."""
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "x"}}, key: ["version"]}
    spec = affine("podAntiAffinity", "required", term)
    pods = [pod(f"p{at}", 1, labels={"app": "x", "version": f"v{at}"}, spec=spec) for at in (1, 2)]
    answer = ask([node("a"), node("b")], pods)
    assert [one["node"] for one in answer["results"]] == nodes


def test_fields_that_are_not_read_are_named() -> None:
    budget = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "team"},
        "spec": {"minAvailable": 1, "selector": {}, "unhealthyPodEvictionPolicy": "AlwaysAllow"},
    }  # fmt: skip
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "g", "namespace": "team"},
        "spec": {
            "schedulingPolicy": {"gang": {"minCount": 1}}, "priority": 5, "disruptionMode": "PodGroup",
            "schedulingConstraints": {"topology": [{"key": "example.com/rack"}]}, "resourceClaims": [{"name": "c"}],
        },
    }  # fmt: skip
    answer = ask([node("a")], [budget, group, pod("p", 1)])
    messages = [one["message"] for one in answer["warnings"] if one["code"] == "field-not-read"]
    assert [text.partition(" is not read")[0] for text in messages] == [
        "PodDisruptionBudget team/b: unhealthyPodEvictionPolicy AlwaysAllow",
        "PodGroup team/g: disruptionMode", "PodGroup team/g: priority", "PodGroup team/g: resourceClaims",
    ]  # fmt: skip
    in_check = [one["message"] for one in checked(node("a"), budget, group)["warnings"]]
    assert [text for text in in_check if "not read" in text] == messages
    plain = group | {"spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}}
    assert "field-not-read" not in codes(ask([node("a")], [plain, pod("p", 1)]))


# ---- Volcano

VOLCANO = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata:
  name: training-job
spec:
  minMember: 4
  queue: gpu-queue
  priorityClassName: training
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata:
  name: distributed-training
spec:
  schedulerName: volcano
  minAvailable: 4
  policies:
  - event: PodEvicted
    action: RestartJob
  tasks:
  - replicas: 4
    name: worker
    template:
      spec:
        schedulerName: volcano
        containers:
        - name: pytorch
          image: registry.example.com/training:1.0
          resources:
            limits:
              nvidia.com/gpu: 8
"""


def documented() -> list[JSON]:
    return objects_in(VOLCANO)


def test_a_volcano_job_starts_whole_or_waits() -> None:
    """ "All 4 workers (32 GPUs) must be schedulable simultaneously. If only 24 GPUs are available, the job waits"."""
    answer = ask([node(name) for name in "abcd"], documented())
    assert [(one["gang"], one["source"], one["min"], one["verdict"]) for one in answer["groups"]] == [
        ("default/distributed-training", "volcano", 4, "fits")
    ]
    answer = ask([node(name) for name in "abc"], documented())
    assert [(one["verdict"], one["node"]) for one in answer["results"]] == [("cannot", None)] * 4
    assert "3 of 4 pods fit now" in answer["groups"][0]["text"]


def test_its_scheduler_is_none_that_asks_us() -> None:
    answer = ask([node(name) for name in "abcd"], documented())
    assert any("names schedulerName volcano" in one["message"] for one in answer["warnings"])
    finding = next(one for one in checked(node("a"), documented()[1])["findings"] if one["code"] == "other-scheduler")
    assert finding["about"] == "Job/default/distributed-training"
    others = [pod(name, 1, spec={"schedulerName": "mine"}) for name in "pqr"]
    answer = ask([node(name) for name in "abcd"], [*documented(), *others])
    texts = [one["message"] for one in answer["warnings"] if one["code"] == "other-scheduler"]
    assert [text.partition(",")[0] for text in texts] == [
        "pod default/distributed-training-0 names schedulerName volcano", "pod default/p names schedulerName mine",
    ]  # fmt: skip
    assert texts[1].endswith("that scheduler decides without us; so do 2 more pods")
    ours = Settings(schedulers=("volcano",))
    assert "other-scheduler" not in codes(ask([node(name) for name in "abcd"], documented(), settings=ours))
    for name in ("default-scheduler", "gpu-scheduler"):
        assert "other-scheduler" not in codes(ask([node("a")], [pod("p", 1, spec={"schedulerName": name})]))
    waiting = pod("p", 1, spec={"schedulerName": "mine"})
    assert "other-scheduler" in [one["code"] for one in checked(node("a"), waiting)["findings"]]


def tasks(*stated: tuple[str, int, int | None], least: int | None = None) -> JSON:
    made = [
        {"name": name, "replicas": replicas, "template": template(1)} | ({"minAvailable": own} if own else {})
        for name, replicas, own in stated
    ]
    spec: JSON = {"tasks": made} | ({"minAvailable": least} if least else {})
    return owner("batch.volcano.sh/v1alpha1", "Job", spec)


def test_the_tasks_of_a_volcano_job() -> None:
    asked = read(tasks(("master", 1, None), ("worker", 3, 2)))
    assert [(gang, rank) for _, gang, rank in ranks(asked)] == [
        ("team/o", ("master", 0)), ("team/o", ("worker", 0)), ("team/o", ("worker", 1)), ("team/o", ("worker", 2)),
    ]  # fmt: skip
    assert {pod.scheduler_name for pod in asked.pods} == {"default-scheduler"}


@pytest.mark.parametrize(
    ("job", "least"),
    [
        (tasks(("master", 1, None), ("worker", 3, 2)), 3),  # of each task its own minimum, else its replicas
        (tasks(("master", 1, None), ("worker", 3, 2), least=4), 4),
        (tasks(("master", 1, 1), ("worker", 3, 3), least=2), 2),  # Volcano leaves out minima of tasks above that
        (tasks(("worker", 3, None), least=2), 2),
    ],
)
def test_how_many_pods_of_a_volcano_job_start_together(job: JSON, least: int) -> None:
    assert ask([node("a")], [job])["groups"][0]["min"] == least


# ---- pods that are created at once


def linked(*names: str, mode: str = "required") -> list[JSON]:
    return [pod(name, 2, annotations={"gpu-extender.io/links": mode}) for name in names]


def relayed(name: str, links: Sequence[Sequence[int]] = DGX1V) -> JSON:
    """A node whose relay hands out planned GPUs, so that what-if knows the GPUs of each pod that it places."""
    made: JSON = {"kind": "Node"} | machine(name, 8, links=links, annotations={f"{PREFIX}relay": "1"})
    notes = made["metadata"]["annotations"]
    stated = json.loads(notes[f"{PREFIX}topology"]) | {"uuids": [f"GPU-{name}-{at}" for at in range(8)]}
    notes[f"{PREFIX}topology"] = json.dumps(stated)
    return made


SWITCHED = [[18 * (i != j) for j in range(8)] for i in range(8)]


def test_pods_that_require_links_share_a_node_only_one_after_the_other() -> None:
    """Live the second pod of a burst finds `links-pending` on the node of the first, and takes another one."""
    answer = ask([relayed("a"), relayed("b"), relayed("c")], linked("x", "y", "z"))
    assert {one["node"] for one in answer["results"]} == {"a"}
    messages = [one["message"] for one in answer["warnings"] if one["code"] == "links-at-once"]
    assert ["follows x on a" in messages[0], "follows x, y on a" in messages[1]] == [True, True]
    assert "links-at-once" not in codes(ask([relayed("a")], linked("x")))
    assert "links-at-once" not in codes(ask([relayed("a")], linked("x", "y", mode="preferred")))
    assert "links-at-once" not in codes(ask([relayed("a", SWITCHED)], linked("x", "y")))
