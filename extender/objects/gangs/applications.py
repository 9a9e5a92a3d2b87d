"""Owners that describe their pods in fields of their own: Spark, KubeVirt, Knative, Slinky, vLLM's production stack,
KubeAI, KAITO, Argo Rollouts. Their pods are independent of each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from extender.objects.gangs.pod_groups import COSCHEDULING_GROUP, VOLCANO_GROUP, in_pod_group
from extender.objects.gangs.roles import OwnerObject, OwnerRoles, Role, Section, of_container, of_spec, patched, role_at
from extender.objects.gangs.serving import GPU, groups_of, named_gpus
from extender.objects.schema import RecordError

# -- Spark


def spark_application(owner: OwnerObject) -> OwnerRoles:
    """The driver and the executors of a SparkApplication that are there first."""
    return _spark(owner.spec)


def scheduled_spark_application(owner: OwnerObject) -> OwnerRoles:
    """One run of a ScheduledSparkApplication."""
    return _spark(owner.spec.section("template"))


def _spark(spec: Section) -> OwnerRoles:
    executor, dynamic = spec.section("executor"), spec.section("dynamicAllocation")
    number = executor.count("instances")
    if dynamic.flag("enabled"):
        stated = (executor.number("instances"), dynamic.number("initialExecutors"), dynamic.number("minExecutors"))
        number = max(value or 0 for value in stated)
    return OwnerRoles((_spark_role(spec, "driver", 1), _spark_role(spec, "executor", number)))


def _spark_role(spec: Section, part: str, count: int) -> Role:
    """The GPUs are those of `gpu`, else those of Spark's own property, whose vendor is the domain of the resource."""
    section, properties = spec.section(part), spec.section("sparkConf")
    limits: dict[str, Any] = {}
    gpu = section.section("gpu")
    prefix = f"spark.{part}.resource.gpu"
    if gpu.text("name"):
        limits[gpu.text("name")] = gpu.number("quantity")
    elif vendor := properties.text(f"{prefix}.vendor"):
        limits[f"{vendor}/gpu"] = properties.text(f"{prefix}.amount")
    requests = {"cpu": section.raw("coreRequest") or section.raw("cores"), "memory": _spark_memory(spec, section)}
    resources = {"limits": limits, "requests": {name: amount for name, amount in requests.items() if amount}}
    container = f"spark-kubernetes-{part}"
    stated = of_container(resources, {**spec.fields, **section.fields}, container)
    template = patched(section.raw("template") or {}, stated)
    return Role(template, section.path, count, name=part, labels={"spark-role": part})


def _spark_memory(spec: Section, section: Section) -> str:
    """The memory of a pod of Spark with its overhead, "" where nothing valid states it."""
    memory, overhead = _mebibytes(section.text("memory")), _mebibytes(section.text("memoryOverhead"))
    if memory is None:
        return ""
    percent = 40 if spec.text("type") in ("Python", "R") else 10
    return f"{memory + (max(384, memory * percent // 100) if overhead is None else overhead)}Mi"


def _mebibytes(text: str) -> int | None:
    """A size as the JVM states it: MiB without a unit."""
    stated = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = stated[-1:] if stated[-1:] in ("k", "m", "g", "t") else ""
    number = _number_of(stated.removesuffix(unit))
    if number is None:
        return None
    return number // 1024 if unit == "k" else number * {"g": 1024, "t": 1024**2}.get(unit, 1)


# -- KubeVirt


def virtual_machine(owner: OwnerObject) -> OwnerRoles:
    """The pod of a VirtualMachine that runs."""
    stopped = owner.spec.raw("running") is False or owner.spec.text("runStrategy") == "Halted"
    return OwnerRoles((_virtual(owner.spec.section("template").section("spec"), 0 if stopped else 1),))


def virtual_machine_instance(owner: OwnerObject) -> OwnerRoles:
    """The pod of a VirtualMachineInstance."""
    return OwnerRoles((_virtual(owner.spec, 1),))


def virtual_machines(owner: OwnerObject) -> OwnerRoles:
    """The pods of a VirtualMachineInstanceReplicaSet or VirtualMachinePool."""
    template = owner.spec.section("virtualMachineTemplate").section("spec") or owner.spec
    return OwnerRoles((_virtual(template.section("template").section("spec"), owner.spec.count("replicas")),))


def _virtual(spec: Section, count: int) -> Role:
    """A pod with a device for each of the GPUs and host devices of the machine, its memory, and a tenth of its CPUs, as
    KubeVirt asks for where they are not dedicated."""
    domain = spec.section("domain")
    limits: dict[str, Any] = {}
    claims = []
    for field in ("gpus", "hostDevices"):
        for device in domain.section("devices").sections(field):
            if name := device.text("deviceName"):
                limits[name] = limits.get(name, 0) + 1
            elif claim := device.text("claimName"):
                claims.append({"name": claim, "request": device.text("requestName")})
    stated = domain.section("resources")
    cpu = domain.section("cpu")
    cores = cpu.count("cores") * cpu.count("sockets") * cpu.count("threads")
    requests = {
        "cpu": str(cores) if cpu.flag("dedicatedCpuPlacement") else f"{100 * cores}m",
        "memory": domain.section("memory").raw("guest"),
        **stated.section("requests").fields,
    }
    resources = {
        "requests": {name: amount for name, amount in requests.items() if amount is not None},
        "limits": {**stated.section("limits").fields, **limits}, "claims": claims,
    }  # fmt: skip
    return Role(of_container(resources, spec.fields, "compute"), spec.path, count)


# -- Knative


INITIAL_SCALE: Final = "autoscaling.knative.dev/initial-scale"
MIN_SCALES: Final = ("autoscaling.knative.dev/min-scale", "autoscaling.knative.dev/minScale")


def knative_service(owner: OwnerObject) -> OwnerRoles:
    """The pods of a Knative Service or Configuration: as many as its new revision begins with, one where it states
    nothing, and not fewer than its minimum."""
    template = owner.spec.section("template")
    return _revision(template.raw("spec"), template.path, template.section("metadata").section("annotations"))


def knative_revision(owner: OwnerObject) -> OwnerRoles:
    """The pods of a Revision."""
    return _revision(owner.spec.fields, owner.spec.path, Section(owner.annotations, "metadata.annotations"))


def _revision(spec: Any, path: str, notes: Section) -> OwnerRoles:
    initial = _number_of(notes.text(INITIAL_SCALE))
    stated = [_number_of(notes.text(key)) for key in MIN_SCALES]
    count = max(1 if initial is None else initial, *(number or 0 for number in stated))
    return OwnerRoles((Role(of_spec(spec), path, count),))


def _number_of(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None


# -- Slinky


def slurm_node_set(owner: OwnerObject) -> OwnerRoles:
    """The Slurm nodes of a NodeSet; its `slurmd` is the first container."""
    spec = owner.spec
    slurmd = spec.raw("slurmd")
    template = spec.raw("template") or {}
    if slurmd is not None:
        template = patched({"spec": {"containers": [{**spec.section("slurmd").fields, "name": "slurmd"}]}}, template)
    per_node = spec.text("scalingMode").lower() == "daemonset"
    count = 1 if per_node else spec.count("replicas")
    return OwnerRoles((Role(template, spec.at("template"), count, per_node=per_node),))


# -- model servers that state a number of GPUs, or the name of a profile


def vllm_runtime(owner: OwnerObject) -> OwnerRoles:
    """The replicas of a VLLMRuntime; with autoscaling between its bounds."""
    spec, scaling = owner.spec.section("deploymentConfig"), owner.spec.section("autoscalingConfig")
    count = spec.count("replicas")
    if scaling.flag("enabled"):
        count = min(max(count, scaling.count("minReplicas")), max(scaling.count("maxReplicas"), 0))
    fields: dict[str, Any] = {"tolerations": spec.raw("toleration")}
    if terms := spec.raw("nodeSelectorTerms"):
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        fields["affinity"] = {"nodeAffinity": required}
    template = of_container({"limits": named_gpus(spec.section("resources").fields)}, fields)
    return OwnerRoles((Role(template, spec.path, count),))


def kubeai_model(owner: OwnerObject) -> OwnerRoles:
    """The replicas of a KubeAI Model. Its profile is PROFILE:NUMBER; what a profile asks for is in KubeAI's
    settings, which name the GPU (nvidia-gpu-l4)."""
    spec = owner.spec
    profile, _, number = spec.text("resourceProfile").partition(":")
    count = max(spec.number("replicas") or 0, spec.number("minReplicas") or 0)
    domain = profile.partition("-gpu")[0] if "-gpu" in profile else ""
    limits = {f"{domain}.com/gpu": number or "1"} if domain else {}
    text = f"resource profile {profile} of Model {owner.name} is read as {number or 1} x {domain or 'no'} GPU"
    return OwnerRoles((Role(of_container({"limits": limits}), spec.path, count),), assumed=(text,))


AZURE_GPUS: Final = {
    "Standard_NC6s_v3": 1, "Standard_NC12s_v3": 2, "Standard_NC24s_v3": 4, "Standard_NC24rs_v3": 4,
    "Standard_NC4as_T4_v3": 1, "Standard_NC8as_T4_v3": 1, "Standard_NC16as_T4_v3": 1, "Standard_NC64as_T4_v3": 4,
    "Standard_NC24ads_A100_v4": 1, "Standard_NC48ads_A100_v4": 2, "Standard_NC96ads_A100_v4": 4,
    "Standard_ND96asr_v4": 8, "Standard_ND96amsr_A100_v4": 8, "Standard_NC40ads_H100_v5": 1,
    "Standard_NC80adis_H100_v5": 2, "Standard_ND96isr_H100_v5": 8, "Standard_NV36ads_A10_v5": 1,
    "Standard_NV72ads_A10_v5": 2,
}  # fmt: skip
"""GPUs of the machines of Azure that KAITO asks for."""
KAITO_DEFAULT: Final = "Standard_NC24ads_A100_v4"


def kaito_workspace(owner: OwnerObject) -> OwnerRoles:
    """The pods of a KAITO Workspace, one on each of its nodes: of the template, or of a preset, which takes all GPUs of
    the machine, or the part of it that is stated."""
    return _workspace(owner, owner.spec, 1)


def kaito_inference_set(owner: OwnerObject) -> OwnerRoles:
    """The Workspaces of an InferenceSet."""
    return _workspace(owner, owner.spec.section("template"), owner.spec.count("replicas"))


def kaito_roles(owner: OwnerObject) -> OwnerRoles:
    """The pods of the roles of a MultiRoleInference."""
    selector = owner.spec.raw("labelSelector")
    stated = [
        _workspace(
            owner, Section({"resource": {**role.fields, "labelSelector": selector}}, role.path), role.count("replicas")
        )
        for role in owner.spec.sections("roles")
    ]
    roles = tuple(role for part in stated for role in part.roles)
    return OwnerRoles(roles, assumed=tuple(text for part in stated for text in part.assumed))


def _workspace(owner: OwnerObject, spec: Section, groups: int) -> OwnerRoles:
    machines = spec.section("resource")
    count = machines.count("count")
    template = spec.section("inference").raw("template")
    if template is not None:
        return OwnerRoles((Role(template, "inference.template", count, groups=groups),))
    machine, part = machines.text("instanceType") or KAITO_DEFAULT, machines.section("partition")
    profile = machines.section("mig").text("profile")
    gpus = AZURE_GPUS.get(machine) if not part else part.count("count")
    limits = {f"nvidia.com/mig-{profile}": 1} if profile else {GPU: gpus} if gpus else {}
    stated = ", ".join(f"{number} {name}" for name, number in limits.items()) or "no GPUs"
    of = "" if profile or part else f", all of {machine}"
    text = f"a pod of {owner.kind} {owner.name} is read as asking for {stated}{of}"
    fields = {"nodeSelector": machines.section("labelSelector").raw("matchLabels")}
    role = Role(of_container({"limits": limits}, fields), machines.path, count, groups=groups)
    return OwnerRoles((role,), assumed=(text,))


NOTEBOOK_STOPPED: Final = "kubeflow-resource-stopped"


def notebook(owner: OwnerObject) -> OwnerRoles:
    """The pod of a notebook of Kubeflow; none while it is stopped."""
    return OwnerRoles((role_at(owner.spec, 0 if NOTEBOOK_STOPPED in owner.annotations else 1),))


def rollout(owner: OwnerObject) -> OwnerRoles:
    """The replicas of an Argo Rollout, of its own template or of the Deployment that it names."""
    reference = owner.spec.section("workloadRef")
    if not reference:
        return OwnerRoles((role_at(owner.spec),))
    kind, name = reference.text("kind"), reference.text("name")
    workload = owner.beside("apps", kind, name)
    if workload is None:
        text = f"{kind} {name}, whose template Rollout {owner.name} uses, is not in the question"
        return OwnerRoles(assumed=(text,))
    return OwnerRoles((role_at(workload.spec, owner.spec.count("replicas")),))


# -- owners whose pods are those of several roles: RoleBasedGroup, AIBrix and Kthena


RBG_PREFIX: Final = "rbg.workloads.x-k8s.io/"
RBG_GANG: Final = f"{RBG_PREFIX}group-gang-scheduling"


def role_based_group(owner: OwnerObject) -> OwnerRoles:
    """All roles of a RoleBasedGroup, of v1alpha1 and v1alpha2. It is one gang where gang scheduling is on."""
    return _rbg(owner.spec, owner.name, owner.annotations)


def role_based_group_set(owner: OwnerObject) -> Iterator[OwnerRoles]:
    """The RoleBasedGroups of a RoleBasedGroupSet: of `groupTemplate`, or in v1alpha1 of `template`, which is the
    specification of a group."""
    group = owner.spec.section("groupTemplate")
    spec = owner.spec.section("template") if not group else group.section("spec")
    notes = group.section("metadata").section("annotations")
    annotations = {**owner.annotations, **{key: notes.text(key) for key in notes.fields}}
    for replica in range(_replicas(owner.spec)):
        yield _rbg(spec, f"{owner.name}-{replica}", annotations)


def _rbg(spec: Section, group: str, annotations: Mapping[str, str]) -> OwnerRoles:
    shared = {entry.text("name"): entry.raw("template") for entry in spec.sections("roleTemplates")}
    roles = tuple(role for section in spec.sections("roles") for role in _rbg_role(group, section, shared))
    policy = spec.section("podGroupPolicy")
    if annotations.get(RBG_GANG) != "true" and not policy:
        return OwnerRoles(roles, name=group)
    kind = COSCHEDULING_GROUP if policy.raw("volcanoScheduling") is None else VOLCANO_GROUP
    return in_pod_group(roles, kind, group)


def _rbg_role(rbg: str, section: Section, shared: Mapping[str, Any]) -> Iterator[Role]:
    name, replicas = section.text("name"), section.count("replicas")
    labels = {f"{RBG_PREFIX}group-name": rbg, f"{RBG_PREFIX}role-name": name}
    custom = section.section("customComponentsPattern").sections("components") or section.sections("components")
    for part in custom:
        size = part.count("size")
        yield Role(part.raw("template"), part.at("template"), replicas * size, name=part.text("name"), labels=labels)
    if custom:
        return
    group = section.section("leaderWorkerPattern") or section.section("leaderWorkerSet")
    place = next((part for part in (section.section("standalonePattern"), group) if _stated(part)), section)
    template = _rbg_template(place, shared)
    if not group:
        yield Role(template, place.at("template"), replicas, name=name, labels=labels)
        return
    head = patched(template, group.raw("leaderTemplatePatch") or group.raw("patchLeaderTemplate") or {})
    worker = patched(template, group.raw("workerTemplatePatch") or group.raw("patchWorkerTemplate") or {})
    path = place.at("template")
    for role in groups_of(f"{rbg}-{name}", replicas, (head, path), (worker, path), group.number("size") or 1):
        yield role.with_labels(labels)


def _stated(part: Section) -> bool:
    return part.raw("template") is not None or part.raw("templateRef") is not None


def _rbg_template(place: Section, shared: Mapping[str, Any]) -> Any:
    """The template that stands there, or that of `spec.roleTemplates` with the patches of the reference and role."""
    reference = place.section("templateRef")
    if not reference:
        return place.raw("template")
    name = reference.text("name")
    if name not in shared:
        raise RecordError(place.at("templateRef.name"), f"there is no role template {name!r}")
    patch = reference.raw("patch") or place.raw("templatePatch")
    return patched(shared[name], patch) if patch else shared[name]


# -- AIBrix and Kthena


def storm_service(owner: OwnerObject) -> Iterator[OwnerRoles]:
    """The RoleSets of a StormService."""
    inner = owner.spec.section("template").section("spec")
    for replica in range(_replicas(owner.spec)):
        yield _role_set(inner, f"{owner.name}-{replica}")


def role_set(owner: OwnerObject) -> OwnerRoles:
    """The roles of a RoleSet: one gang where it states how many pods start together."""
    return _role_set(owner.spec, owner.name)


def _role_set(spec: Section, name: str) -> OwnerRoles:
    roles = tuple(_storm_role(role, name) for role in spec.sections("roles"))
    strategy = spec.section("schedulingStrategy")
    for field, kind in (("coscheduling", COSCHEDULING_GROUP), ("volcano", VOLCANO_GROUP)):
        least = strategy.section(f"{field}SchedulingStrategy").number("minMember")
        if least is not None:
            return in_pod_group(roles, kind, name, least)
    return OwnerRoles(roles, name=name)


def _storm_role(role: Section, role_set_name: str) -> Role:
    count = role.count("replicas") * role.count("podGroupSize")
    labels = {"roleset-name": role_set_name, "role-name": role.text("name")}
    return Role(role.raw("template"), role.at("template"), count, name=role.text("name"), labels=labels)


def model_serving(owner: OwnerObject) -> Iterator[OwnerRoles]:
    """The serving groups of a ModelServing. Each is a gang where it has a gang policy: of each role as many replicas,
    each an entry pod with its workers, as the policy states, else all."""
    inner = owner.spec.section("template")
    minima = inner.section("gangPolicy").section("minRoleReplicas")
    for replica in range(_replicas(owner.spec)):
        name, least = f"{owner.name}-{replica}", 0
        roles: list[Role] = []
        for section in inner.sections("roles"):
            pods = _serving_role(section, name)
            roles += pods
            replicas, stated = section.count("replicas"), minima.number(section.text("name"))
            of_each = sum(role.count for role in pods) // replicas if replicas else 0
            least += of_each * (replicas if stated is None else min(stated, replicas))
        ungrouped = inner.raw("gangPolicy") is None
        yield OwnerRoles(tuple(roles), name=name) if ungrouped else in_pod_group(roles, VOLCANO_GROUP, name, least)


def _serving_role(section: Section, group: str) -> list[Role]:
    """The entry pods of a role, and their workers."""
    name, replicas = section.text("name"), section.count("replicas")
    labels = {"modelserving.volcano.sh/group-name": group, "modelserving.volcano.sh/role": name}
    entry = Role(section.raw("entryTemplate"), section.at("entryTemplate"), replicas, name=name, labels=labels)
    if section.raw("workerTemplate") is None:
        return [entry]
    workers = replicas * (section.number("workerReplicas") or 0)
    return [entry, Role(section.raw("workerTemplate"), section.at("workerTemplate"), workers, name=name, labels=labels)]


def model_booster(owner: OwnerObject) -> OwnerRoles:
    """The workers of a ModelBooster's backend with its replicas, or the fewest of them."""
    backends = owner.spec.sections("backends") or [owner.spec.section("backend")]
    roles = []
    for backend in backends:
        groups = backend.count("minReplicas" if backend.raw("replicas") is None else "replicas")
        for worker in backend.sections("workers"):
            count = groups * (worker.number("replicas") or 0) * (worker.number("pods") or 0)
            template = of_container(worker.raw("resources"), {**worker.fields, **backend.fields})
            roles.append(Role(template, worker.path, count, name=worker.text("type") or "server"))
    return OwnerRoles(tuple(roles))


MOST_REPLICAS: Final = 2_000


def _replicas(spec: Section) -> int:
    replicas = spec.count("replicas")
    if replicas > MOST_REPLICAS:
        raise RecordError(spec.at("replicas"), f"of more than {MOST_REPLICAS} replicas none is read")
    return replicas
