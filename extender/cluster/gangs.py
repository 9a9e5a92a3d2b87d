"""The gangs of bound pods, and which pods belong to one workload."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, Literal

from extender.cluster.annotation_limits import AnnotationLimits, Bounded
from extender.cluster.listener import Faults
from extender.cluster.numbered import set_or_drop, take_out
from extender.objects import gangs
from extender.objects.gangs import GROUP_KINDS
from extender.objects.records import GroupRecord, NodeRecord, PodRecord
from extender.settings import Placement

MOST_LOOKED_AT: Final = 256
"""Gangs of one name among which those of other teams are looked for: a set may have thousands of groups."""


class _Group(gangs.Members):
    """The bound pods that name one gang; of them those that are not terminating are counted as its running members."""

    __slots__ = ("_bounds", "_limits", "named", "pods")

    def __init__(self, named: gangs.Ref, limits: AnnotationLimits) -> None:
        super().__init__()
        self.named = named
        self.pods: dict[str, PodRecord] = {}  # by uid, each as it was counted
        self._limits = limits
        self._bounds: dict[int, int] | None = None  # other gangMin than the common one -> running pods that it bounds

    def put(self, pod: PodRecord) -> None:
        """Add a pod that is not there."""
        self.pods[pod.uid] = pod
        if not pod.terminating:
            self.add(pod)
            self._bound(pod, 1)

    def take(self, uid: str) -> None:
        """Take a pod out, if it is there."""
        pod = self.pods.pop(uid, None)
        if pod is not None and not pod.terminating:
            self.remove(pod)
            self._bound(pod, -1)

    def gang(self, objects: gangs.Objects) -> gangs.Gang | None:
        """The gang, with the minimum that counts; None where its pods do not depend on each other."""
        gang = gangs.gang(self.named, self, objects) if self.count else None
        if gang is None:
            return None
        bounds = self._bounds or {}
        common = [self._limits.common.gang_min] if sum(bounds.values()) < self.count else []
        return self._limits.gang(gang, min((*common, *bounds)))

    def _bound(self, pod: PodRecord, by: int) -> None:
        bound = self._limits.of(pod)
        if bound is not self._limits.common:
            self._bounds = self._bounds if self._bounds is not None else {}
            self._bounds[bound.gang_min] = members = self._bounds.get(bound.gang_min, 0) + by
            if not members:
                del self._bounds[bound.gang_min]


def _is_apart(group: _Group | None, named: gangs.Ref) -> bool:
    """Whether pods of a gang run that differs from the `named` one by its team alone."""
    if group is None or group.named == named:
        return False
    return group.count > 0 and group.named._replace(team=named.team) == named


class Gangs:
    """The gangs that bound pods name, by number. `objects`: the PodGroups, Jobs and so on that are known; `by_number`:
    the gang of each number, None where its pods do not depend on each other; `strays`: by number, the running members
    on nodes that are not known, by uid."""

    def __init__(self, nodes: Mapping[str, NodeRecord], limits: AnnotationLimits, faults: Faults) -> None:
        """`nodes`: by name."""
        self.objects: dict[gangs.ObjectKey, GroupRecord] = {}
        self.by_number: list[gangs.Gang | None] = [None]  # number 0: no gang
        self.strays: dict[int, dict[str, PodRecord]] = {}  # none is empty
        self._nodes, self._limits, self._faults = nodes, limits, faults
        self._of_name: dict[gangs.Ref, int] = {}
        self._named: dict[tuple[str, str], dict[int, None]] = {}  # (namespace, name) -> the numbers of its gangs
        self._groups: list[_Group | None] = [None]  # by number
        self._numbers: dict[str, int] = {}  # by uid
        self._free: list[int] = []
        self._stale: set[int] = set()  # numbers of gangs whose members or objects have changed

    # -- what is read ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many gangs bound pods name."""
        return len(self._of_name)

    def number(self, uid: str) -> int:
        """The number of the gang that breaks without enough of its pods; 0 where the pod is in none."""
        number = self._numbers.get(uid, 0)
        return number if self.by_number[number] is not None else 0

    def of(self, pod: PodRecord) -> gangs.Gang | None:
        """The gang that a bound pod is in, None when no other pod depends on it."""
        return self.by_number[self._numbers.get(pod.uid, 0)]

    def running(self, pod: PodRecord) -> list[PodRecord]:
        """The running members of the gang that a bound pod names, itself among them; none where it names none."""
        group = self._groups[self._numbers.get(pod.uid, 0)]
        return [member for member in group.pods.values() if not member.terminating] if group is not None else []

    def ref(self, pod: PodRecord) -> gangs.Ref | None:
        """The gang that any pod names, among the pods of its team; None when it names none."""
        return self._limits.ref(pod, self.objects)

    def bounded(self, pod: PodRecord, now_ms: int) -> Iterator[Bounded]:
        """The claims of any pod that do not count as written. `now_ms`: milliseconds since 1970."""
        apart = False
        if self._limits.of(pod).gang_team != "namespace" and (named := self.ref(pod)) is not None:
            alike = islice(self._named.get((named.namespace, named.name), ()), MOST_LOOKED_AT)
            apart = any(_is_apart(self._groups[number], named) for number in alike)
        return self._limits.bounded(pod, self.running(pod), apart=apart, now_ms=now_ms)

    def bound(self, named: gangs.Ref) -> Collection[PodRecord]:
        """The bound pods that name a gang, terminating ones among them."""
        group = self._groups[self._of_name.get(named, 0)]
        return group.pods.values() if group is not None else ()

    def minimum(self, named: gangs.Ref) -> int | None:
        """How many pods of a gang must run, as is stated, whatever an eviction may break; None where nothing states it
        or no pod of it is bound."""
        group = self._groups[self._of_name.get(named, 0)]
        return None if group is None else gangs.minimum(named, group, self.objects)

    def together(self, named: gangs.Ref) -> int | None:
        """How many pods of a gang must run at once for it to do its work: the minimum, else its size; None where
        nothing states either or no pod of it is bound."""
        group = self._groups[self._of_name.get(named, 0)]
        if group is None:
            return None
        least = gangs.minimum(named, group, self.objects)
        return gangs.size(named, group, self.objects) if least is None else least

    def members(self) -> dict[gangs.Ref, set[str]]:
        """The uids of the bound pods that name each gang."""
        return {group.named: set(group.pods) for group in self._groups if group is not None}

    # -- what is written ------------------------------------------------------------------------------------------

    def add(self, pod: PodRecord, named: gangs.Ref | None) -> None:
        """A pod is bound, and not known yet. `named`: as `ref` returns it."""
        if named is not None:
            number = self._of_name.get(named) or self._take(named)
            self._numbers[pod.uid] = number
            self._put(number, pod)

    def renew(self, before: PodRecord, pod: PodRecord) -> None:
        """A bound pod has changed, and names the gang that it named."""
        number = self._numbers.get(pod.uid, 0)
        group = self._groups[number]
        if group is None:
            return
        if before.terminating == pod.terminating and before.priority_class == pod.priority_class:
            group.pods[pod.uid] = pod  # it counts as before
            if pod.uid in self.strays.get(number, ()):
                self.strays[number][pod.uid] = pod
        else:
            self._leave(number, group, pod.uid)
            self._put(number, pod)

    def remove(self, uid: str) -> None:
        """A pod is bound no more. No row of the table names its number any more."""
        number = self._numbers.pop(uid, 0)
        group = self._groups[number]
        if group is not None:
            self._leave(number, group, uid)

    def set(self, record: GroupRecord, change: str) -> None:
        """An object that states how many pods must run is "set", or there is a "delete"."""
        key = (record.api, record.kind, record.namespace, record.name)
        set_or_drop(self.objects, key, record, change)
        self._stale.update(self._named.get((record.namespace, record.name), ()))

    def touch(self, uids: Iterable[str]) -> None:
        """The node of these bound pods has come, or does not exist any more."""
        for uid in uids:
            number = self._numbers.get(uid, 0)
            group = self._groups[number]
            if group is not None:
                self._note_stray(number, group.pods[uid])

    def refresh(self, now: float) -> Iterator[str]:
        """Bring the gangs that have changed up to date. Yields the uids of the pods whose number is another one."""
        for number in self._stale:
            known = self.by_number[number] is not None
            try:
                self._read(number)
            except Exception as error:  # that gang stays as it was
                self._faults.note("Group", str(getattr(self._groups[number], "named", number)), error, now)
            if (self.by_number[number] is not None) != known and (group := self._groups[number]) is not None:
                yield from group.pods
        self._stale.clear()

    def _take(self, named: gangs.Ref) -> int:
        number = self._free.pop() if self._free else len(self._groups)
        group = _Group(named, self._limits)
        if number == len(self._groups):
            self._groups.append(group)
            self.by_number.append(None)
        else:
            self._groups[number] = group
        self._of_name[named] = number
        self._named.setdefault((named.namespace, named.name), {})[number] = None
        return number

    def _put(self, number: int, pod: PodRecord) -> None:
        group = self._groups[number]
        assert group is not None
        self._stale.add(number)
        group.put(pod)
        self._note_stray(number, pod)

    def _note_stray(self, number: int, pod: PodRecord) -> None:
        if pod.node in self._nodes or pod.terminating:
            take_out(self.strays, number, pod.uid)
        else:
            self.strays.setdefault(number, {})[pod.uid] = pod

    def _leave(self, number: int, group: _Group, uid: str) -> None:
        self._stale.add(number)
        group.take(uid)
        take_out(self.strays, number, uid)

    def _read(self, number: int) -> None:
        group = self._groups[number]
        if group is None:
            return
        if group.pods:
            self.by_number[number] = group.gang(self.objects)
        else:
            self._drop(number, group.named)

    def _drop(self, number: int, named: gangs.Ref) -> None:
        del self._of_name[named]
        take_out(self._named, (named.namespace, named.name), number)
        self._groups[number] = self.by_number[number] = None
        self._free.append(number)


# -- which pods belong to one workload, as far as that decides where its other pods are placed, and when they start


class Workloads:
    """Pods that are neither finished nor terminating. `siblings`: uid -> node of the bound GPU pods; `gang_pods`:
    uid -> node of the GPU pods that name a gang, "" for a pod without a node; `gang_cpu_pods`: uids of the pods without
    GPUs and without a node that name one (a launcher)."""

    def __init__(self) -> None:
        self.siblings: dict[SiblingKey, dict[str, str]] = {}
        self.gang_pods: dict[gangs.Ref, dict[str, str]] = {}
        self.gang_cpu_pods: dict[gangs.Ref, dict[str, None]] = {}
        self._keys: dict[str, tuple[gangs.Ref | None, SiblingKey | None]] = {}  # uid -> its keys in these two

    def __contains__(self, uid: str) -> bool:
        return uid in self._keys

    def gang_of(self, uid: str) -> gangs.Ref | None:
        """The gang that the pod names; None where it names none, or is not among these pods."""
        return self._keys.get(uid, (None, None))[0]

    def add(self, pod: PodRecord, named: gangs.Ref | None) -> None:
        """Add a pod with GPUs, or without a node, that is not known yet. `named`: the gang that it names."""
        key = siblings(pod) if pod.node else None
        if named is not None:
            if pod.gpus:
                self.gang_pods.setdefault(named, {})[pod.uid] = pod.node
            else:
                self.gang_cpu_pods.setdefault(named, {})[pod.uid] = None
        if key is not None:
            self.siblings.setdefault(key, {})[pod.uid] = pod.node
        self._keys[pod.uid] = named, key

    def remove(self, uid: str) -> None:
        """Remove a pod under the keys that it was added under: its owners may have changed since."""
        named, key = self._keys.pop(uid, (None, None))
        if named is not None:
            take_out(self.gang_pods, named, uid)
            take_out(self.gang_cpu_pods, named, uid)
        if key is not None:
            take_out(self.siblings, key, uid)


# -- siblings ----------------------------------------------------------------------------------------------------------
#
# Whether a pod wants to be packed or spread, and which pods are its siblings.
#
# Spread is for serving: replicas of one service on different nodes, and racks, so that no failure takes them all.


PLACEMENT = "gpu-extender.io/placement"
GPU_MODELS = "gpu-extender.io/gpu-models"
MODEL_CHOICES = ("one", "any")
APP_NAME = "app.kubernetes.io/name"
PackOrSpread = Literal["pack", "spread"]
_PACK_OR_SPREAD: dict[str, PackOrSpread] = {"pack": "pack", "spread": "spread"}
SiblingKey = tuple[str, str, str]


def pack_or_spread(pod: PodRecord, settings: Placement) -> PackOrSpread:
    """The annotation, else the settings: the first label rule that fits, then the PriorityClass, then the default. Any
    other value of the annotation is ignored."""
    text = pod.annotations.get(PLACEMENT, "").strip().lower()
    if text in _PACK_OR_SPREAD:
        return _PACK_OR_SPREAD[text]
    for rule, chosen in settings.by_label.items():
        key, equals, value = rule.partition("=")
        if key in pod.labels and (not equals or pod.labels[key] == value):
            return chosen
    return settings.by_priority_class.get(pod.priority_class, settings.default)


def mixes_models(pod: PodRecord, settings: Placement) -> bool:
    """Whether the pods of its gang may be on nodes of several GPU models though one has room: the annotation, else the
    settings. Any other value of the annotation is ignored."""
    text = pod.annotations.get(GPU_MODELS, "").strip().lower()
    return (text if text in MODEL_CHOICES else settings.gpu_models) == "any"


def siblings(pod: PodRecord) -> SiblingKey | None:
    """What its siblings have in common: the controller that owns them, else the app's name; None when it has none."""
    if pod.owner is not None:
        return pod.namespace, "owner", pod.owner.identity
    name = pod.labels.get(APP_NAME)
    return (pod.namespace, "app", name) if name else None


# -- owners ------------------------------------------------------------------------------------------------------------
#
# Which pods stand below which object: a pod's owner, its owner's owner and so on, as the walk of `gangs.owners` finds
# them.
#
# The keys that a pod was added under are remembered, and dropped as they were added: the objects may have changed
# meanwhile, and owners may own each other in a circle.


class OwnerIndex:
    """An index from an object to the uids of the pods below it. Only objects of `gangs.GROUP_KINDS` are keys."""

    def __init__(self) -> None:
        self.below: dict[gangs.ObjectKey, dict[str, None]] = {}
        self.above: dict[str, tuple[gangs.ObjectKey, ...]] = {}  # by uid of the pod; each key once

    def add(self, pod: PodRecord, objects: Mapping[gangs.ObjectKey, GroupRecord]) -> None:
        """Add the pod under each of its owners, as far as `objects` are known. It must not be there yet."""
        if pod.owner is None:
            return
        walked = gangs.owners(pod.namespace, pod.owner, objects)
        keys = tuple(dict.fromkeys(key for key in walked if key[:2] in GROUP_KINDS))
        if keys:
            self.above[pod.uid] = keys
        for key in keys:
            self.below.setdefault(key, {})[pod.uid] = None

    def drop(self, uid: str) -> None:
        """Drop the pod wherever it was added."""
        for key in self.above.pop(uid, ()):
            take_out(self.below, key, uid)
