"""Result columns -> the JSON bytes of a verb's reply, without a Python object per node name.

The bytes equal what `orjson.dumps` writes for the same dict or list. ValueError: a row without a name, a code without a
text, columns of unequal length.
"""

from array import array
from typing import final

from ext_core.rows import Rejections

@final
class Heads:
    """[row] the node's name as a reply writes it: quoted and escaped once."""

    def __new__(cls) -> Heads: ...
    def set(self, row: int, name: str) -> None:
        """Write the name of a row. ValueError: a negative row. UnicodeEncodeError: half a surrogate pair."""
    def clear(self, row: int) -> None:
        """Forget the name of a row. KeyError: it has none."""

def filter_result(heads: Heads, passed: array[int], rejections: Rejections) -> bytes:
    """An ExtenderFilterResult with NodeNames. `passed`: rows, in the order of the reply."""

def filter_result_nodes(heads: Heads, body: bytes, ranges: list[tuple[int, int]], rejections: Rejections) -> bytes:
    """An ExtenderFilterResult with whole Nodes, the bytes of the request as they came. `ranges`: [start, end) in `body`
    of each node that passes; ValueError: a range outside of it."""

def filter_error(message: str) -> bytes:
    """An ExtenderFilterResult that fails the call; half a surrogate pair becomes "?". ValueError: an empty message."""

def priorities(heads: Heads, rows: array[int], points: array[int], unknown: list[str]) -> bytes:
    """A HostPriorityList: one {"Host", "Score"} a row, then the unknown names with 0. `points`: array('b') or
    array('i')."""
