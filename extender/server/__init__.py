"""The HTTP server: routes, connections, and the writes that decisions ask for. `wiring` constructs all of it.

Others use: `serve` (the process) and `wiring` (a server over any source). Only `extender.cli` starts it.
"""
