"""ResourceQuotas, as far as needed to find which pods they count and what a pod counts for.

Source: kubernetes.io/docs/concepts/policy/resource-quotas. Of a pod's amounts: `cpu` and `memory` are the requests,
`requests.NAME` and `limits.NAME` what they say, `pods` and `count/pods` one each. Other names count other objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from extender.objects.quantity import QuantityError, milli, value

Item = Mapping[str, Any]
PODS = ("pods", "count/pods")


@dataclass(frozen=True, slots=True)
class Scope:
    """Which pods of its namespace a quota counts. `named`: the PriorityClasses that have to exist; `classes`: those
    that all `In` tests allow, None where there is none."""

    named: frozenset[str]
    classes: frozenset[str] | None
    tests: tuple[Callable[[Item], bool], ...]

    @property
    def empty(self) -> bool:
        """Whether no pod can be of all its classes."""
        return self.classes is not None and not self.classes

    def has(self, pod: Item) -> bool:
        """Whether the quota counts the pod; pods that have ended count nowhere."""
        return _at(pod, "status", "phase") not in ("Succeeded", "Failed") and all(test(pod) for test in self.tests)


def scope(quota: Item) -> Scope:
    """Which pods the quota counts."""
    named: set[str] = set()
    classes: frozenset[str] | None = None
    tests: list[Callable[[Item], bool]] = [_plain(name) for name in listed(_at(quota, "spec", "scopes"))]
    for said in listed(_at(quota, "spec", "scopeSelector", "matchExpressions")):
        if not isinstance(said, Mapping):
            continue
        values = frozenset(text for text in listed(said.get("values")) if isinstance(text, str))
        if said.get("scopeName") != "PriorityClass":
            tests.append(_plain(said.get("scopeName")))
            continue
        if said.get("operator") == "In":
            named |= values
            classes = values if classes is None else classes & values
        tests.append(_by_class(said.get("operator"), values))
    return Scope(frozenset(named), classes, tuple(tests))


def _by_class(operator: Any, values: frozenset[str]) -> Callable[[Item], bool]:
    def test(pod: Item) -> bool:
        name = _at(pod, "spec", "priorityClassName") or ""
        match operator:
            case "In":
                return name in values
            case "NotIn":
                return name not in values
            case "Exists":
                return bool(name)
            case "DoesNotExist":
                return not name
        return True

    return test


def _plain(name: Any) -> Callable[[Item], bool]:
    def test(pod: Item) -> bool:
        match name:
            case "Terminating":
                return _at(pod, "spec", "activeDeadlineSeconds") is not None
            case "NotTerminating":
                return _at(pod, "spec", "activeDeadlineSeconds") is None
            case "BestEffort":
                return not _amounts_said(pod)
            case "NotBestEffort":
                return _amounts_said(pod)
            case "PriorityClass":
                return bool(_at(pod, "spec", "priorityClassName"))
        return True  # unknown scopes exclude no pod here

    return test


def _amounts_said(pod: Item) -> bool:
    """Whether any container asks for CPU or memory (its QoS class is not BestEffort)."""
    return any(asked(pod, f"{kind}.{name}") for kind in ("requests", "limits") for name in ("cpu", "memory"))


def of_pods(name: str) -> bool:
    """Whether each pod is counted for its own amount under this name."""
    return name in (*PODS, "cpu", "memory", "ephemeral-storage") or (
        name.startswith(("requests.", "limits.")) and (name != "requests.storage")
    )


def amount(name: str, text: Any) -> int | None:
    """The limit in whole units, CPU in thousandths; None where it is no quantity."""
    try:
        return milli(text) if name.endswith("cpu") else value(text)
    except (QuantityError, TypeError):
        return None


def asked(pod: Item, name: str) -> int:
    """What a pod counts for under this name: the larger of all containers (with sidecars) and the largest init
    container, with the overhead; 0 where it says nothing."""
    if name in PODS:
        return 1
    kind = "limits" if name.startswith("limits.") else "requests"
    resource = name.removeprefix("requests.").removeprefix("limits.")
    spec = _at(pod, "spec")
    total = sum(_said(one, kind, resource) for one in listed(_at(spec, "containers")))
    first = 0
    for one in listed(_at(spec, "initContainers")):
        if isinstance(one, Mapping) and one.get("restartPolicy") == "Always":
            total += _said(one, kind, resource)
        else:
            first = max(first, _said(one, kind, resource))
    whole = _said(spec, kind, resource)  # of the pod as a whole, where it says so
    return (whole or max(total, first)) + (amount(resource, _at(spec, "overhead", resource)) or 0)


def _said(part: Any, kind: str, resource: str) -> int:
    text = _at(part, "resources", kind, resource)
    if text is None and kind == "requests":
        text = _at(part, "resources", "limits", resource)  # the API server's default
    return amount(resource, text) or 0


def listed(item: Any) -> list[Any]:
    """What a file has there, where it has a list; quotas are read as they stand, no record has checked them."""
    return item if isinstance(item, list) else []


def _at(item: Any, *path: str) -> Any:
    for key in path:
        item = item.get(key) if isinstance(item, Mapping) else None
    return item
