"""Costs per amount, compared and cut exactly: the products need more than 64 bits."""
from libc.stdint cimport int64_t

cdef extern from *:
    """
    /* c1/a1 < c2/a2, and c * part / a rounded up, or down. */
    static inline int ratio_less(int64_t c1, int64_t a1, int64_t c2, int64_t a2) {
        return (__int128)c1 * a2 < (__int128)c2 * a1;
    }
    static inline int64_t part_up(int64_t c, int64_t part, int64_t a) {
        return (int64_t)(((__int128)c * part + a - 1) / a);
    }
    static inline int64_t part_down(int64_t c, int64_t part, int64_t a) {
        return (int64_t)((__int128)c * part / a);
    }
    """
    bint ratio_less(int64_t c1, int64_t a1, int64_t c2, int64_t a2) noexcept nogil
    int64_t part_up(int64_t c, int64_t part, int64_t a) noexcept nogil
    int64_t part_down(int64_t c, int64_t part, int64_t a) noexcept nogil
