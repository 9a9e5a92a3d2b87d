"""Gangs and single pods behind our scheduling gate: which of them starts next and where, and why each other one waits.
Pure decisions: the time is an argument, nothing is awaited or written."""
