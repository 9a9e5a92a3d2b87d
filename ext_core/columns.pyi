"""Sets of node rows, each with a number, and their combination: 64 rows a step."""

from array import array

from typing_extensions import disjoint_base

Clause = tuple[bool, tuple[int, ...]]
"""(wanted, members): the row is in one of the members, or in none of them. A member is the number of a set or, below 0,
`~row`: that row alone."""

@disjoint_base
class Columns:
    """Sets of rows by number. Writing costs what one row costs; a set takes at most 8 bytes a row that it holds, or one
    bit for each row of the table."""

    words: int
    """64-bit words of what `select` returns: they cover every row that was ever put."""

    def make(self) -> int:
        """The number of a new set without a row. A number that was dropped is used again."""

    def drop(self, number: int) -> None:
        """Free a set and its number. IndexError: there is no such set (so everywhere)."""

    def put(self, number: int, row: int) -> None:
        """Add a row; one that is there stays. IndexError: a row below 0 or beyond 2^24."""

    def take(self, number: int, row: int) -> None:
        """Remove a row; one that is not there changes nothing."""

    def count(self, number: int) -> int:
        """How many rows are in the set."""

    def rows(self, number: int) -> list[int]:
        """The rows of the set, ascending."""

    def size(self) -> int:
        """Bytes that all sets hold."""

    def select(
        self, base: int, must: tuple[Clause, ...], terms: tuple[tuple[Clause, ...], ...] | None = None
    ) -> array[int]:
        """uint64[words], bit `row % 64` of word `row // 64`: the rows of set `base` that meet every clause of `must`
        and, unless `terms` is None, all clauses of one of the terms. No term at all: no row."""

def kept(rows: array[int], bits: array[int]) -> array[int]:
    """int32: those of `rows` whose bit is set, in their order; a row below 0 or beyond the bits has none."""
