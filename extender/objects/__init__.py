"""Kubernetes JSON to slim records: pure functions."""
