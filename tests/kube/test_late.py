"""Long events about the pods of one namespace take a tenth of the time, and no GPU that is held counts as free."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from extender.kube import reflector
from extender.kube.client import ApiServer
from extender.kube.lists import BUDGETS, PODS
from extender.kube.reflector import LONG_BYTES, Decoder, Reflector
from extender.kube.watching import WatchPace, WatchTiming
from extender.objects import decode
from extender.objects.records import Event, Page, PodRecord
from extender.times import Rests
from tests.kube import hostile
from tests.world import GPU, WALL, workload

SECONDS = 0.05  # that reading a long event takes here


class Watched:
    """A reflector's sink and clock, and the time for which it has read what each namespace wrote."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.pods: dict[tuple[str, str], PodRecord] = {}
        self.read: Counter[str] = Counter()
        line_of = Decoder.line

        def line(decoder: Decoder, text: bytes) -> Any:
            change = line_of(decoder, text)
            if change is not None and len(text) >= LONG_BYTES:
                self.now += SECONDS
                self.read[getattr(change[1], "namespace", "")] += 1
            return change

        monkeypatch.setattr(Decoder, "line", line)
        pace = WatchPace(slice_seconds=1e9)
        timing = WatchTiming(lambda: self.now)
        self.reflector = Reflector(cast(ApiServer, None), PODS, self, frozenset({GPU}), pace, timing)

    def apply(self, batch: Sequence[Event]) -> None:
        for event in batch:
            pod = event.record
            assert isinstance(pod, PodRecord)
            if event.change == "set":
                self.pods[pod.namespace, pod.name] = pod
            else:
                del self.pods[pod.namespace, pod.name]

    def synced(self, kind: str) -> None: ...
    def absent(self, kind: str) -> None: ...
    def returned(self) -> None: ...

    def send(self, *events: tuple[str, dict[str, Any]]) -> None:
        lines = [hostile.line(change, json.dumps(pod).encode()).strip() for change, pod in events]
        asyncio.run(self.reflector._feed.give(self.reflector._changes(lines)))


class Nothing:
    """A sink that is not looked at."""

    def apply(self, batch: Sequence[Event]) -> None: ...
    def synced(self, kind: str) -> None: ...
    def absent(self, kind: str) -> None: ...
    def returned(self) -> None: ...


def long(name: str, version: int, namespace: str = "mallory", size: int = LONG_BYTES, **facts: Any) -> dict[str, Any]:
    pod = workload(name, 1, namespace=namespace, **facts)
    pod["metadata"] |= {"resourceVersion": str(version), "uid": f"{namespace}/{name}"}
    pod["metadata"]["managedFields"] = [{"manager": "x" * size}]
    return pod


def test_one_namespace_takes_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, each of its events was read: the event loop did nothing else."""
    seen = Watched(monkeypatch)
    with capture_logs() as logs:
        for version in range(1000):
            seen.send(("MODIFIED", long(f"p{version % 5}", version)), ("MODIFIED", long("q", version, "alice", size=0)))
            seen.now += 0.01
            assert seen.pods["alice", "q"].resource_version == str(version)
            assert seen.reflector._version == str(version)
    assert seen.read["mallory"] * SECONDS <= 0.1 * seen.now + SECONDS
    assert {name for _, name in seen.pods} == {"p0", "p1", "p2", "p3", "p4", "q"}
    assert len(seen.reflector._late._lines["mallory"]) <= 5
    (line,) = [entry for entry in logs if "long events" in entry["event"]][:1]
    assert line["namespace"] == "mallory"
    assert len(logs) <= 25
    for _ in range(5):
        seen.now += Rests.LONGEST
        seen.send()
    assert {pod.resource_version for key, pod in seen.pods.items() if key[0] == "mallory"} == set(
        map(str, range(995, 1000))
    )
    assert not seen.reflector._late._lines


@pytest.mark.parametrize("deep", [False, True])
def test_where_a_pod_is_does_not_wait(deep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Watched(monkeypatch)

    def send(change: str, pod: dict[str, Any]) -> None:
        item = json.dumps(pod).encode()
        line = hostile.line(change, hostile.deep(pod, 5000) if deep else item).strip()
        asyncio.run(seen.reflector._feed.give(seen.reflector._changes([line])))

    send("ADDED", long("p", 1))
    send("ADDED", long("q", 2))
    assert list(seen.pods) == [("mallory", "p")]
    send("MODIFIED", long("q", 3, node="n"))
    assert seen.pods["mallory", "q"].node == "n"
    assert seen.pods["mallory", "q"].gpu_count == 1
    send("ADDED", long("r", 4, node="n"))
    assert seen.pods["mallory", "r"].node == "n"
    send("MODIFIED", long("q", 5, node="n", annotations={"gpu-extender.io/gang": "g"}))
    assert seen.pods["mallory", "q"].resource_version == "3"
    send("MODIFIED", long("q", 6, node="n", terminating=WALL))
    assert seen.pods["mallory", "q"].terminating
    send("MODIFIED", long("r", 7, node="n", phase="Succeeded"))
    assert seen.pods["mallory", "r"].finished
    send("DELETED", long("q", 8, node="n", terminating=WALL))
    send("DELETED", long("p", 9))
    send("ADDED", long("s", 10))
    send("DELETED", long("s", 11))
    assert list(seen.pods) == [("mallory", "r")]
    seen.now += Rests.LONGEST
    seen.send()
    assert list(seen.pods) == [("mallory", "r")]
    assert not seen.reflector._late._lines


def test_a_pod_without_gpus_that_is_created_on_a_node_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant may create such pods as fast as the API server takes them: each was read at once."""
    seen = Watched(monkeypatch)
    for version in range(100):
        pod = long(f"p{version}", version, node="n")
        pod["spec"]["containers"] = []
        seen.send(("ADDED", pod))
        seen.now += 0.01
    assert seen.read["mallory"] <= 4
    seen.send(("ADDED", long("gpu", 100, node="n")))
    assert seen.pods["mallory", "gpu"].gpu_count == 1
    for _ in range(100):
        seen.now += Rests.LONGEST
        seen.send()
    assert len(seen.pods) == 101
    assert {pod.node for pod in seen.pods.values()} == {"n"}


def test_a_list_is_not_followed_by_what_has_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows each object as it is: what waits is older."""
    seen = Watched(monkeypatch)
    listed = {"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": [long("p", 8)]}

    async def pages(*_: object) -> AsyncGenerator[Page]:
        yield decode.page(json.dumps(listed).encode())

    monkeypatch.setattr(reflector, "pages", pages)
    seen.send(("ADDED", long("p", 1)), ("MODIFIED", long("p", 2)), ("ADDED", long("q", 3)))
    assert seen.pods["mallory", "p"].resource_version == "1"
    asyncio.run(seen.reflector._list())
    seen.now += Rests.LONGEST
    seen.send()
    assert {name: pod.resource_version for (_, name), pod in seen.pods.items()} == {"p": "8"}


@pytest.mark.parametrize("seed", range(20))
def test_random_events(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each pod is equals the truth at any time; all else of it does in the end."""
    chance, seen = random.Random(seed), Watched(monkeypatch)
    truth: dict[tuple[str, str], dict[str, Any]] = {}
    lives: Counter[tuple[str, str]] = Counter()
    for version in range(300):
        key = chance.choice(("mallory", "eve")), chance.choice("abc")
        size = chance.choice((0, LONG_BYTES))
        before = truth.get(key)
        facts: dict[str, Any] = {}
        if before is not None:
            facts = {"node": before["spec"].get("nodeName", ""), "phase": before["status"]["phase"]}
            if "deletionTimestamp" in before["metadata"]:
                facts["terminating"] = WALL
        step = chance.choice(("note", "note", "note", "bind", "end", "terminate", "delete"))
        changes: dict[str, dict[str, Any]] = {
            "bind": {"node": "n"},
            "end": {"phase": "Failed"},
            "terminate": {"terminating": WALL},
        }
        facts |= changes.get(step, {})
        pod = long(key[1], version, key[0], size, annotations={"gpu-extender.io/gang": str(version)}, **facts)
        pod["metadata"]["uid"] += f"/{lives[key]}"
        if step == "delete" and before is not None:
            del truth[key]
            lives[key] += 1
            seen.send(("DELETED", pod))
        elif step != "delete":
            truth[key] = pod
            seen.send(("ADDED" if before is None else "MODIFIED", pod))
        seen.now += chance.choice((0.0, 0.0, 0.1, 1.0))
        for which, is_now in truth.items():
            node, known = is_now["spec"].get("nodeName", ""), seen.pods.get(which)
            assert known is not None or not node
            if known is not None:
                assert known.uid == is_now["metadata"]["uid"]
                assert (known.node, known.finished) == (node, is_now["status"]["phase"] == "Failed")
                assert known.terminating == ("deletionTimestamp" in is_now["metadata"])
        assert seen.pods.keys() <= truth.keys()
        kept = seen.reflector._late._lines
        assert seen.reflector._late._size == sum(len(line) for lines in kept.values() for line in lines.values())
    for _ in range(10):
        seen.now += Rests.LONGEST
        seen.send()
    assert {key: pod.resource_version for key, pod in seen.pods.items()} == {
        key: pod["metadata"]["resourceVersion"] for key, pod in truth.items()
    }
    assert not seen.reflector._late._lines


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of a MB of which nothing is kept as records may be hundreds."""
    monkeypatch.setattr(reflector, "MOST_LATE_BYTES", 10 * LONG_BYTES)
    seen = Watched(monkeypatch)
    for version in range(100):
        seen.send(("MODIFIED", long(f"p{version % 20}", version)))
        assert seen.reflector._late._size <= reflector.MOST_LATE_BYTES
    assert len(seen.pods) >= 11
    seen.reflector._late.clear()
    assert seen.reflector._late._size == 0


def test_the_other_kinds_of_a_tenant_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, 1,000 budgets or Jobs of a MB that change held the event loop as pods did."""
    pods = Watched(monkeypatch)
    timing = WatchTiming(lambda: pods.now, rests=pods.reflector._late._rests)
    pace = WatchPace(slice_seconds=1e9)
    budgets = Reflector(cast(ApiServer, None), BUDGETS, Nothing(), frozenset({GPU}), pace, timing)

    def send(version: int) -> None:
        meta = {"namespace": "mallory", "name": "b", "uid": "b", "resourceVersion": str(version)}
        budget = {
            "metadata": meta | {"managedFields": [{"manager": "x" * LONG_BYTES}]},
            "spec": {"selector": {}},
        }
        lines = [hostile.line("MODIFIED", json.dumps(budget).encode()).strip()]
        asyncio.run(budgets._feed.give(budgets._changes(lines)))

    for version in range(1000):
        send(version)
        pods.send(("MODIFIED", long("p", version)))
        pods.now += 0.01
    assert pods.read["mallory"] * SECONDS <= 0.1 * pods.now + SECONDS
    pods.now += Rests.LONGEST
    asyncio.run(budgets._feed.give(budgets._changes(())))
    known = budgets._feed.known(("mallory", "b"))
    assert known is not None
    assert known.resource_version == "999"
