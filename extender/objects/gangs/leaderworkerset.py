"""LeaderWorkerSet: each group of a leader and its workers is a gang."""

from __future__ import annotations

from typing import Final

from extender.objects.gangs.roles import SIZES, GangSource, Members, Objects, OwnerObject, OwnerRoles, Ref, Role, agreed
from extender.objects.records import PodRecord

PREFIX: Final = "leaderworkerset.sigs.k8s.io/"
NAME: Final = f"{PREFIX}name"
GROUP: Final = f"{PREFIX}group-index"
SIZE: Final = SIZES[1]
WORKER: Final = f"{PREFIX}worker-index"
EXCLUSIVE: Final = f"{PREFIX}exclusive-topology"
SUBGROUPS: Final = f"{PREFIX}subgroup-exclusive-topology"


class LeaderWorkerSet(GangSource):
    """Pods with the labels of one group."""

    name = "leaderworkerset"
    states = "leaderworkersets.leaderworkerset.x-k8s.io"
    kinds = (("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),)
    marks = (NAME,)

    def named(self, pod: PodRecord) -> Ref | None:
        """By the labels `name` and `group-index`."""
        name = pod.labels.get(NAME)
        return Ref(self.name, pod.namespace, name, pod.labels.get(GROUP, "")) if name else None

    def minimum(self, ref: Ref, members: Members, objects: Objects) -> int | None:
        """The annotation `size`, else the size of the object."""
        size = agreed(members, SIZE)
        return size if size is not None else super().minimum(ref, members, objects)

    def size(self, ref: Ref, members: Members, objects: Objects) -> int | None:
        """As `minimum`: a group runs whole."""
        size = agreed(members, SIZE)
        return size if size is not None else super().size(ref, members, objects)

    def read(self, owner: OwnerObject) -> OwnerRoles:
        """The leader and the workers of each group. The workers come late where they are created once the leader is
        ready, or has a node."""
        spec = owner.spec.section("leaderWorkerTemplate")
        size, exclusive = spec.count("size"), owner.annotations.get(EXCLUSIVE, "")
        late = owner.spec.text("startupPolicy") == "LeaderReady" or bool(exclusive)
        notes = {SIZE: str(size or 0)} | ({EXCLUSIVE: exclusive} if exclusive else {})
        leader = "workerTemplate" if spec.raw("leaderTemplate") is None else "leaderTemplate"
        roles = (
            Role(spec.raw(leader), spec.at(leader), 1, creator=owner.name, index_label=WORKER, notes=notes),
            Role(
                spec.raw("workerTemplate"), spec.at("workerTemplate"), (size or 1) - 1, creator=owner.name,
                index_label=WORKER, first=1, notes=notes, early=0 if late else None,
            ),
        )  # fmt: skip
        return OwnerRoles(
            roles, minimum=size, size=size, gangs=owner.spec.count("replicas") if size else 0, gang_label=GROUP,
            gang_labels={NAME: owner.name},
            unchecked=("subgroups by topology",) if SUBGROUPS in owner.annotations else (),
        )  # fmt: skip
