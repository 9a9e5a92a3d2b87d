"""How the work of a turn is shared out: by namespace, since any other name is written by tenants as they like."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import chain, zip_longest
from typing import TypeVar

T = TypeVar("T")


def in_turns(items: Iterable[T], namespace: Callable[[T], str], last: str) -> list[T]:
    """One item of each namespace after the other, beginning behind the `last` namespace; those of one namespace in
    their order."""
    by_namespace: dict[str, list[T]] = {}
    for item in items:
        by_namespace.setdefault(namespace(item), []).append(item)
    names = sorted(by_namespace)
    first = bisect_right(names, last)
    rounds = zip_longest(*([(item,) for item in by_namespace[name]] for name in names[first:] + names[:first]))
    return [item for pair in chain.from_iterable(rounds) if pair is not None for item in pair]
