"""The columns of a victim search: `gather.victims` makes them, `victims.cheapest` reads them."""

from array import array

from cpython cimport array as carray
from cython cimport view
from libc.string cimport memset

from ext_core.ints cimport amount_t

cdef object INT32 = array("i"), BYTES = array("B"), MASK = array("I")


cdef amount_t[:, ::1] _table(Py_ssize_t height, Py_ssize_t width):
    """Zeros. A view cannot have 0 rows or columns: one unused row or column replaces none."""
    cdef amount_t[:, ::1] made = view.array((max(height, 1), max(width, 1)), sizeof(amount_t), "q")
    memset(&made[0, 0], 0, max(height, 1) * max(width, 1) * sizeof(amount_t))
    return made


cdef class Candidates:
    """n candidate nodes and their eligible pods. See `candidates.pyi`."""

    def __cinit__(self, start, int resources):
        cdef Py_ssize_t i, n, m
        self.start = start
        self.starts = start
        self.resources = resources
        if resources < 0:
            raise ValueError("Candidates: a negative number of resources")
        if self.starts.shape[0] < 1 or self.starts[0] != 0:
            raise ValueError("Candidates: start does not begin with 0")
        n = self.starts.shape[0] - 1
        for i in range(n):
            if self.starts[i + 1] < self.starts[i]:
                raise ValueError(f"Candidates: start falls at candidate {i}")
        m = self.starts[n]
        self.nodes = n
        self.eligible = m
        self.lack = _table(resources, n)
        self.freed = _table(resources, m)
        self.short = self.lack
        self.amounts = self.freed
        self.free = carray.clone(MASK, n, True)
        self.unknown = carray.clone(INT32, n, True)
        self.table = array("i", [-1]) * n
        self.masks = carray.clone(MASK, m, True)
        self.unsure = carray.clone(INT32, m, True)
        self.forced = carray.clone(BYTES, m, True)
        self.ok = []
        self.free_gpus = self.free
        self.unknown_gpus = self.unknown
        self.tables = self.table
        self.gpu_masks = self.masks
        self.unsure_gpus = self.unsure
        self.must = self.forced

    def widen(self, int more):
        """See `candidates.pyi`."""
        if more < 0:
            raise ValueError("widen: a negative number of resources")
        cdef int r, before = self.resources
        cdef Py_ssize_t i
        cdef amount_t[:, ::1] lack = _table(before + more, self.nodes), freed = _table(before + more, self.eligible)
        for r in range(before):
            for i in range(self.nodes):
                lack[r, i] = self.lack[r, i]
            for i in range(self.eligible):
                freed[r, i] = self.freed[r, i]
        self.resources = before + more
        self.lack, self.freed = lack, freed
        self.short, self.amounts = lack, freed
