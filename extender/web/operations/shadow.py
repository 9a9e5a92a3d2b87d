"""/debug/shadow: how often kube-scheduler chose as we would have, and what differed."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from extender.ask.shadow.report import Report
from extender.web.pages import Pages

NOT_IN_SHADOW_MODE = {
    "code": "not-in-shadow-mode",
    "message": "this server answers kube-scheduler: only with the setting mode: shadow it compares",
}


class ShadowPage:
    """The handler of the page."""

    def __init__(self, report: Report | None, pages: Pages) -> None:
        """`report`: None where the mode is not shadow."""
        self._report = report
        self._page = pages.page(lambda: (orjson.dumps(self._shown()),))

    async def shadow(self, request: Request) -> Response:
        """The report."""
        return await self._page(request)

    def _shown(self) -> dict[str, Any]:
        report = self._report.as_json() if self._report is not None else {}
        warnings = [NOT_IN_SHADOW_MODE] if self._report is None else []
        head: dict[str, Any] = {"apiVersion": "gpu-extender.io/v1", "kind": "Shadow", "warnings": warnings}
        return head | report
