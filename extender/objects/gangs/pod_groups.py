"""Gangs that pods name themselves, without an owner: by our own label, Kueue's, and the PodGroups of the Coscheduling
plugin, Volcano and Kubernetes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from extender.objects.gangs.roles import (
    MOST_PARTS,
    OUR_MINIMUM,
    OUR_SIZE,
    SIZES,
    GangSource,
    Members,
    Objects,
    OwnerObject,
    OwnerRoles,
    Ref,
    Role,
    Section,
    agreed,
)
from extender.objects.queueing import GANG, tier_domain
from extender.objects.records import PodRecord

COSCHEDULING: Final = "scheduling.x-k8s.io/pod-group"
COSCHEDULING_GROUP: Final = ("scheduling.x-k8s.io", "PodGroup")
VOLCANO: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
VOLCANO_GROUP: Final = ("scheduling.volcano.sh", "PodGroup")


class _PodGroups(GangSource):
    """Reads a PodGroup with `minMember`."""

    creates = False

    def read(self, owner: OwnerObject) -> OwnerRoles:
        """`minMember`, else the policy, and the minimum of each task. Pods that have succeeded count towards the
        minimum, as Volcano counts them."""
        spec, succeeded = owner.spec, max(0, owner.status.number("succeeded") or 0)
        minima, least = spec.section("minTaskMember"), _group_minimum(spec)
        tasks = minima.fields
        counted = tasks if len(tasks) <= MOST_PARTS else ()  # reading very many takes long, and none would be kept
        parts = of_tasks(least, tuple((name, minima.number(name) or 0) for name in counted))
        return OwnerRoles(minimum=least, parts=parts, succeeded=succeeded, domain=volcano_domain(spec))


def of_tasks(least: int | None, minima: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """The minima of tasks that count: Volcano leaves them out where the minimum of all is below their sum."""
    return minima if least is not None and least >= sum(number for _, number in minima) else ()


def volcano_domain(spec: Section) -> tuple[str, bool] | None:
    """The domain of a PodGroup or Job of Volcano."""
    topology = spec.section("networkTopology")
    tier = topology.number("highestTierAllowed")
    return tier_domain(topology.text("mode") if topology else "", str(1 if tier is None else tier))


class Coscheduling(_PodGroups):
    """Pods with the label of the plugin."""

    name = "coscheduling"
    states = "podgroups.scheduling.x-k8s.io"
    kinds = (COSCHEDULING_GROUP,)
    marks = (COSCHEDULING,)


class Volcano(_PodGroups):
    """Pods with one of Volcano's annotations."""

    name = "volcano"
    states = "podgroups.scheduling.volcano.sh"
    kinds = (VOLCANO_GROUP,)
    marks = VOLCANO

    def named(self, pod: PodRecord) -> Ref | None:
        """By the annotation."""
        name = pod.annotations.get(VOLCANO[0]) or pod.annotations.get(VOLCANO[1])
        return Ref(self.name, pod.namespace, name) if name else None


def in_pod_group(roles: Iterable[Role], kind: tuple[str, str], name: str, least: int | None = None) -> OwnerRoles:
    """Roles whose controller makes them one gang: a PodGroup of this kind and name. `least`: how many pods must run;
    None: all."""
    if kind == VOLCANO_GROUP:
        grouped = tuple(role.with_notes({VOLCANO[0]: name}) for role in roles)
    else:
        grouped = tuple(role.with_labels({COSCHEDULING: name}) for role in roles)
    size = sum(role.pods for role in grouped)
    return OwnerRoles(grouped, size if least is None else least, size=size, stated_in=kind, name=name)


# -- our own label or annotation; `gang-min` counts for the gangs of all sources


class Ours(GangSource):
    """Pods with the same value of the label or annotation."""

    name = "gpu-extender"
    states = f"annotations {OUR_SIZE}, {OUR_MINIMUM}"
    marks = (GANG,)

    def named(self, pod: PodRecord) -> Ref | None:
        """By the label, else the annotation."""
        name = pod.labels.get(GANG) or pod.annotations.get(GANG)
        return Ref(self.name, pod.namespace, name) if name else None


# -- Kueue's plain pod groups: a label names the group, an annotation counts its pods


GROUP: Final = "kueue.x-k8s.io/pod-group-name"
COUNT: Final = SIZES[0]


class Kueue(GangSource):
    """Pods with the label of Kueue."""

    name = "kueue"
    states = f"annotation {COUNT}"
    marks = (GROUP,)

    def minimum(self, ref: Ref, members: Members, objects: Objects) -> int | None:
        """The count that the pods state alike."""
        return agreed(members, COUNT)

    def size(self, ref: Ref, members: Members, objects: Objects) -> int | None:
        """The same count."""
        return agreed(members, COUNT)


# -- Kubernetes' own: `spec.schedulingGroup` (PodGroup), before 1.36 `spec.workloadRef` (Workload)


_API = "scheduling.k8s.io"
POD_GROUP: Final = (_API, "PodGroup")


class Kubernetes(GangSource):
    """The PodGroup, or the part of a Workload, that the pod's specification names."""

    name = "kubernetes"
    states = "podgroups.scheduling.k8s.io, workloads.scheduling.k8s.io"
    kinds = (POD_GROUP, (_API, "Workload"))
    creates = False

    def named(self, pod: PodRecord) -> Ref | None:
        """By the specification; the part is "POD GROUP/REPLICA KEY" of a Workload."""
        if pod.group is None:
            return None
        workload, group, replica = pod.group
        if not workload:
            return Ref(self.name, pod.namespace, group)
        return Ref(self.name, pod.namespace, workload, "/".join(text for text in (group, replica) if text))

    def minimum(self, ref: Ref, members: Members, objects: Objects) -> int | None:
        """`gang.minCount` of the PodGroup or of the Workload's part; 0 with `basic`."""
        group = members.group
        if group is not None and group[0]:
            workload = objects.get((_API, "Workload", ref.namespace, ref.name))
            return None if workload is None else dict(workload.parts).get(group[1])
        pod_group = objects.get((_API, "PodGroup", ref.namespace, ref.name))
        return None if pod_group is None else pod_group.minimum

    def read(self, owner: OwnerObject) -> OwnerRoles:
        """The policy of the PodGroup, or of each part of the Workload."""
        spec = owner.spec
        if owner.kind == "PodGroup":
            return OwnerRoles(minimum=_group_minimum(spec), domain=stated_domain(spec))
        parts = [*spec.sections("podGroups"), *spec.sections("podGroupTemplates")]
        return OwnerRoles(parts=tuple((part.text("name"), _part_minimum(part)) for part in parts))


def _group_minimum(spec: Section) -> int | None:
    least = spec.number("minMember")
    return stated_minimum(spec) if least is None else least


def _part_minimum(part: Section) -> int | None:
    return stated_minimum(part, "schedulingPolicy" if part.raw("policy") is None else "policy")


def stated_domain(section: Section) -> tuple[str, bool] | None:
    """The domain of `schedulingConstraints`, as of `OwnerRoles`: of the one topology that may be stated."""
    topology = section.section("schedulingConstraints").sections("topology")
    level = (topology[0].text("key") or topology[0].text("level")) if topology else ""
    return (level, True) if level else None


def stated_minimum(section: Section, key: str = "schedulingPolicy") -> int | None:
    """Of the policy of a group of pods. `gang`: its minCount; `basic`: the pods are independent, so none must run;
    neither: not known."""
    policy = section.section(key)
    if policy.raw("gang") is not None:
        return policy.section("gang").number("minCount")
    return 0 if policy.raw("basic") is not None else None
