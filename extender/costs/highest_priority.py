"""The highest priority among the victims that do not go anyway."""

from __future__ import annotations

from array import array

from extender.contracts import Victims

FREE = -(2**31)  # below every priority that Kubernetes allows


class HighestPriority:
    name = "highest_victim_priority"
    unit = "priority"

    def term(self, victims: Victims) -> tuple[object, ...]:
        pairs = zip(victims.priority, victims.going, strict=True)
        return ("max", array("q", [FREE if going else priority for priority, going in pairs]))
