"""Texts that were stored: which format they have, and what they state."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

T = TypeVar("T")


class Damaged(ValueError):
    """A text that states nothing that can be used."""


class Newer(Damaged):
    """A text of a version to come: it is not read, and not written over."""


class _Format(msgspec.Struct):
    """What every format has."""

    format: int


_READ_FORMAT: Final = msgspec.json.Decoder(_Format)


def is_newer(text: str, known: int) -> bool:
    """Whether a version to come has written the text: its format is higher than the known one."""
    try:
        return _READ_FORMAT.decode(text).format > known
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return False


def decoded(text: str, decoder: msgspec.json.Decoder[T], known: int, most: int) -> T:
    """What a text states that has at most so many characters. Raises Newer where its format is higher than the known
    one, and Damaged where it cannot be read."""
    if len(text) > most:
        raise Damaged(f"longer than {most} characters")
    try:
        stated = _READ_FORMAT.decode(text).format
        if stated > known:
            raise Newer(f"its format is {stated}, that of this version {known}")
        return decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError) as error:
        raise Damaged(str(error)) from error
