"""Gather the pods that may be victims."""
from ext_core.ask cimport Ask
from ext_core.ints cimport row_t
from ext_core.table cimport NodeTable, PodTable

# ValueError, IndexError: a search for `ask` on these rows cannot be made.
cdef int check_request(NodeTable nodes, PodTable pods, Ask ask, const row_t[::1] rows) except -1
