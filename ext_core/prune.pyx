"""JSON of any depth, cut down to what a decoder with a recursion limit can read.

Theory of operation. One pass over the bytes counts brackets outside of strings; nothing recurses and nothing is kept
for each level, so 100,000 nested lists cost what 100 kB of text cost. Only brackets and quotes are looked at: whether
the rest is JSON, whether a bracket closes one of its own kind, says the decoder that reads the result. These functions
run only where that decoder has failed: one object must not hide the others of its page.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr, memcpy

ctypedef const unsigned char* text_t


cdef inline bint is_space(unsigned char ch) noexcept nogil:
    return ch == c' ' or ch == c'\n' or ch == c'\t' or ch == c'\r'


cdef inline Py_ssize_t past_space(text_t text, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    while at < end and is_space(text[at]):
        at += 1
    return at


cdef Py_ssize_t past_string(text_t text, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """`at` is on the opening quote; answers the byte behind the closing one, -1 where there is none."""
    cdef text_t quote
    cdef Py_ssize_t found, slashes
    at += 1
    while True:
        if at >= end:
            return -1
        quote = <text_t>memchr(text + at, c'"', <size_t>(end - at))
        if quote == NULL:
            return -1
        with cython.overflowcheck(False):  # a difference of pointers, which Cython cannot check
            found = quote - text
        slashes = 0
        while found - slashes > at and text[found - slashes - 1] == c'\\':
            slashes += 1
        at = found + 1
        if slashes % 2 == 0:
            return at


cdef Py_ssize_t past_value(text_t text, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """`at` is on the first byte of a value; answers the byte behind its last, -1 where the text ends inside it."""
    cdef Py_ssize_t depth = 0
    cdef unsigned char ch
    while at < end:
        ch = text[at]
        if ch == c'"':
            at = past_string(text, at, end)
            if at < 0 or depth == 0:
                return at
            continue
        if ch == c'{' or ch == c'[':
            depth += 1
        elif ch == c'}' or ch == c']':
            if depth == 0:
                return at
            depth -= 1
            if depth == 0:
                return at + 1
        elif depth == 0 and (ch == c',' or is_space(ch)):
            return at
        at += 1
    return at if depth == 0 else -1


def prune(bytes source, Py_ssize_t deepest):
    """`source` with `null` for each object or list that lies in `deepest` others or more; the same bytes if none does.

    `deepest` 1 keeps the outermost brackets alone. Texts one behind the other are cut each. ValueError: a string or a
    bracket is not closed, or one closes that was not opened.
    """
    cdef text_t text = <text_t>PyBytes_AS_STRING(source)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(source), at = 0, depth = 0, kept = 0, size = 0, behind
    cdef unsigned char ch
    if deepest < 1:
        raise ValueError("deepest must be at least 1")
    cdef object made = None
    cdef char* into = NULL
    while at < end:
        ch = text[at]
        if ch == c'"':
            at = past_string(text, at, end)
            if at < 0:
                raise ValueError("a string is not closed")
            continue
        if ch == c'{' or ch == c'[':
            if depth >= deepest:
                behind = past_value(text, at, end)
                if behind < 0:
                    raise ValueError("a string or a bracket is not closed")
                if made is None:  # each cut makes two bytes (or more) to four, and stands beside a byte that stays
                    made = PyBytes_FromStringAndSize(NULL, 2 * end + 4)
                    into = PyBytes_AS_STRING(made)
                memcpy(into + size, text + kept, <size_t>(at - kept))
                size += at - kept
                memcpy(into + size, b"null", 4)
                size += 4
                at = kept = behind
                continue
            depth += 1
        elif ch == c'}' or ch == c']':
            depth -= 1
            if depth < 0:
                raise ValueError("a bracket closes that was not opened")
        at += 1
    if depth:
        raise ValueError("a bracket is not closed")
    if made is None:
        return source
    memcpy(into + size, text + kept, <size_t>(end - kept))
    return made[:size + end - kept]


def members(bytes source):
    """Key (bytes between the quotes, escapes as they stand) -> byte range of its value, of the object that `source`
    is; of a key that stands twice the last. ValueError: it is no object, or is not closed."""
    cdef text_t text = <text_t>PyBytes_AS_STRING(source)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(source), at = past_space(text, 0, end), key, closed, behind
    if at >= end or text[at] != c'{':
        raise ValueError("not an object")
    found = {}
    at = past_space(text, at + 1, end)
    while at < end and text[at] == c'"':
        key = at + 1
        closed = past_string(text, at, end)
        at = past_space(text, closed, end) if closed >= 0 else end
        if at >= end or text[at] != c':':
            raise ValueError("a key is not followed by a value")
        at = past_space(text, at + 1, end)
        behind = past_value(text, at, end)
        if behind <= at:
            raise ValueError("a value is missing, or not closed")
        found[source[key:closed - 1]] = (at, behind)
        at = past_space(text, behind, end)
        if at >= end or text[at] != c',':
            break
        at = past_space(text, at + 1, end)
    if at >= end or text[at] != c'}':
        raise ValueError("the object is not closed")
    return found


def elements(bytes source, Py_ssize_t start, Py_ssize_t end):
    """The byte ranges of the elements of the list source[start:end]. ValueError: it is no list, or is not closed."""
    cdef text_t text = <text_t>PyBytes_AS_STRING(source)
    cdef Py_ssize_t at, behind
    if not 0 <= start <= end <= PyBytes_GET_SIZE(source):
        raise ValueError("the range is not inside the text")
    at = past_space(text, start, end)
    if at >= end or text[at] != c'[':
        raise ValueError("not a list")
    found = []
    at = past_space(text, at + 1, end)
    if at < end and text[at] == c']':
        return found
    while at < end:
        behind = past_value(text, at, end)
        if behind <= at:
            break
        found.append((at, behind))
        at = past_space(text, behind, end)
        if at >= end or text[at] != c',':
            break
        at = past_space(text, at + 1, end)
    if at >= end or text[at] != c']':
        raise ValueError("the list is not closed")
    return found
