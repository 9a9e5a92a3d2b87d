"""Twin of `ext_core.candidates`."""

from __future__ import annotations

from itertools import pairwise


class Candidates:
    """The same columns as lists; `short` and `amounts` are lists of rows."""

    def __init__(self, start: list[int], resources: int) -> None:
        if resources < 0 or not start or start[0] or any(end < begin for begin, end in pairwise(start)):
            raise ValueError("start begins with 0 and does not fall")
        n, m = len(start) - 1, start[-1]
        self.start, self.resources = start, resources
        self.short, self.amounts = [[0] * n for _ in range(resources)], [[0] * m for _ in range(resources)]
        self.free, self.unknown, self.table = [0] * n, [0] * n, [-1] * n
        self.masks, self.unsure, self.forced = [0] * m, [0] * m, [0] * m
        self.ok: list[bytes] = []
