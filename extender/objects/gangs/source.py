"""What a source of gangs is: it names the gang of a pod, and states how many pods of the gang must run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, NamedTuple
from urllib.parse import quote, unquote

from extender.objects import schema
from extender.objects.gangs.members import Members
from extender.objects.gangs.templates import Late, TemplatesSpec
from extender.objects.records import GroupRecord, PodRecord

MOST: Final = 1_000_000  # pods of a gang; a number beyond is not one

ObjectKey = tuple[str, str, str, str]  # API group, kind, namespace, name
Objects = Mapping[ObjectKey, GroupRecord]
Parts = tuple[tuple[str, int | None], ...]


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
        found = self.object(ref, objects)
        return found.minimum if found is not None else None

    def size(self, ref: Ref, members: Members, objects: Objects) -> int | None:
        """How many pods the whole gang has; None where nothing states it. `members`: those that exist."""
        found = self.object(ref, objects)
        return found.size if found is not None else None

    def object(self, ref: Ref, objects: Objects) -> GroupRecord | None:
        """The object of `kinds` that the gang is of; None where it is not known."""
        for api, kind in self.kinds:
            found = objects.get((api, kind, ref.namespace, ref.name))
            if found is not None:
                return found
        return None

    def stated(self, kind: str, spec: schema.GroupSpec, status: schema.GroupStatus) -> tuple[int | None, Parts]:
        """(how many pods must run, the same by part) that an object of `kinds` states."""
        return None, ()

    def stated_size(self, kind: str, spec: schema.GroupSpec, status: schema.GroupStatus) -> int | None:
        """How many pods run at once in all, as such an object states. None: it states no more than how many must
        run."""
        return None

    def jobs(self, name: str, spec: schema.GroupSpec) -> tuple[tuple[str, int, int], ...]:
        """(prefix of the names of its Jobs, how many Jobs, pods of each), of the Jobs that such an object creates."""
        return ()

    def succeeded(self, spec: schema.GroupSpec, status: schema.GroupStatus) -> int:
        """How many pods of such an object have succeeded, and never come again: of those that it states."""
        return 0

    def late(self, name: str, wire: schema.Group) -> tuple[Late, ...]:
        """Which pods such an object creates only once others of its pods run. `name`: of the object."""
        return ()

    def before(self, spec: schema.GroupSpec) -> tuple[str, ...]:
        """The roles whose pods complete before the others are created."""
        return ()

    def template(self, role: str, spec: TemplatesSpec) -> schema.Pod | None:
        """Of what the late pods of a role are made; None: it has no such template."""
        return None


def number(text: str) -> int | None:
    """A number of pods; None for anything else."""
    if not (text.isascii() and text.isdigit()) or len(text) > 7:
        return None
    return min(int(text), MOST)


def agreed(members: Members, key: str) -> int | None:
    """The number that all pods with the annotation `key`, one of `members.SIZES`, state alike."""
    said = members.agreed(key)
    return number(said) if said is not None else None


def parallel_pods(parallelism: int | None, completions: int | None, ended: int = 0) -> int:
    """Pods that a Job runs at once: parallelism (default 1), at most what is left to complete. `ended`: how many of its
    completions have succeeded, or have failed for good."""
    left = None if completions is None else max(0, completions - ended)
    wanted = 1 if parallelism is None else parallelism
    return wanted if left is None else min(wanted, left)


def policy_minimum(wire: schema.SchedulingPolicy | None) -> int | None:
    """`gang`: its minCount; `basic`: the pods are independent, so none must run; neither: not known."""
    if wire is None:
        return None
    return wire.gang.min_count if wire.gang is not None else 0 if wire.basic is not None else None
