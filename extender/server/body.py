"""The body of a verb's request, whole and within its limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.requests import ClientDisconnect

from extender.errors import BodyTooLarge
from extender.server import connections


async def read(
    scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[MutableMapping[str, Any]]], most: int
) -> bytes:
    """All bytes of the body, `most` at most. BadRequest: it is larger, or its connection gave it up; ClientDisconnect:
    the client left."""
    for key, length in scope["headers"]:
        if key == b"content-length" and length.isdigit() and int(length) > most:
            raise BodyTooLarge(f"the body has {int(length)} bytes, the limit is {most} (settings: limits.bodyBytes)")
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        refused = connections.refusal(scope)
        if refused is not None:
            parts.clear()  # the connection keeps the error, which keeps this frame
            raise refused
        part = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(part)
        if size > most:
            raise BodyTooLarge(f"the body has more than {most} bytes (settings: limits.bodyBytes)")
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
