"""/metrics/slis: how often the health checks passed, in the names that all Kubernetes components use."""

from __future__ import annotations

from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.requests import Request
from starlette.responses import Response

_LABELS: Final = ("name", "type")


class Slis:
    """The handler of the page. It has a registry of its own: the names are not ours."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._latest = Gauge(
            "kubernetes_healthcheck",
            "The latest result of the check: 1 passed, 0 not.",
            _LABELS,
            registry=self._registry,
        )
        self._checks = Counter(
            "kubernetes_healthchecks", "Results of the check.", (*_LABELS, "status"), registry=self._registry
        )

    def note(self, name: str, kind: Literal["livez", "readyz"], *, passed: bool) -> None:
        """A check was made. `name`: a constant."""
        self._latest.labels(name, kind).set(passed)
        self._checks.labels(name, kind, "success" if passed else "error").inc()

    async def slis(self, request: Request) -> Response:
        """Prometheus' text format."""
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4; charset=utf-8")
