"""Work lost: GPUs x (now - last checkpoint, or start, + restart seconds), summed over the victims and over all running
members of the gangs that break, each pod once."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from extender.contracts import Victims
from extender.progress import lost

if TYPE_CHECKING:
    from ext_core.victims import Term


class WorkLost:
    name = "work_lost_gpu_seconds"
    unit = "GPU-seconds"

    def term(self, victims: Victims) -> Term:
        column = array("q", bytes(8 * len(victims.pods)))
        for i, gpus in enumerate(victims.gpus):
            if gpus and not victims.going[i]:
                since = victims.start_ms[i], victims.saved_ms[i], victims.restart_s[i]
                column[i] = lost(gpus, *since, victims.now_ms)
        gangs = victims.gangs
        if not gangs.names:
            return ("sum", column)
        return ("gang", gangs.starts, gangs.members, gangs.allowance, victims.gang_work, column)
