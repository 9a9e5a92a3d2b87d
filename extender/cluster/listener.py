"""What the cluster reports: changes, to its listeners, and objects that it cannot hold in full."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from extender.cluster.pod_failures import RejectionChange
from extender.log import Allowance, get_log
from extender.objects.decode import Invalid
from extender.objects.records import Event, PodRecord


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


# -- objects that the cluster cannot hold in full ----------------------------------------------------------------------

MOST_KEPT = 100  # objects that are kept by name
log = get_log()


class Faults:
    """Counts the objects that could not be held in full, by kind, logs them within an allowance, and names those that
    are there."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._allowance = Allowance()
        self._in_part: dict[tuple[str, str], str] = {}  # kind and namespace/name -> the error

    @property
    def invalid(self) -> list[Invalid]:
        """The objects whose last version could not be held in full."""
        return [Invalid(kind, name, why) for (kind, name), why in self._in_part.items()]

    def applied(self, event: Event) -> None:
        """The event was applied in full."""
        if self._in_part:
            self._in_part.pop(_key(event), None)

    def failed(self, event: Event, error: Exception, now: float) -> None:
        """The event was applied in part at most. `now`: seconds on the server's clock."""
        self.note(event.kind, event.record.name, error, now)
        key = _key(event)
        if event.change == "delete":
            self._in_part.pop(key, None)
        elif key in self._in_part or len(self._in_part) < MOST_KEPT:
            self._in_part[key] = f"cannot be held in full: {error!r}"[:300]

    def note(self, kind: str, name: str, error: Exception, now: float) -> None:
        """One object failed. `name`: for people; `now`: seconds on the server's clock."""
        self.counts[kind] += 1
        left_out = self._allowance.take(now)
        if left_out is not None:
            log.error(
                "an object cannot be held in full", kind=kind, object=name[:300], err=repr(error)[:300],
                left_out=left_out or None, exc_info=error,
            )  # fmt: skip


def _key(event: Event) -> tuple[str, str]:
    namespace = getattr(event.record, "namespace", "")  # not every kind has one
    return event.kind, f"{namespace}/{event.record.name}"[:300] if namespace else event.record.name[:300]
