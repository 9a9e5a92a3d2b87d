"""Hostile values: what JSON can carry and no honest client writes; and mutations of values and bytes.

A step is plain JSON, so what JSON cannot say (a key twice, invalid UTF-8, 3,000 levels) stands in it as a marker:
`@deep:N`, `@lists:N`, `@long:N` and `@raw:HEX` as a string, `#` and a digit at the end of a key for its repetition.
`render` writes the markers out.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

_MARK = re.compile(rb'"@(deep|lists|long|raw):([0-9a-f]+)"')
_AGAIN = re.compile(rb'#\d"(?=\s*:)')


def raw(text: bytes) -> str:
    """Bytes that stand unquoted in the rendered text."""
    return f"@raw:{text.hex()}"


NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 7, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 0.5, 1e308, -0.0,
    raw(b"1e999"), raw(b"-1e999"), raw(b"NaN"), raw(b"-Infinity"), raw(b"9" * 5000), raw(b"1E+2147483648"), raw(b"01"),
)  # fmt: skip
STRINGS: tuple[Any, ...] = (
    "", "x", " ", "\x00", "a\x00b", "\ud800", "\udfff\ud800", "\uffff", "é", "𝛑", "a" * 300, "@long:4000",
    "@long:20000",
    "../../etc", "%s%n{}", "-1", "1e9", "null", "0,1,2,3,4,5,6,7,8,9", "NaN", raw(b'"\xff\xfe"'),
    raw(b'"\xed\xa0\x80"'),
    raw(b'"\xc0\xaf"'), raw(b'"\\ud800"'), raw(b'"\\u12"'), raw(b'"\x01"'), raw(b'"\\x"'),
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    None, True, False, [], {}, [None], [[]], {"": None}, "@deep:64", "@deep:5dc", "@deep:2710", "@lists:5dc",
    "@lists:4000",
)  # fmt: skip
VALUES = NUMBERS + STRINGS + SHAPES


def render(value: Any) -> bytes:
    """The JSON text, markers written out."""
    return _AGAIN.sub(b'"', _MARK.sub(_written, json.dumps(value, separators=(",", ":")).encode()))


def _written(match: re.Match[bytes]) -> bytes:
    kind, argument = match.groups()
    if kind == b"raw":
        return bytes.fromhex(argument.decode())
    size = int(argument, 16)
    if kind == b"long":
        return b'"' + b"x" * size + b'"'
    return b'{"f:a":' * size + b"{}" + b"}" * size if kind == b"deep" else b"[" * size + b"]" * size


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all parts of a value."""
    found = [at]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        found += places(one, (*at, key))
    return found


def mutated(rng: random.Random, value: Any, times: int) -> Any:
    """The value with some parts replaced, removed, repeated or moved."""
    for _ in range(times):
        where = rng.choice(places(value))
        if not where:
            if rng.random() < 0.05:
                return rng.choice(VALUES)
            continue
        value = _changed(rng, value, where)
    return value


def _changed(rng: random.Random, value: Any, where: tuple[Any, ...]) -> Any:
    key, rest = where[0], where[1:]
    made = dict(value) if isinstance(value, dict) else list(value)
    if rest:
        made[key] = _changed(rng, value[key], rest)
        return made
    choice = rng.random()
    if choice < 0.6:
        made[key] = rng.choice(VALUES)
    elif choice < 0.75:
        del made[key]
    elif isinstance(made, list):
        made += [made[key]] * rng.choice((1, 3, 50))
    elif choice < 0.9:
        made[f"{key}#{rng.randrange(10)}"] = rng.choice((*VALUES, made[key]))
    else:
        made[rng.choice(("nodeName", "Pod", "x", "", "\x00", str(key).upper()))] = made.pop(key)
    return made


def cuts(rng: random.Random) -> list[list[Any]]:
    """Changes of bytes as [what, where from 0.0 to 1.0, argument]."""
    found: list[list[Any]] = []
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        what = rng.choice(("end", "remove", "insert", "flip", "repeat"))
        argument = rng.choice((b"\xff", b"\x00", b'"', b"{", b"]", b",", b"\\", b"\xf0\x9f", b"\n", b"&a", b"*a")).hex()
        found.append([what, round(rng.random(), 4), rng.choice((1, 2, 8, 100)) if what != "insert" else argument])
    return found


def cut(text: bytes, changes: list[list[Any]]) -> bytes:
    """The text after the changes of `cuts`."""
    for what, place, argument in changes:
        at = int(place * len(text))
        if what == "end":
            text = text[:at]
        elif what == "remove":
            text = text[:at] + text[at + argument :]
        elif what == "insert":
            text = text[:at] + bytes.fromhex(argument) + text[at:]
        elif what == "repeat":
            text = text[: at + argument] + text[at:]
        elif text:
            at = min(at, len(text) - 1)
            text = text[:at] + bytes([text[at] ^ (argument & 0xFF)]) + text[at + 1 :]
    return text
