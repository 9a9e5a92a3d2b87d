"""The longest grace period among the victims: how long the preemptor waits."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from extender.contracts import Victims

if TYPE_CHECKING:
    from ext_core.victims import Term


class Grace:
    name = "grace_seconds"
    unit = "s"

    def term(self, victims: Victims) -> Term:
        pairs = zip(victims.grace_s, victims.going, strict=True)
        return ("max", array("q", [0 if going else grace for grace, going in pairs]))
