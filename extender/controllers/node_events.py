"""Events on nodes where GPU pods fail, and on the pods of one namespace that fail there."""

from __future__ import annotations

from collections.abc import Mapping

from extender.cluster.health.node_health import Change
from extender.cluster.listener import Listener
from extender.controllers.events import Events
from extender.objects.records import NodeRecord


class NodeEvents(Listener):
    """Listens to the cluster's changes of a node's health. `nodes`: by name."""

    def __init__(self, events: Events, nodes: Mapping[str, NodeRecord]) -> None:
        self._events, self._nodes = events, nodes

    def node_rejected(self, node: str, text: str) -> None:
        """A node is rejected for all pods, with the reason `text`."""
        self._about(node, "GPUPodsFail", text, warning=True)

    def node_accepted(self, node: str, text: str) -> None:
        """A node is no longer rejected."""
        self._about(node, "GPUPodsAllowed", text, warning=False)

    def node_rejected_for(self, change: Change) -> None:
        """Write an Event on the pod that failed last: the tenant sees its own Events, and not those of nodes."""
        failed = change.latest
        if failed is not None:
            text = f"node {change.node}: {change.text}"
            self._events.tenant(failed.party.namespace, failed.name, failed.uid, text)

    def _about(self, name: str, reason: str, text: str, *, warning: bool) -> None:
        node = self._nodes.get(name)
        if node is not None:
            self._events.node(name, node.uid, reason, text, warning=warning)
