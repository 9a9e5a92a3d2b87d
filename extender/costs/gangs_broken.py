"""Gangs that keep fewer than their minimum running: each counts once."""

from __future__ import annotations

from array import array

from extender.contracts import Victims


class GangsBroken:
    name = "gangs_broken"
    unit = "gangs"

    def term(self, victims: Victims) -> tuple[object, ...]:
        gangs = victims.gangs
        return ("gang", gangs.starts, gangs.members, gangs.allowance, array("q", [1] * len(gangs.allowance)))
