"""Packed tables and the loops over them.

Who belongs here: code that reads, combines or searches columns of numbers. It knows no HTTP, no Kubernetes and no
names of policies, and imports nothing of `extender`. Each kernel has a slow, obvious twin in `reference/`.
"""
