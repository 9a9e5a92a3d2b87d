"""ResourceQuotas that no pod can meet, that count no pod, or that Kubernetes does not enforce; and the owners of pods
that a quota keeps from creating all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from extender.ask.checks.finding import Finding, Item, Posture, at, listed, name_of, namespace_of, verb
from extender.ask.whatif.admission import default_class, quota_use, with_unit
from extender.objects import quotas
from extender.objects.limits import PRIORITY_CLASS
from extender.objects.quotas import Excess, QuotaUse
from extender.objects.records import PodRecord, QuotaRecord

ENDED: Final = ("Complete", "Failed", "Succeeded", "Completed")
"""Conditions of owners that create no more pods."""
MOST_ABOVE: Final = 4
"""Owners of owners of a pod."""


def findings(posture: Posture) -> Iterator[Finding]:
    """What is wrong with each quota, and what each refuses."""
    cluster = posture.cluster
    use = quota_use(cluster, {quota.namespace for quota in cluster.quotas.values()}, posture.wall)
    for _, quota in sorted(cluster.quotas.items()):
        about = f"ResourceQuota/{quota.text}"
        yield from _scope(posture, about, quota)
        pods = [pod for pod in cluster.pods.values() if not pod.finished and quotas.counts(quota, pod)]
        for name, text in quota.unreadable:
            yield Finding("error", "quota-unreadable", about, f"{name} is {text!r}", "Write a quantity.")
        for name, limit in quota.hard:
            yield from _limit(posture, Excess(quota, name, use.used(quota).get(name, 0), limit, 0), pods)
    yield from _owners(posture, use)


def _scope(posture: Posture, about: str, quota: QuotaRecord) -> Iterator[Finding]:
    named = [
        frozenset(scope.values) for scope in quota.scopes if scope.name == PRIORITY_CLASS and scope.operator == "In"
    ]
    for name in sorted(frozenset().union(*named) - posture.classes) if posture.classes_listed else ():
        yield Finding(
            "error", "quota-of-no-class", about, f"it is for pods of PriorityClass {name}, which does not "
            "exist: it limits no pod", "Correct the name, or create the class.",
        )  # fmt: skip
    if named and not frozenset.intersection(*named):
        yield Finding(
            "error", "quota-of-nobody", about, "its scopes exclude each other: no pod can be of all the classes "
            "that it asks for", "Put the names into one list of values.",
        )  # fmt: skip


def _limit(posture: Posture, row: Excess, pods: list[PodRecord]) -> Iterator[Finding]:
    """One row of spec.hard, against the pods that the quota counts."""
    name, limit, about = row.resource, row.hard, f"ResourceQuota/{row.quota.text}"
    resource = name.removeprefix("requests.").removeprefix("limits.")
    if resource in posture.cluster.gpu_names and not name.startswith("requests."):
        yield Finding(
            "error", "quota-not-enforced", about, f"{name} is never counted: of extended resources Kubernetes "
            "counts requests only", f"Write requests.{resource}.",
        )  # fmt: skip
        return
    if not quotas.counts_pods(name):
        return
    least = min((asked for pod in pods if (asked := quotas.amounts(pod).get(name, 0))), default=1)
    if limit < least:
        milli = quotas.unit(name) == "millicores"
        unit = "m" if milli else ""
        yield Finding(
            "warning" if limit == 0 else "error", "quota-too-small", about,
            f"{name}: {limit}{unit} is less than any pod of its kind needs ({least}{unit}): none can be created",
            "Raise it, or use no pods of that kind there; 0 may be meant as a ban.",
            (("limit_milli" if milli else "limit", limit), ("least_milli" if milli else "least", least)),
        )  # fmt: skip
    elif row.used > limit:  # it was lowered, or the pods are those of a file that was never applied
        yield Finding(
            "warning", "quota-exceeded", about, f"pods use {with_unit(row, row.used)} of {name}, and it allows "
            f"{with_unit(row, limit)}: no pod that asks for it can be created", "Raise it, or wait for pods to end.",
            (("used", row.used), ("hard", limit)),
        )  # fmt: skip


# ---- owners


def _owners(posture: Posture, use: QuotaUse) -> Iterator[Finding]:
    """Each owner alone: what it lacks now, by what is left now. An owner that another of the input owns is part of
    that one."""
    keys = {(str(item.get("kind")), namespace_of(item), name_of(item)) for item in posture.items}
    below = _created(posture)
    default = default_class(posture.cluster)
    for owner, item in posture.owners():
        space = owner[1]
        if space not in use or _is_over(item):
            continue
        if any((kind, space, name) in keys for kind, name in _owners_of(item)):
            continue
        pods = posture.pods_of(item)
        if default is not None:  # as the API server would write them
            pods = [pod if pod.priority_class else quotas.of_class(pod, default.name, default.value) for pod in pods]
        created = below[owner]
        lacking = pods[: max(0, len(pods) - created)] if created else pods
        alone = QuotaUse(posture.cluster.quotas.values()).excess(pods)
        excess = alone or use.excess(lacking)
        if excess:
            yield _exceeds(owner, len(pods), excess, never=bool(alone))


def _exceeds(owner: tuple[str, str, str], pods: int, excess: list[Excess], *, never: bool) -> Finding:
    """The first amount that it exceeds; the facts have its numbers."""
    over, about = excess[0], "/".join(owner)
    allowed = f"ResourceQuota {over.quota.text} allows {with_unit(over, over.hard)} of {over.resource}"
    more = f", and {len(excess) - 1} more" if len(excess) > 1 else ""
    facts = (("asked", over.asked), ("used", over.used), ("hard", over.hard), ("pods", pods))
    its = f"its {pods} {verb(pods, 'pod', 'pods')}"
    if never:
        return Finding(
            "error", "owner-exceeds-quota", about,
            f"{its} ask for {with_unit(over, over.asked)}, and {allowed}{more}: they are never all created",
            f"Raise the quota to {with_unit(over, over.asked)}, ask for less, or use another PriorityClass.", facts,
        )  # fmt: skip
    return Finding(
        "warning", "owner-waits-for-quota", about,
        f"its pods that do not exist ask for {with_unit(over, over.asked)}, {with_unit(over, over.used)} are used, and "
        f"{allowed}{more}: they are created once others have ended",
        f"Wait, raise the quota to {with_unit(over, over.needed)}, ask for less, or use another PriorityClass.", facts,
    )  # fmt: skip


def _is_over(item: Item) -> bool:
    conditions = listed(at(item, "status", "conditions"))
    return any(at(condition, "status") == "True" and at(condition, "type") in ENDED for condition in conditions)


def _owners_of(item: Item) -> Iterator[tuple[str, str]]:
    """(kind, name) of its owners."""
    for owner in listed(at(item, "metadata", "ownerReferences")):
        yield str(at(owner, "kind")), str(at(owner, "name"))


def _created(posture: Posture) -> Counter[tuple[str, str, str]]:
    """How many pods that have not ended each owner of the input has, those of what it owns included."""
    above = {
        (str(item.get("kind")), namespace_of(item), name_of(item)): list(_owners_of(item)) for item in posture.items
    }
    created: Counter[tuple[str, str, str]] = Counter()
    for pod in posture.cluster.pods.values():
        key = None if pod.owner is None or pod.finished else (pod.owner.kind, pod.namespace, pod.owner.name)
        for _ in range(MOST_ABOVE):
            if key is None:
                break
            created[key] += 1
            key = next(((kind, pod.namespace, name) for kind, name in above.get(key, ())), None)
    return created
