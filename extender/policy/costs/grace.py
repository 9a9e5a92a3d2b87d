"""The longest grace period among the victims: how long the preemptor waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_core import gather
from extender.policy.contracts import Bound, Victims

if TYPE_CHECKING:
    from ext_core.victims import Term


class Grace:
    """The longest grace period among the victims: how long the preemptor waits."""

    name = "grace_seconds"
    unit = "s"
    floor: Bound = ""

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        return ("max", gather.unless(victims.grace_s, victims.terminating, 0))
