"""Work lost: GPUs x (now - last checkpoint, or start, + restart seconds), summed over the victims.

The other members of a gang that breaks are not counted yet.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from extender.contracts import Victims

if TYPE_CHECKING:
    from ext_core.victims import Term


class WorkLost:
    name = "work_lost_gpu_seconds"
    unit = "GPU-seconds"

    def term(self, victims: Victims) -> Term:
        column = array("q", bytes(8 * len(victims.pods)))
        for i, gpus in enumerate(victims.gpus):
            if gpus and not victims.going[i]:
                since = max(victims.saved_ms[i], victims.start_ms[i]) if victims.saved_ms[i] else victims.start_ms[i]
                lost = max(0, victims.now_ms - since) // 1000 + victims.restart_s[i]
                column[i] = gpus * lost
        return ("sum", column)
