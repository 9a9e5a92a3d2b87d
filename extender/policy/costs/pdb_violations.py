"""Victims whose PodDisruptionBudget has nothing left to give, counted as kube-scheduler counts them."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from extender.policy.contracts import Bound, Victims

if TYPE_CHECKING:
    from ext_core.victims import Term


class PdbViolations:
    """Victims beyond what their PodDisruptionBudget allows, counted as kube-scheduler counts them."""

    name = "pdb_violations"
    unit = "victims"
    floor: Bound = ""

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        budgets = victims.budgets
        price = array("q", [1] * len(budgets.allowance))
        return ("group", budgets.starts, budgets.members, budgets.allowance, price)
