"""The pods of an owner: their names, labels and gangs are those that its controller gives them."""

from __future__ import annotations

from typing import Any

import pytest

from extender.ask.whatif import question
from extender.ask.whatif.question import Document, Question
from extender.errors import BadInput
from extender.objects import gangs
from extender.objects.gangs import ref
from extender.objects.queueing import rank_of
from tests.ask.whatif.asking import ask
from tests.ask.whatif.test_engine import node, template
from tests.world import JSON

GPUS = frozenset({"nvidia.com/gpu"})
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
ZONE = "topology.kubernetes.io/zone"


def owner(api: str, kind: str, spec: JSON, name: str = "o", **meta: Any) -> JSON:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "team", **meta}, "spec": spec}


def read(*objects: JSON) -> Question:
    return question.read([Document(one, f"[{at}]") for at, one in enumerate(objects)], GPUS)


def ranks(asked: Question) -> list[tuple[str, str, tuple[str, int]]]:
    """(name, gang, rank) of each pod."""
    groups = {(one.api, one.kind, one.namespace, one.name): one for one in asked.groups}
    return [(pod.name, str(ref(pod, groups)), rank_of(pod)) for pod in asked.pods]


def test_a_stateful_set_is_a_gang_where_its_pods_state_a_size() -> None:
    sized = template(1) | {"metadata": {"annotations": {"gpu-extender.io/gang-size": "2"}}}
    asked = read(owner("apps/v1", "StatefulSet", {"replicas": 2, "template": sized}))
    assert ranks(asked) == [("o-0", "team/o", ("", 0)), ("o-1", "team/o", ("", 1))]
    assert ranks(read(owner("apps/v1", "StatefulSet", {"template": template(1)}))) == [("o-0", "None", ("", 0))]


def test_a_job_runs_as_many_at_once_as_its_parallelism() -> None:
    spec = {"parallelism": 3, "completions": 2, "completionMode": "Indexed", "template": template(1)}
    assert ranks(read(owner("batch/v1", "Job", spec))) == [("o-0", "team/o", ("", 0)), ("o-1", "team/o", ("", 1))]


def test_a_job_set() -> None:
    jobs = [
        {"name": "driver", "template": {"spec": {"parallelism": 1, "template": template(1)}}},
        {"name": "worker", "replicas": 2, "template": {"spec": {"parallelism": 2, "template": template(2)}}},
    ]
    meta = {EXCLUSIVE: "rack", "other": "x"}
    asked = read(owner("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": jobs}, annotations=meta))
    assert [pod.name for pod in asked.pods] == [f"o-{i}" for i in range(5)]
    assert {one[1] for one in ranks(asked)} == {"team/o"}
    assert [one[2] for one in ranks(asked)] == [
        ("driver", 0), ("worker", 0), ("worker", 1), ("worker", 1_000_000), ("worker", 1_000_001),
    ]  # fmt: skip
    assert {pod.annotations.get(EXCLUSIVE) for pod in asked.pods} == {"rack"}


def test_each_group_of_a_leader_worker_set_is_a_gang() -> None:
    both = {"size": 2, "leaderTemplate": template(1), "workerTemplate": template(8)}
    asked = read(owner("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {"replicas": 2, "leaderWorkerTemplate": both}))
    assert ranks(asked) == [
        ("o-0", "team/o/0", ("", 0)), ("o-1", "team/o/0", ("", 1)),
        ("o-2", "team/o/1", ("", 0)), ("o-3", "team/o/1", ("", 1)),
    ]  # fmt: skip
    assert [pod.gpus[0][1] for pod in asked.pods] == [1, 8, 1, 8]


def test_a_training_job_begins_with_its_master() -> None:
    roles = {"Worker": {"replicas": 2, "template": template(8)}, "Master": {"template": template(4)}}
    asked = read(owner("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": roles}))
    assert ranks(asked) == [
        ("o-0", "team/o", ("master", 0)), ("o-1", "team/o", ("worker", 0)), ("o-2", "team/o", ("worker", 1)),
    ]  # fmt: skip


def test_no_stand_in_is_made_of_a_pod_that_is_there() -> None:
    """These owners create part of their pods late; all of them are in the question."""
    roles = {"Launcher": {"replicas": 1, "template": template(0)}, "Worker": {"replicas": 2, "template": template(4)}}
    spec = {"launcherCreationPolicy": "WaitForWorkersReady", "mpiReplicaSpecs": roles}
    jobs = [{"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 2, "template": template(2)}}}]
    sized = template(2) | {"metadata": {"annotations": {"gpu-extender.io/gang-size": "3"}}}
    both = {"size": 3, "workerTemplate": template(2)}
    for made, pods in (
        (owner("kubeflow.org/v1", "MPIJob", spec), 3),
        (owner("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": jobs}, annotations={EXCLUSIVE: ZONE}), 4),
        (owner("apps/v1", "StatefulSet", {"replicas": 3, "template": sized}), 3),
        (owner("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet",
               {"startupPolicy": "LeaderReady", "leaderWorkerTemplate": both}), 3),
    ):  # fmt: skip
        nodes = [node(f"n{zone}", 8, labels={ZONE: zone}) for zone in "ab"]
        answer = ask(nodes, [made])
        (group,) = answer["groups"]
        assert (len(group["pods"]), group["size"]) == (pods, pods), made["kind"]
        assert group["verdict"] == "fits", (made["kind"], group["text"])


def test_an_owner_is_not_expanded_beside_what_it_owns() -> None:
    """As `kubectl get jobs,pods -o yaml` prints both."""
    job = owner("batch/v1", "Job", {"parallelism": 2, "template": template(1)})
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "o", "controller": True}
    pods = [
        {"kind": "Pod", "metadata": {"name": f"o-{i}", "namespace": "team", "ownerReferences": [reference]}}
        | template(1)
        for i in "xy"
    ]
    asked = read({"kind": "List", "items": [job, *pods]})
    assert [(name, gang) for name, gang, _ in ranks(asked)] == [("o-x", "team/o"), ("o-y", "team/o")]
    assert ask([node("n", 8)], [job, *pods])["groups"][0]["min"] == 2


def test_hostile_numbers_cost_nothing() -> None:

    for count in (10**6, 10**9, -1, "3", 1.5, True):
        for made in (
            owner("apps/v1", "Deployment", {"replicas": count, "template": template(1)}),
            owner("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet",
                  {"replicas": count, "leaderWorkerTemplate": {"size": count, "workerTemplate": template(1)}}),
            owner("jobset.x-k8s.io/v1alpha2", "JobSet",
                  {"replicatedJobs": [{"replicas": count, "template": {"spec": {"template": template(1)}}}]}),
        ):  # fmt: skip
            try:
                read(made)
            except BadInput:
                continue
            raise AssertionError((made["kind"], count))


def test_a_ray_cluster_and_what_creates_one() -> None:
    workers = {"groupName": "w", "replicas": 2, "numOfHosts": 2, "minReplicas": 1, "template": template(8)}
    cluster = {"headGroupSpec": {"template": template(0)}, "workerGroupSpecs": [workers]}
    heads_first = [("head/headgroup", -1)] + [("worker/w", at) for at in (0, 1, 1_000_000, 1_000_001)]
    for kind, spec in (
        ("RayCluster", cluster), ("RayJob", {"rayClusterSpec": cluster}), ("RayService", {"rayClusterConfig": cluster}),
    ):  # fmt: skip
        asked = read(owner("ray.io/v1", kind, spec))
        assert [(gang, rank) for _, gang, rank in ranks(asked)] == [("team/o", rank) for rank in heads_first], kind
        assert [(one.kind, one.minimum, one.size) for one in asked.groups] == [("RayCluster", 5, 5)]
    scaled = read(owner("ray.io/v1", "RayCluster", cluster | {"enableInTreeAutoscaling": True}))
    assert [(one.minimum, one.size) for one in scaled.groups] == [(3, 5)]


def test_a_cron_job_is_one_run_of_its_job() -> None:
    job = {"parallelism": 2, "completionMode": "Indexed", "template": template(1)}
    asked = read(owner("batch/v1", "CronJob", {"jobTemplate": {"spec": job}}))
    assert ranks(asked) == [("o-0", "team/o", ("", 0)), ("o-1", "team/o", ("", 1))]
    assert [(one.kind, one.minimum) for one in asked.groups] == [("Job", 2)]


def test_a_volcano_job_states_its_minimum_in_a_pod_group() -> None:
    tasks: list[JSON] = [{"name": "w", "replicas": 3, "minAvailable": 2, "template": template(1)}]
    tasks.append({"replicas": 1, "template": template(0)})
    tasks[1]["template"]["spec"]["priorityClassName"] = "own"
    spec = {"tasks": tasks, "schedulerName": "volcano", "priorityClassName": "of-the-job"}
    asked = read(owner("batch.volcano.sh/v1alpha1", "Job", spec))
    assert [one[1:] for one in ranks(asked)] == [("team/o", ("w", at)) for at in range(3)] + [
        ("team/o", ("default1", 0))
    ]
    assert [(one.api, one.kind, one.minimum) for one in asked.groups] == [("scheduling.volcano.sh", "PodGroup", 3)]
    assert {pod.scheduler_name for pod in asked.pods} == {"volcano"}
    assert [pod.priority_class for pod in asked.pods] == ["of-the-job"] * 3 + ["own"]


def test_the_priority_of_a_pod_clique_set_is_that_of_its_pod_gangs_alone() -> None:
    pods = [template(1)["spec"], {**template(1)["spec"], "priorityClassName": "own"}]
    cliques = [{"name": f"c{n}", "spec": {"replicas": 1, "podSpec": spec}} for n, spec in enumerate(pods)]
    spec = {"replicas": 1, "template": {"priorityClassName": "of-the-set", "cliques": cliques}}
    asked = read(owner("grove.io/v1alpha1", "PodCliqueSet", spec))
    assert [pod.priority_class for pod in asked.pods] == ["", "own"]


def test_the_pods_that_a_job_has_completed_do_not_come_again() -> None:
    spec = {"parallelism": 3, "completions": 4, "template": template(1)}
    job = owner("batch/v1", "Job", spec) | {"status": {"succeeded": 2}}
    assert len(read(job).pods) == 2


def test_the_queue_and_a_question_read_the_same_pods() -> None:
    """What stands in for the late pods of an owner has the names' order, labels and GPUs of the question's pods."""
    sized = template(2) | {"metadata": {"annotations": {"gpu-extender.io/gang-size": "3"}}}
    made = owner("apps/v1", "StatefulSet", {"replicas": 3, "ordinals": {"start": 5}, "template": sized})
    (late,) = gangs.group(made, gpus=GPUS).late_pods
    pods = read(made).pods
    assert [rank_of(pod)[1] for pod in pods] == [5, *range(late.first, late.end)]
    assert {pod.gpus for pod in pods} == {late.template.gpus}


def test_a_daemon_set_has_a_pod_on_each_node_that_its_template_admits() -> None:
    nodes = [
        node("a"),
        *(node(name, labels={"pool": "x"}) for name in "bcd"),
        node("full", gpus=1, labels={"pool": "x"}),
    ]
    nodes[2]["spec"] = {"taints": [{"key": "down", "effect": "NoSchedule"}]}
    nodes[3]["spec"] = {"unschedulable": True}
    spec = template(2)
    spec["spec"]["nodeSelector"] = {"pool": "x"}
    answer = ask(nodes, [owner("apps/v1", "DaemonSet", {"template": spec}, name="dcgm")])
    assert [(shown["pod"]["name"], shown["verdict"], shown["node"]) for shown in answer["results"]] == [
        ("dcgm-b", "fits", "b"), ("dcgm-d", "fits", "d"), ("dcgm-full", "cannot", None),
    ]  # fmt: skip


def test_a_daemon_set_that_no_node_admits_is_named() -> None:
    spec = template(2)
    spec["spec"]["nodeSelector"] = {"pool": "x"}
    answer = ask([node("a")], [owner("apps/v1", "DaemonSet", {"template": spec}, name="dcgm")])
    assert answer["results"] == []
    assert [warning["message"] for warning in answer["warnings"]] == [
        "no node admits the pods of DaemonSet team/dcgm: it creates none"
    ]


@pytest.mark.parametrize(
    ("api", "kind", "spec"),
    [
        ("apps/v1", "StatefulSet", {"volumeClaimTemplates": [{}], "template": template(1)}),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", {"volumeClaimPolicies": [{}], "replicatedJobs": [
            {"name": "w", "template": {"spec": {"template": template(1)}}}
        ]}),
        ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {
            "leaderWorkerTemplate": {"size": 2, "workerTemplate": template(1), "volumeClaimTemplates": [{}]}
        }),
    ],
)  # fmt: skip
def test_the_volumes_that_an_owner_claims_for_its_pods_are_not_checked(api: str, kind: str, spec: JSON) -> None:
    answer = ask([node("a")], [owner(api, kind, spec)])
    assert all(result["not_checked"] == ["volumes"] for result in answer["results"])
    assert answer["results"]


def test_the_topology_of_subgroups_is_not_checked() -> None:
    spec = {"leaderWorkerTemplate": {"size": 2, "subGroupPolicy": {"subGroupSize": 1}, "workerTemplate": template(1)}}
    asked = owner("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec)
    asked["metadata"]["annotations"] = {"leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology": "rack"}
    results = ask([node("a")], [asked])["results"]
    assert [result["not_checked"] for result in results] == [["subgroups by topology"]] * 2


def test_what_an_owner_reads_is_not_called_ignored() -> None:
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "t"},
    }
    runtime["spec"] = {"template": {"spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {
        "template": {"spec": {"containers": [{"name": "node", "image": "x"}]}}}}}]}}}  # fmt: skip
    spec = {"runtimeRef": {"name": "t"}, "trainer": {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}}}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    asked = read(runtime, service, owner("trainer.kubeflow.org/v1alpha1", "TrainJob", spec))
    assert asked.ignored == ("Service",)


def test_a_pod_of_a_gang_that_no_node_admits_is_named() -> None:
    launcher = template(0)
    launcher["spec"]["nodeSelector"] = {"role": "control-plane"}
    replicas = {"Launcher": {"replicas": 1, "template": launcher}, "Worker": {"replicas": 2, "template": template(1)}}
    answer = ask([node("a"), node("b")], [owner("kubeflow.org/v2beta1", "MPIJob", {"mpiReplicaSpecs": replicas})])
    assert [group["verdict"] for group in answer["groups"]] == ["cannot"]
    assert [warning["message"] for warning in answer["warnings"] if warning["code"] == "no-node"] == [
        "pod team/o-0: no node admits it (2 nodes: the labels of the node do not match the pod's nodeSelector)"
    ]


def test_a_pod_without_gpus_is_named_and_the_others_are_answered() -> None:
    router = owner("apps/v1", "Deployment", {"replicas": 3, "template": template(0)}, name="router")
    answer = ask([node("n1")], [router, owner("apps/v1", "Deployment", {"template": template(1)}, name="engine")])
    assert [shown["pod"]["name"] for shown in answer["results"]] == ["engine-0"]
    (warning,) = [warning for warning in answer["warnings"] if warning["code"] == "not-ours"]
    assert warning["message"].startswith("pod team/router-0: it asks for no GPU")
    assert warning["message"].endswith("and so do 2 more of its owner")


def test_a_priority_class_of_the_question_counts() -> None:
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 7}
    spec = template(1)
    spec["spec"]["priorityClassName"] = "urgent"
    answer = ask([node("n1")], [urgent, owner("apps/v1", "Deployment", {"template": spec})])
    assert [shown["pod"]["priority"] for shown in answer["results"]] == [7]
