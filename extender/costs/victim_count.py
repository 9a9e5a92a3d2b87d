"""How many pods are evicted that do not go anyway."""

from __future__ import annotations

from array import array

from extender.contracts import Victims


class VictimCount:
    name = "victims"
    unit = "pods"

    def term(self, victims: Victims) -> tuple[object, ...]:
        return ("sum", array("q", [0 if going else 1 for going in victims.going]))
