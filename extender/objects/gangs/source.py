"""What a source of gangs is: it names the gang of a pod, and states how many pods of the gang must run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple
from urllib.parse import quote, unquote

from extender.objects.gangs.members import Members
from extender.objects.gangs.roles import MOST, OwnerObject, OwnerRoles, Section
from extender.objects.records import GroupRecord, PodRecord

ObjectKey = tuple[str, str, str, str]  # API group, kind, namespace, name
Objects = Mapping[ObjectKey, GroupRecord]


class Ref(NamedTuple):
    """The gang that a pod names. `part`: which of several gangs of that name (group index, replica key); `team`: whose
    pods it has where the settings keep teams of one namespace apart (extender.cluster.pods.annotation_limits)."""

    source: str
    namespace: str
    name: str
    part: str = ""
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


class Source:
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

    def named(self, pod: PodRecord) -> Ref | None:
        """The gang that the pod names itself, by its labels, annotations or specification."""
        return None

    def owns(self, api: str, kind: str) -> bool:
        """Whether pods whose owner is such an object are its gang, without naming it."""
        return False

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


def policy_minimum(policy: Section) -> int | None:
    """`gang`: its minCount; `basic`: the pods are independent, so none must run; neither: not known."""
    if policy.raw("gang") is not None:
        return policy.section("gang").number("minCount")
    return 0 if policy.raw("basic") is not None else None
