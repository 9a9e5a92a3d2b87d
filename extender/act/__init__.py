"""What acts by itself, beside the requests: watches, reservation store, Events, evictions, under one supervisor.

Others use: the controllers themselves. Only `extender.server` (wiring) and `extender.cli` make them.
"""
