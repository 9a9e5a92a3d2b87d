"""Work lost: GPUs x (now - last checkpoint, or start, + restart seconds), summed over the victims and over all running
members of the gangs that break, each pod once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_core import gather
from extender.policy.contracts import Bound, Victims

if TYPE_CHECKING:
    from ext_core.victims import Term


class WorkLost:
    """GPUs x time since the last checkpoint (or start), with the restart, of the victims and of all running members of
    broken gangs, each pod once.
    """

    name = "work_lost_gpu_seconds"
    unit = "GPU-seconds"
    floor: Bound = "work"

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        column = gather.lost(
            victims.gpus, victims.start_ms, victims.saved_ms, victims.restart_s, victims.terminating, victims.now_ms
        )
        gangs = victims.gangs
        if not gangs.names:
            return ("sum", column)
        return ("gang", gangs.starts, gangs.members, gangs.allowance, victims.gang_work, column)
