"""Asking a running server over HTTP."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import orjson

from extender.errors import BadInput, ExtenderError, Unreachable

LOCAL = "http://127.0.0.1:8888"
TIMEOUT_SECONDS = 10.0
WORK_SECONDS = 120.0
"""For an answer that takes work."""
TRIES = 10
NOT_READY = 503


class Unanswered(Unreachable):
    """Nothing answers at the address of a server. `reason`: why, without advice on the address."""

    def __init__(self, reason: str, server: str) -> None:
        super().__init__(
            f"{reason}. Does gpu-extender serve there? --server names another address; of one in a pod "
            "`kubectl port-forward` makes it reachable",
            path=server,
        )
        self.reason = reason


def default_server() -> str:
    """The server that is asked where no option names one."""
    return os.environ.get("GPU_EXTENDER_SERVER") or LOCAL


def add_server(parser: argparse._ActionsContainer) -> None:
    """--server, of a command that asks one server."""
    parser.add_argument(
        "--server", metavar="URL", default=default_server(), help=f"default: $GPU_EXTENDER_SERVER, else {LOCAL}"
    )


def pod_of(text: str) -> tuple[str, str]:
    """(namespace, name) of NAMESPACE/NAME. BadInput for anything else."""
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise BadInput(f"{text!r} is not NAMESPACE/NAME", path="pod")
    return namespace, name


def ask(server: str, path: str) -> dict[str, Any]:
    """The JSON object at a path of the server; Unreachable when there is none, or the server's own error."""
    return _answer(server, path, None)


def post(server: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """As `ask`, of a question in JSON."""
    return _answer(server, path, orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS))


def readiness(server: str) -> dict[str, Any]:
    """What /readyz answers, also with 503."""
    return _answer(server, "/readyz", None, NOT_READY)


def _answer(server: str, path: str, body: bytes | None, also: int = 0) -> dict[str, Any]:
    """`also`: a status whose body is an answer, too."""
    try:
        scheme = urlsplit(server).scheme
    except ValueError:  # such as brackets that are not closed
        scheme = ""
    if scheme not in ("http", "https"):
        raise BadInput(f"{server!r} is not an http or https address", path="--server")
    headers = {"Accept": "application/json"} | ({} if body is None else {"Content-Type": "application/json"})
    request = Request(server.rstrip("/") + path, data=body, headers=headers)
    try:
        answer = _decoded(server, _read(request, TIMEOUT_SECONDS if body is None else WORK_SECONDS))
    except HTTPError as error:
        with error:
            text = error.read()
            if error.code != also:
                raise _refusal(server, error.code, text) from None
            answer = _decoded(server, text)
    except (URLError, OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise Unanswered(str(reason), server) from None
    if not isinstance(answer, dict):
        raise Unreachable("the answer is not an object; is this a gpu-extender?", path=server)
    return answer


def _decoded(server: str, text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise Unreachable(f"the answer is not JSON: {error}", path=server) from None


def _read(request: Request, timeout: float) -> bytes:
    """The body of the answer. A busy server states when to ask again."""
    for remaining in reversed(range(TRIES)):
        try:
            # No proxy: the server is on loopback, at the end of a port-forward, or in the cluster.
            with build_opener(ProxyHandler({})).open(request, timeout=timeout) as response:
                body: bytes = response.read()
                return body
        except HTTPError as error:
            later = error.headers.get("Retry-After", "")
            if error.code != 429 or not remaining or not later.isdecimal():
                raise
            error.close()
            time.sleep(min(int(later), TIMEOUT_SECONDS))
    raise AssertionError("the last try returns or raises")


def _refusal(server: str, status: int, body: bytes) -> ExtenderError:
    """The server's own error where it sent one."""
    try:
        error = orjson.loads(body)["error"]
        return ExtenderError(str(error["message"]), path=str(error["path"]), code=str(error["code"]))
    except (ValueError, KeyError, TypeError):
        return Unreachable(f"answered {status}", path=server)
