from ext_core.ints cimport row_t, score_t, int32_t, uint8_t


cdef class Places:
    cdef readonly int levels          # L, number of topology levels, the closest first
    cdef readonly int height          # rows known so far; a row beyond is a healthy node in no domain
    cdef int capacity
    cdef object owned                 # keeps the memory of the views below alive
    cdef score_t[::1] doubt           # [row] how many pods failed there lately, each counted less as it ages; 0 = none
    cdef uint8_t[::1] failing         # [row] 1 = rejected for it
    cdef int doubted, rejected, divided  # how many rows have a doubt, are marked as failing, hand out parts
    cdef dict own                     # namespace -> (rows, doubts, failing): what also counts for its pods
    cdef uint8_t[::1] split           # [row] 1 = the node hands out parts of GPUs (replicas, MIG), no whole ones
    cdef int32_t[:, ::1] domain       # [L + 1, row] the domain at each level, from 1, 0 = in none; then the model
    cdef int32_t[::1] members         # [L + 1] how many nodes have a domain there
    cdef int32_t[::1] most            # [L + 1] the largest domain number so far

    cdef int grow(self, int rows) except -1
    cdef void count(self, int row, int sign) noexcept
    cdef void _set(self, int level, int row, int32_t domain) noexcept
    cdef inline int32_t at(self, int level, row_t row) noexcept nogil:
        return self.domain[level, row] if row < self.height else 0
