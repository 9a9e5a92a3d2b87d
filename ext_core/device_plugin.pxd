"""Which sets of GPUs the vendor's device plugin hands out from a free set, and how likely each of them is."""
from ext_core.ints cimport mask_t, milli_t
from ext_core.shape cimport Shape

cdef struct Outlook:        # a question about what is handed out, and its answer
    const milli_t *worth    # [set] what counts
    milli_t enough          # a set does with so much of it
    mask_t planned          # what a relay hands out
    double expected         # the mean of `worth`; 0 where the plugin crashes
    double crash            # how likely it does
    int handed              # IMPOSSIBLE, POSSIBLE, CERTAIN that the set does

# What the plugin's rule computes for a pair: `level` is the PCIe level 0..5, `links` those that the rule counts.
cdef int pair_points(const Shape *s, int level, int links, bint same_numa) noexcept nogil
# Does the plugin split n free GPUs to answer for k of them?
cdef bint splits(const Shape *s, int n, int k) noexcept nogil
# Is the answer for k of n free GPUs known, apart from what draw_all() cannot predict?
cdef bint predictable(const Shape *s, int n, int k) noexcept nogil
# [set] the probability that the plugin answers with it, for free(); NULL when that is not predictable.
cdef double* draw_all(Shape *s, mask_t free, int k) noexcept nogil
# Answers for k of free(); False when that is not predictable.
cdef bint foresee(Shape *s, mask_t free, int k, Outlook *out) noexcept nogil
