"""ring_links of sets of GPUs: how many rings fit into the links of a set at once."""
from ext_core.shape cimport Shape

# Both read `gpus` and `adjacent` of the shape and write `ring` and `proved`. links[i * gpus + j] counts the links of
# a pair, with totals those into the switches.

# Links between pairs. Small sets first, so that a spent budget makes only large sets lower bounds.
cdef int fill_pairs(Shape *s, const int *links) except -1
# NVSwitch: the lowest total into the fabric, 0 where two of the set do not see each other.
cdef void fill_totals(Shape *s, const int *links) noexcept nogil
