"""The names that a settings file may use."""

from __future__ import annotations

from extender.policy.costs import COSTS
from extender.policy.scorers import SCORERS
from extender.settings import Known


def known() -> Known:
    """Those of the scorers and of the cost terms."""
    return Known(scorers=SCORERS.keys(), costs=COSTS.keys())
