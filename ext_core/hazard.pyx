"""Nodes where the device plugin may fail a pod that fits: one byte a node, and what follows for rules and scores."""

from ext_core.ints cimport code_t, mask_t, row_t, score_t, uint8_t
from ext_core.links cimport LinkShapes
from ext_core.table cimport NodeTable

cdef extern from *:
    int __builtin_popcount(unsigned int) noexcept nogil


cdef class Hazards:
    """[row] what is known against a node's device plugin; rows that nobody set have nothing."""

    def __cinit__(self):
        self.owned = bytearray(64)
        self.flags = self.owned

    def set(self, int row, int flags):
        """PANICS 1, PANICS_KNOWN 2, LOST 4, LOST_KNOWN 8, added up."""
        if row < 0 or not 0 <= flags < 16:
            raise ValueError("a row from 0 and flags from 0 to 15 are wanted")
        if row >= self.flags.shape[0]:
            grown = bytearray(max(row + 1, 2 * self.flags.shape[0]))
            grown[:len(self.owned)] = self.owned
            self.flags = grown
            self.owned = grown
        self.flags[row] = flags

    def get(self, int row):
        return self.flags[row] if 0 <= row < self.flags.shape[0] else 0


cdef int _check(NodeTable nodes, const row_t[::1] rows, Py_ssize_t length) except -1:
    cdef Py_ssize_t i
    if length != rows.shape[0]:
        raise ValueError("rows and out differ in length")
    for i in range(rows.shape[0]):
        if not 0 <= rows[i] < nodes.height:
            raise IndexError("row outside of the table")
    return 0


cdef inline int _crash(NodeTable nodes, LinkShapes shapes, row_t row, int resource, int wanted, int containers,
                       bint certain) noexcept nogil:
    """Millionths: how likely the plugin crashes over what is free; 0 too where that is not known.

    `certain`: every GPU's state must be seen, and nobody be on his way.
    """
    cdef mask_t held = nodes.sure[row]
    cdef int found
    if containers != 1 or nodes.gpu[row] != resource or nodes.unknown[row] > 0:
        return 0
    if certain:
        if nodes.likely[row] & ~held or nodes.pending[row] > 0 or nodes.claim[resource, row] != 0:
            return 0
    else:
        held |= nodes.likely[row] | nodes.wanted[row]
    held = nodes.healthy[row] & ~held
    if __builtin_popcount(held) != nodes.free_count(resource, row):
        return 0                                 # unhealthy ones that nobody named, or claims without a place
    found = shapes.crash_of(nodes.shape[row], held, wanted)
    return found if found > 0 else 0


def refuse(NodeTable nodes, LinkShapes shapes, Hazards hazards, const row_t[::1] rows, int resource, int wanted,
           int containers, code_t[::1] out, code_t panics, code_t lost):
    """Refuse nodes whose plugin is known to fail: `lost` for every pod, `panics` over the GPUs that are free now."""
    _check(nodes, rows, out.shape[0])
    cdef Py_ssize_t i
    cdef row_t row
    cdef uint8_t flags
    with nogil:
        for i in range(rows.shape[0]):
            row = rows[i]
            flags = hazards.at(row)
            if out[i] or not flags & (PANICS_KNOWN | LOST_KNOWN) or nodes.gpu[row] != resource:
                continue
            if flags & LOST_KNOWN:
                out[i] = lost
            elif _crash(nodes, shapes, row, resource, wanted, containers, True) > 0:
                out[i] = panics


def safety(NodeTable nodes, LinkShapes shapes, Hazards hazards, const row_t[::1] rows, int resource, int wanted,
           int containers, score_t[::1] out):
    """1 where nothing speaks against the plugin; with a lost GPU 0.25; a possible crash: 0.5 x (1 - probability)."""
    _check(nodes, rows, out.shape[0])
    cdef Py_ssize_t i
    cdef row_t row
    cdef uint8_t flags
    cdef int crash
    with nogil:
        for i in range(rows.shape[0]):
            row = rows[i]
            flags = hazards.at(row)
            out[i] = 1.0
            if flags == 0 or nodes.gpu[row] != resource:
                continue
            if flags & (PANICS | PANICS_KNOWN):
                crash = _crash(nodes, shapes, row, resource, wanted, containers, False)
                if crash > 0:
                    out[i] = 0.5 * (1.0 - crash / 1e6)
            if flags & (LOST | LOST_KNOWN) and out[i] > 0.25:
                out[i] = 0.25
