"""Scorers: which of the feasible nodes is best. One short file a scorer; weights stand in the settings."""

from __future__ import annotations

from extender.policy.contracts import Scorer
from extender.policy.scorers.bad_nodes import BadNodes
from extender.policy.scorers.fragmentation import Fragmentation
from extender.policy.scorers.hazard import Hazard
from extender.policy.scorers.leftover import Leftover
from extender.policy.scorers.links import Links
from extender.policy.scorers.nics import Nics
from extender.policy.scorers.packing import Packing
from extender.policy.scorers.spread import Spread
from extender.policy.scorers.topology_level import TopologyLevel
from extender.policy.scorers.whole import Whole

SCORERS: dict[str, type[Scorer]] = {
    scorer.name: scorer
    for scorer in (
        BadNodes,
        Hazard,
        Whole,
        Spread,
        TopologyLevel,
        Links,
        Nics,
        Fragmentation,
        Leftover,
        Packing,
    )
}
