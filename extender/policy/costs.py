"""Cost terms: what evicting is worth, compared lexicographically, less is better. One short class a term."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from ext_core import gather
from ext_core.links import LinkShapes
from ext_core.scout import FREE
from extender.policy.contracts import Bound, CostTerm, Victims

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ext_core.victims import Term


class PdbViolations:
    """Victims beyond what their PodDisruptionBudget allows, as kube-scheduler counts."""

    name = "pdb_violations"
    unit = "victims"
    floor: Bound = ""

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        budgets = victims.budgets
        price = array("q", [1] * len(budgets.allowance))
        return ("group", budgets.starts, budgets.members, budgets.allowance, price)


class HighestPriority:
    """The highest priority among the victims that are not terminating already."""

    name = "highest_victim_priority"
    unit = "priority"
    floor: Bound = "priority"

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        return ("max", gather.unless(victims.priority, victims.terminating, FREE))


class GangsBroken:
    """Gangs of which fewer than their minimum stay running, in all or of a role."""

    name = "gangs_broken"
    unit = "gangs"
    floor: Bound = ""

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        gangs = victims.gangs
        return ("gang", gangs.starts, gangs.members, gangs.allowance, array("q", [1] * len(gangs.allowance)))


class WorkLost:
    """GPUs x time since the last checkpoint (or start), with the restart, of the victims and of all running members of
    broken gangs, each pod once. A pod that saves its work before it ends loses its time to save, if that is less, and
    of the rest the share that its owner's pods are likely to lose."""

    name = "work_lost_gpu_seconds"
    unit = "GPU-seconds"
    floor: Bound = "work"

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        of = victims
        columns = of.gpus, of.start_ms, of.saved_ms, of.restart_s, of.saves_s, of.ignores
        column = gather.lost(columns, of.now_ms)
        column = gather.unless(column, victims.terminating, 0)
        gangs = victims.gangs
        if not gangs.names:
            return ("sum", column)
        return ("gang", gangs.starts, gangs.members, gangs.allowance, victims.gang_work, column)


class Grace:
    """The longest grace period among the victims: how long the preemptor waits."""

    name = "grace_seconds"
    unit = "s"
    floor: Bound = ""

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        return ("max", gather.unless(victims.grace_s, victims.terminating, 0))


class VictimCount:
    """The number of pods that are evicted and were not terminating already."""

    name = "victims"
    unit = "pods"
    floor: Bound = ""

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        return ("sum", gather.unless(array("q", [1]) * len(victims.pods), victims.terminating, 0))


class FreedBeyond:
    """GPUs that the victims hold and that were not terminating already, less those that the preemptor lacks there (of a
    gang: in its domain)."""

    name = "freed_beyond_gpus"
    unit = "GPUs"
    floor: Bound = ""

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        return ("sum", gather.unless(victims.gpus, victims.terminating, 0), victims.lacking)


class LeftoverFragmentation:
    """Ways to serve linked pods that are lost in what stays free, on machines of up to 8 GPUs whose links differ and
    whose positions are known.

    Counted once the victims are gone and the preemptor has taken its best GPUs. Summed over all sets of GPUs: their
    rings (ring_links x 1000) in the empty machine, less those in what stays free. Every position is known there, or
    must be, since the pod requires links.
    """

    name = "leftover_fragmentation"
    unit = "links x 1000"
    floor: Bound = ""

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        tables: list[Buffer] = [*victims.leftover]
        return ("mask", tables)


def prices(shapes: LinkShapes, shape: int, gpus: int, wanted: int) -> array[int]:
    """int64[1 << gpus]: the price of each mask of free GPUs, for a preemptor that takes `wanted` of them."""
    whole = shapes.ways(shape, (1 << gpus) - 1) or 0
    table = array("q", bytes(8 << gpus))
    for mask in range(1 << gpus):
        best = shapes.choice(shape, mask, wanted)
        stays = mask & ~best.gpus if best is not None else 0
        table[mask] = max(0, whole - (shapes.ways(shape, stays) or 0))
    return table


class VictimsStranded:
    """Victims that fit on no other node now, by count of GPUs, CPU and memory, node affinity and tolerations.

    Links and other wishes of the victims are not looked at.
    """

    name = "victims_stranded"
    unit = "pods"
    floor: Bound = ""

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        return ("sum", victims.stranded)


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
