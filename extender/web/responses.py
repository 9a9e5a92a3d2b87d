"""How every page and verb answers an error of its client."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response


def error_response(status: int, code: str, message: str, path: str = "") -> Response:
    """{"error": {"code", "path", "message"}}. `path`: where in the request."""
    return JSONResponse({"error": {"code": code, "path": path, "message": message}}, status_code=status)


def preferred(accept: str) -> str:
    """Of JSON and HTML the media type that a client names first in `Accept`; "" where it names neither."""
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return next((kind for kind in kinds if kind in ("application/json", "text/html")), "")
