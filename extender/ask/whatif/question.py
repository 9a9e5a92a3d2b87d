"""What is asked: pods and owners of pods, pods of the cluster by name, and changes of the nodes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from extender.ask.warn import unread_fields
from extender.errors import BadCluster, BadInput
from extender.objects import decode, gangs, records
from extender.objects.gangs.roles import Section
from extender.objects.parts import api_group
from extender.objects.queueing import QUEUEING, gated
from extender.objects.records import Event, GroupRecord, PodRecord
from extender.objects.resources import QuantityError, nano

MOST_PODS: Final = 1_000
"""Pods of one question."""
MOST_ADDED: Final = 1_000
"""Nodes that one question adds."""
COMPUTE_DOMAIN: Final = "ComputeDomain"
CHANNEL_CLASS: Final = "compute-domain-default-channel.nvidia.com"
BESIDE: Final[dict[tuple[str, str], records.Kind]] = {
    ("resource.k8s.io", "ResourceClaim"): "ResourceClaim",
    ("resource.k8s.io", "ResourceClaimTemplate"): "ResourceClaimTemplate",
    ("resource.k8s.io", "DeviceClass"): "DeviceClass",
    ("resource.nvidia.com", COMPUTE_DOMAIN): "ResourceClaimTemplate",  # which its controller creates
    ("", "ResourceQuota"): "ResourceQuota",
    ("scheduling.k8s.io", "PriorityClass"): "PriorityClass",
    ("policy", "PodDisruptionBudget"): "PodDisruptionBudget",
}
"""Objects that make no pods and decide about those that are asked about, by API group and kind."""
SCALERS: Final = {
    ("autoscaling", "HorizontalPodAutoscaler"): ("minReplicas", 1, "maxReplicas"),
    ("keda.sh", "ScaledObject"): ("minReplicaCount", 0, "maxReplicaCount"),
}
"""Objects that keep the replicas of another one between two bounds: their fields, and the lower bound where it is
not stated."""
WRAPPERS: Final = {
    ("workload.codeflare.dev", "AppWrapper"): (
        ("spec.components", "template"), ("spec.resources.GenericItems", "generictemplate"),
    ),
    ("work.open-cluster-management.io", "ManifestWork"): (("spec.workload.manifests", ""),),
    ("template.openshift.io", "Template"): (("objects", ""),),
    ("kubeflow.org", "Experiment"): (("spec.trialTemplate", "trialSpec"),),
}  # fmt: skip
"""Objects with whole objects in them: where these are."""
TRIALS: Final = 3
"""Trials of a Katib experiment that run side by side where it does not state their number."""
RUNTIME_CLASS: Final = ("node.k8s.io", "RuntimeClass")
NAMESPACE: Final = ("", "Namespace")
MOST_DEPTH: Final = 8
"""Lists within lists."""


class Document(NamedTuple):
    """One object of a question, and where it stands, for messages."""

    item: Any
    path: str


class Added(NamedTuple):
    """Nodes to add."""

    nodes: int
    what: str
    """catalogue:ID, the value of a topology annotation, or the name of a node that they are like."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What is done to the nodes of the copy first: `add`, then `cordon`, then `drain`."""

    add: tuple[Added, ...] = ()
    cordon: tuple[str, ...] = ()
    """Names of nodes."""
    drain: tuple[str, ...] = ()
    """Names of nodes."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked."""

    pods: tuple[PodRecord, ...] = ()
    """In the order in which they are placed."""
    expanded: frozenset[tuple[str, str]] = frozenset()
    """(namespace, name) of the pods that were made of an owner."""
    per_node: frozenset[tuple[str, str]] = frozenset()
    """(namespace, name) of the pods that stand for one on each node (DaemonSet)."""
    named: tuple[tuple[str, str], ...] = ()
    """(namespace, name) of pods of the cluster, which come after `pods`."""
    groups: tuple[GroupRecord, ...] = ()
    """Objects that state how many pods must run."""
    ignored: tuple[str, ...] = ()
    """Kinds of objects that make no pods."""
    changes: Changes = Changes()
    holdings: bool = True
    """Whether the answer states which pod holds which GPUs."""
    objects: tuple[Event, ...] = ()
    """Of the kinds BESIDE."""
    unread: tuple[str, ...] = ()
    """Fields of the objects that are not read, for people."""
    assumed: tuple[str, ...] = ()
    """What owners do not state and was assumed, for people."""
    repeated: tuple[str, ...] = ()
    """Keys of the manifest that are repeated, for people."""
    rejected: tuple[str, ...] = ()
    """Objects that cannot be read, or that the API server would not write, for people."""

    @property
    def of_drain(self) -> bool:
        """Whether it asks where the pods of the drained nodes go: there is a drain, and no pod."""
        return bool(self.changes.drain) and not self.pods and not self.named


def read(
    documents: Iterable[Document],
    gpus: frozenset[str],
    named: Sequence[tuple[str, str]] = (),
    changes: Changes | None = None,
) -> Question:
    """The question. Objects that cannot be read, or that the API server would not write, are left out. BadCluster: no
    pod is left then. BadInput: there is no pod in it and no drain, or more than MOST_PODS."""
    reading = _Reading(gpus, len(named))
    unwrapped: list[Document] = []
    for document in documents:
        with reading.left_out(document):
            unwrapped += list(_items(document, 0))
    reading.all(_once(unwrapped, reading.assumed))
    pods, assumed, ignored = reading.pods, reading.assumed, reading.ignored
    if not (pods or named) and reading.rejected:
        raise reading.rejected[0][1]
    if not pods and not named and not assumed and not (changes and changes.drain and not ignored):
        raise _no_pod(ignored)
    _alone(pods)
    pods = [gated(pod) if pod.namespace in reading.queueing else pod for pod in pods]
    return Question(
        tuple(pods), frozenset(reading.expanded), frozenset(reading.per_node), tuple(dict.fromkeys(named)),
        tuple(reading.groups), tuple(sorted(ignored)), changes or Changes(), objects=tuple(reading.objects),
        unread=tuple(text for entry in unwrapped for text in unread_fields(entry.item)), assumed=tuple(assumed),
        rejected=tuple(f"{name} is left out: {error}" for name, error in reading.rejected),
    )  # fmt: skip


class _Others(dict[tuple[str, str, str, str], Any]):
    """The objects of a question, by API group, kind, namespace and name. `read`: the kinds of those that an owner has
    read."""

    def __init__(self, objects: Mapping[tuple[str, str, str, str], Any]) -> None:
        super().__init__(objects)
        self.read: set[str] = set()

    def __getitem__(self, key: tuple[str, str, str, str]) -> Any:
        self.read.add(key[1])
        return super().__getitem__(key)


class _Reading:
    """What is read of the objects of a question."""

    def __init__(self, gpus: frozenset[str], named: int) -> None:
        """`named`: how many pods of the cluster it names."""
        self._gpus, self._named = gpus, named
        self.rejected: list[tuple[str, BadCluster]] = []
        self.assumed: list[str] = []
        self.pods: list[PodRecord] = []
        self.expanded: list[tuple[str, str]] = []
        self.per_node: list[tuple[str, str]] = []
        self.groups: list[GroupRecord] = []
        self.objects: list[Event] = []
        self.ignored: dict[str, None] = {}
        self.queueing: set[str] = set()
        """Namespaces of the question whose pods the policy of the queue gates."""
        self._names: dict[tuple[str, str], str] = {}

    @contextmanager
    def left_out(self, document: Document) -> Iterator[None]:
        """An object that cannot be read, or that the API server would not write, is left out."""
        try:
            yield
        except BadCluster as error:
            item = document.item if isinstance(document.item, dict) else {}
            namespace, name = _key(item)
            self.rejected.append((f"{item.get('kind')} {namespace or 'default'}/{name}", error))

    def all(self, entries: Sequence[Document]) -> None:
        """Read the objects. BadInput: there are too many pods."""
        bounds: dict[tuple[str, str, str], tuple[int, int | None]] = {}
        for entry in entries:
            if _kind(*entry)[::-1] in SCALERS:
                with self.left_out(entry):
                    bounds.update([_bounds(entry)])
        owned = {key for entry in entries if _stands_for_pods(entry) for key in _owner(entry.item)}
        others = _Others(
            {(api, kind, *_key(item)): item for item, path in entries for kind, api in (_kind(item, path),)}
        )
        classes = {name: item for (api, kind, _, name), item in others.items() if (api, kind) == RUNTIME_CLASS}
        for item, path in entries:
            kind, api = _kind(item, path)
            with self.left_out(Document(item, path)), _read_at(path):
                if _is_beside(item, kind, api):
                    self._beside(item, kind, api)
                elif kind == "Pod":
                    validated(item, kind, api)
                    self.pods.append(records.pod(with_runtime_class(item, classes), self._gpus))
                elif (api, kind) == NAMESPACE:
                    if Section(item, "").section("metadata").section("labels").raw(QUEUEING) == "enabled":
                        self.queueing.add(_key(item)[1])
                elif (api, kind) not in (*SCALERS, RUNTIME_CLASS):
                    owner = _read_owner(_scaled(item, bounds), path, self._gpus, others)
                    owner = owner and owner.changed(lambda template: with_runtime_class(template, classes))
                    self._owner(item, path, owner, (kind, *_key(item)) in owned)
            if len(self.pods) + self._named > MOST_PODS:
                raise BadInput(f"more than {MOST_PODS} pods; ask about fewer at once", path=path)
        self.ignored = {kind: None for kind in self.ignored if kind not in others.read}

    def _beside(self, item: dict[str, Any], kind: str, api: str) -> None:
        """An object that makes no pods and decides about them."""
        if (api, kind) in gangs.GROUP_KINDS:
            self.groups.append(gangs.group(item, gpus=self._gpus))
        if beside := BESIDE.get((api, kind)):
            validated(item, kind, api)
            stated = _channels(item) if kind == COMPUTE_DOMAIN else [item]
            self.objects += [Event(beside, "set", decode.record(beside, entry, self._gpus)) for entry in stated]

    def _owner(self, item: dict[str, Any], path: str, owner: gangs.OwnerPods | None, stands_there: bool) -> None:
        """An owner of pods, or what is none. `stands_there`: whether what it owns does."""
        kind, api = _kind(item, path)
        if owner is None or not owner.creates:
            self.ignored[kind] = None
            return
        validated(item, kind, api, owner)
        created, stated = _created(owner, path, None if stands_there else MOST_PODS - len(self.pods))
        self.objects += [*_claims(owner, self._gpus)]
        if _claims_volumes(item):
            created = [msgspec.structs.replace(pod, volumes=True) for pod in created]
        created = _with_kind(created, kind, self._names)
        self.pods += created
        self.groups += stated if created or (api, kind) in gangs.GROUP_KINDS else ()
        self.expanded += [(pod.namespace, pod.name) for pod in created]
        self.per_node += [(pod.namespace, pod.name) for pod in created] if owner.per_node else ()
        self.assumed += owner.assumed
        if not stands_there:
            self.assumed += _idle(owner, f"{kind} {_key(item)[1]}", created)


def _claims_volumes(item: dict[str, Any]) -> bool:
    """Whether an owner creates PersistentVolumeClaims for its pods."""
    spec = Section(item, "").section("spec")
    places = (spec, "volumeClaimTemplates"), (spec, "volumeClaimPolicies")
    inner = spec.section("leaderWorkerTemplate") if spec.is_object("leaderWorkerTemplate") else Section({}, "")
    return any(section.raw(key) for section, key in (*places, (inner, "volumeClaimTemplates")))


def _is_beside(item: dict[str, Any], kind: str, api: str) -> bool:
    return (api, kind) in BESIDE or ((api, kind) in gangs.GROUP_KINDS and not gangs.creates_pods(api, kind))


def validated(item: dict[str, Any], kind: str, api: str, owner: gangs.OwnerPods | None = None) -> None:
    """RecordError where the API server would not write an object, or not the pods that it creates."""
    spec = item.get("spec")
    reason: Reason | None = None
    if kind == "Pod":
        reason = invalid_pod(spec, "spec")
    elif (api, kind) == ("resource.k8s.io", "ResourceClaim"):
        reason = invalid_claim(spec, "spec")
    elif (api, kind) == ("resource.k8s.io", "ResourceClaimTemplate"):
        reason = invalid_claim(spec.get("spec") if isinstance(spec, dict) else None, "spec.spec")
    elif owner is not None:
        native = api in ("apps", "batch")
        reasons = [invalid_selector(spec, "spec")] if api == "apps" else []
        for at, template in owner.templates:
            inner = template.get("spec") if isinstance(template, Mapping) else None
            reasons.append(invalid_pod(inner, f"{at}.spec", written=native))
        reason = next(filter(None, reasons), None)
    if reason is not None:
        raise records.RecordError(*reason)


def _no_pod(ignored: Iterable[str]) -> BadInput:
    """The error of a question without pods. `ignored`: kinds that could not be read."""
    text = f": {', '.join(sorted(ignored))} has no pod template that can be read" if ignored else ""
    readable = f"; kinds that are read: {', '.join(gangs.creators())}, and any with a pod template" if ignored else ""
    return BadInput(f"there is no pod in it{text}{readable}", path="--filename")


def _idle(owner: gangs.OwnerPods, name: str, created: Sequence[PodRecord]) -> Iterator[str]:
    """Why an owner creates no pod, or none with GPUs, where that is for want of replicas."""
    if not created:
        yield f"{name} {'has no replicas' if owner.has_roles else 'states no pods'}: it creates no pod"
    elif owner.idle and not any(pod.gpus or pod.claim_refs for pod in created):
        yield f"{', '.join(owner.idle)} of {name} has no replicas: it creates no pod"


def _channels(domain: Any) -> list[Any]:
    """The template of claims for a channel that the controller of a ComputeDomain creates, if it states one."""
    spec = domain.get("spec")
    channel = spec.get("channel") if isinstance(spec, dict) else None
    template = channel.get("resourceClaimTemplate") if isinstance(channel, dict) else None
    if not isinstance(template, dict) or not isinstance(name := template.get("name"), str):
        return []
    requests = [{"name": "channel", "exactly": {"deviceClassName": CHANNEL_CLASS}}]
    metadata = {"name": name, "namespace": _key(domain)[0]}
    return [{"metadata": metadata, "spec": {"spec": {"devices": {"requests": requests}}}}]


def _claims(owner: gangs.OwnerPods, gpus: frozenset[str]) -> Iterator[Event]:
    """What the owner's controller creates beside its pods."""
    for created in owner.beside:
        yield Event(created["kind"], "set", decode.record(created["kind"], created, gpus))


def _items(document: Document, depth: int) -> Iterator[Document]:
    """The objects of a document: itself, or those of a List or of WRAPPERS."""
    item, path = document
    kind, api = _kind(item, path)
    if (api, kind) in WRAPPERS and depth < MOST_DEPTH:
        for place in WRAPPERS[api, kind]:
            for inner in _wrapped(item, path, *place):
                yield from _items(inner, depth + 1)
        return
    if not kind.endswith("List"):
        yield document
        return
    inner = item.get("items")
    if depth == MOST_DEPTH or (inner is not None and not isinstance(inner, list)):
        raise BadCluster("items is not a list" if depth < MOST_DEPTH else "lists nested too deep", path=path)
    typed = kind.removesuffix("List")
    for number, member in enumerate(inner or ()):
        if typed and isinstance(member, dict):  # typed lists leave the items' kind out
            member = {"kind": typed, "apiVersion": item.get("apiVersion")} | member
        yield from _items(Document(member, f"{path}.items[{number}]"), depth + 1)


def _wrapped(item: dict[str, Any], path: str, place: str, field: str) -> Iterator[Document]:
    """The objects at a place of a wrapper: those of a list, or of a Katib experiment as many as run side by side, which
    have the names of their trials."""
    try:
        section = Section(item, path)
        *outer, last = place.split(".")
        for key in outer:
            section = section.section(key)
        if section.is_object(last):
            inner, number = section.section(last), section.number("parallelTrialCount")
            for trial in range(min(TRIALS if number is None else number, MOST_PODS + 1)):
                meta = {"name": f"{_key(item)[1]}-{trial}", "namespace": _key(item)[0]}
                yield Document(inner.section(field).fields | {"metadata": meta}, inner.at(field))
            return
        for entry in section.sections(last):
            yield Document(entry.raw(field), entry.at(field)) if field else Document(entry.fields, entry.path)
    except records.RecordError as error:
        raise BadCluster(error.message, path=error.path) from error


def _once(entries: list[Document], assumed: list[str]) -> list[Document]:
    """The objects with names of their own: of several with one `generateName` the further ones are numbered, and of one
    that is repeated the last counts, as `kubectl apply` leaves it. Pods that are repeated stay."""
    unique: dict[Any, Document] = {}
    generated: Counter[Any] = Counter()
    for number, (item, path) in enumerate(entries):
        kind, api = _kind(item, path)
        namespace, name = _key(item)
        key = api, kind, namespace or "default", name
        if kind == "Pod" or not name:
            unique[number] = Document(item, path)
        elif not (meta := item["metadata"]).get("name"):
            generated[key] += 1
            if generated[key] > 1:
                item = item | {"metadata": meta | {"name": f"{name.rstrip('-')}-{generated[key]}"}}
            unique[number] = Document(item, path)
        else:
            if key in unique and unique[key].item != item:
                assumed.append(f"{kind} {key[2]}/{name} is there more than once: the last one counts")
            unique[key] = Document(item, path)
    return list(unique.values())


def _bounds(document: Document) -> tuple[tuple[str, str, str], tuple[int, int | None]]:
    """((kind, namespace as it is stated, name), (fewest, most replicas)) of what an object of SCALERS scales."""
    item, path = document
    kind, api = _kind(item, path)
    lower, least, upper = SCALERS[api, kind]
    with _read_at(path):
        spec = Section(item, "").section("spec")
        target, fewest = spec.section("scaleTargetRef"), spec.number(lower)
        key = target.text("kind") or "Deployment", _key(item)[0], target.text("name")
        return key, (least if fewest is None else fewest, spec.number(upper))


def _scaled(item: dict[str, Any], bounds: Mapping[tuple[str, str, str], tuple[int, int | None]]) -> dict[str, Any]:
    """The owner with the replicas that its autoscaler leaves it, which does not touch an owner that is scaled to 0."""
    spec = item.get("spec")
    fewest, most = bounds.get((item["kind"], *_key(item)), (0, None))
    replicas = spec.get("replicas", 1) if isinstance(spec, dict) else None
    if type(replicas) is not int or replicas <= 0 or not isinstance(spec, dict):
        return item
    scaled = max(replicas, fewest)
    scaled = scaled if most is None else min(scaled, most)
    return item if scaled == replicas else item | {"spec": spec | {"replicas": scaled}}


def _kind(item: Any, path: str) -> tuple[str, str]:
    """(kind, API group) of an object."""
    kind = item.get("kind") if isinstance(item, dict) else None
    if not isinstance(kind, str):
        raise BadCluster(f"expected a Pod or an owner of pods, not {kind!r}", path=path)
    api = item.get("apiVersion")
    return kind, api_group(api if isinstance(api, str) else None)


def _key(item: dict[str, Any]) -> tuple[str, str]:
    """(namespace as it is stated, name)."""
    meta = item.get("metadata")
    if not isinstance(meta, dict):
        return "", ""
    return str(meta.get("namespace") or ""), str(meta.get("name") or meta.get("generateName") or "")


def _owner(item: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(kind, namespace as it is stated, name) of the owners of an object."""
    meta = item.get("metadata")
    references = meta.get("ownerReferences") if isinstance(meta, dict) else None
    for reference in references if isinstance(references, list) else ():
        if isinstance(reference, dict):
            yield str(reference.get("kind")), _key(item)[0], str(reference.get("name"))


def _stands_for_pods(document: Document) -> bool:
    """Whether the object is a pod, or an owner that creates pods itself: its own owner is not expanded then."""
    kind, api = _kind(document.item, document.path)
    spec = document.item.get("spec")
    empty = isinstance(spec, dict) and spec.get("replicas") == 0  # an old ReplicaSet
    return kind == "Pod" or (gangs.creates_pods(api, kind) and not empty)


def _with_kind(pods: list[PodRecord], kind: str, names: dict[tuple[str, str], str]) -> list[PodRecord]:
    """The pods of an owner, with the kind in their names where an owner of another kind has this name. `names`: of the
    pods of owners so far, each with the kind."""
    if any(names.get((pod.namespace, pod.name), kind) != kind for pod in pods):
        pods = [msgspec.structs.replace(pod, name=f"{kind.lower()}-{pod.name}") for pod in pods]
    names.update({(pod.namespace, pod.name): kind for pod in pods})
    return pods


@contextmanager
def _read_at(path: str) -> Iterator[None]:
    """An object that cannot be read is BadCluster, with the place of its field below `path`."""
    try:
        yield
    except records.RecordError as error:
        raise BadCluster(error.message, path=f"{path}.{error.path}".rstrip(".")) from error


def _read_owner(
    item: dict[str, Any], path: str, gpus: frozenset[str], others: Mapping[tuple[str, str, str, str], Any]
) -> gangs.OwnerPods | None:
    """None: an object of an unknown kind that is none as the API server has them."""
    kind, api = _kind(item, path)
    with _read_at(path), nullcontext() if gangs.creates_pods(api, kind) else suppress(records.RecordError):
        return gangs.read_owner(item, gpus, others)
    return None


def _created(owner: gangs.OwnerPods, path: str, most: int | None) -> tuple[list[PodRecord], list[GroupRecord]]:
    """(the pods of an owner, what states the minima of its gangs). `most`: None where its pods stand there."""
    with _read_at(path):
        created = [] if most is None else list(islice(owner.pods(), most + 1))
        groups = list(owner.groups())
    if most is not None and len(created) > most:
        raise BadInput(f"more than {MOST_PODS} pods; ask about fewer at once", path=path)
    return created, groups


def _alone(pods: Sequence[PodRecord]) -> None:
    """BadInput where two pods have one name."""
    seen: set[tuple[str, str]] = set()
    for pod in pods:
        key = pod.namespace, pod.name
        if pod.name and key in seen:
            raise BadInput("it is there twice", path=f"pod {pod.namespace}/{pod.name}")
        seen.add(key)


# -- what the API server would not write of a question's objects, and why: its validation of what our answer depends on
#
# The messages are those of Kubernetes 1.37 (pkg/apis/core/validation, pkg/apis/resource/validation). Values that cannot
# be read at all are for the readers of the objects to name.


MOST_SHOWN: Final = 80
_PLAIN: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_FIXED: Final = "hugepages-"
_NATIVE: Final = "kubernetes.io"
CLAIM_KEYS: Final = ("resourceClaimName", "resourceClaimTemplateName")
_MODES: Final = ("All", "ExactCount")


Reason = tuple[str, str]
"""A field, and what is wrong with it."""


def invalid_pod(spec: Any, path: str, *, written: bool = True) -> Reason | None:
    """Why the API server rejects a pod with this specification, or what creates it: the first reason. `path`: of the
    specification; `written`: whether it stands in the object so, and is not made of its fields."""
    return next(_of_pod(spec, path, written), None) if isinstance(spec, Mapping) else None


def invalid_claim(spec: Any, path: str) -> Reason | None:
    """As `invalid_pod`, of the specification of a ResourceClaim."""
    devices = spec.get("devices") if isinstance(spec, Mapping) else None
    return next(_of_devices(devices, f"{path}.devices"), None) if isinstance(devices, Mapping) else None


def invalid_selector(spec: Any, path: str) -> Reason | None:
    """Where the selector of an owner does not match its own template."""
    labels = _inner(_inner(_inner(spec, "template"), "metadata"), "labels")
    wanted = _inner(_inner(spec, "selector"), "matchLabels")
    if all(labels.get(key) == label for key, label in wanted.items()):
        return None
    at = f"{path}.template.metadata.labels"
    return at, f"{_invalid(dict(labels))}: `selector` does not match template `labels`"


def _inner(value: Any, key: str) -> Mapping[str, Any]:
    inner = value.get(key) if isinstance(value, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _of_pod(spec: Mapping[str, Any], path: str, written: bool) -> Iterator[Reason]:
    if written and not spec.get("containers"):
        yield f"{path}.containers", "Required value"
    claims: list[str] = []
    for number, claim in enumerate(_objects(spec, "resourceClaims")):
        at = f"{path}.resourceClaims[{number}]"
        if claim.get("name") in claims:
            yield f"{at}.name", f"Duplicate value: {_shown(claim.get('name'))}"
        claims.append(str(claim.get("name")))
        stated = [key for key in CLAIM_KEYS if claim.get(key)]
        keys = ", ".join(f"`{key}`" for key in CLAIM_KEYS)
        if not stated:
            yield at, f"{_invalid(dict(claim))}: must specify one of: {keys}"
        elif len(stated) > 1:
            yield at, f"{_invalid(dict(claim))}: at most one of {keys} may be specified"
    names: set[str] = set()
    for where in ("initContainers", "containers"):
        for number, container in enumerate(_objects(spec, where)):
            at = f"{path}.{where}[{number}]"
            name = container.get("name")
            if not name and written:
                yield f"{at}.name", "Required value"
            elif name and str(name) in names:
                yield f"{at}.name", f"Duplicate value: {_shown(name)}"
            names.add(str(name))
            yield from _of_resources(_inner(container, "resources"), f"{at}.resources", claims)


def _of_resources(resources: Mapping[str, Any], path: str, claims: list[str]) -> Iterator[Reason]:
    limits, requests = _inner(resources, "limits"), _inner(resources, "requests")
    for which, amounts in (("limits", limits), ("requests", requests)):
        for name in map(str, amounts):
            if "/" not in name and name not in _PLAIN and not name.startswith(_FIXED):
                yield f"{path}.{which}[{name}]", f"{_invalid(name)}: must be a standard resource for containers"
    for name, amount in requests.items():
        fixed, asked, limit = _is_fixed(str(name)), _amount(amount), _amount(limits.get(name))
        if fixed and name not in limits:
            yield f"{path}.limits", f"Required value: Limit must be set for non overcommitable resources: {name}"
        elif asked is None or limit is None:
            continue
        elif fixed and asked != limit:
            yield f"{path}.requests", f"{_invalid(amount)}: must be equal to {name} limit of {limits[name]}"
        elif asked > limit:
            text = f"must be less than or equal to {name} limit of {limits[name]}"
            yield f"{path}.requests", f"{_invalid(amount)}: {text}"
    for number, claim in enumerate(_objects(resources, "claims")):
        if claim.get("name") not in claims:
            which = f": {', '.join(claims)}" if claims else " which is empty"
            text = f"must be one of the names in pod.spec.resourceClaims{which}"
            yield f"{path}.claims[{number}]", f"Not found: {_shown(claim.get('name'))}: {text}"


def _is_fixed(name: str) -> bool:
    """Whether its request and limit must be equal: huge pages and extended resources."""
    domain, slash, _ = name.partition("/")
    return name.startswith(_FIXED) or (bool(slash) and not domain.endswith(_NATIVE))


def _of_devices(devices: Mapping[str, Any], path: str) -> Iterator[Reason]:
    names: set[str] = set()
    for number, request in enumerate(_objects(devices, "requests")):
        at = f"{path}.requests[{number}]"
        name, choices = request.get("name"), _objects(request, "firstAvailable")
        if not name:
            yield f"{at}.name", "Required value"
        elif str(name) in names:
            yield f"{at}.name", f"Duplicate value: {_shown(name)}"
        names.update([str(name), *(f"{name}/{choice.get('name')}" for choice in choices)])
        exactly, flat = request.get("exactly"), request.get("deviceClassName")  # flat in v1beta1
        if sum(map(bool, (exactly, choices, flat))) != 1:
            yield at, "Required value: exactly one of `exactly` or `firstAvailable` is required"
        for index, choice in enumerate(choices):
            yield from _of_request(choice, f"{at}.firstAvailable[{index}]")
        if isinstance(exactly, Mapping):
            yield from _of_request(exactly, f"{at}.exactly")
        elif flat:
            yield from _of_request(request, at)
    for number, constraint in enumerate(_objects(devices, "constraints")):
        asked = constraint.get("requests")
        for index, name in enumerate(asked if isinstance(asked, list) else ()):
            if name not in names:
                at = f"{path}.constraints[{number}].requests[{index}]"
                yield at, f"{_invalid(name)}: must be the name of a request in the claim"


def _of_request(request: Mapping[str, Any], path: str) -> Iterator[Reason]:
    count, mode = request.get("count"), request.get("allocationMode") or "ExactCount"
    if not request.get("deviceClassName"):
        yield f"{path}.deviceClassName", "Required value"
    if mode not in _MODES:
        yield f"{path}.allocationMode", f"Unsupported value: {_shown(mode)}: supported values: {', '.join(_MODES)}"
    elif mode == "All" and count:
        yield f"{path}.count", f"{_invalid(count)}: must not be specified when allocationMode is 'All'"
    elif isinstance(count, int) and count < 0:
        yield f"{path}.count", f"{_invalid(count)}: must be greater than zero"


def _objects(holder: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    entries = holder.get(key)
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []


def _amount(amount: Any) -> int | None:
    """Comparable; None for what is no quantity."""
    if isinstance(amount, str | int | float):
        with suppress(QuantityError):
            return nano(amount)
    return None


def _invalid(value: Any) -> str:
    return f"Invalid value: {_shown(value)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str, skipkeys=True)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def with_runtime_class(template: Any, classes: Mapping[str, Mapping[str, Any]]) -> Any:
    """A pod, or a template of pods, with what its RuntimeClass states. `classes`: those of the question, by name."""
    spec = template.get("spec") if isinstance(template, Mapping) else None
    name = spec.get("runtimeClassName") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(name, str) or name not in classes:
        return template
    pod, fields = Section(spec, "spec"), Section(classes[name], f"RuntimeClass {name}")
    scheduling, overhead = fields.section("scheduling"), fields.section("overhead").raw("podFixed")
    selectors = [part.section("nodeSelector").fields for part in (pod, scheduling)]
    stated = {
        "nodeSelector": {**selectors[0], **selectors[1]},
        "tolerations": [entry.fields for part in (pod, scheduling) for entry in part.sections("tolerations")],
        **({} if overhead is None else {"overhead": overhead}),
    }
    return {**template, "spec": {**spec, **stated, "runtimeClassName": None}}
