"""The small client of the API server, against one that misbehaves."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from extender.errors import BadInput, Unreachable
from extender.node.apiserver import ApiEndpoint, Refused, Timing, Watch, node_path
from tests.e2e.device_manager import pod
from tests.node.fake_api import FakeApi
from tests.waiting import wait_for


class Seen:
    """What a watch told: uid -> object."""

    def __init__(self, api: FakeApi, timing: Timing | None = None) -> None:
        self.pods: dict[str, Any] = {}
        self.said: list[str] = []
        self.lists = 0
        self.puts: list[str] = []
        self.watch = Watch(
            ApiEndpoint(api.url), "/api/v1/pods", {"fieldSelector": "spec.nodeName=n"},
            self, say=self.said.append, timing=timing,
        )  # fmt: skip

    def replace(self, items: list[Any]) -> None:
        self.lists += 1
        self.pods = {item["metadata"]["uid"]: item for item in items}

    def put(self, item: Any) -> None:
        self.puts.append(item["metadata"]["uid"])
        self.pods[item["metadata"]["uid"]] = item

    def drop(self, uid: str) -> None:
        del self.pods[uid]


def test_a_watch_follows() -> None:
    with FakeApi() as api:
        api.put("pods", pod("a"))
        seen = Seen(api)
        seen.watch.start()
        wait_for(lambda: set(seen.pods) == {"a"})
        api.put("pods", pod("b"))
        api.drop("pods", "a")
        wait_for(lambda: set(seen.pods) == {"b"})
        assert "fieldSelector=spec.nodeName%3Dn" in api.requests[0][2]
        api.forget()
        api.put("pods", pod("c"))
        wait_for(lambda: set(seen.pods) == {"b", "c"})
        assert seen.lists == 2
        api.down, asked = True, len(api.requests)
        wait_for(lambda: len(api.requests) > asked)  # the watch has ended, and what follows is refused
        api.put("pods", pod("d"))
        api.down = False
        wait_for(lambda: set(seen.pods) == {"b", "c", "d"})
        seen.watch.stop()
        wait_for(lambda: not seen.watch.alive)


def test_a_stream_that_the_server_closes_is_not_repeated_without_a_pause() -> None:
    """The pauses double up to 5 s, less a random half, and follow each other request by request. A stream that lived
    for 5 s ends the row: after its agreed end the next one follows at once."""
    now, pauses = [0.0], list[float]()

    def pause(stopping: threading.Event, seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds
        if len(pauses) == 20:
            api.closing = False
        time.sleep(0.001)

    with FakeApi() as api:
        api.closing = True
        seen = Seen(api, Timing(clock=lambda: now[0], chance=random.Random(1), pause=pause))
        seen.watch.start()
        wait_for(lambda: len(pauses) == 20)
        for failures, seconds in enumerate(pauses, 1):
            whole = min(0.1 * 2 ** (failures - 1), 5.0)
            assert whole / 2 <= seconds <= whole
        assert len(set(pauses)) == 20  # the same on no two nodes
        wait_for(lambda: len(api.requests) == 22)  # the list, and 21 streams
        now[0] += 300
        api.closing = True
        wait_for(lambda: len(pauses) >= 21)
        assert len(api.requests) >= 23  # at once, and that one is closed too early again
        assert pauses[20] <= 0.1
        assert seen.lists == 1
        assert "the API server ended the watch after 0.0 s; once more in" in seen.said[0]
        seen.watch.stop()
        wait_for(lambda: not seen.watch.alive)


def test_a_pod_that_cannot_be_read_hides_no_other() -> None:
    """One is nested too deep, in the list and in the watch; of one the reader raises: the others are there."""
    with FakeApi() as api:
        for name in ("a", "b"):
            api.put("pods", pod(name) | {"status": {"deep": "DEEP"}})
        seen = Seen(api)
        seen.watch.start()
        wait_for(lambda: set(seen.pods) == {"a", "b"})
        api.put("pods", pod("c") | {"status": {"deep": "DEEP"}})
        wait_for(lambda: set(seen.pods) == {"a", "b", "c"})
        assert seen.watch.restarts == 0
        seen.pods["gone"] = seen.pods.pop("c")
        api.drop("pods", "c")  # KeyError: a defect
        wait_for(lambda: seen.watch.restarts == 1)
        api.put("pods", pod("d"))
        wait_for(lambda: set(seen.pods) == {"a", "b", "d"})
        seen.watch.stop()


def test_a_look_is_newer_than_what_the_watch_brings_later() -> None:
    """The watch is held back; a GET tells of the end of a pod; the watch must not bring it back to life."""
    with FakeApi() as api:
        seen = Seen(api)
        seen.watch.start()
        wait_for(seen.watch.synced.is_set)
        api.held_back = True
        api.put("pods", pod("a"))
        api.put("pods", pod("b"))
        api.drop("pods", "a")
        assert seen.watch.look(5)
        assert set(seen.pods) == {"b"}
        api.release()
        api.put("pods", pod("c"))
        wait_for(lambda: set(seen.pods) == {"b", "c"})
        assert seen.puts == ["c"]
        seen.watch.stop()


def test_a_look_ends_in_time() -> None:
    with FakeApi() as api:
        seen = Seen(api)
        api.slow = 60
        begun = time.monotonic()
        assert not seen.watch.look(0.2)
        assert time.monotonic() - begun < 30  # the limit is the subject: 0.2 s, not 60 s
        assert seen.said


def test_errors_say_why() -> None:
    with FakeApi() as api:
        with pytest.raises(Refused, match="404: not found"):
            ApiEndpoint(api.url).get(node_path("nobody"))
        url = api.url
    with pytest.raises(Unreachable):
        ApiEndpoint(url).get(node_path("nobody"), timeout=1)


def test_the_token_is_read_for_each_request(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    server = ApiEndpoint("http://127.0.0.1:1", token)
    assert server.headers()["Authorization"] == "Bearer one"
    token.write_text("two")
    assert server.headers()["Authorization"] == "Bearer two"
    token.unlink()
    with pytest.raises(Unreachable, match="no token"):
        server.headers()


def test_as_a_pod(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        ApiEndpoint.of_pod(tmp_path, {})
    (tmp_path / "token").write_text("t")
    assert ApiEndpoint.of_pod(tmp_path, {"KUBERNETES_SERVICE_HOST": "fd00::1"}).url == "https://[fd00::1]:443"


def test_threads_end(tmp_path: Path) -> None:
    before = threading.active_count()
    with FakeApi() as api:
        seen = Seen(api)
        seen.watch.start()
        wait_for(seen.watch.synced.is_set)
        seen.watch.stop()
        wait_for(lambda: not seen.watch.alive)
    wait_for(lambda: threading.active_count() <= before + 1)
