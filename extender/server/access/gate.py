"""Handlers of metrics and pages, behind the token of a request where the settings ask for one.

A browser gives the token as the password of HTTP Basic, because it can send no other header by itself.
"""

from __future__ import annotations

import base64
import binascii
from enum import Enum, auto
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from extender.errors import Busy
from extender.kube.reviews import ListPods, PathRight, User
from extender.server.gate import Reviewer, ReviewFailed
from extender.web.page.guard import Handler
from extender.web.pages import OWN_PODS_ONLY
from extender.web.responses import error_response

LONGEST_TOKEN: Final = 16 << 10
CHALLENGES: Final = (
    ("www-authenticate", 'Basic realm="gpu-extender: any user name, and a token as the password", charset="UTF-8"'),
    ("www-authenticate", 'Bearer realm="gpu-extender"'),
)


class Names(Enum):
    """Of which pods an answer has names: its reader needs the right to list them."""

    NONE = auto()
    ANY = auto()
    """Of any namespace: the right for all of them."""
    ASKED = auto()
    """Of the namespace in `?pod=NAMESPACE/NAME`, if the handler leaves others out (`web.pages.OWN_PODS_ONLY`)."""


class Gate:
    """Lets requests pass whose user may `get` the path, and list the pods that the answer names."""

    def __init__(self, reviewer: Reviewer | None) -> None:
        """`reviewer`: None where every client that reaches the listener may ask."""
        self._reviewer = reviewer

    def behind(self, handler: Handler, names: Names) -> Handler:
        """The handler behind the gate."""
        reviewer = self._reviewer
        if reviewer is None:
            return handler

        async def answer(request: Request) -> Response:
            try:
                return await _rejection(request, reviewer, names) or await handler(request)
            except Busy as error:
                return error_response(error.status, error.code, error.message)
            except ReviewFailed:
                return error_response(503, "not-reviewed", "the API server does not review the token now")

        return answer


async def _rejection(request: Request, reviewer: Reviewer, names: Names) -> Response | None:
    """None: the request passes. Busy, ReviewFailed."""
    token = token_of(request.headers.get("authorization", ""))
    user = await reviewer.user(token) if token else None
    if user is None:
        response = error_response(401, "no-token", "a token that the API server accepts is needed", "Authorization")
        for name, value in CHALLENGES:
            response.headers.append(name, value)
        return response
    path = PathRight(request.url.path, request.method.lower())
    if not await reviewer.may(user, path):
        return error_response(403, "forbidden", f"this user may not {path.verb} {path.path}", path.path)
    return None if names is Names.NONE else await _unnamed(request, reviewer, user, names)


async def _unnamed(request: Request, reviewer: Reviewer, user: User, names: Names) -> Response | None:
    """None: the user may list the pods that the answer names."""
    if await reviewer.may(user, ListPods()):
        return None
    namespace = request.query_params.get("pod", "").partition("/")[0]
    if names is Names.ASKED and namespace and len(namespace) < 64:
        setattr(request.state, OWN_PODS_ONLY, True)
        if await reviewer.may(user, ListPods(namespace)):
            return None
        return error_response(403, "forbidden", "this user may not list the pods of that namespace", "pod")
    return error_response(403, "forbidden", "this page names pods: its reader may list pods in all namespaces")


def token_of(header: str) -> str:
    """The token in `Authorization`: a bearer token, or the password of Basic; "" without one that can be."""
    scheme, _, given = header.partition(" ")
    given = given.strip()
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode("ascii").partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    elif scheme.lower() != "bearer":
        return ""
    usable = given.isascii() and given.isprintable() and " " not in given and len(given) <= LONGEST_TOKEN
    return given if usable else ""
