"""Measurements: `python -m benchmarks.NAME`, each beside its floor in the same run. See docs/benchmarks.md."""

import sys
from pathlib import Path


def say(line: str) -> None:
    """How far the measurement that runs is, with its name, on standard error."""
    print(f"{Path(sys.argv[0]).stem}: {line}", file=sys.stderr, flush=True)
