"""What the tests ask with: objects as a file states them, the pages of a server, and the findings of an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from extender.ask import frozen
from extender.objects.records import Event
from tests.world import GPU, JSON, World

GPUS = frozenset({GPU})


def raw(items: Iterable[JSON]) -> bytes:
    """A Kubernetes List of the objects."""
    return json.dumps({"kind": "List", "apiVersion": "v1", "items": list(items)}).encode()


def events(items: Iterable[JSON], gpus: frozenset[str] = GPUS) -> list[Event]:
    """The objects as the commands read them."""
    return frozen.parse(raw(items), gpus)


def file(folder: Path, items: Iterable[JSON], name: str = "cluster.json") -> str:
    """The path of a new file of the objects."""
    path = folder / name
    path.write_bytes(raw(items))
    return str(path)


def page(world: World, path: str) -> JSON:
    """The JSON object at a path."""
    reply = world.call(path, method="GET")
    assert reply.status == 200, reply.body
    shown: JSON = reply.json
    return shown


def explained(world: World, pod: str = "default/p") -> JSON:
    """The verdict of the server on a pod."""
    return page(world, f"/debug/explain?pod={pod}")


def findings(answer: JSON, code: str) -> list[JSON]:
    """The findings of one code."""
    return [one for one in answer["findings"] if one["code"] == code]
