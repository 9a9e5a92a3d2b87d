"""The HTTP server: routes, connections, and the writes that decisions ask for.

`deciding` and `acting` construct what decides and what acts, and `wiring` connects them with what answers people.

Others use: `serve` (the process), `wiring` (a server over any source) and its parts. Only `extender.cli` starts it.
"""
