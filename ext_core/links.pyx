"""Stubs; being filled in."""
from ext_core.ints cimport mask_t, milli_t


cdef class LinkShapes:

    def intern(self, int gpus, links, *, bint gpu_total, pcie, numa, str plugin, double gbps):
        return 0

    cdef const Choice* best(self, int shape, mask_t free, int k) noexcept nogil:
        return NULL

    cdef int certainty(self, int shape, mask_t free, int k, int unknown, int containers) noexcept nogil:
        return UNKNOWN_LINKS

    cdef milli_t ring_of(self, int shape, mask_t gpus) noexcept nogil:
        return 0

    cdef milli_t left_of(self, int shape, mask_t free) noexcept nogil:
        return 0

    cdef milli_t top_of(self, int shape, mask_t free, int k) noexcept nogil:
        return 0

    cdef Cell* cell(self, int shape, mask_t free, int k) noexcept nogil:
        return NULL

    cdef Shape* known(self, int shape) except NULL:
        raise KeyError(shape)
