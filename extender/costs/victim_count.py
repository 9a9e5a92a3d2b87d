"""How many pods are evicted that do not go anyway."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from extender.contracts import Victims

if TYPE_CHECKING:
    from ext_core.victims import Term


class VictimCount:
    name = "victims"
    unit = "pods"

    def term(self, victims: Victims) -> Term:
        return ("sum", array("q", [0 if going else 1 for going in victims.going]))
