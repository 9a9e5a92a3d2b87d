"""What probes and Prometheus read. /healthz, /livez and /readyz: what makes a server not ready, and what only degrades
it; the objects that could not be read or held in full; /metrics and /metrics/slis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final, Literal, NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from extender.cluster.cluster import Cluster, ClusterView
from extender.log import dropped_lines
from extender.metrics import Degraded, Metrics
from extender.objects import decode
from extender.objects.decode import ObjectFaults
from extender.reservations.assumed import AssumedPods
from extender.reservations.reservations import Reservations

NOT_READY_SECONDS: Final = 60.0
"""So long without a watch of pods or nodes: not ready."""
MOST_NAMED: Final = 20
"""Invalid objects that are named in one answer."""
HIDDEN: Final = "the log of the server has it"
"""In place of a problem, which may name objects, where clients without rights ask."""


class Check(NamedTuple):
    """One part of the server's health."""

    name: str
    problem: str
    """"" for none."""
    needed: bool
    """Whether the server is not ready without it."""


class InvalidObjects:
    """The objects that could not be read or held in full: readiness, /debug/state and /metrics report them."""

    def __init__(self, cluster: Cluster, faults: Callable[[], ObjectFaults]) -> None:
        """`faults`: what the cluster's source could not read."""
        self._cluster, self._faults = cluster, faults

    def warnings(self) -> list[dict[str, str]]:
        """By name, MOST_NAMED at most: they do not make the server unready."""
        return decode.warnings([*self._faults().invalid, *self._cluster.invalid], MOST_NAMED)

    def counts(self) -> dict[tuple[str, str], int]:
        """Since the start, by kind and reason; each version of an object counts."""
        held = {(kind, "not-held"): count for kind, count in self._cluster.faulted.items()}
        return {**self._faults().rejected} | held


class Health:
    """The handlers of /healthz, /livez and /readyz."""

    def __init__(
        self,
        cluster: ClusterView,
        invalid: InvalidObjects,
        missing: Callable[[], list[str]],
        dark: Callable[[], float],
        degraded: Degraded,
    ) -> None:
        """`invalid`: warnings that name objects, left out where pages need a token; `missing`: what is not known
        yet, in words; `dark`: seconds since pods and nodes were watched; `degraded`: what does not work, and is no
        reason to be not ready."""
        self._cluster, self._invalid, self._missing, self._dark = cluster, invalid, missing, dark
        self._degraded = degraded
        self.slis = Slis()

    async def alive(self, request: Request) -> Response:
        """The process answers."""
        self.slis.note("ping", "livez", passed=True)
        return Response("ok", media_type="text/plain")

    async def ready(self, request: Request) -> Response:
        """Whether the verbs are answered by a complete and current view. `?verbose`: each check in a line, as
        Kubernetes components answer."""
        return self._ready(request, named=not self._cluster.settings.server.debug.authorize)

    async def ready_unnamed(self, request: Request) -> Response:
        """The same, for a listener that clients without a token reach: it names no object."""
        return self._ready(request, named=False)

    def _ready(self, request: Request, *, named: bool) -> Response:
        missing = self._missing()
        self.slis.note("lists", "readyz", passed=not missing)
        dark = 0.0 if missing else self._dark()
        if not missing:
            self.slis.note("watches", "readyz", passed=dark < NOT_READY_SECONDS)
        silent = ""
        if dark >= NOT_READY_SECONDS:
            silent = f"pods or nodes have not been watched for {dark:.0f} s: the API server is silent or away"
        status = 503 if missing or silent else 200
        problems = {part: text if named or not text else HIDDEN for part, text in self._degraded.problems.items()}
        if "verbose" in request.query_params:
            checks = [Check("lists", "; ".join(missing), True), Check("watches", silent, True)]
            checks += [Check(part, text, False) for part, text in problems.items()]
            return Response(_verbose(checks), status_code=status, media_type="text/plain")
        body: dict[str, Any] = {"ready": status == 200, "missing": missing or ([silent] if silent else [])}
        if status == 200:
            body |= {
                "generation": self._cluster.generation,
                "warnings": self._invalid.warnings() if named else [],
            }
        body |= {
            "degraded": [{"part": part, "problem": text} for part, text in problems.items() if text],
            "settings": self._cluster.settings.hash,
            "version": version("gpu-extender"),
        }
        return JSONResponse(body, status_code=status)


def _verbose(checks: Sequence[Check]) -> str:
    lines = []
    for check in checks:
        state = f"{'failed' if check.needed else 'degraded'}: {check.problem}" if check.problem else "ok"
        lines.append(f"[{'-' if check.problem else '+'}]{check.name} {state}")
    failed = any(check.problem and check.needed for check in checks)
    return "\n".join([*lines, f"readyz check {'failed' if failed else 'passed'}", ""])


class Slis:
    """/metrics/slis: how often the checks passed, in the names that all Kubernetes components use. It has a registry of
    its own: the names are not ours."""

    def __init__(self) -> None:
        self._registry, labels = CollectorRegistry(), ("name", "type")
        self._latest = Gauge(
            "kubernetes_healthcheck",
            "The latest result of the check: 1 passed, 0 not.",
            labels,
            registry=self._registry,
        )
        self._checks = Counter(
            "kubernetes_healthchecks", "Results of the check.", (*labels, "status"), registry=self._registry
        )

    def note(self, name: str, kind: Literal["livez", "readyz"], *, passed: bool) -> None:
        """A check was made. `name`: a constant."""
        self._latest.labels(name, kind).set(passed)
        self._checks.labels(name, kind, "success" if passed else "error").inc()

    async def slis(self, request: Request) -> Response:
        """Prometheus' text format."""
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4; charset=utf-8")


# -- /metrics: what was counted, and what is counted when the page is read


class Watched(Protocol):
    """What the page reads of the cluster's source."""

    def dark(self, *, evicting: bool = False) -> float:
        """Seconds since pods or nodes (`evicting`: or budgets) were watched."""
        ...

    def ages(self) -> dict[str, float]:
        """Seconds since the API server last sent anything, by kind."""
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
