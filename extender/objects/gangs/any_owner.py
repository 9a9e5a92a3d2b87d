"""An owner of a kind that is not known: pod templates and numbers of pods at the usual places.

A pod template is an object whose `spec` has a list `containers`; a pod specification has that list itself. An object
with `resources` that name GPUs, and no template in it, stands for a pod with one container. The numbers of replicas on
the way from `spec` to it are multiplied. All of that is assumed, and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from extender.objects.gangs import templates
from extender.objects.gangs.roles import MOST, OwnerObject, OwnerRoles, Role, Section
from extender.objects.schema import RecordError

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
        yield Role(templates.of_spec(section.fields), section.path, pods, name=key)
    elif depth <= DEEPEST:
        below = False
        for inner_key, inner in _objects(section):
            count = min(pods * _of_key(section, inner_key) * _number(inner), MOST + 1)
            for role in _at(inner_key, inner, count, gpus, depth + 1):
                below = True
                yield role
        resources = section.raw("resources")
        if not below and _asks(resources, gpus):
            yield Role(templates.of_container(resources, section.fields), section.path, pods)


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
