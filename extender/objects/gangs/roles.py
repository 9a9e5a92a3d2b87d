"""What an owner states of the pods that it creates: the one reading of its object, for the queue, what-if and `check`;
and what a source of gangs is, which names the gang of a pod.

Theory of operation. `OwnerObject` is the object, whose fields get their types where they are asked for. The reader of
its kind (`GangSource.read`, or a function of `other_owners.py`) returns `OwnerRoles`: each role with its template, its
number of pods, their labels and indices, and which of them are created only once others run. Everything else follows
from the roles: `record_of` makes the record of a live object, with the numbers of its gang and the pods that come late;
`pods` makes the pods of a question.
"""

from __future__ import annotations

import datetime
from collections.abc import Hashable, Iterable, Iterator, Mapping
from sys import intern
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from extender.objects import schema
from extender.objects.parts import api_group, controller, epoch, metadata, ours
from extender.objects.pods import pod_of_template
from extender.objects.queueing import role_of
from extender.objects.records import GroupRecord, LatePods, Owner, PartDomain, PodRecord
from extender.objects.schema import RecordError, read

MOST: Final = 1_000_000
"""Pods of a gang; a number beyond is not one."""
MOST_PARTS: Final = 2_000
"""Parts of one object that have a minimum of their own; of more none counts."""
MOST_LATE: Final = 2_000
"""Late pods of one object; of more the templates are not read."""
POD_INDEX: Final = "apps.kubernetes.io/pod-index"
POD_NAME: Final = "statefulset.kubernetes.io/pod-name"

Parts = tuple[tuple[str, int | None], ...]
NONE: Final[Mapping[str, str]] = {}


class _Wire(schema.Wire):
    """An owner; what a wrong field of its specification means is for the reader of its kind to say."""

    api_version: str | None = None
    kind: str | None = None
    metadata: schema.Metadata | None = None
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


_OWNER: Final = msgspec.json.Decoder(_Wire)
_POD: Final = msgspec.json.Decoder(schema.Pod | None)
_OBJECT: Final[Any] = dict[Any, Any] | None
_OBJECTS: Final[Any] = list[_OBJECT] | None
_TEXTS: Final[Any] = list[str] | None
_TEXT, _FLAG, _NUMBER, _TIME = str | None, bool | None, int | None, datetime.datetime | None


class Section:
    """One object within the JSON of an owner. A field that is absent or null is empty; one of a wrong type is a
    RecordError, which states its path."""

    __slots__ = ("_fields", "path")

    def __init__(self, fields: Mapping[str, Any] | None, path: str) -> None:
        self._fields, self.path = fields or NONE, path

    def __bool__(self) -> bool:
        return bool(self._fields)

    @property
    def fields(self) -> dict[str, Any]:
        """All of its fields."""
        return dict(self._fields)

    def at(self, key: str) -> str:
        """The path of a field."""
        return f"{self.path}.{key}" if self.path else key

    def raw(self, key: str) -> Any:
        """The value as it is stated."""
        return self._fields.get(key)

    def _read(self, key: str, of: Any) -> Any:
        value = self._fields.get(key)
        if value is None:
            return None
        try:
            return msgspec.convert(value, of)
        except schema.UNREADABLE as error:
            raise schema.record_error(error, self.at(key)) from error

    def is_object(self, key: str, field: str = "") -> bool:
        """Whether there is an object at `key`, which has the `field`."""
        value = self.raw(key)
        return isinstance(value, Mapping) and (not field or field in value)

    def section(self, key: str) -> Section:
        """An object."""
        return Section(self._read(key, _OBJECT), self.at(key))

    def sections(self, key: str) -> list[Section]:
        """A list of objects."""
        items = self._read(key, _OBJECTS) or ()
        return [Section(item, f"{self.at(key)}[{number}]") for number, item in enumerate(items)]

    def named(self, key: str) -> dict[str, Section]:
        """A map of objects."""
        inner = self.section(key)
        return {name: inner.section(name) for name in inner._fields}

    def text(self, key: str) -> str:
        """A text, "" where it is absent."""
        return self._read(key, _TEXT) or ""

    def texts(self, key: str) -> list[str]:
        """A list of texts."""
        return self._read(key, _TEXTS) or []

    def flag(self, key: str) -> bool:
        """True or false, false where it is absent."""
        return bool(self._read(key, _FLAG))

    def number(self, key: str) -> int | None:
        """A whole number of 64 bits."""
        value: int | None = self._read(key, _NUMBER)
        if value is not None and not -(2**63) <= value < 2**63:
            raise RecordError(self.at(key), "expected a whole number, not one that is too large")
        return value

    def count(self, key: str) -> int:
        """A number of pods, 1 where it is absent."""
        value = self.number(key)
        return 1 if value is None else value

    def moment(self, key: str) -> float | None:
        """A time, seconds since the epoch."""
        return epoch(self._read(key, _TIME))


class OwnerObject(NamedTuple):
    """An object that creates pods, or states how many of them must run."""

    api: str
    """Its API group."""
    kind: str
    name: str
    meta: schema.Metadata
    spec: Section
    status: Section
    others: Mapping[tuple[str, str, str, str], Any] = MappingProxyType({})
    """Of a question: the objects beside it, by API group, kind, namespace as it is stated ("" without one) and name."""

    def beside(self, api: str, kind: str, name: str) -> OwnerObject | None:
        """The object of a question that this one names: of its namespace, else one that states none."""
        keys = (api, kind, self.meta.namespace or "", name), (api, kind, "", name)
        other = next((self.others[key] for key in keys if key in self.others), None)
        return None if other is None else owner_object(other)

    @property
    def annotations(self) -> Mapping[str, str]:
        """All of its annotations."""
        return {key: text or "" for key, text in (self.meta.annotations or {}).items()}

    @property
    def namespace(self) -> str:
        """Its namespace, "default" without one."""
        return self.meta.namespace or "default"


def owner_object(source: schema.Source, api: str = "", kind: str = "") -> OwnerObject:
    """The object of JSON or YAML; `api` and `kind` where it does not state them (items of typed lists). RecordError
    where it is no object with a name."""
    wire = read(source, _OWNER)
    meta = metadata(wire.metadata)
    name = meta.name or (meta.generate_name or "").rstrip("-")
    return OwnerObject(
        api_group(wire.api_version) or api, wire.kind or kind, name, meta,
        Section(wire.spec, "spec"), Section(wire.status, "status"),
    )  # fmt: skip


class Role(msgspec.Struct, frozen=True):
    """Pods of one template: `groups` times `count` of them."""

    template: Any
    """The pod template; it is read where pods are made of it."""
    path: str
    """Where the role stands, for messages."""
    count: int
    """How many pods each group has."""
    name: str = ""
    groups: int = 1
    creator: str = ""
    """The object that creates the pods, with which their names begin. With a `group_label`: CREATOR-NUMBER."""
    group_label: str = ""
    """The label with the number of the group, "" where there is one group."""
    index_label: str = ""
    """The label with the index of a pod in its group, "" where they have none."""
    first: int = 0
    """The index of the first pod of a group."""
    labels: Mapping[str, str] = NONE
    """What the controller adds to the labels of the template."""
    notes: Mapping[str, str] = NONE
    """What the controller adds to the annotations of the template. Those of late pods are read from the pods of their
    gang that exist."""
    early: int | None = None
    """How many pods of each group are created at once, the others only once other pods run; None: all at once."""
    per_node: bool = False
    """Whether there is one of its pods on each node that the template admits."""
    before: bool = False
    """Whether its pods complete before those of the other roles are created: they are not of the gang."""

    @property
    def pods(self) -> int:
        """How many pods there are in all."""
        return max(0, self.groups) * max(0, self.count)

    def with_labels(self, labels: Mapping[str, str]) -> Role:
        """The role with more labels that the controller adds."""
        return replace(self, labels={**self.labels, **labels})

    def with_notes(self, notes: Mapping[str, str]) -> Role:
        """The role with more annotations that the controller adds."""
        return replace(self, notes={**self.notes, **notes})

    @property
    def late(self) -> int:
        """How many pods are created only once others run."""
        return 0 if self.early is None else max(0, self.groups) * max(0, self.count - self.early)


def role_at(section: Section, count: int | None = None, **more: Any) -> Role:
    """A role with `template` and `replicas` (1 where it is absent) at the usual place. `count`: instead of it."""
    number = section.count("replicas") if count is None else count
    return Role(section.raw("template"), section.at("template"), number, **more)


class OwnerRoles(NamedTuple):
    """What an owner states: the reading of its object."""

    roles: tuple[Role, ...] = ()
    """In the order of the ranks of their pods."""
    minimum: int | None = None
    """How many pods of a gang must run; None where it does not state it."""
    parts: Parts = ()
    """The same by the name of a part, where it has named parts."""
    size: int | None = None
    """How many pods of a gang run at once in all; None where it states no more than the minimum."""
    succeeded: int = 0
    """How many pods have succeeded and never come again: of those that `size` counts."""
    ends_at: float | None = None
    """When its deadline ends all of its pods, seconds since the epoch; the time runs while pods are gated."""
    gangs: int = 1
    """How many gangs it creates, each with all roles."""
    gang_label: str = ""
    """The label with the number of the gang."""
    gang_labels: Mapping[str, str] = NONE
    """Labels of all pods where there are several gangs."""
    stated_in: tuple[str, str] | None = None
    """(API group, kind) of the object of the same name that its controller creates to state the minimum; None: it
    states the minimum itself."""
    owned_by: tuple[str, str] | None = None
    """(API group, kind) of the object of the same name that its controller creates to own the pods; None: it owns them
    itself."""
    name: str = ""
    """Of the object that states the minimum, "" where it has the name of the owner."""
    assumed: tuple[str, ...] = ()
    """What the object does not state and was assumed, for people."""
    domain: tuple[str, bool] | None = None
    """The level at which the pods of a gang shall be together, and whether they must be."""
    part_domains: tuple[PartDomain, ...] = ()
    """What it requires of parts of its pods."""
    unchecked: tuple[str, ...] = ()
    """What it states of the places of its pods and is not read, for people."""
    failures_left: int | None = None
    """How many of its pods may be evicted before it creates no others; None: any number."""
    beside: tuple[Mapping[str, Any], ...] = ()
    """Objects that its controller creates, and that decide where the pods go: the templates of their claims."""


# -- the record of a live object


def record_of(owner: OwnerObject, stated: OwnerRoles, kinds: Mapping[Any, Any], gpus: frozenset[str]) -> GroupRecord:
    """The record. `kinds`: of owners that count as its own owner; `gpus`: the resources that count as GPUs."""
    above = controller(owner.meta)
    late_pods, unread = _late_pods(owner, stated, gpus)
    return GroupRecord(
        uid=owner.meta.uid or "",
        api=owner.api,
        kind=owner.kind,
        namespace=intern(owner.namespace),
        name=owner.name,
        resource_version=owner.meta.resource_version or "",
        minimum=stated.minimum,
        parts=stated.parts if len(stated.parts) <= MOST_PARTS else (),
        owner=above if above is not None and (above.api, above.kind) in kinds else None,
        size=stated.size,
        late=sum(role.late for role in stated.roles),
        late_pods=late_pods,
        unread=unread,
        ends_at=stated.ends_at,
        before=tuple(sorted(role.name for role in stated.roles if role.before and role.name)),
        jobs=tuple(
            (f"{role.creator}-", role.groups, role.count)
            for role in stated.roles
            if role.group_label and role.pods and not role.before
        ),
        succeeded=stated.succeeded,
        domain=stated.domain,
        part_domains=stated.part_domains,
        unchecked=stated.unchecked,
        failures_left=stated.failures_left,
    )


def _late_pods(owner: OwnerObject, stated: OwnerRoles, gpus: frozenset[str]) -> tuple[tuple[LatePods, ...], str]:
    """(the pods that are created late, "" or why their templates cannot be read)."""
    late = [role for role in stated.roles if role.late]
    if (number := sum(role.late for role in late)) > MOST_LATE:
        return (), f"it creates {number} pods later, and the templates of {MOST_LATE} at most are read"
    try:
        return tuple(pods for role in late for pods in _late_of(role, owner.namespace, gpus)), ""
    except RecordError as error:
        return (), f"its pod templates cannot be read: {error}"


def _late_of(role: Role, namespace: str, gpus: frozenset[str]) -> Iterator[LatePods]:
    # They stand for pods that are released: neither gates nor a node of the template count.
    template = replace(_template(role, namespace, gpus), gates=(), node="")
    for group in range(role.groups):
        creator = f"{role.creator}-{group}" if role.group_label else role.creator
        pod = _labelled(template, role, {role.group_label: str(group)} if role.group_label else NONE)
        first = role.first + (role.early or 0)
        yield LatePods(template=pod, creator=creator, label=role.index_label, first=first, end=role.first + role.count)


# -- the pods of a question


def pods(owner: OwnerObject, stated: OwnerRoles, gpus: frozenset[str]) -> Iterator[PodRecord]:
    """All pods of the owner, as if none existed, labelled as its controller labels them, so that their gangs and ranks
    are known. They have no names. RecordError where a number or a template makes no pods."""
    api, kind = stated.owned_by or (owner.api, owner.kind)
    above = Owner(kind, owner.name, owner.meta.uid or "", api)
    roles = stated.roles
    _check_number(stated.gangs, owner.spec.path)
    for role in roles:
        _check_number(role.groups, role.path)
        _check_number(role.count, role.path)
    templates: dict[int, PodRecord] = {}  # read as they are needed: most pods of a hostile owner are not
    for gang in range(stated.gangs):
        gang_labels = {**stated.gang_labels, stated.gang_label: str(gang)} if stated.gang_label else NONE
        for at, role in enumerate(roles):
            if not role.pods:
                continue
            template = templates.get(at) or templates.setdefault(at, _template(role, owner.namespace, gpus))
            notes = {**template.annotations, **ours(role.notes)}
            for labels in _labels(role, gang_labels):
                yield replace(_labelled(template, role, labels), annotations=notes, owner=above)


def _check_number(number: int, path: str) -> None:
    if not 0 <= number <= MOST:
        raise RecordError(path, f"{number} is not a number of pods, 0 to {MOST}")


def _labels(role: Role, gang_labels: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """The labels of each pod of a role that not all of its pods have."""
    for group in range(role.groups):
        group_labels = {**gang_labels, role.group_label: str(group)} if role.group_label else gang_labels
        for index in range(role.first, role.first + role.count):
            labels = {**group_labels, role.index_label: str(index)} if role.index_label else group_labels
            yield {**labels, POD_NAME: f"{role.creator}-{index}"} if role.index_label == POD_INDEX else labels


def _labelled(template: PodRecord, role: Role, labels: Mapping[str, str]) -> PodRecord:
    """A pod of the template, with the labels that the controller adds."""
    return replace(template, labels={**template.labels, **role.labels, **labels})


def _template(role: Role, namespace: str, gpus: frozenset[str]) -> PodRecord:
    """The record of the role's pod template."""
    try:
        wire = read(role.template, _POD) if isinstance(role.template, Mapping) else None
        return pod_of_template(wire or schema.Pod(), namespace, gpus)
    except RecordError as error:
        raise RecordError(f"{role.path}.{error.path}".rstrip("."), error.message) from error


# -- pod templates of owners that state less than a template: a specification alone, the resources of one container, or
# a patch of another template


CONTAINER: Final = "main"
POD_FIELDS: Final = ("nodeSelector", "tolerations", "affinity", "schedulerName", "priorityClassName", "resourceClaims")


def of_spec(spec: Any, labels: Any = None, annotations: Any = None) -> dict[str, Any]:
    """The template with this specification of a pod."""
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


def of_container(
    resources: Any, fields: Mapping[str, Any] | None = None, name: str = CONTAINER, **more: Any
) -> dict[str, Any]:
    """A template with one container of these resources; `fields`: an object that has some of POD_FIELDS; `name`: of the
    container."""
    return of_spec({**pod_fields(fields or {}), "containers": [{"name": name, "resources": resources}]}, **more)


def pod_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those of POD_FIELDS that it has."""
    return {name: fields[name] for name in POD_FIELDS if fields.get(name) is not None}


def patched(base: Any, patch: Any) -> Any:
    """The base with a patch as kubectl's strategic merge applies it: objects by field, lists of objects with a `name`
    by that name, all else replaced; null removes."""
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        merged = dict(base)
        for name, value in patch.items():
            if value is None:
                merged.pop(name, None)
            else:
                merged[name] = patched(base.get(name), value)
        return merged
    if _named(base) and _named(patch):
        by_name = {entry["name"]: entry for entry in base}
        for entry in patch:
            by_name[entry["name"]] = patched(by_name.get(entry["name"]), entry)
        return list(by_name.values())
    return patch


def _named(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(entry, Mapping) and isinstance(entry.get("name"), str) for entry in value)


# -- a source of gangs: it names the gang of a pod, and states how many pods of the gang must run


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
    marks: ClassVar[tuple[str, ...]] = ()
    """Labels and annotations, of which a pod that names its gang has one. `named` reads the label that is the first."""
    owning: ClassVar[bool] = False
    """Whether pods whose owner is an object of `kinds` are its gang, without naming it."""

    def named(self, pod: PodRecord) -> Ref | None:
        """The gang that the pod names itself, by its labels, annotations or specification."""
        name = pod.labels.get(self.marks[0])
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
    """The number that all pods with the annotation `key`, OUR_MINIMUM or one of SIZES, state alike."""
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
