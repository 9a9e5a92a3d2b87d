"""/healthz, /livez and /readyz: what makes a server not ready, and what only degrades it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from extender.cluster.view import ClusterView
from extender.metrics import Degraded
from extender.web.invalid_objects import InvalidObjects
from extender.web.operations.slis import Slis

NOT_READY_SECONDS: Final = 60.0
"""So long without a watch of pods or nodes: not ready."""
HIDDEN: Final = "the log of the server has it"
"""In place of a problem where pages need a token."""


class Check(NamedTuple):
    """One part of the server's health."""

    name: str
    problem: str
    """"" for none."""
    needed: bool
    """Whether the server is not ready without it."""


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
        missing = self._missing()
        self.slis.note("lists", "readyz", passed=not missing)
        dark = 0.0 if missing else self._dark()
        if not missing:
            self.slis.note("watches", "readyz", passed=dark < NOT_READY_SECONDS)
        silent = ""
        if dark >= NOT_READY_SECONDS:
            silent = f"pods or nodes have not been watched for {dark:.0f} s: the API server is silent or away"
        status = 503 if missing or silent else 200
        if "verbose" in request.query_params:
            checks = [Check("lists", "; ".join(missing), True), Check("watches", silent, True)]
            checks += [Check(part, self._text(text), False) for part, text in self._degraded.problems.items()]
            return Response(_verbose(checks), status_code=status, media_type="text/plain")
        body: dict[str, Any] = {"ready": status == 200, "missing": missing or ([silent] if silent else [])}
        if status == 200:
            named = not self._cluster.settings.server.debug.authorize
            body |= {
                "generation": self._cluster.generation,
                "warnings": self._invalid.warnings() if named else [],
            }
        problems = self._degraded.problems.items()
        body |= {
            "degraded": [{"part": part, "problem": self._text(text)} for part, text in problems if text],
            "settings": self._cluster.settings.hash,
            "version": version("gpu-extender"),
        }
        return JSONResponse(body, status_code=status)

    def _text(self, problem: str) -> str:
        """A problem may name objects: not where pages need a token."""
        return HIDDEN if problem and self._cluster.settings.server.debug.authorize else problem


def _verbose(checks: Sequence[Check]) -> str:
    lines = []
    for check in checks:
        state = f"{'failed' if check.needed else 'degraded'}: {check.problem}" if check.problem else "ok"
        lines.append(f"[{'-' if check.problem else '+'}]{check.name} {state}")
    failed = any(check.problem and check.needed for check in checks)
    return "\n".join([*lines, f"readyz check {'failed' if failed else 'passed'}", ""])
