"""Sets of node rows, each with a number, and their combination: 64 rows a step.

A set that holds many rows is one bit a row; a set that holds few is a list of them. So the bytes of all sets follow the
number of their members: a label with a value of its own on each of 15,000 nodes does not cost 15,000 columns.
"""

from array import array

from cpython cimport array as carray
from libc.stdlib cimport calloc, free as c_free, realloc
from libc.string cimport memset

from ext_core.ints cimport row_t, int32_t, uint64_t

cdef extern from *:
    int __builtin_ctzll(unsigned long long) noexcept nogil

cdef enum:
    FEW = 4  # rows that are a list in a table of any height
    MOST_ROWS = 0x1000000  # far more nodes than a cluster has: a row beyond is an error of the caller

cdef struct Set:
    uint64_t* bits    # NULL: the set is the list `few`
    row_t* few        # in no order
    int32_t count     # rows in the set
    int32_t room      # words of `bits`, or rows that `few` has room for
    int32_t used      # 1: the number is handed out

Clause = tuple[bool, tuple[int, ...]]

cdef object WORDS = array("Q"), ROWS = array("i")


cdef class Columns:
    """`words`: 64-bit words of what `select` returns, which cover every row that was ever put."""

    cdef readonly int words
    cdef Set* sets
    cdef int height   # sets, used and free
    cdef int capacity
    cdef list spare   # numbers of free sets

    def __cinit__(self):
        self.words = 1
        self.spare = []

    def __dealloc__(self):
        cdef int number
        for number in range(self.height):
            c_free(self.sets[number].bits)
            c_free(self.sets[number].few)
        c_free(self.sets)

    cdef int _check(self, int number, int row) except -1:
        if not 0 <= number < self.height or not self.sets[number].used:
            raise IndexError(f"no set {number}")
        if not 0 <= row < MOST_ROWS:
            raise IndexError(f"row {row}")
        return 0

    def make(self):
        """The number of a new set without a row. A number that was dropped is used again."""
        cdef int number, room
        cdef Set* grown
        if self.spare:
            number = self.spare.pop()
        else:
            if self.height == self.capacity:
                room = max(16, 2 * self.capacity)
                grown = <Set*>realloc(self.sets, room * sizeof(Set))
                if grown == NULL:
                    raise MemoryError()
                self.sets, self.capacity = grown, room
            number = self.height
            self.height += 1
        memset(&self.sets[number], 0, sizeof(Set))
        self.sets[number].used = 1
        return number

    def drop(self, int number):
        """Free a set and its number."""
        self._check(number, 0)
        c_free(self.sets[number].bits)
        c_free(self.sets[number].few)
        memset(&self.sets[number], 0, sizeof(Set))
        self.spare.append(number)

    def put(self, int number, int row):
        """Add a row; one that is there stays."""
        self._check(number, row)
        self.words = max(self.words, row // 64 + 1)
        cdef Set* one = &self.sets[number]
        cdef int i
        if one.bits == NULL:
            for i in range(one.count):
                if one.few[i] == row:
                    return
            if one.count < max(<int>FEW, 2 * self.words):  # as many bytes as bits would take
                if one.count == one.room:
                    self._list(one, max(1, 2 * one.room))
                one.few[one.count] = row
                one.count += 1
                return
            self._to_bits(one)
        if row // 64 >= one.room:
            self._widen(one)
        if not one.bits[row // 64] >> (row % 64) & 1:
            one.bits[row // 64] |= <uint64_t>1 << (row % 64)
            one.count += 1

    def take(self, int number, int row):
        """Remove a row; one that is not there is none."""
        self._check(number, row)
        cdef Set* one = &self.sets[number]
        cdef int i
        if one.bits == NULL:
            for i in range(one.count):
                if one.few[i] == row:
                    one.count -= 1
                    one.few[i] = one.few[one.count]
                    return
        elif row // 64 < one.room and one.bits[row // 64] >> (row % 64) & 1:
            one.bits[row // 64] &= ~(<uint64_t>1 << (row % 64))
            one.count -= 1
            if one.count <= max(<int>FEW, self.words):  # well below what makes it bits, so that one row does not flap
                self._to_list(one)

    cdef int _list(self, Set* one, int room) except -1:
        cdef row_t* grown = <row_t*>realloc(one.few, room * sizeof(row_t))
        if grown == NULL:
            raise MemoryError()
        one.few, one.room = grown, room
        return 0

    cdef int _widen(self, Set* one) except -1:
        cdef uint64_t* grown = <uint64_t*>realloc(one.bits, self.words * sizeof(uint64_t))
        if grown == NULL:
            raise MemoryError()
        memset(grown + one.room, 0, (self.words - one.room) * sizeof(uint64_t))
        one.bits, one.room = grown, self.words
        return 0

    cdef int _to_bits(self, Set* one) except -1:
        cdef uint64_t* bits = <uint64_t*>calloc(self.words, sizeof(uint64_t))
        cdef int i
        if bits == NULL:
            raise MemoryError()
        for i in range(one.count):
            bits[one.few[i] // 64] |= <uint64_t>1 << (one.few[i] % 64)
        c_free(one.few)
        one.few, one.bits, one.room = NULL, bits, self.words
        return 0

    cdef int _to_list(self, Set* one) except -1:
        cdef uint64_t* bits = one.bits
        cdef uint64_t word
        cdef int w, words = one.room, n = 0
        one.few, one.room = NULL, 0
        self._list(one, one.count)
        one.bits = NULL
        for w in range(words):
            word = bits[w]
            while word:
                one.few[n] = 64 * w + __builtin_ctzll(word)
                n += 1
                word &= word - 1
        c_free(bits)
        return 0

    def count(self, int number):
        """How many rows are in the set."""
        self._check(number, 0)
        return self.sets[number].count

    def rows(self, int number):
        """The rows of the set, ascending."""
        self._check(number, 0)
        cdef Set* one = &self.sets[number]
        cdef int i
        if one.bits == NULL:
            return sorted([one.few[i] for i in range(one.count)])
        return [i for i in range(64 * one.room) if one.bits[i // 64] >> (i % 64) & 1]

    def size(self):
        """Bytes that all sets hold."""
        cdef int number
        cdef Py_ssize_t found = self.capacity * sizeof(Set)
        for number in range(self.height):
            found += self.sets[number].room * (sizeof(row_t) if self.sets[number].bits == NULL else sizeof(uint64_t))
        return found

    def select(self, int base, tuple must, tuple terms=None):
        """Bits, uint64[words]: the rows of set `base` that meet every clause of `must` and, unless `terms` is None, all
        clauses of one of the terms. A clause is (wanted, members): the row is in one of the members, or in none.
        A member is the number of a set or, below 0, `~row`: that row alone."""
        self._check(base, 0)
        cdef int words = self.words, w
        made = carray.clone(WORDS, words, True)
        cdef uint64_t[::1] out = made
        # What is built: the rows of a clause, of a term, and of all terms.
        cdef uint64_t* scratch = <uint64_t*>calloc(3 * words, sizeof(uint64_t))
        if scratch == NULL:
            raise MemoryError()
        cdef uint64_t* clause = scratch
        cdef uint64_t* term = scratch + words
        cdef uint64_t* every = scratch + 2 * words
        try:
            self._join(&out[0], base)
            for wanted, members in must:
                self._narrow(&out[0], clause, wanted, members)
            if terms is not None:
                for clauses in terms:
                    for w in range(words):
                        term[w] = out[w]
                    for wanted, members in clauses:
                        self._narrow(term, clause, wanted, members)
                    for w in range(words):
                        every[w] |= term[w]
                for w in range(words):
                    out[w] = every[w]
        finally:
            c_free(scratch)
        return made

    cdef int _narrow(self, uint64_t* bits, uint64_t* clause, bint wanted, tuple members) except -1:
        """Keep of `bits` what is in one of the members, or in none; `clause`: room for as many words."""
        cdef int w, words = self.words
        memset(clause, 0, words * sizeof(uint64_t))
        for member in members:
            self._join(clause, member)
        if wanted:
            for w in range(words):
                bits[w] &= clause[w]
        else:
            for w in range(words):
                bits[w] &= ~clause[w]
        return 0

    cdef int _join(self, uint64_t* bits, int member) except -1:
        cdef int i
        if member < 0:
            i = ~member
            if i < 64 * self.words:  # else no set has it
                bits[i // 64] |= <uint64_t>1 << (i % 64)
            return 0
        self._check(member, 0)
        cdef Set* one = &self.sets[member]
        if one.bits == NULL:
            for i in range(one.count):
                bits[one.few[i] // 64] |= <uint64_t>1 << (one.few[i] % 64)
        else:
            for i in range(one.room):
                bits[i] |= one.bits[i]
        return 0


def kept(const row_t[::1] rows, const uint64_t[::1] bits):
    """Those of `rows` whose bit is set, in their order; a row below 0 or beyond the bits has none."""
    cdef Py_ssize_t i, n = 0
    cdef row_t row
    found = carray.clone(ROWS, rows.shape[0], False)
    cdef row_t[::1] out = found
    with nogil:
        for i in range(rows.shape[0]):
            row = rows[i]
            if 0 <= row < 64 * bits.shape[0] and bits[row // 64] >> (row % 64) & 1:
                out[n] = row
                n += 1
    return found[:n]
