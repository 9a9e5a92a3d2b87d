"""Plays steps against the server: objects that the watch brings, time that passes, requests and their answers.

This file is the only one here that touches `tests.world`. A step is a JSON object of one of two kinds:

- a change: {"at", "set" or "delete": kind, "object": Kubernetes JSON}
- a request: {"at", "verb", "body", "status", "answer", "written", "result", "reasons"}

`at` is seconds since the start of the recording. `written` has the annotations that bind writes with the Binding.
`result` and `reasons` (key -> number of nodes) are what /debug/decisions said of it; they explain a step and are not
compared.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from extender.cluster.cluster import Cluster
from extender.decide.decisions import Written
from extender.server import calls
from extender.settings import Settings
from tests.world import JSON, World, logged

RECORDED = Path(__file__).parent / "recorded"
REASONS = (b'"FailedNodes"', b'"FailedAndUnresolvableNodes"')
ERROR = b'"Error"'
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]')


class Binder(calls.Binder):
    """Accepts every Binding, and keeps the annotations of each."""

    def __init__(self) -> None:
        self.written: list[dict[str, str]] = []

    async def pod(self, namespace: str, name: str) -> None:
        """The watch has brought all pods: no other pod exists."""

    async def bind(self, binding: object, annotations: Mapping[str, str]) -> Written:
        """Accepts the Binding."""
        self.written.append(dict(annotations))
        return Written("bound")


class Player:
    """A server over an empty cluster. `settings`: as in the settings file, in JSON; `cluster`: a cluster of these
    settings, None: a plain one."""

    def __init__(self, settings: JSON, cluster: Cluster | None = None) -> None:
        self._binder = Binder()
        self._world = World(Settings.model_validate_json(json.dumps(settings)), binder=self._binder, cluster=cluster)
        self._start = self._world.now, self._world.wall

    def at(self, seconds: float) -> None:
        """Sets the clocks: seconds since the start."""
        self._world.now, self._world.wall = (clock + seconds for clock in self._start)

    def change(self, step: JSON) -> None:
        """Applies a change as the watch brings it."""
        self.at(step["at"])
        if "set" in step:
            self._world.set(step["set"], step["object"])
        else:
            self._world.drop(step["delete"], step["object"])

    def ask(self, step: JSON) -> JSON:
        """Sends a request. Returns what the server answers: status, answer, written."""
        self.at(step["at"])
        before = len(self._binder.written)
        with logged():  # no lines to print
            reply = self._world.call(f"/v1/{step['verb']}", step["body"].encode())
        written = self._binder.written[before:]
        return {"status": reply.status, "answer": reply.body.decode(), "written": written}


def mask(answer: bytes) -> bytes:
    """The answer with each reason and error text replaced by the number of the text: 1 for the first, 2 for the next.

    Equal texts have equal numbers. All other bytes stay, an empty text too.
    """
    numbers: dict[bytes, int] = {}
    made: list[bytes] = []
    at = depth = 0
    key = b""  # the key at depth 1 that the current token belongs to
    for token in _TOKEN.finditer(answer):
        text = token[0]
        if text in b"{[":
            depth += 1
        elif text in b"}]":
            depth -= 1
        elif answer[token.end() : token.end() + 1] == b":":
            key = text if depth == 1 else key
        elif text != b'""' and ((depth == 2 and key in REASONS) or (depth == 1 and key == ERROR)):
            number = numbers.setdefault(text, len(numbers) + 1)
            made += [answer[at : token.start()], b'"text %d"' % number]
            at = token.end()
    return b"".join([*made, answer[at:]])


def differences(settings: JSON, steps: list[JSON], accept: Callable[[JSON, JSON], None]) -> None:
    """Replays the steps, and passes each request whose answer differs to `accept`, with what is answered now."""
    player = Player(settings)
    for step in steps:
        if "verb" not in step:
            player.change(step)
            continue
        now = player.ask(step)
        same = now["status"] == step["status"] and now["written"] == step["written"]
        if not same or mask(now["answer"].encode()) != mask(step["answer"].encode()):
            accept(step, now)


def names() -> list[str]:
    """The names of all recordings."""
    return sorted(path.name.removesuffix(".json.gz") for path in RECORDED.glob("*.json.gz"))


def read(name: str) -> tuple[JSON, list[JSON]]:
    """A recording: settings and steps."""
    whole = json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))
    return whole["settings"], whole["steps"]


def write(name: str, settings: JSON, steps: list[JSON]) -> None:
    """Writes a recording; equal steps give equal files."""
    text = json.dumps({"settings": settings, "steps": steps}, separators=(",", ":"), ensure_ascii=False)
    (RECORDED / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
