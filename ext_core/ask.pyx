"""The request as the kernels read it: one struct, made once per request."""

from libc.stdlib cimport free as c_free, malloc

from ext_core.ints cimport amount_t
from ext_core.shape cimport NICS_IGNORED, NICS_PREFERRED, NICS_REQUIRED
from ext_core.table cimport FIRST_GPU

cdef dict MODES = {"ignore": LINKS_IGNORED, "preferred": LINKS_PREFERRED, "required": LINKS_REQUIRED}
cdef dict NIC_MODES = {"ignore": NICS_IGNORED, "preferred": NICS_PREFERRED, "required": NICS_REQUIRED}
cdef amount_t MOST_WANTED = 2**31 - 1


cdef class Ask:
    """One pod's request. It does not change."""

    def __cinit__(self, tuple amounts, amount_t share=1, int containers=1, int priority=0, str links="preferred",
                  str namespace=""):
        cdef int r
        cdef amount_t most = 0
        if len(amounts) < FIRST_GPU or share < 1 or links not in MODES:
            raise ValueError("Ask: CPU, memory and pod slots at least, a share from 1 and known links are expected")
        self.amounts = amounts
        self.resources = len(amounts)
        self.amount = <amount_t*>malloc(self.resources * sizeof(amount_t))
        if self.amount == NULL:
            raise MemoryError()
        self.resource = -1
        for r in range(self.resources):
            self.amount[r] = amounts[r]
            if r >= FIRST_GPU and self.amount[r] > most:
                most = self.amount[r]
                self.resource = r
        self.wanted = <int>min(most // share, MOST_WANTED)
        self.share = share
        self.containers = containers
        self.priority = priority
        self.namespace = namespace
        self.mode = MODES[links]

    def __dealloc__(self):
        c_free(self.amount)

    def with_nics(self, str nics):
        if nics not in NIC_MODES:
            raise ValueError("Ask: required, preferred or ignore is expected of NICs")
        return self._with(NIC_MODES[nics], self.planned, self.most_wait)

    def as_planned(self):
        return self._with(self.nic_mode, True, self.most_wait)

    def waiting(self, int most_wait):
        return self._with(self.nic_mode, self.planned, most_wait)

    cdef Ask _with(self, int nic_mode, bint planned, int most_wait):
        cdef Ask made = Ask(self.amounts, self.share, self.containers, self.priority, self.links, self.namespace)
        made.nic_mode, made.planned, made.most_wait = nic_mode, planned, most_wait
        return made

    @property
    def links(self):
        return ("ignore", "preferred", "required")[self.mode]

    @property
    def nics(self):
        return ("ignore", "preferred", "required")[self.nic_mode]
