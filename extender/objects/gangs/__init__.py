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
| grove | label `grove.io/podgang` | the PodGang's `minReplicas`, summed |
| job | the owner, a batch Job | parallelism, at most the completions that are left |
| statefulset | the owner, where the pods carry `gang-size` or `gang-min` | `gang-size`, else all replicas |

How many pods the whole gang has (`size`) counts before all of them exist. The annotation `gpu-extender.io/gang-size`
overrides what the owner states. A Job, a LeaderWorkerSet, a Kueue pod group and most JobSets have as many as must run.
A training job has all replicas, a RayCluster the hosts that it has now. A PodGroup or Workload states no size.

Each owner is read once (`roles.py`): its roles state how many pods there are, which come only once others run, and what
they ask for. The numbers of gangs, the stand-ins of late pods and the pods of a question all follow from these roles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from extender.objects import schema
from extender.objects.gangs.builtin import Job, StatefulSet
from extender.objects.gangs.grove import Grove
from extender.objects.gangs.jobset import JobSet
from extender.objects.gangs.leaderworkerset import LeaderWorkerSet
from extender.objects.gangs.other_owners import OTHER_OWNERS, any_owner
from extender.objects.gangs.pod_groups import Coscheduling, Kubernetes, Kueue, Ours, Volcano
from extender.objects.gangs.ray import Ray
from extender.objects.gangs.roles import (
    MOST,
    OUR_MINIMUM,
    OUR_SIZE,
    GangSource,
    Members,
    ObjectKey,
    Objects,
    OwnerObject,
    OwnerRoles,
    Ref,
    Section,
    agreed,
    number,
    owner_object,
    pods,
    record_of,
)
from extender.objects.gangs.training import Training
from extender.objects.parts import api_group
from extender.objects.queueing import role_of
from extender.objects.records import GroupRecord, Owner, PodRecord
from extender.objects.schema import MOST_ENTRIES, RecordError, read

__all__ = [
    "GROUP_KINDS", "MOST", "OUR_MINIMUM", "OUR_SIZE", "SOURCES", "Gang", "Members", "ObjectKey", "Objects",
    "OwnerPods", "Ref", "RunningRole", "creates_pods", "creators", "gang", "group", "is_group", "late", "minimum",
    "number", "owned", "owner_of", "owners", "read_owner", "ref", "role_minima", "size", "wanted",
]  # fmt: skip

SOURCES: Final[dict[str, GangSource]] = {
    source.name: source
    for source in (
        Ours(), Kubernetes(), Coscheduling(), Volcano(), Kueue(), LeaderWorkerSet(), JobSet(), Training(), Ray(),
        Grove(), Job(), StatefulSet(),
    )
}  # fmt: skip
GROUP_KINDS: Final = {kind: source for source in SOURCES.values() for kind in source.kinds}
"""By (API group, kind) of the objects that state how many pods must run: their source."""
NO_SPEC: Final = {"apiVersion", "kind", "metadata", "status"}
MOST_ROLES: Final = 20_000
"""Roles of one owner, those of each of its replicas counted."""
OWNER_TEXT: Final = 100  # characters of what names an owner: tenants choose names
HIGHEST: Final = 4  # owners of owners; no object has more, and a circle ends here

_CREATORS: Final = OTHER_OWNERS.keys() | {key for key, source in GROUP_KINDS.items() if source.creates}

_MARKS: Final = frozenset(mark for source in SOURCES.values() for mark in source.marks)
_BY_PODS: Final = tuple(
    source.named for source in SOURCES.values() if source.marks or type(source).named is not GangSource.named
)
_UNKNOWN: Final = GangSource()  # of an object of another kind: it states nothing
_KINDED: Final = msgspec.json.Decoder(schema.Kinded)


class RunningRole(NamedTuple):
    """A role of a gang, some of whose pods must run."""

    name: str  # `queueing.role_of`
    running: int
    minimum: int

    @property
    def allowance(self) -> int:
        """How many of its pods may be evicted before the gang breaks."""
        return max(0, self.running - self.minimum)

    @property
    def text(self) -> str:
        """What it has and needs, for people."""
        pods = "1 running pod" if self.running == 1 else f"{self.running} running pods"
        return f"role {self.name} has {pods} and needs {self.minimum}"


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods that run together."""

    ref: Ref
    running: int
    minimum: int  # so many of its `running` pods must stay, 0: it cannot break (`annotation_limits`)
    known: bool  # False when all of them was taken because no minimum could be read
    roles: tuple[RunningRole, ...] = ()  # with a minimum of their own, those with running pods

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

    @property
    def critical_roles(self) -> tuple[RunningRole, ...]:
        """Those that fall below their minimum before the whole gang does. As in Volcano, minima of roles count where
        the minimum of all is at least their sum."""
        if sum(role.minimum for role in self.roles) > self.minimum:
            return ()
        return tuple(role for role in self.roles if role.allowance < max(0, self.allowance))

    def why_broken(self, evicted: Iterable[PodRecord]) -> str | None:
        """Which role falls below its minimum where these running members are evicted, "" where only the whole gang
        does; None: it does not break."""
        lost = Counter(map(role_of, evicted))
        for role in self.critical_roles:
            if lost[role.name] > role.allowance:
                return role.text
        return "" if lost.total() > max(0, self.allowance) else None


def ref(pod: PodRecord, objects: Objects) -> Ref | None:
    """The gang that the pod names, None when it names none. `objects`: as for `gang`; of them only the owners count."""
    if pod.group is not None or not (_MARKS.isdisjoint(pod.labels) and _MARKS.isdisjoint(pod.annotations)):
        for named in _BY_PODS:
            ref = named(pod)
            if ref is not None:
                return ref
    return owned(pod.namespace, pod.owner, objects)


def owned(namespace: str, owner: Owner | None, objects: Objects) -> Ref | None:
    """The gang of what `owner` owns: the highest of its owners that stands for one."""
    highest = None
    for api, kind, _, name in owners(namespace, owner, objects):
        source = _owning(api, kind)
        if source is not None:
            highest = Ref(source.name, namespace, name)
    return highest


@lru_cache(maxsize=1024)
def _owning(api: str, kind: str) -> GangSource | None:
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


def ends_at(pod: PodRecord, objects: Objects) -> float | None:
    """When the deadline of one of the pod's owners ends it, seconds since the epoch; None without one."""
    above = (objects.get(key) for key in owners(pod.namespace, pod.owner, objects))
    return min((owner.ends_at for owner in above if owner is not None and owner.ends_at is not None), default=None)


def top_owner(pod: PodRecord, objects: Objects) -> str:
    """The highest known owner, "Kind/name", of a pod without one the pod itself. OWNER_TEXT characters at most; special
    ones are written as in a URL."""
    *_, (_, kind, _, name) = ("", "Pod", "", pod.name), *owners(pod.namespace, pod.owner, objects)
    return quote(f"{kind}/{name}"[:OWNER_TEXT])[:OWNER_TEXT]


def gang(named: Ref, members: Members, objects: Objects) -> Gang | None:
    """The gang of the running `members` that name it, one or more; None when they do not depend on each other.

    `objects`: what is known of the cluster's PodGroups, Workloads, Jobs ..., by API group, kind, namespace and name.
    """
    source, count = SOURCES[named.source], members.count
    least = minimum(named, members, objects)
    if least == 0 or (not source.alone and count < 2 and least in (None, 1)):
        return None
    return Gang(named, count, count if least is None else least, least is not None, _roles(named, members, objects))


def _roles(named: Ref, members: Members, objects: Objects) -> tuple[RunningRole, ...]:
    stated = role_minima(named, objects).items()
    roles = (RunningRole(name, members.of_role(name), least) for name, least in stated if least and 0 < least <= MOST)
    return tuple(role for role in roles if role.running)


def role_minima(named: Ref, objects: Objects) -> Mapping[str, int | None]:
    """How many pods of each role must run, where the object of the gang states it."""
    owner = owner_of(named, objects)
    return dict(owner.parts) if owner is not None and not named.part else {}


def minimum(named: Ref, members: Members, objects: Objects) -> int | None:
    """How many pods of the gang must run, as is stated; None where nothing valid states it. `members`, `objects`: as
    for `gang`."""
    stated = agreed(members, OUR_MINIMUM)
    return stated if stated is not None else _possible(SOURCES[named.source].minimum(named, members, objects))


def size(named: Ref, members: Members, objects: Objects) -> int | None:
    """How many pods the whole gang has, those included that do not exist yet; None where nothing valid states it (a
    PodGroup states its minimum alone). `members`: its pods that exist; `objects`: as for `gang`."""
    stated = agreed(members, OUR_SIZE)
    return stated if stated is not None else _possible(SOURCES[named.source].size(named, members, objects))


def owner_of(named: Ref, objects: Objects) -> GroupRecord | None:
    """The object that the gang is of, where it is known."""
    source = SOURCES.get(named.source)
    return None if source is None else source.object(named, objects)


def wanted(named: Ref, members: Members, objects: Objects) -> tuple[int | None, int | None]:
    """(size, minimum) as `size` and `minimum`, less the pods that have succeeded and never come again: what the owner
    still runs. For gangs that wait; what an eviction may break counts by `minimum`."""
    whole, least = size(named, members, objects), minimum(named, members, objects)
    owner = owner_of(named, objects)
    ended = owner.succeeded if owner is not None else 0
    if not ended:
        return whole, least
    if whole is not None:
        return max(0, whole - ended), least
    return None, least if not least else max(1, least - ended)


def late(named: Ref, objects: Objects) -> int:
    """How many of the gang's pods are created only once the others run."""
    owner = owner_of(named, objects)
    return owner.late if owner is not None else 0


def _possible(stated: int | None) -> int | None:
    return stated if stated is not None and 0 <= stated <= MOST else None


# ---- the objects that state how many pods must run


def group(source: schema.Source, api: str = "", kind: str = "", *, gpus: frozenset[str] = frozenset()) -> GroupRecord:
    """The record of an object of GROUP_KINDS; `api` and `kind` where it does not state them (items of typed lists).
    `gpus`: the resources that count as GPUs in its templates."""
    owner = owner_object(source, api, kind)
    for key, value in owner.spec.fields.items():
        # Each object takes about 20 us, on the event loop, at each change of the owner.
        if isinstance(value, list | dict) and len(value) > MOST_ENTRIES and _has_objects(value):
            raise RecordError(f"spec.{key}", f"it has more than {MOST_ENTRIES} entries, and none is read")
    stated = GROUP_KINDS.get((owner.api, owner.kind), _UNKNOWN).read(owner)
    return record_of(owner, stated, GROUP_KINDS, gpus)


def _has_objects(value: list[Any] | dict[str, Any]) -> bool:
    return isinstance(next(iter(value.values() if isinstance(value, dict) else value)), dict)


def is_group(source: schema.Source) -> bool:
    """Whether an object is one of GROUP_KINDS, by its apiVersion and kind."""
    kinded = read(source, _KINDED)
    return (api_group(kinded.api_version), kinded.kind or "") in GROUP_KINDS


# ---- the pods that an owner creates


class OwnerPods:
    """An owner with the pods that it creates."""

    def __init__(self, owner: OwnerObject, stated: Iterable[OwnerRoles], gpus: frozenset[str]) -> None:
        self._owner, self._stated, self._gpus = owner, tuple(_bounded(stated)), gpus

    @property
    def creates(self) -> bool:
        """Whether it has a template of pods, or is of a kind that has."""
        return creates_pods(self._owner.api, self._owner.kind) or self.has_roles

    @property
    def has_roles(self) -> bool:
        """Whether it states roles, be it with no pods."""
        return any(stated.roles for stated in self._stated)

    @property
    def idle(self) -> list[str]:
        """The names of its roles without pods."""
        return [role.name for stated in self._stated for role in stated.roles if role.name and not role.pods]

    @property
    def assumed(self) -> tuple[str, ...]:
        """What it does not state and was assumed, for people."""
        return tuple(text for stated in self._stated for text in stated.assumed)

    @property
    def beside(self) -> tuple[Mapping[str, Any], ...]:
        """Objects that its controller creates with the pods: templates of their claims."""
        return tuple(created for stated in self._stated for created in stated.beside)

    def changed(self, change: Callable[[Any], Any]) -> OwnerPods:
        """With its templates changed."""
        stated = [
            part._replace(roles=tuple(replace(role, template=change(role.template)) for role in part.roles))
            for part in self._stated
        ]
        return OwnerPods(self._owner, stated, self._gpus)

    @property
    def templates(self) -> Iterator[tuple[str, Any]]:
        """(path, template) of each role with pods; of several with one template the first."""
        seen: set[int] = set()
        for role in (role for stated in self._stated for role in stated.roles if role.pods):
            if id(role.template) not in seen:
                seen.add(id(role.template))
                yield role.path, role.template

    @property
    def per_node(self) -> bool:
        """Whether each of its pods stands for one on each node."""
        return any(role.per_node for stated in self._stated for role in stated.roles)

    def groups(self) -> Iterator[GroupRecord]:
        """What states the minima of its gangs: itself, or the objects that its controller creates."""
        for stated in self._stated:
            api, kind = stated.stated_in or (self._owner.api, self._owner.kind)
            if (api, kind) in GROUP_KINDS:
                owner = self._owner._replace(api=api, kind=kind, name=stated.name or self._owner.name)
                yield record_of(owner, stated, GROUP_KINDS, self._gpus)

    def pods(self) -> Iterator[PodRecord]:
        """All of its pods, as if none existed, named OWNER-INDEX. RecordError where a number or a template makes
        none."""
        created = (pod for stated in self._stated for pod in pods(self._owner, stated, self._gpus))
        for index, pod in enumerate(created):
            yield replace(pod, name=f"{self._owner.name}-{index}")


def _bounded(stated: Iterable[OwnerRoles]) -> Iterator[OwnerRoles]:
    """What an owner states, as long as it is no work for minutes. RecordError."""
    roles = 0
    for part in stated:
        roles += len(part.roles)
        if roles > MOST_ROLES:
            raise RecordError("spec", f"it has more than {MOST_ROLES} roles, and none is read")
        yield part


def creates_pods(api: str, kind: str) -> bool:
    """Whether it is known how the pods of such an object are made. `api`: its API group."""
    return (api, kind) in _CREATORS


def creators() -> list[str]:
    """The kinds whose pods are known, for people."""
    return sorted({kind if kind != "Service" else f"{kind} ({api})" for api, kind in _CREATORS})


def read_owner(
    source: schema.Source, gpus: frozenset[str], others: Mapping[tuple[str, str, str, str], Any] | None = None
) -> OwnerPods:
    """An object that creates pods; one of an unknown kind is read by the usual places (`any_owner`). `others`: the
    objects of a question beside it. RecordError where it cannot be read."""
    owner = owner_object(source)._replace(others=others or {})
    if isinstance(source, Mapping) and "spec" not in source:  # KAITO states its fields at the top
        owner = owner._replace(spec=Section({key: source[key] for key in source.keys() - NO_SPEC}, ""))
    key = owner.api, owner.kind
    try:
        if key in OTHER_OWNERS:
            stated = OTHER_OWNERS[key](owner)
        elif key in GROUP_KINDS:
            stated = GROUP_KINDS[key].read(owner)
        else:
            stated = any_owner(owner, gpus)
        return OwnerPods(owner, (stated,) if isinstance(stated, OwnerRoles) else stated, gpus)
    except RecursionError:
        raise RecordError("spec", "nested too deep") from None
