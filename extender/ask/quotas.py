"""ResourceQuotas of a cluster: what its pods use of them, and which pods that do not exist yet they refuse."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from extender.ask.text import amount as text_of
from extender.ask.text import count
from extender.ask.ways import Way, term
from extender.cluster.cluster import ClusterView
from extender.cluster.slices import finish
from extender.objects import quotas
from extender.objects.quotas import Excess, QuotaUse
from extender.objects.records import PodRecord
from extender.queue.gang import existing, together
from extender.reservations.seats import is_absent

REASON: Final = "quota"
"""The key of the reason, as reasons of nodes have theirs."""
NAMED: Final = 3
"""Amounts of quotas that a sentence names."""
Missing = dict[str, Any]


def used(cluster: ClusterView, namespaces: Collection[str], wall: float) -> QuotaUse:
    """What the pods of the cluster use of the quotas of these namespaces, at `wall`, seconds since 1970."""
    use = QuotaUse(quota for quota in cluster.quotas.values() if quota.namespace in namespaces)
    if any(namespace in use for namespace in namespaces):
        for pod in list(cluster.pods.values()):
            use.count(pod, wall)
        use.take_status()
    return use


class Absent(NamedTuple):
    """Pods of a gang that do not exist: how many, and what of the quotas they exceed."""

    pods: int = 0
    excess: Sequence[Excess] = ()


def of_gang(cluster: ClusterView, pod: PodRecord, wall: float) -> Absent:
    """The pods that the gang of an unbound pod lacks. Where nothing states what these ask for, they ask for what each
    of the others does; where those differ, nothing is known."""
    if not any(quota.namespace == pod.namespace for quota in cluster.quotas.values()):
        return Absent()
    gang = finish(together(cluster, [pod.uid]))
    if gang is None:
        return Absent()
    absent = [member for member in gang.pods if is_absent(member.uid)]
    lacking = gang.minimum - len(gang.pods) - len(gang.members)
    alike = [*existing(gang.pods), *gang.members]
    if lacking > 0 and len({_counted(member) for member in alike}) == 1:
        absent += [alike[0]] * lacking
    if not absent:
        return Absent()
    use = used(cluster, {pod.namespace}, wall)
    return Absent(len(absent), use.excess(absent))


def _counted(pod: PodRecord) -> tuple[object, ...]:
    """All that quotas look at."""
    return tuple(sorted(quotas.amounts(pod).items())), pod.priority_class, pod.deadline_seconds, pod.quota_facts


def sentence(excess: Sequence[Excess]) -> str:
    """Which quotas refuse it, and by how much."""
    texts = [
        f"ResourceQuota {over.quota.text} allows {amount(over, over.hard)} of {over.resource} ("
        f"{amount(over, over.used)} used, {amount(over, over.asked)} more asked for)"
        for over in excess[:NAMED]
    ]
    more = f" (and {len(excess) - NAMED} more)" if len(excess) > NAMED else ""
    return "; ".join(texts) + more


def amount(over: Excess, number: int) -> str:
    """A number with its unit, where that is not GPUs, pods or devices."""
    unit = quotas.unit(over.resource)
    known = {"millicores": "cpu", "bytes": "memory"}.get(unit)
    return text_of(known, number) if known else str(number)


def nearest(excess: Sequence[Excess]) -> dict[str, Any]:
    """What is missing, as `nearest` of a pod has it: on no node, but in the quotas."""
    missing: list[Missing] = [
        {
            "what": f"{over.resource} of ResourceQuota {over.quota.text}",
            "have": max(0, over.hard - over.used),
            "need": over.asked,
            "unit": quotas.unit(over.resource),
            "quota": over.quota.text,
            "resource": over.resource,
            "used": over.used,
            "hard": over.hard,
            "asked": over.asked,
        }
        for over in excess
    ]
    return {"node": None, "missing": missing}


def raised(excess: Sequence[Excess], fits: bool | None) -> Way:
    """Raise the limits so that the pods are created. `fits`: whether all of them fit then without an eviction; None:
    not looked at."""
    changes = [
        {"quota": over.quota.text, "resource": over.resource, "from": over.hard, "to": over.needed} for over in excess
    ]
    texts = [
        f"{over.resource} of ResourceQuota {over.quota.text} "
        f"from {amount(over, over.hard)} to {amount(over, over.needed)}"
        for over in excess
    ]
    costs = [term("raised_by", over.needed - over.hard, quotas.unit(over.resource)) for over in excess]
    return way("raise", f"raise {', '.join(texts)}", {"changes": changes}, (0.0,), fits=fits, cost=costs)


def way(
    action: str,
    change: str,
    spec: dict[str, Any],
    price: tuple[float, ...],
    *,
    fits: bool | None,
    cost: Sequence[Mapping[str, Any]] | None = None,
) -> Way:
    """A change after which no quota refuses the pods. `action`: raise, smaller, fewer-pods or class; `fits` as for
    `raised`: an eviction may be needed then, which is another question."""
    after = "" if fits is not False else "; it does not fit without an eviction then"
    return Way("quota", change + after, {"action": action, **spec, "fits": fits}, cost, price)


def counted(number: int) -> str:
    """ "3 pods"."""
    return count(number, "pod")
