"""Gangs that keep fewer than their minimum running: each counts once."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from extender.policy.contracts import Bound, Victims

if TYPE_CHECKING:
    from ext_core.victims import Term


class GangsBroken:
    """Gangs of which fewer than their minimum stay running."""

    name = "gangs_broken"
    unit = "gangs"
    floor: Bound = ""

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        gangs = victims.gangs
        return ("gang", gangs.starts, gangs.members, gangs.allowance, array("q", [1] * len(gangs.allowance)))
