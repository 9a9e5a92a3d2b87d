"""Victims that can run nowhere else now: no other node has room for what they ask, by count, where their node selector,
affinity to nodes and tolerations let them go. Links and other victims' wishes are not looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from extender.policy.contracts import Bound, Victims

if TYPE_CHECKING:
    from ext_core.victims import Term


class VictimsStranded:
    """Victims that fit on no other node now, by count of GPUs, CPU and memory, node affinity and tolerations."""

    name = "victims_stranded"
    unit = "pods"
    floor: Bound = ""

    def term(self, victims: Victims) -> Term:
        """Its form over the gathered pods, for the search."""
        return ("sum", victims.stranded)
