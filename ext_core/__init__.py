"""Packed tables and the loops over them.

Who belongs here: code that reads, combines or searches columns of numbers. It knows no HTTP, no Kubernetes and no
names of policies, and imports nothing of `extender`. The slow, obvious twin of each kernel is in `tests/reference/`.
"""
