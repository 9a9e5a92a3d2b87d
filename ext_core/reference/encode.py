"""The slow, obvious twin of ext_core.encode: build the dict or list, let orjson write it."""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

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


def filter_result(
    heads: Heads,
    passed: Sequence[int],
    failed_rows: Sequence[int],
    failed_codes: Sequence[int],
    unresolvable_rows: Sequence[int],
    unresolvable_codes: Sequence[int],
    texts: list[str],
    unknown: list[tuple[str, int]],
) -> bytes:
    failed, unresolvable = maps(heads, failed_rows, failed_codes, unresolvable_rows, unresolvable_codes, texts, unknown)
    return result(None, [heads.name(row) for row in passed], failed, unresolvable, "")


def filter_result_nodes(
    heads: Heads,
    body: bytes,
    ranges: list[tuple[int, int]],
    failed_rows: Sequence[int],
    failed_codes: Sequence[int],
    unresolvable_rows: Sequence[int],
    unresolvable_codes: Sequence[int],
    texts: list[str],
    unknown: list[tuple[str, int]],
) -> bytes:
    if not all(0 <= start < end <= len(body) for start, end in ranges):
        raise ValueError("a range is empty or not inside the body")
    failed, unresolvable = maps(heads, failed_rows, failed_codes, unresolvable_rows, unresolvable_codes, texts, unknown)
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


def maps(
    heads: Heads,
    failed_rows: Iterable[int],
    failed_codes: Iterable[int],
    unresolvable_rows: Iterable[int],
    unresolvable_codes: Iterable[int],
    texts: list[str],
    unknown: list[tuple[str, int]],
) -> tuple[dict[str, str], dict[str, str]]:
    def reason(code: int) -> str:
        if not 0 <= code < min(len(texts), 256):
            raise ValueError(f"code {code} has no text")
        return texts[code]

    failed = {heads.name(row): reason(code) for row, code in zip(failed_rows, failed_codes, strict=True)}
    rest = {heads.name(row): reason(code) for row, code in zip(unresolvable_rows, unresolvable_codes, strict=True)}
    return failed, rest | {name: reason(code) for name, code in unknown}
