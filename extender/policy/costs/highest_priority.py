"""The highest priority among the victims that are not terminating."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_core import gather
from ext_core.scout import FREE
from extender.policy.contracts import Bound, Victims

if TYPE_CHECKING:
    from ext_core.victims import Term


class HighestPriority:
    """The highest priority among the victims that are not terminating already."""

    name = "highest_victim_priority"
    unit = "priority"
    floor: Bound = "priority"

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        return ("max", gather.unless(victims.priority, victims.terminating, FREE))
