"""What the API server says of pods and ResourceQuotas, over Kubernetes JSON, written as plainly as it can be: no
record, no table, every sum anew. Quantities have one of a few suffixes."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tests.world import JSON

SUFFIXES: dict[str, int | Fraction] = {"m": Fraction(1, 1000), "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 1000, "": 1}


def number(text: object) -> Fraction:
    """A quantity."""
    digits = str(text).rstrip("mKiMGk")
    return Fraction(digits) * SUFFIXES[str(text)[len(digits) :]]


def container_amount(container: JSON, kind: str, resource: str) -> Fraction:
    """A limit stands for a request that is missing."""
    resources = container.get("resources", {})
    text = resources.get(kind, {}).get(resource)
    if text is None and kind == "requests":
        text = resources.get("limits", {}).get(resource)
    return Fraction(0) if text is None else number(text)


def pod_amount(pod: JSON, kind: str, resource: str) -> Fraction:
    """All containers and sidecars, or the largest init container with the sidecars before it."""
    spec = pod["spec"]
    total = sum((container_amount(one, kind, resource) for one in spec["containers"]), Fraction(0))
    sidecars = largest = Fraction(0)
    for one in spec.get("initContainers", ()):
        own = container_amount(one, kind, resource)
        if one.get("restartPolicy") == "Always":
            sidecars += own
        else:
            largest = max(largest, own + sidecars)
    return max(total + sidecars, largest)


def hard_amount(pod: JSON, name: str) -> Fraction:
    """What the pod counts for under a name of spec.hard."""
    if name in ("pods", "count/pods"):
        return Fraction(1)
    if name in ("cpu", "memory", "ephemeral-storage"):
        return pod_amount(pod, "requests", name)
    kind, _, resource = name.partition(".")
    if kind == "limits" and resource in ("cpu", "memory", "ephemeral-storage"):
        return pod_amount(pod, "limits", resource)
    if kind == "requests" and resource != "storage":
        return pod_amount(pod, "requests", resource)
    return Fraction(0)  # another kind of object, or limits of a device


def is_best_effort(pod: JSON) -> bool:
    """Whether no container asks for CPU or memory."""
    containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
    stated = [one.get("resources", {}).get(kind, {}) for one in containers for kind in ("requests", "limits")]
    return not any(number(one[name]) for one in stated for name in ("cpu", "memory") if name in one)


def crosses(pod: JSON) -> bool:
    """Whether an affinity term names namespaces."""
    found = []
    for kind in ("podAffinity", "podAntiAffinity"):
        part = pod["spec"].get("affinity", {}).get(kind, {})
        found += part.get("requiredDuringSchedulingIgnoredDuringExecution", [])
        found += [one["podAffinityTerm"] for one in part.get("preferredDuringSchedulingIgnoredDuringExecution", [])]
    return any("namespaces" in term or "namespaceSelector" in term for term in found)


def passes(pod: JSON, scope: str, operator: str, values: Sequence[str]) -> bool:
    """One scope."""
    spec = pod["spec"]
    if scope == "PriorityClass":
        name = spec.get("priorityClassName")
        return {
            "Exists": name is not None,
            "DoesNotExist": name is None,
            "In": name in values,
            "NotIn": name not in values,
        }[operator]
    return {
        "Terminating": "activeDeadlineSeconds" in spec,
        "NotTerminating": "activeDeadlineSeconds" not in spec,
        "BestEffort": is_best_effort(pod),
        "NotBestEffort": not is_best_effort(pod),
        "CrossNamespacePodAffinity": crosses(pod),
    }[scope]


def is_counted(quota: JSON, pod: JSON) -> bool:
    """Whether the quota counts the pod."""
    spec = quota["spec"]
    tests = [(name, "Exists", ()) for name in spec.get("scopes", ())]
    for one in spec.get("scopeSelector", {}).get("matchExpressions", ()):
        tests.append((one["scopeName"], one["operator"], one.get("values", ())))
    same = quota["metadata"]["namespace"] == pod["metadata"]["namespace"]
    return same and all(passes(pod, *test) for test in tests)


def unstated(quota: JSON, pod: JSON) -> set[str]:
    """The amounts that the quota wants stated by every container, and which are not."""
    found = set()
    for name in quota["spec"]["hard"]:
        kind, _, resource = name.partition(".") if "." in name else ("requests", "", name)
        if resource in ("cpu", "memory") and kind in ("requests", "limits"):
            for one in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]:
                resources = one.get("resources", {})
                if resource not in resources.get("limits", {}) and (
                    kind == "limits" or resource not in resources.get("requests", {})
                ):
                    found.add(f"{kind}.{resource}")
    return found if is_counted(quota, pod) else set()


def exceeded(quotas: Sequence[JSON], there: Sequence[JSON], pod: JSON) -> set[tuple[str, str]]:
    """(quota, name of spec.hard) that one more pod exceeds beside those that are there."""
    found = set()
    for quota in quotas:
        for name, limit in quota["spec"]["hard"].items():
            own = hard_amount(pod, name) if is_counted(quota, pod) else 0
            used = sum(hard_amount(other, name) for other in there if is_counted(quota, other) and counts(other, name))
            if own and used + own > number(limit):
                found.add((quota["metadata"]["name"], name))
    return found


def counts(pod: JSON, name: str) -> bool:
    """Whether a pod still counts: of those that have ended only their number does, under one name."""
    return name == "count/pods" or pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
