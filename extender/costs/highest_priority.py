"""The highest priority among the victims that do not go anyway."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from extender.contracts import Victims

if TYPE_CHECKING:
    from ext_core.victims import Term

FREE = -(2**31)  # below every priority that Kubernetes allows


class HighestPriority:
    name = "highest_victim_priority"
    unit = "priority"

    def term(self, victims: Victims) -> Term:
        pairs = zip(victims.priority, victims.going, strict=True)
        return ("max", array("q", [FREE if going else priority for priority, going in pairs]))
