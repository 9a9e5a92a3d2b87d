"""Nodes where the device plugin may fail a pod that fits: one byte a node, and what follows for rules and scores."""

from ext_core.ask cimport Ask
from ext_core.checks cimport check_ask, check_rows
from ext_core.ints cimport code_t, mask_t, row_t, score_t, uint8_t
from ext_core.links cimport LinkShapes
from ext_core.masks cimport popcount
from ext_core.reasons cimport HazardCodes
from ext_core.table cimport NodeTable


cdef class Hazards:
    """[row] device-plugin faults of a node; a row that was never set has none."""

    def __cinit__(self):
        self.owned = bytearray(64)
        self.flags = self.owned

    def set(self, int row, int flags):
        """Write the flags of a row: PANICS 1, PANICS_KNOWN 2, LOST 4, LOST_KNOWN 8, added up."""
        if row < 0 or not 0 <= flags < 16:
            raise ValueError("a row from 0 and flags from 0 to 15 are expected")
        if row >= self.flags.shape[0]:
            grown = bytearray(max(row + 1, 2 * self.flags.shape[0]))
            grown[:len(self.owned)] = self.owned
            self.flags = grown
            self.owned = grown
        cdef int bit, before = self.flags[row]
        for bit in range(4):
            self.flagged[bit] += (flags >> bit & 1) - (before >> bit & 1)
        self.flags[row] = flags

    def rejects(self, Ask ask not None):
        """Whether `reject` may reject a row for the request."""
        return self.flagged[3] > 0 or (self.flagged[1] > 0 and ask.wanted > 1)

    def doubts(self, Ask ask not None):
        """Whether `safety` may be below 1 for the request."""
        cdef bint crashes = self.flagged[0] > 0 or self.flagged[1] > 0
        return self.flagged[2] > 0 or self.flagged[3] > 0 or (crashes and ask.wanted > 1)

    def get(self, int row):
        """The flags of a row; 0 where nothing was set."""
        return self.flags[row] if 0 <= row < self.flags.shape[0] else 0


cdef inline int _crash(NodeTable nodes, LinkShapes shapes, Ask ask, row_t row, bint certain) noexcept nogil:
    """How likely the plugin crashes over the free GPUs, in millionths; 0 too where that is unknown. Never for one GPU:
    its answers have no empty places then.

    `certain`: the state of every GPU must be known, and no claim may be on the node.
    """
    cdef mask_t held = nodes.sure[row]
    cdef int found
    if ask.resource < 0 or ask.containers != 1 or nodes.gpu[row] != ask.resource or nodes.unknown[row] > 0:
        return 0
    if certain:
        if nodes.likely[row] & ~held or nodes.pending[row] > 0 or nodes.claim[ask.resource, row] != 0:
            return 0
    else:
        held |= nodes.likely[row] | nodes.wanted[row]
    held = nodes.healthy[row] & ~held
    if popcount(held) != nodes.free_count(ask.resource, row):
        return 0                                 # unhealthy GPUs at unknown positions, or claims without a position
    found = shapes.crash_of(nodes.shape[row], held, ask.wanted)
    return found if found > 0 else 0


def reject(NodeTable nodes, Hazards hazards, Ask ask, const row_t[::1] rows, code_t[::1] out,
           HazardCodes codes not None):
    """Reject nodes whose plugin is known to fail: every pod, or over the GPUs that are free now."""
    check_rows(nodes, rows, out.shape[0])
    check_ask(nodes, ask)
    cdef Py_ssize_t i
    cdef LinkShapes shapes = nodes.shapes
    cdef row_t row
    cdef uint8_t flags
    with nogil:
        for i in range(rows.shape[0]):
            row = rows[i]
            flags = hazards.at(row)
            if out[i] or not flags & (PANICS_KNOWN | LOST_KNOWN) or nodes.gpu[row] != ask.resource:
                continue
            if flags & LOST_KNOWN:
                out[i] = codes.lost
            elif _crash(nodes, shapes, ask, row, True) > 0:
                out[i] = codes.panics


def safety(NodeTable nodes, Hazards hazards, Ask ask, const row_t[::1] rows, score_t[::1] out):
    """1 without a known hazard; with a lost GPU 0.25; where a crash is possible 0.5 x (1 - its probability)."""
    check_rows(nodes, rows, out.shape[0])
    check_ask(nodes, ask)
    cdef Py_ssize_t i
    cdef LinkShapes shapes = nodes.shapes
    cdef row_t row
    cdef uint8_t flags
    cdef int crash
    with nogil:
        for i in range(rows.shape[0]):
            row = rows[i]
            flags = hazards.at(row)
            out[i] = 1.0
            if flags == 0 or nodes.gpu[row] != ask.resource:
                continue
            if flags & (PANICS | PANICS_KNOWN):
                crash = _crash(nodes, shapes, ask, row, False)
                if crash > 0:
                    out[i] = 0.5 * (1.0 - crash / 1e6)
            if flags & (LOST | LOST_KNOWN) and out[i] > 0.25:
                out[i] = 0.25
