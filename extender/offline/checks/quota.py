"""ResourceQuotas that no pod can meet, that count no pod, or that Kubernetes does not enforce."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from extender.offline import quotas
from extender.offline.checks.finding import Finding, Item, Posture, at, mapping, name_of, namespace_of


def findings(posture: Posture) -> Iterator[Finding]:
    """What is wrong with each quota."""
    for item in posture.of("ResourceQuota"):
        about = f"ResourceQuota/{namespace_of(item)}/{name_of(item)}"
        scope = quotas.scope(item)
        yield from _scope(posture, about, scope)
        pods = [pod for pod in posture.of("Pod") if namespace_of(pod) == namespace_of(item) and scope.has(pod)]
        limits = mapping(at(item, "spec", "hard")).items()
        for name, text in sorted(one for one in limits if isinstance(one[0], str)):
            yield from _limit(posture, about, (name, text), pods)


def _scope(posture: Posture, about: str, scope: quotas.Scope) -> Iterator[Finding]:
    for name in sorted(scope.named - posture.classes) if posture.classes_listed else ():
        yield Finding(
            "error", "quota-of-no-class", about, f"it is for pods of PriorityClass {name}, which does not "
            "exist: it limits no pod", "Correct the name, or create the class.",
        )  # fmt: skip
    if scope.empty:
        yield Finding(
            "error", "quota-of-nobody", about, "its scopes exclude each other: no pod can be of all the classes "
            "that it asks for", "Put the names into one list of values.",
        )  # fmt: skip


def _limit(posture: Posture, about: str, hard: tuple[str, Any], pods: list[Item]) -> Iterator[Finding]:
    """One row of spec.hard, against the pods that the quota counts."""
    name, text = hard
    resource = name.removeprefix("requests.").removeprefix("limits.")
    if resource in posture.cluster.gpu_names and not name.startswith("requests."):
        yield Finding(
            "error", "quota-not-enforced", about, f"{name} is never counted: of extended resources Kubernetes "
            "counts requests only", f"Write requests.{resource}.",
        )  # fmt: skip
        return
    limit = quotas.amount(name, text)
    if limit is None:
        yield Finding("error", "quota-unreadable", about, f"{name} is {text!r}", "Write a quantity.")
        return
    if not quotas.of_pods(name):
        return
    least = min((asked for pod in pods if (asked := quotas.asked(pod, name))), default=1)
    if limit < least:
        milli = name.endswith("cpu")
        yield Finding(
            "warning" if limit == 0 else "error", "quota-too-small", about,
            f"{name}: {text} is less than any pod of its kind needs ({least}{'m' if milli else ''}): none can "
            "be created",
            "Raise it, or use no pods of that kind there; 0 may be meant as a ban.",
            (("limit_milli" if milli else "limit", limit), ("least_milli" if milli else "least", least)),
        )  # fmt: skip
