"""Which of two sets of GPUs is the better one to take."""
from ext_core.ints cimport mask_t
from ext_core.shape cimport NICS_IGNORED, NICS_REQUIRED, Shape


cdef inline int compare(const Shape *s, mask_t free, mask_t a, mask_t b, int nics) noexcept nogil:
    """1: a is the better set to take from `free`, -1: b is, 0: as good. `nics`: what the pod asks of NICs, of a shape
    whose NICs are known. Where it prefers them they decide between sets that are equal in links."""
    cdef mask_t x = free ^ a, y = free ^ b
    if nics == NICS_REQUIRED and s.nics[a] != s.nics[b]:
        return 1 if s.nics[a] > s.nics[b] else -1
    if s.ring[a] != s.ring[b]:
        return 1 if s.ring[a] > s.ring[b] else -1
    if s.left[x] != s.left[y]:
        return 1 if s.left[x] > s.left[y] else -1
    if s.future[x] + s.future[a] != s.future[y] + s.future[b]:
        return 1 if s.future[x] + s.future[a] > s.future[y] + s.future[b] else -1
    if s.ways[x] + s.ways[a] != s.ways[y] + s.ways[b]:
        return 1 if s.ways[x] + s.ways[a] > s.ways[y] + s.ways[b] else -1
    if nics != NICS_IGNORED and s.nics[a] != s.nics[b]:
        return 1 if s.nics[a] > s.nics[b] else -1
    if s.near[a] != s.near[b]:
        return 1 if s.near[a] > s.near[b] else -1
    if s.near[x] != s.near[y]:
        return 1 if s.near[x] > s.near[y] else -1
    return 0
