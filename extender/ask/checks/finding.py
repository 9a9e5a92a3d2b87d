"""A finding, and what all subjects look at: the cluster, the settings and the objects as they stand in the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, Final, Literal

from extender.ask.whatif.question import MOST_PODS
from extender.cluster.cluster import ClusterView
from extender.objects import gangs
from extender.objects.limits import SYSTEM_CLASSES
from extender.objects.parts import api_group
from extender.objects.records import PodRecord, RecordError
from extender.settings import Settings

Severity = Literal["error", "warning", "info"]
ORDER: tuple[Severity, ...] = ("error", "warning", "info")
Item = Mapping[str, Any]
NEEDED: Final = {
    "Node": "nothing is judged that needs nodes",
    "Pod": "what pods ask for, hold and wait for is not judged",
    "PriorityClass": "which classes exist, and which can evict which, is not judged",
    "PodDisruptionBudget": "whether budgets protect pods, or block evictions, is not judged",
    "ResourceQuota": "quotas are not judged",
}
"""What is not judged where an input has no object of a kind."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of the input, or a fact worth knowing."""

    severity: Severity
    code: str
    """Constant, in kebab-case."""
    about: str
    """The object, as kind/name or kind/namespace/name."""
    message: str
    remedy: str
    facts: tuple[tuple[str, int], ...] = ()
    """Its numbers, units in their names."""
    repeats: bool = False
    """Whether equal findings about several objects are one."""
    others: tuple[str, ...] = ()
    """The objects but the first of such, whose numbers the facts add up."""

    def as_json(self) -> dict[str, Any]:
        """As `check -o json` prints it."""
        fields = {"severity": self.severity, "code": self.code, "about": self.about, "message": self.message}
        return fields | {"remedy": self.remedy, "facts": dict(self.facts), "others": list(self.others)}


def grouped(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, those that repeat as one; in the order of the first of each."""
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        own = () if finding.repeats else (finding.about,)
        alike.setdefault((finding.severity, finding.code, finding.message, finding.remedy, *own), []).append(finding)
    return [_one(same) for same in alike.values()]


def _one(same: list[Finding]) -> Finding:
    first, *rest = same
    sums = Counter[str]()
    for finding in same:
        sums.update(dict(finding.facts))
    facts = tuple((name, sums[name]) for name, _ in first.facts)
    return replace(first, facts=facts, others=tuple(finding.about for finding in rest)) if rest else first


@dataclass(frozen=True, slots=True)
class Level:
    """A PriorityClass, or the pods of one priority that name no class (`name` "") or one that is not in the input."""

    name: str
    value: int
    never: bool
    """Its pods have preemptionPolicy Never."""
    pods: int
    """How many pods run with it."""
    gpus: int
    """How many GPUs they hold."""

    def evicts(self, other: Level) -> bool:
        """Whether its pods may preempt those of the other."""
        return not self.never and other.value < self.value

    def __str__(self) -> str:
        return self.name or f"(no class, priority {self.value:,})"


@dataclass(frozen=True)
class Posture:
    """What is judged."""

    settings: Settings
    cluster: ClusterView
    items: list[Item]
    """The objects as Kubernetes JSON, for what records do not keep."""
    wall: float
    """Seconds since 1970 at which it is asked."""
    advice: Mapping[str, Any] = field(default_factory=dict)
    """Of `extender.ask.capacity`."""
    complete: frozenset[str] = frozenset()
    """Kinds of which the input has all objects, even if these are none."""

    @cached_property
    def levels(self) -> list[Level]:
        """The PriorityClasses, and the priorities of GPU pods of no listed class; the highest first, then by name."""
        return _levels(self)

    @cached_property
    def lacks(self) -> Mapping[str, str]:
        """The kinds of which the input has no object, and what is not judged without them."""
        kinds = {item.get("kind") for item in self.items} | self.complete
        needed = dict(NEEDED)
        for pod in self.cluster.pods.values():
            owner = pod.owner
            if owner is not None and (owner.api, owner.kind) in gangs.GROUP_KINDS:
                needed[owner.kind] = "how many pods of each must run is not known, so all of them count"
        return {kind: purpose for kind, purpose in needed.items() if kind not in kinds}

    @cached_property
    def classes_listed(self) -> bool:
        """Whether the input has any PriorityClass. Each cluster has two, so without one the input leaves them out."""
        return bool(self.cluster.priority_classes)

    @cached_property
    def classes(self) -> frozenset[str]:
        """The names of the PriorityClasses that exist."""
        return frozenset(self.cluster.priority_classes) | frozenset(SYSTEM_CLASSES)

    @cached_property
    def pods(self) -> list[PodRecord]:
        """All pods, by name."""
        return sorted(self.cluster.pods.values(), key=lambda pod: (pod.namespace, pod.name, pod.uid))

    def owners(self) -> Iterator[tuple[tuple[str, str, str], Item]]:
        """(kind, namespace, name) of each object that creates pods, and the object."""
        for item in self.items:
            kind, api = item.get("kind"), item.get("apiVersion")
            if isinstance(kind, str) and gangs.creates_pods(api_group(api if isinstance(api, str) else None), kind):
                yield (kind, namespace_of(item), name_of(item)), item

    def pods_of(self, owner: Item) -> list[PodRecord]:
        """The pods that it is to have at once, MOST_PODS at most. [] where its template cannot be read: that is
        reported elsewhere."""
        try:
            return list(islice(gangs.read_owner(owner, self.cluster.gpu_names).pods(), MOST_PODS))
        except RecordError:
            return []

    def of(self, kind: str) -> Iterator[Item]:
        """The objects of one kind."""
        return (item for item in self.items if item.get("kind") == kind)

    def running(self) -> Iterator[PodRecord]:
        """GPU pods on a node."""
        for pod in self.cluster.pods.values():
            if pod.node and not pod.finished and pod.gpus:
                yield pod

    def gpus(self, pod: PodRecord) -> int:
        """How many GPUs the pod asks for."""
        return self.cluster.gpu_amount(pod)


def _levels(posture: Posture) -> list[Level]:
    pods: Counter[tuple[str, int]] = Counter()
    gpus: Counter[tuple[str, int]] = Counter()
    never: dict[tuple[str, int], bool] = {}
    classes = posture.cluster.priority_classes.values()
    values = SYSTEM_CLASSES | {priority_class.name: priority_class.value for priority_class in classes}
    for pod in posture.running():
        key = (pod.priority_class, values.get(pod.priority_class, pod.priority))
        pods[key] += 1
        gpus[key] += posture.gpus(pod)
        never[key] = never.get(key, True) and pod.never
    # Every cluster has these two, and whoever may create their pods preempts all others.
    known = dict.fromkeys(SYSTEM_CLASSES.items(), False) | {
        (priority_class.name, priority_class.value): priority_class.never for priority_class in classes
    }
    levels = [Level(*key, (never | known)[key], pods[key], gpus[key]) for key in pods.keys() | known.keys()]
    return sorted(levels, key=lambda level: (-level.value, level.name))


# ---- Kubernetes JSON


def at(item: Any, *path: str) -> Any:
    """What stands there; None where nothing does."""
    for key in path:
        item = item.get(key) if isinstance(item, Mapping) else None
    return item


def mapping(item: Any) -> Item:
    """What a file has there, where it has a map: a pod that could be read in part may have anything."""
    return item if isinstance(item, Mapping) else {}


def listed(item: Any) -> list[Any]:
    """What a file has there, where it has a list."""
    return item if isinstance(item, list) else []


def name_of(item: Item) -> str:
    """metadata.name, "" without one."""
    return str(at(item, "metadata", "name") or "")


def namespace_of(item: Item) -> str:
    """metadata.namespace, "default" without one."""
    return str(at(item, "metadata", "namespace") or "default")


def verb(number: int, singular: str, plural: str) -> str:
    """The form that agrees with the number."""
    return singular if number == 1 else plural
