"""Faults from outside: what holds (docs/reliability.md)."""
