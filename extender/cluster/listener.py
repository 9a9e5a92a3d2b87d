"""What a listener of the cluster is called for."""

from __future__ import annotations

from extender.cluster.health.node_health import Change


class Listener:
    """Base of the listeners that `Cluster` is constructed with. It does nothing: a listener overrides what it needs.

    The calls come on the event loop, while a batch is applied: they do not await. An exception is logged and counted.
    """

    def pod_deleted(self, uid: str) -> None:
        """A pod is deleted: nothing is held for it any more."""

    def node_rejected(self, node: str, text: str) -> None:
        """A node is rejected for the GPU pods of all namespaces. `text`: why, one sentence for people."""

    def node_accepted(self, node: str, text: str) -> None:
        """A node that was rejected accepts GPU pods again."""

    def node_rejected_for(self, change: Change) -> None:
        """A node is rejected for the GPU pods of one namespace."""
