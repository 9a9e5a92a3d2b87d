"""The body of a verb's request, whole and within its limits."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from extender.errors import BodyTooLarge
from extender.server import connections


async def read(request: Request, most: int) -> bytes:
    """All bytes of the body, `most` at most. BadRequest: it is larger, or its connection gave it up; ClientDisconnect:
    the client left."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > most:
        raise BodyTooLarge(f"the body has {length} bytes, the limit is {most} (settings: limits.bodyBytes)")
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        refused = connections.refusal(request.scope)
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
