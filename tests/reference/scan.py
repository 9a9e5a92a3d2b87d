"""Twin of `ext_core.scan` and `ext_core.name_index`: a JSON decoder finds where values end, a dict is the index.

The body is read as Latin-1, one character a byte, so that the decoder's positions are byte offsets.
"""

import json
import re
from array import array
from typing import Any, NoReturn

import orjson

from ext_core.scan import ScanError

__all__ = ["NameIndex", "ScanError", "items", "node_name", "rows", "split", "split_names", "split_offers"]

SPACE = " \t\n\r"
STRING = rb'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"'


class NameIndex:
    """Node name -> row."""

    def __init__(self) -> None:
        self.known: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.known)

    def add(self, name: str, row: int) -> None:
        key = name.encode()
        if row < 0:
            raise ValueError(f"row {row} is negative")
        if key in self.known:
            raise ValueError(f"{name!r} is in the table already")
        self.known[key] = row

    def remove(self, name: str) -> None:
        del self.known[name.encode()]

    def get(self, name: str) -> int:
        return self.known.get(name.encode(), -1)

    def rows(self, names: list[str]) -> "array[int]":
        return array("i", [row for row in map(self.get, names) if row >= 0])


def split(body: bytes, max_depth: int = 200) -> dict[str, tuple[int, int]]:
    return members(body, 0, len(body), max_depth)


def items(body: bytes, start: int, end: int, max_depth: int = 200) -> list[tuple[int, int]]:
    node_list = members(body, start, end, max_depth)
    if "items" not in node_list:
        raise ScanError(start, "a NodeList must have 'items'")
    start, end = node_list["items"]
    nodes = decode(body[start:end], start)
    if nodes is None:
        return []
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise ScanError(start, "'items' must be an array of objects")
    text, at, found = body.decode("latin-1"), start + 1, []
    for _ in nodes:
        at = skip(text, at, end, SPACE + ",")
        behind = value_end(text[:end], at)
        decodable(body[at:behind], at)
        found.append((at, behind))
        at = behind
    return found


def node_name(body: bytes, start: int, end: int, max_depth: int = 200) -> str:
    for key in ("metadata", "name"):
        parts = members(body, start, end, max_depth)
        if key not in parts:
            raise ScanError(start, f"no {key!r}")
        start, end = parts[key]
    name = text_of(body[start:end], start)
    if not isinstance(name, str):
        raise ScanError(start, "'metadata.name' must be a string")
    within_length([name], start)
    return name


def identity(body: bytes, start: int, end: int) -> tuple[str, str, str] | None:
    within(body, start, end)
    texts: dict[str, str] = {"nominatedNodeName": ""}
    try:
        pod = plainly(body, start, end, ("metadata", "status"))
        if pod is None or "metadata" not in pod:
            return None
        for part, keys in (("metadata", ("uid", "resourceVersion")), ("status", ("nominatedNodeName",))):
            found = plainly(body, *pod[part], keys) if part in pod else {}
            if found is None:
                return None
            for key, (one, behind) in found.items():
                text = text_of(body[one:behind], one)
                if not isinstance(text, str) or b"\\" in body[one:behind]:
                    return None
                texts[key] = text
    except ScanError:
        return None
    if "uid" not in texts or "resourceVersion" not in texts:
        return None
    return texts["uid"], texts["resourceVersion"], texts["nominatedNodeName"]


def plainly(body: bytes, start: int, end: int, wanted: tuple[str, ...]) -> dict[str, tuple[int, int]] | None:
    """Where the values of these keys are; None: not an object, an escape in a key, or one of these twice."""
    if not isinstance(decode(body[start:end], start), dict):
        return None
    text = body[:end].decode("latin-1")
    found: list[tuple[str, tuple[int, int]]] = []
    at = skip(text, start, end, SPACE)
    at = skip(text, at + 1, end, SPACE)
    while text[at] != "}":
        key_end = value_end(text, at)
        value_at = skip(text, key_end, end, SPACE + ":")
        found.append((text[at + 1 : key_end - 1], (value_at, value_end(text, value_at))))
        at = skip(text, found[-1][1][1], end, SPACE + ",")
    keys = [key for key, _ in found]
    if any("\\" in key for key in keys) or any(keys.count(key) > 1 for key in wanted):
        return None
    return {key: span for key, span in found if key in wanted}


def rows(body: bytes, start: int, end: int, index: NameIndex) -> tuple["array[int]", list[tuple[int, str]]]:
    within(body, start, end)
    names = text_of(body[start:end], start)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ScanError(start, "not an array of strings")
    within_length(names, start)
    found = [index.get(name) for name in names]
    unknown = [(position, name) for position, name in enumerate(names) if index.get(name) < 0]
    return array("i", found), unknown


Keys = dict[str, tuple[int, int]]
Identity = tuple[str, str, str] | None


def split_names(
    body: bytes, key: str, index: NameIndex
) -> "tuple[Keys, Identity, tuple[array[int], list[tuple[int, str]]] | None]":
    keys = split(body)
    pod = identity(body, *keys["Pod"]) if "Pod" in keys else None
    try:
        return keys, pod, rows(body, *keys[key], index) if key in keys else None
    except ScanError:
        return keys, pod, None


def split_offers(
    body: bytes, key: str, index: NameIndex
) -> "tuple[Keys, Identity, tuple[array[int], array[int]] | None]":
    keys = split(body)
    pod = identity(body, *keys["Pod"]) if "Pod" in keys else None
    return keys, pod, offers(body, *keys[key], index) if key in keys else None


def offers(body: bytes, start: int, end: int, index: NameIndex) -> "tuple[array[int], array[int]] | None":
    """A name that is not in the index may stand twice; of one that is, None is answered."""
    victims = re.compile(
        rb'\{\s*("Pods"\s*:\s*PODS\s*(,\s*"NumPDBViolations"\s*:\s*NUMBER\s*)?'
        rb'|"NumPDBViolations"\s*:\s*NUMBER\s*(,\s*"Pods"\s*:\s*PODS\s*)?)?\}'.replace(
            b"PODS", rb"\[\s*(POD(\s*,\s*POD)*)?\s*\]"
        )
        .replace(b"POD", rb'\{\s*"UID"\s*:\s*STRING\s*\}')
        .replace(b"STRING", STRING)
        .replace(b"NUMBER", rb"[0-9]{1,9}")
        .replace(rb"\s", rb"[ \t\n\r]")
    )
    found, spans = array("i"), array("q")
    at = body.index(b"{", start) + 1 if body[start:end].lstrip(SPACE.encode())[:1] == b"{" else -1
    if at < 0:
        return None
    text = body[:end]
    if text[at:].lstrip(SPACE.encode())[:1] == b"}":
        return found, spans
    seen = set()
    while True:
        key = re.compile(rb'[ \t\n\r]*"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*').match(text, at)
        one = victims.match(text, key.end()) if key else None
        if key is None or one is None:
            return None
        row = index.known.get(key[1], -1)
        if row >= 0 and key[1] in seen:
            return None
        seen.add(key[1])
        found.append(row)
        spans.extend((one.start(), one.end()))
        rest = re.compile(rb"[ \t\n\r]*([,}])").match(text, one.end())
        if rest is None:
            return None
        if rest[1] == b"}":
            return found, spans
        at = rest.end()


def members(body: bytes, start: int, end: int, max_depth: int) -> dict[str, tuple[int, int]]:
    """key -> range of its value, of the one object in [start, end)."""
    within(body, start, end)
    if not 1 <= max_depth <= 1024:
        raise ValueError("max_depth must be 1 to 1024")
    text = body[:end].decode("latin-1")
    if depth_of(text[start:], start) > max_depth:
        raise ScanError(start, "nested too deep")
    whole = decode(body[start:end], start)
    if not isinstance(whole, dict):
        raise ScanError(start, "not a JSON object")
    found: dict[str, tuple[int, int]] = {}
    at = skip(text, start, end, SPACE + "{")  # the text is JSON: what follows only finds the way in it
    while text[at] != "}":
        key_end = value_end(text, at)
        key = text_of(body[at:key_end], at)
        if key in found:
            raise ScanError(at, f"duplicate key {key!r}")
        value_at = skip(text, key_end, end, SPACE + ":")
        at = value_end(text, value_at)
        found[key] = (value_at, at)
        at = skip(text, at, end, SPACE + ",")
    return found


def within(body: bytes, start: int, end: int) -> None:
    if not 0 <= start <= end <= len(body):
        raise ValueError("the range is not inside the body")


def reject(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is not JSON")


# Numbers stay text: a number of any length is grammatical. NaN and Infinity, which Python adds, are rejected.
DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=reject)
PAIRS = json.JSONDecoder(parse_int=str, parse_float=str, object_pairs_hook=list)  # a key that comes twice, too


def decode(raw: bytes, start: int) -> Any:
    """The value, with mojibake where its strings are not ASCII."""
    try:
        return DECODER.decode(raw.decode("latin-1"))
    except ValueError as bad:
        raise ScanError(start, str(bad)) from None


def text_of(raw: bytes, start: int) -> Any:
    """The value of a JSON text that must be UTF-8 throughout."""
    try:
        return orjson.loads(raw)
    except ValueError as bad:
        raise ScanError(start, str(bad)) from None


def decodable(raw: bytes, start: int) -> None:
    """ScanError unless all text in the value could be decoded: UTF-8, and pairs of surrogates where there are any."""
    try:
        json.dumps(PAIRS.decode(raw.decode()), ensure_ascii=False).encode()
    except UnicodeError as bad:
        raise ScanError(start, str(bad)) from None


def within_length(names: list[str], start: int) -> None:
    if any(len(name.encode()) > 253 for name in names):
        raise ScanError(start, "a node's name has more than 253 bytes")


def value_end(text: str, at: int) -> int:
    return DECODER.raw_decode(text, at)[1]


def skip(text: str, at: int, end: int, which: str) -> int:
    while at < end and text[at] in which:
        at += 1
    return at


def depth_of(text: str, start: int) -> int:
    """How deep the brackets outside strings are nested; any number for a text that is not JSON."""
    depth = deepest = at = 0
    while at < len(text):
        if text[at] == '"':
            try:
                at = value_end(text, at)
            except ValueError as bad:
                raise ScanError(start + at, str(bad)) from None
            continue
        depth += (text[at] in "[{") - (text[at] in "]}")
        deepest = max(deepest, depth)
        at += 1
    return deepest
