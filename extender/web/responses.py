"""How every page and verb answers an error of its client."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response


def error_response(status: int, code: str, message: str, path: str = "") -> Response:
    """{"error": {"code", "path", "message"}}. `path`: where in the request."""
    return JSONResponse({"error": {"code": code, "path": path, "message": message}}, status_code=status)
