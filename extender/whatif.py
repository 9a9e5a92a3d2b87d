"""What would happen to a pod in a frozen cluster: the code of filter, prioritize and preempt, over all nodes.

Each pod is judged alone, in the cluster as it stands in the file: the answers are not carried out one after the other.
Every node is a candidate ("free choice"), while a kube-scheduler offers preempt a sample of them only. Nothing is in
flight in a file: what is not said there is unknown, and no plugin is "away for a moment". Time does not end the search;
the budget in sets does.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ext_core import score
from extender import request as requests
from extender import search
from extender.cluster import AWAY_SECONDS, Cluster
from extender.contracts import PodRequest
from extender.decide import LINKS_ONLY, Decider
from extender.errors import BadInput
from extender.events import Event
from extender.frozen import SYSTEM_CLASSES
from extender.ledger import gpus_of
from extender.preempt import repelled_from
from extender.progress import unread
from extender.records import NodeRecord, PodRecord
from extender.rules import REASONS
from extender.rules.count import RELEASING
from extender.selectors import Taint, untolerated
from extender.settings import Settings

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
EXIT_CODES = {"fits": 0, "evict": 10, "cannot": 11}


def frozen(settings: Settings, events: Iterable[Event]) -> Decider:
    """A decider over a cluster in which nothing moves."""
    cluster = Cluster(settings)
    cluster.apply(events, 0.0)
    cluster.tick(10 * AWAY_SECONDS)
    return Decider.of(settings, cluster)


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


def _with_class(cluster: Cluster, pod: PodRecord, path: str) -> PodRecord:
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


def answer(decider: Decider, pods: Sequence[PodRecord], wall: float) -> dict[str, Any]:
    """`kind: WhatIf`. `wall`: the time at which it is asked, seconds since 1970."""
    cluster = decider.cluster
    results, warnings = [], _about_cluster(cluster)
    for number, pod in enumerate(pods):
        result, said = judge(decider, admit(cluster, pod, number), wall)
        results.append(result)
        warnings += [one for one in said if one not in warnings]
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "WhatIf",
        "warnings": warnings,
        "policy_hash": decider.settings.policy_hash,
        "holdings": [
            {"uid": one.uid, "node": name, "gpus": None if one.gpus is None else list(one.gpus), "how": one.how}
            for name in sorted(cluster.ledgers)
            for one in sorted(cluster.ledgers[name].holdings, key=lambda one: one.uid)
        ],
        "results": results,
    }


def exit_code(answered: dict[str, Any]) -> int:
    """Of the worst result."""
    return max((EXIT_CODES[result["verdict"]] for result in answered["results"]), default=0)


def judge(decider: Decider, pod: PodRecord, wall: float) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """(the result for one pod, warnings)."""
    cluster, now = decider.cluster, 20 * AWAY_SECONDS
    request = requests.read(pod, cluster)
    if not request.gpus:
        wanted = ", ".join(cluster.resources[3:])
        raise BadInput(f"it asks for no GPU ({wanted})", path=f"pod {pod.namespace}/{pod.name}")
    cluster.at(wall)
    decider.claim(request, now)
    try:
        return _judged(decider, request, pod, now, wall)
    finally:
        cluster.tables.nodes.drop_claims()


def _judged(
    decider: Decider, request: PodRequest, pod: PodRecord, now: float, wall: float
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    cluster = decider.cluster
    reasons: Counter[str] = Counter()
    names: list[str] = []
    for name in sorted(cluster.nodes):
        if refusal := refused(pod, cluster.nodes[name]):
            reasons[refusal] += 1
        else:
            names.append(name)
    repelled = repelled_from(cluster, pod, names)
    rows = array("i", [cluster.row(name) for name in names])
    fits = array("i")
    codes = dict(zip(names, decider.policy.judge(cluster.tables, request, rows), strict=True))
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
    warnings = list(_about_pod(decider, request, pod))
    result: dict[str, Any] = {
        "pod": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "priority": pod.priority},
        "verdict": "cannot",
        "node": None,
        "gpus": None,
        "victims": [],
        "cost": [],
        "certificate": search.certificate(decider, search.Found(nodes=len(cluster.nodes))),
        "reasons": dict(sorted(reasons.items())),
        "checked": list(CHECKED),
        "not_checked": list(NOT_CHECKED),
    }
    if fits:
        total, _ = decider.policy.score(cluster.tables, request, fits)
        best = score.top(cluster.tables.nodes, fits, total, 0)
        row = score.ranked(fits, total, best)[0][0]
        gpus = list(gpus_of(decider.choose(row, request))) or None
        return result | {"verdict": "fits", "node": cluster.names[row], "gpus": gpus}, warnings
    if request.never:
        warnings.append(_warning("never-preempts", f"pod {request.namespace}/{request.name} may evict nobody"))
        return result, warnings
    rows = array("i", [cluster.row(name) for name in names if name not in repelled])
    found = search.find(decider, request, pod, rows, None, now, wall, limited=False)
    result["certificate"] = search.certificate(decider, found)
    if found.best is None:
        return result, warnings
    victims = search.important(found.best.pods)
    node = found.best.node
    cluster.tables.nodes.drop_claims()
    with cluster.without({victim.uid for victim in victims}, node):
        decider.claim(request, now)
        gpus = list(gpus_of(decider.choose(found.best.row, request))) or None
    warnings += search.warnings(cluster, victims)
    if LINKS_ONLY[codes[node]] and not decider.settings.evictable_as_failed_nodes:
        warnings.append(
            _warning(
                "links-only",
                f"on {node} enough GPUs are free in number: kube-scheduler up to 1.37 asks us for an eviction only if "
                "another node is a candidate of its own",
            )
        )
    waits = [name for name in names if codes[name] == RELEASING.code]
    if waits and not all(victim.terminating for victim in victims):
        warnings.append(
            _warning("terminating", f"pods are ending on {', '.join(waits[:3])}: the server waits for them first")
        )
    told = {
        "verdict": "evict",
        "node": node,
        "gpus": gpus,
        "victims": [search.victim(cluster, victim) for victim in victims],
        "cost": search.cost_of(decider, found.best),
    }
    return result | told, warnings


def refused(pod: PodRecord, node: NodeRecord) -> str:
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
    for pod in sorted(cluster.pods.values(), key=lambda pod: (pod.namespace, pod.name)):
        found += [_warning(code, f"pod {pod.namespace}/{pod.name}: {said}: ignored") for code, said in unread(pod)]
    return found


def _about_pod(decider: Decider, request: PodRequest, pod: PodRecord) -> Iterator[dict[str, str]]:
    name = f"pod {pod.namespace}/{pod.name}"
    if not request.exchangeable or pod.affinity_terms:
        yield _warning("not-all-checked", f"{name} asks for more than is checked: see not_checked")
    if pod.gated:
        yield _warning("gated", f"{name} has scheduling gates: it waits for them first")
    if pod.scheduler_name == "default-scheduler" and not pod.priority_given and not decider.cluster.priority_classes:
        yield _warning("no-priority-classes", f"{name} has priority {pod.priority}: the cluster has no PriorityClass")
