"""Asking a running server over HTTP."""

from __future__ import annotations

import time
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import orjson

from extender.errors import BadInput, ExtenderError, Unreachable

TIMEOUT_SECONDS = 10.0
TRIES = 10


def ask(server: str, path: str) -> dict[str, Any]:
    """The JSON object at a path of the server; Unreachable when there is none, or the server's own error."""
    if urlsplit(server).scheme not in ("http", "https"):
        raise BadInput(f"{server!r} is not an http or https address", path="--server")
    request = Request(server.rstrip("/") + path, headers={"Accept": "application/json"})
    try:
        answer = orjson.loads(_read(request))
    except HTTPError as error:
        with error:
            raise _refusal(server, error.code, error.read()) from None
    except (URLError, OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise Unreachable(
            f"{reason}. Does gpu-extender serve there? --server names another address; of one in a pod "
            "`kubectl port-forward` makes it reachable",
            path=server,
        ) from None
    except ValueError as error:
        raise Unreachable(f"the answer is not JSON: {error}", path=server) from None
    if not isinstance(answer, dict):
        raise Unreachable("the answer is not an object; is this a gpu-extender?", path=server)
    return answer


def _read(request: Request) -> bytes:
    """The body of the answer. A server that others ask at this moment says when to come again."""
    for left in reversed(range(TRIES)):
        try:
            # No proxy: the server is on loopback, at the end of a port-forward, or in the cluster.
            with build_opener(ProxyHandler({})).open(request, timeout=TIMEOUT_SECONDS) as response:
                body: bytes = response.read()
                return body
        except HTTPError as error:
            later = error.headers.get("Retry-After", "")
            if error.code != 429 or not left or not later.isdecimal():
                raise
            error.close()
            time.sleep(min(int(later), TIMEOUT_SECONDS))
    raise AssertionError("the last try returns or raises")


def _refusal(server: str, status: int, body: bytes) -> ExtenderError:
    """The server's own error where it sent one."""
    try:
        said = orjson.loads(body)["error"]
        return ExtenderError(str(said["message"]), path=str(said["path"]), code=str(said["code"]))
    except (ValueError, KeyError, TypeError):
        return Unreachable(f"answered {status}", path=server)
