"""The highest priority among the victims that do not go anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_core import gather
from extender.policy.contracts import Bound, Victims

if TYPE_CHECKING:
    from ext_core.victims import Term

FREE = -(2**31) - 1  # below every priority that Kubernetes allows


class HighestPriority:
    """The highest priority among the victims that are not terminating already."""

    name = "highest_victim_priority"
    unit = "priority"
    floor: Bound = "priority"

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        return ("max", gather.unless(victims.priority, victims.going, FREE))
