"""Texts that are stored: which format they have, what they state, and how long they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

MIX_BYTES: Final = 135_000
SAVE_ANSWERS_BYTES: Final = 225_000
RUN_TIMES_BYTES: Final = 375_000
START_WINDOWS_BYTES: Final = 165_000
"""The most bytes of each text of what is learned. The four share one ConfigMap, which may have 1 MiB."""
T = TypeVar("T")


class Damaged(ValueError):
    """A text that states nothing that can be used."""


class Newer(Damaged):
    """A text of a version to come: it is not read, and not written over."""


def shortened(text_of: Callable[[int], str], entries: int, most: int) -> str:
    """The text of so many entries, or of as many as have `most` bytes. `text_of`: the text of so many, those that are
    worth most."""
    while len((text := text_of(entries)).encode()) > most and entries:
        entries = entries * 3 // 4
    return text


class _Head(msgspec.Struct):
    """What states the format: `format`; of the demand mix `apiVersion`."""

    format: int = 0
    kind: Any = ""
    apiVersion: Any = ""


_READ_HEAD: Final = msgspec.json.Decoder(_Head)
_OF_MIX: Final = re.compile(r"gpu-extender\.io/v([1-9][0-9]{0,8})")


def _format(text: str) -> int:
    """0: it states none."""
    head = _READ_HEAD.decode(text)
    of_mix = _OF_MIX.fullmatch(str(head.apiVersion)) if head.kind == "Mix" else None
    return head.format if of_mix is None else int(of_mix[1])


def is_newer(text: str, known: int) -> bool:
    """Whether a version to come has written the text: its format is higher than the known one."""
    try:
        return _format(text) > known
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return False


def decoded(text: str, decoder: msgspec.json.Decoder[T], known: int, most: int) -> T:
    """What a text states that has at most so many characters. Raises Newer where its format is higher than the known
    one, and Damaged where it cannot be read."""
    if len(text) > most:
        raise Damaged(f"longer than {most} characters")
    try:
        stated = _format(text)
        if stated > known:
            raise Newer(f"its format is {stated}, that of this version {known}")
        return decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError) as error:
        raise Damaged(str(error)) from error
