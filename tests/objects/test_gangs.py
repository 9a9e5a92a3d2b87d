"""Gangs of everybody's making: who belongs together, and how many must run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import pytest

from extender.objects import gangs, records
from extender.objects.gangs.pod_groups import Volcano
from extender.objects.gangs.roles import Role, owner_object
from tests.cluster.reach import kept_of
from tests.world import GPU, JSON, WALL, World, workload

OURS = "gpu-extender.io/"
LWS = "leaderworkerset.sigs.k8s.io/"


def obj(api: str, kind: str, name: str, spec: JSON, **status: Any) -> JSON:
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{kind}-{name}"},
        "spec": spec,
        "status": status,
    }


def owned(kind: str, api: str, name: str = "g") -> list[JSON]:
    return [{"apiVersion": api, "kind": kind, "name": name, "uid": "o", "controller": True}]


def pod(name: str, facts: Mapping[str, Any]) -> JSON:
    made = workload(
        name, 1, node="n", phase="Running", start=WALL - 100, priority=1, labels=facts.get("labels"),
        annotations=facts.get("annotations"), spec=facts.get("spec"),
    )  # fmt: skip
    if "owner" in facts:
        made["metadata"]["ownerReferences"] = facts["owner"]
    return made


WORKERS = {"replicas": 2}
# what the pods carry, the object, source, minimum
CASES: dict[str, tuple[JSON, JSON | None, str, int | None]] = {
    "our label": ({"labels": {OURS + "gang": "g", OURS + "gang-min": "2"}}, None, "gpu-extender", 2),
    "our annotation": ({"annotations": {OURS + "gang": "g"}}, None, "gpu-extender", None),
    "coscheduling": (
        {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
        obj("scheduling.x-k8s.io/v1alpha1", "PodGroup", "g", {"minMember": 2}), "coscheduling", 2,
    ),
    "coscheduling with Volcano's PodGroup": (
        {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
        obj("scheduling.volcano.sh/v1beta1", "PodGroup", "g", {"minMember": 2}), "coscheduling", None,
    ),
    "volcano": (
        {"annotations": {"scheduling.k8s.io/group-name": "g"}},
        obj("scheduling.volcano.sh/v1beta1", "PodGroup", "g", {"minMember": 1}), "volcano", 1,
    ),
    "scheduling group": (
        {"spec": {"schedulingGroup": {"podGroupName": "g"}}},
        obj("scheduling.k8s.io/v1alpha2", "PodGroup", "g", {"schedulingPolicy": {"gang": {"minCount": 2}}}),
        "kubernetes", 2,
    ),
    "workload reference": (
        {"spec": {"workloadRef": {"name": "g", "podGroup": "workers", "podGroupReplicaKey": "0"}}},
        obj("scheduling.k8s.io/v1alpha1", "Workload", "g",
            {"podGroups": [{"name": "other", "policy": {"gang": {"minCount": 9}}},
                           {"name": "workers", "policy": {"gang": {"minCount": 2}}}]}),
        "kubernetes", 2,
    ),
    "Kueue's Workload is another": (
        {"spec": {"workloadRef": {"name": "g", "podGroup": "workers"}}},
        obj("kueue.x-k8s.io/v1beta1", "Workload", "g", {"podGroups": [{"name": "workers"}]}), "kubernetes", None,
    ),
    "kueue": (
        {"labels": {"kueue.x-k8s.io/pod-group-name": "g"},
         "annotations": {"kueue.x-k8s.io/pod-group-total-count": "3"}}, None, "kueue", 3,
    ),
    "leader worker set": (
        {"labels": {LWS + "name": "g", LWS + "group-index": "1"}, "annotations": {LWS + "size": "3"}},
        None, "leaderworkerset", 3,
    ),
    "leader worker set by its object": (
        {"labels": {LWS + "name": "g", LWS + "group-index": "1"}},
        obj("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "g", {"leaderWorkerTemplate": {"size": 2}}),
        "leaderworkerset", 2,
    ),
    "job set": (
        {"labels": {"jobset.sigs.k8s.io/jobset-name": "g"}, "owner": owned("Job", "batch/v1", "g-workers-0")},
        obj("jobset.x-k8s.io/v1alpha2", "JobSet", "g",
            {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 4}}},
                                {"template": {"spec": {}}}]}),
        "jobset", 9,
    ),
    "PyTorchJob by its label": (
        {"labels": {"training.kubeflow.org/job-name": "g"}},
        obj("kubeflow.org/v1", "PyTorchJob", "g", {"pytorchReplicaSpecs": {"Master": {}, "Worker": WORKERS}}),
        "training", 3,
    ),
    "MPIJob by its owner": (
        {"owner": owned("MPIJob", "kubeflow.org/v2beta1")},
        obj("kubeflow.org/v2beta1", "MPIJob", "g",
            {"mpiReplicaSpecs": {"Worker": WORKERS}, "runPolicy": {"schedulingPolicy": {"minAvailable": 1}}}),
        "training", 1,
    ),
    "elastic PyTorchJob": (
        {"labels": {"training.kubeflow.org/job-name": "g"}},
        obj("kubeflow.org/v1", "PyTorchJob", "g",
            {"pytorchReplicaSpecs": {"Worker": {"replicas": 8}}, "elasticPolicy": {"minReplicas": 2}}), "training", 2,
    ),
    "Ray by its label": (
        {"labels": {"ray.io/cluster": "g"}},
        obj("ray.io/v1", "RayCluster", "g",
            {"workerGroupSpecs": [{"replicas": 2, "numOfHosts": 2, "minReplicas": 1}, {"replicas": 1}]}), "ray", 6,
    ),
    "Ray by its owner, with its autoscaler": (
        {"owner": owned("RayCluster", "ray.io/v1")},
        obj("ray.io/v1", "RayCluster", "g",
            {"enableInTreeAutoscaling": True, "workerGroupSpecs": [{"replicas": 4, "minReplicas": 1}]}), "ray", 2,
    ),
    "a minimum that cannot be meant": (
        {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
        obj("scheduling.x-k8s.io/v1alpha1", "PodGroup", "g", {"minMember": -3}), "coscheduling", None,
    ),
    "Job": (
        {"owner": owned("Job", "batch/v1")}, obj("batch/v1", "Job", "g", {"parallelism": 2}), "job", 2,
    ),
    "Job that is nearly done": (
        {"owner": owned("Job", "batch/v1")},
        obj("batch/v1", "Job", "g", {"parallelism": 4, "completions": 5}, succeeded=3), "job", 2,
    ),
    "Job that we do not see": ({"owner": owned("Job", "batch/v1")}, None, "job", None),
    "our own minimum counts for all": (
        {"labels": {"scheduling.x-k8s.io/pod-group": "g", OURS + "gang-min": "1"}},
        obj("scheduling.x-k8s.io/v1alpha1", "PodGroup", "g", {"minMember": 2}), "coscheduling", 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "made", "source", "minimum"), CASES.values(), ids=CASES)
def test_who_belongs_together(facts: JSON, made: JSON | None, source: str, minimum: int | None) -> None:
    for first in (True, False):  # the object may come before the pods, or after them
        world = World()
        world.node("n", 8)
        if made is not None and first and gangs.is_group(json.dumps(made)):
            world.set("Group", made)
        for i in range(3):
            world.set("Pod", pod(f"p{i}", facts))
        if made is not None and not first and gangs.is_group(json.dumps(made)):
            world.set("Group", made)
        gang = world.cluster.gangs.of(world.cluster.pods["uid-p0"])
        assert gang is not None
        assert (gang.ref.source, gang.ref.name, gang.running) == (source, "g", 3)
        assert (gang.minimum, gang.known) == ((3, False) if minimum is None else (minimum, True))


WAITS_FOR_WORKERS = {"launcherCreationPolicy": "WaitForWorkersReady"}
INITIALIZED = [
    {"name": "dataset-initializer", "template": {"spec": {}}},
    {"name": "node", "template": {"spec": {"parallelism": 4}},
     "dependsOn": [{"name": "dataset-initializer", "status": "Complete"}]},
]  # fmt: skip
# what the pods carry, the object, size, how many pods come late
SIZES: dict[str, tuple[JSON, JSON | None, int | None, int]] = {
    "our gang": ({"labels": {OURS + "gang": "g", OURS + "gang-min": "2"}}, None, None, 0),
    "our size": ({"labels": {OURS + "gang": "g"}, "annotations": {OURS + "gang-size": "6"}}, None, 6, 0),
    "an invalid size of ours": (
        {"labels": {OURS + "gang": "g"}, "annotations": {OURS + "gang-size": "many"}}, None, None, 0,
    ),
    "our size counts before all others": (
        {"owner": owned("Job", "batch/v1"), "annotations": {OURS + "gang-size": "6"}},
        obj("batch/v1", "Job", "g", {"parallelism": 4}), 6, 0,
    ),
    "coscheduling": (
        {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
        obj("scheduling.x-k8s.io/v1alpha1", "PodGroup", "g", {"minMember": 2}), None, 0,
    ),
    "workload reference": (
        {"spec": {"workloadRef": {"name": "g", "podGroup": "workers"}}},
        obj("scheduling.k8s.io/v1alpha1", "Workload", "g",
            {"podGroups": [{"name": "workers", "policy": {"gang": {"minCount": 2}}}]}), None, 0,
    ),
    "kueue": (
        {"labels": {"kueue.x-k8s.io/pod-group-name": "g"},
         "annotations": {"kueue.x-k8s.io/pod-group-total-count": "3"}}, None, 3, 0,
    ),
    "leader worker set": (
        {"labels": {LWS + "name": "g", LWS + "group-index": "1"}, "annotations": {LWS + "size": "3"}}, None, 3, 0,
    ),
    "leader worker set by its object": (
        {"labels": {LWS + "name": "g", LWS + "group-index": "1"}},
        obj("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "g", {"leaderWorkerTemplate": {"size": 2}}), 2, 0,
    ),
    "job set": (
        {"labels": {"jobset.sigs.k8s.io/jobset-name": "g"}},
        obj("jobset.x-k8s.io/v1alpha2", "JobSet", "g",
            {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 4}}}, {"template": {}}]}), 9, 0,
    ),
    "what completes before the others begin": (
        {"labels": {"jobset.sigs.k8s.io/jobset-name": "g"}},
        obj("jobset.x-k8s.io/v1alpha2", "JobSet", "g", {"replicatedJobs": INITIALIZED}), 4, 0,
    ),
    "elastic PyTorchJob": (
        {"labels": {"training.kubeflow.org/job-name": "g"}},
        obj("kubeflow.org/v1", "PyTorchJob", "g",
            {"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 8}},
             "elasticPolicy": {"minReplicas": 2}}), 9, 0,
    ),
    "MPIJob": (
        {"owner": owned("MPIJob", "kubeflow.org/v2beta1")},
        obj("kubeflow.org/v2beta1", "MPIJob", "g", {"mpiReplicaSpecs": {"Launcher": {}, "Worker": WORKERS}}), 3, 0,
    ),
    "MPIJob whose launcher waits for the workers": (
        {"owner": owned("MPIJob", "kubeflow.org/v2beta1")},
        obj("kubeflow.org/v2beta1", "MPIJob", "g",
            {"mpiReplicaSpecs": {"Launcher": {}, "Worker": WORKERS}, **WAITS_FOR_WORKERS}), 3, 1,
    ),
    "Ray with its autoscaler": (
        {"labels": {"ray.io/cluster": "g"}},
        obj("ray.io/v1", "RayCluster", "g",
            {"enableInTreeAutoscaling": True,
             "workerGroupSpecs": [{"replicas": 4, "minReplicas": 1, "numOfHosts": 2}]}), 9, 0,
    ),
    "Job": ({"owner": owned("Job", "batch/v1")}, obj("batch/v1", "Job", "g", {"parallelism": 5}), 5, 0),
    "Job that is nearly done": (
        {"owner": owned("Job", "batch/v1")},
        obj("batch/v1", "Job", "g", {"parallelism": 4, "completions": 5}, succeeded=3), 2, 0,
    ),
    "Job that we do not see": ({"owner": owned("Job", "batch/v1")}, None, None, 0),
    "a size that no gang can have": (
        {"owner": owned("Job", "batch/v1")}, obj("batch/v1", "Job", "g", {"parallelism": 2**31}), None, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "made", "size", "late"), SIZES.values(), ids=SIZES)
def test_how_many_pods_the_whole_gang_has(facts: JSON, made: JSON | None, size: int | None, late: int) -> None:
    """Two pods exist; the size counts those that do not exist yet."""
    pods = [records.pod(pod(f"p{i}", facts), frozenset({GPU})) for i in range(2)]
    objects = {}
    if made is not None:
        record = gangs.group(json.dumps(made))
        objects[(record.api, record.kind, record.namespace, record.name)] = record
    named = gangs.ref(pods[0], objects)
    assert named is not None
    assert gangs.size(named, gangs.Members(pods), objects) == size
    assert gangs.late(named, objects) == late


@pytest.mark.parametrize(
    ("kind", "api", "spec", "start", "ends_at"),
    [
        ("Job", "batch/v1", {"activeDeadlineSeconds": 600}, "2026-01-01T00:00:00Z", 1_767_225_600.0 + 600),
        ("Job", "batch/v1", {"activeDeadlineSeconds": 600}, None, None),  # suspended
        ("Job", "batch/v1", {}, "2026-01-01T00:00:00Z", None),
        ("Job", "batch/v1", {"activeDeadlineSeconds": -1}, "2026-01-01T00:00:00Z", 1_767_225_600.0),
        ("PyTorchJob", "kubeflow.org/v1", {"activeDeadlineSeconds": 600}, "2026-01-01T00:00:00Z", None),
    ],
)
def test_when_the_deadline_of_a_job_ends_its_pods(
    kind: str, api: str, spec: JSON, start: str | None, ends_at: float | None
) -> None:
    """It runs from the Job's start, so while its pods are gated."""
    assert gangs.group(json.dumps(obj(api, kind, "g", spec, startTime=start))).ends_at == ends_at


INDEPENDENT: dict[str, tuple[JSON, JSON | None]] = {
    "a pod alone": ({}, None),
    "of a ReplicaSet": ({"owner": owned("ReplicaSet", "apps/v1")}, None),
    "of Volcano's Job without a PodGroup": ({"owner": owned("Job", "batch.volcano.sh/v1alpha1")}, None),
    "basic policy": (
        {"spec": {"schedulingGroup": {"podGroupName": "g"}}},
        obj("scheduling.k8s.io/v1alpha2", "PodGroup", "g", {"schedulingPolicy": {"basic": {}}}),
    ),
    "a minimum of 0": ({"labels": {OURS + "gang-min": "0"}, "owner": owned("Job", "batch/v1")}, None),
}


@pytest.mark.parametrize(("facts", "made"), INDEPENDENT.values(), ids=INDEPENDENT)
def test_who_does_not(world: World, facts: JSON, made: JSON | None) -> None:
    world.node("n", 8)
    for i in range(3):
        world.set("Pod", pod(f"p{i}", facts))
    if made is not None:
        world.set("Group", made)
    assert world.cluster.gangs.of(world.cluster.pods["uid-p0"]) is None


JOBSET = obj(
    "jobset.x-k8s.io/v1alpha2", "JobSet", "js",
    {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 1}}}]},
)  # fmt: skip
MPI = obj("kubeflow.org/v2beta1", "MPIJob", "js", {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 1}}})


@pytest.mark.parametrize(("above", "source"), [(JOBSET, "jobset"), (MPI, "training")])
@pytest.mark.parametrize("order", range(6))
def test_the_owners_of_owners_are_followed(world: World, above: JSON, source: str, order: int) -> None:
    """Pods of two Jobs of one JobSet (or a launcher's Job of an MPIJob) are one gang, in whatever order we learn it."""
    world.node("n", 8)
    jobs = [obj("batch/v1", "Job", f"js-{i}", {"parallelism": 1}) for i in range(2)]
    for job in jobs:
        job["metadata"]["ownerReferences"] = owned(above["kind"], above["apiVersion"], "js")
    pods = [pod(f"p{i}", {"owner": owned("Job", "batch/v1", f"js-{i}")}) for i in range(2)]
    waits = pod("waits", {"owner": owned("Job", "batch/v1", "js-1")})
    del waits["spec"]["nodeName"]
    steps = [("Group", [above]), ("Group", jobs), ("Pod", [*pods, waits])]
    for kind, objects in list(permutations(steps))[order]:
        for one in objects:
            world.set(kind, one)  # type: ignore[arg-type]
    cluster = world.cluster
    gang = cluster.gangs.of(cluster.pods["uid-p0"])
    assert gang is not None
    assert (gang.ref.source, gang.ref.name, gang.minimum, gang.running) == (source, "js", 2, 2)
    assert [*cluster.workloads.gang_pods.values()] == [{"uid-p0": "n", "uid-p1": "n", "uid-waits": ""}]
    world.drop("Group", jobs[0])  # what owns it is not known any more
    assert cluster.gangs.of(cluster.pods["uid-p0"]) is None  # one pod of a Job
    assert {ref.source for ref in cluster.workloads.gang_pods} == {"job", source}
    assert len(cluster.gangs) == 2
    world.gone("p0", "p1", "waits")
    assert not len(cluster.gangs)
    assert not cluster.workloads.gang_pods


def test_a_pod_group_that_a_job_owns_is_as_any(world: World) -> None:
    """Training operators make PodGroups of their jobs'; no pod is owned by one."""
    world.node("n", 8)
    made = obj("scheduling.volcano.sh/v1beta1", "PodGroup", "g", {"minMember": 2})
    made["metadata"]["ownerReferences"] = owned("PyTorchJob", "kubeflow.org/v1", "g")
    for i in range(3):
        world.set("Pod", pod(f"p{i}", {"annotations": {"scheduling.k8s.io/group-name": "g"}}))
    world.set("Group", made)
    gang = world.cluster.gangs.of(world.cluster.pods["uid-p0"])
    assert gang is not None
    assert (gang.ref.source, gang.minimum) == ("volcano", 2)


def test_a_job_of_one_pod_is_no_gang_until_a_second_runs(world: World) -> None:
    world.node("n", 8)
    facts = {"owner": owned("Job", "batch/v1")}
    world.set("Pod", pod("p0", facts))
    assert world.cluster.gangs.of(world.cluster.pods["uid-p0"]) is None
    world.set("Pod", pod("p1", facts))
    assert world.cluster.gangs.of(world.cluster.pods["uid-p0"]) is not None
    world.gone("p1")
    assert world.cluster.gangs.of(world.cluster.pods["uid-p0"]) is None


def test_minima_that_contradict_each_other_are_unknown() -> None:
    for texts, minimum in ((("2", "2"), 2), (("2", "1"), 2), (("x", "x"), 2), (("1", "1"), 1)):
        pods = [
            records.pod(pod(f"p{i}", {"labels": {OURS + "gang": "g", OURS + "gang-min": text}}), frozenset({GPU}))
            for i, text in enumerate(texts)
        ]
        found = gangs.gang(gangs.Ref("gpu-extender", "default", "g"), gangs.Members(pods), {})
        assert found is not None
        assert (found.minimum, found.known) == (minimum, texts[0] == texts[1] != "x")


def test_a_minimum_that_no_gang_can_have_is_unknown(world: World) -> None:
    """Its parts are 32 bits each, and allowed; the product is beyond 64, and would end every search that meets it."""
    world.node("n", 8)
    most = 2**31 - 1
    groups = [{"replicas": most, "numOfHosts": most}] * 3
    world.set("Group", obj("ray.io/v1", "RayCluster", "r", {"workerGroupSpecs": groups}))
    for i in range(2):
        world.pod(f"p{i}", 4, "n", start=WALL - 10, labels={"ray.io/cluster": "r"})
    gang = world.cluster.gangs.of(world.cluster.pods["uid-p0"])
    assert gang is not None
    assert (gang.minimum, gang.known) == (2, False)
    offer = {"n": ["p0", "p1"]}
    assert world.preempt(workload("p", 8, priority=10), offer) == offer


def test_members_on_other_nodes_and_on_unknown_ones_are_priced(world: World) -> None:
    """The gang on n is spread over a node that we know and one that we do not: all of it is lost."""
    for name in ("n", "far"):
        world.node(name, 2)
    labels = {"gpu-extender.io/gang": "g"}
    world.pod("here", 2, "n", priority=1, start=WALL - 10, labels=labels)
    world.pod("far", 2, "far", priority=99, start=WALL - 100, labels=labels)
    world.pod("lost", 2, "unknown", priority=1, start=WALL - 1000, labels=labels)
    assert world.preempt(workload("p", 2, priority=10), {"n": ["here"]}) == {"n": ["here"]}
    shown = world.decision()
    cost = {term["term"]: term["value"] for term in shown["cost"]}
    assert (cost["gangs_broken"], cost["work_lost_gpu_seconds"]) == (1, 2 * 10 + 2 * 100 + 2 * 1000)
    assert [one["code"] for one in shown["warnings"]] == ["gang-minimum-unknown"]
    assert shown["victims"][0]["gang"] == "default/g"
    world.node("unknown", 2)  # it comes after its pod
    world.verbs.reservations.drop("uid-p")
    assert world.preempt(workload("p", 2, priority=10), {"n": ["here"]}) == {"n": ["here"]}
    assert {term["term"]: term["value"] for term in world.decision()["cost"]} == cost


# -- what the table knows of budgets and gangs follows the events ------------------------------------------------------


def test_which_budgets_a_pod_is_in_follows_every_change(world: World) -> None:
    world.node("n", 8)

    def inside(name: str = "p") -> list[str]:
        return [budget for _, budget in world.cluster.budgets.of(world.cluster.pods[f"uid-{name}"])]

    world.budget("a", 1, {"app": "a"})
    world.pod("p", 1, "n", priority=1, labels={"app": "a", "tier": "x"})
    world.pod("q", 1, "n", priority=1, labels={"app": "b"})
    assert (inside(), inside("q")) == (["a"], [])
    b = world.budget("b", 0, {"tier": "x"})  # it comes after the pods
    assert inside() == ["a", "b"]
    world.budget("b", 5, {"tier": "x"})  # only what it allows changes
    assert inside() == ["a", "b"]
    world.budget("b", 5, {"tier": "x"}, disruptedPods={"p": "2026-11-21T10:00:00Z"})  # counted already
    assert inside() == ["a"]
    world.budget("b", 5, {"app": "b"})  # another selector
    assert (inside(), inside("q")) == (["a"], ["b"])
    world.pod("p", 1, "n", priority=1, labels={"app": "b"})  # other labels
    assert inside() == ["b"]
    world.drop("PodDisruptionBudget", b)
    assert (inside(), inside("q")) == ([], [])
    world.budget("all", 0, {})
    assert inside() == []  # kube-scheduler: an empty selector matches nothing


def test_ids_of_gangs_are_used_again(world: World) -> None:
    world.node("n", 8)
    for turn in range(20):
        for i in range(2):
            world.pod(f"p{i}", 1, "n", priority=1, labels={"gpu-extender.io/gang": f"g{turn}"})
        gang = world.cluster.gangs.of(world.cluster.pods["uid-p0"])
        assert gang is not None
        assert (gang.ref.name, gang.running) == (f"g{turn}", 2)
    assert len(world.cluster.gangs.by_number) <= 3
    world.gone("p0", "p1")
    assert not len(world.cluster.gangs)
    assert not kept_of(world.cluster, "uid-p")


def test_the_two_best_nodes_are_told_though_others_are_left_early(world: World) -> None:
    """40 nodes, each a little dearer than the last that was searched to its end; checked against each node alone."""
    for i in range(40):
        world.node(f"n{i:02}", 2)
        for j in range(2):
            world.pod(f"v{i}-{j}", 1, f"n{i:02}", priority=1, start=WALL - 1 - (i * 17 + j * 5) % 40)
    offered = {f"n{i:02}": [f"v{i}-0"] for i in range(40)}
    alone = []
    for node, names in offered.items():
        answer = world.preempt(workload("p", 1, priority=9), {node: names})
        alone.append((tuple(term["value"] for term in world.decision()["cost"]), node, answer[node]))
        world.verbs.reservations.drop("uid-p")
    alone.sort()
    assert world.preempt(workload("p", 1, priority=9), offered) == {alone[0][1]: alone[0][2]}
    certificate = world.decision()["certificate"]
    assert (certificate["proved"], certificate["nodes_examined"]) == (True, 40)
    assert certificate["runner_up"]["node"] == alone[1][1]
    assert [victim["name"] for victim in certificate["runner_up"]["victims"]] == alone[1][2]


def test_an_object_is_compared_with_the_gangs_of_its_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenants make as many gangs as pods, and change their objects as often as they like."""
    read: list[str] = []
    right = gangs.gang

    def gang(named: gangs.Ref, *facts: Any) -> gangs.Gang | None:
        read.append(named.name)
        return right(named, *facts)

    monkeypatch.setattr(gangs, "gang", gang)
    world = World()
    world.node("n", 8)
    for i in range(4):
        world.pod(f"p{i}", 1, "n", labels={"scheduling.x-k8s.io/pod-group": f"g{i % 2}"})
    cluster = world.cluster
    for minimum in (1, 2):
        read.clear()
        world.set("Group", obj("scheduling.x-k8s.io/v1alpha1", "PodGroup", "g1", {"minMember": minimum}))
        assert read == ["g1"]
        found = {gang.name: (gang.minimum, gang.known) for gang in cluster.gangs.by_number if gang is not None}
        assert found == {"default/g0": (2, False), "default/g1": (minimum, True)}
    assert not cluster.faults
    world.gone("p0", "p1", "p2", "p3")
    assert not len(cluster.gangs)


def test_a_negative_number_of_late_pods_takes_away_none_of_the_others() -> None:
    role = Role({}, "spec", -(10**9), early=0)
    assert (role.pods, role.late) == (0, 0)


TEMPLATE = {"spec": {"containers": [{"name": "c", "resources": {"limits": {GPU: 1}}}]}}
GPUS = frozenset({GPU})
HUGE = 10**2000


def hostile(api: str, kind: str, spec: Any, **notes: str) -> Any:
    meta = {"name": "o", "namespace": "n", "uid": "u", "annotations": notes}
    return {"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec}


@pytest.mark.parametrize("jobs", [[(300_000_000, 1), (-299_999_990, 1)], [(1_000_000, 1)], [(10_000, 90)]])
def test_the_size_of_a_jobset_is_known_soon_however_many_jobs_it_states(jobs: list[tuple[int, int]]) -> None:
    replicated = [
        {"name": f"w{at}", "replicas": replicas, "template": {"spec": {"parallelism": pods, "template": TEMPLATE}}}
        for at, (replicas, pods) in enumerate(jobs)
    ]
    owner = gangs.group(hostile("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": replicated}))
    known = {(owner.api, owner.kind, owner.namespace, owner.name): owner}
    began = time.process_time()
    size = gangs.size(gangs.Ref("jobset", "n", "o"), gangs.Members(), known)
    assert time.process_time() - began < 0.05
    assert size == owner.size or size is None


def test_a_pod_group_with_very_many_tasks_costs_little() -> None:
    """Each event of its pods asks for the minima of their roles; beyond a bound that of the whole gang counts alone."""
    spec = {"minMember": 500_000, "minTaskMember": {f"t{at}": 1 for at in range(100_000)}}
    began = time.process_time()
    owner = gangs.group(hostile("scheduling.volcano.sh/v1beta1", "PodGroup", spec))
    known = {(owner.api, owner.kind, owner.namespace, owner.name): owner}
    for _ in range(100):
        gang = gangs.gang(gangs.Ref("volcano", "n", "o"), gangs.Members(), known)
    assert time.process_time() - began < 0.2
    assert gang is not None
    assert (gang.minimum, gang.roles) == (500_000, ())
    raw = hostile("scheduling.volcano.sh/v1beta1", "PodGroup", spec)
    assert Volcano().read(owner_object(raw)).parts == ()  # none is made, and dropped later


def test_owners_with_impossible_numbers_are_read_or_rejected_soon() -> None:
    clique = {"name": "a", "spec": {"podSpec": TEMPLATE["spec"]}}
    groups = [{"name": "x", "cliqueNames": ["a"], "replicas": 9_000_000}, {"name": "y", "replicas": -9_000_000}]
    grove = hostile("grove.io/v1alpha1", "PodCliqueSet", {
        "replicas": 1, "template": {"cliques": [clique], "podCliqueScalingGroups": groups}})  # fmt: skip
    with pytest.raises(records.RecordError, match="more than 2000 PodGangs"):
        list(gangs.read_owner(grove, GPUS).pods())
    inner = {"replicas": HUGE, "b": {"replicas": HUGE, "template": TEMPLATE}}
    unknown = gangs.read_owner(hostile("example.com/v1", "Thing", {"replicas": HUGE, "a": inner}), GPUS)
    with pytest.raises(records.RecordError, match="not a number of pods"):
        list(unknown.pods())
    assert len(unknown.assumed[0]) < 300
    prefix = "serving.kserve.io/exp-dra-"
    served = hostile("serving.kserve.io/v1alpha1", "LLMInferenceService", {"template": TEMPLATE["spec"]},
                     **{f"{prefix}device-class": "c", f"{prefix}device-count": "9" * 5000})  # fmt: skip
    (claim,) = gangs.read_owner(served, GPUS).beside
    assert claim["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1
