"""PriorityClasses: their order, chains of evictions, defaults, and pods that name none.

The intended order comes from `preemption.intendedOrder` of the settings, else from the label `gpu-extender.io/rank` on
the classes (a whole number, higher = more important). Without either nothing is compared.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from extender.ask.checks.finding import Finding, Level, Posture, at, mapping, name_of, namespace_of, verb
from extender.ask.text import count, short
from extender.objects.limits import SYSTEM_CLASSES

RANK: Final = "gpu-extender.io/rank"
POLICIES: Final = ("PreemptLowerPriority", "Never")
"""The values of preemptionPolicy that exist."""
_EVICTS: Final = re.compile(r"\b(?:preempts?|evicts?)\b", re.IGNORECASE)
_EVICTS_NOTHING: Final = re.compile(
    r"\b(?:cannot|can't|can[ ]not|never|does not|don't|not|without)\b[^.;]*\b(?:preempt|evict)", re.IGNORECASE
)
_EVERYTHING: Final = re.compile(r"\b(?:everything|all|any|every|others?|lower)\b", re.IGNORECASE)
_NEW_VALUE: Final = "A class's value cannot be changed: delete it and create it anew with a higher one."


def findings(posture: Posture) -> Iterator[Finding]:
    """What is wrong with the classes."""
    ranks, wrong = _ranks(posture)
    yield from wrong
    yield from _inversions(posture, ranks)
    yield from _chains(posture.levels, ranks)
    yield from _defaults(posture)
    yield from _without_class(posture)
    yield from _not_listed(posture)
    yield from _stale(posture)
    yield from _policies(posture)
    yield from _omitted(posture)
    yield from _outranked(posture, ranks)
    yield from _of_groups(posture)


def _ranks(posture: Posture) -> tuple[dict[str, int], list[Finding]]:
    """The intended rank by class, higher = more important; and what is wrong with how it is stated."""
    order = posture.settings.preemption.intended_order
    if order:
        missing = [name for name in order if name not in posture.classes] if posture.classes_listed else []
        return {name: len(order) - place for place, name in enumerate(order)}, [
            Finding(
                "error", "class-missing", f"PriorityClass/{name}", "preemption.intendedOrder names it, but the "
                "cluster has no such PriorityClass", "Create it, or remove it from preemption.intendedOrder.",
            )
            for name in missing
        ]  # fmt: skip
    ranks: dict[str, int] = {}
    wrong = []
    for item in posture.of("PriorityClass"):
        rank = mapping(at(item, "metadata", "labels")).get(RANK)
        if rank is None:
            continue
        try:
            ranks[name_of(item)] = int(rank)
        except ValueError:
            wrong.append(Finding(
                "error", "rank-unreadable", f"PriorityClass/{name_of(item)}", f"its label {RANK} is {rank!r}, which is "
                "not a whole number", "Write a whole number; higher is more important.",
            ))  # fmt: skip
    if not ranks and posture.classes_listed:
        wrong.append(Finding(
            "info", "no-intended-order", "cluster", "the intended order of the PriorityClasses is not stated, so their "
            "values are not judged", f"List them in preemption.intendedOrder, or label them {RANK}.",
        ))  # fmt: skip
    return ranks, wrong


def _inversions(posture: Posture, ranks: dict[str, int]) -> Iterator[Finding]:
    """Pairs of classes whose values contradict the intended order."""
    named = {level.name: level for level in posture.levels if level.name in posture.classes}
    ranked = sorted((name for name in ranks if name in named), key=lambda name: (-ranks[name], name))
    for place, upper in enumerate(ranked):
        for lower in ranked[place + 1 :]:
            high, low = named[upper], named[lower]
            if ranks[upper] <= ranks[lower] or low.value < high.value:
                continue
            facts = (("priority", high.value), ("other_priority", low.value))
            if low.value > high.value:
                victim = f"{lower} can evict {upper}" if low.evicts(high) else f"{upper} cannot evict {lower}"
                yield Finding(
                    "error", "rank-inverted", f"PriorityClass/{upper}", f"it is meant to rank above {lower}, but its "
                    f"value {high.value} is below {low.value}: {victim}", _NEW_VALUE, facts,
                )  # fmt: skip
            else:
                yield Finding(
                    "error", "rank-equal", f"PriorityClass/{upper}", f"it is meant to rank above {lower}, but both "
                    f"have the value {high.value}: neither can evict the other", _NEW_VALUE, facts,
                )  # fmt: skip


def _chains(levels: list[Level], ranks: dict[str, int]) -> Iterator[Finding]:
    """The longest chain in which each class evicts the next: of equal values one stands for all."""
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
    # Where the order of all of them is stated, and the values follow it, the administrator intends the chain.
    intended = [ranks[level.name] for level in chain if level.name in ranks]
    stated = len(intended) == len(chain) and all(high > low for high, low in pairwise(intended))
    yield Finding(
        "info" if stated else "warning", "eviction-chain", f"PriorityClass/{chain[0].name or chain[0].value}",
        "one eviction can cause others: " + " evicts ".join(str(level) for level in chain),
        "Give the classes in the middle preemptionPolicy: Never where they can wait.",
        (("length", len(chain)), ("pods_below", sum(level.pods for level in chain[1:]))),
    )  # fmt: skip


def _defaults(posture: Posture) -> Iterator[Finding]:
    classes = posture.cluster.priority_classes.values()
    defaults = sorted(
        (priority_class for priority_class in classes if priority_class.global_default),
        key=lambda priority_class: (priority_class.value, priority_class.name),
    )
    if len(defaults) > 1:
        names = ", ".join(default.name for default in defaults)
        yield Finding(
            "error", "several-defaults", f"PriorityClass/{defaults[0].name}",
            f"globalDefault is set on {names}; the lowest value counts",
            "Leave globalDefault on one class.",
        )  # fmt: skip
    for default in defaults[:1]:
        below = [level for level in posture.levels if level.value < default.value and level.name]
        if below and not default.never:
            yield Finding(
                "error", "default-evicts", f"PriorityClass/{default.name}",
                f"it is the globalDefault and may preempt: every pod that names no class evicts "
                f"{', '.join(map(str, below))}",
                "Give it preemptionPolicy: Never, or a value below all classes that matter.",
                (("priority", default.value),),
            )  # fmt: skip


def _without_class(posture: Posture) -> Iterator[Finding]:
    """Pods that name no PriorityClass; where no class is listed it is not known what that means for them."""
    for level in posture.levels if posture.classes_listed else ():
        if level.name or not level.pods:
            continue
        over = [other for other in posture.levels if other.name and other.value < level.value]
        why = "above " + ", ".join(map(str, over)) if over else "every class above may evict them"
        yield Finding(
            "warning" if over else "info", "pods-without-class", f"priority/{level.value}",
            f"{count(level.pods, 'GPU pod')} {verb(level.pods, 'names', 'name')} no PriorityClass and "
            f"{verb(level.pods, 'has', 'have')} priority {level.value:,}: {why}",
            "Name a class in their templates; a globalDefault counts for new pods only.",
            (("pods", level.pods), ("gpus", level.gpus)),
        )  # fmt: skip


def _not_listed(posture: Posture) -> Iterator[Finding]:
    """Pods that name a class which is not in the input: what it is, and in a file their priority, is unknown."""
    pods: defaultdict[str, int] = defaultdict(int)
    unknown: defaultdict[str, int] = defaultdict(int)
    for pod in posture.running():
        if pod.priority_class and pod.priority_class not in posture.classes:
            pods[pod.priority_class] += 1
            unknown[pod.priority_class] += not pod.priority_given
    if pods and not posture.classes_listed:
        names = ", ".join(sorted(pods))
        yield Finding(
            "warning", "classes-not-listed", "cluster", f"the input has no PriorityClass, but pods name {names}: which "
            "classes exist, which one is the default and how they rank is unknown"
            + _priorities(sum(unknown.values())),
            "Add the PriorityClasses to the file; `gpu-extender check --help` shows the command.",
            (("pods", sum(pods.values())),),
        )  # fmt: skip
        return
    for name in sorted(pods):
        yield Finding(
            "warning", "class-not-listed", f"PriorityClass/{name}", f"{count(pods[name], 'GPU pod')} "
            f"{verb(pods[name], 'names', 'name')} it, but it is not among the PriorityClasses: new pods cannot name it"
            + _priorities(unknown[name]),
            "Create it, or name another class in their templates.", (("pods", pods[name]),),
        )  # fmt: skip


def _priorities(pods: int) -> str:
    return f". The priority of {count(pods, 'pod')} is unknown and counts as 0" if pods else ""


def _stale(posture: Posture) -> Iterator[Finding]:
    """Pods that keep a priority from before their class changed."""
    stale: Counter[tuple[str, int, int]] = Counter()
    for pod in posture.running():
        now = posture.cluster.priority_classes.get(pod.priority_class)
        if now is not None and now.value != pod.priority:
            stale[now.name, now.value, pod.priority] += 1
    for (name, value, had), pods in sorted(stale.items()):
        yield Finding(
            "warning", "stale-priority", f"PriorityClass/{name}",
            f"{count(pods, 'GPU pod')} of it {verb(pods, 'has', 'have')} priority {had:,}, from before it had "
            f"{value:,}: pods keep the priority that they were created with",
            "Restart them to give them the new one.", (("pods", pods), ("priority", value), ("had", had)),
        )  # fmt: skip


def _policies(posture: Posture) -> Iterator[Finding]:
    """Values of preemptionPolicy that do not exist, of classes and of pods."""
    for kind, path in (("PriorityClass", ()), ("Pod", ("spec",))):
        for item in posture.of(kind):
            stated = at(item, *path, "preemptionPolicy")
            if stated is None or stated in POLICIES:
                continue
            space = f"{namespace_of(item)}/" if kind == "Pod" else ""
            yield Finding(
                "error", "preemption-policy-unknown", f"{kind}/{space}{name_of(item)}",
                f"preemptionPolicy {short(str(stated))!r} does not exist: the API server rejects the object",
                "Write PreemptLowerPriority (the default: its pods may evict those of lower priority) or Never. No "
                "policy evicts pods of equal or higher priority.",
            )  # fmt: skip


def _omitted(posture: Posture) -> Iterator[Finding]:
    """Classes whose description names classes that they can evict, and leaves others out."""
    descriptions = {name_of(item): str(at(item, "description") or "") for item in posture.of("PriorityClass")}
    named = [level for level in posture.levels if level.name and level.name not in SYSTEM_CLASSES]
    for level in named:
        text = descriptions.get(level.name, "")
        if not _EVICTS.search(text) or _EVICTS_NOTHING.search(text) or _EVERYTHING.search(text):
            continue
        victims = [other for other in named if level.evicts(other)]
        omitted = [other for other in victims if not _names(text, other.name)]
        if omitted and len(omitted) < len(victims):
            yield Finding(
                "warning", "description-omits-class", f"PriorityClass/{level.name}",
                f"its description names classes that it can evict, but not {', '.join(map(str, omitted))}, which it "
                "can evict too",
                "Complete the description, or raise the value of a class that is not meant to be evicted.",
                (("classes", len(omitted)),),
            )  # fmt: skip


def _names(text: str, name: str) -> bool:
    """Whether a description names a class, by its name or the last part of it ("gpu-batch": "batch")."""
    return any(
        re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text, re.IGNORECASE) for word in (name, name.split("-")[-1])
    )


def _outranked(posture: Posture, ranks: dict[str, int]) -> Iterator[Finding]:
    """Classes without an intended rank of which pods wait, while only pods of higher priority hold GPUs."""
    held = [pod.priority for pod in posture.running() if not pod.terminating]
    waiting: Counter[tuple[str, int]] = Counter()
    for uid in posture.cluster.placements.waiting:
        pod = posture.cluster.pods[uid]
        waiting[pod.priority_class, pod.priority] += 1
    for (name, priority), pods in sorted(waiting.items()):
        if name and name not in ranks and held and min(held) > priority:
            yield Finding(
                "warning", "class-outranked", f"PriorityClass/{name}",
                f"{count(pods, 'GPU pod')} of it {verb(pods, 'waits', 'wait')}, and all pods that hold GPUs have a "
                "higher priority: it can evict none of them",
                "If it should get GPUs first, its value is too low. State the intended order in "
                f"preemption.intendedOrder or by the label {RANK}: then it is judged.",
                (("pods", pods), ("priority", priority)),
            )  # fmt: skip


def _of_groups(posture: Posture) -> Iterator[Finding]:
    """Pod groups and Volcano Jobs that name a PriorityClass which does not exist."""
    if not posture.classes_listed:
        return
    for item in posture.items:
        kind, api = str(item.get("kind")), str(item.get("apiVersion") or "")
        if kind != "PodGroup" and not (kind == "Job" and api.startswith("batch.volcano.sh/")):
            continue
        named = at(item, "spec", "priorityClassName")
        if named and named not in posture.classes:
            yield Finding(
                "warning", "class-of-group-missing", f"{kind}/{namespace_of(item)}/{name_of(item)}",
                f"its priorityClassName {short(str(named))!r} is not among the PriorityClasses: it has no "
                "priority",
                "Create the class, or name another one.",
            )  # fmt: skip
