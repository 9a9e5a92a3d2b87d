"""Twin of `ext_core.columns`."""

from __future__ import annotations

Clause = tuple[bool, tuple[int, ...]]


class Columns:
    """Sets, literally."""

    def __init__(self) -> None:
        self.words = 1
        self.sets: dict[int, set[int]] = {}
        self.spare: list[int] = []

    def _set(self, number: int) -> set[int]:
        if number not in self.sets:
            raise IndexError(f"no set {number}")
        return self.sets[number]

    def make(self) -> int:
        number = self.spare.pop() if self.spare else len(self.sets)
        self.sets[number] = set()
        return number

    def drop(self, number: int) -> None:
        self._set(number)
        del self.sets[number]
        self.spare.append(number)

    def put(self, number: int, row: int) -> None:
        if not 0 <= row < 1 << 24:
            raise IndexError(f"row {row}")
        self._set(number).add(row)
        self.words = max(self.words, row // 64 + 1)

    def take(self, number: int, row: int) -> None:
        if not 0 <= row < 1 << 24:
            raise IndexError(f"row {row}")
        self._set(number).discard(row)

    def count(self, number: int) -> int:
        return len(self._set(number))

    def rows(self, number: int) -> list[int]:
        return sorted(self._set(number))

    def size(self) -> int:
        return 4 * sum(map(len, self.sets.values()))

    def select(
        self, base: int, must: tuple[Clause, ...], terms: tuple[tuple[Clause, ...], ...] | None = None
    ) -> list[int]:
        def meets(row: int, clauses: tuple[Clause, ...]) -> bool:
            return all(wanted == any(row in self._member(one) for one in members) for wanted, members in clauses)

        found = [
            row
            for row in self._set(base)
            if meets(row, must) and (terms is None or any(meets(row, clauses) for clauses in terms))
        ]
        return [sum(1 << row % 64 for row in found if row // 64 == word) for word in range(self.words)]

    def _member(self, member: int) -> set[int]:
        return {~member} if member < 0 else self._set(member)


def kept(rows: list[int], bits: list[int]) -> list[int]:
    return [row for row in rows if 0 <= row < 64 * len(bits) and bits[row // 64] >> row % 64 & 1]
