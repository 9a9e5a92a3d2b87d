"""/metrics: what was counted, and what is counted when the page is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import Counter, generate_latest
from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.responses import Response

from extender.cluster.cluster import Cluster
from extender.log import dropped_lines
from extender.metrics import Metrics
from extender.objects.decode import ObjectFaults
from extender.reservations.assumed import AssumedPods
from extender.reservations.reservations import Reservations
from extender.web.health import InvalidObjects


class Watched(Protocol):
    """What the page reads of the cluster's source."""

    def dark(self, *, evicting: bool = False) -> float:
        """Seconds since pods or nodes (`evicting`: or budgets) were watched."""
        ...

    def ages(self) -> dict[str, float]:
        """Seconds since the API server last said anything, by kind."""
        ...

    def restarts(self) -> dict[str, int]:
        """Watches that were opened again, by kind."""
        ...

    def faults(self) -> ObjectFaults:
        """What could not be read, and the defects of the watches."""
        ...


@dataclass(slots=True)
class MetricsPage:
    """The handler of /metrics. It puts what it reads when it is asked for into the metrics."""

    registered: Metrics
    cluster: Cluster
    assumed: AssumedPods
    reservations: Reservations
    source: Watched
    invalid: InvalidObjects
    defects: Mapping[str, int]
    """Unexpected exceptions, by controller."""
    clock: Callable[[], float]
    """Seconds."""
    _counted: dict[Counter, int] = field(default_factory=dict)

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text format. Verbs are answered between any two pieces."""
        text = []
        for piece in self.pieces():
            text.append(piece)
            await asyncio.sleep(0)
        return Response(b"".join(text), media_type="text/plain; version=0.0.4; charset=utf-8")

    def pieces(self) -> Iterator[bytes]:
        """The page in small pieces."""
        yield from self._update(self.registered)
        for family in self.registered.registry.collect():
            yield generate_latest(_Family(family))

    def _update(self, metrics: Metrics) -> Iterator[bytes]:
        """Work in small pieces, each an empty piece of the page."""
        self._update_cache(metrics)
        self._update_counters(metrics)
        yield b""
        health = self.cluster.health
        metrics.failing_nodes.set(len(health.refused()))
        metrics.failing_node_rejections.labels("all").set(len(health.refused()))
        metrics.failing_node_rejections.labels("namespace").set(health.verdicts.tenant_rejections())
        metrics.reservations.set(len(self.reservations.all()))
        metrics.holds.set(self.assumed.count(self.clock()))
        yield b""
        gpus = self.cluster.gpus
        metrics.topology_disagreements.set(sum(bool(seen.disagreements) for seen in gpus.topologies.values()))
        yield b""
        metrics.double_claimed_gpus.set(sum(ledger.doubled for ledger in gpus.ledgers.values()))
        yield b""

    def _update_cache(self, metrics: Metrics) -> None:
        cluster = self.cluster
        for kind, count in (
            ("Node", len(cluster.nodes)),
            ("Pod", len(cluster.pods)),
            ("PodDisruptionBudget", len(cluster.budgets.records)),
            ("PriorityClass", len(cluster.priority_classes)),
            ("ResourceQuota", len(cluster.quotas)),
            ("DeviceClass", len(cluster.device_classes)),
            ("ResourceSlice", len(cluster.dra.slices)),
            ("ResourceClaim", len(cluster.dra.claims.records)),
        ):
            metrics.cache_objects.labels(kind).set(count)
        metrics.dark.set(self.source.dark(evicting=True))
        for kind, age in self.source.ages().items():
            metrics.cache_age.labels(kind).set(age)

    def _update_counters(self, metrics: Metrics) -> None:
        cluster = self.cluster
        for kind, restarts in self.source.restarts().items():
            self._follow(metrics.watch_restarts.labels(kind), restarts)
        for outcome, count in cluster.gpus.drifts.items():
            self._follow(metrics.plans.labels(outcome), count)
        for key, count in self.invalid.counts().items():
            self._follow(metrics.invalid_objects.labels(*key), count)
        for kind, count in {**self.source.faults().defects, **self.defects}.items():
            self._follow(metrics.watch_defects.labels(kind), count)
        for failure, count in cluster.health.counts.items():
            self._follow(metrics.pod_failures.labels(failure), count)
        self._follow(metrics.log_lines_dropped, dropped_lines())

    def _follow(self, counter: Counter, now: int) -> None:
        """Let a counter follow a number that something else counts."""
        counter.inc(now - self._counted.get(counter, 0))
        self._counted[counter] = now


class _Family:
    """One metric as a registry of its own."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> list[Metric]:
        return [self._family]
