"""Nodes that kube-scheduler names and the watch has not shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

APPEAR_SECONDS = 60.0  # a node that stays unknown for longer is not about to appear in our watch
MOST_NODES = 10_000
LONGEST_NAME = 253  # characters: no node has a longer name


class UnknownNodes:
    """When each was named first and last."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._named)

    @property
    def kept(self) -> list[tuple[str, float, float]]:
        """Each name, with when it was named first and last."""
        return [(name, first, last) for name, (first, last) in self._named.items()]

    def restore(self, kept: Iterable[tuple[str, float, float]]) -> None:
        """Remember these and no others."""
        self._named = {name: (first, last) for name, first, last in kept}

    def may_appear(self, names: Sequence[str], now: float) -> bool:
        """Whether any of these nodes may be about to appear: it was named for the first time a moment ago.

        A name that was not asked for during a minute, or became known, is new when it comes again.
        """
        if not names:
            return False
        for name in [name for name, (_, last) in self._named.items() if now - last > APPEAR_SECONDS]:
            del self._named[name]
        if len(self._named) > MOST_NODES:
            self._named.clear()
        young = False
        for name in names[: MOST_NODES // 2]:  # so many are remembered; no cluster is so far ahead of our watch
            if len(name) > LONGEST_NAME:
                continue
            first = self._named.get(name, (now, now))[0]
            self._named[name] = (first, now)
            young = young or now - first <= APPEAR_SECONDS
        return young
