"""Owners of pods that state no minimum of a gang themselves: what each of them creates.

A kind without a gang source is a function here and a line in OTHER_OWNERS. It states its roles; where its controller
creates an object that states the minimum, or owns the pods, `OwnerRoles.stated_in` and `owned_by` name its kind. An
owner of any other kind is read by `any_owner`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from extender.objects.gangs import applications, grove, jobset, ray, serving, training, workflows
from extender.objects.gangs.builtin import job_role
from extender.objects.gangs.pod_groups import VOLCANO, VOLCANO_GROUP, of_tasks, volcano_domain
from extender.objects.gangs.roles import MOST, OwnerObject, OwnerRoles, Role, Section, of_container, of_spec, role_at
from extender.objects.schema import RecordError

VOLCANO_PREFIX: Final = "volcano.sh/"
JOB: Final = ("batch", "Job")


def replica_set(owner: OwnerObject) -> OwnerRoles:
    """Deployment and other controllers of independent replicas."""
    return OwnerRoles((role_at(owner.spec),))


def daemon_set(owner: OwnerObject) -> OwnerRoles:
    """One pod for each node that the template admits."""
    return OwnerRoles((role_at(owner.spec, 1, per_node=True),))


def cron_job(owner: OwnerObject) -> OwnerRoles:
    """One run of a CronJob: the Job that it creates."""
    role = job_role(owner.spec.section("jobTemplate").section("spec"), owner.name)
    return OwnerRoles((role,), minimum=role.count, size=role.count, stated_in=JOB, owned_by=JOB)


def volcano_job(owner: OwnerObject) -> OwnerRoles:
    """The tasks of a Volcano Job."""
    return _volcano_job(owner.spec, owner.name)


def volcano_cron_job(owner: OwnerObject) -> OwnerRoles:
    """One run of a CronJob of Volcano."""
    return _volcano_job(owner.spec.section("jobTemplate").section("spec"), owner.name)


def job_flow(owner: OwnerObject) -> Iterator[OwnerRoles]:
    """The Jobs of a JobFlow, whose templates are in the question."""
    text = f"all Jobs of JobFlow {owner.name} are placed at once, although some begin once others have completed"
    for number, (name, spec) in enumerate(workflows.flow_jobs(owner)):
        yield _volcano_job(spec, name)._replace(assumed=(text,) if number == 1 else ())


def _volcano_job(spec: Section, job: str) -> OwnerRoles:
    """The controller creates a PodGroup with the minimum of the Job and of its tasks, all replicas where a task states
    none."""
    tasks = spec.sections("tasks")
    inherited = {name: spec.text(name) for name in ("schedulerName", "priorityClassName")}
    roles = tuple(_task(job, task, number, inherited) for number, task in enumerate(tasks))
    stated = [task.number("minAvailable") for task in tasks]
    minima = tuple(
        (role.name, role.count if least is None else least) for role, least in zip(roles, stated, strict=True)
    )
    least = spec.number("minAvailable") or sum(number for _, number in minima)
    parts, domain = of_tasks(least, minima), volcano_domain(spec)
    size = sum(role.count for role in roles)
    return OwnerRoles(roles, least, parts, size, stated_in=VOLCANO_GROUP, name=job, domain=domain)


def _task(job: str, task: Section, number: int, inherited: Mapping[str, str]) -> Role:
    """A task, which has no pods where it states no number. `inherited`: what the Job states for pods that do not."""
    name = task.text("name") or f"default{number}"
    role = role_at(
        task, task.number("replicas") or 0, name=name, index_label=f"{VOLCANO_PREFIX}task-index",
        notes={VOLCANO[0]: job}, labels={f"{VOLCANO_PREFIX}job-name": job, f"{VOLCANO_PREFIX}task-spec": name},
    )  # fmt: skip
    return replace(role, template=_inheriting(role.template, {key: text for key, text in inherited.items() if text}))


def _inheriting(template: Any, inherited: Mapping[str, str]) -> Any:
    """The template, with the fields of its specification that it does not state itself."""
    spec = template.get("spec") if isinstance(template, Mapping) else None
    if not inherited or not isinstance(spec, Mapping):
        return template
    absent = {key: text for key, text in inherited.items() if not spec.get(key)}
    return {**template, "spec": {**spec, **absent}}


OTHER_OWNERS: Final[dict[tuple[str, str], Callable[[OwnerObject], OwnerRoles | Iterator[OwnerRoles]]]] = {
    ("apps", "Deployment"): replica_set,
    ("apps", "ReplicaSet"): replica_set,
    ("apps.openshift.io", "DeploymentConfig"): replica_set,
    ("apps", "DaemonSet"): daemon_set,
    ("", "ReplicationController"): replica_set,
    ("batch", "CronJob"): cron_job,
    ("jobset.x-k8s.io", "JobSet"): jobset.job_set,
    ("batch.volcano.sh", "Job"): volcano_job,
    ("ray.io", "RayJob"): ray.ray_job,
    ("ray.io", "RayService"): ray.ray_service,
    ("trainer.kubeflow.org", "TrainJob"): training.train_job,
    ("grove.io", "PodCliqueSet"): grove.pod_clique_set,
    ("serving.kserve.io", "InferenceService"): serving.inference_service,
    ("serving.kserve.io", "LLMInferenceService"): serving.llm_inference_service,
    ("apps.nvidia.com", "NIMService"): serving.nim_service,
    ("apps.nvidia.com", "NIMPipeline"): serving.nim_pipeline,
    ("nvidia.com", "DynamoGraphDeployment"): serving.dynamo_graph,
    ("nvidia.com", "DynamoComponentDeployment"): serving.dynamo_component,
    ("ome.io", "InferenceService"): serving.ome_service,
    ("workloads.x-k8s.io", "RoleBasedGroup"): applications.role_based_group,
    ("workloads.x-k8s.io", "RoleBasedGroupSet"): applications.role_based_group_set,
    ("orchestration.aibrix.ai", "StormService"): applications.storm_service,
    ("orchestration.aibrix.ai", "RoleSet"): applications.role_set,
    ("orchestration.aibrix.ai", "RayClusterFleet"): ray.ray_cluster_fleet,
    ("orchestration.aibrix.ai", "RayClusterReplicaSet"): ray.ray_cluster_fleet,
    ("workload.serving.volcano.sh", "ModelServing"): applications.model_serving,
    ("workload.serving.volcano.sh", "ModelBooster"): applications.model_booster,
    ("batch.volcano.sh", "CronJob"): volcano_cron_job,
    ("flow.volcano.sh", "JobFlow"): job_flow,
    ("argoproj.io", "Workflow"): workflows.workflow,
    ("argoproj.io", "CronWorkflow"): workflows.cron_workflow,
    ("argoproj.io", "Rollout"): applications.rollout,
    ("tekton.dev", "TaskRun"): workflows.task_run,
    ("tekton.dev", "PipelineRun"): workflows.pipeline_run,
    ("sparkoperator.k8s.io", "SparkApplication"): applications.spark_application,
    ("sparkoperator.k8s.io", "ScheduledSparkApplication"): applications.scheduled_spark_application,
    ("kubevirt.io", "VirtualMachine"): applications.virtual_machine,
    ("kubevirt.io", "VirtualMachineInstance"): applications.virtual_machine_instance,
    ("kubevirt.io", "VirtualMachineInstanceReplicaSet"): applications.virtual_machines,
    ("pool.kubevirt.io", "VirtualMachinePool"): applications.virtual_machines,
    ("serving.knative.dev", "Service"): applications.knative_service,
    ("serving.knative.dev", "Configuration"): applications.knative_service,
    ("serving.knative.dev", "Revision"): applications.knative_revision,
    ("slinky.slurm.net", "NodeSet"): applications.slurm_node_set,
    ("production-stack.vllm.ai", "VLLMRuntime"): applications.vllm_runtime,
    ("kubeai.org", "Model"): applications.kubeai_model,
    ("kaito.sh", "Workspace"): applications.kaito_workspace,
    ("kaito.sh", "InferenceSet"): applications.kaito_inference_set,
    ("kaito.sh", "MultiRoleInference"): applications.kaito_roles,
    ("kubeflow.org", "Notebook"): applications.notebook,
}


# -- an owner of a kind that is not known: pod templates and numbers of pods at the usual places.
#
# A pod template is an object whose `spec` has a list `containers`; a pod specification has that list itself. An object
# with `resources` that name GPUs, and no template in it, stands for a pod with one container. The numbers of replicas
# on the way from `spec` to it are multiplied. All of that is assumed, and said.


NUMBERS: Final = ("replicas", "numNodes", "numWorkers", "minReplicas")
"""Fields that state a number of pods; of an object the first counts."""
NO_OWNERS: Final = (
    "Runtime", "Config", "Template", "Policy", "Definition", "Class", "Profile", "List", "Claim", "Cache", "Spread",
    "NodePool", "NodeGroup", "Quota",
)  # fmt: skip
"""Ends of kinds whose objects are read by others and create no pods themselves."""
NO_APIS: Final = (
    "kueue.x-k8s.io", "karpenter.sh", "karpenter.k8s.aws", "cluster.x-k8s.io", "autoscaling.x-k8s.io", "fluxcd.io",
    "monitoring.coreos.com", "apiextensions.k8s.io", "nvidia.com/ClusterPolicy", "argoproj.io/Application",
    "argoproj.io/ApplicationSet", "argoproj.io/AppProject", "tekton.dev",
)  # fmt: skip
"""Ends of API groups, and GROUP/KIND, whose objects create no pods by what they state."""
NO_PLACES: Final = frozenset({"patch", "patches", "values", "valuesObject"})
"""Fields in which what looks like a template is none."""
DEEPEST: Final = 8


def any_owner(owner: OwnerObject, gpus: frozenset[str]) -> OwnerRoles:
    """Its roles; none where it has no template, or one that cannot be read."""
    if owner.kind.endswith(NO_OWNERS) or owner.api.endswith(NO_APIS) or f"{owner.api}/{owner.kind}" in NO_APIS:
        return OwnerRoles()
    try:
        roles = tuple(_at("spec", owner.spec, min(_number(owner.spec), MOST + 1), gpus, 0))
    except RecordError:  # it may be anything
        return OwnerRoles()
    if not roles:
        return OwnerRoles()
    places = ", ".join(f"{role.count} of {role.path}" for role in roles)
    kind = f"{owner.kind} of {owner.api or 'the core API'}"
    text = f"how {kind} creates pods is not known: {places} are assumed, which start independently of each other"
    return OwnerRoles(roles, assumed=(text,))


def _at(key: str, section: Section, pods: int, gpus: frozenset[str], depth: int) -> Iterator[Role]:
    """The roles of an object, of which there are so many: its own, or those in it. `key`: its field."""
    if _has_containers(section.raw("spec")):
        yield Role(section.fields, section.path, pods, name=key)
    elif _has_containers(section.fields):
        yield Role(of_spec(section.fields), section.path, pods, name=key)
    elif depth <= DEEPEST:
        below = False
        for inner_key, inner in _objects(section):
            count = min(pods * _of_key(section, inner_key) * _number(inner), MOST + 1)
            for role in _at(inner_key, inner, count, gpus, depth + 1):
                below = True
                yield role
        resources = section.raw("resources")
        if not below and _asks(resources, gpus):
            yield Role(of_container(resources, section.fields), section.path, pods)


def _asks(resources: Any, gpus: frozenset[str]) -> bool:
    parts = [resources.get(part) for part in ("limits", "requests")] if isinstance(resources, Mapping) else []
    return any(isinstance(part, Mapping) and not gpus.isdisjoint(part) for part in parts)


def _objects(section: Section) -> Iterator[tuple[str, Section]]:
    """(the field, the object) of all objects in it, those of lists included."""
    for key, value in section.fields.items():
        if not isinstance(key, str) or key in NO_PLACES:
            continue
        if isinstance(value, Mapping):
            yield key, section.section(key)
        elif isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value):
            for inner in section.sections(key):
                yield key, inner


def _has_containers(value: Any) -> bool:
    containers = value.get("containers") if isinstance(value, Mapping) else None
    return isinstance(containers, list) and all(isinstance(entry, Mapping) for entry in containers)


def _of_key(section: Section, key: str) -> int:
    """How many pods of a template: `workerReplicas` of a `workerTemplate`, else one."""
    number = section.number(f"{key.removesuffix('Template')}Replicas") if key.endswith("Template") else None
    return 1 if number is None else number


def _number(section: Section) -> int:
    """The first number of pods that a section states, 1 where it states none."""
    for name in NUMBERS:
        value = section.raw(name)
        if isinstance(value, int) and not isinstance(value, bool):
            if value < 0:
                raise RecordError(section.at(name), f"{value} is not a number of pods")
            return value
    return 1
