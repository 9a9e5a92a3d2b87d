"""What ResourceQuotas count, and which pods the API server would reject because of them.

Source: pkg/quota/v1/evaluator/core/pods.go and the admission plugin ResourceQuota (Kubernetes 1.37). A pod counts where
it passes all scopes of a quota, from its creation to its end: with gates and without a node, too. A pod that exists has
passed admission; it is counted, and never rejected. Quotas of claims are named, and not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from extender.objects.limits import PRIORITY_CLASS, QuotaScope
from extender.objects.records import PodRecord, QuotaRecord
from extender.objects.resources import total

PODS: Final = ("pods", "count/pods")
_SHORT: Final = ("cpu", "memory", "ephemeral-storage")
"""Their requests have a short name, too."""
_COMPUTE: Final = frozenset([*PODS, *_SHORT, *(f"{kind}.{name}" for kind in ("requests", "limits") for name in _SHORT)])
_HUGE: Final = "hugepages-"
_REQUESTS: Final = "requests."
_OF_CLAIMS: Final = (".deviceclass.resource.k8s.io/devices", "count/resourceclaims.resource.k8s.io")
"""How names end that limit the claims of pods, and not pods."""
MUST_BE_STATED: Final = frozenset(f"{kind}.{name}" for kind in ("requests", "limits") for name in ("cpu", "memory"))


class Excess(NamedTuple):
    """An amount of a quota that pods would exceed."""

    quota: QuotaRecord
    resource: str  # its name in spec.hard
    used: int
    hard: int
    asked: int  # by the pods

    @property
    def needed(self) -> int:
        """The limit with which the pods would be created."""
        return total(self.used, self.asked)


def counts_pods(name: str) -> bool:
    """Whether each pod counts for its own amount under this name of spec.hard."""
    if name in _COMPUTE or name.startswith((_HUGE, _REQUESTS + _HUGE)):
        return True
    resource = name.removeprefix(_REQUESTS)
    return name.startswith(_REQUESTS) and "/" in resource and "kubernetes.io/" not in resource


def unit(name: str) -> str:
    """The unit of an amount with this name."""
    resource = name.removeprefix(_REQUESTS).removeprefix("limits.")
    if resource == "cpu":
        return "millicores"
    if resource in _SHORT or resource.startswith(_HUGE):
        return "bytes"
    return "pods" if name in PODS else "GPUs" if resource.endswith("/gpu") else "devices"


def counts(quota: QuotaRecord, pod: PodRecord) -> bool:
    """Whether the quota counts the pod: it passes all scopes, and is in the quota's namespace."""
    return quota.namespace == pod.namespace and all(_passes(scope, pod) for scope in quota.scopes)


def _passes(scope: QuotaScope, pod: PodRecord) -> bool:
    match scope.name:
        case "Terminating":
            return pod.deadline_seconds is not None
        case "NotTerminating":
            return pod.deadline_seconds is None
        case "BestEffort":
            return pod.quota_facts.best_effort
        case "NotBestEffort":
            return not pod.quota_facts.best_effort
        case "CrossNamespacePodAffinity":
            return pod.quota_facts.crosses_namespaces
        case name if name == PRIORITY_CLASS:
            return _is_of_class(scope, pod.priority_class)
    return False  # as the API server: of objects that are no pods


def _is_of_class(scope: QuotaScope, name: str) -> bool:
    match scope.operator:
        case "In":
            return name in scope.values
        case "NotIn":
            return name not in scope.values
        case "DoesNotExist":
            return not name
    return bool(name)


def amounts(pod: PodRecord) -> dict[str, int]:
    """What the pod counts for, by the names of spec.hard, where it is more than 0."""
    own = dict(pod.quota_facts.amounts)
    own |= {f"{_REQUESTS}cpu": pod.cpu_milli, f"{_REQUESTS}memory": pod.memory}
    claimed = dict(pod.claimed)  # GPUs by claims: the quotas of their classes count them
    own |= {_REQUESTS + name: count - claimed.get(name, 0) for name, count in pod.gpus}
    counted = {name: count for name, count in own.items() if count > 0}
    for name in [name for name in counted if name.startswith(_REQUESTS)]:
        short = name.removeprefix(_REQUESTS)
        if short in _SHORT or short.startswith(_HUGE):
            counted[short] = counted[name]
    return counted | dict.fromkeys(PODS, 1)


def of_class(pod: PodRecord, name: str, priority: int) -> PodRecord:
    """The pod with another PriorityClass."""
    return replace(pod, priority_class=name, priority=priority)


class QuotaUse:
    """What is used of some quotas, and what would be with more pods."""

    def __init__(self, quotas: Iterable[QuotaRecord]) -> None:
        self._quotas: dict[str, list[QuotaRecord]] = {}
        for quota in sorted(quotas, key=lambda quota: (quota.namespace, quota.name)):
            self._quotas.setdefault(quota.namespace, []).append(quota)
        self._used: dict[tuple[str, str], dict[str, int]] = {}

    def __contains__(self, namespace: str) -> bool:
        """Whether the namespace has quotas."""
        return namespace in self._quotas

    def count(self, pod: PodRecord, wall: float) -> None:
        """The pod exists at `wall`, seconds since 1970. A pod that is read in part does not count: its amounts are
        unknown, and the quota's own status has them."""
        if pod.namespace not in self._quotas or pod.unread:
            return
        if pod.finished or (pod.deletion_at is not None and wall > pod.deletion_at + pod.grace_seconds):
            self._add(pod, {"count/pods": 1})
        else:
            self._add(pod, amounts(pod))

    def take_status(self) -> None:
        """Where a quota's status states that more is used than is counted, that counts: the API server admits pods by
        it, and an input may lack pods."""
        for quotas in self._quotas.values():
            for quota in quotas:
                used = self._used_of(quota)
                used.update((name, max(count, used.get(name, 0))) for name, count in quota.used)

    def add(self, pod: PodRecord) -> None:
        """The pod is created."""
        self._add(pod, amounts(pod))

    def excess(self, pods: Sequence[PodRecord]) -> list[Excess]:
        """What of the quotas the pods would exceed if all of them were created, by quota and resource."""
        excesses: list[Excess] = []
        for namespace in sorted({pod.namespace for pod in pods} & self._quotas.keys()):
            for quota in self._quotas[namespace]:
                used, asked = self._used_of(quota), dict[str, int]()
                for pod in pods:
                    for name, count in amounts(pod).items() if counts(quota, pod) else ():
                        asked[name] = total(asked.get(name, 0), count)
                excesses += [
                    Excess(quota, name, used.get(name, 0), hard, asked[name])
                    for name, hard in quota.hard
                    if counts_pods(name) and asked.get(name) and used.get(name, 0) + asked[name] > hard
                ]
        return excesses

    def unstated(self, pod: PodRecord) -> list[tuple[QuotaRecord, tuple[str, ...]]]:
        """The quotas that want amounts stated by every container of the pod, which are not: the API server refuses the
        pod unless a LimitRange sets defaults."""
        by_quota = []
        for quota in self._quotas.get(pod.namespace, ()):
            wanted = {_REQUESTS + name if name in _SHORT else name for name, _ in quota.hard} & MUST_BE_STATED
            missing = tuple(name for name in pod.quota_facts.unstated if name in wanted)
            if missing and counts(quota, pod):
                by_quota.append((quota, missing))
        return by_quota

    def of_claims(self, pod: PodRecord) -> list[tuple[QuotaRecord, tuple[str, ...]]]:
        """The quotas that may reject a claim of the pod, with the names in spec.hard: a claim without which it waits.
        Quotas with scopes count no claims."""
        by_quota = []
        for quota in self._quotas.get(pod.namespace, ()) if pod.claims else ():
            names = tuple(name for name, _ in quota.hard if name.endswith(_OF_CLAIMS))
            if names and not quota.scopes:
                by_quota.append((quota, names))
        return by_quota

    def used(self, quota: QuotaRecord) -> Mapping[str, int]:
        """What is used of the quota, by name."""
        return self._used_of(quota)

    def _add(self, pod: PodRecord, more: Mapping[str, int]) -> None:
        for quota in self._quotas.get(pod.namespace, ()):
            if counts(quota, pod):
                used = self._used_of(quota)
                for name, count in more.items():
                    used[name] = total(used.get(name, 0), count)

    def _used_of(self, quota: QuotaRecord) -> dict[str, int]:
        return self._used.setdefault((quota.namespace, quota.name), {})
