"""What kube-scheduler itself knows: its filters, and the victims that it finds without asking anybody.

The part that matters for GPU pods: cordon, nodeSelector, taints, CPU, memory, pod slots and extended resources.
Of affinity the node's name is modelled, as a pin states it; ports, volumes, spreading and init containers are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from extender.objects.resources import milli, value
from extender.sim.cluster import guards

Object = dict[str, Any]
T = TypeVar("T")


class Refusal(NamedTuple):
    """Why a node is rejected."""

    reason: str
    resolvable: bool  # fewer pods on it would change that (status Unschedulable)


class InTreeVictims(NamedTuple):
    """The pods whose eviction kube-scheduler finds sufficient, by descending importance."""

    pods: tuple[Object, ...]
    violations: int


def priority(pod: Object) -> int:
    """The priority that the API server resolved; 0 where it is not set."""
    return int(pod["spec"].get("priority", 0))


def asked(pod: Object) -> Counter[str]:
    """What a pod requests, by resource: CPU in thousandths, all else in whole units."""
    total: Counter[str] = Counter({"pods": 1})
    for container in pod["spec"]["containers"]:
        for name, text in container.get("resources", {}).get("requests", {}).items():
            total[name] += milli(text) if name == "cpu" else value(text)
    return total


def allocatable(node: Object) -> Counter[str]:
    """What a node offers, by resource: CPU in thousandths, all else in whole units."""
    return Counter(
        {name: milli(text) if name == "cpu" else value(text) for name, text in node["status"]["allocatable"].items()}
    )


def pins(pod: Object) -> set[str]:
    """The names of the nodes that its required affinity admits; empty: any."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", ())
    return {name for term in terms for field in term.get("matchFields", ()) for name in field["values"]}


def refusal(pod: Object, node: Object, pods: Iterable[Object]) -> Refusal | None:
    """The first filter that rejects the node; None: the pod fits. `pods`: those on the node, or nominated for it."""
    labels = node["metadata"].get("labels", {})
    if node["spec"].get("unschedulable"):
        return Refusal("node(s) were unschedulable", False)
    for taint in node["spec"].get("taints", ()):
        if taint["effect"] != "PreferNoSchedule" and not any(
            map(_tolerates(taint), pod["spec"].get("tolerations", ()))
        ):
            return Refusal(f"node(s) had untolerated taint(s) {{{taint['key']}: {taint.get('value', '')}}}", False)
    if any(labels.get(key) != wanted for key, wanted in pod["spec"].get("nodeSelector", {}).items()):
        return Refusal("node(s) didn't match Pod's node affinity/selector", False)
    if (pinned := pins(pod)) and node["metadata"]["name"] not in pinned:
        return Refusal("node(s) didn't match Pod's node affinity/selector", False)
    room, wanted_all = allocatable(node), asked(pod)
    used: Counter[str] = Counter()
    for other in pods:
        used.update(asked(other))
    for name, wanted in sorted(wanted_all.items()):
        if wanted > room[name] - used[name]:
            return Refusal("Too many pods" if name == "pods" else f"Insufficient {name}", wanted <= room[name])
    return None


def victims(
    pod: Object, node: Object, pods: Sequence[Object], nominated: Sequence[Object], budgets: Sequence[Object]
) -> InTreeVictims | None:
    """Evict all of lower priority; then let stay whom the filters allow, the important first; None: no eviction helps.

    Those whose budget has nothing left to give are let stay before the others.
    """
    lower = [other for other in pods if priority(other) < priority(pod)]
    staying = [*nominated, *(other for other in pods if priority(other) >= priority(pod))]
    if not lower or refusal(pod, node, staying) is not None:
        return None
    lower.sort(key=_importance)

    def stays(other: Object) -> bool:
        if refusal(pod, node, [*staying, other]) is not None:
            return False
        staying.append(other)
        return True

    def guarding(other: Object) -> list[int]:
        return [at for at, budget in enumerate(budgets) if guards(budget, other)]

    allowed = [int(budget["status"]["disruptionsAllowed"]) for budget in budgets]
    gone, violations = taken_back(lower, beyond_budgets(lower, guarding, allowed), stays)
    return InTreeVictims(tuple(gone), violations)


def pick(candidates: dict[str, InTreeVictims]) -> str:
    """The node of the lowest `preference`; of equal ones the first by name."""

    def order(name: str) -> tuple[object, ...]:
        candidate = candidates[name]
        return *preference([(priority(pod), _started(pod)) for pod in candidate.pods], candidate.violations), name

    return min(candidates, key=order)


# -- the rule itself, for pods of any form, the most important first. The benchmarks use it too


def beyond_budgets(pods: Iterable[T], guarding: Callable[[T], Iterable[int]], allowed: Sequence[int]) -> list[bool]:
    """Of each pod whether a budget that guards it allows no more. `guarding`: which of the `allowed` are of its
    budgets."""
    allowances, beyond = list(allowed), []
    for pod in pods:
        budgets = list(guarding(pod))
        for budget in budgets:
            allowances[budget] -= 1
        beyond.append(any(allowances[budget] < 0 for budget in budgets))
    return beyond


def taken_back(pods: Sequence[T], beyond: Sequence[bool], stays: Callable[[T], bool]) -> tuple[list[T], int]:
    """selectVictimsOnNode: the pods that are evicted, and how many of them are `beyond_budgets`. Those are asked first
    whether they may stay. `stays`: whether the node has room for the pod, which it counts then."""
    kept = {at for at in sorted(range(len(pods)), key=lambda at: not beyond[at]) if stays(pods[at])}
    gone = [at for at in range(len(pods)) if at not in kept]
    return [pods[at] for at in gone], sum(beyond[at] for at in gone)


def preference(victims: Sequence[tuple[int, float]], violations: int = 0) -> tuple[float, ...]:
    """pickOneNodeForPreemption: fewest violations, lowest highest priority, lowest sum, fewest, youngest. `victims`:
    priority and start of each, one at least."""
    top, started = victims[0]
    # kube-scheduler shifts priorities so that a negative one still counts as a pod.
    return violations, top, sum(priority + 2**31 for priority, _ in victims), len(victims), -started


def _tolerates(taint: Object) -> Any:
    def check(toleration: Object) -> bool:
        if toleration.get("effect") not in (None, "", taint["effect"]):
            return False
        if toleration.get("operator", "Equal") == "Exists":
            return toleration.get("key") in (None, "", taint["key"])
        return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))

    return check


def _importance(pod: Object) -> tuple[int, float, str]:
    """Most important first: higher priority, then the earlier start."""
    return -priority(pod), _started(pod), _uid(pod)


def _started(pod: Object) -> float:
    start = pod["status"].get("startTime")
    return datetime.fromisoformat(start).timestamp() if start else float("inf")


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])
