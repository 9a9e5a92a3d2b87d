"""The slow, obvious twin of ext_core.prune: a regular expression finds the tokens, a number is the depth."""

from __future__ import annotations

import re
from collections.abc import Iterator

TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|"|[\[\]{}:,]|[ \t\n\r]+|[^"\[\]{}:, \t\n\r]+', re.DOTALL)


def tokens(source: bytes) -> Iterator[tuple[bytes, int, int]]:
    for token in TOKEN.finditer(source):
        yield token[0], token.start(), token.end()


def prune(source: bytes, deepest: int) -> bytes:
    if deepest < 1:
        raise ValueError("deepest must be at least 1")
    made, depth = [], 0
    for text, _, _ in tokens(source):
        if text == b'"':
            raise ValueError("a string is not closed")
        if text in b"[{":
            made.append(b"null" if depth == deepest else text if depth < deepest else b"")
            depth += 1
        elif text in b"]}":
            depth -= 1
            if depth < 0:
                raise ValueError("a bracket closes that was not opened")
            made.append(text if depth < deepest else b"")
        else:
            made.append(text if depth <= deepest else b"")
    if depth:
        raise ValueError("a bracket is not closed")
    return b"".join(made)


def value_end(source: bytes, at: int) -> int:
    """Behind the value that begins at `at`; `at` where none does."""
    depth = 0
    for text, start, end in tokens(source[at:]):
        if text == b'"':
            raise ValueError("a string is not closed")
        if text in b"]}":
            if not depth:
                return at + start
            depth -= 1
        elif text in b"[{":
            depth += 1
        elif not depth and (text == b"," or text.isspace()):
            return at + start
        elif not depth and text[:1] != b'"':
            continue  # a number or a word, and a colon that is none of ours
        if not depth:
            return at + end
    if depth:
        raise ValueError("a bracket is not closed")
    return len(source)


def space_end(source: bytes, at: int) -> int:
    return at + len(source[at:]) - len(source[at:].lstrip(b" \t\n\r"))


def members(source: bytes) -> dict[bytes, tuple[int, int]]:
    at = space_end(source, 0)
    if source[at : at + 1] != b"{":
        raise ValueError("not an object")
    found: dict[bytes, tuple[int, int]] = {}
    at = space_end(source, at + 1)
    while source[at : at + 1] == b'"':
        key = re.compile(rb'"((?:[^"\\]|\\.)*)"[ \t\n\r]*:[ \t\n\r]*', re.DOTALL).match(source, at)
        if key is None:
            raise ValueError("a key is not followed by a value")
        end = value_end(source, key.end())
        if end == key.end():
            raise ValueError("a value is missing")
        found[key[1]] = key.end(), end
        at = space_end(source, end)
        if source[at : at + 1] != b",":
            break
        at = space_end(source, at + 1)
    if source[at : at + 1] != b"}":
        raise ValueError("the object is not closed")
    return found


def elements(source: bytes, start: int, end: int) -> list[tuple[int, int]]:
    if not 0 <= start <= end <= len(source):
        raise ValueError("the range is not inside the text")
    text = source[:end]
    at = space_end(text, start)
    if text[at : at + 1] != b"[":
        raise ValueError("not a list")
    found: list[tuple[int, int]] = []
    at = space_end(text, at + 1)
    if text[at : at + 1] == b"]":
        return found
    while at < end:
        behind = value_end(text, at)
        if behind == at:
            break
        found.append((at, behind))
        at = space_end(text, behind)
        if text[at : at + 1] != b",":
            break
        at = space_end(text, at + 1)
    if text[at : at + 1] != b"]":
        raise ValueError("the list is not closed")
    return found
