"""Kubernetes' own: `spec.schedulingGroup` (PodGroup), before 1.36 `spec.workloadRef` (Workload)."""

from __future__ import annotations

from extender.objects import schema
from extender.objects.gangs.members import Members
from extender.objects.gangs.source import Objects, Parts, Ref, Source, policy_minimum
from extender.objects.records import PodRecord

_API = "scheduling.k8s.io"


class Kubernetes(Source):
    """The PodGroup, or the part of a Workload, that the pod's specification names."""

    name = "kubernetes"
    states = "podgroups.scheduling.k8s.io, workloads.scheduling.k8s.io"
    kinds = ((_API, "PodGroup"), (_API, "Workload"))

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
        found = objects.get((_API, "PodGroup", ref.namespace, ref.name))
        return None if found is None else found.minimum

    def stated(self, kind: str, spec: schema.GroupSpec, status: schema.GroupStatus) -> tuple[int | None, Parts]:
        """The policy of the PodGroup, or of each part of the Workload."""
        if kind == "PodGroup":
            return spec.min_member if spec.min_member is not None else policy_minimum(spec.scheduling_policy), ()
        named = [*(spec.pod_groups or ()), *(spec.pod_group_templates or ())]
        return None, tuple((one.name or "", policy_minimum(one.policy or one.scheduling_policy)) for one in named)
