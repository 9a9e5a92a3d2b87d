"""Gangs of Ray, Kubeflow Trainer, Volcano and Grove for the tests of the queue: a leader without GPUs, and workers with
eight.

Ray's and Trainer's objects are read by their own controllers (`gang_controllers.py`). Those of Volcano and Grove are no
Go modules that can be had: `Volcano` and `Grove` write what these would write, by their sources. Volcano's scheduler
would have to admit the PodGroup first; it does not place pods of other schedulers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.test_queue import GATE

RESTART = "gpu-extender.io/restart-seconds"
GATES = [{"name": GATE}]
TRAINER = "trainer.kubeflow.org"
VOLCANO = "volcano.sh/"
GROVE = "grove.io/"
GROVE_GATE = f"{GROVE}podgang-pending-creation"
GROVE_KINDS = (
    ("grove.io", "PodCliqueSet", "podcliquesets"), ("grove.io", "PodClique", "podcliques"),
    ("scheduler.grove.io", "PodGang", "podgangs"),
)  # fmt: skip
"""(API group, kind, plural)."""


class Gang(NamedTuple):
    """A gang to create. `loses`: seconds of work that each pod loses beside its age; `least`: how many of the workers
    must run, 0: all."""

    name: str
    namespace: str
    workers: int
    priority_class: str
    loses: int
    least: int = 0

    @property
    def minimum(self) -> int:
        """How many of the workers must run."""
        return self.least or self.workers


class GangOwner(Protocol):
    """What a project's users write, and what becomes of it."""

    leaders: int
    """Pods without GPUs."""
    label: str
    """On all pods of a gang, with its name."""

    def manifests(self, gang: Gang) -> list[Object]:
        """The file of a user."""

    def create(self, api: Api, gang: Gang) -> None:
        """Create the objects of the file, and those that no controller creates here."""


def template(gang: Gang, gpus: int, *, name: str = "main", **spec: Any) -> Object:
    """A pod template behind our gate."""
    made = builders.pod(
        "template", gang.namespace, containers=[builders.container(name, gpus)], priority_class=gang.priority_class,
        annotations={RESTART: str(gang.loses)}, grace=1, schedulingGates=GATES, **spec,
    )  # fmt: skip
    return {"metadata": {"annotations": made["metadata"]["annotations"]}, "spec": made["spec"]}


def named(api_version: str, kind: str, gang: Gang, spec: Object) -> Object:
    """An object with the gang's name."""
    meta = {"name": gang.name, "namespace": gang.namespace}
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": spec}


class Ray:
    """A RayCluster."""

    leaders = 1
    label = "ray.io/cluster"

    def manifests(self, gang: Gang) -> list[Object]:
        """The cluster, of a fixed size."""
        group = {
            "groupName": "gpus", "replicas": gang.workers, "minReplicas": gang.minimum, "maxReplicas": gang.workers,
            "rayStartParams": {}, "template": template(gang, 8, restart_policy="Always"),
        }  # fmt: skip
        head = {"rayStartParams": {}, "template": template(gang, 0, restart_policy="Always")}
        spec = {"headGroupSpec": head, "workerGroupSpecs": [group], "enableInTreeAutoscaling": bool(gang.least)}
        return [named("ray.io/v1", "RayCluster", gang, spec)]

    def create(self, api: Api, gang: Gang) -> None:
        """The operator creates the pods."""
        for made in self.manifests(gang):
            api.create(made)


class Trainer:
    """A TrainJob with a runtime of its own."""

    leaders = 0
    label = "jobset.sigs.k8s.io/jobset-name"

    def manifests(self, gang: Gang) -> list[Object]:
        """The runtime has one node without GPUs; the TrainJob states nodes and GPUs."""
        job = {
            "name": "node",
            "template": {
                "metadata": {"labels": {f"{TRAINER}/trainjob-ancestor-step": "trainer"}},
                "spec": {"template": template(gang, 0, name="node")},
            },
        }
        runtime = {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [job]}}}
        resources = builders.container(gpus=8)["resources"]
        spec = {
            "runtimeRef": {"apiGroup": TRAINER, "kind": "TrainingRuntime", "name": gang.name},
            "trainer": {"numNodes": gang.workers, "resourcesPerNode": resources},
        }
        version = f"{TRAINER}/v1alpha1"
        return [named(version, "TrainingRuntime", gang, runtime), named(version, "TrainJob", gang, spec)]

    def create(self, api: Api, gang: Gang) -> None:
        """Trainer creates a JobSet, and its controller the Job."""
        for made in self.manifests(gang):
            api.create(made)


class Volcano:
    """A Volcano Job."""

    leaders = 1
    label = f"{VOLCANO}job-name"

    def manifests(self, gang: Gang) -> list[Object]:
        """The Job states the priority; all of its pods must run."""
        tasks = [
            {
                "name": name, "replicas": pods, "minAvailable": least,
                "template": template(gang._replace(priority_class=""), gpus),
            }
            for name, pods, least, gpus in (("master", 1, 1, 0), ("worker", gang.workers, gang.minimum, 8))
        ]  # fmt: skip
        spec = {
            "schedulerName": "default-scheduler", "minAvailable": gang.minimum + 1, "queue": "default", "tasks": tasks,
            "priorityClassName": gang.priority_class,
        }  # fmt: skip
        return [named("batch.volcano.sh/v1alpha1", "Job", gang, spec)]

    def create(self, api: Api, gang: Gang) -> None:
        """The Job, its PodGroup and its pods."""
        [job] = (posted(api, "jobs", made) for made in self.manifests(gang))
        spec = job["spec"]
        group = named(
            "scheduling.volcano.sh/v1beta1", "PodGroup", gang,
            {
                "minMember": spec["minAvailable"], "queue": "default", "priorityClassName": gang.priority_class,
                "minTaskMember": {task["name"]: task["minAvailable"] for task in spec["tasks"]},
            },
        )  # fmt: skip
        group["metadata"] |= {"name": f"{gang.name}-{job['metadata']['uid']}", "ownerReferences": [owned_by(job)]}
        posted(api, "podgroups", group)
        pods = [
            self._pod(job, task, index, group["metadata"]["name"])
            for task in spec["tasks"]
            for index in range(task["replicas"])
        ]
        api.create_many(pods)

    @staticmethod
    def _pod(job: Object, task: Object, index: int, group: str) -> Object:
        name, spec = job["metadata"]["name"], job["spec"]
        labels = {
            "job-name": name, "job-namespace": job["metadata"]["namespace"], "queue-name": spec["queue"],
            "task-index": str(index), "task-spec": task["name"],
        }  # fmt: skip
        notes = {**labels, "job-version": "0", "template-uid": f"{name}-{task['name']}"}
        meta = {
            "name": f"{name}-{task['name']}-{index}", "namespace": job["metadata"]["namespace"],
            "labels": {VOLCANO + key: text for key, text in labels.items()},
            "annotations": {
                **task["template"]["metadata"]["annotations"], **{VOLCANO + key: text for key, text in notes.items()},
                "scheduling.k8s.io/group-name": group,
            },
            "ownerReferences": [owned_by(job)],
        }  # fmt: skip
        inherited = {key: spec[key] for key in ("schedulerName", "priorityClassName")}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**inherited, **task["template"]["spec"]}}


class Grove:
    """A PodCliqueSet of one replica: one PodGang."""

    leaders = 1
    label = "app.kubernetes.io/part-of"

    def manifests(self, gang: Gang) -> list[Object]:
        """Our gate is added when the pods are created: the operator keeps none of a template."""
        cliques = []
        for name, pods, least, gpus in (("leader", 1, 1, 0), ("worker", gang.workers, gang.minimum, 8)):
            pod = template(gang, gpus, restart_policy="Always")
            spec = {"roleName": name, "replicas": pods, "minAvailable": least, "podSpec": pod["spec"]}
            cliques.append({"name": name, "annotations": pod["metadata"]["annotations"], "spec": spec})
        spec = {"replicas": 1, "template": {"cliques": cliques}}
        return [named("grove.io/v1alpha1", "PodCliqueSet", gang, spec)]

    def create(self, api: Api, gang: Gang) -> None:
        """The set, its PodCliques, the pods with Grove's gate and ours, and the PodGang that names them. Then the
        operator removes its gate."""
        [pod_clique_set] = (posted(api, "podcliquesets", made) for made in self.manifests(gang))
        groups = []
        for clique in pod_clique_set["spec"]["template"]["cliques"]:
            pods = self._pods(api, gang, pod_clique_set, clique)
            references = [{"namespace": gang.namespace, "name": pod["metadata"]["name"]} for pod in pods]
            name = pods[0]["metadata"]["labels"][f"{GROVE}podclique"]
            least = clique["spec"]["minAvailable"]
            groups.append({"name": name, "minReplicas": least, "podReferences": references})
        renamed = gang._replace(name=f"{gang.name}-0")
        pod_gang = named("scheduler.grove.io/v1alpha1", "PodGang", renamed, {"podgroups": groups})
        pod_gang["metadata"]["ownerReferences"] = [owned_by(pod_clique_set)]
        posted(api, "podgangs", pod_gang)
        for group in groups:
            for pod in group["podReferences"]:
                opened = {"spec": {"schedulingGates": [{"$patch": "delete", "name": GROVE_GATE}]}}
                api.patch("Pod", pod["name"], opened, gang.namespace, how="strategic")

    @staticmethod
    def _pods(api: Api, gang: Gang, pod_clique_set: Object, clique: Object) -> list[Object]:
        name = f"{gang.name}-0-{clique['name']}"
        labels = {
            "app.kubernetes.io/managed-by": "grove-operator", "app.kubernetes.io/part-of": gang.name,
            f"{GROVE}podgang": f"{gang.name}-0", f"{GROVE}podcliqueset-replica-index": "0",
        }  # fmt: skip
        made = named("grove.io/v1alpha1", "PodClique", gang._replace(name=name), clique["spec"])
        made["metadata"] |= {"labels": labels, "ownerReferences": [owned_by(pod_clique_set)]}
        owner = posted(api, "podcliques", made)
        spec = {**clique["spec"]["podSpec"], "schedulingGates": [{"name": GROVE_GATE}, *GATES]}
        created = []
        for index in range(clique["spec"]["replicas"]):
            meta = {
                "generateName": f"{name}-{index}-", "namespace": gang.namespace, "annotations": clique["annotations"],
                "labels": {**labels, f"{GROVE}podclique": name, f"{GROVE}podclique-pod-index": str(index)},
                "ownerReferences": [owned_by(owner)],
            }  # fmt: skip
            pod = {**spec, "hostname": f"{name}-{index}", "subdomain": f"{gang.name}-0"}
            created.append(api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod}))
        return created


def untyped(group: str, kind: str, plural: str) -> Object:
    """The definition of a kind of Grove, whose own is in no module that can be had: any fields."""
    fields = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": fields}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group, "scope": "Namespaced", "versions": [version],
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
        },
    }  # fmt: skip


def posted(api: Api, plural: str, made: Object) -> Object:
    """Create an object whose kind has the name of another one."""
    return api.request("POST", f"/apis/{made['apiVersion']}/namespaces/{made['metadata']['namespace']}/{plural}", made)


def owned_by(owner: Object) -> Object:
    """The reference to the object that controls another one."""
    return {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


def pods_of(api: Api, owner: GangOwner, gang: Gang) -> Sequence[Object]:
    """Those that exist."""
    return api.list("Pod", gang.namespace, labels=f"{owner.label}={gang.name}")
