"""/healthz, /livez and /readyz: what makes a server not ready, and what only degrades it; /metrics/slis, and the
objects that could not be read or held in full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from extender.cluster.cluster import Cluster, ClusterView
from extender.metrics import Degraded
from extender.objects import decode
from extender.objects.decode import ObjectFaults

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
    """The handlers of the three."""

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
