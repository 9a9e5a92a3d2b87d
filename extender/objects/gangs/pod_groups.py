"""The PodGroups of the Coscheduling plugin and of Volcano: both state `minMember`."""

from __future__ import annotations

from typing import Final

from extender.objects import schema
from extender.objects.gangs.source import Parts, Ref, Source, policy_minimum
from extender.objects.records import PodRecord

COSCHEDULING: Final = "scheduling.x-k8s.io/pod-group"
VOLCANO: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")


class _PodGroups(Source):
    """Reads a PodGroup with `minMember`."""

    def stated(self, kind: str, spec: schema.GroupSpec, status: schema.GroupStatus) -> tuple[int | None, Parts]:
        """`minMember`, else the policy."""
        return spec.min_member if spec.min_member is not None else policy_minimum(spec.scheduling_policy), ()

    def succeeded(self, spec: schema.GroupSpec, status: schema.GroupStatus) -> int:
        """As its controller counts them: towards the minimum, as Volcano does."""
        return max(0, status.succeeded or 0)


class Coscheduling(_PodGroups):
    """Pods with the label of the plugin."""

    name = "coscheduling"
    states = "podgroups.scheduling.x-k8s.io"
    kinds = (("scheduling.x-k8s.io", "PodGroup"),)

    def named(self, pod: PodRecord) -> Ref | None:
        """By the label."""
        found = pod.labels.get(COSCHEDULING)
        return Ref(self.name, pod.namespace, found) if found else None


class Volcano(_PodGroups):
    """Pods with one of Volcano's annotations."""

    name = "volcano"
    states = "podgroups.scheduling.volcano.sh"
    kinds = (("scheduling.volcano.sh", "PodGroup"),)

    def named(self, pod: PodRecord) -> Ref | None:
        """By the annotation."""
        found = pod.annotations.get(VOLCANO[0]) or pod.annotations.get(VOLCANO[1])
        return Ref(self.name, pod.namespace, found) if found else None
