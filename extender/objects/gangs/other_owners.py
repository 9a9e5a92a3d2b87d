"""Owners of pods that state no minimum of a gang themselves: what each of them creates.

A kind without a gang source is a function here and a line in OTHER_OWNERS. It states its roles; where its controller
creates an object that states the minimum, or owns the pods, `OwnerRoles.stated_in` and `owned_by` name its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from extender.objects.gangs.builtin import job_role
from extender.objects.gangs.grove import pod_clique_set
from extender.objects.gangs.pod_groups import VOLCANO, VOLCANO_GROUP
from extender.objects.gangs.ray import ray_job, ray_service
from extender.objects.gangs.roles import OwnerObject, OwnerRoles, Role, Section, role_at
from extender.objects.gangs.serving import (
    dynamo_graph,
    inference_service,
    llm_inference_service,
    model_booster,
    model_serving,
    nim_pipeline,
    nim_service,
    role_based_group,
    role_set,
    storm_service,
)
from extender.objects.gangs.training import train_job

VOLCANO_PREFIX: Final = "volcano.sh/"
JOB: Final = ("batch", "Job")


def replica_set(owner: OwnerObject) -> OwnerRoles:
    """Deployment, ReplicaSet, ReplicationController: independent replicas."""
    return OwnerRoles((role_at(owner.spec),))


def daemon_set(owner: OwnerObject) -> OwnerRoles:
    """One pod for each node that the template admits."""
    return OwnerRoles((role_at(owner.spec, 1, per_node=True),))


def cron_job(owner: OwnerObject) -> OwnerRoles:
    """One run of a CronJob: the Job that it creates."""
    role = job_role(owner.spec.section("jobTemplate").section("spec"), owner.name)
    return OwnerRoles((role,), minimum=role.count, size=role.count, stated_in=JOB, owned_by=JOB)


def volcano_job(owner: OwnerObject) -> OwnerRoles:
    """The tasks of a Volcano Job. Its controller creates a PodGroup with the minimum: no less than all minima of its
    tasks, since Volcano starts no job before each task has its own."""
    tasks = owner.spec.sections("tasks")
    roles = tuple(_task(owner, task, number) for number, task in enumerate(tasks))
    stated = [task.number("minAvailable") for task in tasks]
    of_tasks = [role.count if least is None else least for role, least in zip(roles, stated, strict=True)]
    least = max(owner.spec.number("minAvailable") or sum(of_tasks), sum(number or 0 for number in stated))
    size = sum(role.count for role in roles)
    return OwnerRoles(roles, minimum=least, size=size, stated_in=VOLCANO_GROUP)


def _task(owner: OwnerObject, task: Section, number: int) -> Role:
    name = task.text("name") or f"default{number}"
    role = role_at(
        task, name=name, index_label=f"{VOLCANO_PREFIX}task-index", notes={VOLCANO[0]: owner.name},
        labels={f"{VOLCANO_PREFIX}job-name": owner.name, f"{VOLCANO_PREFIX}task-spec": name},
    )  # fmt: skip
    return replace(role, template=_with_scheduler(role.template, owner.spec.text("schedulerName")))


def _with_scheduler(template: Any, scheduler: str) -> Any:
    """The template; the scheduler of its Job counts where it names none itself."""
    if scheduler and isinstance(template, msgspec.Raw):
        template = msgspec.json.decode(template)
    spec = template.get("spec") if isinstance(template, Mapping) else None
    if not scheduler or not isinstance(spec, Mapping) or spec.get("schedulerName"):
        return template
    return {**template, "spec": {**spec, "schedulerName": scheduler}}


OTHER_OWNERS: Final[dict[tuple[str, str], Callable[[OwnerObject], OwnerRoles | Iterator[OwnerRoles]]]] = {
    ("apps", "Deployment"): replica_set,
    ("apps", "ReplicaSet"): replica_set,
    ("apps", "DaemonSet"): daemon_set,
    ("", "ReplicationController"): replica_set,
    ("batch", "CronJob"): cron_job,
    ("batch.volcano.sh", "Job"): volcano_job,
    ("ray.io", "RayJob"): ray_job,
    ("ray.io", "RayService"): ray_service,
    ("trainer.kubeflow.org", "TrainJob"): train_job,
    ("grove.io", "PodCliqueSet"): pod_clique_set,
    ("serving.kserve.io", "InferenceService"): inference_service,
    ("serving.kserve.io", "LLMInferenceService"): llm_inference_service,
    ("apps.nvidia.com", "NIMService"): nim_service,
    ("apps.nvidia.com", "NIMPipeline"): nim_pipeline,
    ("nvidia.com", "DynamoGraphDeployment"): dynamo_graph,
    ("workloads.x-k8s.io", "RoleBasedGroup"): role_based_group,
    ("orchestration.aibrix.ai", "StormService"): storm_service,
    ("orchestration.aibrix.ai", "RoleSet"): role_set,
    ("workload.serving.volcano.sh", "ModelServing"): model_serving,
    ("workload.serving.volcano.sh", "ModelBooster"): model_booster,
}
