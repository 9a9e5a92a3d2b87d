"""The objects that could not be read or held in full: what readiness, /debug/state and /metrics report of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from extender.cluster.cluster import Cluster
from extender.objects import tolerant
from extender.objects.tolerant import ObjectFaults

MOST_NAMED: Final = 20
"""Invalid objects that are named in one answer."""


class InvalidObjects:
    """Those of one server."""

    def __init__(self, cluster: Cluster, faults: Callable[[], ObjectFaults]) -> None:
        """`faults`: what the cluster's source could not read."""
        self._cluster, self._faults = cluster, faults

    def warnings(self) -> list[dict[str, str]]:
        """By name, MOST_NAMED at most: they do not make the server unready."""
        return tolerant.warnings([*self._faults().invalid, *self._cluster.invalid], MOST_NAMED)

    def counts(self) -> dict[tuple[str, str], int]:
        """Since the start, by kind and reason; each version of an object counts."""
        held = {(kind, "not-held"): count for kind, count in self._cluster.faulted.items()}
        return {**self._faults().rejected} | held
