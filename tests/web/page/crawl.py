"""Follows the links of pages, each address once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from html import unescape

MOST = 2_000
"""Addresses: more would mean that pages link without end."""
LINK = re.compile(r'(?:href|src|data-late)="(/[^"#]*)')


def crawl(get: Callable[[str], tuple[int, str]], first: Iterable[str]) -> dict[str, int]:
    """The status of each address that can be reached from the first ones. `get`: (status, text) of an address; only
    HTML has links."""
    answered: dict[str, int] = {}
    waiting = list(first)
    while waiting:
        path = waiting.pop()
        if path in answered:
            continue
        assert len(answered) < MOST
        answered[path], text = get(path)
        if text.startswith("<!doctype html>"):
            waiting += map(unescape, LINK.findall(text))
    return answered
