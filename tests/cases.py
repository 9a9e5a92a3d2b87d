"""How many random cases the tests try: GPU_EXTENDER_CASES=5 tries five times as many, as `make soak` does."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("GPU_EXTENDER_CASES", "1"))


def cases(few: int) -> int:
    """`few`: as many as `make test` tries."""
    return few * TIMES
