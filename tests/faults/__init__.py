"""Faults from outside: what holds, and the table of docs/reliability.md."""
