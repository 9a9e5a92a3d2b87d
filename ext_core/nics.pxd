"""How many GPUs of a set can have a NIC of their own, and which sets give each GPU one."""
from ext_core.ints cimport mask_t, uint64_t
from ext_core.shape cimport NicCell, Shape

# Allocates and fills `nics` of a shape. `near`: [gpu] its NICs under the same PCIe switch, one bit each.
cdef int fill_nics(Shape *s, const uint64_t *near) except -1
# Fills a cell of a shape with known NICs. `free` has k GPUs or more, and `plain` is the set for pods that ignore NICs.
cdef void fill_cell(Shape *s, mask_t free, int k, mask_t plain, NicCell *cell) noexcept nogil
