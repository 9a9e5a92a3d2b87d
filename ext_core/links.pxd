"""What other kernels may use of LinkShapes: a node's GPU graph as a small integer, with O(1) answers about it."""
from ext_core.ints cimport int64_t, mask_t, milli_t
from ext_core.shape cimport Cell, Choice, NicCell, Shape


cdef class LinkShapes:
    cdef Shape **shapes     # [id]; id 0 is NULL
    cdef int count
    cdef int large          # shapes of more than 8 GPUs
    cdef dict ids           # arguments of intern() -> id
    cdef public bint planned    # whether pods have planned GPUs, which a relay hands out
    cdef readonly bint nics_known    # whether the NICs of any shape are

    # NULL: the shape is unknown, or `free` holds fewer than k. The first call for a (free, k) fills its cell:
    # one caller at a time. The pointer stays good while the LinkShapes lives.
    cdef const Choice* best(self, int shape, mask_t free, int k) noexcept nogil
    # Are the k GPUs linked that the node hands out from `free`, of which `unknown` are held at unknown positions?
    # `planned`: as of Ask.
    cdef int certainty(self, int shape, mask_t free, int k, int unknown, int containers, bint planned) noexcept nogil
    # Are all sets of k of `free` linked? False for the unknown shape, and where `free` has fewer than k.
    cdef bint all_linked(self, int shape, mask_t free, int k) noexcept nogil
    # Lookups; 0 for the unknown shape.
    cdef milli_t ring_of(self, int shape, mask_t gpus) noexcept nogil
    cdef milli_t left_of(self, int shape, mask_t free) noexcept nogil
    cdef int64_t ways_of(self, int shape, mask_t free) noexcept nogil
    # How likely the plugin crashes when it chooses k of `free`: millionths, 0 = never, -1 = not predictable.
    cdef int crash_of(self, int shape, mask_t free, int k) noexcept nogil
    cdef milli_t top_of(self, int shape, mask_t free, int k) noexcept nogil
    # Is `a` the better set to take from `free` than `b`, both of one size? Of a known shape.
    cdef bint prefers(self, int shape, mask_t free, mask_t a, mask_t b, int nics) noexcept nogil
    # The set to plan for a pod, by what it asks of NICs; 0 where best() is NULL.
    cdef mask_t pick(self, int shape, mask_t free, int k, int nics) noexcept nogil
    # How many GPUs of a set can have a NIC of their own; -1 = unknown.
    cdef int nics_of(self, int shape, mask_t gpus) noexcept nogil
    # Do all k GPUs that the node hands out from `free` have NICs of their own? Where it hands out what is planned, and
    # the pod requires `linked` GPUs, these are linked too. UNKNOWN_LINKS: the NICs are unknown.
    cdef int nics_certainty(self, int shape, mask_t free, int k, int unknown, int containers,
                            bint linked, bint planned) noexcept nogil
    # The part of the k GPUs that will have one; 0 where that is unknown.
    cdef double nics_expected(self, int shape, mask_t free, int k, int nics, bint planned) noexcept nogil
    # Do nodes of the shape hand out what is planned? By their relay; or by claims, for a pod whose claims the queue
    # allocates (`planned`).
    cdef bint follows(self, int shape, bint planned) noexcept nogil

    cdef int _intern(self, graph, nics) except -1
    cdef Cell* cell(self, int shape, mask_t free, int k) noexcept nogil
    cdef NicCell* nic_cell(self, int shape, mask_t free, int k) noexcept nogil
    cdef Shape* known(self, int shape) except NULL
    cdef mask_t inside(self, int shape, object gpus) except? 0
