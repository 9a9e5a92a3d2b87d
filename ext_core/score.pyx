"""Scores: a scorer's kernel fills one column, 0.0 (worst) to 1.0 (best), over the candidate rows.

`weigh` sums weighted columns, `top` takes the best K in a fixed order, `points` makes 0..10 of them for kube-scheduler.
"""

from array import array

from cpython cimport array as c_array
from libc.stdlib cimport free as c_free, malloc
from libc.string cimport memset

from ext_core.ask cimport LINKS_IGNORED, Ask
from ext_core.checks cimport check_ask, check_rows, checked_rows, rows_of, scores_of
from ext_core.ints cimport mask_t, row_t, score_t, int32_t, int64_t, uint64_t
from ext_core.links cimport LinkShapes
from ext_core.shape cimport Choice
from ext_core.table cimport NodeTable

cdef enum:
    KEPT = 64  # a power of 2

cdef c_array.array EMPTY_INDICES = array("i")
cdef c_array.array EMPTY_SCORES = array("d")


def packing(NodeTable nodes, Ask ask, c_array.array rows, c_array.array weights, c_array.array out):
    """How full the node is with the pod on it: the weighted mean of (used + claimed + asked) / allocatable.

    As NodeResourcesFit's MostAllocated. `weights`: R; a resource that the node does not offer is left out.
    """
    cdef const score_t* weight_of = scores_of(weights)
    cdef score_t* value = scores_of(out)
    cdef const row_t* row_at = checked_rows(nodes, rows, len(out))
    cdef Py_ssize_t i, n = len(rows)
    check_ask(nodes, ask)
    if len(weights) != nodes.resources:
        raise ValueError("weights have one number per resource")
    cdef int r
    cdef row_t row
    cdef double total, weight, share
    with nogil:
        for i in range(n):
            row = row_at[i]
            total = 0.0
            weight = 0.0
            for r in range(nodes.resources):
                if weight_of[r] <= 0.0 or nodes.alloc[r, row] <= 0:
                    continue
                share = <double>(nodes.alloc[r, row] - nodes.free_count(r, row) + ask.amount[r]) / nodes.alloc[r, row]
                total += weight_of[r] * (1.0 if share > 1.0 else share)
                weight += weight_of[r]
            value[i] = total / weight if weight > 0.0 else 0.0


def links(NodeTable nodes, Ask ask, const row_t[::1] rows, score_t[::1] out):
    """Link quality: the ring bandwidth of the GPUs that the node will hand out / the node's own best for that size.

    What it will hand out: what is planned where it follows plans; else the device plugin's expected answer where
    that is predictable, else the best free set. 1 for one GPU, and for a pod that ignores links. 0 for an unknown
    graph, and for a node without any ring of that size.
    """
    check_rows(nodes, rows, out.shape[0])
    cdef Py_ssize_t i
    cdef row_t row
    cdef LinkShapes shapes = nodes.shapes
    cdef const Choice* choice
    cdef int ring, wanted = 1 if ask.mode == LINKS_IGNORED else ask.wanted
    with nogil:
        for i in range(rows.shape[0]):
            row = rows[i]
            out[i] = 1.0 if wanted < 2 else 0.0
            if wanted < 2 or nodes.gpu[row] != ask.resource or nodes.shape[row] == 0:
                continue
            choice = shapes.best(nodes.shape[row], nodes.whole_gpus(row), wanted)
            if choice == NULL or choice.ring_best <= 0:
                continue
            ring = choice.expected_ring
            if ring < 0 or (ask.planned and shapes.follows(nodes.shape[row], True)):
                ring = choice.ring
            out[i] = <double>ring / choice.ring_best


def nics(NodeTable nodes, Ask ask, const row_t[::1] rows, score_t[::1] out):
    """The part of the pod's GPUs, as the node will hand them out, that have a NIC of their own. 0 for unknown NICs."""
    check_rows(nodes, rows, out.shape[0])
    check_ask(nodes, ask)
    cdef Py_ssize_t i
    cdef row_t row
    cdef LinkShapes shapes = nodes.shapes
    with nogil:
        for i in range(rows.shape[0]):
            row = rows[i]
            out[i] = 0.0
            if ask.wanted > 0 and nodes.gpu[row] == ask.resource:
                out[i] = shapes.nics_expected(nodes.shape[row], nodes.whole_gpus(row), ask.wanted, ask.nic_mode,
                                              ask.planned)


def leftover(NodeTable nodes, Ask ask, c_array.array rows, c_array.array out):
    """What stays whole for later pods: 1 - (ways lost by taking the best set) / (ways of the whole machine).

    Ways: the ring links of all sets of GPUs, summed (`LinkShapes.ways`). The loss is absolute: to break up a whole
    machine costs more than to use up a broken one. 1 where no loss is known.
    """
    cdef score_t* value = scores_of(out)
    cdef const row_t* row_at = checked_rows(nodes, rows, len(out))
    cdef Py_ssize_t i, n = len(rows)
    cdef row_t row
    cdef LinkShapes shapes = nodes.shapes
    cdef const Choice* choice
    cdef mask_t free
    cdef int64_t whole
    cdef int32_t shape
    cdef int at
    cdef int32_t[KEPT] shape_of  # the values of the pairs (shape, free GPUs) that were met last: most nodes are alike
    cdef mask_t[KEPT] free_of
    cdef score_t[KEPT] value_of
    with nogil:
        memset(shape_of, 0, sizeof(shape_of))
        for i in range(n):
            row = row_at[i]
            value[i] = 1.0
            shape = nodes.shape[row]
            if ask.wanted < 1 or nodes.gpu[row] != ask.resource or shape == 0:
                continue
            free = nodes.whole_gpus(row)
            at = <int>((free ^ free >> 6 ^ <mask_t>shape * 7) & (KEPT - 1))
            if shape_of[at] == shape and free_of[at] == free:
                value[i] = value_of[at]
                continue
            whole = shapes.ways_of(shape, <mask_t>0xFFFF)
            choice = shapes.best(shape, free, ask.wanted)
            if choice != NULL and whole > 0:
                value[i] = 1.0 - <double>(shapes.ways_of(shape, free)
                                          - shapes.ways_of(shape, free & ~choice.gpus)) / whole
            shape_of[at], free_of[at], value_of[at] = shape, free, value[i]


def weigh(NodeTable nodes, Ask ask, c_array.array rows, list columns not None, list weights not None):
    """float64[n]: the sum of weight x column, added in the order of the columns. A column of equal values is one float.

    Below all others, at -1: nodes that do not offer the GPU resource themselves (a DeviceClass may serve the pod).
    """
    cdef const row_t* row_at = checked_rows(nodes, rows, len(rows))
    cdef Py_ssize_t i, c, n = len(rows)
    cdef double weight, alike = 0.0  # what all rows have so far
    cdef bint differ = False
    cdef const score_t* column
    cdef c_array.array made = c_array.clone(EMPTY_SCORES, n, zero=False)
    cdef score_t* total = made.data.as_doubles
    check_ask(nodes, ask)
    if len(columns) != len(weights):
        raise ValueError("one weight a column")
    for c in range(len(columns)):
        weight = weights[c]
        if isinstance(columns[c], float):
            if differ:
                _add(total, n, weight * <double>columns[c])
            else:
                alike += weight * <double>columns[c]
            continue
        column = scores_of(columns[c])
        if len(columns[c]) != n:
            raise ValueError("columns differ in length")
        with nogil:
            if differ:
                for i in range(n):
                    total[i] += weight * column[i]
            else:
                for i in range(n):
                    total[i] = alike + weight * column[i]
        differ = True
    with nogil:
        if not differ:
            for i in range(n):
                total[i] = alike
        if ask.resource >= 0:
            for i in range(n):
                if nodes.alloc[ask.resource, row_at[i]] == 0:
                    total[i] = -1.0
    return made


cdef inline void _add(score_t* total, Py_ssize_t n, double value) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        total[i] += value


cdef inline bint _before(const score_t* total, const int32_t* order, Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    """Higher score first, then the fixed order of the names, at last the place among the candidates."""
    if total[a] != total[b]:
        return total[a] > total[b]
    if order[a] != order[b]:
        return order[a] < order[b]
    return a < b


def top(NodeTable nodes, c_array.array rows, c_array.array total, Py_ssize_t most):
    """Indices into `rows` of the best `most` (0 = all), best first; ties by the nodes' names.

    A heap of the best so far: O(n log most). For all of them a merge takes a third of its time.
    """
    cdef const score_t* score = scores_of(total)
    cdef const row_t* row_at = checked_rows(nodes, rows, len(total))
    cdef Py_ssize_t n = len(rows), size = 0, i, at, held
    if most <= 0 or most > n:
        most = n
    cdef c_array.array made = c_array.clone(EMPTY_INDICES, most, zero=False)
    cdef int32_t* out = rows_of(made)
    if most == n:
        _sorted(nodes, row_at, score, n, out)
        return made
    cdef Py_ssize_t* heap = <Py_ssize_t*>malloc(most * sizeof(Py_ssize_t))
    cdef int32_t* order = <int32_t*>malloc(n * sizeof(int32_t))
    if heap == NULL or order == NULL:
        c_free(heap)
        c_free(order)
        raise MemoryError()
    with nogil:
        for i in range(n):
            order[i] = nodes.order[row_at[i]]
        for i in range(n):  # the root is the worst of the kept
            if size < most:
                at = size
                size += 1
                while at > 0 and _before(score, order, heap[(at - 1) // 2], i):
                    heap[at] = heap[(at - 1) // 2]
                    at = (at - 1) // 2
                heap[at] = i
            elif _before(score, order, i, heap[0]):
                _sift(heap, size, i, score, order)
        while size > 0:
            out[size - 1] = heap[0]
            size -= 1
            held = heap[size]
            _sift(heap, size, held, score, order)
    c_free(heap)
    c_free(order)
    return made


cdef struct Place:
    score_t score
    int32_t order
    int32_t index


cdef inline bint _first(const Place* a, const Place* b) noexcept nogil:
    """As `_before`, of places that are in the order of the candidates."""
    return a.score > b.score or (a.score == b.score and a.order <= b.order)


cdef int _sorted(NodeTable nodes, const row_t* rows, const score_t* total, Py_ssize_t n, int32_t* out) except -1:
    """All indices into `rows`, best first: runs are merged two by two, which keeps the order of equals."""
    cdef Py_ssize_t i, a, b, middle, end, begin, width = 1
    cdef Place* room = <Place*>malloc(2 * n * sizeof(Place))
    if room == NULL:
        raise MemoryError()
    cdef Place* here = room
    cdef Place* there = room + n
    with nogil:
        for i in range(n):
            here[i] = Place(total[i], nodes.order[rows[i]], <int32_t>i)
        while width < n:
            begin = 0
            while begin < n:
                middle = min(begin + width, n)
                end = min(begin + 2 * width, n)
                a = begin
                b = middle
                for i in range(begin, end):
                    if a < middle and (b == end or _first(&here[a], &here[b])):
                        there[i] = here[a]
                        a += 1
                    else:
                        there[i] = here[b]
                        b += 1
                begin = end
            here, there = there, here
            width *= 2
        for i in range(n):
            out[i] = here[i].index
    c_free(room)
    return 0


cdef inline void _sift(Py_ssize_t* heap, Py_ssize_t size, Py_ssize_t item, const score_t* score,
                       const int32_t* order) noexcept nogil:
    """Put `item` in the root's place and restore the heap."""
    cdef Py_ssize_t at = 0, child
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _before(score, order, heap[child], heap[child + 1]):
            child += 1
        if not _before(score, order, item, heap[child]):
            break
        heap[at] = heap[child]
        at = child
    if size > 0:
        heap[at] = item


def contenders(const score_t[::1] total, Py_ssize_t most, double more):
    """int32: the indices that may be among the best `most` (1 or more) once 0 to `more` is added to each of `total`, in
    order. Exact: rounding keeps the order of sums.
    """
    cdef Py_ssize_t n = total.shape[0], size = 0, i, at, child, kept = 0
    cdef score_t value
    if most < 1 or more < 0.0:
        raise ValueError("the best of none, or less than nothing to be added")
    cdef c_array.array made = c_array.clone(EMPTY_INDICES, n, zero=False)
    if n == 0:
        return made
    cdef int32_t[::1] out = made
    cdef score_t* heap = <score_t*>malloc(min(most, n) * sizeof(score_t))  # the best so far, the worst of them first
    if heap == NULL:
        raise MemoryError()
    with nogil:
        for i in range(n):
            value = total[i]
            if size < most:
                at = size
                size += 1
                while at > 0 and heap[(at - 1) // 2] > value:
                    heap[at] = heap[(at - 1) // 2]
                    at = (at - 1) // 2
                heap[at] = value
            elif value > heap[0]:
                at = 0
                while True:
                    child = 2 * at + 1
                    if child + 1 < size and heap[child + 1] < heap[child]:
                        child += 1
                    if child >= size or heap[child] >= value:
                        break
                    heap[at] = heap[child]
                    at = child
                heap[at] = value
        for i in range(n):
            out[kept] = <int32_t>i
            kept += size < most or total[i] + more >= heap[0]
    c_free(heap)
    c_array.resize(made, kept)
    return made


def ranked(c_array.array rows, c_array.array total, c_array.array best):
    """(rows, scores) in the order of `best`, indices as `top` returns them."""
    cdef const row_t* row_at = rows_of(rows)
    cdef const score_t* score = scores_of(total)
    cdef const int32_t* index = rows_of(best)
    cdef Py_ssize_t n = len(best), i, size = len(rows)
    if len(total) != size:
        raise ValueError("rows and total differ in length")
    for i in range(n):
        if not 0 <= index[i] < size:
            raise IndexError("index outside of rows")
    cdef c_array.array places = c_array.clone(EMPTY_INDICES, n, zero=False)
    cdef c_array.array scores = c_array.clone(EMPTY_SCORES, n, zero=False)
    cdef row_t* out = rows_of(places)
    cdef score_t* out_scores = scores.data.as_doubles
    with nogil:
        for i in range(n):
            out[i] = row_at[index[i]]
            out_scores[i] = score[index[i]]
    return places, scores


def picked(list columns not None, c_array.array best, Py_ssize_t most):
    """(differ, values): what each of `columns` has at the first `most` indices of `best`, column by column. Where these
    values differ, `differ` has the column's bit; where they are alike, `values` has one. A column of equal values is
    one float."""
    cdef const int32_t* index = rows_of(best)
    cdef Py_ssize_t n = min(max(most, 0), len(best)), i, at = 0, size
    cdef const score_t* column
    cdef uint64_t differ = 0, bit = 1
    if len(columns) > 64:
        raise ValueError("more than 64 columns")
    cdef c_array.array made = c_array.clone(EMPTY_SCORES, n * len(columns), zero=False)
    if not made:
        return 0, made
    cdef score_t* out = made.data.as_doubles
    for one in columns:
        if isinstance(one, float):
            out[at] = one
            at += 1
            bit <<= 1
            continue
        column, size = scores_of(one), len(one)
        for i in range(n):
            if not 0 <= index[i] < size:
                raise IndexError("index outside of a column")
            out[at + i] = column[index[i]]
            if out[at + i] != out[at]:
                differ |= bit
        at += n if differ & bit else 1
        bit <<= 1
    c_array.resize(made, at)
    return differ, made


def points(c_array.array ranked):
    """0..10 for scores that come best first: the first gets 10 alone, the others at most 9, in order.

    While there are at most ten different scores below the first each gets its own number; beyond, the worse ones
    share: a better score never gets fewer points. So a rounding can never tie the best with another.
    """
    cdef const score_t* score = scores_of(ranked)
    cdef Py_ssize_t n = len(ranked), i
    cdef c_array.array made = c_array.clone(EMPTY_INDICES, n, zero=False)
    cdef int32_t* out = rows_of(made)
    cdef int level = 9
    if n == 0:
        return made
    with nogil:
        out[0] = 10
        for i in range(1, n):
            if i > 1 and score[i] < score[i - 1] and level > 0:
                level -= 1
            out[i] = level
    return made
