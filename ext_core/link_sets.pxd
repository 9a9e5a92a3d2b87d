from ext_core.ints cimport mask_t, uint64_t
from ext_core.links cimport LinkShapes


cdef inline uint64_t sets_of(int size, int count) noexcept nogil:
    """A demand for `count` linked sets of `size` GPUs, 2 to 16. Demands add up: four bits a size, as 8 pairs are 16."""
    return <uint64_t>count << (4 * (size - 1))


cdef class LinkSets:
    cdef readonly LinkShapes shapes
    cdef dict known    # (shape, free set, demand) -> whether it fits
    cdef dict chosen   # (shape, free set, demand, what is asked of NICs) -> the first set

    # Whether linked sets of the demanded sizes fit into `free` side by side.
    cdef bint fit(self, int shape, mask_t free, uint64_t demand) except -1
    # The best of the largest sets, of those that leave room for the other sets of a demand that fits. `nics`: what its
    # pod asks of NICs.
    cdef mask_t first(self, int shape, mask_t free, uint64_t demand, int nics) except? 0
