"""What would happen to a pod in a frozen cluster: the code of filter, prioritize and preempt, over all nodes.

Each pod is judged alone, in the cluster as it stands in the file: the answers are not carried out one after the other.
Every node is a candidate, while kube-scheduler offers preempt only a sample of them. A file has no assumed pods:
what it does not state is unknown, and no device plugin is restarting. Time does not end the search; the budget in sets
does.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from ext_core import fit, score
from extender.cluster.cluster import Cluster
from extender.cluster.gpus.statements import gpus_of
from extender.cluster.view import ClusterView
from extender.errors import BadInput
from extender.objects.records import NodeRecord, PodRecord
from extender.objects.selectors import Taint, untolerated
from extender.offline import invalid_metadata
from extender.offline.frozen import SYSTEM_CLASSES
from extender.offline.snapshot import NOW, Snapshot
from extender.policy import pod_request
from extender.policy.contracts import PodRequest
from extender.policy.costs.leftover_fragmentation import LeftoverFragmentation
from extender.policy.rules import REASONS
from extender.policy.rules.count import RELEASING
from extender.preemption import candidates, certificate, search
from extender.preemption.candidates import Preemptor
from extender.preemption.search import Found
from extender.preemption.set_tables import PRICED_GPUS
from extender.verbs.answer import LINKS_ONLY

CHECKED = (
    "cordon", "nodeSelector", "required node affinity", "taints", "CPU", "memory", "pod slots", "GPUs", "GPU links",
    "required anti-affinity of running pods",
)  # fmt: skip
NOT_CHECKED = (
    "pod affinity", "pod anti-affinity of the pod itself", "topology spread", "volumes", "host ports",
    "resource claims", "other resources", "quotas and admission", "other plugins and extenders of the scheduler",
)  # fmt: skip
SHORT = ("too-little-cpu", "too-little-memory", "too-few-pod-slots")
CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
LEFTOVER = LeftoverFragmentation.name
LAST_MS = 253_402_300_799_000  # 9999-12-31T23:59:59Z: no later time can be written
REMEDIES = {
    "cordoned": "Uncordon the node.",
    "node-selector": "Label the node as the pod's nodeSelector asks, or change that.",
    "node-affinity": "Label the node as the pod's required node affinity asks, or change that.",
    "taint": "Let the pod tolerate the node's taint.",
    "too-little-cpu": "Ask for less CPU, or wait for pods to end.",
    "too-little-memory": "Ask for less memory, or wait for pods to end.",
    "too-few-pod-slots": "Wait for pods to end.",
    "repelled-by-a-running-pod": "A pod there has a required anti-affinity to this one.",
}  # of our own codes
TOO_MANY_STAY = "Wait for pods to end: too many of those that hold the GPUs are never victims (see spared)."
EXIT_CODES = {"fits": 0, "evict": 10, "cannot": 11}


def admit(cluster: Cluster, pod: PodRecord, number: int) -> PodRecord:
    """The pod as the API server would write it: its priority by its class, and a uid. BadInput where it would not."""
    path = f"pod {pod.namespace}/{pod.name}"
    there = cluster.pod(pod.namespace, pod.name)
    if pod.node or (there is not None and there.node and (not pod.uid or pod.uid == there.uid)):
        raise BadInput(f"it is on node {pod.node or (there.node if there else '')} already", path=path)
    if not pod.priority_given:
        pod = _with_class(cluster, pod, path)
    if not pod.uid:
        pod = msgspec.structs.replace(pod, uid=there.uid if there is not None else f"what-if-{number}")
    return pod


def _with_class(cluster: ClusterView, pod: PodRecord, path: str) -> PodRecord:
    name = pod.priority_class
    if name in SYSTEM_CLASSES:
        return msgspec.structs.replace(pod, priority=SYSTEM_CLASSES[name])
    if name:
        found = cluster.priority_classes.get(name)
        if found is None:
            raise BadInput(f"there is no PriorityClass {name!r} in the cluster", path=path)
    else:
        # Of several the API server takes the one with the lowest value.
        defaults = [one for one in cluster.priority_classes.values() if one.global_default]
        found = min(defaults, key=lambda one: (one.value, one.name), default=None)
        if found is None:
            return pod
    return msgspec.structs.replace(pod, priority=found.value, priority_class=found.name, never=pod.never or found.never)


def answer(
    snapshot: Snapshot, pods: Sequence[PodRecord], wall: float, items: Iterable[dict[str, Any]] = ()
) -> dict[str, Any]:
    """`kind: WhatIf`. `wall`: the time at which it is asked, seconds since 1970; `items`: the cluster's objects as they
    stand in the file, to find what stands there twice."""
    cluster = snapshot.cluster
    results, warnings = [], [*_about_cluster(cluster), *invalid_metadata.found(cluster, items, wall)]
    for number, pod in enumerate(pods):
        warnings += [one for one in invalid_metadata.of_pod(cluster, pod, wall) if one not in warnings]
        result, said = judge(snapshot, admit(cluster, pod, number), wall)
        results.append(result)
        warnings += [one for one in said if one not in warnings]
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "WhatIf",
        "warnings": warnings,
        "policy_hash": snapshot.settings.policy_hash,
        "holdings": [
            {"uid": one.uid, "node": name, "gpus": None if one.gpus is None else list(one.gpus), "how": one.how}
            for name in sorted(cluster.gpus.ledgers)
            for one in sorted(cluster.gpus.ledgers[name].holdings, key=lambda one: one.uid)
        ],
        "results": results,
    }


def exit_code(answered: dict[str, Any]) -> int:
    """Of the worst result."""
    return max((EXIT_CODES[result["verdict"]] for result in answered["results"]), default=0)


def judge(snapshot: Snapshot, pod: PodRecord, wall: float) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """(the result for one pod, warnings)."""
    cluster = snapshot.cluster
    request = pod_request.read(pod, cluster)
    if not request.gpus:
        wanted = ", ".join(cluster.resources[3:])
        raise BadInput(f"it asks for no GPU ({wanted})", path=f"pod {pod.namespace}/{pod.name}")
    cluster.at(wall)
    preemptor = Preemptor(request, pod, NOW, wall)
    with snapshot.claims.of(request, NOW):
        nodes = _nodes(snapshot, request, pod)
        result, warnings = _empty(snapshot, pod, nodes), list(_about_pod(snapshot, request, pod))
        if nodes.fits:
            return result | _place(snapshot, request, nodes.fits), warnings
        rows = array("i", [cluster.row(name) for name in nodes.open])
        found = snapshot.search.find(preemptor, rows, limited=False)
        if request.never:
            # The certificate is of what may be done: nothing.
            warnings.append(_warning("never-preempts", f"pod {request.namespace}/{request.name} may not preempt"))
            if found.best is not None:
                result["forbidden"] = _eviction(snapshot, request, found.best)
        else:
            result["certificate"] = _certificate(snapshot, request, found)
        if found.best is None or request.never:
            result["remedies"] = _remedies(nodes.reasons, possible=found.best is not None)
            result["spared"] = _spared(cluster, pod, nodes.open, wall)
            return result, warnings
        result |= {"verdict": "evict", "gpus": _gpus_after(snapshot, request, found.best)}
        result |= _eviction(snapshot, request, found.best)
        return result, warnings + _about_eviction(snapshot, nodes, found.best)


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The nodes as filter judges them. `reasons`: how many nodes are rejected for what; `codes`: by name, of the nodes
    that kube-scheduler allows, our own reason or 0; `open`: those of them that no running pod repels the pod from;
    `fits`: rows of the nodes where it fits now."""

    reasons: Counter[str]
    codes: dict[str, int]
    open: list[str]
    fits: array[int]


def _nodes(snapshot: Snapshot, request: PodRequest, pod: PodRecord) -> _Nodes:
    cluster = snapshot.cluster
    reasons: Counter[str] = Counter()
    names: list[str] = []
    for name in sorted(cluster.nodes):
        if reason := rejected(pod, cluster.nodes[name]):
            reasons[reason] += 1
        else:
            names.append(name)
    repelled = cluster.placements.repelling.nodes(pod, names)
    rows = array("i", [cluster.row(name) for name in names])
    codes = dict(zip(names, snapshot.policy.judge(cluster.tables, request, rows), strict=True))
    fits = array("i")
    for name in names:
        short = [r for r in search.amounts_short(cluster, request, cluster.row(name)) if r < len(SHORT)]
        if codes[name]:
            reasons[REASONS[codes[name]].key] += 1
        elif short:
            reasons[SHORT[short[0]]] += 1
        elif name in repelled:
            reasons["repelled-by-a-running-pod"] += 1
        else:
            fits.append(cluster.row(name))
    return _Nodes(reasons, codes, [name for name in names if name not in repelled], fits)


def _empty(snapshot: Snapshot, pod: PodRecord, nodes: _Nodes) -> dict[str, Any]:
    """The result of a pod that cannot be placed, before the search."""
    return {
        "pod": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "priority": pod.priority},
        "verdict": "cannot",
        "node": None,
        "gpus": None,
        "victims": [],
        "cost": [],
        "certificate": certificate.certificate(
            snapshot.cluster, snapshot.policy, Found(nodes=len(snapshot.cluster.nodes))
        ),
        "reasons": dict(sorted(nodes.reasons.items())),
        "remedies": {},
        "spared": [],
        "forbidden": None,
        "checked": list(CHECKED),
        "not_checked": list(NOT_CHECKED),
    }


def _place(snapshot: Snapshot, request: PodRequest, fits: array[int]) -> dict[str, Any]:
    """The best of the nodes where the pod fits, and its GPUs there."""
    cluster = snapshot.cluster
    total, _ = snapshot.policy.score(cluster.tables, request, fits)
    best = score.top(cluster.tables.nodes, fits, total, 0)
    row = score.ranked(fits, total, best)[0][0]
    gpus = list(gpus_of(snapshot.policy.planned(cluster.tables, request, row))) or None
    return {"verdict": "fits", "node": cluster.names[row], "gpus": gpus}


def _gpus_after(snapshot: Snapshot, request: PodRequest, best: candidates.Eviction) -> list[int] | None:
    """The GPUs that the pod gets once the victims have terminated; None where they are unknown."""
    cluster = snapshot.cluster
    with cluster.without({victim.uid for victim in certificate.important(best.pods)}, best.node):
        return list(gpus_of(snapshot.policy.planned(cluster.tables, request, best.row))) or None


def _about_eviction(snapshot: Snapshot, nodes: _Nodes, best: candidates.Eviction) -> list[dict[str, str]]:
    """Warnings of an eviction."""
    victims = certificate.important(best.pods)
    warnings = certificate.warnings(snapshot.cluster, victims)
    if LINKS_ONLY[nodes.codes[best.node]] and not snapshot.settings.evictable_as_failed_nodes:
        warnings.append(
            _warning(
                "links-only",
                f"on {best.node} enough GPUs are free in number: kube-scheduler up to 1.37 asks us for an eviction "
                "only if another node is a candidate of its own",
            )
        )
    waits = [name for name, code in nodes.codes.items() if code == RELEASING.code]
    if waits and not all(victim.terminating for victim in victims):
        warnings.append(
            _warning("terminating", f"pods are terminating on {', '.join(waits[:3])}: the server waits for them first")
        )
    return warnings


def _eviction(snapshot: Snapshot, request: PodRequest, best: candidates.Eviction) -> dict[str, Any]:
    return {
        "node": best.node,
        "victims": [_victim(snapshot.cluster, victim) for victim in certificate.important(best.pods)],
        "cost": _cost(snapshot, request, best),
    }


def _victim(cluster: ClusterView, pod: PodRecord) -> dict[str, Any]:
    gang = None if pod.terminating else cluster.gangs.of(pod)
    return certificate.victim(cluster, pod) | {"gang_source": gang.ref.source if gang is not None else None}


def _certificate(snapshot: Snapshot, request: PodRequest, found: Found) -> dict[str, Any]:
    made = certificate.certificate(snapshot.cluster, snapshot.policy, found)
    if found.runner_up is not None:
        made["runner_up"] = _eviction(snapshot, request, found.runner_up)
    return made


def _cost(snapshot: Snapshot, request: PodRequest, eviction: candidates.Eviction) -> list[dict[str, Any]]:
    """The cost, in which what was not computed is null; the search counts it as 0."""
    computed = _leftover_computed(snapshot.cluster, request, eviction)
    return [
        term | {"value": None} if term["term"] == LEFTOVER and not computed else term
        for term in certificate.cost_of(snapshot.policy, eviction)
    ]


def _leftover_computed(cluster: ClusterView, request: PodRequest, eviction: candidates.Eviction) -> bool:
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


def _remedies(reasons: Iterable[str], *, possible: bool) -> dict[str, str]:
    """What would help, by the code of the reason. `possible`: whether an eviction would."""
    known = {reason.key: reason.remedy for reason in REASONS.values()} | REMEDIES
    if not possible:
        known |= {"gpus-busy": TOO_MANY_STAY, "links-busy": TOO_MANY_STAY}
    return {code: known[code] for code in sorted(reasons) if code in known}


def _spared(cluster: ClusterView, pod: PodRecord, names: Iterable[str], wall: float) -> list[dict[str, Any]]:
    """Pods on these nodes that are never victims of this pod, by cause: how many pods with how many GPUs, and
    until when the first of the protected ones is. Of each pod the first cause counts; where pods hold GPUs, only they
    count."""
    pods: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    until: list[int] = []
    there = [other for name in names for other in cluster.pods_on(name)]
    holders = [other for other in there if other.gpus]
    for other in holders or there:
        ends = cluster.limits.protected_ms(other)
        if other.daemon:
            cause = "daemonset"
        elif other.mirror:
            cause = "static"
        elif other.priority >= pod.priority:
            cause = "priority"
        elif other.terminating:
            continue
        elif ends > wall * 1000:
            cause = "protected"
            until.append(ends)
        elif pod.affinity_terms and pod.may_need(other):
            cause = "affinity"
        else:
            continue
        pods[cause] += 1
        gpus[cause] += sum(cluster.amounts(other)[3:])
    return [
        {
            "cause": cause,
            "pods": pods[cause],
            "gpus": gpus[cause],
            "until": _rfc3339(min(until)) if cause == "protected" and min(until) <= LAST_MS else None,
        }
        for cause in sorted(pods)
    ]


def _rfc3339(milliseconds: int) -> str:
    return datetime.fromtimestamp(-(-milliseconds // 1000), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rejected(pod: PodRecord, node: NodeRecord) -> str:
    """Why kube-scheduler keeps the pod off the node whatever runs there; "" when it does not."""
    if node.unschedulable and untolerated((CORDON,), pod.tolerations) is not None:
        return "cordoned"
    if any(node.labels.get(key) != wanted for key, wanted in pod.node_selector):
        return "node-selector"
    if not pod.accepts(node):
        return "node-affinity"
    taints = [taint for taint in node.taints if taint.key != CORDON.key or not node.unschedulable]
    return "taint" if untolerated(taints, pod.tolerations) is not None else ""


def _warning(code: str, message: str) -> dict[str, str]:
    return {"code": code, "message": message}


def _about_cluster(cluster: Cluster) -> list[dict[str, str]]:
    found = []
    if not cluster.nodes:
        found.append(_warning("no-nodes", "the cluster has no nodes"))
    if cluster.faults:
        found.append(_warning("left-out", f"{cluster.faults} objects could not be held and are left out"))
    return found


def _about_pod(snapshot: Snapshot, request: PodRequest, pod: PodRecord) -> Iterator[dict[str, str]]:
    name = f"pod {pod.namespace}/{pod.name}"
    if not request.exchangeable or pod.affinity_terms:
        yield _warning("not-all-checked", f"{name} asks for more than is checked: see not_checked")
    if pod.gated:
        yield _warning("gated", f"{name} has scheduling gates: it waits for them first")
    if pod.scheduler_name == "default-scheduler" and not pod.priority_given and not snapshot.cluster.priority_classes:
        yield _warning("no-priority-classes", f"{name} has priority {pod.priority}: the cluster has no PriorityClass")
