"""The pods that an owner would create, by its templates: each is named OWNER-INDEX, and labelled as its controller
labels it, so that its gang and its rank in the gang are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from extender.errors import BadInput
from extender.objects import gangs
from extender.objects.gangs import pod_groups
from extender.objects.gangs.source import MOST, parallel_pods

Json = Mapping[str, Any]
TRAINING: Final = "training.kubeflow.org/"
LWS: Final = "leaderworkerset.sigs.k8s.io/"
JOBSET: Final = "jobset.sigs.k8s.io/"
VOLCANO: Final = "volcano.sh/"
VOLCANO_JOB: Final = ("batch.volcano.sh", "Job")
VOLCANO_GROUP: Final = pod_groups.VOLCANO[0]
COMPLETION: Final = "batch.kubernetes.io/job-completion-index"
EXCLUSIVE: Final = ("alpha.jobset.sigs.k8s.io/exclusive-topology", f"{LWS}exclusive-topology")
"""Annotations of an owner that its controller copies to the pods."""
FIRST: Final = ("Master", "Chief", "Launcher", "Scheduler")
"""Roles of a training job that come before its workers."""


class Pods(NamedTuple):
    """Equal pods but for their index. `labels`, `notes`: what the controller adds, by index."""

    number: int
    template: Json
    labels: Callable[[int], dict[str, str]]
    notes: dict[str, str]


def expands(api: str, kind: str) -> bool:
    """Whether pods can be made of such an object. `api`: its API group."""
    return (api, kind) in _PODS


def pods(item: Json, path: str) -> Iterator[dict[str, Any]]:
    """The pods of an owner, as objects. BadInput where its specification cannot be read. `path`: of the owner."""
    api = str(item.get("apiVersion") or "").rpartition("/")[0]
    meta = _object(item.get("metadata"), f"{path}.metadata")
    spec = _object(item.get("spec"), f"{path}.spec")
    name = meta.get("name")
    if not isinstance(name, str) or not name:
        raise BadInput("it has no name", path=f"{path}.metadata.name")
    owner = {
        "apiVersion": item.get("apiVersion"),
        "kind": item["kind"],
        "name": name,
        "uid": meta.get("uid") or "",
        "controller": True,
    }
    index = 0
    for pods in _PODS[api, item["kind"]](name, meta, spec, f"{path}.spec"):
        for number in range(pods.number):
            yield _pod(f"{name}-{index}", meta.get("namespace"), owner, pods, number)
            index += 1


def _pod(name: str, namespace: Any, owner: Json, pods: Pods, number: int) -> dict[str, Any]:
    meta = _object(pods.template.get("metadata"), "template.metadata")
    made: dict[str, Any] = {
        "name": name,
        "labels": {**_object(meta.get("labels"), "template.metadata.labels"), **pods.labels(number)},
        "annotations": {**_object(meta.get("annotations"), "template.metadata.annotations"), **pods.notes},
        "ownerReferences": [owner],
    }
    if namespace is not None:
        made["namespace"] = namespace
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": pods.template.get("spec")}


def _object(value: Any, path: str) -> Json:
    """The value as an object; {} where it is absent. BadInput for anything else."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadInput("expected an object", path=path)
    return value


def _list(value: Any, path: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadInput("expected a list", path=path)
    return value


def _count(spec: Json, key: str, path: str, default: int | None = 1) -> int | None:
    """A number of pods of the specification."""
    value = spec.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise BadInput(f"expected a whole number, 0 to {MOST}", path=f"{path}.{key}")
    return value


def _template(spec: Json, path: str) -> Json:
    found = _object(spec.get("template"), f"{path}.template")
    if not isinstance(found.get("spec"), Mapping):
        raise BadInput("there is no pod template", path=f"{path}.template.spec")
    return found


def _plain(number: int) -> dict[str, str]:
    return {}


def _numbered(added: dict[str, str], key: str, first: int = 0) -> Callable[[int], dict[str, str]]:
    """Labels that are alike, and one that counts the pods from `first` on."""
    return lambda number: {**added, key: str(first + number)}


def _replicas(name: str, meta: Json, spec: Json, path: str) -> Iterator[Pods]:
    """Deployment, ReplicaSet."""
    yield Pods(_count(spec, "replicas", path) or 0, _template(spec, path), _plain, {})


def _stateful_set(name: str, meta: Json, spec: Json, path: str) -> Iterator[Pods]:
    def labels(number: int) -> dict[str, str]:
        return {"apps.kubernetes.io/pod-index": str(number), "statefulset.kubernetes.io/pod-name": f"{name}-{number}"}

    yield Pods(_count(spec, "replicas", path) or 0, _template(spec, path), labels, {})


def _parallel(spec: Json, path: str) -> int:
    return parallel_pods(_count(spec, "parallelism", path), _count(spec, "completions", path, None))


def _job(name: str, meta: Json, spec: Json, path: str) -> Iterator[Pods]:
    indexed = spec.get("completionMode") == "Indexed"

    def labels(number: int) -> dict[str, str]:
        return {"batch.kubernetes.io/job-name": name} | ({COMPLETION: str(number)} if indexed else {})

    yield Pods(_parallel(spec, path), _template(spec, path), labels, {})


def _job_set(name: str, meta: Json, spec: Json, path: str) -> Iterator[Pods]:
    for at, one in enumerate(_list(spec.get("replicatedJobs"), f"{path}.replicatedJobs")):
        here = f"{path}.replicatedJobs[{at}]"
        replicated = _object(one, here)
        outer = _object(replicated.get("template"), f"{here}.template")
        job = _object(outer.get("spec"), f"{here}.template.spec")
        role, template = str(replicated.get("name") or ""), _template(job, f"{here}.template.spec")
        pods = _parallel(job, f"{here}.template.spec")
        notes = _copied(meta, f"{here}.metadata") | _copied(
            _object(outer.get("metadata"), f"{here}.template.metadata"), f"{here}.template.metadata"
        )
        for number in range((_count(replicated, "replicas", here) or 0) if pods else 0):
            added = {
                f"{JOBSET}jobset-name": name,
                f"{JOBSET}replicatedjob-name": role,
                f"{JOBSET}job-index": str(number),
            }
            yield Pods(pods, template, _numbered(added, COMPLETION), notes)


def _leader_worker_set(name: str, meta: Json, spec: Json, path: str) -> Iterator[Pods]:
    here = f"{path}.leaderWorkerTemplate"
    both = _object(spec.get("leaderWorkerTemplate"), here)
    size = _count(both, "size", here) or 0
    worker = _template({"template": both.get("workerTemplate")}, f"{here}.workerTemplate")
    leader = worker
    if both.get("leaderTemplate") is not None:
        leader = _template({"template": both["leaderTemplate"]}, f"{here}.leaderTemplate")
    notes = {f"{LWS}size": str(size), **_copied(meta, "metadata")}
    for group in range((_count(spec, "replicas", path) or 0) if size else 0):
        added = {f"{LWS}name": name, f"{LWS}group-index": str(group)}
        yield Pods(1, leader, _numbered(added, f"{LWS}worker-index"), notes)
        yield Pods(size - 1, worker, _numbered(added, f"{LWS}worker-index", 1), notes)


def _training(field: str) -> Callable[[str, Json, Json, str], Iterator[Pods]]:
    """A job of the training operators. `field`: of its specification, with the roles."""

    def pods(name: str, meta: Json, spec: Json, path: str) -> Iterator[Pods]:
        roles = _object(spec.get(field), f"{path}.{field}")
        for role in sorted(roles, key=lambda one: (one not in FIRST, one)):
            here = f"{path}.{field}.{role}"
            one = _object(roles[role], here)
            count, template = _count(one, "replicas", here) or 0, _template(one, here)
            yield Pods(count, template, _training_labels(name, role, launched=field.startswith("mpi")), {})

    return pods


def _training_labels(name: str, role: str, *, launched: bool) -> Callable[[int], dict[str, str]]:
    def labels(number: int) -> dict[str, str]:
        found = {f"{TRAINING}job-name": name}
        if launched:  # the MPI operator writes a role, and counts the workers alone
            found[f"{TRAINING}job-role"] = role.lower()
        else:
            found[f"{TRAINING}replica-type"] = role.lower()
        if not launched or role == "Worker":
            found[f"{TRAINING}replica-index"] = str(number)
        return found

    return labels


def _volcano_tasks(spec: Json, path: str) -> Iterator[tuple[str, Json, str]]:
    """(name, the task, its path) of each task of a Volcano Job."""
    for at, one in enumerate(_list(spec.get("tasks"), f"{path}.tasks")):
        here = f"{path}.tasks[{at}]"
        task = _object(one, here)
        yield str(task.get("name") or f"default{at}"), task, here


def _volcano_job(name: str, meta: Json, spec: Json, path: str) -> Iterator[Pods]:
    tasks = list(_volcano_tasks(spec, path))
    # Its PodGroup states the minimum alone; the Job has the size.
    size = sum(_count(task, "replicas", here) or 0 for _, task, here in tasks)
    notes = {VOLCANO_GROUP: name, gangs.OUR_SIZE: str(size)}
    for role, task, here in tasks:
        template = _template(task, here)
        scheduler = spec.get("schedulerName")
        if scheduler and not template["spec"].get("schedulerName"):
            template = {**template, "spec": {**template["spec"], "schedulerName": scheduler}}
        added = {f"{VOLCANO}job-name": name, f"{VOLCANO}task-spec": role}
        yield Pods(_count(task, "replicas", here) or 0, template, _numbered(added, f"{VOLCANO}task-index"), notes)


def pod_group(item: Json, path: str) -> dict[str, Any] | None:
    """The object that states how many pods of a Volcano Job must start together, as its controller creates it; None of
    any other owner. BadInput where its specification cannot be read."""
    api, kind = str(item.get("apiVersion") or "").rpartition("/")[0], item["kind"]
    if (api, kind) != VOLCANO_JOB:
        return None
    meta = _object(item.get("metadata"), f"{path}.metadata")
    spec, path = _object(item.get("spec"), f"{path}.spec"), f"{path}.spec"
    tasks = [(task, here) for _, task, here in _volcano_tasks(spec, path)]
    replicas = [_count(task, "replicas", here) or 0 for task, here in tasks]
    stated = [_count(task, "minAvailable", here, None) for task, here in tasks]
    of_tasks = [number if least is None else least for number, least in zip(replicas, stated, strict=True)]
    # Volcano starts no job before each task has its own minimum.
    least = max(_count(spec, "minAvailable", path, None) or sum(of_tasks), sum(one or 0 for one in stated))
    named = {key: meta[key] for key in ("name", "namespace") if key in meta}
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": named,
        "spec": {"minMember": least},
    }  # fmt: skip


def _copied(meta: Json, path: str) -> dict[str, str]:
    notes = _object(meta.get("annotations"), f"{path}.annotations")
    return {key: notes[key] for key in EXCLUSIVE if key in notes}


_PODS: Final[dict[tuple[str, str], Callable[[str, Json, Json, str], Iterator[Pods]]]] = {
    ("apps", "Deployment"): _replicas,
    ("apps", "ReplicaSet"): _replicas,
    ("apps", "StatefulSet"): _stateful_set,
    ("batch", "Job"): _job,
    ("jobset.x-k8s.io", "JobSet"): _job_set,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
    VOLCANO_JOB: _volcano_job,
    ("kubeflow.org", "PyTorchJob"): _training("pytorchReplicaSpecs"),
    ("kubeflow.org", "TFJob"): _training("tfReplicaSpecs"),
    ("kubeflow.org", "MPIJob"): _training("mpiReplicaSpecs"),
    ("kubeflow.org", "XGBoostJob"): _training("xgbReplicaSpecs"),
    ("kubeflow.org", "PaddleJob"): _training("paddleReplicaSpecs"),
    ("kubeflow.org", "JAXJob"): _training("jaxReplicaSpecs"),
    ("kubeflow.org", "MXJob"): _training("mxReplicaSpecs"),
}
KINDS: Final = tuple(sorted(kind for _, kind in _PODS))
"""Of owners that are expanded."""
