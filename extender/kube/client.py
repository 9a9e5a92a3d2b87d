"""One API server over asyncio HTTP: credentials that stay fresh, whole answers, and streams.

The official client loads the configuration (service account, kubeconfig, exec plugins, TLS); the requests themselves
go through aiohttp, its own transport, because its typed models cost a millisecond per pod. Tokens are read anew when
they are due; the certificates of a kubeconfig are read once.

Connections are kept, and given to the next request. What must not wait behind other requests has connections of its own
(`ApiServer.apart`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

import aiohttp
import msgspec
import yarl
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

# TLS included. A packet that is lost is sent again after 1 s; a host that is away drops them all, and the next try must
# not begin long after its return.
CONNECT_SECONDS = 3.0
ACQUIRE_SECONDS = 6.0  # for a name's addresses, and as many connects as it has
AUTHENTICATE_SECONDS = 10.0  # for a token file, or a credential plugin
_REFRESH = 60.0  # seconds between looks at a token file or an exec plugin's expiry, as client-go has it
STREAM_BUFFER = 2**18  # bytes: what a stream buffers before it makes the server wait
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"  # merges lists by their keys: gates, conditions
JSON = "application/json"
_METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_LONGEST_ERROR = 2**20  # bytes of the body of an error

T = TypeVar("T")
Headers = Callable[[], Awaitable[Mapping[str, str]]]


class CredentialsError(Exception):
    """There is no usable kubeconfig and this is no pod with a service account."""


class NoAnswer(Exception):
    """No answer, or a broken one. Whether the server carried the request out is unknown."""


class Silent(NoAnswer):
    """Nothing came for too long: the connection may be dead since its last word."""


class ApiError(Exception):
    """The server answered with an error. ``status`` is the HTTP code, ``retry_after`` seconds, if it asked for them."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.retry_after = retry_after

    @property
    def is_final(self) -> bool:
        """Whether the same request will fail again, as without a right: the server neither asks for patience (429) nor
        has failed itself (5xx)."""
        return self.status < 500 and self.status != 429


class TooLarge(Exception):
    """The body of an answer has more bytes than the caller takes; it was not read to its end."""


class Stream(NamedTuple):
    """A watch that was accepted: its bytes as they come. It ends when the server ends it, or by ``drop``, after which
    its block ends with NoAnswer."""

    chunks: AsyncIterator[bytes]
    drop: Callable[[], None]


class _Status(msgspec.Struct):
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Transport:
    """How connections to the API server are made."""

    tls: ssl.SSLContext | None = None
    """None: the certificates that the system trusts."""
    tls_server_name: str | None = None
    """The name in the server's certificate, where it is not that of the URL."""
    proxy: str | None = None
    proxy_from_environment: bool = False


class ApiServer:
    """Requests to one API server, on one event loop: the one of the first request. Use as an async context manager.

    ``headers`` is asked before each request for what authenticates it. ``url``, ``transport``: where the server is, and
    how connections to it are made.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Headers,
        transport: Transport | None = None,
        timeout: float = 30.0,
        at_once: int | None = None,
    ) -> None:
        """``timeout`` (seconds) is for whole answers, their bodies included. ``at_once``: the most requests under way,
        others wait; None: any number."""
        self.url = url
        self.headers = headers
        self.transport = transport or Transport()
        self.forbidden = Forbidden()
        self._url = yarl.URL(url)
        self._timeout = timeout
        self._turns = contextlib.nullcontext() if at_once is None else asyncio.Semaphore(at_once)
        self._opened: aiohttp.ClientSession | None = None
        self._options: dict[str, Any] = {"allow_redirects": False}
        if self.transport.proxy:
            self._options["proxy"] = self.transport.proxy
        if self.transport.tls_server_name:
            self._options["server_hostname"] = self.transport.tls_server_name

    @property
    def _session(self) -> aiohttp.ClientSession:
        """Made on the event loop that uses it: credentials are loaded before there is one."""
        if self._opened is None:
            tls = self.transport.tls
            self._opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=tls if tls is not None else True),
                # A body that came compressed would be inflated in a worker thread.
                headers={"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "gpu-extender"},
                trust_env=self.transport.proxy_from_environment,
                read_bufsize=STREAM_BUFFER,
                auto_decompress=False,
            )
        return self._opened

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> Self:
        """With ``kubeconfig`` (a path), else as a pod with its service account.

        The service account is never reached through the environment's proxy, the kubeconfig's server may be: proxies
        are for people's machines, and NO_PROXY with an address range would not be understood.
        """
        other = "; --kubeconfig FILE names another, --cluster FILE a cluster from a file" if kubeconfig else ""
        if kubeconfig is not None and not any(
            Path(path).expanduser().exists() for path in kubeconfig.split(os.pathsep)
        ):
            raise CredentialsError(f"{kubeconfig}: there is no such file{other}")
        configuration = Configuration()
        loading: Any = kubernetes_config  # its functions are untyped
        hooked: Any = configuration
        try:
            if kubeconfig is None:
                loading.load_incluster_config(client_configuration=configuration)
            else:
                loader = await loading.load_kube_config(
                    config_file=kubeconfig, context=context, client_configuration=configuration, persist_config=False
                )
                hooked.refresh_api_key_hook = _Reload(loader, clock)
            tls = RESTClientObject(configuration).ssl_context
        except Exception as error:  # parsers, files, TLS, other people's plugins: anything may come out
            raise CredentialsError(f"{kubeconfig or 'service account'}: {error}{other}") from error

        async def headers() -> Mapping[str, str]:
            try:
                token = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
            except Exception as error:  # as above: a token file that is gone, a plugin that failed
                raise NoAnswer(f"no fresh credentials: {error}") from error
            return {"Authorization": token} if token else {}

        transport = Transport(tls, configuration.tls_server_name, configuration.proxy, kubeconfig is not None)
        return cls(configuration.host, headers=headers, transport=transport)

    def apart(self, at_once: int) -> ApiServer:
        """The same server by connections of its own, so that other requests delay none of these. Close it, too."""
        server = ApiServer(
            self.url, headers=self.headers, transport=self.transport, timeout=self._timeout, at_once=at_once
        )
        server.forbidden = self.forbidden
        return server

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends every connection."""
        if self._opened is None:
            return
        session, self._opened = self._opened, None
        await session.close()
        await asyncio.sleep(0)  # for those that were cut off in this turn of the loop

    async def get(self, path: str, params: Mapping[str, str] | None = None, *, most: int | None = None) -> bytes:
        """The body of a 200. ApiError for any other answer, NoAnswer for none, TooLarge for one of more than `most`
        bytes."""
        return await self.request("GET", path, params=params, most=most)

    async def find(self, path: str) -> bytes | None:
        """As get(); None where there is no such object (404)."""
        try:
            return await self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of a 2xx answer to a JSON body. The same errors as get()."""
        return await self.request("POST", path, body)

    async def put(self, path: str, body: bytes) -> bytes:
        """As post(): the object that is there is replaced."""
        return await self.request("PUT", path, body)

    async def patch(self, path: str, body: bytes, content_type: str = MERGE_PATCH) -> bytes:
        """As post(), with a JSON merge patch, or another kind of patch."""
        return await self.request("PATCH", path, body, content_type=content_type)

    async def change(self, method: str, path: str, body: bytes, content_type: str = JSON) -> bytes:
        """A write that creates an object or states the version that it changes, so it may be sent twice: it is sent
        again where the server closes the connection instead of answering. The answer is the object's metadata alone,
        where the server can do so. The errors of get()."""
        headers = {"Accept": _METADATA_ONLY, "Content-Type": content_type}
        async with self._turns:
            try:
                return await self._whole(method, path, headers, body)
            except NoAnswer as error:
                if not _is_unanswered(error):
                    raise
            return await self._whole(method, path, headers, body)

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        most: int | None = None,
    ) -> bytes:
        """The body of a 2xx answer to any method; the errors of get(). `content_type`: of `body`."""
        headers = {} if body is None else {"Content-Type": content_type}
        async with self._turns:
            return await self._whole(method, path, headers, body, params=params, most=most)

    async def _whole(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        params: Mapping[str, str] | None = None,
        most: int | None = None,
    ) -> bytes:
        limits = aiohttp.ClientTimeout(total=self._timeout, connect=ACQUIRE_SECONDS, sock_connect=CONNECT_SECONDS)
        async with self._answer(method, path, limits, headers, params=params or {}, data=body) as answer:
            if most is None:
                return await answer.read()
            text = await _first_bytes(answer, most + 1)
            if len(text) > most:
                raise TooLarge(f"{method} {path}: more than {most} bytes")
            return text

    @asynccontextmanager
    async def stream(self, path: str, params: Mapping[str, str], *, inactivity: float) -> AsyncIterator[Stream]:
        """An answer that goes on. Silence for ``inactivity`` seconds is Silent, a broken connection NoAnswer. Where
        the caller is behind by STREAM_BUFFER bytes the server has to wait, which is no silence."""
        limits = aiohttp.ClientTimeout(
            total=None, connect=ACQUIRE_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=inactivity
        )
        async with self._answer("GET", path, limits, {}, params=params) as answer:
            yield Stream(answer.content.iter_any(), lambda: _cut_off(answer))

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        limits: aiohttp.ClientTimeout,
        headers: Mapping[str, str],
        **more: Any,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(AUTHENTICATE_SECONDS):
                    headers = {**headers, **_one_line_each(await self.headers())}
                url = self._url.joinpath(path.lstrip("/"), encoded=True)
                request = self._session.request(method, url, headers=headers, timeout=limits, **more, **self._options)
                answer = await stack.enter_async_context(request)
                try:
                    if not 200 <= answer.status < 300:
                        raise await self._error_of(method, answer)
                    yield answer
                finally:
                    _cut_off(answer)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                kind = Silent if isinstance(error, TimeoutError) else NoAnswer
                raise kind(f"{method} {path}: {str(error) or type(error).__name__}") from error

    async def _error_of(self, method: str, answer: aiohttp.ClientResponse) -> ApiError | NoAnswer:
        """What an answer means that is no success."""
        if answer.status < 200:
            return NoAnswer(f"{method} {answer.url.path}: an answer of status {answer.status}")
        message = message_of(await _first_bytes(answer, _LONGEST_ERROR))
        self.forbidden.note(method, answer.status, message)
        return ApiError(answer.status, message, retry_after_of(answer.headers.get("Retry-After", "")))


async def _first_bytes(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """The body, or at least its first `most` bytes where it has more."""
    parts, size = [], 0
    async for part in answer.content.iter_any():
        parts.append(part)
        size += len(part)
        if size >= most:
            break
    return b"".join(parts)


def _one_line_each(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The credentials. NoAnswer: one that would add header lines of its own."""
    if any("\r" in text or "\n" in text for text in headers.values()):
        raise NoAnswer("the credentials have a line break")
    return headers


def _is_unanswered(error: NoAnswer) -> bool:
    """Whether a connection that stood was closed before the first byte of an answer."""
    cause = error.__cause__
    closed = isinstance(cause, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError))
    return closed and not isinstance(cause, aiohttp.ClientConnectorError)


def _cut_off(answer: aiohttp.ClientResponse) -> None:
    """Ends the connection of an answer that was left unread: a TLS farewell to a server still sending may take long,
    and an event loop that stops before that leaves the socket open.
    """
    connection = answer.connection  # None once the answer is read to its end
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


class _Reload:
    """The hook by which the official configuration renews a kubeconfig's token, at most once a minute."""

    def __init__(self, loader: Any, clock: Callable[[], float]) -> None:
        self._loader = loader
        self._clock = clock
        self._due = clock() + _REFRESH

    async def __call__(self, configuration: Configuration) -> None:
        if self._clock() >= self._due:
            self._due = self._clock() + _REFRESH
            await self._loader.load_and_set(configuration)


def message_of(body: bytes) -> str:
    """The message of a ``Status``, or the beginning of whatever else a proxy in between may have sent."""
    try:
        message = msgspec.json.decode(body, type=_Status).message
    except (msgspec.MsgspecError, RecursionError):
        message = None
    return (message or body.decode(errors="replace").strip() or "no message")[:500]


def object_in(body: bytes, kind: type[T]) -> T:
    """The object of an answer. NoAnswer: another thing came."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NoAnswer(f"the answer cannot be read: {error}") from error


def retry_after_of(text: str) -> float | None:
    """Seconds that the header Retry-After names; None where it names none."""
    return float(text) if text.isascii() and text.isdigit() else None


# -- where this process runs


ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def default_kubeconfig() -> str | None:
    """None in a pod (its service account is used), else the file that kubectl reads."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return None
    return os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def own_namespace(setting: str) -> str:
    """The namespace of the settings; else, in a pod, its own; else kube-system, which exists everywhere."""
    if setting:
        return setting
    try:
        return ACCOUNT.read_text().strip() or "kube-system"
    except OSError:
        return "kube-system"


# -- rights that are missing


REMEMBERED_SECONDS: Final = 600.0
"""A right that is back is seen by the next write alone, so what was refused is forgotten after this time."""
MOST: Final = 64
MISSING: Final = re.compile(r'User "[^"]*" cannot (\w+) resource "([^"]+)" in API group "([^"]*)"')
"""As the RBAC of the API server states it. Admission and quotas refuse single objects in other words."""
READS: Final = frozenset({"GET", "HEAD"})
"""The watches report what they may not read."""


class Forbidden:
    """The writes that were refused lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused: dict[str, float] = {}  # verb and resource -> when last

    def note(self, method: str, status: int, message: str) -> None:
        """The answer to a request that failed."""
        missing = MISSING.search(message) if status == 403 and method not in READS else None
        if missing is None:
            return
        verb, resource, group = missing.groups()
        name = f"{verb} {resource}{f' of {group}' if group else ''}"
        if name in self._refused or len(self._refused) < MOST:
            self._refused[name] = self._clock()

    def problem(self) -> str:
        """In words, "" for none."""
        now = self._clock()
        self._refused = {name: at for name, at in self._refused.items() if now - at < REMEMBERED_SECONDS}
        if not self._refused:
            return ""
        return f"not allowed in the last {REMEMBERED_SECONDS / 60:.0f} min: {', '.join(sorted(self._refused))}"
