"""How many GPUs of a set can have a NIC of their own, and which sets give each GPU one.

A GPU can have a NIC that is under its own PCIe switch, and each NIC is for one GPU of the set: the largest matching of
GPUs with NICs. By Koenig's theorem it is |S| + the least of |NICs of T| - |T| over all subsets T of S.
"""
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.math cimport floor

from ext_core.device_plugin cimport Outlook, foresee
from ext_core.ints cimport int8_t, mask_t, milli_t, uint64_t
from ext_core.masks cimport earlier, first_of, popcount
from ext_core.order cimport compare
from ext_core.shape cimport (
    CERTAIN, IMPOSSIBLE, NICS_PREFERRED, NICS_REQUIRED, POSSIBLE, UNKNOWN_LINKS, NicCell, Shape,
)

cdef extern from *:
    """
    static inline int bits_of(unsigned long long bits) { return __builtin_popcountll(bits); }
    """
    int bits_of(uint64_t bits) noexcept nogil


cdef int fill_nics(Shape *s, const uint64_t *near) except -1:
    cdef size_t sets = <size_t>1 << s.gpus
    cdef mask_t group
    cdef int gpu
    cdef milli_t other
    cdef uint64_t *reach = <uint64_t *>PyMem_Calloc(sets, sizeof(uint64_t))
    s.nics = <milli_t *>PyMem_Calloc(sets, sizeof(milli_t))
    s.nic_cells = <NicCell *>PyMem_Calloc(sets * (s.gpus + 1), sizeof(NicCell))   # untouched pages cost nothing
    if reach is NULL or s.nics is NULL or s.nic_cells is NULL:
        PyMem_Free(reach)
        raise MemoryError
    for group in range(1, <mask_t>1 << s.gpus):
        reach[group] = reach[group & (group - 1)] | near[first_of(group)]
        s.nics[group] = bits_of(reach[group]) - popcount(group)
    PyMem_Free(reach)
    for gpu in range(s.gpus):                    # the least over all subsets, one GPU at a time
        for group in range(<mask_t>1 << s.gpus):
            if group >> gpu & 1:
                other = s.nics[group ^ (<mask_t>1 << gpu)]
                s.nics[group] = min(s.nics[group], other)
    for group in range(<mask_t>1 << s.gpus):
        s.nics[group] += popcount(group)
    return 0


cdef inline bint _better(const Shape *s, mask_t free, mask_t sub, mask_t best, int nics) noexcept nogil:
    cdef int order
    if best == 0:
        return True
    order = compare(s, free, sub, best, nics)
    return order > 0 or (order == 0 and earlier(sub, best))


cdef void fill_cell(Shape *s, mask_t free, int k, mask_t plain, NicCell *cell) noexcept nogil:
    cdef mask_t sub = free
    cdef int full = 0, sets = 0
    cdef Outlook outlook
    cell.preferred = cell.required = 0
    while sub:
        if popcount(sub) == k:
            sets += 1
            full += s.nics[sub] == k
            if _better(s, free, sub, cell.preferred, NICS_PREFERRED):
                cell.preferred = sub
            if _better(s, free, sub, cell.required, NICS_REQUIRED):
                cell.required = sub
        sub = (sub - 1) & free
    cell.sets = IMPOSSIBLE if full == 0 else CERTAIN if full == sets else POSSIBLE
    outlook.worth, outlook.enough, outlook.planned = s.nics, k, plain
    if foresee(s, free, k, &outlook):
        cell.expected = <int>floor(1e6 * outlook.expected / k + 0.5 + 1e-6)
        cell.handed = <int8_t>outlook.handed
    else:
        cell.expected = -1
        cell.handed = cell.sets if cell.sets != POSSIBLE else UNKNOWN_LINKS
    cell.filled = 1
