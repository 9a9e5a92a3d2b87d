"""Scorers: which of the feasible nodes is best. One short file a scorer; weights stand in the settings."""

from __future__ import annotations

from extender.contracts import Scorer
from extender.scorers.fragmentation import Fragmentation
from extender.scorers.leftover import Leftover
from extender.scorers.links import Links
from extender.scorers.packing import Packing

SCORERS: dict[str, type[Scorer]] = {scorer.name: scorer for scorer in (Packing, Links, Leftover, Fragmentation)}
