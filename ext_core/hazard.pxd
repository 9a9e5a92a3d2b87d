from ext_core.ints cimport row_t, uint8_t

cdef enum:
    PANICS = 1         # flags of a node: its device plugin may crash over a free set (an empty place in its answer)
    PANICS_KNOWN = 2   # its version is known to
    LOST = 4           # a GPU is lost, and its device plugin may fail every pod
    LOST_KNOWN = 8     # its version is known to


cdef class Hazards:
    cdef object owned           # keeps the memory of the view below alive
    cdef uint8_t[::1] flags     # [row]
    cdef int[4] flagged         # rows with each flag

    cdef inline uint8_t at(self, row_t row) noexcept nogil:
        return self.flags[row] if row < self.flags.shape[0] else 0
