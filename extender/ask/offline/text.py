"""Numbers and names for people: plurals, long names cut, GPUs as a set."""

from __future__ import annotations

from collections.abc import Collection

from extender.ask.text import count as count
from extender.ask.text import short as short


def gpus(ids: Collection[int] | None) -> str:
    """ "0,1,4", or that it is not known."""
    return "unknown which" if ids is None else ",".join(map(str, ids))
