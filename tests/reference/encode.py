"""Twin of `ext_core.encode`: build the dict or list, let orjson write it."""

from collections.abc import Sequence
from typing import Any

import orjson

from ext_core.rows import Rejections

__all__ = ["Heads", "filter_error", "filter_result", "filter_result_nodes", "priorities"]


class Heads:
    """Row -> the node's name."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}

    def set(self, row: int, name: str) -> None:
        name.encode()  # half a surrogate pair is no name
        if row < 0:
            raise ValueError(f"row {row} is negative")
        self.names[row] = name

    def clear(self, row: int) -> None:
        del self.names[row]

    def name(self, row: int) -> str:
        if row not in self.names:
            raise ValueError(f"row {row} has no name")
        return self.names[row]


def filter_result(heads: Heads, passed: Sequence[int], rejections: Rejections) -> bytes:
    failed, unresolvable = maps(heads, rejections)
    return result(None, [heads.name(row) for row in passed], failed, unresolvable, "")


def filter_result_nodes(heads: Heads, body: bytes, ranges: list[tuple[int, int]], rejections: Rejections) -> bytes:
    if not all(0 <= start < end <= len(body) for start, end in ranges):
        raise ValueError("a range is empty or not inside the body")
    failed, unresolvable = maps(heads, rejections)
    nodes = {"metadata": {}, "items": [orjson.Fragment(body[start:end]) for start, end in ranges]}
    return result(nodes, None, failed, unresolvable, "")


def filter_error(message: str) -> bytes:
    if not message:
        raise ValueError("an error must have a message")
    return result(None, None, {}, {}, message.encode("utf-8", "replace").decode())


def priorities(heads: Heads, rows: Sequence[int], points: Sequence[int], unknown: list[str]) -> bytes:
    scored = [(heads.name(row), point) for row, point in zip(rows, points, strict=True)]
    return orjson.dumps([{"Host": name, "Score": point} for name, point in [*scored, *((name, 0) for name in unknown)]])


def result(
    nodes: Any, names: list[str] | None, failed: dict[str, str], unresolvable: dict[str, str], error: str
) -> bytes:
    return orjson.dumps(
        {
            "Nodes": nodes,
            "NodeNames": names,
            "FailedNodes": failed,
            "FailedAndUnresolvableNodes": unresolvable,
            "Error": error,
        }
    )


def maps(heads: Heads, rejections: Rejections) -> tuple[dict[str, str], dict[str, str]]:
    texts = rejections.texts

    def reason(code: int) -> str:
        if not 0 <= code < min(len(texts), 256):
            raise ValueError(f"code {code} has no text")
        return texts[code]

    def by_name(rejected: tuple[Sequence[int], Sequence[int]]) -> dict[str, str]:
        return {heads.name(row): reason(code) for row, code in zip(*rejected, strict=True)}

    unknown = {name: reason(code) for name, code in rejections.unknown}
    return by_name(rejections.failed), by_name(rejections.unresolvable) | unknown
