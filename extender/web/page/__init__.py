"""The page at `/`: what the debug pages answer as JSON, as HTML that the server renders in slices.

A view is a generator that returns one JSON object. The same object is sent as JSON, or given to a template.
Others use: `Site`, `guarded`. Only `extender.server` makes and serves them.
"""
