"""The columns of a victim search."""
from ext_core.ints cimport amount_t, int32_t, mask_t, uint8_t


cdef class Candidates:
    cdef readonly int resources        # R
    cdef Py_ssize_t nodes              # n candidates
    cdef Py_ssize_t eligible           # m pods on all of them
    # What Python sees. The views below are of the same memory, which therefore cannot be resized.
    cdef readonly object start, short, free, unknown, table
    cdef readonly object amounts, masks, unsure, forced
    cdef readonly list ok
    cdef int32_t[::1] starts           # [n + 1] candidate i has the pods starts[i]..starts[i + 1]
    cdef amount_t[:, ::1] lack         # [R, n] how much must be freed for the preemptor to fit; <= 0: nothing
    cdef mask_t[::1] free_gpus         # [n] GPUs free now
    cdef int32_t[::1] unknown_gpus     # [n] GPUs held at unknown positions
    cdef int32_t[::1] tables           # [n] index into `ok`; -1: no rule about links
    cdef amount_t[:, ::1] freed        # [R, m] what evicting the pod frees
    cdef mask_t[::1] gpu_masks         # [m] GPUs that the pod holds and frees
    cdef int32_t[::1] unsure_gpus      # [m] GPUs at unknown positions that it frees
    cdef uint8_t[::1] must             # [m] 1 = among the victims in any case
