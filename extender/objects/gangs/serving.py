"""Owners of serving pods: KServe, OME, NIM and Dynamo. Their replicas are independent, but where their controllers make
a LeaderWorkerSet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from extender.objects.gangs.leaderworkerset import GROUP, NAME, SIZE, WORKER
from extender.objects.gangs.roles import (
    CONTAINER,
    OwnerObject,
    OwnerRoles,
    Role,
    Section,
    number,
    of_container,
    of_spec,
    owner_object,
    patched,
    pod_fields,
)

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
        base = patched(base, {"containers": [{"name": _MODEL_CONTAINER, "resources": resources}]})
    head = patched(base, spec)
    least = section.number("minReplicas")
    replicas = 1 if least is None else least
    stated = [section.section("workerSpec")] + ([] if runtime is None else [runtime.section("workerSpec")])
    if section.raw("workerSpec") is None:
        yield Role(of_spec(head), section.path, replicas, name=part, labels={"component": part})
        return
    size = next((n for worker in stated if (n := worker.number("pipelineParallelSize"))), DEFAULT_SIZE)
    parallel = next((n for worker in stated if (n := worker.number("tensorParallelSize"))), None)
    gpus, instead = parallel or 1, parallel is not None
    worker = {key: value for section in reversed(stated) for key, value in section.fields.items()}
    pods = _with_gpus(head, gpus, instead=instead)
    # Without containers of its own, a worker is read as the head.
    beside = {key: value for key, value in head.items() if key != "containers"} if worker.get("containers") else head
    workers = _with_gpus(patched(beside, worker), gpus, instead=instead)
    yield Role(of_spec(pods), section.path, 1, name=part, labels={"component": part})
    yield Role(of_spec(workers), stated[0].path, size - 1, name=f"{part}-worker", labels={"component": part})


_MODEL_CONTAINER: Final = "kserve-container"
_MODEL_CONTAINERS: Final = (_MODEL_CONTAINER, "worker-container")
_OF_RUNTIME: Final = frozenset(
    {"supportedModelFormats", "protocolVersions", "multiModel", "workerSpec", "annotations", "labels"}
)
_OF_COMPONENT: Final = frozenset({"workerSpec", "minReplicas", "maxReplicas", "annotations", "labels"})


_GPU_TYPES: Final = (GPU, "amd.com/gpu", "intel.com/gpu", "habana.ai/gaudi")
_GPU_VENDORS: Final = frozenset(name.partition("/")[0] for name in _GPU_TYPES)


def _with_gpus(spec: Any, gpus: int | None, *, instead: bool = False) -> Any:
    """The specification; the container of the model, else the first one, gets GPUs where it asks for none and their
    number is stated. `instead`: also where it asks for another number of one of _GPU_TYPES."""
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    if not gpus or not isinstance(containers, list) or not all(isinstance(entry, Mapping) for entry in containers):
        return spec
    of_model = (at for at, container in enumerate(containers) if container.get("name") in _MODEL_CONTAINERS)
    if not containers or not isinstance(
        resources := containers[at := next(of_model, 0)].get("resources") or {}, Mapping
    ):
        return spec
    amounts = {key: resources.get(key) or {} for key in ("limits", "requests")}
    if not all(isinstance(of, Mapping) for of in amounts.values()):
        return spec
    asked = [name for name in _GPU_TYPES if amounts["limits"].get(name) or amounts["requests"].get(name)]
    parts = any(str(name).partition("/")[0] in _GPU_VENDORS for name in amounts["limits"].keys() - _GPU_TYPES)
    if resources.get("claims") or parts or (asked and not instead):
        return spec
    name = asked[0] if asked else GPU
    stated = {**resources, **{key: {**of, name: gpus} for key, of in amounts.items()}}
    return {**spec, "containers": [*containers[:at], {**containers[at], "resources": stated}, *containers[at + 1 :]]}


def _runtime(owner: OwnerObject, model: Section) -> Section | None:
    """The specification of the runtime that the model names, else of the only one in the question for its format."""
    name = model.text("runtime")
    if name:
        named = [owner.beside("serving.kserve.io", kind, name) for kind in RUNTIME_KINDS]
        return next((runtime.spec for runtime in named if runtime is not None), None)
    wanted = model.section("modelFormat").text("name")
    runtimes = [owner_object(owner.others[key]) for key in owner.others if key[1] in RUNTIME_KINDS]
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
            merged = patched(merged, dict(base.spec.fields))
    whole = Section(patched(merged, spec), owner.spec.path)
    workloads = [("", whole)] + ([("prefill", whole.section("prefill"))] if whole.raw("prefill") is not None else [])
    roles: list[Role] = []
    for part, workload in workloads:
        name = "-".join(text for text in (owner.name, "kserve", part) if text)
        if workload.raw("template") is None and workload.raw("worker") is None:
            text = f"states no template of its {part or 'main'} workload: it is not read"
            assumed.append(f"{owner.kind} {owner.name} {text}")
            continue
        roles += _workload(name, workload)
    if not (device_class := owner.annotations.get(f"{MANAGED_CLAIM}device-class")):
        return OwnerRoles(tuple(roles), assumed=tuple(assumed))
    claim = f"{owner.name}-gpu"
    container = owner.annotations.get(f"{MANAGED_CLAIM}container-name", "main")
    managed = tuple(replace(role, template=_with_claim(role.template, claim, container)) for role in roles)
    devices = number(owner.annotations.get(f"{MANAGED_CLAIM}device-count", ""))
    expressions = owner.annotations.get(f"{MANAGED_CLAIM}cel-selector", "").splitlines()
    request = claim_request(
        "gpu", device_class, 1 if devices is None else devices, [text for text in expressions if text.strip()]
    )
    return OwnerRoles(managed, assumed=tuple(assumed), beside=(claim_template(owner, claim, [request]),))


MANAGED_CLAIM: Final = "serving.kserve.io/exp-dra-"
"""With annotations that begin so, KServe's controller creates the claims of the pods."""


def _with_claim(template: Any, claim: str, container: str) -> Any:
    """The template with a claim of this template of claims for the container of that name."""
    reference = {"name": claim, "resourceClaimTemplateName": claim}
    named = {"name": container, "resources": {"claims": [{"name": claim}]}}
    return patched(template, {"spec": {"resourceClaims": [reference], "containers": [named]}})


def _workload(name: str, workload: Section) -> tuple[Role, ...]:
    meta = workload.raw("labels"), workload.raw("annotations")
    replicas = workload.count("replicas")
    head = of_spec(workload.raw("template") or workload.raw("worker"), *meta), workload.at("template")
    if workload.raw("worker") is None:
        return (Role(*head, replicas, name=name),)
    worker = of_spec(workload.raw("worker"), *meta), workload.at("worker")
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
    return OwnerRoles(
        tuple(role for stated in read for role in stated.roles),
        assumed=tuple(text for stated in read for text in stated.assumed),
        beside=tuple(created for stated in read for created in stated.beside),
    )


def _nim(owner: OwnerObject, spec: Section, name: str) -> OwnerRoles:
    resources, nodes = spec.raw("resources"), spec.section("multiNode")
    claims: list[dict[str, Any]] = []
    beside: list[Mapping[str, Any]] = []
    for at, stated in enumerate(spec.sections("draResources")):
        claim = {"name": f"gpu-{at}", **{key: stated.text(key) for key in _CLAIM_KEYS if stated.text(key)}}
        if stated.raw("claimCreationSpec") is not None:
            claim[_CLAIM_KEYS[1]] = f"{name}-gpu-{at}"
            devices = stated.section("claimCreationSpec").sections("devices")
            requests = [
                claim_request(
                    device.text("name"), device.text("deviceClassName"), device.count("count"), _selectors(device)
                )
                for device in devices
            ]
            beside.append(claim_template(owner, claim[_CLAIM_KEYS[1]], requests))
        claims.append(claim)
    fields = {**spec.fields, "resourceClaims": claims} if claims else spec.fields
    if claims:
        resources = {**spec.section("resources").fields, "claims": [{"name": claim["name"]} for claim in claims]}
    template = of_container(resources, fields, labels=spec.raw("labels"), annotations=spec.raw("annotations"))
    parallel = nodes.section("parallelism")
    gpus = parallel.number("tensor") or nodes.number("gpusPerPod")
    template["spec"] = _with_gpus(template["spec"], gpus)
    text = f"{owner.kind} {name} states no resources: its operator sets the GPUs by the profile"
    assumed = () if resources or gpus else (text,)
    replicas = spec.count("replicas")
    scale = spec.section("scale")
    if scale.flag("enabled"):
        replicas = scale.section("hpa").count("minReplicas")
    if spec.raw("multiNode") is None:
        return OwnerRoles((Role(template, spec.path, replicas, name=name),), assumed=assumed, beside=tuple(beside))
    size = nodes.number("size") or parallel.number("pipeline") or 1
    pair = template, spec.path
    roles = groups_of(f"{name}-lws", replicas, pair, pair, size)
    return OwnerRoles(roles, assumed=assumed, beside=tuple(beside))


_CLAIM_KEYS: Final = ("resourceClaimName", "resourceClaimTemplateName")
_OPERATORS: Final = {
    "Equal": "==", "NotEqual": "!=", "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<",
    "LessThanOrEqual": "<=",
}  # fmt: skip


def claim_template(owner: OwnerObject, name: str, requests: list[dict[str, Any]]) -> Mapping[str, Any]:
    """A ResourceClaimTemplate that a controller creates beside the pods of the owner."""
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": owner.namespace},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }  # fmt: skip


def claim_request(name: str, device_class: str, count: int, expressions: Iterable[str]) -> dict[str, Any]:
    """A request of it for so many devices."""
    selectors = [{"cel": {"expression": text}} for text in expressions]
    return {"name": name, "exactly": {"deviceClassName": device_class, "count": count, "selectors": selectors}}


def _selectors(device: Section) -> Iterator[str]:
    yield from device.texts("celExpressions")
    for field, of in (("attributeSelectors", "attributes"), ("capacitySelectors", "capacity")):
        for selector in device.sections(field):
            path = f'device.{of}["{device.text("driverName")}"].{selector.text("key")}'
            yield f"{path}{_compared(selector, _OPERATORS.get(selector.text('op'), '=='))}"


def _compared(selector: Section, operator: str) -> str:
    """The operator with the value; quantities and versions are compared by a function."""
    value = selector.raw("value")
    if not isinstance(value, Mapping):
        return f'.compareTo(quantity("{value}")) {operator} 0'
    stated = selector.section("value")
    if version := stated.text("versionValue"):
        return f'.compareTo(semver("{version}")) {operator} 0'
    if text := stated.text("stringValue"):
        return f" {operator} {msgspec.json.encode(text).decode()}"
    other = stated.raw("boolValue") if stated.raw("boolValue") is not None else stated.raw("intValue")
    return f" {operator} {msgspec.json.encode(other).decode()}"


def dynamo_graph(owner: OwnerObject) -> OwnerRoles:
    """The services (v1beta1: components) of a DynamoGraphDeployment; `multinode` makes a group of each replica."""
    services = list(owner.spec.named("services").items())
    services += [(part.text("name"), part) for part in owner.spec.sections("components")]
    roles = [role for name, service in services for role in _dynamo_service(f"{owner.name}-{name}", name, service)]
    text = f"{owner.kind} {owner.name} is read as its Deployments and LeaderWorkerSets; with Grove it is a PodCliqueSet"
    return OwnerRoles(tuple(roles), assumed=(text,))


def dynamo_component(owner: OwnerObject) -> OwnerRoles:
    """One service of a graph, which a DynamoComponentDeployment states."""
    return OwnerRoles(_dynamo_service(owner.name, owner.spec.text("serviceName"), owner.spec))


def _dynamo_service(group: str, name: str, service: Section) -> tuple[Role, ...]:
    """Its replicas. `group`: the name of its LeaderWorkerSet."""
    pod = service.raw("podTemplate")
    if pod is None:
        stated = service.section("extraPodSpec")
        spec = {key: value for key, value in stated.fields.items() if key != "mainContainer"}
        main = stated.section("mainContainer").fields
        beside = [container.fields for container in stated.sections("containers")]
        resources = _dynamo_resources(service.section("resources"))
        container = {**main, "name": CONTAINER, **({"resources": resources} if resources else {})}
        pod = of_spec({**spec, "containers": [container, *beside]})
    if device := service.section("device"):
        limits = {"name": CONTAINER, "resources": {"limits": device.section("resources").fields}}
        pod = patched(pod, {"spec": {**pod_fields(device.fields), "containers": [limits]}})
    nodes = service.section("multinode").number("nodeCount") or 1
    path, replicas = service.path, service.count("replicas")
    if nodes == 1:
        return (Role(pod, path, replicas, name=name),)
    return groups_of(group.lower(), replicas, (pod, path), (pod, path), nodes)


def _dynamo_resources(stated: Section) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    for part in ("requests", "limits"):
        amounts = named_gpus(stated.section(part).fields)
        custom = amounts.pop("custom", None)
        resources[part] = {**amounts, **(custom if isinstance(custom, Mapping) else {})}
    return {part: amounts for part, amounts in resources.items() if amounts}


def named_gpus(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Amounts of resources; `gpu` is the GPU of its `gpuType`, NVIDIA's where it has none."""
    amounts = dict(stated)
    gpus, kind = amounts.pop("gpu", None), amounts.pop("gpuType", None) or GPU
    return {**amounts, **({str(kind): gpus} if gpus else {})}


# -- OME


def ome_service(owner: OwnerObject) -> OwnerRoles:
    """Engine, decoder and router of an InferenceService of OME. What they do not state comes from the runtime, where
    that is in the question; with a leader or workers each replica is a LeaderWorkerSet's group."""
    name = owner.spec.section("runtime").text("name")
    kinds = (owner.spec.section("runtime").text("kind"), *RUNTIME_KINDS)
    runtimes = [owner.beside("ome.io", kind, name) for kind in kinds] if name else []
    runtime = next((other.spec for other in runtimes if other is not None), Section({}, "spec"))
    roles: list[Role] = []
    for part in ("engine", "decoder", "router", "predictor"):
        base = runtime.section(f"{part}Config")
        stated = Section(patched(base.fields, owner.spec.section(part).fields), owner.spec.at(part))
        if stated or owner.spec.raw(part) is not None:
            roles += _ome_part(f"{owner.name}-{part}", part, stated)
    text = f"the runtime of {owner.kind} {owner.name} is not in the question, and a part of it states no resources"
    unknown = not runtime and not all(_has_resources(role.template) for role in roles)
    return OwnerRoles(tuple(roles), assumed=(text,) if unknown or not roles else ())


def _ome_part(name: str, part: str, stated: Section) -> tuple[Role, ...]:
    replicas = stated.count("minReplicas")
    leader, worker = stated.section("leader"), stated.section("worker")
    if not leader and not worker:
        return (Role(_ome_pod(stated), stated.path, replicas, name=part),)
    size = 1 + worker.count("size")
    return groups_of(name, replicas, (_ome_pod(leader), leader.path), (_ome_pod(worker), worker.path), size)


def _ome_pod(stated: Section) -> dict[str, Any]:
    """The pod specification beside the runner, whose container comes first."""
    runner = {"name": "ome-container", **stated.section("runner").fields}
    spec = {key: value for key, value in stated.fields.items() if key not in _OF_OME}
    return of_spec(patched({"containers": [runner]}, spec), stated.raw("labels"))


_OF_OME: Final = frozenset({"runner", "leader", "worker", "size", "minReplicas", "maxReplicas", "model", "labels"})


def _has_resources(template: Any) -> bool:
    containers = template["spec"].get("containers")
    return isinstance(containers, list) and any(isinstance(pod, Mapping) and pod.get("resources") for pod in containers)
