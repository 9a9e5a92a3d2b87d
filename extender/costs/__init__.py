"""Cost terms: what evicting is worth, compared lexicographically, less is better. One short file a term."""

from __future__ import annotations

from extender.contracts import CostTerm
from extender.costs.gangs_broken import GangsBroken
from extender.costs.grace import Grace
from extender.costs.highest_priority import HighestPriority
from extender.costs.leftover_fragmentation import LeftoverFragmentation
from extender.costs.pdb_violations import PdbViolations
from extender.costs.victim_count import VictimCount
from extender.costs.victims_stranded import VictimsStranded
from extender.costs.work_lost import WorkLost

COSTS: dict[str, type[CostTerm]] = {
    cost.name: cost
    for cost in (
        PdbViolations,
        HighestPriority,
        GangsBroken,
        WorkLost,
        Grace,
        VictimCount,
        LeftoverFragmentation,
        VictimsStranded,
    )
}
