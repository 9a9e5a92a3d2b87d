"""Scorers: which of the feasible nodes is best. One short file a scorer; weights stand in the settings."""

from __future__ import annotations

from extender.contracts import Scorer
from extender.scorers.bad_nodes import BadNodes
from extender.scorers.fragmentation import Fragmentation
from extender.scorers.hazard import Hazard
from extender.scorers.leftover import Leftover
from extender.scorers.links import Links
from extender.scorers.packing import Packing
from extender.scorers.spread import Spread
from extender.scorers.topology_level import TopologyLevel
from extender.scorers.whole import Whole

SCORERS: dict[str, type[Scorer]] = {
    scorer.name: scorer
    for scorer in (
        BadNodes,
        Hazard,
        Whole,
        Spread,
        TopologyLevel,
        Links,
        Fragmentation,
        Leftover,
        Packing,
    )
}
