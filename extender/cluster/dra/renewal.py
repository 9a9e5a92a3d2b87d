"""Pods and nodes whose GPUs by DRA are others after an event about another object."""

from __future__ import annotations

from extender.cluster.demand.forecast import Forecast
from extender.cluster.faults import Faults
from extender.cluster.nodes.store import Nodes
from extender.cluster.pods.store import Pods


def renew(nodes: Nodes, pods: Pods, demand: Forecast, faults: Faults, now: float, most: int) -> None:
    """Renew their records, at most so many of each. `now`: seconds on the server's clock."""
    uids, names = nodes.dra.take(most)
    for uid in uids:
        pod = pods.records.get(uid)
        if pod is not None and (made := nodes.dra.read(pod)) != pod:
            demand.see(made, pod)
            try:
                pods.set(made, now)
            except Exception as error:
                faults.note("Pod", f"{pod.namespace}/{pod.name}", error, now)
                pods.hold_bare(made, deleted=False)
    for name in names:
        node = nodes.records.get(name)
        if node is not None and (renewed := nodes.dra.node(node)) != node:
            try:
                if nodes.set(renewed, now):
                    pods.stale.ledgers.add(name)
            except Exception as error:  # the next event about the node tries again
                faults.note("Node", name, error, now)
