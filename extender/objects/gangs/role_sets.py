"""Owners whose pods are those of several roles: RoleBasedGroup, AIBrix and Kthena."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from extender.objects.gangs.pod_groups import COSCHEDULING_GROUP, VOLCANO_GROUP, in_pod_group
from extender.objects.gangs.roles import OwnerObject, OwnerRoles, Role, Section, of_container, patched
from extender.objects.gangs.serving import groups_of
from extender.objects.schema import RecordError

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
