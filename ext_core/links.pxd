"""What other kernels may use of LinkShapes: a node's GPU graph as a small integer, with O(1) answers about it."""
from ext_core.ints cimport int64_t, mask_t, milli_t
from ext_core.shape cimport Cell, Choice, Shape


cdef class LinkShapes:
    cdef Shape **shapes     # [id]; id 0 is NULL
    cdef int count
    cdef int large          # shapes of more than 8 GPUs
    cdef dict ids           # arguments of intern() -> id
    cdef public bint planned    # whether pods have planned GPUs, which a relay hands out

    # NULL: the shape is unknown, or `free` holds fewer than k. The first call for a (free, k) fills its cell:
    # one caller at a time. The pointer stays good while the LinkShapes lives.
    cdef const Choice* best(self, int shape, mask_t free, int k) noexcept nogil
    # Are the k GPUs linked that the node hands out from `free`, of which `unknown` are held at unknown positions?
    cdef int certainty(self, int shape, mask_t free, int k, int unknown, int containers) noexcept nogil
    # Are all sets of k of `free` linked? False for the unknown shape, and where `free` has fewer than k.
    cdef bint all_linked(self, int shape, mask_t free, int k) noexcept nogil
    # Lookups; 0 for the unknown shape.
    cdef milli_t ring_of(self, int shape, mask_t gpus) noexcept nogil
    cdef milli_t left_of(self, int shape, mask_t free) noexcept nogil
    cdef int64_t ways_of(self, int shape, mask_t free) noexcept nogil
    # How likely the plugin crashes when it chooses k of `free`: millionths, 0 = never, -1 = not predictable.
    cdef int crash_of(self, int shape, mask_t free, int k) noexcept nogil
    cdef milli_t top_of(self, int shape, mask_t free, int k) noexcept nogil

    cdef Cell* cell(self, int shape, mask_t free, int k) noexcept nogil
    cdef Shape* known(self, int shape) except NULL
    cdef mask_t inside(self, int shape, object gpus) except? 0
