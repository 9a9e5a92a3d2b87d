"""One code for each node of a decision, in few bytes: how many rows in order have the same code, and which.

A text of runs: the number of different codes (0: 256 of them), the codes, then each run as one number: (its length - 1)
x the number of codes + the code's place. A number is written in groups of three bits, the lowest first, each in half a
byte whose top bit is set while more follow; the lower half of a byte comes first, and 8 fills the last one.
The runs are those of all rows from 0 to the last one that is named; NOT_NAMED is the code of the others.
"""

from array import array

from cpython cimport array as c_array
from libc.stdlib cimport free as c_free, malloc
from libc.string cimport memcpy, memset

from ext_core.checks cimport codes_of, rows_of
from ext_core.ints cimport code_t, row_t, uint64_t

NOT_NAMED = 255
cdef enum:
    ABSENT = 255
    FILL = 8
    MOST_ROWS = 0x4000000


def pack(c_array.array rows, c_array.array codes, c_array.array answered, int left_out):
    """The runs of `rows` with their `codes`. Rows with code 0 that are not in `answered` get `left_out`."""
    cdef const row_t* row_at = rows_of(rows)
    cdef const code_t* code_at = codes_of(codes)
    cdef const row_t* answered_at = rows_of(answered)
    cdef Py_ssize_t n = len(rows), shown = len(answered), height = 0, named = 0, fits = 0, i, begin
    cdef int kinds = 0
    cdef uint64_t number
    cdef code_t code, half
    cdef bint upper = False
    cdef row_t highest = -1, outside = 0
    cdef code_t absent = 0
    cdef code_t *of
    cdef code_t *text
    cdef Py_ssize_t at
    cdef code_t[256] places, symbols
    cdef bint[256] seen
    if len(codes) != n:
        raise ValueError("rows and codes differ in length")
    if not 0 <= left_out < ABSENT:
        raise ValueError("no such code")
    for i in range(n):  # without a branch: several at a time
        outside |= (row_at[i] < 0) | (row_at[i] >= MOST_ROWS)
        highest = row_at[i] if row_at[i] > highest else highest
    if outside:
        raise IndexError("no such row")
    for i in range(n):
        absent |= code_at[i] == ABSENT
    if absent:
        raise ValueError("the code of rows that are not named")
    height = <Py_ssize_t>highest + 1
    for i in range(shown):
        if not 0 <= answered_at[i] < height:
            raise IndexError("an answered row that is not named")
    if n == 0:
        return b""
    of = <code_t*>malloc(height)
    text = <code_t*>malloc(258 + 2 * height)  # a run of n rows takes 2 x n bytes at most
    if of == NULL or text == NULL:
        c_free(of)
        c_free(text)
        raise MemoryError()
    with nogil:
        memset(of, ABSENT, height)
        memset(seen, 0, sizeof(seen))
        for i in range(n):
            code = code_at[i]
            named += of[row_at[i]] == ABSENT
            fits += code == 0
            seen[code] = True
            of[row_at[i]] = code if code else <code_t>left_out
        seen[0] = False
        for i in range(shown):
            if of[answered_at[i]] == left_out:
                of[answered_at[i]] = 0
                fits -= 1
                seen[0] = True
        if fits > 0:
            seen[left_out] = True
        seen[ABSENT] = named < height
        for i in range(256):
            if seen[i]:
                symbols[kinds] = <code_t>i
                places[i] = <code_t>kinds
                kinds += 1
        text[0] = <code_t>(kinds & 0xFF)
        memcpy(text + 1, symbols, kinds)
        at = 1 + kinds
        i = 0
        while i < height:
            begin = i
            i = _end(of, i, height)
            number = <uint64_t>(i - begin - 1) * kinds + places[of[begin]]
            while True:
                half = <code_t>(number & 7 | (8 if number >= 8 else 0))
                if upper:
                    text[at] |= <code_t>(half << 4)
                    at += 1
                else:
                    text[at] = half
                upper = not upper
                number >>= 3
                if half < 8:
                    break
        if upper:
            text[at] |= FILL << 4
            at += 1
    made = <bytes>text[:at]
    c_free(of)
    c_free(text)
    return made


cdef inline Py_ssize_t _end(const code_t *of, Py_ssize_t begin, Py_ssize_t height) noexcept nogil:
    """Where the run that begins at `begin` ends."""
    cdef uint64_t same, eight
    cdef Py_ssize_t i = begin + 1
    memset(&same, of[begin], 8)
    while i + 8 <= height:
        memcpy(&eight, of + i, 8)
        if eight != same:
            break
        i += 8
    while i < height and of[i] == of[begin]:
        i += 1
    return i


def unpack(bytes text not None):
    """(rows, codes) of the rows that are named, by row."""
    rows, codes = array("i"), array("B")
    cdef const code_t[::1] data = text
    cdef Py_ssize_t size = data.shape[0], at, kinds, named = 0, begin, length
    cdef uint64_t number
    cdef code_t code, half
    cdef int shift, turn
    cdef row_t[::1] row_out
    cdef code_t[::1] code_out
    cdef Py_ssize_t row, filled = 0, i
    if size == 0:
        return rows, codes
    kinds = data[0] or 256
    begin = 1 + kinds
    if begin > size:
        raise ValueError("no text of runs")
    for turn in range(2):  # count, then write
        at = 2 * begin
        row = 0
        if turn:
            rows, codes = array("i", bytes(4 * named)), array("B", bytes(named))
            row_out, code_out = rows, codes
        while at < 2 * size:
            number = 0
            shift = 0
            while True:
                if at >= 2 * size or shift > 36:
                    raise ValueError("no text of runs")
                half = data[at // 2] >> 4 if at & 1 else data[at // 2] & 15
                at += 1
                if half == FILL and at == 2 * size and shift == 0:
                    break
                number |= <uint64_t>(half & 7) << shift
                shift += 3
                if half < 8:
                    break
            if shift == 0:
                break
            code = data[1 + <Py_ssize_t>(number % <uint64_t>kinds)]
            length = <Py_ssize_t>(number // <uint64_t>kinds) + 1
            if length > MOST_ROWS - row:
                raise ValueError("no text of runs")
            if code != ABSENT:
                if turn:
                    for i in range(length):
                        row_out[filled + i] = <row_t>(row + i)
                        code_out[filled + i] = code
                    filled += length
                else:
                    named += length
            row += length
    return rows, codes
