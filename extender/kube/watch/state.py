"""What readiness and metrics read of a watch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Counters:
    """Since the start."""

    pages: int = 0
    """Of lists."""
    watches: int = 0
    """Begun."""
    turns: int = 0
    """Watches that ended as agreed, and were resumed; all others but the first are restarts."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Objects (each version of one counts) that could not be read in full, by reason: tolerant.REASONS; and events of
    no object (`unknown-event`)."""
    defects: int = 0
    """Unexpected exceptions."""


@dataclass
class State:
    """What readiness and metrics look at."""

    synced: bool = False
    """A list has been given completely at least once."""
    watching: bool = False
    """A watch is open now."""
    absent: bool = False
    """The API is not served."""
    problem: str = "not listed yet"
    """Why it is not synced or not watching; "" while all is well."""
    forbidden: str = ""
    """The server's words where the list or the watch is not allowed."""
    last_event: float | None = None
    """Until when what the server said is known, by the reflector's clock: its last word, or its list's beginning."""
    lost_at: float | None = None
    """Since when the watch is lost, by the reflector's clock: its connection failed, or its last word before a silence
    that means a dead connection. None once what happened since is known, and while an agreed end is being resumed."""
    reached_at: float | None = None
    """When the server last answered a list or a watch, whatever it said."""
    rejected: dict[str, str] = field(default_factory=dict)
    """Objects whose last version could not be read in full: namespace/name, and why and what counts instead."""
    counters: Counters = field(default_factory=Counters)
