"""What a source of gangs is: it names the gang of a pod, and states how many pods of the gang must run."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import ClassVar, Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from extender.objects.gangs.roles import MOST, OwnerObject, OwnerRoles
from extender.objects.queueing import role_of
from extender.objects.records import GroupRecord, PodRecord

ObjectKey = tuple[str, str, str, str]  # API group, kind, namespace, name
Objects = Mapping[ObjectKey, GroupRecord]


class Ref(NamedTuple):
    """The gang that a pod names."""

    source: str
    namespace: str
    name: str
    part: str = ""  # which of several gangs of that name (group index, replica key)
    # whose pods it has where the settings keep teams of one namespace apart (extender.cluster.annotation_limits)
    team: str = ""

    def __str__(self) -> str:
        return self._path(self.name) + (f"@{self.team}" if self.team else "")

    @property
    def text(self) -> str:
        """SOURCE[@TEAM]:NAMESPACE/NAME, with its part: the name of the gang in its seats. A name that an annotation
        states may have a "/": it is escaped here, so that `of` finds its end; and so is a team."""
        name = self.name
        if "/" in name or "%" in name:
            name = name.replace("%", "%25").replace("/", "%2F")
        team = f"@{quote(self.team, safe='')}" if self.team else ""
        return f"{self.source}{team}:{self._path(name)}"

    @classmethod
    def of(cls, text: str) -> Ref:
        """The Ref of a `text`."""
        head, _, path = text.partition(":")
        source, _, team = head.partition("@")
        namespace, name, part = (*path.split("/", 2), "", "")[:3]
        return cls(source, namespace, unquote(name), part, unquote(team))

    def _path(self, name: str) -> str:
        return f"{self.namespace}/{name}" + (f"/{self.part}" if self.part else "")


class GangSource:
    """A system that makes gangs. A new one is a subclass in a file of this package and a line in SOURCES."""

    name: ClassVar[str]
    states: ClassVar[str]
    """What states how many pods must run, for people."""
    kinds: ClassVar[tuple[tuple[str, str], ...]] = ()
    """(API group, kind) of the objects that state it."""
    creates: ClassVar[bool] = True
    """Whether pods are created of these objects, by templates that they have."""
    alone: ClassVar[bool] = True
    """Whether one pod is a gang too."""
    label: ClassVar[str] = ""
    """The label of a pod that names its gang; "": no label does."""
    owning: ClassVar[bool] = False
    """Whether pods whose owner is an object of `kinds` are its gang, without naming it."""

    def named(self, pod: PodRecord) -> Ref | None:
        """The gang that the pod names itself, by its labels, annotations or specification."""
        name = pod.labels.get(self.label)
        return Ref(self.name, pod.namespace, name) if name else None

    def owns(self, api: str, kind: str) -> bool:
        """Whether pods whose owner is such an object are its gang, without naming it."""
        return self.owning and (api, kind) in self.kinds

    def minimum(self, ref: Ref, members: Members, objects: Objects) -> int | None:
        """How many pods of the gang must run; None where nothing states it. `members`: those that run."""
        owner = self.object(ref, objects)
        return owner.minimum if owner is not None else None

    def size(self, ref: Ref, members: Members, objects: Objects) -> int | None:
        """How many pods the whole gang has; None where nothing states it. `members`: those that exist."""
        owner = self.object(ref, objects)
        return owner.size if owner is not None else None

    def object(self, ref: Ref, objects: Objects) -> GroupRecord | None:
        """The object of `kinds` that the gang is of; None where it is not known."""
        for api, kind in self.kinds:
            owner = objects.get((api, kind, ref.namespace, ref.name))
            if owner is not None:
                return owner
        return None

    def read(self, owner: OwnerObject) -> OwnerRoles:
        """What an object of `kinds` states."""
        return OwnerRoles()


def number(text: str) -> int | None:
    """A number of pods; None for anything else."""
    if not (text.isascii() and text.isdigit()) or len(text) > 7:
        return None
    return min(int(text), MOST)


def agreed(members: Members, key: str) -> int | None:
    """The number that all pods with the annotation `key`, one of `members.SIZES`, state alike."""
    text = members.agreed(key)
    return number(text) if text is not None else None


# -- what the pods of one gang state, counted: a pod more or less costs the same however many there are


OUR_MINIMUM: Final = "gpu-extender.io/gang-min"
OUR_SIZE: Final = "gpu-extender.io/gang-size"
SIZES: Final = ("kueue.x-k8s.io/pod-group-total-count", "leaderworkerset.sigs.k8s.io/size", OUR_SIZE)
"""Annotations by which pods state the size of their gang."""
Key = TypeVar("Key", bound=Hashable)


class Members:
    """Counts pods, and how often each text that concerns their gang is stated."""

    __slots__ = ("_groups", "_roles", "_texts", "count")

    def __init__(self, pods: Iterable[PodRecord] = ()) -> None:
        self.count = 0
        # Most gangs state nothing on their pods, and there may be one gang a pod: no counter is made before its use.
        self._texts: dict[str, dict[str, int]] | None = None  # key -> text -> pods that state it
        self._groups: dict[tuple[str, str, str], int] | None = None
        self._roles: dict[str, int] | None = None
        for pod in pods:
            self._step(pod, 1)

    def add(self, pod: PodRecord) -> None:
        """Count a pod that is not counted."""
        self._step(pod, 1)

    def remove(self, pod: PodRecord) -> None:
        """Count a pod no more: the same record that was added."""
        self._step(pod, -1)

    @property
    def group(self) -> tuple[str, str, str] | None:
        """`spec.schedulingGroup` or `spec.workloadRef` of the pods; the first where they differ."""
        return min(self._groups) if self._groups else None

    def agreed(self, key: str) -> str | None:
        """The text of OUR_MINIMUM or of one of SIZES that all pods state which state any; None: there is none."""
        texts = self._texts.get(key) if self._texts is not None else None
        return next(iter(texts)) if texts is not None and len(texts) == 1 else None

    def of_role(self, role: str) -> int:
        """How many of the pods have this role (`queueing.role_of`)."""
        return (self._roles or {}).get(role, 0)

    def _step(self, pod: PodRecord, by: int) -> None:
        labels, notes = pod.labels, pod.annotations
        text = labels.get(OUR_MINIMUM) or notes.get(OUR_MINIMUM)
        if text is not None:
            self._text(OUR_MINIMUM, text, by)
        for key in SIZES:
            if key in notes:
                self._text(key, notes[key], by)
        if pod.group is not None:
            if self._groups is None:
                self._groups = {}
            _count(self._groups, pod.group, by)
        if role := role_of(pod):
            if self._roles is None:
                self._roles = {}
            _count(self._roles, role, by)
        self.count += by

    def _text(self, key: str, text: str, by: int) -> None:
        if self._texts is None:
            self._texts = {}
        texts = self._texts.setdefault(key, {})
        _count(texts, text, by)


def _count(counts: dict[Key, int], key: Key, by: int) -> None:
    number = counts.get(key, 0) + by
    if number:
        counts[key] = number
    else:
        counts.pop(key, None)
