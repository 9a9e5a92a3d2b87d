"""Numbers and names for people: plurals, long names cut, GPUs as a set."""

from __future__ import annotations

from collections.abc import Collection

LONGEST = 48


def count(number: int, noun: str) -> str:
    """ "1 pod", "2 pods"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def short(text: str, longest: int = LONGEST) -> str:
    """At most so many characters, the middle left out; what cannot be shown is `?`."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[: longest + 1])
    if len(text) <= longest:
        return shown
    kept = (longest - 1) // 2
    tail = "".join(letter if letter.isprintable() else "?" for letter in text[-kept:])
    return f"{shown[: longest - 1 - kept]}…{tail}"


def gpus(ids: Collection[int] | None) -> str:
    """ "0,1,4", or that it is not known."""
    return "unknown which" if ids is None else ",".join(map(str, ids))
