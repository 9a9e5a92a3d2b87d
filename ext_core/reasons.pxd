"""Reason codes: one struct for each kernel that rejects nodes. A code is 1..255; 0 in a column = not rejected."""
from ext_core.ints cimport code_t


cdef class ResourceCodes:
    cdef readonly code_t none, away


cdef class CountCodes:
    cdef readonly code_t few, assumed, reserved, releasing, busy, held


cdef class LinkCodes:
    cdef readonly code_t unknown, never, pending, busy, held


cdef class NicCodes:
    cdef readonly code_t unknown, never, pending, held


cdef class HazardCodes:
    cdef readonly code_t panics, lost


cdef class FailingCodes:
    cdef readonly code_t node, namespace
