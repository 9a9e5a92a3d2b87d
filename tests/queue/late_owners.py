"""Owners that create part of their pods only once others run, written by hand after the types of their projects: JobSet
0.10, LeaderWorkerSet 0.8, apps/v1, mpi-operator v2beta1. Each makes one gang `g` of workers with four GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from extender.objects.queueing import GATE
from tests.objects.test_gangs import LWS, OURS, obj, owned
from tests.world import GPU, JSON, workload

JOBSET = "jobset.sigs.k8s.io/"
TRAINING = "training.kubeflow.org/"
RACK = "topology.kubernetes.io/rack"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"


def template(gpus: int = 4, **meta: Any) -> JSON:
    """A pod template: GPUs as a limit alone, as people write it."""
    limits = {GPU: str(gpus)} if gpus else {}
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": limits}
    return {"metadata": meta, "spec": {"containers": [{"name": "main", "resources": resources}]}}


def pod(name: str, gpus: int, owner: list[JSON], labels: Mapping[str, str], gated: bool = True, **facts: Any) -> JSON:
    """A pod of an owner, behind our gate."""
    gates = {"schedulingGates": [{"name": GATE}]} if gated else {}
    made = workload(name, gpus, labels=labels, spec=gates | facts.pop("spec", {}), **facts)
    made["metadata"]["ownerReferences"] = owner
    return made


@dataclass(frozen=True)
class LateOwner:
    """`objects`: the owner, and what it owns while only the early pods exist; `early`, `late`: its pods by name, in the
    order of their ranks; `make`: the pod of a name, gated or not."""

    objects: tuple[JSON, ...]
    early: tuple[str, ...]
    late: tuple[str, ...]
    make: Callable[..., JSON]
    source: str = ""


def _job_set_pod(name: str, gated: bool = True, **facts: Any) -> JSON:
    """`ROLE-JOB-COMPLETION`."""
    role, job, completion = name.rsplit("-", 2)
    labels = {
        JOBSET + "jobset-name": "g", JOBSET + "replicatedjob-name": role, JOBSET + "job-index": job,
        JOBSET + "job-key": f"key-{role}-{job}", "batch.kubernetes.io/job-completion-index": completion,
    }  # fmt: skip
    return pod(name, 4, owned("Job", "batch/v1", f"g-{role}-{job}"), labels, gated, **facts)


def job_set(spec: JSON, *roles: tuple[str, int, int], **notes: str) -> JSON:
    """`roles`: name, replicas, parallelism."""
    jobs = [
        {"name": name, "replicas": replicas,
         "template": {"spec": {"parallelism": pods, "completions": pods, "completionMode": "Indexed",
                               "template": template()}}}
        for name, replicas, pods in roles
    ]  # fmt: skip
    made = obj("jobset.x-k8s.io/v1alpha2", "JobSet", "g", {"replicatedJobs": jobs, **spec})
    made["metadata"] |= {"resourceVersion": "5", "annotations": notes}
    return made


def _worker_pod(name: str, gated: bool = True, **facts: Any) -> JSON:
    """`g-0-INDEX`: of the first group of a LeaderWorkerSet; the leader is `g-0`."""
    index = name.removeprefix("g-0").lstrip("-") or "0"
    labels = {LWS + "name": "g", LWS + "group-index": "0", LWS + "worker-index": index}
    owner = owned("StatefulSet", "apps/v1", "g" if index == "0" else "g-0")
    return pod(name, 4, owner, labels, gated, annotations={LWS + "size": "3"}, **facts)


def leader_worker_set(startup: str, **notes: str) -> JSON:
    spec = {"startupPolicy": startup, "leaderWorkerTemplate": {"size": 3, "workerTemplate": template()}}
    made = obj("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "g", spec)
    made["metadata"]["annotations"] = notes
    return made


def _replica(name: str, gated: bool = True, **facts: Any) -> JSON:
    labels = {"apps.kubernetes.io/pod-index": name.removeprefix("g-")}
    return pod(name, 4, owned("StatefulSet", "apps/v1"), labels, gated, annotations={OURS + "gang-size": "3"}, **facts)


def _mpi_pod(name: str, gated: bool = True, **facts: Any) -> JSON:
    labels = {TRAINING + "job-name": "g", TRAINING + "job-role": "worker"}
    if name == "g-launcher":
        labels[TRAINING + "job-role"] = "launcher"
        return pod(name, 0, owned("Job", "batch/v1", "g-launcher"), labels, gated, **facts)
    labels[TRAINING + "replica-index"] = name.removeprefix("g-worker-")
    return pod(name, 4, owned("MPIJob", "kubeflow.org/v2beta1"), labels, gated, **facts)


MPI_JOB = obj(
    "kubeflow.org/v2beta1", "MPIJob", "g",
    {"launcherCreationPolicy": "WaitForWorkersReady",
     "mpiReplicaSpecs": {"Launcher": {"replicas": 1, "template": template(0)},
                         "Worker": {"replicas": 2, "template": template()}}},
)  # fmt: skip
STATEFUL_SET = obj("apps/v1", "StatefulSet", "g", {"replicas": 3, "template": template()})
IN_ORDER = job_set({"startupPolicy": {"startupPolicyOrder": "InOrder"}}, ("driver", 1, 1), ("workers", 2, 1))
DEPENDS = job_set({}, ("driver", 1, 1), ("workers", 1, 2))
DEPENDS["spec"]["replicatedJobs"][1]["dependsOn"] = [{"name": "driver", "status": "Ready"}]

OWNERS = {
    "JobSet, InOrder": LateOwner(
        (IN_ORDER,), ("driver-0-0",), ("workers-0-0", "workers-1-0"), _job_set_pod, "jobset"
    ),
    "JobSet, dependsOn": LateOwner(
        (DEPENDS,), ("driver-0-0",), ("workers-0-0", "workers-0-1"), _job_set_pod, "jobset"
    ),
    "JobSet, exclusive topology": LateOwner(
        (job_set({}, ("workers", 1, 3), **{EXCLUSIVE: RACK}),), ("workers-0-0",), ("workers-0-1", "workers-0-2"),
        _job_set_pod, "jobset",
    ),
    "LeaderWorkerSet, LeaderReady": LateOwner(
        (leader_worker_set("LeaderReady"),), ("g-0",), ("g-0-1", "g-0-2"), _worker_pod, "leaderworkerset"
    ),
    "LeaderWorkerSet, exclusive topology": LateOwner(
        (leader_worker_set("LeaderCreated", **{LWS + "exclusive-topology": RACK}),), ("g-0",), ("g-0-1", "g-0-2"),
        _worker_pod, "leaderworkerset",
    ),
    "StatefulSet, OrderedReady": LateOwner((STATEFUL_SET,), ("g-0",), ("g-1", "g-2"), _replica, "statefulset"),
    "MPIJob, WaitForWorkersReady": LateOwner(
        (MPI_JOB,), ("g-worker-0", "g-worker-1"), ("g-launcher",), _mpi_pod, "training"
    ),
}  # fmt: skip
