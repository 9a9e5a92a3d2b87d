"""/debug/openapi.json: what the pages answer, as OpenAPI 3.1."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import orjson
import yaml
from starlette.requests import Request
from starlette.responses import Response


@cache
def document() -> dict[str, Any]:
    """The description."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # without libyaml the slow one
    schema: dict[str, Any] = yaml.load(Path(__file__).with_name("openapi.yaml").read_bytes(), loader)
    return schema


class OpenApiPage:
    """The handler of the page."""

    def __init__(self) -> None:
        self._text = orjson.dumps(document())  # now: a parser holds up verbs

    async def description(self, request: Request) -> Response:
        """The whole of it."""
        return Response(self._text, media_type="application/json")
