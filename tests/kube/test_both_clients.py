"""The two clients of the API server pass the same cases: the server's (extender.kube) and the node's (extender.node).

Each case is a script of answers from a server on this machine, what the client is asked, and what it has to say.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

from extender.errors import Unreachable as NodeUnreachable
from extender.kube import client as server_client
from extender.node import apiserver as node_client
from tests.kube.api_server import Script, failed, hung_up, serving_in_thread, whole
from tests.waiting import run_bounded

Object = dict[str, Any]
PATH = "/api/v1/namespaces/a/pods/p"


class Answered(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NoAnswer(Exception):
    """No answer, or a broken one."""


class Client(Protocol):
    """What both clients can do."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Object: ...

    def patch(self, path: str, change: Object) -> Object: ...


class OfServer:
    """extender.kube.client, one event loop a call."""

    def __init__(self, url: str, token: Path, timeout: float) -> None:
        self._url, self._token, self._timeout = url, token, timeout

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        return self._do(lambda server: server.get(path, query))

    def patch(self, path: str, change: Object) -> Object:
        return self._do(lambda server: server.patch(path, json.dumps(change).encode()))

    def _do(self, call: Callable[[server_client.ApiServer], Any]) -> Object:
        async def headers() -> Mapping[str, str]:
            return {"Authorization": f"Bearer {self._token.read_text()}"}

        async def run() -> bytes:
            async with server_client.ApiServer(self._url, headers=headers, timeout=self._timeout) as server:
                body: bytes = await call(server)
                return body

        try:
            found: Object = json.loads(run_bounded(run()))
        except server_client.ApiError as error:
            raise Answered(error.status, error.message) from error
        except server_client.NoAnswer as error:
            raise NoAnswer(str(error)) from error
        return found


class OfNode:
    """extender.node.apiserver."""

    def __init__(self, url: str, token: Path, timeout: float) -> None:
        self._server, self._timeout = node_client.ApiEndpoint(url, token), timeout

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        return self._do(lambda: self._server.get(path, query, timeout=self._timeout))

    def patch(self, path: str, change: Object) -> Object:
        return self._do(lambda: self._server.patch(path, change, timeout=self._timeout))

    def _do(self, call: Callable[[], Object]) -> Object:
        try:
            return call()
        except node_client.Refused as error:
            raise Answered(error.http_status, str(error)) from error
        except NodeUnreachable as error:
            raise NoAnswer(str(error)) from error


@pytest.fixture(params=[OfServer, OfNode])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Client]:
    """Makes the client of a URL; its token is "t"."""
    (tmp_path / "token").write_text("t")

    def make(url: str, timeout: float = 10.0) -> Client:
        made: Client = request.param(url, tmp_path / "token", timeout)
        return made

    return make


def test_an_object_is_read(client: Callable[..., Client]) -> None:
    script = Script([whole(200, {"metadata": {"name": "p"}})])
    with serving_in_thread(script) as url:
        assert client(url).get(PATH) == {"metadata": {"name": "p"}}
    (asked,) = script.requests
    assert (asked.method, asked.path, asked.params) == ("GET", PATH, {})
    assert asked.headers["accept"] == "application/json"


def test_a_query_arrives_as_it_was_meant(client: Callable[..., Client]) -> None:
    script = Script([whole(200, {"items": []})])
    query = {"fieldSelector": "spec.nodeName=n,status.phase!=Failed", "limit": "1"}
    with serving_in_thread(script) as url:
        client(url).get("/api/v1/pods", query)
    assert script.requests[0].params == query


def test_a_patch_is_a_json_merge_patch(client: Callable[..., Client]) -> None:
    script = Script([whole(200, {"metadata": {"resourceVersion": "2"}})])
    change = {"metadata": {"annotations": {"gpu-extender.io/gpus": None}}}
    with serving_in_thread(script) as url:
        assert client(url).patch(PATH, change) == {"metadata": {"resourceVersion": "2"}}
    (asked,) = script.requests
    assert (asked.method, asked.path) == ("PATCH", PATH)
    assert asked.headers["content-type"] == "application/merge-patch+json"
    assert json.loads(asked.body) == change


def test_each_request_carries_the_token_as_it_is_then(client: Callable[..., Client], tmp_path: Path) -> None:
    script = Script([whole(200, {})])
    with serving_in_thread(script) as url:
        one = client(url)
        one.get(PATH)
        (tmp_path / "token").write_text("u")
        one.get(PATH)
    assert [asked.headers["authorization"] for asked in script.requests] == ["Bearer t", "Bearer u"]


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 422, 429, 500, 503])
def test_an_error_has_its_status_and_its_message(client: Callable[..., Client], status: int) -> None:
    with (
        serving_in_thread(Script([failed(status, "the pod is not what it was")])) as url,
        pytest.raises(Answered, match="the pod is not what it was") as caught,
    ):
        client(url).patch(PATH, {})
    assert caught.value.status == status


@pytest.mark.parametrize("body", [b"", b"<html>bad gateway</html>", b"[]", b'{"message": 3}', b"\xff\xfe", b"[" * 5000])
def test_an_error_of_a_proxy_has_its_status(client: Callable[..., Client], body: bytes) -> None:
    with serving_in_thread(Script([whole(502, body)])) as url, pytest.raises(Answered) as caught:
        client(url).get(PATH)
    assert caught.value.status == 502
    assert len(str(caught.value)) < 600


def test_a_redirect_is_not_followed(client: Callable[..., Client]) -> None:
    script = Script([whole(302, b"", {"Location": "/elsewhere"}), whole(200, {})])
    with serving_in_thread(script) as url, pytest.raises(Answered) as caught:
        client(url).get(PATH)
    assert caught.value.status == 302
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    "sent",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", b"SSH-2.0-x\r\n\r\n"],
)
def test_a_broken_answer_is_none(client: Callable[..., Client], sent: bytes) -> None:
    with serving_in_thread(Script([hung_up(sent)])) as url, pytest.raises(NoAnswer):
        client(url).patch(PATH, {})


def test_no_server_is_no_answer(client: Callable[..., Client]) -> None:
    with serving_in_thread(Script([whole(200, {})])) as url:
        pass
    with pytest.raises(NoAnswer, match=f"GET {PATH}"):
        client(url).get(PATH)


def test_silence_is_no_answer_after_the_timeout(client: Callable[..., Client]) -> None:
    """The first byte counts for nothing: the whole answer has to be there in time."""

    async def slow(request: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.05)

    with serving_in_thread(Script([slow])) as url, pytest.raises(NoAnswer):
        client(url, timeout=0.5).get(PATH)
