"""Which candidate nodes may hold the cheapest victims, judged by bounds before anything is searched.

A bound reads a few columns of each pod, once, where the search would copy them all; so most nodes cost little. Costs
compare term after term, and no term of any set on a node is below its bound. So a node is out when its bounds come
after the costs of two known sets. A bound may rest on the terms before it: a set that does not equal the bound there
costs more by them.
"""

from array import array

from libc.stdint cimport INT64_MAX

from ext_core.ask cimport Ask
from ext_core.checks cimport check_search
from ext_core.ints cimport amount_t, int64_t, row_t
from ext_core.ratio cimport part_down, ratio_less
from ext_core.table cimport TERMINATING, NodeTable, PodTable

cdef enum:
    MOST = 64  # pods of a node that are ordered; beyond, the bounds are weaker

cdef int64_t MOST_WORK = 1 << 56  # a pod's work counts as this at most: sums stay within 64 bits
cdef int64_t _FREE = -(1 << 31) - 1

FREE = _FREE

cdef struct Freed:
    int64_t work
    amount_t frees
    int64_t priority


cdef inline void by_work(Freed* kept, int count, Freed pod) noexcept nogil:
    """Insertion, the least work per amount first."""
    while count > 0 and ratio_less(pod.work, pod.frees, kept[count - 1].work, kept[count - 1].frees):
        kept[count] = kept[count - 1]
        count -= 1
    kept[count] = pod


cdef inline void by_priority(Freed* kept, int count, Freed pod) noexcept nogil:
    while count > 0 and pod.priority < kept[count - 1].priority:
        kept[count] = kept[count - 1]
        count -= 1
    kept[count] = pod


cdef struct Bounds:
    int64_t priority        # of the victims: the highest of them is at least this
    int64_t work            # that the victims lose


cdef Bounds judge(PodTable pods, Ask ask, row_t row, amount_t need, int64_t now_ms, bint priority_first) noexcept nogil:
    """The bounds of the sets on one node that free `need` of the resource."""
    cdef Freed[MOST] low
    cdef Freed[MOST] by_cost
    cdef Freed pod
    cdef row_t at = pods.head[row] if row < pods.head_capacity else -1
    cdef int count = 0, i
    cdef amount_t all_of = 0, left
    cdef int64_t lowest = INT64_MAX
    cdef bint many = False
    cdef Bounds bounds
    while at >= 0:
        if pods.may_go(at, ask.priority, now_ms):
            pod.frees = pods.amounts[ask.resource, at] if need > 0 else 1
            if pod.frees > 0:
                pod.priority = _FREE
                pod.work = 0
                if not pods.flags[at] & TERMINATING:
                    pod.priority = pods.priority[at]
                    pod.work = min(pods.work_lost(at, now_ms, ask.most_wait), MOST_WORK)
                lowest = min(lowest, pod.priority)
                all_of = min(all_of + pod.frees, need)  # enough is enough
                many |= count == MOST
                if count < MOST:
                    by_priority(low, count, pod)
                    count += 1
        at = pods.next[at]
    if all_of < need or lowest == INT64_MAX:
        return Bounds(INT64_MAX, INT64_MAX)
    bounds = Bounds(lowest, 0)
    if need <= 0 or many:
        return bounds
    left = need
    for i in range(count):
        left -= low[i].frees
        bounds.priority = low[i].priority
        if left <= 0:
            break
    for i in range(count):
        if not priority_first or low[i].priority <= bounds.priority:
            by_work(by_cost, i, low[i])
    left = need
    for i in range(count):
        if by_cost[i].frees >= left:
            bounds.work += part_down(by_cost[i].work, left, by_cost[i].frees)
            return bounds
        bounds.work += by_cost[i].work
        left -= by_cost[i].frees
    return bounds


def bounds(NodeTable nodes, PodTable pods, Ask ask, const row_t[::1] rows, int64_t now_ms, bint priority_first):
    """(priority, work), int64[n]: what the highest priority of the victims, and the work that they lose, is at least.
    See `scout.pyi`."""
    cdef Py_ssize_t i, n = rows.shape[0]
    cdef int resource = ask.resource
    cdef Bounds found
    check_search(nodes, pods, ask, rows)
    priorities, works = array("q", bytes(8 * n)), array("q", bytes(8 * n))
    cdef int64_t[::1] least_priority = priorities, least_work = works
    with nogil:
        for i in range(n):
            found = judge(
                pods, ask, rows[i], ask.amount[resource] - nodes.free_count(resource, rows[i]), now_ms, priority_first)
            least_priority[i] = found.priority
            least_work[i] = found.work
    return priorities, works


ctypedef const int64_t* column_t

cdef struct Columns:
    int count
    column_t[16] column


cdef int read(list columns, Py_ssize_t n, Columns* into) except -1:
    cdef const int64_t[::1] given
    if len(columns) > 16:
        raise ValueError("at most 16 columns")
    into.count = <int>len(columns)
    for t, column in enumerate(columns):
        given = column
        if given.shape[0] != n:
            raise ValueError("the columns differ in length")
        into.column[<int>t] = &given[0] if n else NULL
    return 0


cdef inline bint before(Columns* of, Py_ssize_t i, Py_ssize_t j) noexcept nogil:
    """Column after column, then the index."""
    cdef int t
    for t in range(of.count):
        if of.column[t][i] != of.column[t][j]:
            return of.column[t][i] < of.column[t][j]
    return i < j


def least(list columns, Py_ssize_t n, Py_ssize_t most):
    """int32, ascending: the indices of the `most` candidates whose bounds come first. See `scout.pyi`."""
    cdef Columns of
    cdef Py_ssize_t i, at, count = 0
    if n < 0 or most < 1:
        raise ValueError("n is 0 or more, most 1 or more")
    read(columns, n, &of)
    kept = array("i", bytes(4 * min(n, most)))
    cdef row_t[::1] out = kept
    with nogil:
        for i in range(n):
            if count == most:
                if not before(&of, i, out[count - 1]):
                    continue
                count -= 1
            at = count
            while at > 0 and before(&of, i, out[at - 1]):
                out[at] = out[at - 1]
                at -= 1
            out[at] = <row_t>i
            count += 1
    return array("i", sorted(kept))


def within(list columns, Py_ssize_t n, tuple cost):
    """int32, ascending: the indices of the candidates whose bounds do not come after `cost`. See `scout.pyi`."""
    cdef Columns of
    cdef Py_ssize_t i, count = 0
    cdef int t
    cdef bint inside
    cdef int64_t[16] most
    if len(cost) != len(columns):
        raise ValueError("one number per column")
    read(columns, n, &of)
    for t in range(of.count):
        most[t] = cost[t]
    kept = array("i", bytes(4 * n))
    cdef row_t[::1] out = kept
    with nogil:
        for i in range(n):
            inside = True
            for t in range(of.count):
                if of.column[t][i] != most[t]:
                    inside = of.column[t][i] < most[t]
                    break
            if inside:
                out[count] = <row_t>i
                count += 1
    return kept[:count]
