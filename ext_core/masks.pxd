"""Sets of GPUs as bits."""
cimport cython

from ext_core.ints cimport mask_t

cdef extern from *:
    """
    static inline int popcount(unsigned int bits) { return __builtin_popcount(bits); }
    static inline int first_of(unsigned int bits) { return __builtin_ctz(bits); }
    """
    int popcount(mask_t gpus) noexcept nogil   # GPUs of the set
    int first_of(mask_t gpus) noexcept nogil   # the lowest GPU of a set that is not empty


cdef inline mask_t lowest(mask_t gpus) noexcept nogil:
    """The lowest GPU, as a set; of no GPUs the empty set."""
    with cython.overflowcheck(False):  # of no GPUs the sum wraps to 0
        return gpus & (~gpus + 1)


cdef inline mask_t lowest_of(mask_t gpus, int k) noexcept nogil:
    """The k GPUs of the set with the lowest ids; all of a smaller set."""
    cdef mask_t rest = gpus
    while k > 0 and rest:
        rest ^= lowest(rest)
        k -= 1
    return gpus ^ rest


cdef inline bint earlier(mask_t a, mask_t b) noexcept nogil:
    """Of two different sets of one size: do the ids of `a`, ascending, come before those of `b`?"""
    return (a & lowest(a ^ b)) != 0
