"""What a source of gangs is: it names the gang of a pod, and states how many pods of the gang must run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, NamedTuple

from extender.objects import schema
from extender.objects.gangs.members import Members
from extender.objects.records import GroupRecord, PodRecord

MOST: Final = 1_000_000  # pods of a gang; a number beyond is not one

ObjectKey = tuple[str, str, str, str]  # API group, kind, namespace, name
Objects = Mapping[ObjectKey, GroupRecord]
Parts = tuple[tuple[str, int | None], ...]


class Ref(NamedTuple):
    """The gang that a pod names. `part`: which of several gangs of that name (group index, replica key)."""

    source: str
    namespace: str
    name: str
    part: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" + (f"/{self.part}" if self.part else "")


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
        for api, kind in self.kinds:
            found = objects.get((api, kind, ref.namespace, ref.name))
            if found is not None and found.minimum is not None:
                return found.minimum
        return None

    def stated(self, kind: str, spec: schema.GroupSpec, status: schema.GroupStatus) -> tuple[int | None, Parts]:
        """(how many pods must run, the same by part) that an object of `kinds` states."""
        return None, ()


def number(text: str) -> int | None:
    """A number of pods; None for anything else."""
    if not (text.isascii() and text.isdigit()) or len(text) > 7:
        return None
    return min(int(text), MOST)


def agreed(members: Members, key: str) -> int | None:
    """The number that all pods with the annotation `key`, one of `members.SIZES`, state alike."""
    said = members.agreed(key)
    return number(said) if said is not None else None


def parallel_pods(parallelism: int | None, completions: int | None, succeeded: int | None) -> int:
    """Pods that a Job runs at once: parallelism (default 1), at most what is left to complete."""
    left = None if completions is None else max(0, completions - (succeeded or 0))
    wanted = 1 if parallelism is None else parallelism
    return wanted if left is None else min(wanted, left)


def policy_minimum(wire: schema.SchedulingPolicy | None) -> int | None:
    """`gang`: its minCount; `basic`: the pods are independent, so none must run; neither: not known."""
    if wire is None:
        return None
    return wire.gang.min_count if wire.gang is not None else 0 if wire.basic is not None else None
