"""Replays the recordings, keeps the answers that differ now, and prints each: python -m tests.replay.record.

Run it only when answers change on purpose, and state in the commit message why they differ. It keeps all requests, so
that the change in recorded/ has only the answers that differ.

A recording is the life of one small cluster: pods come, are bound, finish, fail or are evicted. They were drawn once.
A case that they lack belongs to a test of its own.
"""

from __future__ import annotations

from tests.replay import player
from tests.world import JSON


def main() -> None:
    """The command."""
    for name in player.names():
        settings, steps = player.read(name)
        changed: list[JSON] = []

        def differs(step: JSON, now: JSON) -> None:
            changed.append(now)  # noqa: B023 -- called before the next turn
            print(f"{name}, at {step['at']} s, {step['verb']}:\n  was {step['answer']}\n  is  {now['answer']}")  # noqa: B023
            step |= now

        player.differences(settings, steps, differs)
        if changed:
            player.write(name, settings, steps)


if __name__ == "__main__":
    main()
