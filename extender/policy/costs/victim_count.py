"""How many pods are evicted that do not go anyway."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from ext_core import gather
from extender.policy.contracts import Bound, Victims

if TYPE_CHECKING:
    from ext_core.victims import Term


class VictimCount:
    """The number of pods that are evicted and were not terminating already."""

    name = "victims"
    unit = "pods"
    floor: Bound = ""

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        return ("sum", gather.unless(array("q", [1]) * len(victims.pods), victims.terminating, 0))
