"""The wire format of Protocol Buffers, as much of it as the few messages need that we read and write ourselves.

A message is a row of fields: a key (number and kind as one varint), then the value. A field that comes twice counts the
second time, and two messages in one field are merged: so a message is changed, whatever else it holds, by appending.
Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


class Malformed(ValueError):
    """Bytes that are no message."""


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) in the order they stand there: int for a varint, bytes for anything else. Raises Malformed."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise Malformed(f"field {number} is of kind {kind}")
        if at + size > len(message):
            raise Malformed(f"field {number} ends after the message")
        yield number, message[at : at + size]
        at += size


def messages(message: bytes, number: int) -> list[bytes]:
    """The values of a repeated field of messages, texts or bytes."""
    return [value for found, value in fields(message) if found == number and isinstance(value, bytes)]


def texts(message: bytes, number: int) -> list[str]:
    """The values of a repeated field of texts."""
    try:
        return [value.decode() for value in messages(message, number)]
    except UnicodeDecodeError as error:
        raise Malformed(f"field {number} is no text") from error


def text(message: bytes, number: int) -> str:
    """The value of a field of text; "" where it is not there."""
    return (texts(message, number) or [""])[-1]


def integer(message: bytes, number: int) -> int:
    """The value of a field of a whole number; 0 where it is not there."""
    found = [value for at, value in fields(message) if at == number and isinstance(value, int)]
    return found[-1] if found else 0


def field(number: int, value: int | bytes | str) -> bytes:
    """One field: a whole number from 0 on, or a text, or bytes."""
    if isinstance(value, int):
        return _as_varint(number << 3 | _VARINT) + _as_varint(value)
    value = value.encode() if isinstance(value, str) else value
    return _as_varint(number << 3 | _BYTES) + _as_varint(len(value)) + value


def repeated(number: int, values: Iterable[bytes | str]) -> bytes:
    """A repeated field."""
    return b"".join(field(number, value) for value in values)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise Malformed("a number has no end")
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
