"""Which sets of GPUs the vendor's device plugin hands out from a free set, and how likely each of them is."""
from ext_core.ints cimport mask_t
from ext_core.shape cimport Cell, Shape

# What the plugin's rule computes for a pair: `level` is the PCIe level 0..5, `links` those that the rule counts.
cdef int pair_points(const Shape *s, int level, int links, bint same_numa) noexcept nogil
# Does the plugin split n free GPUs to answer for k of them?
cdef bint splits(const Shape *s, int n, int k) noexcept nogil
# Is the answer for k of n free GPUs known, apart from what draw_all() cannot predict?
cdef bint predictable(const Shape *s, int n, int k) noexcept nogil
# [set] the probability that the plugin answers with it, for free(); NULL when that is not predictable.
cdef double* draw_all(Shape *s, mask_t free, int k) noexcept nogil
# Writes expected_ring, `handed` and `crash` of a cell whose choice is made; False when that is not predictable.
cdef bint foresee(Shape *s, mask_t free, int k, Cell *cell) noexcept nogil
