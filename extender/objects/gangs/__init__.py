"""Which pods belong together, and how many of them must run.

SOURCES is the registry: the first source that a pod names counts. Owners are followed upwards as far as their objects
are known: of a pod of a Job of a JobSet the JobSet counts. `gpu-extender.io/gang-min` on the pods overrides the minimum
of any source (0: they are independent). A minimum that cannot be read is all members.

| source | the pods of a gang | how many must run |
|---|---|---|
| gpu-extender | label (or annotation) `gpu-extender.io/gang` | label (or annotation) `gpu-extender.io/gang-min` |
| kubernetes | `spec.schedulingGroup`, before 1.36 `spec.workloadRef` | `gang.minCount` of it; 0 with `basic` |
| coscheduling | label `scheduling.x-k8s.io/pod-group` | PodGroup `minMember` |
| volcano | annotation `scheduling.k8s.io/group-name` | PodGroup `minMember` |
| kueue | label `kueue.x-k8s.io/pod-group-name` | annotation `kueue.x-k8s.io/pod-group-total-count` |
| leaderworkerset | labels `leaderworkerset.sigs.k8s.io/name`, `group-index` | annotation `size`, or the object's size |
| jobset | label `jobset.sigs.k8s.io/jobset-name`, or the owners | the JobSet's replicas x parallelism, summed |
| training | label `training.kubeflow.org/job-name`, or the owners | minAvailable, minReplicas, or all replicas |
| ray | label `ray.io/cluster`, or the owners | the head and all workers; with the autoscaler the least of them |
| job | the owner, a batch Job | parallelism, at most the completions that are left |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import Final

import msgspec

from extender.objects import schema
from extender.objects.gangs.job import Job
from extender.objects.gangs.jobset import JobSet
from extender.objects.gangs.kubernetes import Kubernetes
from extender.objects.gangs.kueue import Kueue
from extender.objects.gangs.leaderworkerset import LeaderWorkerSet
from extender.objects.gangs.members import OUR_MINIMUM, Members
from extender.objects.gangs.ours import Ours
from extender.objects.gangs.pod_groups import Coscheduling, Volcano
from extender.objects.gangs.ray import Ray
from extender.objects.gangs.source import MOST, ObjectKey, Objects, Ref, Source, number
from extender.objects.gangs.training import Training
from extender.objects.records import GroupRecord, Owner, PodRecord
from extender.objects.records.parts import api_group, controller, metadata
from extender.objects.schema import read

__all__ = [
    "GROUP_KINDS",
    "MOST",
    "OUR_MINIMUM",
    "SOURCES",
    "Gang",
    "Members",
    "ObjectKey",
    "Objects",
    "Ref",
    "Source",
    "gang",
    "group",
    "is_group",
    "number",
    "owned",
    "owners",
    "ref",
]  # fmt: skip

SOURCES: Final[dict[str, Source]] = {
    source.name: source
    for source in (
        Ours(), Kubernetes(), Coscheduling(), Volcano(), Kueue(), LeaderWorkerSet(), JobSet(), Training(), Ray(), Job(),
    )
}  # fmt: skip
GROUP_KINDS: Final = {kind: source for source in SOURCES.values() for kind in source.kinds}
"""By (API group, kind) of the objects that state how many pods must run: their source."""
HIGHEST: Final = 4  # owners of owners; no object has more, and a circle ends here

_BY_PODS: Final = tuple(source.named for source in SOURCES.values() if type(source).named is not Source.named)
_GROUP: Final = msgspec.json.Decoder(schema.Group)
_KINDED: Final = msgspec.json.Decoder(schema.Kinded)


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods that run together. `minimum` of its `running` pods must stay, 0: it cannot break (`annotation_limits`);
    `known`: False when all of them was taken because no minimum could be read."""

    ref: Ref
    running: int
    minimum: int
    known: bool

    @property
    def name(self) -> str:
        """NAMESPACE/NAME, with its part."""
        return str(self.ref)

    @property
    def stated_by(self) -> str:
        """What states how many of its pods must run, for people."""
        return SOURCES[self.ref.source].states

    @property
    def allowance(self) -> int:
        """How many of its pods may be evicted before it breaks; below 0 when too few run already."""
        return self.running - self.minimum


def ref(pod: PodRecord, objects: Objects) -> Ref | None:
    """The gang that the pod names, None when it names none. `objects`: as for `gang`; of them only the owners count."""
    for named in _BY_PODS:
        found = named(pod)
        if found is not None:
            return found
    return owned(pod.namespace, pod.owner, objects)


def owned(namespace: str, owner: Owner | None, objects: Objects) -> Ref | None:
    """The gang of what `owner` owns: the highest of its owners that stands for one."""
    found = None
    for api, kind, _, name in owners(namespace, owner, objects):
        source = _owning(api, kind)
        if source is not None:
            found = Ref(source.name, namespace, name)
    return found


@lru_cache(maxsize=1024)
def _owning(api: str, kind: str) -> Source | None:
    """The source whose gang the pods of such an owner are."""
    return next((source for source in SOURCES.values() if source.owns(api, kind)), None)


def owners(namespace: str, owner: Owner | None, objects: Objects) -> Iterator[ObjectKey]:
    """The owner, its owner and so on, as far as the objects are known."""
    for _ in range(HIGHEST):
        if owner is None:
            return
        # Without apiVersion a Job is the built-in one; other groups have Jobs too (Volcano's pods name their PodGroup).
        api = "batch" if owner.kind == "Job" and not owner.api else owner.api
        key = (api, owner.kind, namespace, owner.name)
        yield key
        above = objects.get(key)
        owner = above.owner if above is not None else None


def gang(named: Ref, members: Members, objects: Objects) -> Gang | None:
    """The gang of the running `members` that name it, one or more; None when they do not depend on each other.

    `objects`: what is known of the cluster's PodGroups, Workloads, Jobs ..., by API group, kind, namespace and name.
    """
    source, count = SOURCES[named.source], members.count
    said = members.agreed(OUR_MINIMUM)
    minimum = number(said) if said is not None else None
    if minimum is None:
        minimum = source.minimum(named, members, objects)
        minimum = None if minimum is not None and not 0 <= minimum <= MOST else minimum
    if minimum == 0 or (not source.alone and count < 2 and minimum in (None, 1)):
        return None
    return Gang(named, count, count if minimum is None else minimum, minimum is not None)


# ---- the objects that state how many pods must run


def group(source: schema.Source, api: str = "", kind: str = "") -> GroupRecord:
    """The record of an object of GROUP_KINDS; `api` and `kind` where it does not state them (items of typed lists)."""
    wire = read(source, _GROUP)
    meta = metadata(wire.metadata)
    api = api_group(wire.api_version) or api
    kind = wire.kind or kind
    owner = controller(meta)
    stated = GROUP_KINDS.get((api, kind))
    minimum, parts = (
        stated.stated(kind, wire.spec or schema.GroupSpec(), wire.status or schema.GroupStatus())
        if stated is not None
        else (None, ())
    )
    return GroupRecord(
        uid=meta.uid or "",
        api=api,
        kind=kind,
        namespace=intern(meta.namespace or "default"),
        name=meta.name or "",
        resource_version=meta.resource_version or "",
        minimum=minimum,
        parts=parts,
        owner=owner if owner is not None and (owner.api, owner.kind) in GROUP_KINDS else None,
    )


def is_group(source: schema.Source) -> bool:
    """Whether an object is one of GROUP_KINDS, by its apiVersion and kind."""
    kinded = read(source, _KINDED)
    return (api_group(kinded.api_version), kinded.kind or "") in GROUP_KINDS
