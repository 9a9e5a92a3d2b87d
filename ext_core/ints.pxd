"""Every C type of the core, with its meaning."""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    MOST_GPUS = 16  # GPUs of a node whose positions are modelled

ctypedef int32_t row_t       # index of a node in NodeTable, of a pod in PodTable; -1 = no such row
ctypedef int64_t amount_t    # amount of a resource: milli-CPU, bytes, pod slots, whole GPUs
ctypedef uint32_t mask_t     # set of GPUs of one node: bit i is the GPU that nvidia-smi calls i (at most 16)
ctypedef int32_t milli_t     # thousandths of a link (ring_links) or of another unit, as said where it is used
ctypedef double score_t      # what a scorer fills: 0.0 (worst) .. 1.0 (best)
ctypedef uint8_t code_t      # a reason's code; 0 = none
ctypedef const unsigned char* text_t  # bytes of a text in UTF-8

cdef enum:
    MOST_COUNT = 268435456  # 2^28, a count as `int`: beyond any node's GPUs, and the sum of seven of them fits

cdef inline int as_count(amount_t amount) noexcept nogil:
    """An amount of GPUs, which anybody may state, as `int`: it is cut at MOST_COUNT, not at 32 bits."""
    if amount > MOST_COUNT:
        return MOST_COUNT
    return <int>amount if amount > -MOST_COUNT else -MOST_COUNT
