"""GPUs that the eviction frees beyond the request: the other GPUs of a large victim may stay unused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_core import gather
from extender.policy.contracts import Bound, Victims

if TYPE_CHECKING:
    from ext_core.victims import Term


class FreedBeyond:
    """GPUs that the victims hold and that were not terminating already, less those that the preemptor lacks there: what
    it asks for beyond the GPUs that are free or become free (of a gang: in its domain). Never below 0, since victims
    that suffice free all that it lacks.
    """

    name = "freed_beyond_gpus"
    unit = "GPUs"
    floor: Bound = ""

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        return ("sum", gather.unless(victims.gpus, victims.terminating, 0), victims.lacking)
