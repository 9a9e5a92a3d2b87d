"""Lists and watches: one reflector a kind, and whole lists for commands that look once.

Others use: `Reflector` with its `Sink`, the kinds, `Pace`, `Timing`, `State` and `list_all`.
"""
