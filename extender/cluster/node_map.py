"""Which pod holds which GPUs of a node, as JSON: what `/debug/map` shows and `gpu-extender map` draws."""

from __future__ import annotations

from typing import Any

from extender.cluster.view import ClusterView
from extender.objects.records import PodRecord
from extender.topologies.annotation import MOST_GPUS


def node_map(cluster: ClusterView, name: str) -> dict[str, Any] | None:
    """The GPUs of a node by index; None: the node is gone, or offers no GPUs.

    `pods` of a GPU: those that hold it, or parts of it, and how that is known; `unplaced`: pods that hold GPUs (or
    units of them) at positions that are not known; `free`: allocatable units that no pod holds;
    `closed`: why the node takes no pods, as `NodeRecord.closed`."""
    node, topology = cluster.nodes.get(name), cluster.gpus.topologies.get(name)
    if node is None or topology is None or not any(node.gpus.values()):
        return None
    ledger = cluster.gpus.ledgers.get(name)
    holdings = () if ledger is None else ledger.holdings
    healthy = cluster.tables.nodes.healthy_of(cluster.row(name))
    held = [(cluster.pods.get(one.uid), one) for one in holdings]
    known = [(pod, one) for pod, one in held if pod is not None]
    return {
        "node": name,
        "schedulable": not node.closed,
        "closed": node.closed or None,
        "resources": dict(node.gpus),
        "free": max(0, sum(node.gpus.values()) - sum(one.count for _, one in known)),
        "link_kind": topology.kind,
        "link_scope": None if topology.links is None else "gpu-total" if topology.gpu_total else "pair",
        "links": topology.links,
        "gpus": [
            {
                "index": index,
                "healthy": bool(healthy >> index & 1),
                "pods": [_pod(pod) | {"how": one.how} for pod, one in known if index in (one.gpus or ())],
            }
            for index in range(min(topology.gpus, MOST_GPUS))
        ],
        "unplaced": [_pod(pod) | {"count": one.count} for pod, one in known if one.gpus is None],
    }


def _pod(pod: PodRecord) -> dict[str, Any]:
    return {"pod": f"{pod.namespace}/{pod.name}", "priority": pod.priority, "terminating": pod.terminating}
