"""Evictions as answers, Events and people are told them: victims, cost, certificate, warnings."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ext_core import victims
from ext_core.scout import FREE
from extender.cluster.cluster import ClusterView
from extender.objects.records import PodRecord
from extender.policy.labels import label
from extender.policy.policy import Policy
from extender.preemption.cost_inputs import stopped
from extender.preemption.search import LOWEST, Eviction, SearchResult

MINIMUM_UNKNOWN = "gang-minimum-unknown"
"""The code of a warning on a gang of which it is not known how many pods must run."""
MOST_WARNED = 20  # claims of victims that do not count as written


def important(pods: Iterable[PodRecord]) -> list[PodRecord]:
    """As kube-scheduler orders victims (MoreImportantPod): higher priority first, then the earlier start. A pod that
    has not started counts as started now."""
    return sorted(pods, key=lambda pod: (-pod.priority, math.inf if pod.start is None else pod.start, pod.uid))


def violations(cluster: ClusterView, pods: Sequence[PodRecord]) -> int:
    """NumPDBViolations of these victims, counted as kube-scheduler counts it."""
    inside = [() if pod.terminating else cluster.budgets.of(pod) for pod in pods]
    keys = sorted({key for keys_of_pod in inside for key in keys_of_pod})
    index = {key: g for g, key in enumerate(keys)}
    allowance = [max(0, cluster.budgets.records[key].disruptions_allowed) for key in keys]
    return victims.kube_pdb_violations(
        range(len(pods)), [[index[key] for key in keys_of_pod] for keys_of_pod in inside], allowance
    )


def victim(cluster: ClusterView, pod: PodRecord) -> dict[str, Any]:
    """A victim as the answers tell it."""
    holding = cluster.gpus.holding(pod.node, pod.uid)
    count = holding.count if holding else cluster.gpu_amount(pod)  # its Binding may not be seen yet
    gang = None if pod.terminating else cluster.gangs.of(pod)
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "priority": pod.priority,
        "gpu_count": count,
        "gpus": list(holding.gpus) if holding and holding.gpus is not None else None if count else [],
        "gang": gang.name if gang is not None else None,
        "pdbs": [f"{namespace}/{name}" for namespace, name in cluster.budgets.of(pod)],
        "terminating": pod.terminating,
    }


def cost_of(policy: Policy, eviction: Eviction) -> list[dict[str, Any]]:
    """The cost by term."""
    return by_term([(cost.name, cost.unit) for cost in policy.costs], eviction.cost, eviction.unknown)


def by_term(terms: Iterable[tuple[str, str]], cost: Iterable[int], unknown: Collection[str]) -> list[dict[str, Any]]:
    """A cost as answers state it; None where it is a maximum over no pods, or is `unknown`. `terms`: (name, unit)."""
    return [
        {"term": name, "value": None if value in (LOWEST, FREE) or name in unknown else value, "unit": unit}
        for (name, unit), value in zip(terms, cost, strict=True)
    ]


def certificate(cluster: ClusterView, policy: Policy, found: SearchResult) -> dict[str, Any]:
    """What the answer rests on."""
    best, other = found.best, found.runner_up
    names = [cost.name for cost in policy.costs]
    second = None
    lost_on = None
    if best is not None and other is not None:
        second = {
            "node": other.node,
            "victims": [victim(cluster, pod) for pod in important(other.pods)],
            "cost": cost_of(policy, other),
        }
        pairs = zip(names, best.cost, other.cost, strict=True)
        lost_on = next((name for name, a, b in pairs if a != b), "node name")
    return {
        "proved": found.proved,
        "nodes_examined": found.nodes,
        "sets_examined": found.sets,
        "runner_up": second,
        "lost_on": lost_on,
    }


def next_best(certificate: Mapping[str, Any]) -> str:
    """What else was possible: the cheapest victims on another node, of a gang's plan those in another domain."""
    other, proved = certificate.get("runner_up"), bool(certificate.get("proved"))
    if other:
        where = f"{how_many(len(other['victims']))} {place_of(other)}"
        lost_on = label(certificate["lost_on"] or "")
        return f"next best{'' if proved else ' of what was searched'}: {where}, loses by: {lost_on}"
    if "domains_examined" in certificate:
        return "no cheaper plan exists" if proved else "a cheaper plan may exist: the search budget ended first"
    if not proved:
        return "no other node was found before the search budget ended"
    others = certificate.get("nodes_examined", 1) - 1
    return (
        f"on none of the {others} other nodes examined is an eviction enough"
        if others > 1
        else ("on the other node examined no eviction is enough" if others else "no other node came into question")
    )


def place_of(runner_up: Mapping[str, Any]) -> str:
    """Where the victims of a runner-up are, in words."""
    if "node" in runner_up:
        return f"on node {runner_up['node']}"
    domain = runner_up["domain"]
    return "on other nodes" if domain is None else f"in {domain['level']}={domain['value']}"


def how_many(count: int) -> str:
    """In words."""
    return "1 pod" if count == 1 else f"{count:,} pods"


def warnings(cluster: ClusterView, pods: Iterable[PodRecord]) -> list[dict[str, str]]:
    """What is not certain about these victims, and which of their claims do not count as written."""
    victims = list(pods)
    now_ms = cluster.tables.pods.now
    shown = [bounded.warning(pod) for pod in victims for bounded in cluster.gangs.bounded(pod, now_ms)]
    roles = [{"code": "gang-role-below-minimum", "message": f"it {text}"} for text in _by_role(cluster, victims)]
    return [*_unknown_minima(cluster, victims), *roles, *shown[:MOST_WARNED]]


def breaks(cluster: ClusterView, pods: Iterable[PodRecord]) -> str:
    """The gangs that the eviction of these pods breaks by a role alone, to follow on what evicts them."""
    return "".join(f"; it {text}" for text in _by_role(cluster, pods))


def _by_role(cluster: ClusterView, pods: Iterable[PodRecord]) -> list[str]:
    return [f"breaks gang {ref}: {role}" for ref, role in sorted(stopped(cluster, pods)[0].items()) if role]


def _unknown_minima(cluster: ClusterView, pods: Iterable[PodRecord]) -> list[dict[str, str]]:
    unknown = {
        gang.ref: gang for pod in pods if not pod.terminating and (gang := cluster.gangs.of(pod)) and not gang.known
    }
    return [
        {
            "code": MINIMUM_UNKNOWN,
            "message": f"how many pods of {ref.source} gang {ref} must run cannot be read ({gang.stated_by}): "
            + (f"all {gang.running} running members are taken to be needed" if gang.minimum else "none is needed"),
        }
        for ref, gang in sorted(unknown.items())
    ]
