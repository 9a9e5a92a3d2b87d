"""The grammar of JSON (RFC 8259) over bytes where they lie, without recursion. Every function returns -1 and sets
`wrong` on failure."""
cimport cython
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

from ext_core.ints cimport text_t

cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define EXT_CORE_LE64(word) __builtin_bswap64(word)
    #else
    #define EXT_CORE_LE64(word) (word)
    #endif
    """
    uint64_t EXT_CORE_LE64(uint64_t word) noexcept nogil
    int __builtin_ctzll(unsigned long long word) noexcept nogil
    void __builtin_prefetch(const void* at, int write) noexcept nogil

cdef enum:
    DEEPEST = 1024  # nesting that one call can follow: its stack is on the C stack

cdef struct cursor:
    text_t text
    Py_ssize_t at       # next byte to read; after a failure, the byte that is wrong
    Py_ssize_t end      # first byte that must not be read
    bint escaped        # the string skipped last holds a backslash
    const char* wrong   # what is wrong; NULL while all is well


cdef inline int fail(cursor* c, Py_ssize_t at, const char* wrong) noexcept nogil:
    c.at = at
    c.wrong = wrong
    return -1


cdef inline void skip_space(cursor* c) noexcept nogil:
    cdef unsigned char ch
    while c.at < c.end:
        ch = c.text[c.at]
        if ch > 32 or not (ch == c' ' or ch == c'\n' or ch == c'\t' or ch == c'\r'):
            return
        c.at += 1


cdef inline bint take(cursor* c, char mark) noexcept nogil:
    """Step over `mark` and the space behind it; False where something else stands."""
    if not closes(c, mark):
        return False
    skip_space(c)
    return True


cdef inline bint closes(cursor* c, char mark) noexcept nogil:
    """Step over `mark`, as the last byte of a value; False where something else stands."""
    if c.at >= c.end or c.text[c.at] != mark:
        return False
    c.at += 1
    return True


@cython.overflowcheck(False)  # the differences wrap
cdef inline uint64_t special(uint64_t word) noexcept nogil:
    """The high bit of each byte that ends a plain run of a string: '"', '\\', or below 0x20.

    Exact up to the lowest such byte; above it a borrow may set more.
    """
    cdef uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u
    cdef uint64_t quote = word ^ (ones * 0x22), slash = word ^ (ones * 0x5C)
    return (((word - ones * 0x20) & ~word) | ((quote - ones) & ~quote) | ((slash - ones) & ~slash)) & highs


cdef inline int hex_digit(unsigned char ch) noexcept nogil:
    if c'0' <= ch <= c'9':
        return ch - c'0'
    if c'a' <= ch <= c'f':
        return ch - c'a' + 10
    if c'A' <= ch <= c'F':
        return ch - c'A' + 10
    return -1


cdef inline int skip_escape(cursor* c) noexcept nogil:
    """c.at is on the backslash; afterwards it is behind the escape."""
    cdef Py_ssize_t i
    cdef unsigned char ch
    if c.at + 1 >= c.end:
        return fail(c, c.end, "the text ends inside a string")
    ch = c.text[c.at + 1]
    if ch == c'u':
        for i in range(c.at + 2, c.at + 6):
            if i >= c.end:
                return fail(c, c.end, "the text ends inside a string")
            if hex_digit(c.text[i]) < 0:
                return fail(c, i, "not a hexadecimal digit")
        c.at += 6
        return 0
    if ch == c'"' or ch == c'\\' or ch == c'/' or ch == c'b' or ch == c'f' or ch == c'n' or ch == c'r' or ch == c't':
        c.at += 2
        return 0
    return fail(c, c.at + 1, "unknown escape in a string")


cdef inline int skip_string(cursor* c) noexcept nogil:
    """c.at is on the opening quote; afterwards it is behind the closing one."""
    cdef uint64_t word, hits
    cdef unsigned char ch
    c.escaped = False
    c.at += 1
    while True:
        while c.end - c.at >= 8:
            memcpy(&word, c.text + c.at, 8)
            hits = special(EXT_CORE_LE64(word))
            if hits:
                c.at += __builtin_ctzll(hits) >> 3
                break
            c.at += 8
        if c.at >= c.end:
            return fail(c, c.end, "the text ends inside a string")
        ch = c.text[c.at]
        if ch == c'"':
            c.at += 1
            return 0
        if ch == c'\\':
            c.escaped = True
            if skip_escape(c) < 0:
                return -1
        elif ch < 32:
            return fail(c, c.at, "control character in a string")
        else:
            c.at += 1


cdef inline bint digit_at(cursor* c) noexcept nogil:
    return c.at < c.end and c'0' <= c.text[c.at] <= c'9'


cdef inline int skip_number(cursor* c) noexcept nogil:
    if c.text[c.at] == c'-':
        c.at += 1
    if not digit_at(c):
        return fail(c, c.at, "not a JSON value")
    if c.text[c.at] == c'0':
        c.at += 1
    else:
        while digit_at(c):
            c.at += 1
    if c.at < c.end and c.text[c.at] == c'.':
        c.at += 1
        if not digit_at(c):
            return fail(c, c.at, "a digit must follow the decimal point")
        while digit_at(c):
            c.at += 1
    if c.at < c.end and (c.text[c.at] == c'e' or c.text[c.at] == c'E'):
        c.at += 1
        if c.at < c.end and (c.text[c.at] == c'+' or c.text[c.at] == c'-'):
            c.at += 1
        if not digit_at(c):
            return fail(c, c.at, "a digit must follow the exponent")
        while digit_at(c):
            c.at += 1
    return 0


cdef inline int skip_literal(cursor* c, const char* literal, Py_ssize_t size) noexcept nogil:
    if c.end - c.at < size or memcmp(c.text + c.at, literal, size) != 0:
        return fail(c, c.at, "not a JSON value")
    c.at += size
    return 0


cdef inline int skip_key(cursor* c) noexcept nogil:
    """A key, its colon, and the space around them: c.at is on the key; afterwards on the value."""
    if c.at >= c.end or c.text[c.at] != c'"':
        return fail(c, c.at, "a key in quotes must follow")
    if skip_string(c) < 0:
        return -1
    skip_space(c)
    return 0 if take(c, c':') else fail(c, c.at, "':' must follow")


cdef inline int skip_value(cursor* c, Py_ssize_t deepest) noexcept nogil:
    """One value of at most `deepest` (<= DEEPEST) nested brackets: c.at moves from its first byte behind its last."""
    cdef char closing[DEEPEST]
    cdef Py_ssize_t depth = 0
    cdef unsigned char ch
    while True:  # a value must begin here
        if c.at >= c.end:
            return fail(c, c.end, "the text ends where a value must follow")
        ch = c.text[c.at]
        if ch == c'"':
            if skip_string(c) < 0:
                return -1
        elif ch == c'{' or ch == c'[':
            if depth >= deepest:
                return fail(c, c.at, "nested too deep")
            closing[depth] = c'}' if ch == c'{' else c']'
            depth += 1
            c.at += 1
            skip_space(c)
            if c.at >= c.end or c.text[c.at] != closing[depth - 1]:
                if ch == c'{' and skip_key(c) < 0:
                    return -1
                continue
            depth -= 1
            c.at += 1
        elif ch == c't':
            if skip_literal(c, "true", 4) < 0:
                return -1
        elif ch == c'f':
            if skip_literal(c, "false", 5) < 0:
                return -1
        elif ch == c'n':
            if skip_literal(c, "null", 4) < 0:
                return -1
        elif skip_number(c) < 0:
            return -1
        while True:  # a value has just ended
            if depth == 0:
                return 0
            skip_space(c)
            if c.at >= c.end:
                return fail(c, c.end, "the text ends inside brackets")
            ch = c.text[c.at]
            if ch == c',':
                c.at += 1
                skip_space(c)
                if closing[depth - 1] == c'}' and skip_key(c) < 0:
                    return -1
                break
            if ch != closing[depth - 1]:
                return fail(c, c.at, "',' or the closing bracket must follow")
            depth -= 1
            c.at += 1
