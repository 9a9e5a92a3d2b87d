"""Where an API server is, for connections that speak HTTP/1.1 themselves (kept.py, watch/streams.py).

The general client (client.py) takes about a thousand Python calls for a request. What is asked often, or waited for,
is written to a socket of its own and read by httptools.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from extender.kube.client import ACQUIRE_SECONDS, CONNECT_SECONDS, ApiServer, Unreachable

Wire = TypeVar("Wire", bound=asyncio.Protocol)


def is_direct(server: ApiServer) -> bool:
    """Whether no proxy is in between, which has its own protocol: only the general client speaks it."""
    target, transport = urlsplit(server.url), server.transport
    bypassed = not transport.proxy_from_environment or bool(proxy_bypass(target.hostname or ""))
    return not transport.proxy and (bypassed or target.scheme not in getproxies())


class Endpoint:
    """The address of one API server, and the head of each request to it."""

    def __init__(self, server: ApiServer) -> None:
        """`server`: names the URL, the credentials and how connections are made."""
        self._headers = server.headers
        target = urlsplit(server.url)
        tls = target.scheme == "https"
        self._host = target.hostname or ""
        self._port = target.port or (443 if tls else 80)
        name = server.transport.tls_server_name or self._host
        self._tls: dict[str, Any] = {"ssl": server.transport.tls or True, "server_hostname": name} if tls else {}
        self._prefix = target.path.rstrip("/")
        self._constant = f" HTTP/1.1\r\nHost: {target.netloc}\r\nUser-Agent: gpu-extender\r\n"

    async def head(self, method: str, target: str, accept: str) -> str:
        """The request line and the headers of each request, credentials included; the empty line that ends them is
        still to be added. `target`: path and query. Unreachable: there are no fresh credentials."""
        credentials = _lines(await self._headers())
        return f"{method} {self._prefix}{target}{self._constant}Accept: {accept}\r\n{credentials}"

    async def connect(self, protocol: Callable[[], Wire]) -> Wire:
        """A connection to the first address that answers, TLS included. OSError, of which TimeoutError is one."""
        loop = asyncio.get_running_loop()
        failed: OSError = OSError(f"{self._host} has no address")
        async with asyncio.timeout(ACQUIRE_SECONDS):
            for *_, address in await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM):
                try:
                    async with asyncio.timeout(CONNECT_SECONDS):
                        _, wire = await loop.create_connection(protocol, str(address[0]), self._port, **self._tls)
                    return wire
                except OSError as error:
                    failed = error
        raise failed


def _lines(headers: Mapping[str, str]) -> str:
    """As header lines. Unreachable: a credential that would add lines of its own."""
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\r") != len(headers) or text.count("\n") != len(headers):
        raise Unreachable("the credentials have a line break")
    return text
