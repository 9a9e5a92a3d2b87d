"""Bindings: what is sent, what each answer means, and in which order those of one node reach the API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import pytest

from extender.kube import pod_writes
from extender.kube.client import ApiError, NoAnswer
from extender.kube.pod_writes import Bindings, BindResult, Turns
from tests.kube.api_server import Answer, Script, client_of, failed, hung_up, watched, whole
from tests.waiting import run_bounded

T = TypeVar("T")


def asked(answer: Answer, ask: Callable[[Bindings], Awaitable[T]], timeout: float = 5) -> tuple[T, Script]:
    """What came of one call to a server that answers so."""
    script = Script([answer])

    async def headers() -> Mapping[str, str]:
        return {"Authorization": "Bearer t"}

    async def run() -> T:
        async with client_of(script, headers=headers, timeout=timeout) as server:
            return await ask(Bindings(server, frozenset({"nvidia.com/gpu"})))

    return run_bounded(run()), script


def bound(answer: Answer, timeout: float = 5) -> tuple[BindResult, Script]:
    return asked(answer, lambda it: it.bind("ns", "p", "u-1", "n1", {"gpu-extender.io/gpus": "0,3"}), timeout)


def test_a_binding_names_the_uid_the_node_and_the_plan() -> None:
    result, script = bound(whole(201, {"kind": "Status", "status": "Success"}))
    assert result == BindResult("bound")
    (request,) = script.requests
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/ns/pods/p/binding")
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == "Bearer t"
    assert json.loads(request.body) == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "ns", "uid": "u-1", "annotations": {"gpu-extender.io/gpus": "0,3"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (failed(409, "already assigned"), BindResult("conflict", "409: already assigned")),
        (failed(404, "no such pod"), BindResult("not-found", "404: no such pod")),
        (failed(403, "forbidden"), BindResult("refused", "403: forbidden")),
        (failed(500, "etcd"), BindResult("unknown", "500: etcd")),
        (whole(502, b"<html>bad gateway"), BindResult("unknown", "502: <html>bad gateway")),
        (failed(302, "elsewhere"), BindResult("refused", "302: elsewhere")),
    ],
)
def test_refusals(answer: Answer, result: BindResult) -> None:
    assert bound(answer)[0] == result


@pytest.mark.parametrize("answer", [hung_up(), watched(end="silence"), hung_up(b"HTTP/1.1 201 Created\r\nContent-Le")])
def test_no_answer_is_unknown_and_is_not_asked_twice(answer: Answer) -> None:
    result, script = bound(answer, timeout=0.2)
    assert result.outcome == "unknown"
    assert result.message
    assert len(script.requests) == 1


def test_names_cannot_leave_their_place_in_the_path() -> None:
    _, script = asked(whole(201, {}), lambda it: it.bind("a/b", "../c?d#e%2f", "u", "n", {}))
    assert script.requests[0].path == "/api/v1/namespaces/a%2Fb/pods/..%2Fc%3Fd%23e%252f/binding"


def test_get_pod() -> None:
    pod, script = asked(
        whole(200, {"metadata": {"name": "p", "namespace": "ns"}, "spec": {"nodeName": "n"}}),
        lambda it: it.get_pod("ns", "p"),
    )
    assert pod is not None
    assert pod.node == "n"
    assert script.requests[0].path == "/api/v1/namespaces/ns/pods/p"
    assert asked(failed(404), lambda it: it.get_pod("ns", "p"))[0] is None
    with pytest.raises(ApiError, match="403"):
        asked(failed(403), lambda it: it.get_pod("ns", "p"))
    with pytest.raises(NoAnswer):
        asked(hung_up(), lambda it: it.get_pod("ns", "p"))


# -- the order


class Writes:
    """Asks for Bindings by name. Each is written until it is told to end."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, name: str, *, node: str = "n", first: bool = False) -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._write(name, node, first))
        await settle()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]
        await settle()

    async def _write(self, name: str, node: str, first: bool) -> None:
        async with self.turns.of(node, first=first):
            self.begun.append(name)
            await self._ends[name].wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(test: Callable[[Writes], Awaitable[None]]) -> None:
    async def whole() -> None:
        writes = Writes()
        await test(writes)
        assert not writes.turns._open  # nothing is kept of what has ended

    run_bounded(whole())


def test_no_later_one_overtakes_a_first_one() -> None:
    async def test(writes: Writes) -> None:
        await writes.ask("before")
        await writes.ask("linked", first=True)  # counted `before` as if it took any GPU: it need not wait
        await writes.ask("later")
        await writes.ask("elsewhere", node="m")
        assert writes.begun == ["before", "linked", "elsewhere"]
        await writes.end("linked")
        assert writes.begun[-1] == "later"
        for name in ("before", "later", "elsewhere"):
            await writes.end(name)

    run(test)


def test_first_ones_come_one_after_the_other() -> None:
    async def test(writes: Writes) -> None:
        for name in "abc":
            await writes.ask(name, first=True)
        await writes.ask("last")
        for name in "abc":
            assert writes.begun[-1] == name
            await writes.end(name)
        assert writes.begun == ["a", "b", "c", "last"]
        await writes.end("last")

    run(test)


def test_who_waits_too_long_gives_up_and_lets_nobody_overtake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_writes, "LONGEST_TURN", 0.05)

    async def test(writes: Writes) -> None:
        await writes.ask("slow", first=True)
        await writes.ask("second", first=True)
        with pytest.raises(TimeoutError):
            await writes.end("second")
        await writes.ask("third")
        assert writes.begun == ["slow"]  # `second` was never written: `third` still waits for `slow`
        await writes.end("slow")
        await writes.end("third")
        assert writes.begun == ["slow", "third"]

    run(test)
