"""What every kernel checks of its arguments before its loop, which checks nothing."""
from cpython cimport array as c_array

from ext_core.ask cimport Ask
from ext_core.ints cimport code_t, row_t, score_t
from ext_core.table cimport NodeTable, PodTable


cdef inline int check_rows(NodeTable nodes, const row_t[::1] rows, Py_ssize_t length) except -1:
    """ValueError: a column has not one item for each row. IndexError: a row outside of the table."""
    return _check_rows(nodes, &rows[0] if rows.shape[0] else NULL, rows.shape[0], length)


cdef inline int _check_rows(NodeTable nodes, const row_t* rows, Py_ssize_t n, Py_ssize_t length) except -1:
    cdef Py_ssize_t i
    cdef row_t outside = 0, height = nodes.height
    if length != n:
        raise ValueError("rows and out differ in length")
    for i in range(n):  # without a branch: several rows at a time
        outside |= (rows[i] < 0) | (rows[i] >= height)
    if outside:
        raise IndexError("row outside of the table")
    return 0


# No memoryviews: to make one takes longer than to read the column of a shortlist.

cdef inline row_t* rows_of(c_array.array column) except? NULL:
    """The values of an array('i'). ValueError: it is another one."""
    if column is None or column.ob_descr.typecode != c'i':
        raise ValueError("rows are an array of int32")
    return <row_t*>column.data.as_ints


cdef inline score_t* scores_of(c_array.array column) except? NULL:
    """The values of an array('d'). ValueError: it is another one."""
    if column is None or column.ob_descr.typecode != c'd':
        raise ValueError("a column is an array of float64")
    return column.data.as_doubles


cdef inline code_t* codes_of(c_array.array column) except? NULL:
    """The values of an array('B'). ValueError: it is another one."""
    if column is None or column.ob_descr.typecode != c'B':
        raise ValueError("codes are an array of uint8")
    return column.data.as_uchars


cdef inline const row_t* checked_rows(NodeTable nodes, c_array.array rows, Py_ssize_t length) except? NULL:
    """As `rows_of`, and raises as `check_rows`."""
    cdef const row_t* row_at = rows_of(rows)
    _check_rows(nodes, row_at, len(rows), length)
    return row_at


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
