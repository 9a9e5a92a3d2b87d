"""The training operators (kubeflow.org): PyTorchJob, MPIJob and others, and the TrainJob that replaces them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from extender.objects.gangs.jobset import JobSet
from extender.objects.gangs.roles import GangSource, OwnerObject, OwnerRoles, Role, Section, patched, role_at

PREFIX: Final = "training.kubeflow.org/"
NAME: Final = f"{PREFIX}job-name"
ROLE: Final = f"{PREFIX}job-role"
REPLICA_TYPE: Final = f"{PREFIX}replica-type"
REPLICA_INDEX: Final = f"{PREFIX}replica-index"
LAUNCHER: Final = "Launcher"
FIRST: Final = ("Master", "Chief", LAUNCHER, "Scheduler")
"""Roles that come before the workers."""
API: Final = "kubeflow.org"
FIELDS: Final = {
    "PyTorchJob": "pytorchReplicaSpecs", "TFJob": "tfReplicaSpecs", "MPIJob": "mpiReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs", "PaddleJob": "paddleReplicaSpecs", "JAXJob": "jaxReplicaSpecs",
    "MXJob": "mxReplicaSpecs",
}  # fmt: skip
"""The field of each kind with its roles."""


class Training(GangSource):
    """Pods with the label of the job, or owned by it."""

    name = "training"
    states = "pytorchjobs.kubeflow.org, mpijobs.kubeflow.org ..."
    kinds = tuple((API, kind) for kind in FIELDS)
    marks = (NAME,)
    owning = True

    def read(self, owner: OwnerObject) -> OwnerRoles:
        """All replicas. Of these must run: minAvailable, else (elastic) minReplicas, else all. A failed pod does not
        count as succeeded: the operator remakes it, or ends the job."""
        spec = owner.spec
        sections = spec.named(FIELDS[owner.kind])
        names = sorted(sections, key=lambda name: (name not in FIRST, name))
        roles = tuple(_role(owner, name, sections[name]) for name in names)
        least = spec.section("runPolicy").section("schedulingPolicy").number("minAvailable")
        if not roles:
            return OwnerRoles(minimum=least)
        minima: tuple[tuple[str, int], ...] = ()
        if least is None:
            elastic = spec.section("elasticPolicy").number("minReplicas")
            minima = tuple(
                (
                    role.name.lower(),
                    min(elastic, role.count) if elastic is not None and role.name == "Worker" else role.count,
                )
                for role in roles
            )
            least = sum(number for _, number in minima)
        statuses = owner.status.named("replicaStatuses")
        ended = [
            min(max(0, statuses[role.name].number("succeeded") or 0), role.count)
            for role in roles
            if role.name in statuses
        ]
        return OwnerRoles(roles, least, minima, sum(role.count for role in roles), sum(ended))


def _role(owner: OwnerObject, name: str, section: Section) -> Role:
    """The MPI operator writes a role, counts the workers alone, and may create the launcher once the workers run."""
    if owner.kind != "MPIJob":
        labels = {NAME: owner.name, REPLICA_TYPE: name.lower()}
        return role_at(section, name=name, labels=labels, index_label=REPLICA_INDEX)
    launcher = name == LAUNCHER
    count = section.count("replicas") if launcher else section.number("replicas") or 0
    waits = launcher and owner.spec.text("launcherCreationPolicy") == "WaitForWorkersReady"
    return role_at(
        section, count, name=name, creator=f"{owner.name}-launcher" if launcher else owner.name,
        labels={NAME: owner.name, ROLE: name.lower()}, index_label=REPLICA_INDEX if name == "Worker" else "",
        early=0 if waits else None,
    )  # fmt: skip


# -- TrainJob: its runtime is a JobSet, in which the trainer gets its nodes and resources


TRAINER_API: Final = "trainer.kubeflow.org"
STEP: Final = f"{TRAINER_API}/trainjob-ancestor-step"
TRAINER: Final = ("trainer", "node")
"""The ancestor step of the trainer's Job, and the name of that Job and its container."""
JOBSET: Final = JobSet.kinds[0]


def train_job(owner: OwnerObject) -> OwnerRoles:
    """The JobSet of a TrainJob: that of its runtime where it is in the question, else one Job of its nodes."""
    reference, trainer = owner.spec.section("runtimeRef"), owner.spec.section("trainer")
    kind, name = reference.text("kind") or "ClusterTrainingRuntime", reference.text("name")
    runtime = owner.beside(TRAINER_API, kind, name)
    assumed: tuple[str, ...] = ()
    if runtime is None:
        text = f"{kind} {name} of TrainJob {owner.name} is not in the question: it is read as one Job of its nodes"
        assumed = (text,)
        template = {"spec": {"containers": [{"name": TRAINER[1]}]}}
        jobs = [Section({"name": TRAINER[1], "template": {"spec": {"template": template}}}, "spec.trainer")]
        nodes = None
    else:
        jobs = runtime.spec.section("template").section("spec").sections("replicatedJobs")
        nodes = runtime.spec.section("mlPolicy").number("numNodes")
    stated = trainer.number("numNodes")
    number = next((value for value in (stated, nodes) if value is not None), 1)
    mpi = None if runtime is None else runtime.spec.section("mlPolicy").section("mpi")
    if mpi is not None and mpi.flag("runLauncherAsNode"):
        number = max(number - 1, 1)  # the launcher is one of the nodes
    named = any(job.text("name") == TRAINER[1] for job in jobs)
    overridden = [_overridden(owner, _trained(job, trainer, number, named=named)) for job in jobs]
    job_set = owner._replace(api=JOBSET[0], kind=JOBSET[1], spec=Section({"replicatedJobs": overridden}, "spec"))
    return JobSet().read(job_set)._replace(stated_in=JOBSET, owned_by=JOBSET, assumed=assumed)


def _trained(job: Section, trainer: Section, nodes: int, *, named: bool) -> Mapping[str, Any]:
    """A replicated Job of the runtime; the trainer's runs on so many nodes, with the resources that it states. `named`:
    whether one has the name of the trainer's, which then has the nodes; others of the trainer (a launcher) have one."""
    template = job.section("template")
    step = template.section("metadata").section("labels").text(STEP)
    if step != TRAINER[0] and job.text("name") != TRAINER[1]:
        return job.fields
    spec: dict[str, Any] = {}
    if job.text("name") == TRAINER[1] or not named:
        spec = {"parallelism": nodes, "completions": nodes}
    if (resources := trainer.raw("resourcesPerNode")) is not None:
        containers = template.section("spec").section("template").section("spec").sections("containers")
        names = [container.text("name") for container in containers]
        name = TRAINER[1] if TRAINER[1] in names or not names else names[0]
        spec["template"] = {"spec": {"containers": [{"name": name, "resources": resources}]}}
    return patched(job.fields, {"template": {"spec": spec}})  # type: ignore[no-any-return]


def _overridden(owner: OwnerObject, job: Mapping[str, Any]) -> Mapping[str, Any]:
    """The replicated Job with the overrides of the TrainJob that name it."""
    spec = owner.spec
    for field in ("podTemplateOverrides", "podSpecOverrides"):
        for override in spec.sections(field):
            names = [target.text("name") for target in override.sections("targetJobs")]
            if names and job.get("name") not in names:
                continue
            fields = override.fields if field == "podSpecOverrides" else override.section("spec").fields
            inner = {key: value for key, value in fields.items() if key != "targetJobs"}
            job = patched(job, {"template": {"spec": {"template": {"spec": inner}}}})
    for patch in spec.sections("runtimePatches"):
        inside = patch.section("trainingRuntimeSpec").section("template").section("spec")
        for change in inside.sections("replicatedJobs"):
            if change.text("name") == job.get("name"):
                job = patched(job, change.fields)
    return job
