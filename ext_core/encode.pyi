from array import array
from typing import final

@final
class Heads:
    def __new__(cls) -> Heads: ...
    def set(self, row: int, name: str) -> None: ...
    def clear(self, row: int) -> None: ...

def filter_result(
    heads: Heads,
    passed: array[int],
    failed_rows: array[int],
    failed_codes: array[int],
    unresolvable_rows: array[int],
    unresolvable_codes: array[int],
    texts: list[str],
    unknown: list[tuple[str, int]],
) -> bytes: ...
def filter_result_nodes(
    heads: Heads,
    body: bytes,
    ranges: list[tuple[int, int]],
    failed_rows: array[int],
    failed_codes: array[int],
    unresolvable_rows: array[int],
    unresolvable_codes: array[int],
    texts: list[str],
    unknown: list[tuple[str, int]],
) -> bytes: ...
def filter_error(message: str) -> bytes: ...
def priorities(heads: Heads, rows: array[int], points: array[int], unknown: list[str]) -> bytes: ...
