"""Objects that the cluster cannot hold in full."""

from __future__ import annotations

from collections import Counter

from extender.log import Allowance, get_log

log = get_log()


class Faults:
    """Counts the objects that could not be held in full, by kind, and logs them within an allowance."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._allowance = Allowance()

    def note(self, kind: str, name: str, error: Exception, now: float) -> None:
        """One object failed. `name`: for people; `now`: seconds on the server's clock."""
        self.counts[kind] += 1
        left_out = self._allowance.take(now)
        if left_out is not None:
            log.error(
                "an object cannot be held in full", kind=kind, object=name[:300], err=repr(error)[:300],
                left_out=left_out or None, exc_info=error,
            )  # fmt: skip
