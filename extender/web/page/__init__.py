"""The page at `/`: what the debug pages answer as JSON, as HTML.

A view is a function that returns one JSON object. The same object is sent as JSON, or given to a template.
Others use: `Site`, `guarded`. Only `extender.server` makes and serves them.
"""
