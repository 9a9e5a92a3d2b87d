"""Objects that no decoder likes: nested deep, of wrong types, cut, and mutated by chance."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from typing import Any

JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 2**31, 2**63, 10**30, -(10**30), "", "x", "1e30", "-5", "9" * 70, "\ud800", "\x00", [], {},
    [None], [[]], [{}], {"": None}, {"a": {"b": [1, "2", None]}}, ["a", 1], "0001-01-01T00:00:00Z", "2026-13-45",
)  # fmt: skip


def nested(depth: int) -> bytes:
    """An object that is nested `depth` levels deep, as managedFields may be."""
    return b'{"f:a":' * depth + b"{}" + b"}" * depth


def deep(item: dict[str, Any], depth: int = 1500) -> bytes:
    """The object with such managedFields, as bytes."""
    meta = item["metadata"] | {"managedFields": [{"manager": "m", "operation": "Update"}]}
    return dumped(item | {"metadata": meta}, "fieldsV1", nested(depth))


def dumped(item: dict[str, Any], key: str, content: bytes) -> bytes:
    """The object with `content` as `key` of its first managedFields: json cannot write what is nested so deep."""
    (entry,) = item["metadata"]["managedFields"]
    meta = item["metadata"] | {"managedFields": [entry | {key: "CONTENT"}]}
    return json.dumps(item | {"metadata": meta}).encode().replace(b'"CONTENT"', content)


def page(*items: bytes, version: str = "10", kind: str = "Pod") -> bytes:
    """A list of these objects."""
    head = json.dumps({"kind": f"{kind}List", "apiVersion": "v1", "metadata": {"resourceVersion": version}})
    return head[:-1].encode() + b',"items":[' + b",".join(items) + b"]}"


def line(change: str, item: bytes) -> bytes:
    """One event of a watch."""
    return b'{"type":"' + change.encode() + b'","object":' + item + b"}\n"


def mutated(item: dict[str, Any], chance: random.Random) -> bytes:
    """The object after one to four changes: a value replaced, a field left out or twice, a list grown; sometimes it is
    nested too deep, or has a byte that is no UTF-8."""
    copy = json.loads(json.dumps(item))
    for _ in range(chance.randint(1, 4)):
        parent: Any = copy
        while True:
            keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
            if not keys:
                break
            key = chance.choice(keys)
            if isinstance(parent[key], (dict, list)) and parent[key] and chance.random() < 0.8:
                parent = parent[key]
                continue
            match chance.randrange(4):
                case 0 if isinstance(parent, dict):
                    del parent[key]
                case 1 if isinstance(parent, list):
                    parent.insert(0, deepcopy(chance.choice(JUNK)))
                case _:
                    parent[key] = deepcopy(chance.choice(JUNK))
            break
    raw = json.dumps(copy).encode()
    match chance.randrange(12):
        case 0:
            return raw[:-1] + (b"," if raw != b"{}" else b"") + b'"zz":' + nested(chance.randint(900, 3000)) + b"}"
        case 1:
            return raw.replace(b'"x"', b'"\xff"')
        case 2:
            return raw[:-1] + (b"," if raw != b"{}" else b"") + b'"metadata":{"name":"twice"}}'
    return raw
