"""The pages that people, `gpu-extender` and Prometheus read: functions of what there is to show and of the query.

Others use: `debug_pages`, `Site` and the page classes. Only `extender.server` makes and serves them.
"""
