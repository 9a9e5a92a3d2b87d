"""Prints docs/reliability.md: python -m tests.faults > docs/reliability.md."""

from __future__ import annotations

from tests.faults.table import page

if __name__ == "__main__":
    print(page(), end="")
