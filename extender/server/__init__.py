"""The HTTP server: routes, connections, and the writes that decisions ask for.

Others use: nothing. Only `extender.cli` starts it.
"""
