"""The pages that people and Prometheus read.

Others use: nothing. Only `extender.server` serves them.
"""
