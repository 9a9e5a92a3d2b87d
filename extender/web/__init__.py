"""The pages that people, `gpu-extender` and Prometheus read: views that take what they show and return responses.

Others use: the page classes. Only `extender.server` makes and serves them.
"""
