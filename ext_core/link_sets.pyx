"""Disjoint linked sets of GPUs: whether sets of several sizes fit into a free set side by side, and which to take.

What was found is kept: a cluster has a handful of shapes, and few free sets occur.
"""

from ext_core.ints cimport MOST_GPUS, mask_t, uint64_t
from ext_core.links cimport LinkShapes
from ext_core.masks cimport popcount
from ext_core.shape cimport NICS_IGNORED

cdef enum:
    MOST_KEPT = 0x20000  # answers; after as many all are forgotten


cdef inline int _largest(uint64_t demand) noexcept nogil:
    """The largest size of a demand that is not empty."""
    cdef int size = MOST_GPUS
    while not demand >> (4 * (size - 1)) & 15:
        size -= 1
    return size


cdef inline int _gpus(uint64_t demand) noexcept nogil:
    cdef int size, sum = 0
    for size in range(2, MOST_GPUS + 1):
        sum += size * <int>(demand >> (4 * (size - 1)) & 15)
    return sum


cdef class LinkSets:
    """Linked sets of the shapes."""

    def __cinit__(self, LinkShapes shapes not None):
        self.shapes = shapes
        self.known = {}
        self.chosen = {}

    cdef bint fit(self, int shape, mask_t free, uint64_t demand) except -1:
        cdef mask_t sub
        cdef uint64_t rest
        cdef int size
        if demand == 0:
            return True
        if popcount(free) < _gpus(demand):
            return False
        size = _largest(demand)
        if self.shapes.top_of(shape, free, size) <= 0:
            return False
        for size in range(2, MOST_GPUS + 1):
            if demand >> (4 * (size - 1)) & 15 and not self.shapes.all_linked(shape, free, size):
                break
        else:
            return True
        key = (shape, free, demand)
        found = self.known.get(key)
        if found is not None:
            return found
        size = _largest(demand)
        rest = demand - sets_of(size, 1)
        found = False
        sub = free
        while sub:
            if popcount(sub) == size and self.shapes.ring_of(shape, sub) > 0 and self.fit(shape, free ^ sub, rest):
                found = True
                break
            sub = (sub - 1) & free
        if len(self.known) >= MOST_KEPT:
            self.known.clear()
        self.known[key] = found
        return found

    cdef mask_t first(self, int shape, mask_t free, uint64_t demand, int nics) except? 0:
        cdef mask_t sub, best = 0
        cdef int size = _largest(demand)
        cdef uint64_t rest = demand - sets_of(size, 1)
        key = (shape, free, demand, nics)
        found = self.chosen.get(key)
        if found is not None:
            return found
        sub = free
        while sub:
            if popcount(sub) == size and self.shapes.ring_of(shape, sub) > 0:
                if best == 0 or self.shapes.prefers(shape, free, sub, best, nics):
                    if self.fit(shape, free ^ sub, rest):
                        best = sub
            sub = (sub - 1) & free
        if len(self.chosen) >= MOST_KEPT:
            self.chosen.clear()
        self.chosen[key] = best
        return best

    def sets(self, int shape, mask_t free, sizes):
        """The sets to take, in the order of `sizes` (2 to 16, descending); None where they do not fit."""
        cdef uint64_t demand = 0
        cdef mask_t gpus
        if any([not 2 <= size <= MOST_GPUS for size in sizes]) or list(sizes) != sorted(sizes, reverse=True):
            raise ValueError("sizes are 2 to 16, descending")
        self.shapes.inside(shape, free)
        if sum(sizes) > popcount(free):
            return None
        for size in sizes:
            demand += sets_of(size, 1)
        if not self.fit(shape, free, demand):
            return None
        made = []
        for size in sizes:
            gpus = self.first(shape, free, demand, NICS_IGNORED)
            made.append(gpus)
            free ^= gpus
            demand -= sets_of(size, 1)
        return made

    def most(self, int shape, mask_t free, int size):
        """How many disjoint linked sets of a size (2 to 16) there are."""
        cdef int count = 0
        if not 2 <= size <= MOST_GPUS:
            raise ValueError("a size is 2 to 16")
        self.shapes.inside(shape, free)
        while self.fit(shape, free, sets_of(size, count + 1)):
            count += 1
        return count
