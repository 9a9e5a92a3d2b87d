"""Node name -> row: a hash table over the UTF-8 bytes of the names."""

from array import array
from typing import final

@final
class NameIndex:
    """Node name -> row."""

    def __new__(cls) -> NameIndex: ...
    def __len__(self) -> int:
        """How many names are in the table."""
    def add(self, name: str, row: int) -> None:
        """Add a name. ValueError: the row is negative, the name is in the table already. UnicodeEncodeError: half a
        surrogate pair."""
    def remove(self, name: str) -> None:
        """Remove a name. KeyError: it is not in the table."""
    def get(self, name: str) -> int:
        """The name's row; -1 = it is not in the table."""
    def rows(self, names: list[str]) -> array[int]:
        """int32: the rows of those of the names that are in the table, in the order of the names. TypeError: a name is
        no text."""
