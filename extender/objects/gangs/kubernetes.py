"""Kubernetes' own: `spec.schedulingGroup` (PodGroup), before 1.36 `spec.workloadRef` (Workload)."""

from __future__ import annotations

from extender.objects.gangs.members import Members
from extender.objects.gangs.roles import OwnerObject, OwnerRoles, Section
from extender.objects.gangs.source import Objects, Ref, Source, policy_minimum
from extender.objects.records import PodRecord

_API = "scheduling.k8s.io"


class Kubernetes(Source):
    """The PodGroup, or the part of a Workload, that the pod's specification names."""

    name = "kubernetes"
    states = "podgroups.scheduling.k8s.io, workloads.scheduling.k8s.io"
    kinds = ((_API, "PodGroup"), (_API, "Workload"))
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
            least = spec.number("minMember")
            return OwnerRoles(minimum=policy_minimum(spec.section("schedulingPolicy")) if least is None else least)
        parts = [*spec.sections("podGroups"), *spec.sections("podGroupTemplates")]
        return OwnerRoles(parts=tuple((part.text("name"), _part_minimum(part)) for part in parts))


def _part_minimum(part: Section) -> int | None:
    return policy_minimum(
        part.section("policy") if part.raw("policy") is not None else part.section("schedulingPolicy")
    )
