"""Hears of the changes of the stores, so that a record can repeat those that neither a verb nor the watch makes."""

from __future__ import annotations

from typing import Any, Final, Literal

Change = Literal["reserve", "release", "forget", "seat", "unseat"]


class Journal:
    """Hears of each change. This one keeps nothing."""

    def changed(self, change: Change, *values: Any) -> None:
        """A store is about to change. `values`: the arguments of the store's method."""

    def sweeps(self, now: float) -> None:
        """What is reserved is about to be looked through for what is over: it may end, and its victims are seen to be
        gone."""


SILENT: Final = Journal()
