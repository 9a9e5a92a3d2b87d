"""The cluster as JSON: what `/debug/state` shows and `gpu-extender compare` compares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from extender.cluster.cluster import ClusterView
from extender.cluster.statements import PLAN, indices
from extender.objects.records import NodeRecord, PodRecord
from extender.topologies.annotation import MOST_GPUS

MOST_COUNT: Final = (1 << 53) - 1  # what every reader of JSON reads exactly


def state(cluster: ClusterView, warnings: Sequence[Mapping[str, str]] = ()) -> dict[str, Any]:
    """The cache as JSON: nodes by name, unfinished pods by uid, as the placement depends on them.

    `warnings`: what could not be read in full.

    `gpus` of a pod: the indices that it holds, None where unknown; `how`: observed, enforced, planned, predicted or
    unknown, None for pods that hold no GPU on a node; `planned`: the indices of the plan that bind wrote, None without.
    """
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "CacheState",
        "warnings": list(warnings),
        "generation": cluster.generation,
        "nodes": {name: _node(cluster, node) for name, node in sorted(cluster.nodes.items())},
        "pods": {uid: _pod(cluster, pod) for uid, pod in sorted(cluster.pods.items()) if not pod.finished},
        "generation_last": cluster.generation,
    }


def _node(cluster: ClusterView, node: NodeRecord) -> dict[str, Any]:
    topology = cluster.gpus.topologies.get(node.name)
    return {
        "schedulable": not node.unschedulable,
        "gpu_counts": _counts(node.gpus),
        "topology": topology.source if topology is not None else None,
    }


def _pod(cluster: ClusterView, pod: PodRecord) -> dict[str, Any]:
    holding = cluster.gpus.holding(pod.node, pod.uid)
    planned = indices(pod.annotations[PLAN]) if PLAN in pod.annotations else None
    return {
        "pod": f"{pod.namespace}/{pod.name}",
        "node": pod.node or None,
        "priority": pod.priority,
        "terminating": pod.terminating,
        "gpu_counts": _counts(pod.gpus),
        "gpus": list(holding.gpus) if holding is not None and holding.gpus is not None else None,
        "how": holding.how if holding is not None else None,
        "planned": list(planned) if planned is not None else None,
    }


def _counts(gpus: Mapping[str, int] | Iterable[tuple[str, int]]) -> dict[str, int]:
    """A quantity may be more than a JSON number holds."""
    return {name: max(-MOST_COUNT, min(MOST_COUNT, count)) for name, count in dict(gpus).items()}


# -- the GPUs of a node ------------------------------------------------------------------------------------------------


def offering(cluster: ClusterView, name: str) -> NodeRecord | None:
    """The node; None: it is gone, or offers no GPUs."""
    node = cluster.nodes.get(name)
    return node if node is not None and name in cluster.gpus.topologies and any(node.gpus.values()) else None


def node_map(cluster: ClusterView, name: str) -> dict[str, Any] | None:
    """The GPUs of a node by index; None: the node is gone, or offers no GPUs.

    `gpus`: none where they have no positions, as more than MOST_GPUS have none. `pods` of a GPU: those that hold it, or
    parts of it, and how that is known; `unplaced`: pods that hold GPUs (or units of them) at positions that are not
    known; `closed`: why the node takes no pods, as `NodeRecord.closed`."""
    node = offering(cluster, name)
    if node is None:
        return None
    topology, ledger = cluster.gpus.topologies[name], cluster.gpus.ledgers.get(name)
    holdings = () if ledger is None else ledger.holdings
    healthy = cluster.tables.nodes.healthy_of(cluster.row(name))
    held = [(cluster.pods.get(holding.uid), holding) for holding in holdings]
    known = [(pod, holding) for pod, holding in held if pod is not None]
    return {
        "node": name,
        "schedulable": not node.closed,
        "closed": node.closed or None,
        "resources": dict(node.gpus),
        "link_kind": topology.kind,
        "link_scope": None if topology.links is None else "gpu-total" if topology.gpu_total else "pair",
        "links": topology.links,
        "gpus": [
            {
                "index": index,
                "healthy": bool(healthy >> index & 1),
                "pods": [_owner(pod) | {"how": holding.how} for pod, holding in known if index in (holding.gpus or ())],
            }
            for index in range(topology.gpus if topology.gpus <= MOST_GPUS else 0)
        ],
        "unplaced": [_owner(pod) | {"count": holding.count} for pod, holding in known if holding.gpus is None],
    }


def _owner(pod: PodRecord) -> dict[str, Any]:
    return {"pod": f"{pod.namespace}/{pod.name}", "priority": pod.priority, "terminating": pod.terminating}
