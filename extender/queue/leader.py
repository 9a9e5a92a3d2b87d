"""Which instance releases pods from the queue, in words, as one server knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CODE: Final = "not-the-leader"
RESTART: Final = "kubectl -n gpu-extender-system rollout restart deployment gpu-scheduler"


NOT_THE_LEADER: Final = {
    "code": CODE,
    "message": "this server does not release pods, so where a pod stands in the queue is not known here",
}
"""Where there is no API server to ask."""


@dataclass(slots=True)
class QueueLeader:
    """`enabled`: `queue.enabled` as this process began; `lease`: its name; `holder`: the instance that holds it, ""
    where none does, None where it is not known; `problem`: why it is not known."""

    enabled: bool = False
    lease: str = "gpu-extender-queue"
    holder: str | None = None
    problem: str = ""

    def warning(self) -> dict[str, str]:
        """Why this server does not know the order of the queue."""
        if self.holder:
            text = f"this server does not release pods: {self.holder} holds the Lease {self.lease}; ask that instance"
        elif self.enabled and self.holder is None:
            text = f"this server does not release pods: the Lease {self.lease} cannot be read{self._why()}"
        else:
            text = f"this server does not release pods: {self.absence()}"
        return {"code": CODE, "message": text}

    def absence(self) -> str:
        """Why no instance releases pods, and what to do."""
        if not self.enabled:
            return f"queue.enabled was false when this server started; set it, then restart the servers ({RESTART})"
        return f"no instance holds the Lease {self.lease}; the log of the servers says why"

    def _why(self) -> str:
        return f" ({self.problem})" if self.problem else ""


def not_the_leader(leader: QueueLeader | None) -> dict[str, str]:
    """The warning of a server that does not know the order of the queue. `leader`: None without an API server."""
    return NOT_THE_LEADER if leader is None else leader.warning()
