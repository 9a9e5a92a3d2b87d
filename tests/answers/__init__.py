"""Recorded answers of every question that people ask: a change of the code changes none of them unseen."""
