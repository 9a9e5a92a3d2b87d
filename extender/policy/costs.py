"""Cost terms: what evicting is worth, compared lexicographically, less is better. One short function a term."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ext_core import gather
from ext_core.links import LinkShapes
from ext_core.scout import FREE
from extender.policy.contracts import Bound, CostTerm, Victims

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ext_core.victims import Term

COSTS: Final[dict[str, CostTerm]] = {}
"""The terms by name, in the order in which they are defined here."""


def cost(unit: str, floor: Bound = "") -> Callable[[Callable[[Victims], Term]], CostTerm]:
    """A function that states the form of a term over the gathered pods, for the search, becomes a term of its name."""

    def of(form: Callable[[Victims], Term]) -> CostTerm:
        term = COSTS[form.__name__] = CostTerm(form.__name__, unit, form, floor)
        return term

    return of


@cost("victims")
def pdb_violations(victims: Victims) -> Term:
    """Victims beyond what their PodDisruptionBudget allows, as kube-scheduler counts."""
    budgets = victims.budgets
    price = array("q", [1] * len(budgets.allowance))
    return ("group", budgets.starts, budgets.members, budgets.allowance, price)


@cost("priority", floor="priority")
def highest_victim_priority(victims: Victims) -> Term:
    """The highest priority among the victims that are not terminating already."""
    return ("max", gather.unless(victims.priority, victims.terminating, FREE))


@cost("gangs")
def gangs_broken(victims: Victims) -> Term:
    """Gangs of which fewer than their minimum stay running, in all or of a role."""
    gangs = victims.gangs
    return ("gang", gangs.starts, gangs.members, gangs.allowance, array("q", [1] * len(gangs.allowance)))


@cost("GPU-seconds", floor="work")
def work_lost_gpu_seconds(victims: Victims) -> Term:
    """GPUs x time since the last checkpoint (or start), with the restart, of the victims and of all running members of
    broken gangs, each pod once. A pod that saves its work before it ends loses its time to save, if that is less, and
    of the rest the share that its owner's pods are likely to lose."""
    columns = victims.gpus, victims.start_ms, victims.saved_ms, victims.restart_s, victims.saves_s, victims.ignores
    column = gather.unless(gather.lost(columns, victims.now_ms), victims.terminating, 0)
    gangs = victims.gangs
    if not gangs.names:
        return ("sum", column)
    return ("gang", gangs.starts, gangs.members, gangs.allowance, victims.gang_work, column)


@cost("s")
def grace_seconds(victims: Victims) -> Term:
    """The longest grace period among the victims: how long the preemptor waits."""
    return ("max", gather.unless(victims.grace_s, victims.terminating, 0))


@cost("pods")
def victims(victims: Victims) -> Term:
    """The number of pods that are evicted and were not terminating already."""
    return ("sum", gather.unless(array("q", [1]) * len(victims.pods), victims.terminating, 0))


@cost("GPUs")
def freed_beyond_gpus(victims: Victims) -> Term:
    """GPUs that the victims hold and that were not terminating already, less those that the preemptor lacks there (of a
    gang: in its domain)."""
    return ("sum", gather.unless(victims.gpus, victims.terminating, 0), victims.lacking)


@cost("links x 1000")
def leftover_fragmentation(victims: Victims) -> Term:
    """Ways to serve linked pods that are lost in what stays free, on machines of up to 8 GPUs whose links differ and
    whose positions are known.

    Counted once the victims are gone and the preemptor has taken its best GPUs. Summed over all sets of GPUs: their
    rings (ring_links x 1000) in the empty machine, less those in what stays free. Every position is known there, or
    must be, since the pod requires links.
    """
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


@cost("pods")
def victims_stranded(victims: Victims) -> Term:
    """Victims that fit on no other node now, by count of GPUs, CPU and memory, node affinity and tolerations.

    Links and other wishes of the victims are not looked at.
    """
    return ("sum", victims.stranded)
