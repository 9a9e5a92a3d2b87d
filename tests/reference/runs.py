"""One code for each node of a decision, as runs. Slow and obvious."""

from __future__ import annotations

from itertools import groupby

NOT_NAMED = 255


def pack(rows: list[int], codes: list[int], answered: list[int], left_out: int) -> bytes:
    """The runs of all rows up to the last one that is named."""
    of = [NOT_NAMED] * (max(rows, default=-1) + 1)
    for row, code in zip(rows, codes, strict=True):
        of[row] = code or left_out
    left = codes.count(0)
    for row in answered:
        if of[row] == left_out:
            of[row], left = 0, left - 1
    if not of:
        return b""
    kinds = sorted({*of, *filter(None, codes)} | ({left_out} if left else set()))
    halves: list[int] = []
    for code, same in groupby(of):
        number = (len(list(same)) - 1) * len(kinds) + kinds.index(code)
        while number >= 8:
            halves.append(number % 8 + 8)
            number //= 8
        halves.append(number)
    halves += [8] * (len(halves) % 2)
    pairs = zip(halves[::2], halves[1::2], strict=True)
    return bytes([len(kinds) % 256, *kinds, *(low + 16 * high for low, high in pairs)])


def unpack(text: bytes) -> tuple[list[int], list[int]]:
    """(rows, codes) of the rows that are named."""
    if not text:
        return [], []
    count = text[0] or 256
    kinds, of = text[1 : 1 + count], list[int]()
    number, digit = 0, 1
    for half in (half for byte in text[1 + count :] for half in (byte % 16, byte // 16)):
        number += half % 8 * digit
        digit *= 8
        if half < 8:
            of += [kinds[number % count]] * (number // count + 1)
            number, digit = 0, 1
    rows = [row for row, code in enumerate(of) if code != NOT_NAMED]
    return rows, [of[row] for row in rows]
