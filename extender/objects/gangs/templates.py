"""The pods that an owner creates only once others of its pods run: which they are, and what they will ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from extender.objects import schema
from extender.objects.records import LatePods, PodRecord, pod_of_template

MOST_LATE: Final = 2_000
"""Late pods of one object; of more the templates are not read."""


class Templated(schema.Wire):
    """Anything that has a pod template."""

    name: str | None = None
    template: schema.Pod | None = None


class JobOfSet(schema.Wire):
    """A Job in a JobSet, as far as its pods are concerned."""

    spec: Templated | None = None


class ReplicatedTemplate(schema.Wire):
    """A replicated Job of a JobSet, as far as its pods are concerned."""

    name: str | None = None
    template: JobOfSet | None = None


class LeaderWorkerPods(schema.Wire):
    """The pods of a LeaderWorkerSet."""

    worker_template: schema.Pod | None = None


class TemplatesSpec(schema.Wire):
    """The pod templates of the objects that create part of their pods late; each kind has some of these."""

    template: schema.Pod | None = None  # StatefulSet
    replicated_jobs: list[ReplicatedTemplate] | None = None  # JobSet
    leader_worker_template: LeaderWorkerPods | None = None  # LeaderWorkerSet
    mpi_replica_specs: dict[str, Templated] | None = None  # MPIJob


class Templates(schema.Wire):
    """An object with pod templates. It is read apart from Group: what is wrong in a template makes no number of pods
    unreadable."""

    spec: TemplatesSpec | None = None


class Late(NamedTuple):
    """Pods that an object creates only once others of its pods run. `role`: which template they have; `creator`: the
    object that creates them, with which their names begin; `label`: the label that has their index, "" without one;
    `first`, `end`: the indices; `labels`: what they carry besides the labels of the template. With a label `group`
    there are `groups` of them: "CREATOR-NUMBER" creates each, and that label has its number."""

    role: str
    creator: str
    label: str
    first: int
    end: int
    labels: tuple[tuple[str, str], ...] = ()
    group: str = ""
    groups: int = 1

    @property
    def pods(self) -> int:
        """How many they are."""
        return max(0, self.groups) * max(0, self.end - self.first)


_TEMPLATES: Final = msgspec.json.Decoder(Templates)


def read_late(
    source: schema.Source,
    late: Sequence[Late],
    template: Callable[[str, TemplatesSpec], schema.Pod | None],
    namespace: str,
    gpus: frozenset[str],
) -> tuple[tuple[LatePods, ...], str]:
    """(the late pods of an object, "" or why their templates cannot be read). `template`: by the role."""
    if not late:
        return (), ""
    if (pods := sum(one.pods for one in late)) > MOST_LATE:
        return (), f"it creates {pods} pods later, and the templates of {MOST_LATE} at most are read"
    try:
        spec = schema.read(source, _TEMPLATES).spec or TemplatesSpec()
        templates = [pod_of_template(template(one.role, spec), namespace, gpus) for one in late]
    except schema.RecordError as error:
        return (), f"its pod templates cannot be read: {error}"
    return tuple(pods for one, made in zip(late, templates, strict=True) for pods in _of_template(one, made)), ""


def _of_template(late: Late, template: PodRecord) -> Iterator[LatePods]:
    for number in range(late.groups):
        creator, labels = late.creator, template.labels | dict(late.labels)
        if late.group:
            creator, labels = f"{creator}-{number}", labels | {late.group: str(number)}
        pod = msgspec.structs.replace(template, labels=labels)
        yield LatePods(template=pod, creator=creator, label=late.label, first=late.first, end=late.end)
