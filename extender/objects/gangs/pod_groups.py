"""The PodGroups of the Coscheduling plugin and of Volcano: both state `minMember`."""

from __future__ import annotations

from typing import Final

from extender.objects.gangs.roles import OwnerObject, OwnerRoles
from extender.objects.gangs.source import Ref, Source, policy_minimum
from extender.objects.records import PodRecord

COSCHEDULING: Final = "scheduling.x-k8s.io/pod-group"
VOLCANO: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")


class _PodGroups(Source):
    """Reads a PodGroup with `minMember`."""

    creates = False

    def read(self, owner: OwnerObject) -> OwnerRoles:
        """`minMember`, else the policy. Pods that have succeeded count towards the minimum, as Volcano counts them."""
        least = owner.spec.number("minMember")
        if least is None:
            least = policy_minimum(owner.spec.section("schedulingPolicy"))
        return OwnerRoles(minimum=least, succeeded=max(0, owner.status.number("succeeded") or 0))


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
