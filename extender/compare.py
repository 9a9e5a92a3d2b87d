"""What a server remembers of the cluster, and how it differs from another view of the same cluster.

Both sides are the same program over different inputs: what a running server has collected from its watches, and a
fresh list. Where they differ, the watch missed something, or the two were taken at different moments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from extender.cluster import Cluster
from extender.ledger import PLAN, indices


class Difference(NamedTuple):
    """`what`: missing (the server has not got it), extra (it has, and the API server has not), or the field that
    differs; `cached` and `listed`: the two values, None where there is none."""

    kind: str
    name: str
    what: str
    cached: Any
    listed: Any


def state(cluster: Cluster, warnings: Sequence[Mapping[str, str]] = ()) -> dict[str, Any]:
    """The cache as JSON: nodes by name, unfinished pods by uid, as the placement depends on them.

    `warnings`: what could not be read in full.

    `gpus` of a pod: the indices that it holds, None where unknown; `how`: observed, enforced, planned, predicted or
    unknown, None for pods that hold no GPU on a node; `planned`: the indices of the plan that bind wrote, None without.
    """
    held = {holding.uid: holding for ledger in cluster.ledgers.values() for holding in ledger.holdings}
    pods: dict[str, Any] = {}
    for uid, pod in sorted(cluster.pods.items()):
        if pod.finished:
            continue
        holding = held.get(uid)
        planned = indices(pod.annotations[PLAN]) if PLAN in pod.annotations else None
        pods[uid] = {
            "pod": f"{pod.namespace}/{pod.name}",
            "node": pod.node or None,
            "priority": pod.priority,
            "terminating": pod.terminating,
            "gpu_counts": dict(pod.gpus),
            "gpus": list(holding.gpus) if holding is not None and holding.gpus is not None else None,
            "how": holding.how if holding is not None else None,
            "planned": list(planned) if planned is not None else None,
        }
    nodes = {
        name: {
            "schedulable": not node.unschedulable,
            "gpu_counts": dict(node.gpus),
            "topology": cluster.topologies[name].source if name in cluster.topologies else None,
        }
        for name, node in sorted(cluster.nodes.items())
    }
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "CacheState",
        "warnings": list(warnings),
        "generation": cluster.generation,
        "nodes": nodes,
        "pods": pods,
    }


def differences(cached: Mapping[str, Any], listed: Mapping[str, Any]) -> Iterator[Difference]:
    """Of two states, in the order nodes, pods, each by name or uid."""
    for kind, key in (("Node", "nodes"), ("Pod", "pods")):
        ours, theirs = cached[key], listed[key]
        for name in sorted({*ours, *theirs}):
            a, b = ours.get(name), theirs.get(name)
            shown = (a or b).get("pod", name)
            if a is None:
                yield Difference(kind, shown, "missing", None, b)
            elif b is None:
                yield Difference(kind, shown, "extra", a, None)
            else:
                for field in sorted({*a, *b}):
                    if a.get(field) != b.get(field):
                        yield Difference(kind, shown, field, a.get(field), b.get(field))


def drift(found: Mapping[str, Any]) -> dict[str, int]:
    """Of the pods whose GPUs are observed and that have a plan: how many hold what was planned, and how many other
    GPUs."""
    counts = {"as_planned": 0, "otherwise": 0}
    for pod in found["pods"].values():
        if pod["how"] == "observed" and pod["planned"] is not None:
            counts["as_planned" if pod["gpus"] == sorted(pod["planned"]) else "otherwise"] += 1
    return counts
