"""How many entries the containers of the product's objects have: what grows although all is deleted is a leak."""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any

MOST_DEPTH = 6
BOUNDED = 4  # entries by which a container may grow between two rounds: row numbers, one more generation
# Bounded by a setting or a constant, and not by what is in the cluster.
EXEMPT = (
    ".metrics",  # label values are bounded
    ".settings",
    "decisions",  # decisions.maxBytes
    ".mix",  # mix.kinds
    ".models",  # 64 kinds of machines
    ".demand",  # as the mix
    "._prices",  # one a type of the demand
    "._told",  # as the mix
    ".retired",  # eight names a row
    "._touched",  # 64 generations
)


def sizes(root: Any) -> dict[str, int]:
    """Path -> entries, of all containers in the attributes of `root` and of the product's objects in them."""
    found: dict[str, int] = {}
    seen: set[int] = set()

    def walk(value: Any, path: str, depth: int) -> None:
        if id(value) in seen or depth > MOST_DEPTH or any(text in path for text in EXEMPT):
            return
        seen.add(id(value))
        if isinstance(value, (dict, list, set, deque, array)):
            found[path] = len(value)
            if isinstance(value, list):
                inner = [one for one in value if isinstance(one, (dict, list, set))]
                if inner:
                    found[f"{path}[]"] = sum(map(len, inner))
            return
        if not type(value).__module__.startswith("extender"):
            return
        names = list(getattr(value, "__dict__", ())) or [
            name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())
        ]
        for name in names:
            walk(getattr(value, name, None), f"{path}.{name}".lstrip("."), depth + 1)

    walk(root, "", 0)
    return found


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Containers with more entries than before, beyond BOUNDED."""
    return {path: (before.get(path, 0), size) for path, size in after.items() if size > before.get(path, 0) + BOUNDED}
