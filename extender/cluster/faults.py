"""Objects that the cluster cannot hold in full."""

from __future__ import annotations

from collections import Counter

from extender.log import Allowance, get_log
from extender.objects.records import Event
from extender.objects.tolerant import Invalid

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
