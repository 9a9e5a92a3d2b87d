"""/statusz and /flagz, as Kubernetes components have them: for people, without a promised format."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from extender.metrics import Degraded
from extender.settings import Settings
from extender.web.pages import Names, ServedPage

WARNING: Final = (
    "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is "
    "for debugging purposes only."
)


class ZPages:
    """The handlers of both."""

    def __init__(self, settings: Callable[[], Settings], started: float, degraded: Degraded) -> None:
        """`settings`: those that count now; `started`: seconds since 1970; `degraded`: what does not work."""
        self._settings, self._started, self._degraded = settings, started, degraded
        self.paths: Sequence[str] = ()

    def pages(self) -> tuple[ServedPage, ServedPage]:
        """Neither names a pod."""
        return ServedPage("/statusz", self.status, Names.NONE), ServedPage("/flagz", self.flags, Names.NONE)

    async def status(self, request: Request) -> Response:
        """Which program this is, since when it runs, and by which settings."""
        settings = self._settings()
        up = int(time.time() - self._started)
        facts = {
            "Started": datetime.fromtimestamp(self._started, UTC).strftime("%a %b %d %H:%M:%S UTC %Y"),
            "Up": f"{up // 3600} hr {up // 60 % 60:02} min {up % 60:02} sec",
            "Python version": platform.python_version(),
            "Binary version": version("gpu-extender"),
            "kube-scheduler version": settings.scheduler_version,
            "Mode": settings.mode,
            "Settings": settings.hash,
            "Policy": settings.policy_hash,
            "Degraded": "; ".join(f"{part}: {text}" for part, text in self._degraded.problems.items() if text) or "-",
            "Paths": " ".join(self.paths),
        }
        return _plain("statusz", (f"{name}: {value}" for name, value in facts.items()))

    async def flags(self, request: Request) -> Response:
        """Each field of the settings that count now, those that are not the default marked."""
        now, default = self._settings(), dict(_flat("", Settings().model_dump(mode="json", by_alias=True)))
        flags = _flat("", now.model_dump(mode="json", by_alias=True))
        return _plain("flagz", (f"{name}={value}" + " (set)" * (default.get(name) != value) for name, value in flags))


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """(path, text) of each field."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(f"{path}.{key}" if path else key, inner)
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from _flat(f"{path}[{number}]", inner)
    else:
        yield path, "" if value is None else str(value)


def _plain(name: str, lines: Iterator[str]) -> Response:
    return Response("\n".join([f"gpu-extender {name}", WARNING, "", *lines, ""]), media_type="text/plain")
