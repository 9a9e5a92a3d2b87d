"""An owner of a kind that is not known: pod templates and numbers of pods at the usual places.

A pod template is an object whose `spec` has a list `containers`; a pod specification has that list itself. Where an
object has neither, an object with `resources` that name GPUs stands for a pod with one container. The numbers of
replicas on the way from `spec` to it are multiplied. All of that is assumed, and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from extender.objects.gangs import templates
from extender.objects.gangs.roles import OwnerObject, OwnerRoles, Role, Section
from extender.objects.schema import RecordError

NUMBERS: Final = ("replicas", "parallelism", "numNodes", "numWorkers", "minReplicas", "count", "size")
"""Fields that state a number of pods; of an object the first counts."""
NO_OWNERS: Final = ("Runtime", "Config", "Template", "Policy", "Definition", "Class", "Profile", "List")
"""Ends of kinds whose objects are read by others and create no pods themselves."""
DEEPEST: Final = 8


def any_owner(owner: OwnerObject, gpus: frozenset[str]) -> OwnerRoles:
    """Its roles; none where it has no template."""
    if owner.kind.endswith(NO_OWNERS):
        return OwnerRoles()
    walk = _Walk(gpus)
    roles = tuple(walk.templates(owner.spec, _number(owner.spec), 0))
    if not roles:
        roles = tuple(walk.resources(owner.spec, _number(owner.spec), 0))
    if not roles:
        return OwnerRoles()
    places = ", ".join(f"{role.count} of {role.path}" for role in roles)
    text = f"how {owner.kind} creates pods is not known: {places} are assumed, which start independently of each other"
    return OwnerRoles(roles, assumed=(text,))


class _Walk:
    def __init__(self, gpus: frozenset[str]) -> None:
        self._gpus = gpus

    def templates(self, section: Section, pods: int, depth: int) -> Iterator[Role]:
        """Roles by the templates in a section, of which there are so many."""
        for key, inner in _objects(section):
            if _has_containers(inner.raw("spec")):
                yield Role(inner.fields, inner.path, pods * _of_key(section, key), name=key)
            elif _has_containers(inner.fields):
                yield Role(templates.of_spec(inner.fields), inner.path, pods * _of_key(section, key), name=key)
            elif depth < DEEPEST:
                yield from self.templates(inner, pods * _number(inner), depth + 1)

    def resources(self, section: Section, pods: int, depth: int) -> Iterator[Role]:
        """The same by the resources of containers."""
        if self._asks(section.raw("resources")):
            yield Role(templates.of_container(section.raw("resources"), section.fields), section.path, pods)
            return
        for _, inner in _objects(section):
            if depth < DEEPEST:
                yield from self.resources(inner, pods * _number(inner), depth + 1)

    def _asks(self, resources: Any) -> bool:
        parts = [resources.get(part) for part in ("limits", "requests")] if isinstance(resources, Mapping) else []
        return any(isinstance(part, Mapping) and not self._gpus.isdisjoint(part) for part in parts)


def _objects(section: Section) -> Iterator[tuple[str, Section]]:
    """(the field, the object) of all objects in it, those of lists included."""
    for key, value in section.fields.items():
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
