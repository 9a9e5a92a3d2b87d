"""Owners of serving pods: KServe, NIM, Dynamo, RoleBasedGroup, AIBrix and Kthena. Their replicas are independent, but
where their controllers make a LeaderWorkerSet or a PodGroup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from extender.objects.gangs import templates
from extender.objects.gangs.leaderworkerset import GROUP, NAME, SIZE, WORKER
from extender.objects.gangs.pod_groups import COSCHEDULING, COSCHEDULING_GROUP, VOLCANO, VOLCANO_GROUP
from extender.objects.gangs.roles import OwnerObject, OwnerRoles, Role, Section, owner_object
from extender.objects.schema import RecordError

GPU: Final = "nvidia.com/gpu"
DEFAULT_SIZE: Final = 2
"""Pods of a predictor with workers whose number nothing states: a head and a worker."""


def groups_of(name: str, replicas: int, head: tuple[Any, str], worker: tuple[Any, str], size: int) -> tuple[Role, ...]:
    """The pods of a LeaderWorkerSet `name` with so many groups of `size` pods; `head`, `worker`: (template, path)."""
    shared: dict[str, Any] = {
        "groups": replicas, "group_label": GROUP, "index_label": WORKER, "creator": name, "name": name,
        "labels": {NAME: name}, "notes": {SIZE: str(size)},
    }  # fmt: skip
    return Role(*head, 1, **shared), Role(*worker, max(0, size - 1), first=1, **shared)


# -- KServe


RUNTIME_KINDS: Final = ("ServingRuntime", "ClusterServingRuntime")


def inference_service(owner: OwnerObject) -> OwnerRoles:
    """Predictor, transformer and explainer of an InferenceService with their least replicas. What the predictor does
    not state comes from its runtime, where that is in the question."""
    roles: list[Role] = []
    assumed: list[str] = []
    for part in ("predictor", "transformer", "explainer"):
        section = owner.spec.section(part)
        if section:
            roles += _component(owner, part, section, assumed)
    return OwnerRoles(tuple(roles), assumed=tuple(assumed))


def _component(owner: OwnerObject, part: str, section: Section, assumed: list[str]) -> Iterator[Role]:
    """The pods of a part. With `workerSpec` they are those of two Deployments, a head and its workers."""
    fields = section.fields
    framework = next((key for key in ("model", *fields) if section.is_object(key, "resources")), "model")
    model = section.section(framework) if section.is_object(framework) else Section({}, section.at("model"))
    runtime = _runtime(owner, model) if section.is_object(framework) else None
    base = {} if runtime is None else {key: value for key, value in runtime.fields.items() if key not in _OF_RUNTIME}
    spec = {key: value for key, value in fields.items() if key not in {framework, *_OF_COMPONENT}}
    resources = model.raw("resources")
    if runtime is None and section.is_object(framework):
        base = {"containers": [{"name": _MODEL_CONTAINER}]}
        if not resources:
            text = f"{owner.kind} {owner.name} states no resources, and its runtime is not in the question"
            assumed.append(f"{text}: it is read as asking for none")
    if resources:
        base = templates.patched(base, {"containers": [{"name": _MODEL_CONTAINER, "resources": resources}]})
    head = templates.patched(base, spec)
    least = section.number("minReplicas")
    replicas = 1 if least is None else least
    stated = [section.section("workerSpec")] + ([] if runtime is None else [runtime.section("workerSpec")])
    if section.raw("workerSpec") is None:
        yield Role(templates.of_spec(head), section.path, replicas, name=part, labels={"component": part})
        return
    size = next((n for worker in stated if (n := worker.number("pipelineParallelSize"))), DEFAULT_SIZE)
    gpus = next((n for worker in stated if (n := worker.number("tensorParallelSize"))), 1)
    worker = {key: value for section in reversed(stated) for key, value in section.fields.items()}
    pods = _with_gpus(head, gpus)
    workers = _with_gpus(templates.patched(head, worker), gpus)
    yield Role(templates.of_spec(pods), section.path, 1, name=part, labels={"component": part})
    yield Role(templates.of_spec(workers), stated[0].path, size - 1, name=f"{part}-worker", labels={"component": part})


_MODEL_CONTAINER: Final = "kserve-container"
_OF_RUNTIME: Final = frozenset(
    {"supportedModelFormats", "protocolVersions", "multiModel", "workerSpec", "annotations", "labels"}
)
_OF_COMPONENT: Final = frozenset({"workerSpec", "minReplicas", "maxReplicas", "annotations", "labels"})


def _with_gpus(spec: Any, gpus: int | None) -> Any:
    """The specification; its first container gets GPUs where it names no devices and their number is stated."""
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    if not gpus or not isinstance(containers, list) or not containers or not isinstance(containers[0], Mapping):
        return spec
    first = containers[0]
    resources = first.get("resources") or {}
    limits = resources.get("limits") or {} if isinstance(resources, Mapping) else None
    if not isinstance(limits, Mapping) or any("/" in str(name) for name in limits):
        return spec
    stated = {**resources, "limits": {**limits, GPU: gpus}}
    return {**spec, "containers": [{**first, "resources": stated}, *containers[1:]]}


def _runtime(owner: OwnerObject, model: Section) -> Section | None:
    """The specification of the runtime that the model names, else of the only one in the question for its format."""
    name = model.text("runtime")
    if name:
        found = [owner.beside("serving.kserve.io", kind, name) for kind in RUNTIME_KINDS]
        return next((runtime.spec for runtime in found if runtime is not None), None)
    wanted = model.section("modelFormat").text("name")
    runtimes = [owner_object(item) for key, item in owner.others.items() if key[1] in RUNTIME_KINDS]
    fitting = [runtime.spec for runtime in runtimes if wanted in _formats(runtime.spec)]
    return fitting[0] if len(fitting) == 1 else None


def _formats(runtime: Section) -> list[str]:
    return [entry.text("name") for entry in runtime.sections("supportedModelFormats")]


def llm_inference_service(owner: OwnerObject) -> OwnerRoles:
    """Decode (the main workload) and prefill of an LLMInferenceService, on the configurations that it names where they
    are in the question."""
    spec: Any = dict(owner.spec.fields)
    assumed: list[str] = []
    merged: Any = {}
    for reference in owner.spec.sections("baseRefs"):
        name = reference.text("name")
        base = owner.beside("serving.kserve.io", "LLMInferenceServiceConfig", name)
        if base is None:
            assumed.append(f"LLMInferenceServiceConfig {name} of {owner.name} is not in the question")
        else:
            merged = templates.patched(merged, dict(base.spec.fields))
    whole = Section(templates.patched(merged, spec), owner.spec.path)
    workloads = [("", whole)] + ([("prefill", whole.section("prefill"))] if whole.raw("prefill") is not None else [])
    roles: list[Role] = []
    for part, workload in workloads:
        name = "-".join(text for text in (owner.name, "kserve", part) if text)
        if workload.raw("template") is None and workload.raw("worker") is None:
            text = f"states no template of its {part or 'main'} workload: it is not read"
            assumed.append(f"{owner.kind} {owner.name} {text}")
            continue
        roles += _workload(name, workload)
    return OwnerRoles(tuple(roles), assumed=tuple(assumed))


def _workload(name: str, workload: Section) -> tuple[Role, ...]:
    meta = workload.raw("labels"), workload.raw("annotations")
    replicas = workload.count("replicas")
    head = templates.of_spec(workload.raw("template") or workload.raw("worker"), *meta), workload.at("template")
    if workload.raw("worker") is None:
        return (Role(*head, replicas, name=name),)
    worker = templates.of_spec(workload.raw("worker"), *meta), workload.at("worker")
    stated = workload.section("parallelism")
    data, local = stated.number("data") or 0, stated.number("dataLocal") or 0
    size = stated.number("pipeline") or 1
    if data > 0 or local > 0:
        size = max(1, max(1, data) // max(1, local))
    return groups_of(name, replicas, head, worker, size)


# -- NVIDIA NIM and Dynamo


def nim_service(owner: OwnerObject) -> OwnerRoles:
    """The replicas of a NIMService; with `multiNode` each is a LeaderWorkerSet's group."""
    return _nim(owner, owner.spec, owner.name)


def nim_pipeline(owner: OwnerObject) -> OwnerRoles:
    """The enabled services of a NIMPipeline."""
    services = [service for service in owner.spec.sections("services") if service.raw("enabled") is not False]
    read = [_nim(owner, service.section("spec"), service.text("name")) for service in services]
    roles = tuple(role for stated in read for role in stated.roles)
    return OwnerRoles(roles, assumed=tuple(text for stated in read for text in stated.assumed))


def _nim(owner: OwnerObject, spec: Section, name: str) -> OwnerRoles:
    resources, nodes = spec.raw("resources"), spec.section("multiNode")
    claims = [
        {"name": f"gpu-{number}", **{key: claim.text(key) for key in _CLAIM_KEYS if claim.text(key)}}
        for number, claim in enumerate(spec.sections("draResources"))
    ]
    fields = {**spec.fields, "resourceClaims": claims} if claims else spec.fields
    if claims:
        resources = {**spec.section("resources").fields, "claims": [{"name": claim["name"]} for claim in claims]}
    template = templates.of_container(resources, fields, labels=spec.raw("labels"), annotations=spec.raw("annotations"))
    parallel = nodes.section("parallelism")
    gpus = parallel.number("tensor") or nodes.number("gpusPerPod")
    template["spec"] = _with_gpus(template["spec"], gpus)
    made = sum(claim.raw("claimCreationSpec") is not None for claim in spec.sections("draResources"))
    text = f"{owner.kind} {name} states no resources: its operator sets the GPUs by the profile"
    if made:
        text = f"the claims that its operator creates for {owner.kind} {name} are not read"
    assumed = () if not made and (resources or gpus) else (text,)
    replicas = spec.count("replicas")
    scale = spec.section("scale")
    if scale.flag("enabled"):
        replicas = scale.section("hpa").count("minReplicas")
    if spec.raw("multiNode") is None:
        return OwnerRoles((Role(template, spec.path, replicas, name=name),), assumed=assumed)
    size = nodes.number("size") or parallel.number("pipeline") or 1
    pair = template, spec.path
    return OwnerRoles(groups_of(f"{name}-lws", replicas, pair, pair, size), assumed=assumed)


_CLAIM_KEYS: Final = ("resourceClaimName", "resourceClaimTemplateName")


def dynamo_graph(owner: OwnerObject) -> OwnerRoles:
    """The services (v1beta1: components) of a DynamoGraphDeployment; `multinode` makes a group of each replica."""
    services = list(owner.spec.named("services").items())
    services += [(part.text("name"), part) for part in owner.spec.sections("components")]
    roles: list[Role] = []
    for name, service in services:
        pod = service.raw("podTemplate")
        if pod is None:
            stated = service.section("extraPodSpec")
            spec = {key: value for key, value in stated.fields.items() if key != "mainContainer"}
            main = stated.section("mainContainer").fields
            beside = [container.fields for container in stated.sections("containers")]
            resources = _dynamo_resources(service.section("resources"))
            container = {**main, "name": templates.CONTAINER, **({"resources": resources} if resources else {})}
            pod = templates.of_spec({**spec, "containers": [container, *beside]})
        nodes = service.section("multinode").number("nodeCount") or 1
        path, replicas = service.path, service.count("replicas")
        if nodes == 1:
            roles.append(Role(pod, path, replicas, name=name))
        else:
            roles += groups_of(f"{owner.name}-{name}".lower(), replicas, (pod, path), (pod, path), nodes)
    text = f"{owner.kind} {owner.name} is read as its Deployments and LeaderWorkerSets; with Grove it is a PodCliqueSet"
    return OwnerRoles(tuple(roles), assumed=(text,))


def _dynamo_resources(stated: Section) -> dict[str, Any]:
    """`gpu` is the GPU of its `gpuType`, NVIDIA's where it has none."""
    resources: dict[str, Any] = {}
    for part in ("requests", "limits"):
        amounts = dict(stated.section(part).fields)
        gpus, kind = amounts.pop("gpu", None), amounts.pop("gpuType", None) or GPU
        custom = amounts.pop("custom", None)
        amounts |= custom if isinstance(custom, Mapping) else {}
        resources[part] = {**amounts, **({str(kind): gpus} if gpus else {})}
    return {part: amounts for part, amounts in resources.items() if amounts}


# -- RoleBasedGroup


RBG_PREFIX: Final = "rbg.workloads.x-k8s.io/"
RBG_GANG: Final = f"{RBG_PREFIX}group-gang-scheduling"


def role_based_group(owner: OwnerObject) -> OwnerRoles:
    """All roles of a RoleBasedGroup, of v1alpha1 and v1alpha2. It is one gang where gang scheduling is on."""
    shared = {entry.text("name"): entry.raw("template") for entry in owner.spec.sections("roleTemplates")}
    roles = tuple(role for section in owner.spec.sections("roles") for role in _rbg_role(owner, section, shared))
    policy = owner.spec.section("podGroupPolicy")
    if owner.annotations.get(RBG_GANG) != "true" and not policy:
        return OwnerRoles(roles)
    size = sum(role.pods for role in roles)
    if policy.raw("volcanoScheduling") is not None:
        grouped, kind = tuple(role.with_notes({VOLCANO[0]: owner.name}) for role in roles), VOLCANO_GROUP
    else:
        grouped, kind = tuple(role.with_labels({COSCHEDULING: owner.name}) for role in roles), COSCHEDULING_GROUP
    return OwnerRoles(grouped, minimum=size, size=size, stated_in=kind)


def _rbg_role(owner: OwnerObject, section: Section, shared: Mapping[str, Any]) -> Iterator[Role]:
    name, replicas = section.text("name"), section.count("replicas")
    labels = {f"{RBG_PREFIX}group-name": owner.name, f"{RBG_PREFIX}role-name": name}
    custom = section.section("customComponentsPattern").sections("components")
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
    head = templates.patched(template, group.raw("leaderTemplatePatch") or group.raw("patchLeaderTemplate") or {})
    worker = templates.patched(template, group.raw("workerTemplatePatch") or group.raw("patchWorkerTemplate") or {})
    path = place.at("template")
    for role in groups_of(f"{owner.name}-{name}", replicas, (head, path), (worker, path), group.number("size") or 1):
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
    return templates.patched(shared[name], patch) if patch else shared[name]


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
    strategy, size = spec.section("schedulingStrategy"), sum(role.count for role in roles)
    least = strategy.section("coschedulingSchedulingStrategy").number("minMember")
    if least is not None:
        labelled = tuple(role.with_labels({COSCHEDULING: name}) for role in roles)
        return OwnerRoles(labelled, minimum=least, size=size, stated_in=COSCHEDULING_GROUP, name=name)
    least = strategy.section("volcanoSchedulingStrategy").number("minMember")
    if least is not None:
        noted = tuple(role.with_notes({VOLCANO[0]: name}) for role in roles)
        return OwnerRoles(noted, minimum=least, size=size, stated_in=VOLCANO_GROUP, name=name)
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
        if inner.raw("gangPolicy") is None:
            yield OwnerRoles(tuple(roles), name=name)
            continue
        noted = tuple(role.with_notes({VOLCANO[0]: name}) for role in roles)
        size = sum(role.count for role in roles)
        yield OwnerRoles(noted, minimum=least, size=size, stated_in=VOLCANO_GROUP, name=name)


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
    """The workers of a ModelBooster's backend at its least number of replicas."""
    backends = owner.spec.sections("backends") or [owner.spec.section("backend")]
    roles = []
    for backend in backends:
        groups = backend.number("minReplicas") or 0
        for worker in backend.sections("workers"):
            count = groups * (worker.number("replicas") or 0) * (worker.number("pods") or 0)
            template = templates.of_container(worker.raw("resources"), {**worker.fields, **backend.fields})
            roles.append(Role(template, worker.path, count, name=worker.text("type") or "server"))
    return OwnerRoles(tuple(roles))


MOST_REPLICAS: Final = 2_000


def _replicas(spec: Section) -> int:
    replicas = spec.count("replicas")
    if replicas > MOST_REPLICAS:
        raise RecordError(spec.at("replicas"), f"of more than {MOST_REPLICAS} replicas none is read")
    return replicas
