"""The request as the kernels read it."""
from ext_core.ints cimport amount_t

cdef enum:
    LINKS_IGNORED = 0     # any GPUs are as good
    LINKS_PREFERRED = 1   # linked GPUs score higher
    LINKS_REQUIRED = 2    # a node that may hand out GPUs without links is rejected


cdef class Ask:
    cdef readonly tuple amounts     # R exact amounts
    cdef int resources              # R
    cdef amount_t* amount           # [R] the same amounts
    cdef readonly int resource      # index of the GPU resource whose links count: the one with most units; -1 = no GPUs
    cdef readonly int wanted        # GPUs of `resource` that the pod takes, or takes `share` units of each
    cdef readonly amount_t share    # units that it takes of each GPU
    cdef readonly int containers    # containers that ask for GPUs
    cdef readonly int priority
    cdef readonly str namespace     # the failures of its pods count for its pods only
    cdef int mode                   # LINKS_IGNORED, LINKS_PREFERRED or LINKS_REQUIRED
    cdef int nic_mode               # NICS_IGNORED, NICS_PREFERRED or NICS_REQUIRED
    cdef readonly bint planned      # the queue allocates the devices of its claims (DRA)
    cdef readonly int most_wait     # seconds for which it waits at most until victims have saved their work; 0 = none

    cdef Ask _with(self, int nic_mode, bint planned, int most_wait)
