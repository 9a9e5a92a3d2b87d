"""Live updates: events while somebody looks, no work otherwise, and no delay for a shutdown."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from extender.web import site
from tests.waiting import wait_for
from tests.web.page.scene import SETTINGS
from tests.web.page.served import running
from tests.world import World


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(site, "LEAST_SECONDS", 0.3)


@contextmanager
def reader(url: str, query: str = "") -> Iterator[socket.socket]:
    """A stream that is read."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 10) as stream:
        stream.sendall(f"GET /live{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        stream.settimeout(10)
        yield stream


def until(stream: socket.socket, text: bytes) -> bytes:
    said = b""
    while text not in said:
        part = stream.recv(4096)
        assert part, said
        said += part
    return said


def world() -> World:
    made = World(SETTINGS)
    made.node("a", 8)
    return made


def test_a_change_is_told_and_not_too_often() -> None:
    here = world()
    with running(here) as (url, _), reader(url) as stream:
        head = until(stream, b"retry:")
        assert b"text/event-stream" in head
        assert b"no-store" in head
        began = time.monotonic()
        for n in range(20):
            here.node(f"n{n}", 8)
        first = until(stream, b"event: change")
        assert b"data: %d\n" % here.cluster.generation in first
        here.node("other", 8)
        until(stream, b"event: change")
        assert time.monotonic() - began >= 0.6  # twice LEAST_SECONDS


def test_what_has_changed_before_the_stream_is_told_too() -> None:
    here = world()
    with running(here) as (url, _), reader(url, f"?generation={here.cluster.generation - 1}") as stream:
        until(stream, b"event: change")
    with running(here) as (url, _), reader(url, "?generation=%D9%A1") as stream:  # no number: as without one
        until(stream, b"retry:")


def test_a_stream_ends_with_its_reader() -> None:
    """Nothing is done for a page that nobody looks at."""
    with running(world()) as (url, host):
        with reader(url) as stream:
            until(stream, b"retry:")
            assert len(host.server_state.tasks) == 1
        wait_for(lambda: not host.server_state.tasks)


def test_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "MOST_STREAMS", 1)
    with running(world()) as (url, _), reader(url) as first:
        until(first, b"retry:")
        with reader(url) as second:
            assert b" 429 " in until(second, b"\r\n")


def test_a_stream_does_not_last_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "LONGEST_SECONDS", 0.2)
    with running(world()) as (url, _), reader(url) as stream:
        assert until(stream, b"0\r\n\r\n")  # the last chunk


def test_a_shutdown_waits_for_no_stream() -> None:
    with running(world()) as (url, host), reader(url) as stream:
        until(stream, b"retry:")
        host.should_exit = True
        until(stream, b"0\r\n\r\n")  # it ends in order: what uvicorn cuts after 5 s has no last chunk
        wait_for(lambda: not host.server_state.tasks)
