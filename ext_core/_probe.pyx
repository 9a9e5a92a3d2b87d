"""Faults on purpose: tests/core/test_checked.py proves with them that the checked build is what runs."""

from libc.stdlib cimport free, malloc
from libc.string cimport memset

from ext_core.ints cimport int64_t, uint8_t


def item(const int64_t[::1] column, Py_ssize_t at):
    """IndexError beyond the column: `boundscheck`."""
    return column[at]


def product(int64_t a, int64_t b):
    """OverflowError beyond 64 bits: `overflowcheck`."""
    cdef int64_t made = a * b
    return made


def beyond(Py_ssize_t size):
    """Reads the byte after `size` bytes: the address sanitizer ends the process."""
    cdef uint8_t *made = <uint8_t *>malloc(size)
    memset(made, 0, size)
    cdef uint8_t read
    read = made[size]
    free(made)
    return read
