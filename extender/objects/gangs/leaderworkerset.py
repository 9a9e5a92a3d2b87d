"""LeaderWorkerSet: each group of a leader and its workers is a gang."""

from __future__ import annotations

from typing import Final

from extender.objects import schema
from extender.objects.gangs.members import SIZES, Members
from extender.objects.gangs.source import Objects, Parts, Ref, Source, agreed
from extender.objects.records import PodRecord

PREFIX: Final = "leaderworkerset.sigs.k8s.io/"
SIZE: Final = SIZES[1]


class LeaderWorkerSet(Source):
    """Pods with the labels of one group."""

    name = "leaderworkerset"
    states = "leaderworkersets.leaderworkerset.x-k8s.io"
    kinds = (("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),)

    def named(self, pod: PodRecord) -> Ref | None:
        """By the labels `name` and `group-index`."""
        found = pod.labels.get(f"{PREFIX}name")
        return Ref(self.name, pod.namespace, found, pod.labels.get(f"{PREFIX}group-index", "")) if found else None

    def minimum(self, ref: Ref, members: Members, objects: Objects) -> int | None:
        """The annotation `size`, else the size of the object."""
        size = agreed(members, SIZE)
        return size if size is not None else super().minimum(ref, members, objects)

    def stated(self, kind: str, spec: schema.GroupSpec, status: schema.GroupStatus) -> tuple[int | None, Parts]:
        """The size of each group."""
        return spec.leader_worker_template.size if spec.leader_worker_template else None, ()
