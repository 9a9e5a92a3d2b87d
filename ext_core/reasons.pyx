"""Reason codes: one struct for each kernel that rejects nodes. The codes are the caller's."""

from ext_core.ints cimport code_t


cdef int _check(code_t a, code_t b, code_t c=1, code_t d=1, code_t e=1, code_t f=1) except -1:
    if min(a, b, c, d, e, f) == 0:
        raise ValueError("a reason code is 1 to 255; 0 stands for a node that is not rejected")
    return 0


cdef class ResourceCodes:
    """Of `fit.resource`."""

    def __cinit__(self, code_t none, code_t away):
        _check(none, away)
        self.none, self.away = none, away


cdef class CountCodes:
    """Of `fit.count`."""

    def __cinit__(self, code_t few, code_t assumed, code_t reserved, code_t releasing, code_t busy, code_t held):
        _check(few, assumed, reserved, releasing, busy, held)
        self.few, self.assumed, self.reserved = few, assumed, reserved
        self.releasing, self.busy, self.held = releasing, busy, held


cdef class LinkCodes:
    """Of `fit.links`."""

    def __cinit__(self, code_t unknown, code_t never, code_t pending, code_t busy, code_t held):
        _check(unknown, never, pending, busy, held)
        self.unknown, self.never, self.pending, self.busy, self.held = unknown, never, pending, busy, held


cdef class NicCodes:
    """Of `fit.nics`."""

    def __cinit__(self, code_t unknown, code_t never, code_t pending, code_t held):
        _check(unknown, never, pending, held)
        self.unknown, self.never, self.pending, self.held = unknown, never, pending, held


cdef class HazardCodes:
    """Of `Hazards.reject`."""

    def __cinit__(self, code_t panics, code_t lost):
        _check(panics, lost)
        self.panics, self.lost = panics, lost


cdef class FailingCodes:
    """Of `places.failing`."""

    def __cinit__(self, code_t node, code_t namespace):
        _check(node, namespace)
        self.node, self.namespace = node, namespace
