"""Kueue's plain pod groups: a label names the group, an annotation counts its pods."""

from __future__ import annotations

from typing import Final

from extender.objects.gangs.members import SIZES, Members
from extender.objects.gangs.source import Objects, Ref, Source, agreed
from extender.objects.records import PodRecord

GROUP: Final = "kueue.x-k8s.io/pod-group-name"
COUNT: Final = SIZES[0]


class Kueue(Source):
    """Pods with the label of Kueue."""

    name = "kueue"
    states = f"annotation {COUNT}"

    def named(self, pod: PodRecord) -> Ref | None:
        """By the label."""
        found = pod.labels.get(GROUP)
        return Ref(self.name, pod.namespace, found) if found else None

    def minimum(self, ref: Ref, members: Members, objects: Objects) -> int | None:
        """The count that the pods state alike."""
        return agreed(members, COUNT)

    def size(self, ref: Ref, members: Members, objects: Objects) -> int | None:
        """The same count."""
        return agreed(members, COUNT)
