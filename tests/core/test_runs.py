"""Runs of codes against their slow twin."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_core import runs
from tests.reference import runs as plain

LEFT_OUT = 254
codes_of = st.one_of(st.sampled_from([0, 0, 10, 20]), st.integers(0, 253))


@st.composite
def decisions(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """(rows in any order, their codes, those that are answered): close together, or far apart."""
    rows = draw(st.lists(st.one_of(st.integers(0, 60), st.integers(0, 3_000)), max_size=300))
    if draw(st.booleans()):
        rows = [*range(draw(st.integers(0, 300)))] or rows
    codes = draw(st.lists(codes_of, min_size=len(rows), max_size=len(rows)))
    last = dict(zip(rows, codes, strict=True))  # a request may name a node twice
    fits = [row for row, code in last.items() if not code]
    return rows, codes, fits[: draw(st.integers(0, len(fits)))]


@given(decisions())
def test_pack_and_unpack(case: tuple[list[int], list[int], list[int]]) -> None:
    rows, codes, answered = case
    text = runs.pack(array("i", rows), array("B", codes), array("i", answered), LEFT_OUT)
    assert text == plain.pack(rows, codes, answered, LEFT_OUT)
    got_rows, got_codes = runs.unpack(text)
    assert (got_rows.tolist(), got_codes.tolist()) == plain.unpack(text)
    last = dict(zip(rows, codes, strict=True))
    wanted = {row: code or (0 if row in answered else LEFT_OUT) for row, code in last.items()}
    assert dict(zip(got_rows, got_codes, strict=True)) == wanted
    assert got_rows.tolist() == sorted(last)


def test_all_codes_at_once() -> None:
    """256 kinds: 255 codes, and rows that are not named."""
    rows, codes = [row for row in range(256) if row != 100], [*range(255)]
    text = runs.pack(array("i", rows), array("B", codes), array("i", [0]), LEFT_OUT)
    assert text[0] == 0
    assert text == plain.pack(rows, codes, [0], LEFT_OUT)
    assert [part.tolist() for part in runs.unpack(text)] == [rows, codes]


def test_how_short_they_are() -> None:
    """One pool of nodes: 5,000 rows that fit are a number of 13 bits. Codes that alternate: half a byte each."""
    rows, none = array("i", range(5_000)), array("i")
    assert len(runs.pack(rows, array("B", bytes(5_000)), rows, LEFT_OUT)) == 1 + 1 + 3
    assert len(runs.pack(rows, array("B", [10, 20] * 2_500), none, LEFT_OUT)) == 1 + 2 + 2_500


def test_what_is_refused() -> None:
    def pack(rows: list[int], codes: list[int], answered: list[int], left_out: int = LEFT_OUT) -> bytes:
        return runs.pack(array("i", rows), array("B", codes), array("i", answered), left_out)

    assert pack([], [], []) == b""
    for codes, left_out in (([], LEFT_OUT), ([255], LEFT_OUT), ([0], 255), ([0], -1)):
        with pytest.raises(ValueError, match="code"):
            pack([1], codes, [], left_out)
    for outside in (([-1], [0], []), ([1], [0], [2]), ([1], [0], [-1]), ([2**30], [0], [])):
        with pytest.raises(IndexError):
            pack(*outside)
    for text in (b"\x02\x00", b"\x01\x00\x88", b"\x01\x00" + b"\xff" * 9, b"\x01\x00\xff\xff\xff\xff\x7f"):
        with pytest.raises(ValueError, match="no text of runs"):
            runs.unpack(text)
