# cython: language_level=3
"""A node table as it would be without some pods, for what is planned at a later time."""

from cpython.array cimport array, clone

from ext_core.ints cimport amount_t, int32_t, int64_t, mask_t, row_t
from ext_core.masks cimport popcount
from ext_core.table cimport NodeTable, PodTable

cdef array _NUMBERS = array("q")
cdef array _BYTES = array("B")

cdef enum:
    HELD = 5  # numbers that are kept of a row beside its amounts: row, sure, likely, unknown, pending


cdef class Absence:
    """The table without the pods, from the construction until `end`. Absences end in the reverse order."""

    cdef NodeTable nodes
    cdef array kept  # [row, HELD + R] what the rows had
    cdef Py_ssize_t count

    def __cinit__(self, NodeTable nodes, PodTable pods, const row_t[::1] gone):
        if nodes.resources != pods.resources:
            raise ValueError("tables of other resources")
        self.nodes = nodes
        self.count = 0
        cdef int width = HELD + nodes.resources
        self.kept = clone(_NUMBERS, min(<Py_ssize_t>nodes.height, gone.shape[0]) * width, zero=False)
        cdef array marks = clone(_BYTES, pods.height + nodes.height, zero=True)
        cdef unsigned char[::1] mark = marks  # of pods that are gone, then of rows that are kept
        cdef int64_t[::1] kept = self.kept
        cdef Py_ssize_t i
        cdef row_t pod, row
        for i in range(gone.shape[0]):
            pod = gone[i]
            if not 0 <= pod < pods.height:
                raise ValueError(f"pod row {pod} of {pods.height}")
            mark[pod] = 1
        for i in range(gone.shape[0]):
            row = pods.node[gone[i]]
            if 0 <= row < nodes.height and not mark[pods.height + row]:
                mark[pods.height + row] = 1
                self._keep(row, kept, width)
                self._leave(row, pods, mark)

    cdef void _keep(self, row_t row, int64_t[::1] kept, int width) noexcept:
        cdef Py_ssize_t at = self.count * width
        cdef NodeTable nodes = self.nodes
        cdef int r
        kept[at] = row
        kept[at + 1] = nodes.sure[row]
        kept[at + 2] = nodes.likely[row]
        kept[at + 3] = nodes.unknown[row]
        kept[at + 4] = nodes.pending[row]
        for r in range(nodes.resources):
            kept[at + HELD + r] = nodes.used[r, row]
        self.count += 1

    cdef void _leave(self, row_t row, PodTable pods, const unsigned char[::1] mark) noexcept:
        """Take the pods of a row that are gone out of it."""
        cdef NodeTable nodes = self.nodes
        cdef row_t pod = pods.head[row] if row < pods.head_capacity else -1
        cdef int64_t unsure = 0
        cdef mask_t freed = 0, held = 0
        cdef int r
        while pod >= 0:
            if mark[pod]:
                freed |= pods.mask[pod]
                for r in range(nodes.resources):
                    nodes.used[r, row] -= min(nodes.used[r, row], pods.amounts[r, pod])
            else:
                held |= pods.mask[pod]
                unsure += pods.unsure[pod]
            pod = pods.next[pod]
        freed &= ~held
        nodes.sure[row] &= ~freed
        if not unsure:  # those at uncertain positions are all gone
            nodes.likely[row] = 0
        else:
            nodes.likely[row] &= ~freed
        nodes.unknown[row] = <int32_t>min(<int64_t>nodes.unknown[row], unsure)
        nodes.pending[row] = min(nodes.pending[row], nodes.unknown[row] + <int32_t>popcount(nodes.likely[row]))
        nodes.touch(row)

    def end(self):
        """The rows are again as they were."""
        cdef NodeTable nodes = self.nodes
        cdef const int64_t[::1] kept = self.kept
        cdef Py_ssize_t i, at
        cdef int r, width = HELD + nodes.resources
        cdef row_t row
        for i in range(self.count):
            at = i * width
            row = <row_t>kept[at]
            nodes.sure[row] = <mask_t>kept[at + 1]
            nodes.likely[row] = <mask_t>kept[at + 2]
            nodes.unknown[row] = <int32_t>kept[at + 3]
            nodes.pending[row] = <int32_t>kept[at + 4]
            for r in range(nodes.resources):
                nodes.used[r, row] = <amount_t>kept[at + HELD + r]
            nodes.touch(row)
        self.count = 0
