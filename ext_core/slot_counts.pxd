"""The slots of each row by type, and the state of a row that they are counted of."""
from ext_core.ints cimport amount_t, int8_t, int32_t, int64_t, mask_t, row_t, uint64_t
from ext_core.links cimport LinkShapes
from ext_core.table cimport NodeTable

cdef enum:
    ALL_TYPES = 0          # older than any edition

cdef struct Type:
    int resource           # index of its GPU resource; unused when devices is 0
    int devices
    int linked             # 0 links do not matter, 1 linked where the node can, 2 linked or nothing
    int family             # types of one family differ in CPU, memory and models only
    int64_t edition        # of the types, when it came
    amount_t share         # units of each GPU
    amount_t cpu
    amount_t memory
    uint64_t models        # bit m: nodes of model m are allowed

cdef struct State:         # a node as it is, or would be
    row_t row
    int gpu
    int shape
    amount_t units
    amount_t cpu, memory, slots
    amount_t spare         # units of the node's GPU resource
    amount_t other         # units that are taken of resource `taken`, another one
    int taken
    bint modelled          # positions are known
    mask_t open            # GPUs that no pod holds as a whole
    mask_t whole           # GPUs that no pod holds anything of
    amount_t[16] left      # units left on each open GPU
    int model
    int flags
    bint offered           # there are GPUs of the node's resource
    bint mixed             # it offers another GPU resource too


cdef class SlotCounts:
    cdef readonly int most
    cdef Type *types          # [column]
    cdef int kinds            # types in use
    cdef dict columns         # type, as the caller names it -> column
    cdef int *column          # [place]
    cdef int *place           # [column]
    cdef int64_t edition      # rises when types come
    cdef int families
    cdef int *first           # [family] one of its types
    cdef int64_t *newest      # [family] edition of the youngest of its types
    cdef NodeTable nodes      # of which the slots are
    cdef LinkShapes shapes
    cdef int rows, height
    cdef int64_t syncs        # rises when anything is counted anew
    cdef int64_t clock, known  # of the table and the types at the last sync
    cdef int64_t *version     # [row] of which the counts are
    cdef int64_t *counted     # [row] edition of the types that are counted
    cdef int32_t *count       # [row, column]
    cdef int64_t *total       # [column]
    cdef int32_t *room        # [family] scratch
    cdef double *spare        # [row] its part of `free_gpus`
    cdef int64_t measured     # `NodeTable.stated` as of the latest measurement
    cdef double most_cpu, most_gpus, all_gpus, free_gpus
    cdef amount_t most_units
    cdef int8_t **packs       # [shape * 17 + size] -> [free set] disjoint linked sets; NULL, or -1 within: not known
    cdef int packs_size

    # Forget all that was computed from types and tables.
    cdef void forget(self) noexcept
    # Count the slots of rows that have changed.
    cdef int update(self, NodeTable nodes) except -1
    # Count how many pods of each type alone the node could take; of the types that came after edition `since`.
    cdef void fill_counts(self, const State *s, int32_t *out, int64_t since) noexcept nogil

    cdef void _no_types(self)
    cdef int _widen(self, NodeTable nodes) except -1
    cdef void _measure(self, NodeTable nodes) noexcept nogil
    cdef bint _recount(self, NodeTable nodes, row_t row) noexcept nogil
    cdef int32_t _room(self, const State *s, const Type *one, const int32_t *lefts, const int32_t *many,
                       int kinds) noexcept nogil
    cdef int _packed(self, int shape, mask_t free, int size) noexcept nogil
    cdef int _packed_with(self, int shape, mask_t free, mask_t chosen, mask_t others, int size, int most) noexcept nogil


# Read a row as it is now, claims counted.
cdef void read_state(NodeTable nodes, row_t row, State *s) noexcept nogil
