"""Cost terms: what evicting is worth, compared lexicographically, less is better. One short file a term."""

from __future__ import annotations

from extender.policy.contracts import CostTerm
from extender.policy.costs.freed_beyond import FreedBeyond
from extender.policy.costs.gangs_broken import GangsBroken
from extender.policy.costs.grace import Grace
from extender.policy.costs.highest_priority import HighestPriority
from extender.policy.costs.leftover_fragmentation import LeftoverFragmentation
from extender.policy.costs.pdb_violations import PdbViolations
from extender.policy.costs.victim_count import VictimCount
from extender.policy.costs.victims_stranded import VictimsStranded
from extender.policy.costs.work_lost import WorkLost

COSTS: dict[str, type[CostTerm]] = {
    cost.name: cost
    for cost in (
        PdbViolations,
        HighestPriority,
        GangsBroken,
        WorkLost,
        Grace,
        VictimCount,
        FreedBeyond,
        LeftoverFragmentation,
        VictimsStranded,
    )
}
