"""Pods of a question that a ResourceQuota refuses: the API server would not create them, so none of them is placed and
no pod is evicted for them.

A pod of the cluster has passed admission. The others are admitted in the order of the question: each that passes uses
the quotas, whether it finds a node or not. A gang needs all of its pods.

Ways out, all of kind "quota", each with what comes of it: raise the limits; ask for fewer GPUs in each pod; create
fewer pods; another PriorityClass, where a quota counts pods by their class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from extender.ask import nodes as judged_nodes
from extender.ask.place import GangCase, Outcome
from extender.ask.quotas import REASON, counted, nearest, raised, sentence, way
from extender.ask.suppose import SupposedCluster
from extender.ask.text import amount
from extender.ask.ways import Way, in_order, term
from extender.ask.ways.request import with_gpus
from extender.ask.whatif.group import Grouped
from extender.ask.whatif.single import Single, preemptor, warning
from extender.objects import quotas
from extender.objects.limits import PRIORITY_CLASS
from extender.objects.quotas import Excess, QuotaUse
from extender.objects.records import Owner, PodRecord
from extender.preemption import certificate
from extender.preemption.search import SearchResult
from extender.queue.gang import WaitingGang
from extender.queue.placement import Placed

REMEDY: Final = "Raise the quota, ask for less, or use another PriorityClass: see the ways out."
MOST_CLASSES: Final = 64
"""PriorityClasses that are tried."""
Fits = Callable[[Sequence[PodRecord]], bool | None]
"""Whether pods fit without an eviction; None: not looked at."""


class Admission:
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
        return [fewer(passed, self._asked[pod.namespace, pod.owner], text, None)]

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

    def ways(self, pods: Sequence[PodRecord], excess: Sequence[Excess], then: bool | None, fits: Fits) -> list[Way]:
        """What would let the API server create the pods, but for fewer pods. `then`: whether they fit without quotas;
        `fits`: of pods that are changed."""
        ways = [raised(excess, then)]
        if len(self.new(pods)) < len(pods):
            return ways  # pods that exist do not change
        for changed in (self._smaller(pods, excess), self._of_class(pods, excess)):
            if changed is not None:
                change, others = changed
                ways.append(_with_fits(change, fits(others)))
        return ways

    def _smaller(self, pods: Sequence[PodRecord], excess: Sequence[Excess]) -> tuple[Way, list[PodRecord]] | None:
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
        each = f" in each of {counted(len(pods))}" if len(pods) > 1 else ""
        spec = {"resource": resource, "was": was, "is": most, "unit": "GPUs"}
        cost = [term("given_up", (was - most) * len(pods), "GPUs")]
        text = f"ask for {amount(resource, most)} instead of {was}{each}"
        return way("smaller", text, spec, (1.0, (was - most) / was), fits=None, cost=cost), smaller

    def _of_class(self, pods: Sequence[PodRecord], excess: Sequence[Excess]) -> tuple[Way, list[PodRecord]] | None:
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
                return way("class", text, spec, (3.0,), fits=None), others
        return None


def _with_fits(change: Way, fits: bool | None) -> Way:
    """The way, with what comes of it."""
    spec = dict(change.spec)
    action = str(spec.pop("action"))
    spec.pop("fits")
    return way(action, change.change, spec, change.price, fits=fits, cost=change.cost)


def fewer(pods: int, was: int, owner: str, fits: bool | None) -> Way:
    """Fewer pods: as many as pass."""
    spec = {"pods": pods, "was": was}
    text = f"create {counted(pods)} of {owner} instead of {was}"
    cost = [term("given_up", was - pods, "pods")]
    return way("fewer-pods", text, spec, (2.0, (was - pods) / was), fits=fits, cost=cost)


def refuse_single(
    snapshot: SupposedCluster, admission: Admission, pod: PodRecord, judged: Single, wall: float
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
    return Single(judged.result | _refused(snapshot, excess, in_order(ways)), judged.warnings)


def refuse_group(
    snapshot: SupposedCluster, admission: Admission, gang: WaitingGang, judged: Grouped, wall: float
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
        ways.append(fewer(passed, len(pods), str(gang.ref), fits(pods[:passed])))
    common = _refused(snapshot, excess, in_order(ways))
    verdict_fields = {
        key: common[key] for key in ("verdict", "victims", "cost", "certificate", "text", "ways_out", "nearest")
    }
    seats = [seat | {"node": None, "gpus": None} for seat in group["pods"]]
    group = group | verdict_fields | {"domain": None, "pods": seats}
    return Grouped(group, [result | common for result in judged.results], pods, Outcome(), judged.warnings)


def _refused(snapshot: SupposedCluster, excess: Sequence[Excess], ways: Sequence[Way]) -> dict[str, Any]:
    """What of a result is other where a quota refuses the pod."""
    nodes = len(snapshot.cluster.nodes)
    return {
        "verdict": "cannot",
        "node": None,
        "gpus": None,
        "victims": [],
        "cost": [],
        "certificate": certificate.certificate(snapshot.cluster, snapshot.judge.policy, SearchResult(nodes=nodes)),
        "reasons": {REASON: nodes},
        "remedies": {REASON: REMEDY},
        "spared": [],
        "forbidden": None,
        "text": sentence(excess),
        "ways_out": [option.as_json() for option in ways],
        "nearest": nearest(excess),
    }
