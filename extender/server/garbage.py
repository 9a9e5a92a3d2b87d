"""When this process collects garbage: between answers, never during one.

A decision leaves some 20 objects behind. By Python's own threshold one call in a hundred would pay for a collection of
1 ms: the 99th percentile. So a collection is made once an answer is sent, and Python's own is the safety net.
"""

from __future__ import annotations

import gc
from typing import Final

YOUNG, MIDDLE, OLD = 700, 10, 100  # objects, young collections and middle collections from which one is due
SAFETY_NET: Final = 10_000


def begin() -> None:
    """Leave all but the safety net to `collect`. Once a process."""
    gc.set_threshold(SAFETY_NET)


def collect() -> None:
    """Make the collection that is due, if one is."""
    young, middle, old = gc.get_count()
    if young > YOUNG:
        gc.collect(2 if old > OLD else 1 if middle > MIDDLE else 0)
