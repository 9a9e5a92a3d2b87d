"""The cost terms of a victim search, and its tables of GPU sets, checked and packed."""
from ext_core.candidates cimport Candidates
from ext_core.ints cimport int32_t, int64_t, uint8_t

cdef enum:
    SUM = 0
    MAX = 1
    GROUP = 2
    GANG = 3
    MASK = 4

ctypedef const int64_t* prices_t

cdef struct Term:
    int kind
    const int64_t* column     # SUM, MAX; GANG: the members' own cost or NULL. SUM with NULL counts pods
    int64_t most              # SUM, MAX, GANG: a set that costs more is left out; INT64_MAX: no ceiling
    const int64_t* lacking    # SUM: [candidate] what the sum is less by, or NULL
    const int32_t* start      # GROUP, GANG: pod p is in member[start[p]:start[p + 1]], of which its gang is the first
    const int32_t* member
    const int64_t* allowance
    const int64_t* price
    int32_t* count            # [group] members taken (zero between uses where the term is a GROUP and not simple)
    int64_t* taken            # [gang] own cost of the members taken
    int32_t* over             # [gang] how many of its groups have lost more than they may
    bint simple               # GROUP: no pod of this candidate is in two groups, so the walk's order does not matter
    prices_t* tables          # MASK: [table] the prices
    prices_t* floors          # MASK: [table] at each mask, the least price of a good mask that contains it

cdef struct Table:
    const uint8_t* ok         # [mask] 1 = good enough
    const uint8_t* above      # [mask] 1 = some mask that contains it is good enough
    bint monotone             # a good mask stays good when GPUs are added


# Zeroed memory that `kept` owns.
cdef int64_t* int64s(list kept, Py_ssize_t length) except NULL
cdef int32_t* int32s(list kept, Py_ssize_t length) except NULL
cdef uint8_t* bytes_of(list kept, Py_ssize_t length) except NULL


cdef class _Terms:
    cdef Candidates of
    cdef list kept          # owns what the pointers point to
    cdef int count          # of `term`; the last, implicit one is the number of pods
    cdef int tables         # of `known`
    cdef bint priced        # some term is a MASK
    cdef bint capped        # some term has a ceiling
    cdef Term* term
    cdef Table* known       # [table of `Candidates.ok`]

    cdef int read(self, Candidates of, list terms) except -1
    cdef int check_columns(self) except -1
    cdef int read_tables(self) except -1
    cdef int check_masks(self) except -1
    cdef int read_term(self, int i, tuple term) except -1
    cdef const int64_t* read_column(self, str what, column, bint positive) except NULL
    cdef const int64_t* read_lacking(self, str what, column) except NULL
    cdef int read_groups(self, int i, tuple term) except -1
    cdef int check_members(
        self, str what, const int32_t[::1] start, const int32_t[::1] member, Py_ssize_t groups
    ) except -1
    cdef int check_gangs(self, int i, Py_ssize_t groups) except -1
    cdef int check_spans(self, int i) except -1
    cdef int read_prices(self, int i, list tables) except -1
