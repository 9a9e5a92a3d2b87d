"""The pods of a question as the API server would write them, and those that it would refuse for a ResourceQuota."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec

from extender.ask import nodes as judged_nodes
from extender.ask.place import GangCase, Outcome
from extender.ask.suppose import SupposedCluster
from extender.ask.text import amount, count, no_such_pod
from extender.ask.warn import warning
from extender.ask.ways import Way, in_order, term
from extender.ask.ways.pod import with_gpus
from extender.ask.whatif.group import Grouped
from extender.ask.whatif.single import Single, preemptor
from extender.cluster.cluster import ClusterView
from extender.cluster.slices import finish
from extender.errors import BadInput, NotFound
from extender.objects import quotas
from extender.objects.limits import PRIORITY_CLASS, SYSTEM_CLASSES
from extender.objects.quotas import Excess, QuotaUse
from extender.objects.records import Owner, PodRecord, PriorityClassRecord
from extender.preemption import certificate
from extender.preemption.search import SearchResult
from extender.queue.gang import WaitingGang, existing, together
from extender.queue.placement import Placed
from extender.reservations.seats import is_absent

TEMPLATE_HASH: Final = "pod-template-hash"
"""The label that a Deployment's controller adds, and with which it ends the name of the ReplicaSet."""


class Owners:
    """The owners of the pods of a cluster, so that a pod of the question has the owner that its siblings there have.
    A Deployment owns no pod itself: of its ReplicaSets that counts which made the latest pod."""

    def __init__(self, cluster: ClusterView) -> None:
        self._owners: dict[tuple[str, str, str, str], Owner] = {}
        latest: dict[tuple[str, str, str, str], tuple[float, str]] = {}
        for pod in cluster.pods.values():
            owner = pod.owner
            if owner is None:
                continue
            self._owners[pod.namespace, owner.api, owner.kind, owner.name] = owner
            suffix = f"-{pod.labels.get(TEMPLATE_HASH, '')}"
            if owner.kind == "ReplicaSet" and len(suffix) > 1 and owner.name.endswith(suffix):
                key = pod.namespace, owner.api, "Deployment", owner.name.removesuffix(suffix)
                created = pod.created or 0.0, owner.name
                if created >= latest.get(key, created):
                    latest[key], self._owners[key] = created, owner

    def of(self, pod: PodRecord) -> PodRecord:
        """The pod with its owner as the cluster has it."""
        owner = pod.owner
        if owner is None or owner.uid:
            return pod
        match = self._owners.get((pod.namespace, owner.api, owner.kind, owner.name))
        # Its gang is that of the owner in the question.
        return pod if match is None else msgspec.structs.replace(pod, owner=owner._replace(uid=match.identity))


def admit(cluster: ClusterView, pod: PodRecord, number: int) -> PodRecord:
    """The pod as the API server would write it: its priority by its class, a uid, and the selectors of its (anti-)
    affinity with its own labels. BadInput where it would not."""
    path = f"pod {pod.namespace}/{pod.name}"
    if node := node_of(cluster, pod):
        raise BadInput(f"it is on node {node} already", path=path)
    existing = cluster.pod(pod.namespace, pod.name)
    if not pod.priority_given:
        pod = _with_class(cluster, pod, path)
    if not pod.uid:
        pod = msgspec.structs.replace(pod, uid=existing.uid if existing is not None else f"what-if-{number}")
    return _with_label_keys(pod)


def _with_label_keys(pod: PodRecord) -> PodRecord:
    terms = pod.anti_affinity_terms, pod.affinity_terms
    if not any(term.match_keys or term.mismatch_keys for both in terms for term in both):
        return pod
    apart, near = (tuple([term.with_keys(pod.labels) for term in both]) for both in terms)
    return msgspec.structs.replace(pod, anti_affinity_terms=apart, affinity_terms=near)


def node_of(cluster: ClusterView, pod: PodRecord) -> str:
    """The node that the pod is on already, "" for none."""
    existing = cluster.pod(pod.namespace, pod.name)
    if existing is not None and existing.node and (not pod.uid or pod.uid == existing.uid):
        return pod.node or existing.node
    return pod.node


def known(cluster: ClusterView, namespace: str, name: str) -> PodRecord:
    """The pod of the cluster that waits. NotFound: there is none of that name, or it has ended. BadInput: it has a
    node."""
    pod = cluster.pod(namespace, name)
    path = f"pod {namespace}/{name}"
    if pod is None or pod.finished:
        raise NotFound(no_such_pod(cluster, namespace, name), path=path)
    if pod.node:
        raise BadInput(f"it is on node {pod.node} already", path=path)
    return pod


def _with_class(cluster: ClusterView, pod: PodRecord, path: str) -> PodRecord:
    name = pod.priority_class
    if name in SYSTEM_CLASSES:
        return msgspec.structs.replace(pod, priority=SYSTEM_CLASSES[name])
    if name:
        priority_class = cluster.priority_classes.get(name)
        if priority_class is None:
            raise BadInput(f"there is no PriorityClass {name!r} in the cluster", path=path)
    else:
        priority_class = default_class(cluster)
        if priority_class is None:
            return pod
    return msgspec.structs.replace(
        pod, priority=priority_class.value, priority_class=priority_class.name, never=pod.never or priority_class.never
    )


def default_class(cluster: ClusterView) -> PriorityClassRecord | None:
    """The class of pods that name none; of several the API server takes the one with the lowest value."""
    defaults = [priority_class for priority_class in cluster.priority_classes.values() if priority_class.global_default]
    return min(defaults, key=lambda priority_class: (priority_class.value, priority_class.name), default=None)


# -- ResourceQuotas: what the pods of a cluster use of them, and which pods that do not exist yet they refuse

QUOTA_REASON: Final = "quota"
"""The key of the reason, as reasons of nodes have theirs."""
MOST_NAMED: Final = 3
"""Amounts of quotas that a sentence names."""
Missing = dict[str, Any]


def quota_use(cluster: ClusterView, namespaces: Collection[str], wall: float) -> QuotaUse:
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


def absent_of_gang(cluster: ClusterView, pod: PodRecord, wall: float) -> Absent:
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
    if lacking > 0 and len({_seen_by_quotas(member) for member in alike}) == 1:
        absent += [alike[0]] * lacking
    if not absent:
        return Absent()
    use = quota_use(cluster, {pod.namespace}, wall)
    return Absent(len(absent), use.excess(absent))


def _seen_by_quotas(pod: PodRecord) -> tuple[object, ...]:
    """All that quotas look at."""
    return tuple(sorted(quotas.amounts(pod).items())), pod.priority_class, pod.deadline_seconds, pod.quota_facts


def quota_sentence(excess: Sequence[Excess]) -> str:
    """Which quotas refuse it, and by how much."""
    texts = [
        f"ResourceQuota {over.quota.text} allows {with_unit(over, over.hard)} of {over.resource} ("
        f"{with_unit(over, over.used)} used, {with_unit(over, over.asked)} more asked for)"
        for over in excess[:MOST_NAMED]
    ]
    more = f" (and {len(excess) - MOST_NAMED} more)" if len(excess) > MOST_NAMED else ""
    return "; ".join(texts) + more


def with_unit(over: Excess, number: int) -> str:
    """A number with its unit, where that is not GPUs, pods or devices."""
    unit = quotas.unit(over.resource)
    known = {"millicores": "cpu", "bytes": "memory"}.get(unit)
    return amount(known, number) if known else str(number)


def quota_nearest(excess: Sequence[Excess]) -> dict[str, Any]:
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


def raise_limits(excess: Sequence[Excess], fits: bool | None) -> Way:
    """Raise the limits so that the pods are created. `fits`: whether all of them fit then without an eviction; None:
    not looked at."""
    changes = [
        {"quota": over.quota.text, "resource": over.resource, "from": over.hard, "to": over.needed} for over in excess
    ]
    texts = [
        f"{over.resource} of ResourceQuota {over.quota.text} "
        f"from {with_unit(over, over.hard)} to {with_unit(over, over.needed)}"
        for over in excess
    ]
    costs = [term("raised_by", over.needed - over.hard, quotas.unit(over.resource)) for over in excess]
    return quota_way("raise", f"raise {', '.join(texts)}", {"changes": changes}, (0.0,), fits=fits, cost=costs)


def quota_way(
    action: str,
    change: str,
    spec: dict[str, Any],
    price: tuple[float, ...],
    *,
    fits: bool | None,
    cost: Sequence[Mapping[str, Any]] | None = None,
) -> Way:
    """A change after which no quota refuses the pods. `action`: raise, smaller, fewer-pods or class; `fits` as for
    `raise_limits`: an eviction may be needed then, which is another question."""
    after = "" if fits is not False else "; it does not fit without an eviction then"
    return Way("quota", change + after, {"action": action, **spec, "fits": fits}, cost, price)


# -- pods of a question that a ResourceQuota refuses: none of them is placed, and no pod is evicted for them
#
# A pod of the cluster has passed admission. The others are admitted in the order of the question: each that passes uses
# the quotas, whether it finds a node or not. A gang needs all of its pods.
#
# Ways out, all of kind "quota", each with what comes of it: raise the limits; ask for fewer GPUs in each pod; create
# fewer pods; another PriorityClass, where a quota counts pods by their class.

QUOTA_REMEDY: Final = "Raise the quota, ask for less, or use another PriorityClass: see the ways out."
MOST_CLASSES: Final = 64
"""PriorityClasses that are tried."""
FitsAlone = Callable[[Sequence[PodRecord]], bool | None]
"""Whether pods fit without an eviction; None: not looked at."""


class QuotaAdmission:
    """What the quotas make of the pods of one question."""

    def __init__(self, snapshot: SupposedCluster, use: QuotaUse, pods: Iterable[PodRecord]) -> None:
        """`use`: before any pod of the question is created; `pods`: all of the question."""
        self._snapshot, self._use = snapshot, use
        self._asked = Counter((pod.namespace, pod.owner) for pod in pods if pod.owner is not None)
        self._passed: Counter[tuple[str, Owner]] = Counter()

    def excess(self, pods: Sequence[PodRecord]) -> list[Excess]:
        """What those of the pods that do not exist exceed together."""
        return self._use.excess(self.new(pods))

    def new(self, pods: Iterable[PodRecord]) -> list[PodRecord]:
        """Those that do not exist, in namespaces that have quotas."""
        known = self._snapshot.cluster.pods
        return [pod for pod in pods if pod.namespace in self._use and pod.uid not in known]

    def create(self, pods: Sequence[PodRecord]) -> int:
        """Those that pass, one after the other, use the quotas from now on. How many exist then."""
        new = self.new(pods)
        passed = len(pods) - len(new)
        for pod in new:
            if not self._use.excess([pod]):
                self._use.add(pod)
                passed += 1
                if pod.owner is not None:
                    self._passed[pod.namespace, pod.owner] += 1
        return passed

    def fewer_of_owner(self, pod: PodRecord) -> list[Way]:
        """As many pods of its owner as have passed, instead of all that the question has."""
        passed = 0 if pod.owner is None else self._passed[pod.namespace, pod.owner]
        if pod.owner is None or not passed:
            return []
        text = f"{pod.owner.kind} {pod.namespace}/{pod.owner.name}"
        return [fewer_pods(passed, self._asked[pod.namespace, pod.owner], text, None)]

    def about(self, pod: PodRecord) -> Iterator[dict[str, str]]:
        """Warnings of amounts that a quota wants stated, and of quotas that count its claims."""
        if not self.new([pod]):
            return
        for quota, names in self._use.of_claims(pod):
            yield warning(
                "quota-not-checked",
                f"ResourceQuota {quota.text} limits {', '.join(names)}, which is not checked: a claim of pod "
                f"{pod.namespace}/{pod.name} that exceeds it is not created, and the pod waits for it",
            )
        for quota, names in self._use.unstated(pod):
            yield warning(
                "quota-unstated",
                f"ResourceQuota {quota.text} wants {', '.join(names)} stated by every container of pod {pod.namespace}/"
                f"{pod.name}: without defaults of a LimitRange the API server refuses the pod",
            )

    def ways(
        self, pods: Sequence[PodRecord], excess: Sequence[Excess], then: bool | None, fits: FitsAlone
    ) -> list[Way]:
        """What would let the API server create the pods, but for fewer pods. `then`: whether they fit without quotas;
        `fits`: of pods that are changed."""
        ways = [raise_limits(excess, then)]
        if len(self.new(pods)) < len(pods):
            return ways  # pods that exist do not change
        changed = (self._smaller(pods, excess, fits), self._of_class(pods, excess, fits))
        return [*ways, *(way for way in changed if way is not None)]

    def _smaller(self, pods: Sequence[PodRecord], excess: Sequence[Excess], fits: FitsAlone) -> Way | None:
        """The most GPUs in each pod, where all ask for the same and that is all that is too much."""
        asked = {pod.gpus for pod in pods}
        if len(asked) != 1 or len(next(iter(asked))) != 1 or len({over.resource for over in excess}) != 1:
            return None
        (((resource, was),),) = asked
        if excess[0].resource != f"requests.{resource}":
            return None
        most = min(max(0, over.hard - over.used) // len(pods) for over in excess)
        smaller = [less for pod in pods if (less := with_gpus(pod, most)) is not None]
        if not 0 < most < was or len(smaller) < len(pods) or self._use.excess(smaller):
            return None
        each = f" in each of {count(len(pods), 'pod')}" if len(pods) > 1 else ""
        spec = {"resource": resource, "was": was, "is": most, "unit": "GPUs"}
        cost = [term("given_up", (was - most) * len(pods), "GPUs")]
        text = f"ask for {amount(resource, most)} instead of {was}{each}"
        return quota_way("smaller", text, spec, (1.0, (was - most) / was), fits=fits(smaller), cost=cost)

    def _of_class(self, pods: Sequence[PodRecord], excess: Sequence[Excess], fits: FitsAlone) -> Way | None:
        """The PriorityClass with the nearest value of which no quota refuses the pods."""
        by_class = [over for over in excess if any(scope.name == PRIORITY_CLASS for scope in over.quota.scopes)]
        classes = {pod.priority_class for pod in pods}
        if not by_class or len(classes) != 1:
            return None
        was, now = next(iter(classes)), pods[0].priority
        tried = sorted(
            (
                priority_class
                for priority_class in self._snapshot.cluster.priority_classes.values()
                if priority_class.name != was
            ),
            key=lambda priority_class: (abs(priority_class.value - now), priority_class.name),
        )
        for priority_class in tried[:MOST_CLASSES]:
            others = [quotas.of_class(pod, priority_class.name, priority_class.value) for pod in pods]
            if not self._use.excess(others):
                spec = {"priority_class": priority_class.name, "was": was, "priority": priority_class.value}
                named = f"{priority_class.name} (priority {priority_class.value:,})"
                text = f"use priorityClassName: {named} instead of {was or 'none'}"
                return quota_way("class", text, spec, (3.0,), fits=fits(others))
        return None


def fewer_pods(pods: int, was: int, owner: str, fits: bool | None) -> Way:
    """Fewer pods: as many as pass."""
    spec = {"pods": pods, "was": was}
    text = f"create {count(pods, 'pod')} of {owner} instead of {was}"
    cost = [term("given_up", was - pods, "pods")]
    return quota_way("fewer-pods", text, spec, (2.0, (was - pods) / was), fits=fits, cost=cost)


def refuse_pod(
    snapshot: SupposedCluster, admission: QuotaAdmission, pod: PodRecord, judged: Single, wall: float
) -> Single:
    """The result of a pod that is refused. `judged`: without quotas."""

    def fits(pods: Sequence[PodRecord]) -> bool | None:
        if snapshot.over():
            return None
        nodes = judged_nodes.read(snapshot.judge, preemptor(snapshot, pods[0], wall))
        return bool(nodes.fits)

    excess = admission.excess([pod])
    ways = admission.ways([pod], excess, judged.result["verdict"] == "fits", fits)
    ways += admission.fewer_of_owner(pod)
    return Single(judged.result | _refused_by_quota(snapshot, excess, in_order(ways)), judged.warnings)


def refuse_gang(
    snapshot: SupposedCluster, admission: QuotaAdmission, gang: WaitingGang, judged: Grouped, wall: float
) -> Grouped:
    """The answer about a gang of which pods are refused; those that pass are created. `judged`: without quotas."""
    case, pods = GangCase.of(snapshot, gang, wall), judged.pods

    def fits(some: Sequence[PodRecord]) -> bool | None:
        if snapshot.over():
            return None
        return isinstance(case.changed(replace(case.gang, pods=tuple(some))).place(), Placed)

    excess, group = admission.excess(pods), judged.group
    ways = admission.ways(pods, excess, group["verdict"] == "fits", fits)
    passed = admission.create(pods)
    if any(pod.gpus for pod in pods[:passed]):
        ways.append(fewer_pods(passed, len(pods), str(gang.ref), fits(pods[:passed])))
    common = _refused_by_quota(snapshot, excess, in_order(ways))
    verdict_fields = {
        key: common[key] for key in ("verdict", "victims", "cost", "certificate", "text", "ways_out", "nearest")
    }
    seats = [seat | {"node": None, "gpus": None} for seat in group["pods"]]
    group = group | verdict_fields | {"domain": None, "pods": seats}
    return Grouped(group, [result | common for result in judged.results], pods, Outcome(), judged.warnings)


def _refused_by_quota(snapshot: SupposedCluster, excess: Sequence[Excess], ways: Sequence[Way]) -> dict[str, Any]:
    """What of a result is other where a quota refuses the pod."""
    nodes = len(snapshot.cluster.nodes)
    return {
        "verdict": "cannot",
        "node": None,
        "gpus": None,
        "victims": [],
        "cost": [],
        "certificate": certificate.certificate(snapshot.cluster, snapshot.judge.policy, SearchResult(nodes=nodes)),
        "reasons": {QUOTA_REASON: nodes},
        "remedies": {QUOTA_REASON: QUOTA_REMEDY},
        "spared": [],
        "forbidden": None,
        "text": quota_sentence(excess),
        "ways_out": [option.as_json() for option in ways],
        "nearest": quota_nearest(excess),
    }
