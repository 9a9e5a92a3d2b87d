"""Counts the filter calls that name fewer nodes than could fit, and warns of them once."""

from __future__ import annotations

from extender.log import get_log
from extender.metrics import Metrics

log = get_log()


class Sampling:
    """What one process has seen of it."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._warned = False

    def note(self, given: int, known: int) -> None:
        """A call named `given` nodes; `known` schedulable nodes have GPUs."""
        self._metrics.sampled_requests.inc()
        if not self._warned:
            self._warned = True
            log.warning(
                "kube-scheduler names fewer nodes than there are schedulable GPU nodes: the others are full, tainted "
                "or not selected, or it samples (then set percentageOfNodesToScore: 100); said once, counted in "
                "gpu_extender_sampled_requests_total",
                given=given,
                known=known,
            )
