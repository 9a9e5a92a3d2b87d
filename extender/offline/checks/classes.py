"""PriorityClasses: their order, chains of evictions, defaults, and pods that name none.

The intended order comes from `preemption.intendedOrder` of the settings, else from the label `gpu-extender.io/rank` on
the classes (a whole number, higher = more important). Without either nothing is compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from extender.objects.records.classes import SYSTEM_CLASSES
from extender.offline.checks.finding import Finding, Level, Posture, at, mapping, name_of, verb
from extender.offline.text import count

RANK: Final = "gpu-extender.io/rank"
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
        said = mapping(at(item, "metadata", "labels")).get(RANK)
        if said is None:
            continue
        try:
            ranks[name_of(item)] = int(said)
        except ValueError:
            wrong.append(Finding(
                "error", "rank-unreadable", f"PriorityClass/{name_of(item)}", f"its label {RANK} is {said!r}, which is "
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
    defaults = sorted((one for one in classes if one.global_default), key=lambda one: (one.value, one.name))
    if len(defaults) > 1:
        yield Finding(
            "error", "several-defaults", f"PriorityClass/{defaults[0].name}",
            "globalDefault is set on " + ", ".join(one.name for one in defaults) + "; the lowest value counts",
            "Leave globalDefault on one class.",
        )  # fmt: skip
    for one in defaults[:1]:
        below = [level for level in posture.levels if level.value < one.value and level.name]
        if below and not one.never:
            yield Finding(
                "error", "default-evicts", f"PriorityClass/{one.name}",
                f"it is the globalDefault and may preempt: every pod that names no class evicts "
                f"{', '.join(map(str, below))}",
                "Give it preemptionPolicy: Never, or a value below all classes that matter.",
                (("priority", one.value),),
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
            f"{verb(level.pods, 'has', 'have')} priority {level.value}: {why}",
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
            f"{count(pods, 'GPU pod')} of it {verb(pods, 'has', 'have')} priority {had}, from before it had {value}: "
            "pods keep the priority that they were created with",
            "Restart them to give them the new one.", (("pods", pods), ("priority", value), ("had", had)),
        )  # fmt: skip
