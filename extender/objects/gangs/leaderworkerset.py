"""LeaderWorkerSet: each group of a leader and its workers is a gang."""

from __future__ import annotations

from typing import Final

from extender.objects import schema
from extender.objects.gangs.members import SIZES, Members
from extender.objects.gangs.source import Objects, Parts, Ref, Source, agreed
from extender.objects.gangs.templates import Late, TemplatesSpec
from extender.objects.records import PodRecord

PREFIX: Final = "leaderworkerset.sigs.k8s.io/"
SIZE: Final = SIZES[1]
WORKER: Final = f"{PREFIX}worker-index"
EXCLUSIVE: Final = f"{PREFIX}exclusive-topology"


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
        return _size(spec), ()

    def size(self, ref: Ref, members: Members, objects: Objects) -> int | None:
        """As `minimum`: a group runs whole."""
        size = agreed(members, SIZE)
        return size if size is not None else super().size(ref, members, objects)

    def stated_size(self, kind: str, spec: schema.GroupSpec, status: schema.GroupStatus) -> int | None:
        """The size of each group."""
        return _size(spec)

    def late(self, name: str, wire: schema.Group) -> tuple[Late, ...]:
        """The workers of a group, where they are created once the leader is ready, or has a node."""
        spec, notes = wire.spec or schema.GroupSpec(), (wire.metadata and wire.metadata.annotations) or {}
        size = _size(spec) or 1
        waits = spec.startup_policy == "LeaderReady" or bool(notes.get(EXCLUSIVE))
        return (Late("", name, WORKER, 1, size),) if waits and size > 1 else ()

    def template(self, role: str, spec: TemplatesSpec) -> schema.Pod | None:
        """That of the workers."""
        return spec.leader_worker_template.worker_template if spec.leader_worker_template else None


def _size(spec: schema.GroupSpec) -> int | None:
    return spec.leader_worker_template.size if spec.leader_worker_template else None
