"""What a look at the whole cluster reads of many rows at once: what is free, what is missing.

No decision rests on these columns: they are for verdicts and advice, between two decisions.
"""

from array import array

from ext_core.ask cimport Ask
from ext_core.checks cimport check_ask, check_rows
from ext_core.ints cimport amount_t, int32_t, int64_t, mask_t, row_t, uint8_t
from ext_core.masks cimport popcount
from ext_core.table cimport FIRST_GPU, TERMINATING, NodeTable, PodTable


def free(NodeTable nodes, int resource, const row_t[::1] rows):
    """int64[n]: what is left of the resource on each row, claims taken."""
    cdef Py_ssize_t i, n = rows.shape[0]
    check_rows(nodes, rows, n)
    if not 0 <= resource < nodes.resources:
        raise ValueError("no such resource")
    made = array("q", bytes(8 * n))
    cdef int64_t[::1] out = made
    with nogil:
        for i in range(n):
            out[i] = nodes.free_count(resource, rows[i])
    return made


def short(NodeTable nodes, Ask ask, const row_t[::1] rows):
    """uint8[n]: bit r where too little of CPU, memory or pod slots (r = 0, 1, 2) is free on a row, claims taken."""
    cdef Py_ssize_t i, n = rows.shape[0]
    cdef int r
    check_ask(nodes, ask)
    check_rows(nodes, rows, n)
    made = array("B", bytes(n))
    cdef uint8_t[::1] out = made
    with nogil:
        for i in range(n):
            for r in range(FIRST_GPU):
                if ask.amount[r] > 0 and ask.amount[r] > nodes.free_count(r, rows[i]):
                    out[i] |= 1 << r
    return made


cdef struct Missing:
    int64_t gpus   # units of all GPU resources, and GPUs that are not linked
    double rest    # parts of CPU, memory and pod slots, in sum


cdef Missing missing_on(NodeTable nodes, Ask ask, row_t row, int32_t linked) noexcept nogil:
    cdef Missing found = Missing(0, 0.0)
    cdef amount_t wanted, left
    cdef int r
    for r in range(nodes.resources):
        wanted = ask.amount[r]
        left = nodes.free_count(r, row)
        if wanted <= 0 or wanted <= left:
            continue
        left = max(<amount_t>0, left)
        if r >= FIRST_GPU:
            found.gpus += wanted - left
        else:
            found.rest += <double>(wanted - left) / <double>wanted
    if linked >= 0:
        found.gpus += ask.wanted - linked
    return found


def nearest(NodeTable nodes, Ask ask, const row_t[::1] rows, const int32_t[::1] linked):
    """(index, GPUs, rest) of the row where least is missing, of equals the first; None where nothing is on any."""
    cdef Py_ssize_t i, best = -1, n = rows.shape[0]
    cdef Missing found, least = Missing(0, 0.0)
    check_ask(nodes, ask)
    check_rows(nodes, rows, linked.shape[0])
    with nogil:
        for i in range(n):
            found = missing_on(nodes, ask, rows[i], linked[i])
            if found.gpus == 0 and found.rest == 0.0:
                continue
            if best < 0 or found.gpus < least.gpus or (found.gpus == least.gpus and found.rest < least.rest):
                best, least = i, found
    return None if best < 0 else (best, least.gpus, least.rest)


def terminating(PodTable pods):
    """int32: the rows of the pods that terminate, ascending."""
    cdef int pod, count = 0
    found = array("i", bytes(4 * pods.height))
    cdef row_t[::1] out = found
    with nogil:
        for pod in range(pods.height):
            if pods.node[pod] >= 0 and pods.flags[pod] & TERMINATING:
                out[count] = pod
                count += 1
    return found[:count]


def machines(NodeTable nodes, const row_t[::1] rows):
    """int32[n]: rows with equal allocatable amounts and GPUs (links, health, resource) have one number, from 0 on."""
    cdef Py_ssize_t i, n = rows.shape[0], last = -1
    cdef int r
    cdef row_t row, before
    cdef bint same
    check_rows(nodes, rows, n)
    kinds = {}
    made = array("i", bytes(4 * n))
    cdef int32_t[::1] out = made
    for i in range(n):
        row = rows[i]
        same = last >= 0
        if same:  # neighbours are alike, mostly
            before = rows[last]
            same = (nodes.shape[row] == nodes.shape[before] and nodes.healthy[row] == nodes.healthy[before]
                    and nodes.gpu[row] == nodes.gpu[before])
            for r in range(nodes.resources):
                same = same and nodes.alloc[r, row] == nodes.alloc[r, before]
        if same:
            out[i] = out[last]
        else:
            kind = (nodes.shape[row], nodes.healthy[row], nodes.gpu[row], nodes.alloc_of(row))
            out[i] = kinds.setdefault(kind, len(kinds))
        last = i
    return made


def stock(NodeTable nodes, const row_t[::1] rows):
    """(GPUs, free GPUs, shape, mask of free GPUs) of each row. See `survey.pyi`."""
    cdef Py_ssize_t i, n = rows.shape[0]
    cdef int r
    cdef row_t row
    check_rows(nodes, rows, n)
    units, left = array("q", bytes(8 * n)), array("q", bytes(8 * n))
    shapes, masks = array("i", bytes(4 * n)), array("I", bytes(4 * n))
    cdef int64_t[::1] gpus = units, unheld = left
    cdef int32_t[::1] shape = shapes
    cdef mask_t[::1] mask = masks
    cdef mask_t open
    with nogil:
        for i in range(n):
            row = rows[i]
            for r in range(FIRST_GPU, nodes.resources):
                gpus[i] += nodes.alloc[r, row]
                unheld[i] += max(<amount_t>0, nodes.free_count(r, row))
            if nodes.shape[row] <= 0:
                continue
            open = nodes.open_gpus(row)
            if nodes.unknown[row] != 0:
                if nodes.units[row] != 1 or not nodes.shapes.all_linked(nodes.shape[row], open, 2):
                    continue
                while popcount(open) > unheld[i]:
                    open &= open - 1
            shape[i], mask[i] = nodes.shape[row], open
    return units, left, shapes, masks
