"""Which requests of a browser are answered.

A web site that an operator visits can have its own name resolve to 127.0.0.1 (DNS rebinding), and then read a server on
loopback as if it were part of the site. The browser states the site's name in `Host`. So a name that is not ours is
rejected. An IP address cannot be rebound, and a name without a dot is none of the internet: it is `localhost`, or the
name of a Service in the same namespace. A request without `Host` is no browser's.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection
from ipaddress import ip_address
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from extender.web.responses import error_response

Handler = Callable[[Request], Awaitable[Response]]
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
