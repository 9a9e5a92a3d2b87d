"""The gate before metrics and pages: the name by which a browser asks; the token, where the settings ask for one.

A browser gives the token as the password of HTTP Basic, because it can send no other header by itself.

A web site that an operator visits can have its own name resolve to 127.0.0.1 (DNS rebinding), and then read a server on
loopback as if it were part of the site. The browser states the site's name in `Host`. So a name that is not ours is
rejected. An IP address cannot be rebound, and a name without a dot is none of the internet: it is `localhost`, or the
name of a Service in the same namespace. A request without `Host` is no browser's.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from ipaddress import ip_address
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from extender.errors import Busy
from extender.kube.client import ApiError, ApiServer, NoAnswer, object_in
from extender.log import Allowance, get_log
from extender.metrics import Metrics
from extender.web.pages import OWN_PODS_ONLY, Handler, Names, error_response

LONGEST_TOKEN: Final = 16 << 10
CHALLENGES: Final = (
    ("www-authenticate", 'Basic realm="gpu-extender: any user name, and a token as the password", charset="UTF-8"'),
    ("www-authenticate", 'Bearer realm="gpu-extender"'),
)


LOCAL: Final = (".localhost", ".svc", ".svc.cluster.local")
"""What names of this machine and of Services end with: no site on the internet has such a name."""
HOST: Final = re.compile(r"(\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_-][a-z0-9._-]*))(:[0-9]{1,5})?")


def guarded(handler: Handler, hosts: Collection[str] | None) -> Handler:
    """The handler behind the check. `hosts`: names beyond those that are always ours; None: any."""
    if hosts is None:
        return handler
    named = frozenset(name.lower().rstrip(".") for name in hosts)

    async def guard(request: Request) -> Response:
        host = request.headers.get("host")
        if host is not None and not ours(host, named):
            return error_response(
                421, "unknown-host", "this name is not this server's (settings: server.hosts)", host[:200]
            )
        return await handler(request)

    return guard


def ours(host: str, named: Collection[str]) -> bool:
    """Whether a `Host` header can name this server: an IP address, a name that no site has, or one of `named`."""
    match = HOST.fullmatch(host.lower())
    if match is None:
        return False
    name = (match["address"] or match["name"]).rstrip(".")
    if name in named or name.endswith(LOCAL) or (match["name"] and "." not in name):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def gated(handler: Handler, names: Names, reviewer: Reviewer | None) -> Handler:
    """The handler for requests whose user may `get` the path, and list the pods that the answer names. `reviewer`: None
    where every client that reaches the listener may ask."""
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


# -- what the API server answers, remembered for a short time and in bounded numbers ----------------------------------

USER_SECONDS: Final = 60.0
"""How long a token counts that was accepted, also when it is revoked meanwhile."""
ALLOWED_SECONDS: Final = 30.0
REJECTED_SECONDS: Final = 5.0
"""How long a rejection counts, of a token or of a right."""
MOST_REMEMBERED: Final = 1_024
MOST_AT_ONCE: Final = 8
REVIEWS_PER_SECOND: Final = 50.0
"""On average over two seconds. A client with ever new tokens costs the API server no more."""
REVIEW_SECONDS: Final = 10.0
log = get_log()
Value = TypeVar("Value")


class ReviewFailed(Exception):
    """The API server gave no answer: every client is rejected."""


class Reviewer:
    """The questions of one server. Busy: too many new tokens and rights are asked about; ReviewFailed."""

    def __init__(self, asks: Reviews, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._asks, self._metrics, self._clock = asks, metrics, clock
        self._users: _Remembered[User | None] = _Remembered(clock)
        self._rights: _Remembered[bool] = _Remembered(clock)
        self._at_once = asyncio.Semaphore(MOST_AT_ONCE)
        self._allowance = Allowance(2 * REVIEWS_PER_SECOND, REVIEWS_PER_SECOND)

    async def user(self, token: str) -> User | None:
        """Whose token it is; None: the API server does not accept it."""
        key = hashlib.sha256(token.encode()).digest()  # no token stays in memory
        known, user = self._users.get(key)
        if not known:
            user = await self._review("token", lambda: self._asks.user(token))
            self._users.put(key, user, USER_SECONDS if user else REJECTED_SECONDS)
        return user

    async def may(self, user: User, right: PathRight | ListPods) -> bool:
        """Whether the user has the right."""
        key = (user, right)
        known, allowed = self._rights.get(key)
        if not known or allowed is None:
            allowed = await self._review("access", lambda: self._asks.may(user, right))
            self._rights.put(key, allowed, ALLOWED_SECONDS if allowed else REJECTED_SECONDS)
        return allowed

    async def _review(self, kind: str, ask: Callable[[], Awaitable[Value]]) -> Value:
        if self._allowance.take(self._clock()) is None:
            raise Busy("too many new tokens and rights are asked about")
        try:
            async with asyncio.timeout(REVIEW_SECONDS), self._at_once:
                answer = await ask()
        except (ApiError, NoAnswer, TimeoutError) as error:
            self._metrics.reviews.labels(kind, "failed").inc()
            log.warning("the API server does not review a request: it is rejected", kind=kind, err=str(error)[:300])
            raise ReviewFailed from error
        self._metrics.reviews.labels(kind, "accepted" if answer else "rejected").inc()
        return answer


class _Remembered(Generic[Value]):
    """Values with an end; the one that was used longest ago makes room."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: OrderedDict[Hashable, tuple[float, Value]] = OrderedDict()

    def get(self, key: Hashable) -> tuple[bool, Value | None]:
        """(whether it is known, the value)."""
        entry = self._kept.get(key)
        if entry is None or entry[0] <= self._clock():
            return False, None
        self._kept.move_to_end(key)
        return True, entry[1]

    def put(self, key: Hashable, value: Value, seconds: float) -> None:
        """It counts for so long."""
        self._kept[key] = (self._clock() + seconds, value)
        self._kept.move_to_end(key)
        if len(self._kept) > MOST_REMEMBERED:
            self._kept.popitem(last=False)


# -- whose a token is, and what that user may do: the API server's own answers (TokenReview, SubjectAccessReview)


_TOKENS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class User(NamedTuple):
    """Whom a token stands for. All of it is reviewed: an authorizer may look at any part."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class PathRight(NamedTuple):
    """The right to ask for a path."""

    path: str
    verb: str = "get"  # the HTTP method in lower case

    def attributes(self) -> Mapping[str, Any]:
        """Of a SubjectAccessReview."""
        return {"nonResourceAttributes": {"path": self.path, "verb": self.verb}}


class ListPods(NamedTuple):
    """The right to list the pods of a namespace; "": of all."""

    namespace: str = ""

    def attributes(self) -> Mapping[str, Any]:
        """Of a SubjectAccessReview."""
        return {"resourceAttributes": {"namespace": self.namespace, "verb": "list", "resource": "pods"}}


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class _Status(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    allowed: bool = False


class _Answer(msgspec.Struct):
    status: _Status


class Reviews:
    """The two questions. ApiError: the server rejects them; NoAnswer: it gives no answer that can be used."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def user(self, token: str) -> User | None:
        """None: the API server accepts no such token."""
        status = await self._ask(_TOKENS, "authentication.k8s.io/v1", "TokenReview", {"token": token})
        user = status.user
        if not status.authenticated or not user.username:
            return None
        return User(user.username, user.uid, user.groups, tuple(sorted(user.extra.items())))

    async def may(self, user: User, right: PathRight | ListPods) -> bool:
        """Whether the user has the right."""
        spec = {"user": user.name, "uid": user.uid, "groups": user.groups, "extra": dict(user.extra)}
        body = {**spec, **right.attributes()}
        return (await self._ask(_ACCESS, "authorization.k8s.io/v1", "SubjectAccessReview", body)).allowed

    async def _ask(self, path: str, version: str, kind: str, spec: Mapping[str, Any]) -> _Status:
        body = msgspec.json.encode({"apiVersion": version, "kind": kind, "spec": spec})
        return object_in(await self._server.post(path, body), _Answer).status
