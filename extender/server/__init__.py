"""The HTTP server: routes, connections, and the writes that decisions ask for.

`deciding`, `acting` and `asking` construct its three parts, and `wiring` connects them.

Others use: `serve` (the process), `wiring` (a server over any source) and its parts. Only `extender.cli` starts it.
"""
