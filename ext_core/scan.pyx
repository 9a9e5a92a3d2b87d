"""Request bytes -> byte ranges and rows, without a Python object per node name.

Theory of operation. A verb's body is a flat JSON object (Pod, Nodes, NodeNames) of which most bytes are node names or
whole nodes. `split` checks the grammar of the whole text once, without recursion, and returns where each top-level
value lies. A caller that needs the inside of a value decodes that slice alone. `rows` turns the slice of names into
rows of the node table by hashing the bytes where they lie. The bytes of a name that equals a known one are not checked
otherwise.

What is checked: brackets, commas, colons, literals, numbers, escapes, control characters, depth. What is not: whether
strings inside nested values are UTF-8 (a JSON decoder of that slice checks it). Names and keys that become a `str` are,
and so are whole nodes (`items`), which go back as they came. A node's name has LONGEST_NAME bytes at most.

The GIL is kept while a NameIndex is read: another thread's `add` could move the table under the loop. The loops are
`nogil` functions all the same, so the compiler rejects any Python operation in them.
"""

cimport cython
from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy

from ext_core.ints cimport row_t, text_t
from ext_core.json_text cimport (DEEPEST, __builtin_prefetch, closes, cursor, digit_at, fail, hex_digit, skip_key,
                                 skip_space, skip_string, skip_value, special, take)
from ext_core.name_index cimport NameIndex, name_hash, slot

import array

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    MANY = 16  # names that are looked up at a time
    LONGEST_NAME = 253  # bytes of a node's name: a DNS subdomain, as the API server checks it
    DEEP = 200  # brackets within each other in a verb's body

cdef const char* TOO_LONG = "a node's name has more than 253 bytes"


class ScanError(ValueError):
    """The text is not the JSON that was asked for: `offset` is the byte in the body, `message` states what is wrong."""

    def __init__(self, offset, message):
        super().__init__(offset, message)
        self.offset = offset
        self.message = message

    def __str__(self):
        return f"byte {self.offset}: {self.message}"


# --- From string contents to names ---

cdef Py_ssize_t unescape(text_t source, Py_ssize_t size, unsigned char* into) noexcept nogil:
    """The UTF-8 bytes of a checked string's contents, never more than `size`; returns how many.

    -1: half a surrogate pair.
    """
    cdef Py_ssize_t i = 0, n = 0
    cdef unsigned char ch
    cdef uint32_t point
    while i < size:
        ch = source[i]
        if ch != c'\\':
            into[n] = ch
            i += 1
            n += 1
            continue
        ch = source[i + 1]
        if ch != c'u':
            if ch == c'b':
                ch = 8
            elif ch == c'f':
                ch = 12
            elif ch == c'n':
                ch = 10
            elif ch == c'r':
                ch = 13
            elif ch == c't':
                ch = 9
            into[n] = ch
            i += 2
            n += 1
            continue
        point = four_digits(source + i + 2)
        i += 6
        if 0xDC00 <= point <= 0xDFFF:
            return -1
        if 0xD800 <= point <= 0xDBFF:
            if size - i < 6 or source[i] != c'\\' or source[i + 1] != c'u':
                return -1
            ch = (four_digits(source + i + 2) >> 10) & 0x3F
            if ch != 0x37:  # 0xDC00 >> 10
                return -1
            point = 0x10000 + ((point & 0x3FF) << 10) + (four_digits(source + i + 2) & 0x3FF)
            i += 6
        if point < 0x80:
            into[n] = <unsigned char>point
            n += 1
        elif point < 0x800:
            into[n] = <unsigned char>(0xC0 | (point >> 6))
            into[n + 1] = <unsigned char>(0x80 | (point & 0x3F))
            n += 2
        elif point < 0x10000:
            into[n] = <unsigned char>(0xE0 | (point >> 12))
            into[n + 1] = <unsigned char>(0x80 | ((point >> 6) & 0x3F))
            into[n + 2] = <unsigned char>(0x80 | (point & 0x3F))
            n += 3
        else:
            into[n] = <unsigned char>(0xF0 | (point >> 18))
            into[n + 1] = <unsigned char>(0x80 | ((point >> 12) & 0x3F))
            into[n + 2] = <unsigned char>(0x80 | ((point >> 6) & 0x3F))
            into[n + 3] = <unsigned char>(0x80 | (point & 0x3F))
            n += 4
    return n


cdef inline uint32_t four_digits(text_t source) noexcept nogil:
    return <uint32_t>((hex_digit(source[0]) << 12) | (hex_digit(source[1]) << 8)
                      | (hex_digit(source[2]) << 4) | hex_digit(source[3]))


cdef inline Py_ssize_t utf8_size(text_t at, Py_ssize_t room) noexcept nogil:
    """Bytes of the UTF-8 character of two bytes or more at `at`, of which `room` are there; 0 if it is none (RFC 3629:
    no surrogate, nothing beyond U+10FFFF, nothing longer than it must be)."""
    cdef unsigned char one = at[0], two
    cdef Py_ssize_t size = 2 if 0xC2 <= one <= 0xDF else 3 if 0xE0 <= one <= 0xEF else 4 if 0xF0 <= one <= 0xF4 else 0
    cdef Py_ssize_t i
    if size == 0 or size > room:
        return 0
    for i in range(1, size):
        if at[i] & 0xC0 != 0x80:
            return 0
    two = at[1]
    if (one == 0xE0 and two < 0xA0) or (one == 0xED and two > 0x9F):
        return 0
    if (one == 0xF0 and two < 0x90) or (one == 0xF4 and two > 0x8F):
        return 0
    return size


cdef int check_text(cursor* c, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """Whether the checked JSON in [at, end) is UTF-8 and its escapes have no half of a surrogate pair: 0, else -1 and
    `wrong`. A backslash stands in strings alone."""
    cdef uint64_t word, slash, ones = 0x0101010101010101u, highs = 0x8080808080808080u
    cdef Py_ssize_t size
    cdef uint32_t point
    while at < end:
        if end - at >= 8:
            memcpy(&word, c.text + at, 8)
            slash = word ^ (ones * 0x5C)
            with cython.overflowcheck(False):  # the difference wraps
                slash = (slash - ones) & ~slash
            if not (word | slash) & highs:
                at += 8
                continue
        if c.text[at] >= 0x80:
            size = utf8_size(c.text + at, end - at)
            if size == 0:
                return fail(c, at, "a string is not UTF-8")
            at += size
        elif c.text[at] != c'\\':
            at += 1
        elif c.text[at + 1] != c'u':
            at += 2
        else:
            point = four_digits(c.text + at + 2)
            if 0xD800 <= point <= 0xDFFF:
                if point >= 0xDC00 or end - at < 12 or c.text[at + 6] != c'\\' or c.text[at + 7] != c'u':
                    return fail(c, at, "half a surrogate pair in a string")
                point = four_digits(c.text + at + 8)
                if not 0xDC00 <= point <= 0xDFFF:
                    return fail(c, at, "half a surrogate pair in a string")
                at += 6
            at += 6
    return 0


cdef str to_str(cursor* c, Py_ssize_t start, Py_ssize_t end):
    """The str of the string contents at [start, end) of a checked string; ScanError if it is no text."""
    cdef Py_ssize_t i, size = end - start
    cdef unsigned char* plain = NULL
    cdef bint escaped = False
    for i in range(start, end):
        if c.text[i] == c'\\':
            escaped = True
            break
    try:
        if not escaped:
            return PyUnicode_DecodeUTF8(<const char*>c.text + start, size, "strict")
        plain = <unsigned char*>malloc(size)
        if plain == NULL:
            raise MemoryError()
        size = unescape(c.text + start, size, plain)
        if size < 0:
            raise ScanError(start, "half a surrogate pair in a string")
        return PyUnicode_DecodeUTF8(<const char*>plain, size, "strict")
    except UnicodeDecodeError:
        raise ScanError(start, "a string is not UTF-8") from None
    finally:
        free(plain)


# --- Ranges ---

cdef int begin(cursor* c, bytes body, Py_ssize_t start, Py_ssize_t end) except -1:
    """A cursor on the first byte of the text in [start, end) that is not space."""
    if not 0 <= start <= end <= PyBytes_GET_SIZE(body):
        raise ValueError(f"the range [{start}, {end}) is not inside a body of {PyBytes_GET_SIZE(body)} bytes")
    c.text = <text_t>PyBytes_AS_STRING(body)
    c.at = start
    c.end = end
    c.escaped = False
    c.wrong = NULL
    skip_space(c)
    return 0


cdef object error(cursor* c):
    return ScanError(c.at, c.wrong.decode("ascii"))


cdef int finish(cursor* c) except -1:
    """Only space may follow."""
    skip_space(c)
    if c.at < c.end:
        raise ScanError(c.at, "more follows after the value")
    return 0


cdef class _Wanted:
    """What `members` reads of a verb's body while it passes over it: one pass is cheaper than two."""
    cdef str key              # of the nodes
    cdef bint names           # these are an array of names; else offers
    cdef NameIndex index
    cdef object nodes         # what `read_names` or `plain_offers` returns; None: not in that form
    cdef tuple pod            # what `read_identity` returns of the member Pod

    def __cinit__(self, str key, bint names, NameIndex index):
        self.key, self.names, self.index = key, names, index

    cdef bint read(self, cursor* c, str key):
        """Whether the value at c.at is read, and c.at behind it."""
        cdef object found = None
        if key == "Pod":
            found = self.pod = read_identity(c)
        elif key == self.key:
            try:
                found = self.nodes = read_names(c, self.index) if self.names else plain_offers(c, self.index)
            except ScanError:  # a name that is no text: `rows` states it
                pass
        return found is not None


cdef dict members(bytes body, Py_ssize_t start, Py_ssize_t end, Py_ssize_t max_depth, _Wanted wanted=None):
    """key -> range of its value, of the one object in [start, end)."""
    cdef cursor c
    cdef Py_ssize_t key_at, value_at
    cdef int failed
    cdef dict found = {}
    cdef str key
    if not 1 <= max_depth <= DEEPEST:
        raise ValueError(f"max_depth must be 1 to {DEEPEST}, not {max_depth}")
    begin(&c, body, start, end)
    if not take(&c, c'{'):
        raise ScanError(c.at, "not a JSON object")
    if take(&c, c'}'):
        finish(&c)
        return found
    while True:
        key_at = c.at
        if skip_key(&c) < 0:
            raise error(&c)
        value_at = c.at
        c.at = key_at
        skip_string(&c)  # passed once already: this only finds the key's end again
        key = to_str(&c, key_at + 1, c.at - 1)
        if key in found:
            raise ScanError(key_at, f"duplicate key {key[:100]!r}")
        c.at = value_at
        if wanted is None or not wanted.read(&c, key):
            c.at = value_at
            c.wrong = NULL
            with nogil:
                failed = skip_value(&c, max_depth - 1)
            if failed:
                raise error(&c)
        found[key] = (value_at, c.at)
        skip_space(&c)
        if c.at >= c.end:
            raise ScanError(c.end, "the text ends inside an object")
        if c.text[c.at] == c'}':
            c.at += 1
            finish(&c)
            return found
        if c.text[c.at] != c',':
            raise ScanError(c.at, "',' or '}' must follow")
        c.at += 1
        skip_space(&c)


def split(bytes body not None, Py_ssize_t max_depth=DEEP):
    """The top-level keys of the JSON object `body`, each with the byte range [start, end) of its raw value, in order.

    Keys are compared as they are, with their case. `max_depth` counts the object itself and is at most 1024.
    ScanError: broken grammar, a duplicate key, nesting beyond max_depth, not an object, or more text behind it.
    """
    return members(body, 0, PyBytes_GET_SIZE(body), max_depth)


def items(bytes body not None, Py_ssize_t start, Py_ssize_t end, Py_ssize_t max_depth=DEEP):
    """The range of each element of the array `items` of the NodeList in [start, end); none if `items` is null. The
    elements are UTF-8 throughout, so a reply may carry them as they came.

    ScanError: not an object with `items`, an element is not an object, is not UTF-8, or has half a surrogate pair.
    """
    cdef cursor c
    cdef Py_ssize_t at
    cdef int failed
    cdef list found = []
    cdef dict node_list = members(body, start, end, max_depth)
    if "items" not in node_list:
        raise ScanError(start, "a NodeList must have 'items'")
    start, end = node_list["items"]
    begin(&c, body, start, end)
    if c.text[c.at] == c'n':  # null: what Go sends for a nil slice
        return found
    if c.text[c.at] != c'[':
        raise ScanError(c.at, "'items' must be an array")
    c.at += 1
    skip_space(&c)
    while c.text[c.at] != c']':  # in bounds: `members` has passed over the whole array
        if c.text[c.at] != c'{':
            raise ScanError(c.at, "an element of 'items' must be an object")
        at = c.at
        with nogil:
            failed = skip_value(&c, max_depth) or check_text(&c, at, c.at)
        if failed:
            raise error(&c)
        found.append((at, c.at))
        skip_space(&c)
        if c.text[c.at] == c',':
            c.at += 1
            skip_space(&c)
    return found


def node_name(bytes body not None, Py_ssize_t start, Py_ssize_t end, Py_ssize_t max_depth=DEEP):
    """metadata.name of the one Kubernetes object in [start, end). ScanError if there is none, it is not a string, or it
    has more than LONGEST_NAME bytes."""
    cdef cursor c
    cdef Py_ssize_t size
    cdef str name
    cdef dict parts = members(body, start, end, max_depth)
    if "metadata" not in parts:
        raise ScanError(start, "an object must have 'metadata'")
    start, end = parts["metadata"]
    parts = members(body, start, end, max_depth)
    if "name" not in parts:
        raise ScanError(start, "'metadata' must have 'name'")
    start, end = parts["name"]
    begin(&c, body, start, end)
    if c.text[c.at] != c'"':
        raise ScanError(start, "'metadata.name' must be a string")
    name = to_str(&c, start + 1, end - 1)
    PyUnicode_AsUTF8AndSize(name, &size)
    if size > LONGEST_NAME:
        raise ScanError(start, TOO_LONG.decode("ascii"))
    return name


cdef inline bint plain_text(cursor* c, Py_ssize_t* start, Py_ssize_t* end) noexcept nogil:
    """Steps over a string without escapes, and states where its contents lie; False for any other value."""
    if c.at >= c.end or c.text[c.at] != c'"':
        return False
    start[0] = c.at + 1
    if skip_string(c) < 0 or c.escaped:
        return False
    end[0] = c.at - 1
    return True


cdef enum:
    UID = 1
    VERSION = 2
    NOMINATED = 4
    METADATA = 8
    STATUS = 16

cdef struct identity_spans:
    Py_ssize_t uid, uid_end, version, version_end, nominated, nominated_end


cdef int wanted_key(cursor* c, Py_ssize_t start, int within) noexcept nogil:
    """Which of the keys it is that count in this part of a pod; 0: none of them."""
    if within == METADATA:
        return UID if is_key(c, start, "uid", 3) else VERSION if is_key(c, start, "resourceVersion", 15) else 0
    if within == STATUS:
        return NOMINATED if is_key(c, start, "nominatedNodeName", 17) else 0
    return METADATA if is_key(c, start, "metadata", 8) else STATUS if is_key(c, start, "status", 6) else 0


cdef bint stated_identity(cursor* c, identity_spans* spans, int within) noexcept nogil:
    """Whether the object at c.at states plainly what counts of it. `within`: 0: the pod, METADATA or STATUS."""
    cdef Py_ssize_t start
    cdef int found = 0, which
    cdef bint plain
    if not take(c, c'{'):
        return False
    if closes(c, c'}'):
        return within == STATUS
    while True:
        start = c.at
        if skip_key(c) < 0 or memchr(c.text + start, c'\\', c.at - start) != NULL:
            return False
        which = wanted_key(c, start, within)
        if found & which:
            return False
        found |= which
        if which == METADATA or which == STATUS:
            plain = stated_identity(c, spans, which)
        elif which == UID:
            plain = plain_text(c, &spans.uid, &spans.uid_end)
        elif which == VERSION:
            plain = plain_text(c, &spans.version, &spans.version_end)
        elif which == NOMINATED:
            plain = plain_text(c, &spans.nominated, &spans.nominated_end)
        else:
            plain = skip_value(c, DEEP - 3) == 0  # of metadata in a pod in a body
        if not plain:
            return False
        skip_space(c)
        if closes(c, c'}'):
            return within == STATUS or found & (METADATA | UID) and (found & METADATA or found & VERSION)
        if not take(c, c','):
            return False


cdef tuple read_identity(cursor* c):
    """(uid, resourceVersion, nominatedNodeName) of the pod at c.at, which ends before it then; the last is "" where it
    has none. None: the first two are not there, a key comes twice, a key or one of the three is escaped, or something
    is of another type: only a JSON decoder can read it."""
    cdef identity_spans spans
    cdef bint stated
    spans.nominated = spans.nominated_end = 0
    with nogil:
        stated = stated_identity(c, &spans, 0)
    if not stated:
        return None
    try:
        return (to_str(c, spans.uid, spans.uid_end), to_str(c, spans.version, spans.version_end),
                to_str(c, spans.nominated, spans.nominated_end))
    except ScanError:
        return None


# --- Names -> rows ---

cdef struct met:  # a name on its way to its row
    text_t name
    Py_ssize_t size
    uint64_t key


cdef Py_ssize_t look_up(cursor* c, NameIndex index, row_t* found, unsigned char* plain, bint* all_known) noexcept nogil:
    """The row of every name of the array that c.at stands before; returns how many. `plain`: room for any of them."""
    cdef Py_ssize_t n = 0, read, ahead = MANY
    all_known[0] = True
    if not take(c, c'['):
        return fail(c, c.at, "not an array of strings")
    if closes(c, c']'):
        return 0
    while True:
        read = known_names(c, index, found + n, ahead)
        n += read
        if read == ahead:
            ahead = min(2 * ahead, MANY)
            continue
        ahead = 1  # where names are not known, or not written plainly, few are read in vain
        skip_space(c)
        found[n] = one_name(c, index, plain)
        if c.wrong != NULL:
            return -1
        all_known[0] &= found[n] >= 0
        n += 1
        if closes(c, c']'):
            return n
        if not take(c, c','):
            return fail(c, c.at, "',' or ']' must follow")


@cython.overflowcheck(False)  # differences of pointers, which Cython cannot check
cdef inline Py_ssize_t known_names(cursor* c, NameIndex index, row_t* found, Py_ssize_t most) noexcept nogil:
    """The rows of the next names, `most` at most, up to one that is not known, or that ',' does not follow at once;
    returns how many. A name that equals a known one without escapes is a string: its bytes are not checked.

    The memory that they need is fetched while the others are read."""
    cdef met[MANY] batch
    cdef met* one
    cdef slot* s
    cdef const void* quote
    cdef Py_ssize_t i, many = 0, mask = index.room - 1
    cdef text_t at = c.text + c.at, end = c.text + c.end
    if index.escaped > 0:
        return 0
    while many < most and end - at > 2 and at[0] == c'"':
        quote = memchr(at + 1, c'"', end - at - 2)
        if quote == NULL or (<text_t>quote)[1] != c',' or <text_t>quote - at > LONGEST_NAME:
            break
        one = &batch[many]
        one.name, one.size = at + 1, <text_t>quote - at - 1
        one.key = name_hash(one.name, one.size)
        __builtin_prefetch(index.slots + <Py_ssize_t>(one.key & <uint64_t>mask), 0)
        at = <text_t>quote + 2
        many += 1
    for i in range(many):
        s = index.slots + <Py_ssize_t>(batch[i].key & <uint64_t>mask)
        if s.name != NULL:
            __builtin_prefetch(s.name, 0)
    for i in range(many):
        s = index.find(batch[i].name, batch[i].size, batch[i].key)
        if s.name == NULL:
            at = batch[i].name - 1
            many = i
            break
        found[i] = s.row
    c.at = at - c.text
    return many


cdef row_t one_name(cursor* c, NameIndex index, unsigned char* plain) noexcept nogil:
    """The row of the name at c.at, -1: not known, or c.wrong states why it is none. Steps over the space behind it."""
    cdef Py_ssize_t start = c.at + 1, size
    cdef text_t name = c.text + start
    cdef slot* s
    if c.at >= c.end or c.text[c.at] != c'"':
        return fail(c, c.at, "not an array of strings")
    if skip_string(c) < 0:
        return -1
    size = c.at - 1 - start
    if c.escaped:
        size = unescape(name, size, plain)
        name = plain
        if size < 0:
            return fail(c, start, "half a surrogate pair in a string")
    if size > LONGEST_NAME:
        return fail(c, start, TOO_LONG)
    skip_space(c)
    s = index.find(name, size, name_hash(name, size))
    return s.row if s.name != NULL else -1


cdef tuple read_names(cursor* c, NameIndex index):
    """(rows, unknown) as `rows` has them, of the array at c.at, which ends before it then; None: it is none,
    and c.wrong states why."""
    cdef Py_ssize_t start = c.at, end, n, size = c.end - c.at
    cdef row_t* buffer = NULL
    cdef unsigned char* plain = NULL
    cdef array.array found
    cdef bint all_known
    try:
        buffer = <row_t*>malloc((size // 3 + 1) * sizeof(row_t))  # a name takes 3 bytes or more: '"",'
        plain = <unsigned char*>malloc(size + 1)  # pages that no escape touches cost nothing
        if buffer == NULL or plain == NULL:
            raise MemoryError()
        n = look_up(c, index, buffer, plain, &all_known)
        if n < 0:
            return None
        found = array.clone(array.array("i"), n, zero=False)
        if n:  # an empty array has no data to copy to
            memcpy(found.data.as_ints, buffer, n * sizeof(row_t))
    finally:
        free(buffer)
        free(plain)
    if all_known:
        return found, []
    end = c.at
    c.at = start
    unknown = strangers(c, found)
    c.at = end
    return found, unknown


cdef list strangers(cursor* c, array.array found):
    """(position, name) of each name without a row, of an array that `look_up` has passed over."""
    cdef Py_ssize_t n, start
    cdef list names = []
    for n in range(len(found)):
        while c.text[c.at] != c'"':
            c.at += 1
        start = c.at + 1
        skip_string(c)
        if found.data.as_ints[n] < 0:
            names.append((n, to_str(c, start, c.at - 1)))
    return names


cdef inline bint is_key(cursor* c, Py_ssize_t start, const char* key, Py_ssize_t size) noexcept nogil:
    """Whether the key with its quote at `start`, which skip_key has passed, is this one to the letter."""
    return c.at - start > size + 2 and c.text[start + size + 1] == c'"' and memcmp(c.text + start + 1, key, size) == 0


cdef inline bint uuid_victim(cursor* c) noexcept nogil:
    """Passes over {"UID":"<36 plain characters>"} with ',' or ']' behind, which is how nearly all victims come; False
    leaves anything else to the grammar."""
    cdef uint64_t a, b, d, e, f
    cdef text_t text = c.text + c.at
    if c.end - c.at < 47 or memcmp(text, b'{"UID":"', 8) != 0 or memcmp(text + 44, b'"}', 2) != 0:
        return False
    if text[46] != c',' and text[46] != c']':
        return False
    memcpy(&a, text + 8, 8)
    memcpy(&b, text + 16, 8)
    memcpy(&d, text + 24, 8)
    memcpy(&e, text + 32, 8)
    memcpy(&f, text + 36, 8)
    if special(a) | special(b) | special(d) | special(e) | special(f):
        return False
    c.at += 46
    return True


cdef Py_ssize_t plain_pods(cursor* c) noexcept nogil:
    """How many pods the array at c.at names in the very form [{"UID": "..."}, ...]; -1: any other form."""
    cdef Py_ssize_t start, count = 0
    if not take(c, c'['):
        return -1
    if take(c, c']'):
        return 0
    while True:
        if not uuid_victim(c):
            if not take(c, c'{'):
                return -1
            start = c.at
            if skip_key(c) < 0 or not is_key(c, start, "UID", 3):
                return -1
            if c.at >= c.end or c.text[c.at] != c'"' or skip_string(c) < 0:
                return -1
            skip_space(c)
            if not take(c, c'}'):
                return -1
        count += 1
        if take(c, c']'):
            return count
        if not take(c, c','):
            return -1


cdef Py_ssize_t plain_victims(cursor* c) noexcept nogil:
    """How many victims the object at c.at names, in the very form that kube-scheduler writes: {"Pods": [{"UID": "..."},
    ...], "NumPDBViolations": 0}, each key once or not at all. -1: any other form."""
    cdef Py_ssize_t start, count = 0
    cdef int digits
    cdef bint pods = False, violations = False
    if not take(c, c'{'):
        return -1
    if closes(c, c'}'):
        return 0
    while True:
        start = c.at
        if skip_key(c) < 0:
            return -1
        if is_key(c, start, "Pods", 4) and not pods:
            pods = True
            count = plain_pods(c)
            if count < 0:
                return -1
        elif is_key(c, start, "NumPDBViolations", 16) and not violations:
            violations = True
            digits = 0
            while digit_at(c):
                c.at += 1
                digits += 1
            if not 0 < digits < 10:
                return -1
            skip_space(c)
        else:
            return -1
        if closes(c, c'}'):
            return count
        if not take(c, c','):
            return -1


cdef object plain_offers(cursor* c, NameIndex index):
    """(rows, spans) of the object at c.at, which ends before it; None: not in the plain form, and c.at is anywhere."""
    cdef Py_ssize_t at, size, n = 0, room = 64
    cdef uint32_t call = index.next_call()
    cdef uint64_t key
    cdef slot* s
    cdef array.array found = array.array("i", bytes(4 * room)), spans = array.array("q", bytes(16 * room))
    if not take(c, c'{'):
        return None
    if closes(c, c'}'):
        return found[:0], spans[:0]
    while True:
        at = c.at
        if at >= c.end or c.text[at] != c'"' or skip_string(c) < 0 or c.escaped:
            return None
        size = c.at - at - 2
        key = name_hash(c.text + at + 1, size)
        __builtin_prefetch(index.slots + <Py_ssize_t>(key & <uint64_t>(index.room - 1)), 1)  # needed behind the victims
        skip_space(c)
        if not take(c, c':'):
            return None
        if n == room:
            found.extend(array.array("i", bytes(4 * room)))
            spans.extend(array.array("q", bytes(16 * room)))
            room *= 2
        spans.data.as_longlongs[2 * n] = c.at
        if plain_victims(c) < 0:
            return None
        s = index.find(c.text + at + 1, size, key)
        if s.name != NULL and s.seen == call:
            return None
        if s.name != NULL:
            s.seen = call
        found.data.as_ints[n] = s.row if s.name != NULL else -1
        spans.data.as_longlongs[2 * n + 1] = c.at
        n += 1
        skip_space(c)
        if closes(c, c'}'):
            return found[:n], spans[:2 * n]
        if not take(c, c','):
            return None


def split_offers(bytes body not None, str key not None, NameIndex index not None):
    """(what `split` returns, identity, offers): the member `key` names nodes and what kube-scheduler offers on each.

    identity: as `read_identity` returns it, of the member Pod; None without one. offers: (rows, spans) in the order of
    the text: rows array('i'), -1 = not in the index; spans array('q'), two a node: where its victims lie. None: no such
    member, not in the plain form (see `plain_victims`), or a name twice: only a JSON decoder can read it.
    """
    cdef _Wanted wanted = _Wanted(key, False, index)
    return members(body, 0, PyBytes_GET_SIZE(body), DEEP, wanted), wanted.pod, wanted.nodes


def split_names(bytes body not None, str key not None, NameIndex index not None):
    """(what `split` returns, identity as of `split_offers`, what `rows` returns of the member `key`). The last is None:
    no such member, or not an array of names: `rows` states why."""
    cdef _Wanted wanted = _Wanted(key, True, index)
    return members(body, 0, PyBytes_GET_SIZE(body), DEEP, wanted), wanted.pod, wanted.nodes


def rows(bytes body not None, Py_ssize_t start, Py_ssize_t end, NameIndex index not None):
    """The row of every name in the JSON array of strings at [start, end), in order; -1 = not in the index.

    Returns (rows, unknown): an array('i'); (position, name) of each name without a row. ScanError: anything but an
    array of strings of LONGEST_NAME bytes at most, `null` included.
    """
    cdef cursor c
    cdef tuple read
    begin(&c, body, start, end)
    read = read_names(&c, index)
    if read is None:
        raise error(&c)
    finish(&c)
    return read
