"""Pods of workflows: Argo, Tekton and Volcano's JobFlow. All pods of a run are read, and placed at once, although some
begin only once others have completed; that is stated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from extender.objects.gangs.roles import (
    MOST,
    OwnerObject,
    OwnerRoles,
    Role,
    Section,
    of_spec,
    patched,
    pod_fields,
)
from extender.objects.schema import RecordError

ARGO: Final = "argoproj.io"
TEKTON: Final = "tekton.dev"
DEEPEST: Final = 50
"""Templates within templates."""
POD_KINDS: Final = ("container", "script", "containerSet")
PARAMETER: Final = "{{"


def workflow(owner: OwnerObject) -> OwnerRoles:
    """The pods of one run of an Argo Workflow."""
    return _Argo(owner, owner.spec).read()


def cron_workflow(owner: OwnerObject) -> OwnerRoles:
    """The pods of one run of a CronWorkflow."""
    return _Argo(owner, owner.spec.section("workflowSpec")).read()


class _Argo:
    """A Workflow with the templates that it calls."""

    def __init__(self, owner: OwnerObject, spec: Section) -> None:
        self.owner, self.assumed = owner, dict[str, None]()
        self.spec = self._referred(spec, "workflowTemplateRef")
        defaults = self.spec.section("templateDefaults").fields
        self.base = patched(pod_fields(self.spec.fields), defaults)  # of each template
        self.leaves: dict[tuple[str, str], Section] = {}
        self.counted: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
        self.named: dict[str, dict[str, Section]] = {}  # the templates of a specification by its path

    def read(self) -> OwnerRoles:
        counts = self._pods(self.spec, self.spec.text("entrypoint"), 0)
        if (handler := self.spec.text("onExit")) and counts:
            counts = counts + self._pods(self.spec, handler, 0)
        roles = tuple(self._role(self.leaves[key], count) for key, count in counts.items())
        if sum(role.count for role in roles) > 1:
            text = "are placed at once, although some may begin once others have completed"
            self.assumed[f"all pods of {self.owner.kind} {self.owner.name} {text}"] = None
        return OwnerRoles(roles, assumed=tuple(self.assumed))

    def _referred(self, section: Section, field: str) -> Section:
        """The section over the specification of the WorkflowTemplate that it names."""
        reference = section.section(field)
        if not reference:
            return section
        kind = "ClusterWorkflowTemplate" if reference.flag("clusterScope") else "WorkflowTemplate"
        other = self.owner.beside(ARGO, kind, reference.text("name"))
        if other is None:
            self.assumed[f"{kind} {reference.text('name')} is not in the question: its pods are not read"] = None
            return section
        return Section(patched(other.spec.fields, section.fields), section.path)

    def _pods(self, spec: Section, name: str, depth: int) -> Counter[tuple[str, str]]:
        """How often each template that is a pod is called by the template, which a recursion calls once."""
        key = spec.path, name
        if key in self.counted:
            return self.counted[key]
        if spec.path not in self.named:
            self.named[spec.path] = {template.text("name"): template for template in spec.sections("templates")}
        template = self.named[spec.path].get(name)
        if depth > DEEPEST:
            self.assumed[f"templates of {self.owner.kind} {self.owner.name} are nested too deep to be read"] = None
        if template is None or depth > DEEPEST:
            return Counter()
        self.counted[key] = Counter()  # of a template that calls itself
        counts = Counter[tuple[str, str]]()
        if any(template.raw(kind) is not None for kind in POD_KINDS):
            self.leaves[key] = template
            counts[key] = 1
        for step in self._steps(template):
            called = self._called(spec, step, depth)
            times = self._times(step)
            for leaf, count in called.items():
                counts[leaf] = min(counts[leaf] + count * times, MOST + 1)
        self.counted[key] = counts
        return counts

    def _steps(self, template: Section) -> Iterator[Section]:
        yield from template.section("dag").sections("tasks")
        groups = template.raw("steps")
        for number, group in enumerate(groups if isinstance(groups, list) else ()):
            path = f"{template.at('steps')}[{number}]"
            steps = group.get("steps") if isinstance(group, Mapping) else group
            yield from Section({"steps": steps}, path).sections("steps")

    def _called(self, spec: Section, step: Section, depth: int) -> Counter[tuple[str, str]]:
        reference = step.section("templateRef")
        if reference:
            kind = "ClusterWorkflowTemplate" if reference.flag("clusterScope") else "WorkflowTemplate"
            other = self.owner.beside(ARGO, kind, reference.text("name"))
            if other is not None:
                spec = Section(other.spec.fields, f"{kind}/{reference.text('name')}")
                return self._pods(spec, reference.text("template"), depth + 1)
            self.assumed[f"{kind} {reference.text('name')} is not in the question: its pods are not read"] = None
            return Counter()
        if step.raw("inline") is not None:
            inline = {"templates": [{**step.section("inline").fields, "name": step.path}]}
            return self._pods(Section(inline, step.at("inline")), step.path, depth + 1)
        return self._pods(spec, step.text("template"), depth + 1)

    def _times(self, step: Section) -> int:
        """How often a step runs side by side: once for each of its items."""
        items, sequence = step.raw("withItems"), step.section("withSequence")
        if isinstance(items, list):
            return len(items)
        if sequence:
            count, start, end = (_whole(sequence.raw(key)) for key in ("count", "start", "end"))
            if count is None and end is not None:
                count = abs(end - (start or 0)) + 1
            if count is not None:
                return min(count, MOST + 1)
        if sequence or step.raw("withParam") is not None:
            text = (
                f"how often step {step.text('name')} of {self.owner.kind} {self.owner.name} runs is known at run time"
            )
            self.assumed[f"{text}: once is assumed"] = None
        return 1

    def _role(self, template: Section, count: int) -> Role:
        fields = Section(patched(self.base, template.fields), template.path)
        stated = [fields.section(kind) for kind in ("container", "script")]
        stated = [container for container in stated if container] + fields.section("containerSet").sections(
            "containers"
        )
        containers = [{"name": f"main-{number}", **container.fields} for number, container in enumerate(stated)]
        containers += [sidecar.fields for sidecar in fields.sections("sidecars")]
        spec = {**pod_fields(fields.fields), "containers": containers}
        spec["initContainers"] = fields.raw("initContainers")
        meta = template.section("metadata")
        pod = of_spec(spec, meta.raw("labels"), meta.raw("annotations"))
        return Role(self._resolved(pod, template), template.path, count, name=template.text("name"))

    def _resolved(self, pod: dict[str, Any], template: Section) -> Any:
        """The pod with the parameters that the Workflow and the template state as constants; a resource whose amount is
        known at run time is left out."""
        values = {}
        for scope, section in (("workflow", self.spec.section("arguments")), ("inputs", template.section("inputs"))):
            for parameter in section.sections("parameters"):
                value = parameter.raw("value") if parameter.raw("value") is not None else parameter.raw("default")
                if value is not None:
                    values[f"{scope}.parameters.{parameter.text('name')}"] = str(value)
        containers = pod["spec"]["containers"]
        pod["spec"]["containers"] = [_with_parameters(container, values) for container in containers]
        if PARAMETER in str([_resources_of(container) for container in pod["spec"]["containers"]]):
            text = f"resources of template {template.text('name')} of {self.owner.kind} {self.owner.name}"
            self.assumed[f"{text} are known at run time, and are not read"] = None
            pod["spec"]["containers"] = [{**container, "resources": {}} for container in pod["spec"]["containers"]]
        return pod


def _resources_of(container: Any) -> Any:
    return container.get("resources") if isinstance(container, Mapping) else None


def _with_parameters(container: Any, values: Mapping[str, str]) -> Any:
    """The container with the resources in which parameters are replaced by their values."""
    resources = _resources_of(container)
    if not isinstance(resources, Mapping):
        return container
    replaced = {
        part: {name: _replaced(amount, values) for name, amount in amounts.items()}
        for part, amounts in resources.items()
        if isinstance(amounts, Mapping)
    }
    return {**container, "resources": {**resources, **replaced}}


def _replaced(amount: Any, values: Mapping[str, str]) -> Any:
    if not isinstance(amount, str) or PARAMETER not in amount:
        return amount
    name = amount.strip().removeprefix(PARAMETER).removesuffix("}}").strip()
    return values.get(name, amount)


def _whole(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None


# -- Tekton


def task_run(owner: OwnerObject) -> OwnerRoles:
    """The pod of a TaskRun: all steps of its Task are containers of it."""
    assumed: list[str] = []
    task = _task(owner, owner.spec, assumed)
    roles = (
        ()
        if task is None
        else (_task_role(task, owner.spec.section("podTemplate"), owner.spec.raw("computeResources")),)
    )
    return OwnerRoles(roles, assumed=tuple(assumed))


def pipeline_run(owner: OwnerObject) -> OwnerRoles:
    """The pods of one run of a Pipeline: one for each task, and for each combination of its matrix."""
    assumed: list[str] = []
    pipeline = owner.spec.section("pipelineSpec")
    if not pipeline:
        name = owner.spec.section("pipelineRef").text("name")
        other = owner.beside(TEKTON, "Pipeline", name)
        if other is None:
            return OwnerRoles(assumed=(f"Pipeline {name} is not in the question: its pods are not read",))
        pipeline = other.spec
    pod = owner.spec.section("podTemplate") or owner.spec.section("taskRunTemplate").section("podTemplate")
    roles = []
    for section in [*pipeline.sections("tasks"), *pipeline.sections("finally")]:
        task = _task(owner, section, assumed)
        if task is not None:
            roles.append(_task_role(task, pod, None, section.text("name"), _combinations(section.section("matrix"))))
    if sum(role.count for role in roles) > 1:
        text = "are placed at once, although some may begin once others have completed"
        assumed.append(f"all pods of {owner.kind} {owner.name} {text}")
    return OwnerRoles(tuple(roles), assumed=tuple(assumed))


def _task(owner: OwnerObject, section: Section, assumed: list[str]) -> Section | None:
    """The specification of the task that is stated there or named."""
    if section.raw("taskSpec") is not None:
        return section.section("taskSpec")
    reference = section.section("taskRef")
    kind = reference.text("kind") or "Task"
    other = owner.beside(TEKTON, kind, reference.text("name"))
    if other is None:
        assumed.append(f"{kind} {reference.text('name')} is not in the question: its pods are not read")
    return None if other is None else other.spec


def _task_role(task: Section, pod: Section, resources: Any, name: str = "", count: int = 1) -> Role:
    base = task.section("stepTemplate").fields
    steps = [patched(base, step.fields) for step in task.sections("steps")]
    steps += [sidecar.fields for sidecar in task.sections("sidecars")]
    containers = [
        {
            **step,
            "name": str(step.get("name") or number),
            "resources": step.get("computeResources") or step.get("resources"),
        }
        for number, step in enumerate(steps)
    ]
    if resources and containers:
        containers = [{**container, "resources": {}} for container in containers]
        containers[0]["resources"] = resources
    spec = {**pod_fields(pod.fields), "containers": containers}
    return Role(of_spec(spec), task.path, count, name=name)


def _combinations(matrix: Section) -> int:
    """How many pods a matrix makes: one for each combination of its values, or for each entry of `include`."""
    count = 1
    for parameter in matrix.sections("params"):
        values = parameter.raw("value")
        count *= max(1, len(values)) if isinstance(values, list) else 1
    if not matrix.sections("params"):
        count = max(1, len(matrix.sections("include")))
    return min(count, MOST + 1)


# -- Volcano


def flow_jobs(owner: OwnerObject) -> Iterator[tuple[str, Section]]:
    """(name, specification) of the Jobs of a JobFlow."""
    for flow in owner.spec.sections("flows"):
        name = flow.text("name")
        other = owner.beside("flow.volcano.sh", "JobTemplate", name)
        if other is None:
            raise RecordError(flow.at("name"), f"JobTemplate {name!r} is not in the question")
        yield f"{owner.name}-{name}", other.spec
