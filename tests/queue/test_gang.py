"""Which gangs wait behind our gate, for each kind of owner: their pods, sizes and minima."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from extender.objects.gangs import Ref
from extender.objects.queueing import GATE, Domain
from extender.queue.gang import WaitingGang
from extender.settings import Settings
from tests.act.queue.rig import gated
from tests.objects.test_gangs import LWS, OURS, obj, owned
from tests.queue.gangs import waiting
from tests.world import JSON, WALL, World, rfc3339, workload

TRAINING = "training.kubeflow.org/"
RANK = "batch.kubernetes.io/job-completion-index"
JOB = {"owner": owned("Job", "batch/v1")}


def pod(
    name: str, facts: Mapping[str, Any] = {}, gpus: int = 1, *, gates: tuple[str, ...] = (GATE,), **more: Any
) -> JSON:
    """A pod behind our gate."""
    spec = {"schedulingGates": [{"name": one} for one in gates], **facts.get("spec", {}), **more.pop("spec", {})}
    made = workload(
        name, gpus, labels=facts.get("labels", {}) | more.pop("labels", {}),
        annotations=facts.get("annotations", {}) | more.pop("annotations", {}), spec=spec, **more,
    )  # fmt: skip
    if "owner" in facts:
        made["metadata"]["ownerReferences"] = facts["owner"]
    return made


def world_of(pods: list[JSON], *objects: JSON) -> World:
    world = World()
    world.node("n", 8)
    for one in pods:
        world.set("Pod", one)
    for one in objects:
        world.set("Group", one)
    return world


def one_of(world: World) -> WaitingGang:
    (gang,) = waiting(world.cluster)
    return gang


MPI = {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 3}}}
MPI_OWNER = {"owner": owned("MPIJob", "kubeflow.org/v2beta1")}
PYTORCH = {"labels": {TRAINING + "job-name": "g"}}
RAY = {"labels": {"ray.io/cluster": "g"}}
COSCHEDULING = {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}
# what the pods carry, the object, source, (size, minimum, known)
OWNERS: dict[str, tuple[JSON, JSON | None, str, tuple[int | None, int, bool]]] = {
    "Job": (JOB, obj("batch/v1", "Job", "g", {"parallelism": 4, "completions": 8}), "job", (4, 4, True)),
    "indexed Job": (
        JOB, obj("batch/v1", "Job", "g", {"parallelism": 4, "completions": 4, "completionMode": "Indexed"}),
        "job", (4, 4, True),
    ),
    "Job that is nearly done": (
        JOB, obj("batch/v1", "Job", "g", {"parallelism": 4, "completions": 8}, succeeded=5), "job", (3, 3, True),
    ),
    "Job that we do not see yet": (JOB, None, "job", (None, 3, False)),
    "JobSet": (
        {"labels": {"jobset.sigs.k8s.io/jobset-name": "g"}},
        obj("jobset.x-k8s.io/v1alpha2", "JobSet", "g",
            {"replicatedJobs": [{"name": "driver"},
                                {"name": "workers", "replicas": 2, "template": {"spec": {"parallelism": 2}}}]}),
        "jobset", (5, 5, True),
    ),
    "TrainJob with an initializer": (
        {"labels": {"jobset.sigs.k8s.io/jobset-name": "g"}},
        obj("jobset.x-k8s.io/v1alpha2", "JobSet", "g",
            {"replicatedJobs": [
                {"name": "dataset-initializer"},
                {"name": "node", "template": {"spec": {"parallelism": 3}},
                 "dependsOn": [{"name": "dataset-initializer", "status": "Complete"}]}]}),
        "jobset", (3, 3, True),
    ),
    "LeaderWorkerSet": (
        {"labels": {LWS + "name": "g", LWS + "group-index": "1"}, "annotations": {LWS + "size": "3"}},
        None, "leaderworkerset", (3, 3, True),
    ),
    "PyTorchJob": (
        PYTORCH,
        obj("kubeflow.org/v1", "PyTorchJob", "g", {"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 3}}}),
        "training", (4, 4, True),
    ),
    "elastic PyTorchJob": (
        PYTORCH,
        obj("kubeflow.org/v1", "PyTorchJob", "g",
            {"pytorchReplicaSpecs": {"Worker": {"replicas": 8}}, "elasticPolicy": {"minReplicas": 2}}),
        "training", (8, 2, True),
    ),
    "MPIJob": (MPI_OWNER, obj("kubeflow.org/v2beta1", "MPIJob", "g", MPI), "training", (4, 4, True)),
    "MPIJob whose launcher waits for the workers": (
        MPI_OWNER,
        obj("kubeflow.org/v2beta1", "MPIJob", "g", {**MPI, "launcherCreationPolicy": "WaitForWorkersReady"}),
        "training", (4, 3, True),  # the launcher comes last
    ),
    "RayCluster": (
        RAY, obj("ray.io/v1", "RayCluster", "g", {"workerGroupSpecs": [{"replicas": 2, "numOfHosts": 2}]}),
        "ray", (5, 5, True),
    ),
    "RayCluster with its autoscaler": (
        RAY, obj("ray.io/v1", "RayCluster", "g",
                 {"enableInTreeAutoscaling": True, "workerGroupSpecs": [{"replicas": 4, "minReplicas": 1}]}),
        "ray", (5, 2, True),
    ),
    "PodGroup of Coscheduling": (
        COSCHEDULING, obj("scheduling.x-k8s.io/v1alpha1", "PodGroup", "g", {"minMember": 4}),
        "coscheduling", (None, 4, True),
    ),
    "PodGroup that we do not see yet": (COSCHEDULING, None, "coscheduling", (None, 3, False)),
    "PodGroup of Volcano": (
        {"annotations": {"scheduling.k8s.io/group-name": "g"}},
        obj("scheduling.volcano.sh/v1beta1", "PodGroup", "g", {"minMember": 2}), "volcano", (None, 2, True),
    ),
    "pod group of Kueue": (
        {"labels": {"kueue.x-k8s.io/pod-group-name": "g"},
         "annotations": {"kueue.x-k8s.io/pod-group-total-count": "3"}}, None, "kueue", (3, 3, True),
    ),
    "Workload": (
        {"spec": {"workloadRef": {"name": "g", "podGroup": "workers"}}},
        obj("scheduling.k8s.io/v1alpha1", "Workload", "g",
            {"podGroups": [{"name": "workers", "policy": {"gang": {"minCount": 3}}}]}), "kubernetes", (None, 3, True),
    ),
    "PodGroup of Kubernetes": (
        {"spec": {"schedulingGroup": {"podGroupName": "g"}}},
        obj("scheduling.k8s.io/v1alpha2", "PodGroup", "g", {"schedulingPolicy": {"gang": {"minCount": 2}}}),
        "kubernetes", (None, 2, True),
    ),
    "ours": ({"labels": {OURS + "gang": "g"}}, None, "gpu-extender", (None, 3, False)),
    "ours with a minimum": (
        {"labels": {OURS + "gang": "g", OURS + "gang-min": "4"}}, None, "gpu-extender", (None, 4, True),
    ),
    "ours with a size": (
        {"labels": {OURS + "gang": "g"}, "annotations": {OURS + "gang-size": "5"}}, None, "gpu-extender", (5, 5, True),
    ),
    "ours with both": (
        {"labels": {OURS + "gang": "g", OURS + "gang-min": "2"}, "annotations": {OURS + "gang-size": "5"}},
        None, "gpu-extender", (5, 2, True),
    ),
    "a minimum above the size": (
        {"labels": {OURS + "gang": "g", OURS + "gang-min": "9"}, "annotations": {OURS + "gang-size": "5"}},
        None, "gpu-extender", (5, 5, True),
    ),
    "our size of a Job": (
        {**JOB, "annotations": {OURS + "gang-size": "2"}}, obj("batch/v1", "Job", "g", {"parallelism": 4}),
        "job", (2, 2, True),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "made", "source", "stated"), OWNERS.values(), ids=OWNERS)
def test_a_gang_of_each_owner(
    facts: JSON, made: JSON | None, source: str, stated: tuple[int | None, int, bool]
) -> None:
    """Three pods of it exist."""
    gang = one_of(world_of([pod(f"p{i}", facts) for i in range(3)], *([made] if made else [])))
    assert (gang.ref.source, gang.ref.namespace, gang.ref.name) == (source, "default", "g")
    assert [one.name for one in gang.pods] == ["p0", "p1", "p2"]
    assert gang.members == ()
    assert (gang.size, gang.minimum, gang.known) == stated
    assert gang.complete is (stated[2] and stated[1] <= 3)


SINGLES: dict[str, tuple[JSON, JSON | None]] = {
    "without an owner": ({}, None),
    "of a ReplicaSet": ({"owner": owned("ReplicaSet", "apps/v1")}, None),
    "of a StatefulSet": ({"owner": owned("StatefulSet", "apps/v1")}, None),
    "of a Job of one": (JOB, obj("batch/v1", "Job", "g", {"parallelism": 1})),
    "our minimum of 0": ({**JOB, "labels": {OURS + "gang-min": "0"}}, obj("batch/v1", "Job", "g", {"parallelism": 4})),
    "basic policy of a Workload": (
        {"spec": {"workloadRef": {"name": "g", "podGroup": "workers"}}},
        obj(
            "scheduling.k8s.io/v1alpha1", "Workload", "g", {"podGroups": [{"name": "workers", "policy": {"basic": {}}}]}
        ),
    ),
}  # fmt: skip
POD_GROUP: JSON = {"spec": {"schedulingGroup": {"podGroupName": "g"}}}


@pytest.mark.parametrize(("facts", "made"), SINGLES.values(), ids=SINGLES)
def test_pods_that_do_not_depend_on_each_other(facts: JSON, made: JSON | None) -> None:
    world = world_of([pod(f"p{i}", facts) for i in range(2)], *([made] if made else []))
    found = waiting(world.cluster)
    assert [one.ref for one in found] == [Ref("pod", "default", "p0"), Ref("pod", "default", "p1")]
    assert {(len(one.pods), one.members, one.size, one.minimum, one.complete) for one in found} == {(1, (), 1, 1, True)}


@pytest.mark.parametrize(("policy", "minimum"), [({"gang": {"minCount": 2}}, 2), ({"basic": {}}, 1)])
def test_the_pods_of_an_in_tree_group_start_together(policy: JSON, minimum: int) -> None:
    """Also those beyond its minimum: kube-scheduler tries the group as one, and one gated pod holds back all."""
    group = obj("scheduling.k8s.io/v1beta1", "PodGroup", "g", {"schedulingPolicy": policy})
    gang = one_of(world_of([pod(f"p{i}", POD_GROUP) for i in range(3)], group))
    assert (gang.minimum, gang.needed, gang.lacking, gang.complete) == (minimum, 3, minimum, True)
    # It runs, and grows.
    runs = [pod(f"p{i}", POD_GROUP, gates=(), node="n", phase="Running") for i in range(2)]
    gang = one_of(world_of([*runs, pod("p2", POD_GROUP), pod("p3", POD_GROUP)], group))
    assert (gang.needed, gang.lacking) == (2, 0)


def test_without_our_gate_no_pod_is_in_the_queue() -> None:
    world = world_of([
        pod("plain", gates=()), pod("other", gates=("other.io/gate",)), pod("bound", gates=(), node="n"),
        pod("ends", terminating=WALL), pod("over", phase="Failed"),
    ])  # fmt: skip
    assert waiting(world.cluster) == []
    assert list(world.cluster.placements.queued) == []


def test_a_pod_leaves_the_queue_when_its_gate_opens_or_it_is_deleted() -> None:
    world = world_of([pod("p"), pod("q"), pod("cpu", gpus=0)])
    assert list(world.cluster.placements.queued) == ["uid-p", "uid-q", "uid-cpu"]
    world.set("Pod", pod("p", gates=()))
    world.gone("q")
    world.set("Pod", pod("cpu", gpus=0, terminating=WALL))
    assert list(world.cluster.placements.queued) == []
    assert waiting(world.cluster) == []


def test_gates_of_other_controllers_keep_a_gang_incomplete() -> None:
    job = obj("batch/v1", "Job", "g", {"parallelism": 2})
    world = world_of([pod("p0", JOB), pod("p1", JOB, gates=("kueue.x-k8s.io/topology", GATE))], job)
    gang = one_of(world)
    assert ([one.name for one in gang.pods], gang.other_gates) == (["p0", "p1"], ("kueue.x-k8s.io/topology",))
    assert not gang.complete
    world.set("Pod", pod("p1", JOB, gates=("kueue.x-k8s.io/topology",)))  # not ours, and not released
    gang = one_of(world)
    assert ([one.name for one in gang.pods], gang.members, gang.complete) == (["p0"], (), False)
    world.set("Pod", pod("p1", JOB))
    assert one_of(world).complete


def test_members_that_run_or_are_released_count() -> None:
    """4 of a Job: one is bound, one released, one waits, one is missing; a terminating one does not count."""
    world = world_of(
        [pod("bound", JOB, gates=(), node="n", phase="Running"), pod("released", JOB, gates=()), pod("waits", JOB),
         pod("ends", JOB, gates=(), node="n", phase="Running", terminating=WALL)],
        obj("batch/v1", "Job", "g", {"parallelism": 4}),
    )  # fmt: skip
    gang = one_of(world)
    assert [one.name for one in gang.members] == ["bound", "released"]
    assert (gang.minimum, gang.needed, gang.complete) == (4, 2, False)
    world.set("Pod", pod("new", JOB))
    assert one_of(world).complete
    world.set("Pod", pod("released", JOB, gates=(), node="n", phase="Succeeded"))  # the Job has one less to complete
    world.set("Group", obj("batch/v1", "Job", "g", {"parallelism": 4, "completions": 4}, succeeded=1))
    gang = one_of(world)
    assert ([one.name for one in gang.members], gang.minimum, gang.complete) == (["bound"], 3, True)


@pytest.mark.parametrize("gates", [(GATE,), ()])
@pytest.mark.parametrize("node", ["", "n"])
def test_a_launcher_without_gpus_is_a_pod_of_its_gang(gates: tuple[str, ...], node: str) -> None:
    """Be it behind the gate, released, or bound."""
    if gates and node:
        return
    launcher = pod("l", MPI_OWNER, 0, gates=gates, node=node, labels={TRAINING + "job-role": "launcher"})
    workers = [pod(f"w{i}", MPI_OWNER, 8, labels={TRAINING + "job-role": "worker"}) for i in range(3)]
    world = world_of([*workers, launcher], obj("kubeflow.org/v2beta1", "MPIJob", "g", MPI))
    gang = one_of(world)
    assert ([one.name for one in gang.pods], [one.name for one in gang.members]) == (
        (["l", "w0", "w1", "w2"], []) if gates else (["w0", "w1", "w2"], ["l"])
    )
    assert (gang.minimum, gang.gpus, gang.complete) == (4, 24, True)
    world.gone("l")
    assert not one_of(world).complete


def test_a_gang_grows_once_its_minimum_runs() -> None:
    facts = {"labels": {OURS + "gang": "g", OURS + "gang-min": "2"}}
    world = world_of([*[pod(f"m{i}", facts, gates=(), node="n", phase="Running") for i in range(2)], pod("new", facts)])
    gang = one_of(world)
    assert (gang.needed, gang.complete, len(gang.members)) == (0, True, 2)


def test_the_owner_of_the_owner_may_come_later() -> None:
    """The pods of two Jobs are two gangs until the JobSet above them is known."""
    jobs = [obj("batch/v1", "Job", f"js-{i}", {"parallelism": 2}) for i in range(2)]
    pods = [pod(f"p{i}{k}", {"owner": owned("Job", "batch/v1", f"js-{i}")}, k) for i in range(2) for k in range(2)]
    world = world_of(pods, *jobs)
    assert [(one.ref.source, one.ref.name, one.complete) for one in waiting(world.cluster)] == [
        ("job", "js-0", True), ("job", "js-1", True),
    ]  # fmt: skip
    for job in jobs:
        job["metadata"]["ownerReferences"] = owned("JobSet", "jobset.x-k8s.io/v1alpha2", "js")
        world.set("Group", job)
    spec = {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 2}}}]}
    world.set("Group", obj("jobset.x-k8s.io/v1alpha2", "JobSet", "js", spec))
    gang = one_of(world)
    assert (gang.ref.source, gang.size, len(gang.pods), gang.complete) == ("jobset", 4, 4, True)


def test_pods_are_in_the_order_of_their_ranks() -> None:
    pods = [pod(f"p{name}", JOB, labels={RANK: str(rank)}) for name, rank in (("a", 10), ("b", 2), ("c", 0))]
    assert [one.name for one in one_of(world_of(pods)).pods] == ["pc", "pb", "pa"]
    roles = [("w1", "worker", "1"), ("w0", "worker", "0"), ("m", "master", "0")]
    pods = [
        pod(name, PYTORCH, labels={TRAINING + "replica-type": role, TRAINING + "replica-index": index})
        for name, role, index in roles
    ]
    assert [one.name for one in one_of(world_of(pods)).pods] == ["m", "w0", "w1"]


def test_the_minimum_of_each_role_comes_first() -> None:
    """A gang starts with its minimum: 3 of 6 pods, of which two are of the second role."""
    in_group = {"annotations": {"scheduling.k8s.io/group-name": "g"}}
    spec = {"minMember": 3, "minTaskMember": {"a": 1, "b": 2}}
    group = obj("scheduling.volcano.sh/v1beta1", "PodGroup", "g", spec)
    pods = [
        pod(f"{role}{index}", in_group, labels={"volcano.sh/task-spec": role, "volcano.sh/task-index": str(index)})
        for role, number in (("a", 4), ("b", 2))
        for index in range(number)
    ]
    gang = one_of(world_of(pods, group))
    assert [one.name for one in gang.pods] == ["a0", "b0", "b1", "a1", "a2", "a3"]
    assert (gang.needed, gang.complete) == (3, True)
    gang = one_of(world_of(pods[:-1], group))  # a pod of `a` does not stand for one of `b`
    assert ([one.name for one in gang.pods[:2]], gang.complete) == (["a0", "b0"], False)
    running = pods[4] | {"spec": pods[4]["spec"] | {"schedulingGates": [], "nodeName": "n"}}
    gang = one_of(world_of([*pods[:4], running, pods[5]], group))
    assert ([one.name for one in gang.pods[: gang.needed]], gang.complete) == (["a0", "b1"], True)


def test_a_pod_gang_states_its_level_and_the_minima_of_its_cliques() -> None:
    cliques = [{"name": "r", "minReplicas": 1}, {"name": "w", "minReplicas": 1}]
    packed = {"packConstraint": {"preferred": "example.com/rack"}}
    inner = cliques[1] | {"topologyConstraint": {"packConstraint": {"required": "kubernetes.io/hostname"}}}
    configs = [
        {
            "name": "s",
            "podGroupNames": names,
            "topologyConstraint": {"packConstraint": {"required": "example.com/rack"}},
        }
        for names in (["w"], ["r", "w"])
    ]
    spec = {"podgroups": [cliques[0], inner], "topologyConstraint": packed, "reuseReservationRef": {"name": "before"}}
    spec["topologyConstraintGroupConfigs"] = configs[:1]
    pods = [
        pod(f"{clique}{at}", labels={"grove.io/podgang": "g", "grove.io/podclique": clique})
        for clique in "rw"
        for at in range(2)
    ]
    gang = one_of(world_of(pods, obj("scheduler.grove.io/v1alpha1", "PodGang", "g", spec)))
    assert [one.name for one in gang.pods[: gang.needed]] == ["r0", "w0"]
    assert gang.domain == Domain("example.com/rack", False)
    assert [(part.roles, part.level) for part in gang.part_domains] == [
        (("w",), "example.com/rack"), (("w",), "kubernetes.io/hostname"),
    ]  # fmt: skip
    assert gang.unchecked == ("reuse of the places of PodGang before",)
    spec["topologyConstraintGroupConfigs"] = configs[1:]  # a part that is all of it
    assert one_of(world_of(pods, obj("scheduler.grove.io/v1alpha1", "PodGang", "g", spec))).domain == Domain(
        "example.com/rack", True
    )


def test_what_a_gang_states() -> None:
    """Of its pods with GPUs: the lowest priority, the queue, the duration of the longest; of all the first creation."""
    notes = {OURS + "domain": "required:rack"}
    first = pod("p0", JOB, priority=7, labels={OURS + "queue": "q"}, annotations={OURS + "duration": "30m", **notes})
    second = pod("p1", JOB, priority=5, annotations={OURS + "duration": "1h", **notes})
    launcher = pod("p2", JOB, 0, priority=0)
    for one, at in ((first, WALL), (second, WALL - 60), (launcher, WALL - 90)):
        one["metadata"]["creationTimestamp"] = rfc3339(at)
    spec = {"parallelism": 3, "activeDeadlineSeconds": 5400}
    job = obj("batch/v1", "Job", "g", spec, startTime=rfc3339(WALL - 100))
    gang = one_of(world_of([first, second, launcher], job))
    assert (gang.priority, gang.created, gang.queue) == (5, WALL - 90, "q")
    assert (gang.domain, gang.seconds, gang.ends_at) == (Domain("rack", True), 3600.0, WALL + 5300)
    assert gang.end(WALL) == WALL + 3600  # its pods are done before the Job's deadline
    assert gang.end(WALL + 2000) == WALL + 5300  # which runs while they wait


def test_a_duration_counts_only_where_all_pods_state_one() -> None:
    gang = one_of(world_of([pod("p0", JOB, annotations={OURS + "duration": "30m"}), pod("p1", JOB)]))
    assert (gang.seconds, gang.ends_at, gang.end(WALL)) == (None, None, None)


@pytest.mark.parametrize(
    ("stated", "domain"),
    [
        (("required:rack", "preferred:clique"), Domain("rack", True)),  # required before preferred
        (("required:block", "required:rack"), Domain("rack", True)),  # the closest of both
        (("preferred:zone", "preferred:block"), Domain("block", False)),
        (("required:b.io/far", "required:a.io/near"), Domain("a.io/near", True)),  # by topologyLevels
        (("required:b.io/far", ""), Domain("b.io/far", True)),
    ],
)
def test_the_closest_domain_that_is_required_counts(stated: tuple[str, ...], domain: Domain) -> None:
    world = World(Settings(topology_levels=("a.io/near", "b.io/far")))
    for i, text in enumerate(stated):
        world.set("Pod", pod(f"p{i}", JOB, annotations={OURS + "domain": text}))
    assert one_of(world).domain == domain


@pytest.mark.parametrize(("keys", "domain"), [(("a", "a"), Domain("x/rack", True)), (("a", "b"), None)])
def test_the_exclusive_topology_of_a_job_set_is_that_of_each_job(keys: tuple[str, ...], domain: Domain | None) -> None:
    """Two Jobs of it are kept apart, so the gang has no common domain."""
    facts = {
        "labels": {"jobset.sigs.k8s.io/jobset-name": "g"},
        "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "x/rack"},
    }
    pods = [pod(f"p{i}", facts, labels={"jobset.sigs.k8s.io/job-key": key}) for i, key in enumerate(keys)]
    assert one_of(world_of(pods)).domain == domain


@pytest.mark.parametrize("gone", [False, True])
def test_pods_that_complete_before_the_gang_begins_wait_for_themselves(world: World, gone: bool) -> None:
    """The initializers of a TrainJob: its nodes are created once these have completed."""
    spec = {"replicatedJobs": [
        {"name": "dataset-initializer"},
        {"name": "node", "template": {"spec": {"parallelism": 2}},
         "dependsOn": [{"name": "dataset-initializer", "status": "Complete"}]}]}  # fmt: skip
    world.set("Group", obj("jobset.x-k8s.io/v1alpha2", "JobSet", "g", spec))
    name, role = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/replicatedjob-name"
    world.set("Pod", gated("first", 1, labels={name: "g", role: "dataset-initializer"}))
    [one] = waiting(world.cluster)
    assert (one.ref.source, one.ref.name, one.complete) == ("pod", "first", True)
    if gone:
        world.gone("first")
    world.set("Pod", gated("node-0", 1, labels={name: "g", role: "node"}))
    found = waiting(world.cluster)
    [whole] = [one for one in found if one.ref.source == "jobset"]
    assert (len(found), len(whole.pods), whole.minimum, whole.complete) == (2 - gone, 1, 2, False)
    world.set("Pod", gated("node-1", 1, labels={name: "g", role: "node"}))
    [whole] = [one for one in waiting(world.cluster) if one.ref.source == "jobset"]
    assert (len(whole.pods), whole.complete) == (2, True)


def test_gangs_are_in_the_order_of_their_refs() -> None:
    pods = [pod(name, {"labels": {OURS + "gang": name[0]}}) for name in ("b0", "a0", "b1")]
    world = world_of([*pods, pod("z"), pod("y")])
    assert [str(one.ref) for one in waiting(world.cluster)] == ["default/a", "default/b", "default/y", "default/z"]


def test_nothing_is_kept_of_pods_that_are_gone() -> None:
    launcher = pod("l", MPI_OWNER, 0)
    world = world_of([launcher, pod("w", MPI_OWNER, 8)])
    world.gone("l", "w")
    workloads = world.cluster.workloads
    assert (dict(workloads.gang_pods), dict(workloads.gang_cpu_pods), workloads.gang_of("uid-l")) == ({}, {}, None)
