"""Node name -> row, looked up by the bytes of the name where they lie."""
cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from ext_core.ints cimport row_t, text_t

cdef struct slot:        # 32 bytes: as small as it can be, since each name of a request meets one
    unsigned char* name  # owned copy; NULL = free slot
    uint64_t key         # hash of the name
    uint32_t size        # bytes of the name
    row_t row
    uint32_t seen        # stamp of the last reading of offers that met the name


cdef inline uint64_t load8(text_t at) noexcept nogil:
    cdef uint64_t word
    memcpy(&word, at, 8)
    return word


@cython.overflowcheck(False)  # a hash wraps
cdef inline uint64_t fold(uint64_t key, uint64_t word) noexcept nogil:
    """An xor-shift before the multiplication, which carries upwards only, and one after it: the low bits count."""
    key ^= word
    key = (key ^ (key >> 32)) * 0xFF51AFD7ED558CCDu
    return key ^ (key >> 29)


@cython.overflowcheck(False)  # a hash wraps
cdef inline uint64_t name_hash(text_t name, Py_ssize_t size) noexcept nogil:
    """A multiply-and-fold hash of 8 bytes a step. It leaves no trace in any answer, so byte order does not matter."""
    cdef uint64_t word = 0, key = <uint64_t>size * 0x9E3779B97F4A7C15u
    cdef Py_ssize_t i = 0
    if size < 8:
        for i in range(size):
            word = (word << 8) | name[i]
        return fold(key, word)
    while i + 8 < size:
        key = fold(key, load8(name + i))
        i += 8
    return fold(key, load8(name + size - 8))  # the last 8 bytes, overlapping: no call for a tail of unknown length


cdef inline bint same(text_t one, text_t other, Py_ssize_t size) noexcept nogil:
    """memcmp == 0, inline: most names are two or three words long and a call would cost more than the work."""
    cdef Py_ssize_t i = 0
    if size < 8:
        for i in range(size):
            if one[i] != other[i]:
                return False
        return True
    while i + 8 < size:
        if load8(one + i) != load8(other + i):
            return False
        i += 8
    return load8(one + size - 8) == load8(other + size - 8)


@cython.final
cdef class NameIndex:
    cdef slot* slots
    cdef Py_ssize_t room      # slots; a power of two
    cdef Py_ssize_t used
    cdef Py_ssize_t escaped   # names that JSON writes with an escape
    cdef uint32_t calls       # readings of offers so far; the stamp of the present one

    cdef inline slot* find(self, text_t name, Py_ssize_t size, uint64_t key) noexcept nogil:
        """The slot of the name, or the free slot for it."""
        cdef Py_ssize_t mask = self.room - 1, i = <Py_ssize_t>(key & <uint64_t>mask)
        cdef slot* s = self.slots + i
        while s.name != NULL and not (s.key == key and s.size == size and same(s.name, name, size)):
            i = (i + 1) & mask
            s = self.slots + i
        return s

    # The stamp of a new reading of offers: no slot has it.
    cdef uint32_t next_call(self) noexcept nogil
    cdef int grow(self) except -1
