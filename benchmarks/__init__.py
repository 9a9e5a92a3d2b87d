"""Measurements: `python -m benchmarks.NAME`, each beside its floor in the same run. See docs/benchmarks.md."""
