"""The preemption posture of a cluster: who can evict whom, and what is wrong with that.

Findings have a severity: **error** (what was intended does not hold, or something can never work), **warning** (work is
at risk, or somebody will be surprised), **info** (worth knowing). The intended order of the PriorityClasses comes from
`preemption.intendedOrder` of the settings, else from the label `gpu-extender.io/rank` on them (a whole number, higher =
more important); without either nothing is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from extender.cluster.cluster import Cluster
from extender.objects import gangs
from extender.objects.progress import CHECKPOINT, INTERVAL, lost, saved_ms, start_ms, whole
from extender.objects.records import PodRecord
from extender.offline import invalid_metadata, quotas
from extender.offline.frozen import SYSTEM_CLASSES
from extender.offline.snapshot import Snapshot
from extender.offline.text import count

RANK = "gpu-extender.io/rank"
LOOKS_LIKE_GPU = ("gpu", "nvidia.com/", "amd.com/", "mig-", "xpu", "habana.ai/", "neuron")
MOST_JOBS = 50
Severity = Literal["error", "warning", "info"]
ORDER: tuple[Severity, ...] = ("error", "warning", "info")
Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """`code`: constant, in kebab-case; `about`: the object, as kind/name or kind/namespace/name; `facts`: numbers of
    it, units in their names."""

    severity: Severity
    code: str
    about: str
    message: str
    remedy: str
    facts: tuple[tuple[str, int], ...] = ()

    def as_json(self) -> dict[str, Any]:
        said = {"severity": self.severity, "code": self.code, "about": self.about, "message": self.message}
        return said | {"remedy": self.remedy, "facts": dict(self.facts)}


@dataclass(frozen=True, slots=True)
class Level:
    """A PriorityClass, or the pods of one priority that name none (`name` ""). `pods`, `gpus`: that run with it."""

    name: str
    value: int
    never: bool
    pods: int
    gpus: int

    def evicts(self, other: Level) -> bool:
        return not self.never and other.value < self.value

    def __str__(self) -> str:
        return self.name or f"(no class, priority {self.value})"


def answer(snapshot: Snapshot, items: Iterable[Item], wall: float) -> dict[str, Any]:
    """`kind: Check`. `items`: the same objects as Kubernetes JSON, for what records do not keep."""
    listed = list(items)
    levels = levels_of(snapshot.cluster)
    found = sorted(
        findings(snapshot, listed, levels, wall),
        key=lambda one: (ORDER.index(one.severity), one.code, one.about, one.message),
    )
    severities = Counter(one.severity for one in found)
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "Check",
        "warnings": invalid_metadata.found(snapshot.cluster, listed, wall),
        "policy_hash": snapshot.settings.policy_hash,
        "classes": [
            {
                "name": level.name or None,
                "priority": level.value,
                "preempts": not level.never,
                "pods": level.pods,
                "gpus": level.gpus,
                "evicts": [str(other) for other in levels if level.evicts(other)],
                "evicted_by": [str(other) for other in levels if other.evicts(level)],
            }
            for level in levels
        ],
        "findings": [one.as_json() for one in found],
        "summary": {severity: severities[severity] for severity in ORDER},
    }


def exit_code(answered: Mapping[str, Any], strict: bool = False) -> int:
    """10 when there are errors (strict: or warnings), else 0."""
    summary = answered["summary"]
    return 10 if summary["error"] or (strict and summary["warning"]) else 0


def levels_of(cluster: Cluster) -> list[Level]:
    """The PriorityClasses, and the priorities of GPU pods without one; the highest first, then by name."""
    pods: Counter[tuple[str, int]] = Counter()
    gpus: Counter[tuple[str, int]] = Counter()
    never: dict[tuple[str, int], bool] = {}
    values = SYSTEM_CLASSES | {one.name: one.value for one in cluster.priority_classes.values()}
    for pod in _running(cluster):
        name = pod.priority_class if pod.priority_class in values else ""
        key = (name, values.get(name, pod.priority))
        pods[key] += 1
        gpus[key] += _gpus(cluster, pod)
        never[key] = never.get(key, True) and pod.never
    known = {(one.name, one.value): one.never for one in cluster.priority_classes.values()}
    # Every cluster has these two, and whoever may create their pods evicts everybody.
    known = dict.fromkeys(SYSTEM_CLASSES.items(), False) | known
    levels = [Level(*key, (never | known)[key], pods[key], gpus[key]) for key in pods.keys() | known.keys()]
    return sorted(levels, key=lambda level: (-level.value, level.name))


def findings(snapshot: Snapshot, items: list[Item], levels: list[Level], wall: float) -> Iterator[Finding]:
    cluster = snapshot.cluster
    yield from _ranks(snapshot, items, levels)
    yield from _chains(levels)
    yield from _defaults(cluster, levels)
    yield from _protection(snapshot)
    yield from _unsaved(cluster, levels, wall)
    yield from _budgets(cluster, items)
    yield from _quotas(cluster, items)
    yield from _names(cluster, items)


def _verb(number: int, one: str, several: str) -> str:
    return one if number == 1 else several


def _running(cluster: Cluster) -> Iterator[PodRecord]:
    """GPU pods on a node."""
    for pod in cluster.pods.values():
        if pod.node and not pod.finished and pod.gpus:
            yield pod


def _gpus(cluster: Cluster, pod: PodRecord) -> int:
    return sum(cluster.amounts(pod)[3:])


# ---- the order of the classes


def _ranks(snapshot: Snapshot, items: list[Item], levels: list[Level]) -> Iterator[Finding]:
    named = {level.name: level for level in levels if level.name}
    wanted: dict[str, int] = {}
    order = snapshot.settings.preemption.intended_order
    if order:
        for place, name in enumerate(order):
            wanted[name] = len(order) - place
            if name not in named and name not in SYSTEM_CLASSES:
                yield Finding(
                    "error", "class-missing", f"PriorityClass/{name}", "preemption.intendedOrder names it, but the "
                    "cluster has no such PriorityClass", "Create it, or take it out of preemption.intendedOrder.",
                )  # fmt: skip
    else:
        for item in _of(items, "PriorityClass"):
            said = _labels(item).get(RANK)
            name = _name(item)
            if said is None:
                continue
            try:
                wanted[name] = int(said)
            except ValueError:
                yield Finding(
                    "error", "rank-unreadable", f"PriorityClass/{name}", f"its label {RANK} is {said!r}, which is not "
                    "a whole number", "Write a whole number; higher is more important.",
                )  # fmt: skip
    if not wanted:
        yield Finding(
            "info", "no-intended-order", "cluster", "nobody says in which order the PriorityClasses are meant to rank, "
            "so their values are not judged", f"List them in preemption.intendedOrder, or label them {RANK}.",
        )  # fmt: skip
    ranked = sorted((name for name in wanted if name in named), key=lambda name: (-wanted[name], name))
    for place, upper in enumerate(ranked):
        for lower in ranked[place + 1 :]:
            if wanted[upper] <= wanted[lower]:
                continue
            high, low = named[upper], named[lower]
            if low.value > high.value:
                victim = f"{lower} can evict {upper}" if low.evicts(high) else f"{upper} can not evict {lower}"
                yield Finding(
                    "error", "rank-inverted", f"PriorityClass/{upper}", f"it is meant to rank above {lower}, but its "
                    f"value {high.value} is below {low.value}: {victim}",
                    "A class's value can not be changed: delete it and create it anew with a higher one.",
                    (("priority", high.value), ("other_priority", low.value)),
                )  # fmt: skip
            elif low.value == high.value:
                yield Finding(
                    "error", "rank-equal", f"PriorityClass/{upper}", f"it is meant to rank above {lower}, but both "
                    f"have the value {high.value}: neither can evict the other",
                    "A class's value can not be changed: delete it and create it anew with a higher one.",
                    (("priority", high.value), ("other_priority", low.value)),
                )  # fmt: skip


def _chains(levels: list[Level]) -> Iterator[Finding]:
    """The longest way down in which each evicts the next: of equal values one stands for all."""
    chain: list[Level] = []
    for level in levels:
        if level.name in SYSTEM_CLASSES:
            continue  # they stand above everything everywhere
        if not chain or chain[-1].evicts(level):
            if not chain and level.never:
                continue
            chain.append(level)
    if len(chain) < 3:
        return
    pods = sum(level.pods for level in chain[1:])
    yield Finding(
        "warning", "eviction-chain", f"PriorityClass/{chain[0].name or chain[0].value}",
        "one eviction can set off others: " + " evicts ".join(str(level) for level in chain),
        "Give the classes in the middle preemptionPolicy: Never where they can wait.",
        (("length", len(chain)), ("pods_below", pods)),
    )  # fmt: skip


def _defaults(cluster: Cluster, levels: list[Level]) -> Iterator[Finding]:
    defaults = sorted(
        (one for one in cluster.priority_classes.values() if one.global_default), key=lambda one: (one.value, one.name)
    )
    if len(defaults) > 1:
        yield Finding(
            "error", "several-defaults", f"PriorityClass/{defaults[0].name}",
            "globalDefault is set on " + ", ".join(one.name for one in defaults) + "; the lowest value counts",
            "Leave globalDefault on one class.",
        )  # fmt: skip
    for one in defaults[:1]:
        below = [level for level in levels if level.value < one.value and level.name]
        if below and not one.never:
            yield Finding(
                "error", "default-evicts", f"PriorityClass/{one.name}",
                f"it is the globalDefault and may preempt: every pod that names no class evicts "
                f"{', '.join(map(str, below))}",
                "Give it preemptionPolicy: Never, or a value below all classes that matter.",
                (("priority", one.value),),
            )  # fmt: skip
    bare = [level for level in levels if not level.name and level.pods]
    for level in bare:
        over = [other for other in levels if other.name and other.value < level.value]
        why = "above " + ", ".join(map(str, over)) if over else "every class above may evict them"
        yield Finding(
            "warning" if over else "info", "pods-without-class", f"priority/{level.value}",
            f"{count(level.pods, 'GPU pod')} {_verb(level.pods, 'names', 'name')} no PriorityClass and "
            f"{_verb(level.pods, 'has', 'have')} priority {level.value}: {why}",
            "Name a class in their templates; a globalDefault counts for new pods only.",
            (("pods", level.pods), ("gpus", level.gpus)),
        )  # fmt: skip
    stale: Counter[tuple[str, int, int]] = Counter()
    for pod in _running(cluster):
        now = cluster.priority_classes.get(pod.priority_class)
        if now is not None and now.value != pod.priority:
            stale[now.name, now.value, pod.priority] += 1
    for (name, value_now, had), pods in sorted(stale.items()):
        yield Finding(
            "warning", "stale-priority", f"PriorityClass/{name}",
            f"{count(pods, 'GPU pod')} of it {_verb(pods, 'has', 'have')} priority {had}, from before it had "
            f"{value_now}: pods keep what they got",
            "Restart them to give them the new one.", (("pods", pods), ("priority", value_now), ("had", had)),
        )  # fmt: skip


# ---- what an eviction would cost


def _protection(snapshot: Snapshot) -> Iterator[Finding]:
    known = snapshot.cluster.priority_classes.keys() | SYSTEM_CLASSES.keys()
    for name in sorted(snapshot.settings.preemption.minimum_run_seconds.keys() - known):
        yield Finding(
            "error", "minimum-run-of-no-class", f"PriorityClass/{name}", "preemption.minimumRunSeconds protects its "
            "pods, but the cluster has no such PriorityClass: nobody is protected by it",
            "Correct the name, or create the class.",
        )  # fmt: skip


def _unsaved(cluster: Cluster, levels: list[Level], wall: float) -> Iterator[Finding]:
    now_ms = int(wall * 1000)
    silent: dict[str, list[PodRecord]] = {}
    regular: dict[str, list[PodRecord]] = {}
    for pod in _running(cluster):
        evictable = any(
            level.value > pod.priority and not level.never and level.name not in SYSTEM_CLASSES for level in levels
        )
        if not evictable or pod.terminating or pod.daemon or pod.mirror:
            continue
        if cluster.claims.protected_ms(pod) > now_ms:
            continue
        if not saved_ms(pod):
            (regular if whole(pod.annotations.get(INTERVAL, "")) else silent).setdefault(
                _work(cluster, pod), []
            ).append(pod)

    def loss(pods: list[PodRecord]) -> int:
        return sum(
            lost(_gpus(cluster, pod), start_ms(pod), saved_ms(pod), cluster.claims.restart_seconds(pod), now_ms)
            for pod in pods
        )

    costs = {name: loss(pods) for name, pods in silent.items()}
    worst = sorted(silent, key=lambda name: (-costs[name], name))
    for name in worst[:MOST_JOBS]:
        pods = silent[name]
        gpus = sum(_gpus(cluster, pod) for pod in pods)
        yield Finding(
            "warning", "no-checkpoint", name,
            f"{count(len(pods), 'pod')} with {count(gpus, 'GPU')} can be evicted and never said that work was saved: "
            f"today that would lose {costs[name] / 3600:,.1f} GPU-hours",
            f"Write the annotation {CHECKPOINT} when a checkpoint is saved, or protect them (protect-for).",
            (("pods", len(pods)), ("gpus", gpus), ("work_lost_gpu_seconds", costs[name])),
        )  # fmt: skip
    if left := worst[MOST_JOBS:]:
        yield Finding(
            "warning", "no-checkpoint-more", "cluster", f"{count(len(left), 'more workload')} of that kind "
            f"{_verb(len(left), 'is', 'are')} not listed", "As above.",
            (("workloads", len(left)), ("work_lost_gpu_seconds", sum(costs[name] for name in left))),
        )  # fmt: skip
    if regular:
        pods = [pod for name in sorted(regular) for pod in regular[name]]
        gpus = sum(_gpus(cluster, pod) for pod in pods)
        yield Finding(
            "info", "checkpoint-not-reported", "cluster",
            f"{count(len(pods), 'pod')} with {count(gpus, 'GPU')} of {count(len(regular), 'workload')} "
            f"{_verb(len(pods), 'says', 'say')} how often work is saved, and not when it last was: all since the start "
            f"counts as lost, today {loss(pods) / 3600:,.1f} GPU-hours",
            f"Write the annotation {CHECKPOINT} beside {INTERVAL}.",
            (("pods", len(pods)), ("gpus", gpus), ("work_lost_gpu_seconds", loss(pods))),
        )  # fmt: skip


def _work(cluster: Cluster, pod: PodRecord) -> str:
    """What is lost together: the gang, else what owns the pod, else the pod."""
    ref = gangs.ref(pod, cluster.groups)
    if ref:
        return f"{ref.source}/{ref}"
    return f"{pod.owner.kind}/{pod.namespace}/{pod.owner.name}" if pod.owner else f"Pod/{pod.namespace}/{pod.name}"


def _budgets(cluster: Cluster, items: list[Item]) -> Iterator[Finding]:
    pods = list(_running(cluster))
    specs = {(_space(item), _name(item)): _map(_at(item, "spec")) for item in _of(items, "PodDisruptionBudget")}
    for key in sorted(cluster.budgets):
        budget, spec = cluster.budgets[key], specs.get(key, {})
        about = f"PodDisruptionBudget/{key[0]}/{key[1]}"
        if budget.selector.empty:
            yield Finding(
                "warning", "budget-selects-all", about, "its selector is empty: the Eviction API guards every pod of "
                "the namespace, kube-scheduler's preemption none", "Select the pods that are meant by their labels.",
            )  # fmt: skip
            continue
        inside = [pod for pod in pods if pod.namespace == key[0] and budget.selector.matches(pod.labels)]
        if not inside or budget.disruptions_allowed > 0:
            continue
        for_ever = spec.get("maxUnavailable") in (0, "0", "0%") or spec.get("minAvailable") == "100%"
        gpus = sum(_gpus(cluster, pod) for pod in inside)
        yield Finding(
            "error" if for_ever else "warning", "budget-blocks-all", about,
            f"it allows no disruption {'ever' if for_ever else 'now'}: {count(len(inside), 'pod')} with "
            f"{count(gpus, 'GPU')} {_verb(len(inside), 'is', 'are')} preempted last, and the Eviction API (drains) "
            f"refuses {_verb(len(inside), 'it', 'them')}",
            "Allow one disruption (maxUnavailable: 1), or use a PriorityClass to protect them.",
            (("pods", len(inside)), ("gpus", gpus)),
        )  # fmt: skip


# ---- quotas, and what is never shown to us


def _quotas(cluster: Cluster, items: list[Item]) -> Iterator[Finding]:
    classes = cluster.priority_classes.keys() | SYSTEM_CLASSES.keys()
    for item in _of(items, "ResourceQuota"):
        about = f"ResourceQuota/{_space(item)}/{_name(item)}"
        scope = quotas.scope(item)
        for name in sorted(scope.named - classes):
            yield Finding(
                "error", "quota-of-no-class", about, f"it is for pods of PriorityClass {name}, which does not "
                "exist: it limits nobody", "Correct the name, or create the class.",
            )  # fmt: skip
        if scope.nobody:
            yield Finding(
                "error", "quota-of-nobody", about, "its scopes exclude each other: no pod can be of all the classes "
                "that it asks for", "Put the names into one list of values.",
            )  # fmt: skip
        inside = [pod for pod in _of(items, "Pod") if _space(pod) == _space(item) and scope.has(pod)]
        hard = _map(_at(item, "spec", "hard"))
        limits = hard.items() if isinstance(hard, Mapping) else ()
        for name, text in sorted(one for one in limits if isinstance(one[0], str)):
            resource = name.removeprefix("requests.").removeprefix("limits.")
            if resource in cluster.gpu_names and not name.startswith("requests."):
                yield Finding(
                    "error", "quota-not-enforced", about, f"{name} is never counted: of extended resources Kubernetes "
                    "counts requests only", f"Write requests.{resource}.",
                )  # fmt: skip
                continue
            limit = quotas.amount(name, text)
            if limit is None:
                yield Finding("error", "quota-unreadable", about, f"{name} is {text!r}", "Write a quantity.")
                continue
            if not quotas.of_pods(name):
                continue
            needs = [asked for pod in inside if (asked := quotas.asked(pod, name))]
            least = min(needs, default=1)
            if limit < least:
                milli = name.endswith("cpu")
                yield Finding(
                    "warning" if limit == 0 else "error", "quota-too-small", about,
                    f"{name}: {text} is less than any pod of its kind needs ({least}{'m' if milli else ''}): none can "
                    "be created",
                    "Raise it, or use no pods of that kind there; 0 may be meant as a ban.",
                    (("limit_milli" if milli else "limit", limit), ("least_milli" if milli else "least", least)),
                )  # fmt: skip


def _names(cluster: Cluster, items: list[Item]) -> Iterator[Finding]:
    users: Counter[str] = Counter()
    claims = 0
    for item in _of(items, "Pod"):
        spec = _map(_at(item, "spec"))
        claims += bool(spec.get("resourceClaims")) and not any(name in cluster.gpu_names for name in _asked(spec))
        users.update(name for name in _asked(spec) if _strange(cluster, name))
    offered: Counter[str] = Counter()
    for item in _of(items, "Node"):
        offered.update(name for name in _map(_at(item, "status", "allocatable")) if _strange(cluster, name))
    for name in sorted(users.keys() | offered.keys()):
        yield Finding(
            "warning", "resource-not-managed", f"resource/{name}",
            f"{count(users[name], 'pod')} {_verb(users[name], 'asks', 'ask')} for it and "
            f"{count(offered[name], 'node')} {_verb(offered[name], 'offers', 'offer')} it, but it is none of our "
            "resources: such pods are placed without us, and count nothing here",
            "Add it to `resources` of the settings and to `managedResources` of the scheduler's configuration.",
            (("pods", users[name]), ("nodes", offered[name])),
        )  # fmt: skip
    if claims:
        yield Finding(
            "info", "claims-not-shown", "cluster", f"{count(claims, 'pod')} {_verb(claims, 'uses', 'use')} resource "
            "claims (DRA) and none of our resources: the scheduler never shows such pods to us",
            "Ask for the resource name that the DeviceClass serves (extendedResourceName).", (("pods", claims),),
        )  # fmt: skip


def _asked(spec: Item) -> set[str]:
    found: set[str] = set()
    for part in ("containers", "initContainers"):
        for container in quotas.listed(spec.get(part)):
            for kind in ("requests", "limits"):
                found.update(_map(_at(container, "resources", kind)))
    return found


def _strange(cluster: Cluster, name: str) -> bool:
    return "/" in name and name not in cluster.gpu_names and any(part in name for part in LOOKS_LIKE_GPU)


# ---- Kubernetes JSON


def _of(items: Iterable[Item], kind: str) -> Iterator[Item]:
    return (item for item in items if item.get("kind") == kind)


def _at(item: Any, *path: str) -> Any:
    """What stands there; None where nothing does."""
    for key in path:
        item = item.get(key) if isinstance(item, Mapping) else None
    return item


def _map(item: Any) -> Mapping[str, Any]:
    """What a file has there, where it has a map: a pod that could be read in part may have anything."""
    return item if isinstance(item, Mapping) else {}


def _name(item: Item) -> str:
    return str(_at(item, "metadata", "name") or "")


def _space(item: Item) -> str:
    return str(_at(item, "metadata", "namespace") or "default")


def _labels(item: Item) -> Mapping[str, str]:
    return _map(_at(item, "metadata", "labels"))
