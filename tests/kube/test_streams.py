"""The connection of a watch: bursts, silence, back pressure, and what becomes of it when the server gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
import uvloop

from extender.kube import client
from extender.kube.client import STREAM_BUFFER, ApiError, ApiServer, NoAnswer, Silent, Stream, Transport
from tests.kube.api_server import Answer, Request, Script, Writer, failed, hung_up, no_headers, serving, watched, whole

PATH = "/api/v1/pods"
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
Loop = Callable[[], asyncio.AbstractEventLoop]


def run(
    answers: Sequence[Answer],
    test: Callable[[ApiServer], Awaitable[None]],
    *,
    loop: Loop = asyncio.new_event_loop,
    prefix: str = "",
    headers: Callable[[], Awaitable[Mapping[str, str]]] = no_headers,
) -> tuple[list[Request], int]:
    """The requests that the server saw, and how many connections they came on."""
    writers = set[int]()

    def counted(answer: Answer) -> Answer:
        async def send(request: Request, writer: Writer) -> None:
            writers.add(writer.get_extra_info("peername")[1])
            await answer(request, writer)

        return send

    script = Script([counted(answer) for answer in answers])

    async def whole_test() -> None:
        async with serving(script) as url, ApiServer(url + prefix, headers=headers) as server:
            await test(server)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(whole_test())
    return script.requests, len(writers)


@asynccontextmanager
async def opened(server: ApiServer, inactivity: float = 10.0) -> AsyncIterator[Stream]:
    async with server.stream(PATH, {"watch": "1", "fieldSelector": "a!=b,c=d"}, inactivity=inactivity) as stream:
        yield stream


async def read(server: ApiServer, inactivity: float = 10.0) -> bytes:
    async with opened(server, inactivity) as (chunks, _):
        return b"".join([chunk async for chunk in chunks])


def raw(*pieces: bytes, close: bool = False) -> Answer:
    """These bytes and nothing else."""

    async def answer(request: Request, writer: Writer) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.005)
        if close:
            writer.close()

    return answer


@pytest.mark.parametrize("loop", LOOPS)
def test_watches_one_after_the_other_share_a_connection(loop: Loop) -> None:
    async def test(server: ApiServer) -> None:
        assert await read(server) == b'{"a": 1}\n{"b": 2}\n'
        assert await read(server) == b""

    async def token() -> Mapping[str, str]:
        return {"Authorization": "Bearer t"}

    seen, connections = run(
        [watched(b'{"a": 1}\n{"b"', b": 2}\n"), watched()], test, loop=loop, prefix="/k8s/clusters/c", headers=token
    )
    assert connections == 1
    assert [one.method for one in seen] == ["GET", "GET"]
    assert {one.path for one in seen} == {"/k8s/clusters/c" + PATH}
    assert seen[0].params == {"watch": "1", "fieldSelector": "a!=b,c=d"}
    assert seen[0].headers["authorization"] == "Bearer t"
    assert seen[0].headers["accept"] == "application/json"
    assert seen[0].headers["accept-encoding"] == "identity"  # nothing compressed is asked for


@pytest.mark.parametrize("loop", LOOPS)
def test_a_burst_comes_as_one_piece(loop: Loop) -> None:
    """However many chunks it has: one wake-up of the reader."""
    events = [b'{"event": %d}\n' % number for number in range(50)]
    burst = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)

    async def test(server: ApiServer) -> None:
        async with opened(server) as (chunks, _):
            assert await anext(chunks) == b"".join(events)

    run([raw(HEAD, burst)], test, loop=loop)


def test_an_answer_may_end_with_its_connection() -> None:
    """As one of an HTTP/1.0 proxy does."""

    async def test(server: ApiServer) -> None:
        assert await read(server) == b"abc"
        assert await read(server) == b""

    _, connections = run([raw(b"HTTP/1.0 200 OK\r\n\r\na", b"bc", close=True), watched()], test)
    assert connections == 2


def test_an_answer_of_1xx_is_none_yet() -> None:
    async def test(server: ApiServer) -> None:
        assert await read(server) == b"a"

    run([raw(b"HTTP/1.1 103 Early Hints\r\n\r\n", HEAD + b"1\r\na\r\n", b"0\r\n\r\n")], test)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_connection_that_was_closed_meanwhile_is_replaced_once(loop: Loop) -> None:
    async def test(server: ApiServer) -> None:
        await read(server)
        assert await read(server) == b"a"
        with pytest.raises(NoAnswer, match=f"GET {PATH}"):
            await read(server)

    answers = [watched(), hung_up(), watched(b"a"), hung_up(), hung_up()]
    _, connections = run(answers, test, loop=loop)
    assert connections == 3


def test_a_server_that_keeps_no_connection_gets_a_new_one_each_time() -> None:
    async def test(server: ApiServer) -> None:
        assert await read(server) == b"{}"
        assert await read(server) == b"{}"

    _, connections = run([whole(200, {}, {"Connection": "close"})], test)
    assert connections == 2


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        (hung_up(), 2),  # no answer has begun: it is asked once more
        (hung_up(b"HTTP/1.1 200 OK\r\nTransfer-Enc"), 2),
        (hung_up(b"SSH-2.0-x\r\n\r\n"), 1),
        (hung_up(HEAD + b"zz\r\n"), 1),
        (hung_up(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), 1),
    ],
)
def test_a_broken_answer_is_none(answer: Answer, asked: int) -> None:
    async def test(server: ApiServer) -> None:
        with pytest.raises(NoAnswer, match=f"GET {PATH}") as caught:
            await read(server)
        assert not isinstance(caught.value, Silent)
        assert await read(server) == b"a"

    run([*[answer] * asked, watched(b"a")], test)


def test_an_error_has_its_status_and_leaves_the_connection_open() -> None:
    async def test(server: ApiServer) -> None:
        with pytest.raises(ApiError) as caught:
            await read(server)
        assert (caught.value.status, caught.value.message, caught.value.retry_after) == (429, "slow down", 7.0)
        with pytest.raises(ApiError, match="410: too old"):
            await read(server)
        with pytest.raises(ApiError, match="302"):
            await read(server)
        assert await read(server) == b"a"

    answers = [failed(429, "slow down", {"Retry-After": "7"}), failed(410, "too old"),
               whole(302, b"", {"Location": "/elsewhere"}), watched(b"a")]  # fmt: skip
    _, connections = run(answers, test)
    assert connections == 1


def test_the_body_of_an_error_is_not_read_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_LONGEST_ERROR", 1000)

    async def endless(request: Request, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0)

    async def test(server: ApiServer) -> None:
        with pytest.raises(ApiError, match="500: xxx"):
            await read(server)
        assert await read(server) == b"a"

    _, connections = run([endless, watched(b"a")], test)
    assert connections == 2


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("answer", [watched(b"a", end="silence"), raw(b"HTTP/1.1 200 OK\r\n")])
def test_silence_is_a_dead_connection(answer: Answer, loop: Loop) -> None:
    async def test(server: ApiServer) -> None:
        began = asyncio.get_running_loop().time()
        with pytest.raises(Silent, match=f"GET {PATH}"):
            await read(server, 0.2)
        assert asyncio.get_running_loop().time() - began > 0.19

    run([answer], test, loop=loop)


def test_each_part_begins_the_time_of_silence_anew() -> None:
    async def slow(request: Request, writer: Writer) -> None:
        writer.write(HEAD)
        for _ in range(8):
            writer.write(b"1\r\na\r\n")
            await asyncio.sleep(0.2)
        writer.write(b"0\r\n\r\n")

    async def test(server: ApiServer) -> None:
        assert await read(server, 1.5) == b"a" * 8

    run([slow], test)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_reader_that_is_behind_makes_the_server_wait_and_hears_no_silence(loop: Loop) -> None:
    size, sent = 100_000, 0
    parts = 400  # 40 MB: more than the sockets of both sides buffer

    async def flood(request: Request, writer: Writer) -> None:
        nonlocal sent
        writer.write(HEAD)
        for _ in range(parts):
            writer.write(b"%x\r\n%s\r\n" % (size, b"x" * size))
            await writer.drain()
            sent += size
        writer.write(b"0\r\n\r\n")

    async def test(server: ApiServer) -> None:
        async with opened(server, 0.2) as (chunks, _):
            got = len(await anext(chunks))
            await asyncio.sleep(0.6)
            held = len(await anext(chunks))
            assert STREAM_BUFFER <= held <= 3 * STREAM_BUFFER
            assert sent < size * parts // 2
            got += held
            async for chunk in chunks:
                got += len(chunk)
        assert got == size * parts

    run([flood], test, loop=loop)


def test_a_watch_that_is_dropped_ends_at_once() -> None:
    async def test(server: ApiServer) -> None:
        async def dropped() -> None:
            async with opened(server) as (chunks, drop):
                drops.append(drop)
                assert await anext(chunks) == b"a"
                asyncio.get_running_loop().call_later(0.02, drop)
                await anext(chunks)

        drops: list[Callable[[], None]] = []
        with pytest.raises(NoAnswer, match=f"GET {PATH}"):
            await dropped()
        drops[0]()  # it has ended
        assert await read(server) == b"b"

    _, connections = run([watched(b"a", end="silence"), watched(b"b")], test)
    assert connections == 2


@pytest.mark.parametrize("how", ["leave", "cancel"])
def test_a_watch_that_is_left_ends_its_connection(how: str) -> None:
    async def test(server: ApiServer) -> None:
        has_begun = asyncio.Event()

        async def leave() -> None:
            async with opened(server) as (chunks, _):
                await anext(chunks)
                has_begun.set()
                if how == "cancel":
                    await anext(chunks)

        task = asyncio.create_task(leave())
        await has_begun.wait()
        if how == "leave":
            await task
        else:
            await asyncio.wait([task], timeout=0.05)  # in this time nothing comes
            assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        assert await read(server) == b"b"

    _, connections = run([watched(b"a", end="silence"), watched(b"b")], test)
    assert connections == 2


def test_credentials_are_fresh_and_add_no_lines() -> None:
    tokens = iter(["first", "second"])

    async def token() -> Mapping[str, str]:
        return {"Authorization": f"Bearer {next(tokens)}"}

    async def twice(server: ApiServer) -> None:
        await read(server)
        await read(server)

    seen, _ = run([watched()], twice, headers=token)
    assert [one.headers["authorization"] for one in seen] == ["Bearer first", "Bearer second"]

    async def forged() -> Mapping[str, str]:
        return {"Authorization": "Bearer a\r\nX-Remote-User: admin"}

    async def once(server: ApiServer) -> None:
        with pytest.raises(NoAnswer, match="line break"):
            await read(server)

    assert run([watched()], once, headers=forged) == ([], 0)


async def test_a_server_that_is_away_is_unreachable() -> None:
    with pytest.raises(NoAnswer, match=f"GET {PATH}"):
        async with ApiServer("http://127.0.0.1:1", headers=no_headers) as server:
            await read(server)


def test_the_next_address_is_tried_when_one_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control plane behind one name has several, and one of them may be away."""

    async def test(server: ApiServer) -> None:
        loop = asyncio.get_running_loop()
        right = loop.getaddrinfo

        async def two(host: str, port: int, **more: int) -> object:
            found = await right(host, port, **more)
            return [(*found[0][:4], ("127.0.0.2", 1)), *found]

        monkeypatch.setattr(loop, "getaddrinfo", two)
        assert await read(server) == b"a"

    run([watched(b"a")], test)


async def test_a_proxy_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy here is a server that answers whatever it is asked, by the whole URL."""
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    script = Script([watched(b"a")])
    async with (
        serving(script) as proxy,
        ApiServer("http://api.example", headers=no_headers, transport=Transport(proxy=proxy)) as server,
    ):
        assert await read(server) == b"a"
    assert script.requests[0].headers["host"] == "api.example"
