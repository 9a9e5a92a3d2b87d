"""What would happen to one pod: the code of filter, prioritize and preempt, over all nodes.

Every node is a candidate, while kube-scheduler offers preempt only a sample of them. Time does not end the search; the
budget in sets does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ext_core import fit
from extender.ask import nodes as judged_nodes
from extender.ask import warn
from extender.ask.node_reasons import REMEDIES, UNREADABLE
from extender.ask.nodes import JudgedNodes
from extender.ask.place import asks_gpus
from extender.ask.spared import cause_of
from extender.ask.suppose import SupposedCluster
from extender.ask.text import count, no_gpus
from extender.ask.warn import warning
from extender.ask.ways.pod import above_ceiling, for_terminating, helping, search_victims
from extender.cluster.cluster import ClusterView
from extender.cluster.dra.claim_fits import UNMET, unmet
from extender.cluster.statements import gpus_of
from extender.decide.decisions import LINKS_ONLY
from extender.errors import BadInput
from extender.objects.queueing import GATE, opened
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.costs import leftover_fragmentation
from extender.policy.reasons import REASONS
from extender.preemption import certificate
from extender.preemption.search import PRICED_GPUS, Eviction, Preemptor, SearchResult
from extender.queue.report import first_names
from extender.times import rfc3339

CHECKED = (
    "cordon", "nodeSelector", "required node affinity", "taints", "CPU", "memory", "pod slots", "GPUs", "GPU links",
    "other resources", "pod anti-affinity by node", "resource quotas",
)  # fmt: skip
LEFTOVER = leftover_fragmentation.name
OUT_OF_TIME: Final = warning("out-of-time", "the time for one answer is up: there may be ways out that are not named")
LAST_MS: Final = 253_402_300_799_000  # 9999-12-31T23:59:59Z: no later time can be written
TOO_MANY_STAY: Final = "Wait for pods to end: too many of those that hold the GPUs are never victims (see spared)."
Warnings = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Single:
    """The answer about one pod."""

    result: dict[str, Any]
    """As JSON."""
    warnings: Sequence[Mapping[str, str]]
    node: str = ""
    """Where the pod goes, "" nowhere."""
    gpus: int = 0
    """The mask of the GPUs planned for it."""
    victims: tuple[PodRecord, ...] = ()
    """The pods that are evicted for it."""


class NotOurs(BadInput):
    """The pod asks for no GPU, and uses none that another pod has by a claim of both."""


def preemptor(snapshot: SupposedCluster, pod: PodRecord, wall: float) -> Preemptor:
    """The question for a pod. NotOurs."""
    released = opened(pod)
    asked = snapshot.claims.request(released, snapshot.now)
    if not asks_gpus(snapshot.cluster, pod):
        raise NotOurs(no_gpus(snapshot.cluster, pod), path=f"pod {pod.namespace}/{pod.name}")
    return Preemptor(asked, released, snapshot.now, wall)


def judge(snapshot: SupposedCluster, pod: PodRecord, wall: float, *, evicts: bool = True) -> Single:
    """What happens to one pod on the copy as it is. `evicts`: whether pods may be evicted for it. NotOurs."""
    asked = preemptor(snapshot, pod, wall)
    request = asked.request
    snapshot.cluster.at(wall)
    nodes = judged_nodes.read(snapshot.judge, asked)
    result, warnings = empty(snapshot, pod, nodes), list(about(snapshot, request, pod))
    for name in () if nodes.fits else nodes.named.get(UNMET, ())[:1]:
        warnings.append(claims_unmet(snapshot.cluster, pod, name, nodes.reasons[UNMET]))
    warnings += claims_unknown(snapshot.cluster, pod)
    if nodes.fits:
        return _fits(snapshot, asked, nodes, result, warnings)
    search = SearchResult(nodes=len(snapshot.cluster.nodes))
    if evicts:
        search = search_victims(snapshot.judge, asked, nodes)
    if request.never and evicts:
        # The certificate is of what may be done: nothing.
        warnings.append(warning("never-preempts", f"pod {request.namespace}/{request.name} may not preempt"))
        if search.best is not None:
            result["forbidden"] = _eviction(snapshot, request, search.best)
    else:
        result["certificate"] = _certificate(snapshot, request, search)
    helped = helping(snapshot, asked, nodes, search)
    result |= {"ways_out": [way.as_json() for way in helped.ways], "nearest": helped.nearest}
    if snapshot.over():
        warnings.append(OUT_OF_TIME)
    if text := above_ceiling(snapshot.judge, search):
        warnings.append(warning("eviction-above-ceiling", f"pod {request.namespace}/{request.name}: {text}"))
    if search.best is None or request.never:
        result["remedies"] = remedies(nodes.reasons, possible=search.best is not None)
        result["spared"] = spared_by_cause(snapshot.cluster, pod, nodes.open, wall)
        return Single(result, warnings)
    best = search.best
    gone = {victim.uid for victim in certificate.important(best.pods)}
    mask = snapshot.judge.planned_after(asked, best.node, gone)
    result |= {"verdict": "evict", "gpus": list(gpus_of(mask)) or None}
    result |= _eviction(snapshot, request, best)
    warnings += _about_eviction(snapshot, nodes, best)
    if search.waits_on:
        wait = for_terminating(snapshot.cluster, search.waits_on, wall)
        text = f"pod {request.namespace}/{request.name}: the server evicts no pod for it yet: {wait}"
        warnings.append(warning("terminating", text))
    warnings += warn.shared_gpus(snapshot.cluster, pod, request, best.node)
    return Single(result, warnings, best.node, mask, tuple(certificate.important(best.pods)))


def _fits(
    snapshot: SupposedCluster, asked: Preemptor, nodes: JudgedNodes, result: dict[str, Any], warnings: Warnings
) -> Single:
    """The best of the nodes where the pod fits, and its GPUs there."""
    cluster, request = snapshot.cluster, asked.request
    node = snapshot.judge.best(asked, nodes.fits, 1)[0].node
    mask = snapshot.judge.planned(asked, node)
    result |= {"verdict": "fits", "node": node, "gpus": list(gpus_of(mask)) or None}
    warnings += warn.shared_gpus(cluster, asked.pod, request, node)
    return Single(result, warnings, node, mask)


def named(pod: PodRecord) -> dict[str, Any]:
    """Which pod it is, as JSON."""
    return {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "priority": pod.priority}


def empty(snapshot: SupposedCluster, pod: PodRecord, nodes: JudgedNodes) -> dict[str, Any]:
    """The result of a pod that cannot be placed, before the search."""
    return {
        "pod": named(pod),
        "verdict": "cannot",
        "node": None,
        "gpus": None,
        "victims": [],
        "cost": [],
        "certificate": certificate.certificate(
            snapshot.cluster, snapshot.judge.policy, SearchResult(nodes=len(snapshot.cluster.nodes))
        ),
        "reasons": dict(sorted(nodes.reasons.items())),
        "remedies": {},
        "spared": [],
        "forbidden": None,
        "checked": list(CHECKED),
        "not_checked": warn.not_checked(snapshot.cluster, pod),
    }


def _about_eviction(snapshot: SupposedCluster, nodes: JudgedNodes, best: Eviction) -> Warnings:
    """Warnings of an eviction."""
    victims = certificate.important(best.pods)
    warnings = certificate.warnings(snapshot.cluster, victims)
    settings = snapshot.settings
    if LINKS_ONLY[nodes.codes[best.node]] and not (settings.evictable_as_failed_nodes or settings.evictions.enabled):
        warnings.append(
            warning(
                "links-only",
                f"enough GPUs are free on {best.node}, but not the ones that the pod needs: kube-scheduler up to 1.37 "
                "asks for this eviction only if it may evict pods on another node, too",
            )
        )
    if all(victim.terminating for victim in victims):
        warnings.append(enough_to_wait(victims))
    return warnings


def enough_to_wait(victims: Sequence[PodRecord]) -> dict[str, str]:
    """The warning of an eviction all of whose victims are terminating."""
    nodes = sorted({victim.node for victim in victims})
    where = first_names(nodes, 3)
    return warning("enough-to-wait", f"all victims on {where} are terminating already: it is enough to wait for them")


def _eviction(snapshot: SupposedCluster, request: PodRequest, best: Eviction) -> dict[str, Any]:
    return {
        "node": best.node,
        "victims": [_victim(snapshot.cluster, victim) for victim in certificate.important(best.pods)],
        "cost": _cost(snapshot, request, best),
    }


def _victim(cluster: ClusterView, pod: PodRecord) -> dict[str, Any]:
    gang = None if pod.terminating else cluster.gangs.of(pod)
    return certificate.victim(cluster, pod) | {"gang_source": gang.ref.source if gang is not None else None}


def _certificate(snapshot: SupposedCluster, request: PodRequest, search: SearchResult) -> dict[str, Any]:
    proof = certificate.certificate(snapshot.cluster, snapshot.judge.policy, search)
    if search.runner_up is not None:
        proof["runner_up"] = _eviction(snapshot, request, search.runner_up)
    return proof


def _cost(snapshot: SupposedCluster, request: PodRequest, eviction: Eviction) -> list[dict[str, Any]]:
    """The cost, in which what was not computed is null; the search counts it as 0."""
    computed = _leftover_computed(snapshot.cluster, request, eviction)
    return [
        term | {"value": None} if term["term"] == LEFTOVER and not computed else term
        for term in certificate.cost_of(snapshot.judge.policy, eviction)
    ]


def _leftover_computed(cluster: ClusterView, request: PodRequest, eviction: Eviction) -> bool:
    """Whether leftover_fragmentation was priced on the node, or has to be 0 there, since its GPUs are wired all alike.

    As the search does it: machines of up to 8 GPUs whose links are known, more GPUs than one wanted, where not every
    set of that size is as good, and no position is unknown (nor merely deduced, where the pod requires links)."""
    shape, healthy, gpu = cluster.tables.nodes.graph_of(eviction.row)
    links = cluster.gpus.topologies[eviction.node].links if eviction.node in cluster.gpus.topologies else None
    if not shape or links is None or gpu != request.resource:
        return False
    if len({links[i][j] for i in range(len(links)) for j in range(i)}) <= 1:
        return True
    if fit.uniform(cluster.tables.shapes, shape, healthy, request.wanted) or healthy.bit_length() > PRICED_GPUS:
        return False
    holdings = cluster.gpus.ledgers[eviction.node].holdings
    if request.links == "required":
        return all(holding.how in ("observed", "enforced") and not holding.unsure for holding in holdings)
    return not any(holding.unsure for holding in holdings)


def claims_unmet(cluster: ClusterView, pod: PodRecord, name: str, nodes: int) -> dict[str, str]:
    """Which request of which claim is not met on so many nodes. `name`: one of them; the text is about the first with
    devices."""
    fits = cluster.dra.fits
    claims = fits.all_of(pod)
    offering = (other for other, node in cluster.nodes.items() if node.devices is not None)
    name = min((other for other in offering if fits.rejects(cluster.nodes[other], claims)), default=name)
    at = fits.on(cluster.nodes[name], claims)
    text = f"{unmet(claims, at)} is not met on {count(nodes, 'node')}; on {name}: {at.why}"
    if unpublished := cluster.dra.unpublished(pod):
        text += (
            f"; no node publishes a device of DeviceClass {', '.join(unpublished)}: let the driver publish some "
            "(partition GPUs for MIG devices), or ask for those of another class"
        )
    return warning("claim-unmet", f"pod {pod.namespace}/{pod.name}: {text}")


def claims_unknown(cluster: ClusterView, pod: PodRecord) -> Iterator[dict[str, str]]:
    """Of which request it is not known whether nodes meet it."""
    fits = cluster.dra.fits
    if unknown := fits.unknown_on(pod):
        claims = fits.all_of(pod)
        at = fits.on(cluster.nodes[unknown[0]], claims)
        where = f"not known on {count(len(unknown), 'node')}; on {unknown[0]}: {at.why}"
        text = f"whether {unmet(claims, at)} is met is {where}"
        yield warning("claim-unknown", f"pod {pod.namespace}/{pod.name}: {text}")


def about(snapshot: SupposedCluster, request: PodRequest, pod: PodRecord) -> Iterator[dict[str, str]]:
    """Warnings of a pod that hold whatever happens to it."""
    name = f"pod {pod.namespace}/{pod.name}"
    if pod.unread:
        yield warning(UNREADABLE, pod.unread_text)
    yield from warn.preference_not_counted(pod, snapshot.settings)
    if absent := snapshot.cluster.dra.absent(pod):
        yield warning("claim-absent", f"{name}: {absent} does not exist: kube-scheduler does not place it before that")
    by_us = snapshot.settings.queue.enabled or pod.uid not in snapshot.cluster.pods
    if closed := [gate for gate in pod.gates if gate != GATE or not by_us]:
        yield warning("gated", f"{name}: {', '.join(closed)} has to be opened first")
    if pod.scheduler_name == "default-scheduler" and not pod.priority_given and not snapshot.cluster.priority_classes:
        yield warning("no-priority-classes", f"{name} has priority {pod.priority:,}: the cluster has no PriorityClass")


# -- what would help a pod that fits nowhere, and which pods are never its victims


def remedies(reasons: Iterable[str], *, possible: bool) -> dict[str, str]:
    """What would help, by the code of the reason. `possible`: whether an eviction would."""
    known = {reason.key: reason.remedy for reason in REASONS.values()} | REMEDIES
    if not possible:
        known |= {"gpus-busy": TOO_MANY_STAY, "links-busy": TOO_MANY_STAY}
    return {code: known[code] for code in sorted(reasons) if code in known}


def spared_by_cause(cluster: ClusterView, pod: PodRecord, names: Iterable[str], wall: float) -> list[dict[str, Any]]:
    """Pods on these nodes that are never victims of this pod, by cause: how many pods with how many GPUs, and
    until when the first of the protected ones is. Of each pod the first cause counts; where pods hold GPUs, only they
    count."""
    pods: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    until: list[int] = []
    bound_pods = [other for name in names for other in cluster.pods_on(name)]
    holders = [other for other in bound_pods if other.gpus]
    for other in holders or bound_pods:
        cause: str = cause_of(cluster, other, wall)
        if cause in ("daemonset", "static"):
            pass
        elif other.priority >= pod.priority:
            cause = "priority"
        elif other.terminating:
            continue
        elif cause == "protected":
            until.append(cluster.limits.protected_ms(other))
        elif cause:
            pass
        elif pod.affinity_terms and pod.may_need(other):
            cause = "affinity"
        else:
            continue
        pods[cause] += 1
        gpus[cause] += cluster.gpu_amount(other)
    return [
        {
            "cause": cause,
            "pods": pods[cause],
            "gpus": gpus[cause],
            "until": rfc3339(-(-min(until) // 1000)) if cause == "protected" and min(until) <= LAST_MS else None,
        }
        for cause in sorted(pods)
    ]
