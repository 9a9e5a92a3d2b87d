"""Requests on kept connections, and what becomes of them when the server or the caller gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import uvloop

from extender.kube.client import MERGE_PATCH, ApiError, ApiServer, NoAnswer
from tests.kube.api_server import Answer, Request, Script, Writer, failed, hung_up, no_headers, serving, watched, whole
from tests.waiting import eventually

PATH = "/api/v1/namespaces/a/configmaps/m"
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def run(
    answers: Sequence[Answer],
    test: Callable[[Any], Awaitable[None]],
    *,
    kept: Callable[[ApiServer], ApiServer] = lambda server: server.apart(1),
    loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    prefix: str = "",
    headers: Callable[[], Awaitable[Mapping[str, str]]] = no_headers,
) -> tuple[list[Request], int]:
    """The requests that the server saw, and how many connections they came on."""
    script, writers = Script(answers), set[int]()

    def counted(answer: Answer) -> Answer:
        async def send(request: Request, writer: Writer) -> None:
            writers.add(writer.get_extra_info("peername")[1])
            await answer(request, writer)

        return send

    script.answers = [counted(answer) for answer in answers]

    async def whole_test() -> None:
        async with serving(script) as url:
            connection = kept(ApiServer(url + prefix, headers=headers))
            try:
                await test(connection)
            finally:
                await connection.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(whole_test())
    return script.requests, len(writers)


@pytest.mark.parametrize("loop", LOOPS)
def test_requests_share_one_connection(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test(connection: ApiServer) -> None:
        assert await connection.get(PATH) == b'{"a": 1}'
        assert await connection.change("PATCH", PATH, b'{"b":2}', MERGE_PATCH) == b"[1, 2]"  # sent in chunks
        assert await connection.change("POST", PATH, b"{}") == b"{}"

    async def token() -> Mapping[str, str]:
        return {"Authorization": "Bearer t"}

    answers = [whole(200, {"a": 1}), watched(b"[1, ", b"2]"), whole(201, {})]
    seen, connections = run(answers, test, loop=loop, prefix="/k8s/clusters/c", headers=token)
    assert connections == 1
    assert [one.method for one in seen] == ["GET", "PATCH", "POST"]
    assert {one.path for one in seen} == {"/k8s/clusters/c" + PATH}
    assert {one.headers["authorization"] for one in seen} == {"Bearer t"}
    assert seen[1].body == b'{"b":2}'
    assert seen[1].headers["content-type"] == "application/merge-patch+json"
    assert "as=PartialObjectMetadata" in seen[1].headers["accept"]
    assert seen[0].headers["accept"] == "application/json"


def test_a_connection_that_was_closed_meanwhile_is_replaced() -> None:
    """The server closes a connection that is idle for long; the request may be sent as it does."""

    async def test(connection: ApiServer) -> None:
        await connection.get(PATH)
        assert await connection.change("PATCH", PATH, b"{}", MERGE_PATCH) == b"{}"

    seen, connections = run([whole(200, {}), hung_up(), whole(200, {})], test)
    assert ([one.method for one in seen], connections) == (["GET", "PATCH", "PATCH"], 2)


def test_a_server_that_keeps_no_connection_gets_a_new_one_each_time() -> None:
    async def test(connection: ApiServer) -> None:
        await connection.get(PATH)
        await connection.get(PATH)

    _, connections = run([whole(200, {}, {"Connection": "close"})], test)
    assert connections == 2


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        (hung_up(), 2),  # no answer has begun: it is sent once more
        (hung_up(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"), 1),
        (hung_up(b"no HTTP at all\r\n\r\n"), 1),
    ],
)
def test_an_answer_that_breaks_off_is_no_answer(answer: Answer, asked: int) -> None:
    async def test(connection: ApiServer) -> None:
        with pytest.raises(NoAnswer, match="PATCH"):
            await connection.change("PATCH", PATH, b"{}", MERGE_PATCH)
        assert await connection.get(PATH) == b"{}"

    seen, connections = run([*[answer] * asked, whole(200, {})], test)
    assert (len(seen), connections) == (asked + 1, asked + 1)


def test_the_answer_of_a_request_that_was_given_up_reaches_no_other() -> None:
    asked, given_up = asyncio.Event(), asyncio.Event()

    async def late(request: Request, writer: Writer) -> None:
        asked.set()
        await given_up.wait()
        await whole(200, {"late": True})(request, writer)

    async def test(connection: ApiServer) -> None:
        call = asyncio.create_task(connection.change("PATCH", PATH, b"{}", MERGE_PATCH))
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        given_up.set()
        assert await connection.get(PATH) == b"{}"

    _, connections = run([late, whole(200, {})], test)
    assert connections == 2


def test_an_error_has_its_status_and_what_it_asks_for() -> None:
    async def test(connection: ApiServer) -> None:
        with pytest.raises(ApiError) as error:
            await connection.change("PATCH", PATH, b"{}", MERGE_PATCH)
        assert (error.value.status, error.value.message, error.value.retry_after) == (429, "slow down", 7.0)
        assert await connection.get(PATH) == b"{}"

    _, connections = run([failed(429, "slow down", {"Retry-After": "7"}), whole(200, {})], test)
    assert connections == 1


def test_credentials_add_no_lines() -> None:
    async def forged() -> Mapping[str, str]:
        return {"Authorization": "Bearer a\r\nX-Remote-User: admin"}

    async def test(connection: ApiServer) -> None:
        with pytest.raises(NoAnswer, match="line break"):
            await connection.get(PATH)

    assert run([whole(200, {})], test, headers=forged) == ([], 0)


async def test_a_server_that_is_away_is_unreachable() -> None:
    with pytest.raises(NoAnswer, match="GET /x"):
        async with ApiServer("http://127.0.0.1:1", headers=no_headers) as server:
            await server.get("/x")


def pool(server: ApiServer, timeout: float = 60.0) -> ApiServer:
    return ApiServer(server.url, headers=server.headers, timeout=timeout).apart(2)


def test_patches_beside_each_other_take_no_more_connections_than_they_may() -> None:
    most, under_way = 0, 0

    async def slow(request: Request, writer: Writer) -> None:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.02)
        under_way -= 1
        await whole(200, {"of": request.path})(request, writer)

    async def test(connections: ApiServer) -> None:
        bodies = await asyncio.gather(
            *(connections.change("PATCH", f"/x/{number}", b"{}", MERGE_PATCH) for number in range(6))
        )
        assert bodies == [b'{"of": "/x/%d"}' % number for number in range(6)]

    seen, connections = run([slow], test, kept=pool)
    assert (len(seen), connections, most) == (6, 2, 2)


def test_requests_one_after_another_share_one_of_the_connections() -> None:
    async def test(connections: ApiServer) -> None:
        await connections.get(PATH)
        await connections.change("POST", PATH, b"{}")
        await connections.change("PATCH", PATH, b"{}", MERGE_PATCH)

    seen, connections = run([whole(200, {})], test, kept=pool)
    assert ([one.method for one in seen], connections) == (["GET", "POST", "PATCH"], 1)


def test_a_patch_without_an_answer_ends_and_gives_its_connection_back() -> None:
    async def silent(request: Request, writer: Writer) -> None:
        await asyncio.sleep(60)

    async def test(connections: ApiServer) -> None:
        for _ in range(2):  # as many as there are connections
            with pytest.raises(NoAnswer, match="PATCH"):
                await connections.change("PATCH", PATH, b"{}", MERGE_PATCH)
        assert await asyncio.gather(*(connections.change("PATCH", PATH, b"{}", MERGE_PATCH) for _ in range(2))) == [
            b"{}",
            b"{}",
        ]

    # The last two have to be answered in this time.
    run([silent, silent, whole(200, {})], test, kept=partial(pool, timeout=1.0))


def test_a_patch_that_is_given_up_gives_its_connection_back() -> None:
    under_way: list[Request] = []

    async def silent(request: Request, writer: Writer) -> None:
        under_way.append(request)
        await asyncio.sleep(60)

    async def test(connections: ApiServer) -> None:
        asked = [asyncio.create_task(connections.change("PATCH", PATH, b"{}", MERGE_PATCH)) for _ in range(2)]
        await eventually(lambda: len(under_way) == 2)
        for one in asked:
            one.cancel()
        assert await connections.change("PATCH", PATH, b"{}", MERGE_PATCH) == b"{}"

    run([silent, silent, whole(200, {})], test, kept=pool)
