"""Result columns -> the JSON bytes of a verb's reply, without a Python object per node name.

A node's name is quoted and escaped once, when it enters `Heads`; a reply copies those bytes. The bytes equal what
`orjson.dumps` gives for the same dict or list: no spaces, UTF-8 as it is, escapes only where JSON demands them.

The GIL is kept while a reply is built: another thread's `Heads.set` could free a name under the loop. The loops are
`nogil` functions all the same, so the compiler rejects any Python operation in them.
"""

cimport cython
from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int8_t, int32_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from ext_core.ints cimport code_t, row_t

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    CODES = 256        # values of a code_t
    NO_MEMORY = -2     # a writing loop returns it without memory for the reply; -1 = done; 0 or more = the bad row

cdef struct piece:
    const char* text   # NULL = none
    Py_ssize_t size

ctypedef fused points_t:
    int8_t
    int32_t


# --- A growing buffer ---

cdef struct sink:
    char* text         # owned
    Py_ssize_t size
    Py_ssize_t room


cdef inline char* claim(sink* out, Py_ssize_t size) noexcept nogil:
    """Room for `size` more bytes; the caller writes them all. NULL: no memory."""
    cdef Py_ssize_t room
    cdef char* text
    if out.size + size > out.room:
        room = 2 * (out.size + size)
        text = <char*>realloc(out.text, room)
        if text == NULL:
            return NULL
        out.text = text
        out.room = room
    out.size += size
    return out.text + out.size - size


cdef int put(sink* out, const char* text, Py_ssize_t size) except -1:
    cdef char* at = claim(out, size)
    if at == NULL:
        raise MemoryError()
    memcpy(at, text, size)
    return 0


cdef int put_bytes(sink* out, bytes text) except -1:
    return put(out, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


# --- JSON strings ---

cdef inline Py_ssize_t quoted_size(const unsigned char* utf8, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t i, total = size + 2
    cdef unsigned char ch
    for i in range(size):
        ch = utf8[i]
        if ch == c'"' or ch == c'\\':
            total += 1
        elif ch < 32:
            total += 1 if short_escape(ch) else 5
    return total


cdef inline char short_escape(unsigned char ch) noexcept nogil:
    """The letter behind the backslash; 0 = this control character has no letter."""
    if ch == 8:
        return c'b'
    if ch == 9:
        return c't'
    if ch == 10:
        return c'n'
    if ch == 12:
        return c'f'
    if ch == 13:
        return c'r'
    return 0


cdef void write_quoted(const unsigned char* utf8, Py_ssize_t size, char* into) noexcept nogil:
    """Exactly quoted_size(utf8, size) bytes."""
    cdef const char* digits = "0123456789abcdef"
    cdef Py_ssize_t i
    cdef unsigned char ch
    into[0] = c'"'
    into += 1
    for i in range(size):
        ch = utf8[i]
        if ch == c'"' or ch == c'\\' or ch < 32:
            into[0] = c'\\'
            if ch >= 32:
                into[1] = <char>ch
                into += 2
            elif short_escape(ch):
                into[1] = short_escape(ch)
                into += 2
            else:
                into[1] = c'u'
                into[2] = into[3] = c'0'
                into[4] = digits[ch >> 4]
                into[5] = digits[ch & 15]
                into += 6
        else:
            into[0] = <char>ch
            into += 1
    into[0] = c'"'


cdef int put_quoted(sink* out, str text) except -1:
    """UnicodeEncodeError: half a surrogate pair."""
    cdef Py_ssize_t size
    cdef const unsigned char* utf8 = <const unsigned char*>PyUnicode_AsUTF8AndSize(text, &size)
    cdef char* at = claim(out, quoted_size(utf8, size))
    if at == NULL:
        raise MemoryError()
    write_quoted(utf8, size, at)
    return 0


# --- Names ---

@cython.final
cdef class Heads:
    """Row -> the node's name as a JSON string, quoted and escaped once."""

    cdef piece* pieces   # each text is owned
    cdef Py_ssize_t room
    cdef sink spare      # the buffer of the last reply: a fresh one would cost more page faults than the loop takes

    def __cinit__(self):
        self.pieces = NULL
        self.room = 0
        memset(&self.spare, 0, sizeof(sink))

    def __dealloc__(self):
        cdef Py_ssize_t row
        for row in range(self.room):
            free(<void*>self.pieces[row].text)
        free(self.pieces)
        free(self.spare.text)

    cdef sink borrow(self) noexcept nogil:
        """The spare buffer, empty. It is taken out, so that a reply built within a reply would get its own."""
        cdef sink out = self.spare
        out.size = 0
        memset(&self.spare, 0, sizeof(sink))
        return out

    cdef void give_back(self, sink out) noexcept nogil:
        free(self.spare.text)
        self.spare = out

    def set(self, row_t row, str name not None):
        """Name the row, anew if it had a name. ValueError: a negative row, or half a surrogate pair in the name."""
        cdef Py_ssize_t size, room
        cdef const unsigned char* utf8 = <const unsigned char*>PyUnicode_AsUTF8AndSize(name, &size)
        cdef piece* grown
        cdef char* text
        if row < 0:
            raise ValueError(f"row {row} of {name!r} is negative")
        if row >= self.room:
            room = 2 * (<Py_ssize_t>row + 1)
            grown = <piece*>realloc(self.pieces, room * sizeof(piece))
            if grown == NULL:
                raise MemoryError()
            memset(grown + self.room, 0, (room - self.room) * sizeof(piece))
            self.pieces = grown
            self.room = room
        text = <char*>malloc(quoted_size(utf8, size))
        if text == NULL:
            raise MemoryError()
        write_quoted(utf8, size, text)
        free(<void*>self.pieces[row].text)
        self.pieces[row].text = text
        self.pieces[row].size = quoted_size(utf8, size)

    def clear(self, row_t row):
        """Forget the row's name. KeyError: it has none."""
        if self.at(row) == NULL:
            raise KeyError(row)
        free(<void*>self.pieces[row].text)
        self.pieces[row].text = NULL

    cdef inline const piece* at(self, row_t row) noexcept nogil:
        """NULL = the row has no name."""
        if row < 0 or row >= self.room or self.pieces[row].text == NULL:
            return NULL
        return self.pieces + row


cdef int check(Py_ssize_t outcome) except -1:
    """Raise what a writing loop returned, where it failed."""
    if outcome == NO_MEMORY:
        raise MemoryError()
    if outcome >= 0:
        raise ValueError(f"entry {outcome} is a row without a name")
    return 0


cdef Py_ssize_t put_names(sink* out, Heads heads, const row_t[::1] rows) noexcept nogil:
    """"n1","n2" - each with a comma in front but the first."""
    cdef Py_ssize_t i
    cdef const piece* head
    cdef char* at
    for i in range(rows.shape[0]):
        head = heads.at(rows[i])
        if head == NULL:
            return i
        at = claim(out, head.size + 1)
        if at == NULL:
            return NO_MEMORY
        memcpy(at, head.text, head.size)
        at[head.size] = c','
    if rows.shape[0]:
        out.size -= 1  # the last comma
    return -1


cdef Py_ssize_t put_reasons(
    sink* out, Heads heads, const row_t[::1] rows, const code_t[::1] codes, const piece* texts
) noexcept nogil:
    """"n1":"text",... with a comma behind each. Every code has its text (the caller looked)."""
    cdef Py_ssize_t i
    cdef const piece* head
    cdef const piece* text
    cdef char* at
    for i in range(rows.shape[0]):
        head = heads.at(rows[i])
        if head == NULL:
            return i
        text = texts + codes[i]
        at = claim(out, head.size + text.size + 2)
        if at == NULL:
            return NO_MEMORY
        memcpy(at, head.text, head.size)
        at[head.size] = c':'
        memcpy(at + head.size + 1, text.text, text.size)
        at[head.size + 1 + text.size] = c','
    return -1


cdef inline char* write_number(int32_t number, char* at) noexcept nogil:
    """Decimal digits, at most 11 with the sign; returns where they end."""
    cdef char digits[10]
    cdef int n = 0
    cdef uint32_t left = <uint32_t>number
    if 0 <= number <= 9:  # nearly always
        at[0] = <char>(c'0' + number)
        return at + 1
    if number < 0:
        at[0] = c'-'
        at += 1
        left = 0 - left
    while True:
        digits[n] = <char>(c'0' + left % 10)
        n += 1
        left //= 10
        if left == 0:
            break
    while n > 0:
        n -= 1
        at[0] = digits[n]
        at += 1
    return at


cdef Py_ssize_t put_scores(sink* out, Heads heads, const row_t[::1] rows, const points_t[::1] points) noexcept nogil:
    """{"Host":"n1","Score":10},... with a comma behind each."""
    cdef Py_ssize_t i
    cdef const piece* head
    cdef char* at
    for i in range(rows.shape[0]):
        head = heads.at(rows[i])
        if head == NULL:
            return i
        at = claim(out, head.size + 30)  # {"Host": is 8 bytes, ,"Score": 9, the number up to 11, }, 2
        if at == NULL:
            return NO_MEMORY
        memcpy(at, b'{"Host":', 8)
        memcpy(at + 8, head.text, head.size)
        memcpy(at + 8 + head.size, b',"Score":', 9)
        at = write_number(points[i], at + 17 + head.size)
        at[0] = c'}'
        at[1] = c','
        with cython.overflowcheck(False):  # a difference of pointers, which Cython cannot check
            out.size = at + 2 - out.text  # less than claimed
    return -1


# --- Replies ---

@cython.final
cdef class _Reasons:
    """The constant texts of one reply, each quoted once; only those that are used."""

    cdef piece pieces[CODES]
    cdef list texts
    cdef list kept       # owns what `pieces` points to

    def __cinit__(self, list texts not None):
        self.texts = texts
        self.kept = []
        memset(self.pieces, 0, sizeof(self.pieces))

    cdef int need(self, Py_ssize_t code) except -1:
        cdef sink out
        cdef bytes text
        if self.pieces[code].text != NULL:
            return 0
        if code >= len(self.texts):
            raise ValueError(f"code {code} has no text: there are {len(self.texts)}")
        memset(&out, 0, sizeof(out))
        try:
            put_quoted(&out, self.texts[code])
            text = PyBytes_FromStringAndSize(out.text, out.size)
        finally:
            free(out.text)
        self.kept.append(text)
        self.pieces[code].text = PyBytes_AS_STRING(text)
        self.pieces[code].size = PyBytes_GET_SIZE(text)
        return 0

    cdef int need_all(self, const row_t[::1] rows, const code_t[::1] codes) except -1:
        cdef bint used[CODES]
        cdef Py_ssize_t i
        if rows.shape[0] != codes.shape[0]:
            raise ValueError(f"{rows.shape[0]} rows but {codes.shape[0]} codes")
        memset(used, 0, sizeof(used))
        with nogil:
            for i in range(codes.shape[0]):
                used[codes[i]] = True
        for i in range(CODES):
            if used[i]:
                self.need(i)
        return 0


cdef int put_rejections(sink* out, Heads heads, rejections) except -1:
    """The two maps and all that follows them."""
    cdef list texts, unknown
    cdef const row_t[::1] failed_rows, unresolvable_rows
    cdef const code_t[::1] failed_codes, unresolvable_codes
    cdef str name
    cdef Py_ssize_t code
    failed, unresolvable, texts, unknown = rejections
    if not (failed[0] or failed[1] or unresolvable[0] or unresolvable[1] or unknown):  # of most shortlists
        put_bytes(out, b',"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}')
        return 0
    failed_rows, failed_codes = failed
    unresolvable_rows, unresolvable_codes = unresolvable
    cdef _Reasons reasons = _Reasons(texts)
    reasons.need_all(failed_rows, failed_codes)
    reasons.need_all(unresolvable_rows, unresolvable_codes)
    put_bytes(out, b',"FailedNodes":{')
    check(put_reasons(out, heads, failed_rows, failed_codes, reasons.pieces))
    close(out, b"}")
    put_bytes(out, b',"FailedAndUnresolvableNodes":{')
    check(put_reasons(out, heads, unresolvable_rows, unresolvable_codes, reasons.pieces))
    for name, code in unknown:
        if not 0 <= code < CODES:
            raise ValueError(f"code {code} of {name!r} is not 0 to {CODES - 1}")
        reasons.need(code)
        put_quoted(out, name)
        put(out, ":", 1)
        put(out, reasons.pieces[code].text, reasons.pieces[code].size)
        put(out, ",", 1)
    close(out, b"}")
    put_bytes(out, b',"Error":""}')
    return 0


cdef int close(sink* out, bytes bracket) except -1:
    """The closing bracket, in place of the comma behind the last entry if there is one."""
    if out.text[out.size - 1] == c',':
        out.size -= 1
    return put_bytes(out, bracket)


def filter_result(Heads heads not None, const row_t[::1] passed not None, rejections not None):
    """An ExtenderFilterResult with NodeNames (nodeCacheCapable: true).

    passed: rows, in the order of the reply. rejections: a Rejections. A row or name given twice is written twice, so
    give each once. ValueError: a row without a name, a code without a text, columns of unequal length.
    """
    cdef sink out = heads.borrow()
    try:
        put_bytes(&out, b'{"Nodes":null,"NodeNames":[')
        check(put_names(&out, heads, passed))
        put(&out, "]", 1)
        put_rejections(&out, heads, rejections)
        return PyBytes_FromStringAndSize(out.text, out.size)
    finally:
        heads.give_back(out)


def filter_result_nodes(Heads heads not None, bytes body not None, list ranges not None, rejections not None):
    """An ExtenderFilterResult with whole Nodes (nodeCacheCapable: false): the raw bytes of the request, as they came.

    ranges: [start, end) in `body` of each node that passes (`scan.items`). The rest is as in `filter_result`, and a
    range outside the body is a ValueError.
    """
    cdef sink out
    cdef Py_ssize_t start, end
    memset(&out, 0, sizeof(out))
    try:
        put_bytes(&out, b'{"Nodes":{"metadata":{},"items":[')
        for start, end in ranges:
            if not 0 <= start < end <= PyBytes_GET_SIZE(body):
                raise ValueError(f"the range [{start}, {end}) is empty or not inside {PyBytes_GET_SIZE(body)} bytes")
            put(&out, PyBytes_AS_STRING(body) + start, end - start)
            put(&out, ",", 1)
        close(&out, b"]")
        put_bytes(&out, b'},"NodeNames":null')
        put_rejections(&out, heads, rejections)
        return PyBytes_FromStringAndSize(out.text, out.size)
    finally:
        free(out.text)


def filter_error(str message not None):
    """An ExtenderFilterResult that fails the call with `message`; half a surrogate pair in it becomes "?".

    ValueError: the message is empty, which the scheduler would read as "no error, and no node passes".
    """
    cdef sink out
    if not message:
        raise ValueError("an error must have a message")
    memset(&out, 0, sizeof(out))
    try:
        put_bytes(&out, b'{"Nodes":null,"NodeNames":null,"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":')
        put_quoted(&out, message.encode("utf-8", "replace").decode("utf-8"))
        put(&out, "}", 1)
        return PyBytes_FromStringAndSize(out.text, out.size)
    finally:
        free(out.text)


def priorities(
    Heads heads not None, const row_t[::1] rows not None, array.array points not None, list unknown not None
):
    """A HostPriorityList: one {"Host", "Score"} a row, in the rows' order, then the unknown names with 0.

    points: array('b') or array('i'), one a row; the scheduler expects 0..10 and adds up a host named twice. ValueError:
    a row without a name, columns of unequal length, points of another type.
    """
    cdef const int8_t[::1] small
    cdef const int32_t[::1] wide
    cdef str name
    if len(points) != rows.shape[0]:
        raise ValueError(f"{rows.shape[0]} rows but {len(points)} points")
    cdef sink out = heads.borrow()
    try:
        put(&out, "[", 1)
        if points.typecode == "b":
            small = points
            check(put_scores(&out, heads, rows, small))
        elif points.typecode == "i":
            wide = points
            check(put_scores(&out, heads, rows, wide))
        else:
            raise ValueError(f"points must be array('b') or array('i'), not array({points.typecode!r})")
        for name in unknown:
            put_bytes(&out, b'{"Host":')
            put_quoted(&out, name)
            put_bytes(&out, b',"Score":0},')
        close(&out, b"]")
        return PyBytes_FromStringAndSize(out.text, out.size)
    finally:
        heads.give_back(out)
