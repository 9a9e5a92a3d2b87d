"""What a listener of the cluster is called for."""

from __future__ import annotations

from typing import Protocol

from extender.cluster.pod_failures import RejectionChange
from extender.objects.records import PodRecord


class Listener:
    """Base of the listeners that `Cluster` is constructed with. It does nothing: a listener overrides what it needs.

    The calls come on the event loop, while a batch is applied: they do not await. An exception is logged and counted.
    """

    def pod_deleted(self, uid: str) -> None:
        """A pod is deleted: nothing is held for it any more."""

    def pod_leaves(self, pod: PodRecord, wall: float | None) -> None:
        """A pod begins to terminate, or is deleted without that. `wall`: seconds since 1970, None where it is not known
        how old the state is."""

    def node_rejected(self, node: str, text: str) -> None:
        """A node is rejected for the GPU pods of all namespaces. `text`: why, one sentence for people."""

    def node_accepted(self, node: str, text: str) -> None:
        """A node that was rejected accepts GPU pods again."""

    def node_rejected_for(self, change: RejectionChange) -> None:
        """A node is rejected for the GPU pods of one namespace."""


class Observer(Protocol):
    """Sees what others decide about a pod, in the state in which they decided it: all events before this one are in
    the tables, and this one is not. It changes nothing."""

    def wants(self, before: PodRecord, pod: PodRecord) -> bool:
        """Whether the change from `before` to `pod` is such a decision."""
        ...

    def see(self, before: PodRecord, pod: PodRecord, now: float) -> None:
        """Look at it. `now`: seconds on the server's clock. An exception is a fault of the pod: catch what is not."""
        ...
