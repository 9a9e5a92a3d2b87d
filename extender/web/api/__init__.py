"""The description of the pages for programs: openapi.yaml, served as JSON.

Others use: OpenApiPage. A new page has its route in `extender.server.routes` and its path in openapi.yaml; a test
compares the two.
"""
