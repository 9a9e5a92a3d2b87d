"""What every kernel checks of its arguments before its loop, which checks nothing."""
from ext_core.ask cimport Ask
from ext_core.ints cimport row_t
from ext_core.table cimport NodeTable, PodTable


cdef inline int check_rows(NodeTable nodes, const row_t[::1] rows, Py_ssize_t length) except -1:
    """ValueError: a column has not one item for each row. IndexError: a row outside of the table."""
    cdef Py_ssize_t i
    cdef row_t outside = 0, height = nodes.height
    if length != rows.shape[0]:
        raise ValueError("rows and out differ in length")
    for i in range(rows.shape[0]):  # without a branch: several rows at a time
        outside |= (rows[i] < 0) | (rows[i] >= height)
    if outside:
        raise IndexError("row outside of the table")
    return 0


cdef inline int check_ask(NodeTable nodes, Ask ask) except -1:
    """ValueError: the request was made for a table of other resources."""
    if ask.resources != nodes.resources:
        raise ValueError("the request and the table differ in resources")
    return 0


cdef inline int check_search(NodeTable nodes, PodTable pods, Ask ask, const row_t[::1] rows) except -1:
    """Of a victim search. ValueError: tables or the request differ in resources, or it has no GPUs. IndexError: a row
    outside of the table."""
    check_ask(nodes, ask)
    if pods.resources != nodes.resources:
        raise ValueError("the tables differ in their resources")
    if ask.resource < 0:
        raise ValueError("a victim search is for GPUs")
    return check_rows(nodes, rows, rows.shape[0])
