"""Scorers: which of the feasible nodes is best. One short file a scorer; weights stand in the settings."""

from __future__ import annotations

from extender.contracts import Scorer
from extender.scorers.bad_nodes import BadNodes
from extender.scorers.leftover import Leftover
from extender.scorers.links import Links
from extender.scorers.packing import Packing
from extender.scorers.whole import Whole

SCORERS: dict[str, type[Scorer]] = {scorer.name: scorer for scorer in (Packing, Links, Leftover, BadNodes, Whole)}
