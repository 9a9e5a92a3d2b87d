"""/healthz, /livez and /readyz."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from extender.cluster.view import ClusterView
from extender.web.invalid_objects import InvalidObjects
from extender.web.operations.slis import Slis

NOT_READY_SECONDS: Final = 60.0
"""So long without a watch of pods or nodes: not ready."""


class Health:
    """The handlers of the three."""

    def __init__(
        self, cluster: ClusterView, invalid: InvalidObjects, missing: Callable[[], list[str]], dark: Callable[[], float]
    ) -> None:
        """`invalid`: warnings that name objects, left out where pages need a token; `missing`: what is not known
        yet, in words; `dark`: seconds since pods and nodes were watched."""
        self._cluster, self._invalid, self._missing, self._dark = cluster, invalid, missing, dark
        self.slis = Slis()

    async def alive(self, request: Request) -> Response:
        """The process answers."""
        self.slis.note("ping", "livez", passed=True)
        return Response("ok", media_type="text/plain")

    async def ready(self, request: Request) -> Response:
        """Whether the verbs are answered by a complete and current view."""
        missing = self._missing()
        self.slis.note("lists", "readyz", passed=not missing)
        if missing:
            return JSONResponse({"ready": False, "missing": missing}, status_code=503)
        dark = self._dark()
        self.slis.note("watches", "readyz", passed=dark < NOT_READY_SECONDS)
        if dark >= NOT_READY_SECONDS:
            missing = [f"pods or nodes have not been watched for {dark:.0f} s: the API server is silent or away"]
            return JSONResponse({"ready": False, "missing": missing}, status_code=503)
        generation = self._cluster.generation
        warnings = [] if self._cluster.settings.server.debug.authorize else self._invalid.warnings()
        return JSONResponse({"ready": True, "missing": [], "generation": generation, "warnings": warnings})
