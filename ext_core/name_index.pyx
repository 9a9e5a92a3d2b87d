"""Node name -> row: a hash table over the UTF-8 bytes of the names.

The GIL is kept while the table is read: another thread's `add` could move it under the loop.
"""

from array import array

cimport cython
from libc.stdint cimport uint32_t, uint64_t, UINT32_MAX
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from ext_core.ints cimport row_t, text_t

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL


cdef slot* free_slots(Py_ssize_t count) except NULL:
    cdef slot* slots = <slot*>calloc(count, sizeof(slot))
    if slots == NULL:
        raise MemoryError()
    return slots


cdef bint is_escaped(text_t name, Py_ssize_t size) noexcept:
    """Whether JSON writes the name with an escape."""
    cdef Py_ssize_t i
    for i in range(size):
        if name[i] < 32 or name[i] == c'"' or name[i] == c'\\':
            return True
    return False


@cython.final
cdef class NameIndex:
    """Node name -> row: an open-addressing hash table over UTF-8 bytes, linear probing, at most half full."""

    def __cinit__(self):
        self.room = 16
        self.used = 0
        self.calls = 0
        self.slots = free_slots(self.room)

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self.slots != NULL:
            for i in range(self.room):
                free(self.slots[i].name)
            free(self.slots)

    def __len__(self):
        return self.used

    cdef int grow(self) except -1:
        cdef Py_ssize_t i, old_room = self.room
        cdef slot* old = self.slots
        self.slots = free_slots(2 * old_room)
        self.room = 2 * old_room
        for i in range(old_room):
            if old[i].name != NULL:
                self.find(old[i].name, <Py_ssize_t>old[i].size, old[i].key)[0] = old[i]
        free(old)
        return 0

    cdef uint32_t next_call(self) noexcept nogil:
        cdef Py_ssize_t i
        if self.calls == UINT32_MAX:  # after 4 billion calls: no slot may have the stamp of a new one
            for i in range(self.room):
                self.slots[i].seen = 0
            self.calls = 0
        self.calls += 1
        return self.calls

    def add(self, str name not None, row_t row):
        """ValueError: the row is negative, the name is in the table already, or has half a surrogate pair."""
        cdef Py_ssize_t size
        cdef text_t utf8 = <text_t>PyUnicode_AsUTF8AndSize(name, &size)
        cdef uint64_t key = name_hash(utf8, size)
        cdef unsigned char* copy
        cdef slot* s
        if row < 0:
            raise ValueError(f"row {row} of {name!r} is negative")
        if 2 * (self.used + 1) > self.room:
            self.grow()
        s = self.find(utf8, size, key)
        if s.name != NULL:
            raise ValueError(f"{name!r} is in the table already, as row {s.row}")
        copy = <unsigned char*>malloc(size if size else 1)
        if copy == NULL:
            raise MemoryError()
        memcpy(copy, utf8, size)
        s.name, s.key, s.size, s.row, s.seen = copy, key, <uint32_t>size, row, 0
        self.used += 1
        self.escaped += is_escaped(copy, size)

    def remove(self, str name not None):
        """KeyError: no such name."""
        cdef Py_ssize_t size, hole, i, home, mask = self.room - 1
        cdef text_t utf8 = <text_t>PyUnicode_AsUTF8AndSize(name, &size)
        cdef slot* s = self.find(utf8, size, name_hash(utf8, size))
        if s.name == NULL:
            raise KeyError(name)
        self.escaped -= is_escaped(s.name, size)
        free(s.name)
        # Close the gap (Knuth, TAOCP vol. 3, 6.4, algorithm R): a follower moves into the hole unless that would put it
        # before its home.
        with cython.overflowcheck(False):  # a difference of pointers, which Cython cannot check
            hole = i = s - self.slots
        while True:
            i = (i + 1) & mask
            if self.slots[i].name == NULL:
                break
            home = <Py_ssize_t>(self.slots[i].key & <uint64_t>mask)
            if ((i - home) & mask) >= ((i - hole) & mask):
                self.slots[hole] = self.slots[i]
                hole = i
        self.slots[hole].name = NULL
        self.used -= 1

    def get(self, str name not None):
        """The name's row; -1 if there is none."""
        cdef Py_ssize_t size
        cdef text_t utf8 = <text_t>PyUnicode_AsUTF8AndSize(name, &size)
        cdef slot* s = self.find(utf8, size, name_hash(utf8, size))
        return -1 if s.name == NULL else s.row

    def rows(self, list names not None):
        """The rows of those of the names that are in the table."""
        cdef Py_ssize_t size, found = 0
        cdef text_t utf8
        cdef slot* s
        cdef str name
        made = array("i", bytes(4 * len(names)))
        cdef row_t[::1] out = made
        for name in names:
            if name is None:
                raise TypeError("a name is None")
            utf8 = <text_t>PyUnicode_AsUTF8AndSize(name, &size)
            s = self.find(utf8, size, name_hash(utf8, size))
            if s.name != NULL:
                out[found] = s.row
                found += 1
        return made if found == len(names) else made[:found]
