"""One code for each node of a decision, in few bytes: runs of rows with the same code."""

from array import array
from typing import Final

NOT_NAMED: Final = 255
"""The code of the rows that are not among the nodes."""

def pack(rows: array[int], codes: array[int], answered: array[int], left_out: int) -> bytes:
    """The runs of `rows` (int32[n]) with their `codes` (uint8[n], below NOT_NAMED). A row with code 0 that is not in
    `answered` (int32) gets the code `left_out`. A row that is named twice has its last code.

    ValueError: columns of different length, a code that is none. IndexError: a negative row, an answered row above all
    `rows`.
    """

def unpack(text: bytes) -> tuple[array[int], array[int]]:
    """(rows, codes) of the named rows: int32[n] ascending, uint8[n]. ValueError: not a text that `pack` makes."""
