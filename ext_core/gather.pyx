"""Gather, for each candidate node, the pods that may be victims and what the preemptor lacks there.

The result is flat columns, as `ext_core.victims.cheapest` reads them. Within a node the most important pod comes first,
as kube-scheduler orders them: higher priority, then earlier start; at last the pod row.
"""

from array import array

from cython cimport view

from ext_core.ints cimport amount_t, mask_t, row_t, int32_t, int64_t
from ext_core.table cimport SPARED, TERMINATING, NodeTable, PodTable


cdef extern from *:
    int __builtin_popcount(unsigned int) noexcept nogil


cdef class Gathered:
    """n candidates, m pods. start: int32[n+1]; pods: int32[m] pod rows; short: int64[R, n]; amounts: int64[R, m];
    masks, unsure: [m]; free: uint32[n] GPUs free now; unknown: int32[n] GPUs held at positions nobody knows;
    priority, start_ms, saved_ms, restart_s, grace_s, gpus, going: [m]."""

    cdef readonly object start, pods, masks, unsure, free, unknown
    cdef readonly object priority, start_ms, saved_ms, restart_s, grace_s, gpus, going
    cdef readonly object short, amounts


cdef inline bint _before(PodTable pods, row_t a, row_t b) noexcept nogil:
    if pods.priority[a] != pods.priority[b]:
        return pods.priority[a] > pods.priority[b]
    if pods.start[a] != pods.start[b]:
        return pods.start[a] < pods.start[b]
    return a < b


cdef inline bint _eligible(PodTable pods, row_t pod, int priority) noexcept nogil:
    return pods.priority[pod] < priority and not pods.flags[pod] & SPARED


def victims(NodeTable nodes, PodTable pods, const row_t[::1] rows, const amount_t[::1] request, int resource,
            int priority):
    """The possible victims (priority below `priority`, not spared) on each of `rows`, and what `request` (R amounts)
    lacks there. `resource`: index of the GPU resource whose positions count."""
    cdef Py_ssize_t n = rows.shape[0], i, m = 0, at, low
    cdef int r
    cdef row_t row, pod
    if request.shape[0] != nodes.resources or not 0 <= resource < nodes.resources:
        raise ValueError("request has one number per resource")
    if pods.resources != nodes.resources:
        raise ValueError("the tables differ in their resources")
    for i in range(n):
        if not 0 <= rows[i] < nodes.height:
            raise IndexError("row outside of the table")
    starts = array("i", bytes(4 * (n + 1)))
    cdef int32_t[::1] start = starts
    with nogil:
        for i in range(n):
            row = rows[i]
            pod = pods.head[row] if row < pods.head_capacity else -1
            while pod >= 0:
                if _eligible(pods, pod, priority):
                    m += 1
                pod = pods.next[pod]
            start[i + 1] = <int32_t>m
    found = Gathered()
    found.start = starts
    found.pods = array("i", bytes(4 * m))
    found.masks = array("I", bytes(4 * m))
    found.unsure = array("i", bytes(4 * m))
    found.free = array("I", bytes(4 * n))
    found.unknown = array("i", bytes(4 * n))
    for name in ("priority", "start_ms", "saved_ms", "restart_s", "grace_s", "gpus", "going"):
        column = array("q", bytes(8 * m))
        if name == "priority":
            found.priority = column
        elif name == "start_ms":
            found.start_ms = column
        elif name == "saved_ms":
            found.saved_ms = column
        elif name == "restart_s":
            found.restart_s = column
        elif name == "grace_s":
            found.grace_s = column
        elif name == "gpus":
            found.gpus = column
        else:
            found.going = column
    cdef amount_t[:, ::1] short = view.array((nodes.resources, max(n, 1)), sizeof(amount_t), "q")
    cdef amount_t[:, ::1] amounts = view.array((nodes.resources, max(m, 1)), sizeof(amount_t), "q")
    found.short = short
    found.amounts = amounts
    if m == 0 and n == 0:
        return found
    cdef row_t[::1] chosen = found.pods
    cdef mask_t[::1] masks = found.masks, free = found.free
    cdef int32_t[::1] unsure = found.unsure, unknown = found.unknown
    cdef int64_t[::1] prio = found.priority, begun = found.start_ms, saved = found.saved_ms
    cdef int64_t[::1] restart = found.restart_s, grace = found.grace_s, gpus = found.gpus, going = found.going
    cdef int hidden
    cdef mask_t staying
    with nogil:
        for i in range(n):
            row = rows[i]
            free[i] = nodes.healthy[row] & ~nodes.sure[row]
            hidden = __builtin_popcount(nodes.healthy[row]) - <int>nodes.alloc[resource, row]
            unknown[i] = (nodes.unknown[row] + __builtin_popcount(nodes.likely[row] & ~nodes.sure[row])
                          + <int>nodes.claim[resource, row] + (hidden if hidden > 0 else 0))
            for r in range(nodes.resources):
                short[r, i] = request[r] - nodes.free_count(r, row) if request[r] > 0 else 0
            low = start[i]
            at = low
            staying = 0
            pod = pods.head[row] if row < pods.head_capacity else -1
            while pod >= 0:
                if _eligible(pods, pod, priority):
                    chosen[at] = pod
                    _settle(pods, chosen, low, at)
                    at += 1
                else:
                    staying |= pods.mask[pod]
                pod = pods.next[pod]
            for at in range(low, start[i + 1]):
                pod = chosen[at]
                for r in range(nodes.resources):
                    amounts[r, at] = pods.amounts[r, pod]
                masks[at] = pods.mask[pod] & ~staying  # two pods may be seen on one GPU
                unsure[at] = pods.unsure[pod]
                prio[at] = pods.priority[pod]
                begun[at] = pods.start[pod]
                saved[at] = pods.saved[pod]
                restart[at] = pods.restart[pod]
                grace[at] = pods.grace[pod]
                gpus[at] = pods.amounts[resource, pod]
                going[at] = 1 if pods.flags[pod] & TERMINATING else 0
    return found


cdef inline void _settle(PodTable pods, row_t[::1] chosen, Py_ssize_t low, Py_ssize_t at) noexcept nogil:
    """Insertion: move the newcomer at `at` up to its place."""
    cdef row_t item = chosen[at]
    while at > low and _before(pods, item, chosen[at - 1]):
        chosen[at] = chosen[at - 1]
        at -= 1
    chosen[at] = item
