"""Gather, for each candidate node, the pods that may be victims and what the preemptor lacks there.

The result is flat columns, as `ext_core.victims.cheapest` reads them. Within a node the most important pod comes first,
as kube-scheduler orders them: higher priority, then earlier start; at last the pod row.
"""

from array import array

from cpython cimport array as carray
from cython cimport view

from ext_core.ints cimport amount_t, mask_t, row_t, int32_t, int64_t, uint8_t, uint64_t
from ext_core.table cimport SCHEDULABLE, TERMINATING, NodeTable, PodTable, work_lost


cdef extern from *:
    int __builtin_popcount(unsigned int) noexcept nogil
    int __builtin_ctzll(unsigned long long) noexcept nogil


cdef class Gathered:
    """n candidates, m pods. start: int32[n+1]; pods: int32[m] pod rows; short: int64[R, n]; amounts: int64[R, m];
    masks, unsure: [m]; free: uint32[n] GPUs free now; unknown: int32[n] GPUs held at positions nobody knows;
    priority, start_ms, saved_ms, restart_s, grace_s, gpus, going: int64[m]; gang, budgets, ask: int32[m] ids;
    some_go: whether any of the pods is terminating."""

    cdef readonly object start, pods, masks, unsure, free, unknown
    cdef readonly object priority, start_ms, saved_ms, restart_s, grace_s, gpus, going
    cdef readonly object gang, budgets, ask
    cdef readonly object short, amounts
    cdef readonly bint some_go


cdef object INT32 = array("i"), INT64 = array("q"), MASK = array("I")


cdef inline object _int64s(Py_ssize_t n):
    """Not zeroed: whoever asks fills all of it."""
    return carray.clone(INT64, n, False)


cdef inline bint _before(PodTable pods, row_t a, row_t b) noexcept nogil:
    if pods.priority[a] != pods.priority[b]:
        return pods.priority[a] > pods.priority[b]
    if pods.start[a] != pods.start[b]:
        return pods.start[a] < pods.start[b]
    return a < b


cdef inline bint _eligible(
    PodTable pods, row_t pod, int priority, int64_t now, const uint8_t[::1] needed
) noexcept nogil:
    return pods.may_go(pod, priority, now) and (pod >= needed.shape[0] or not needed[pod])


def victims(NodeTable nodes, PodTable pods, const row_t[::1] rows, const amount_t[::1] request, int resource,
            int priority, int64_t now_ms=0, needed=b""):
    """The possible victims (priority below `priority`, not spared, not protected at `now_ms`, not marked in `needed`)
    on each of `rows`, and what `request` (R amounts) lacks there. `resource`: index of the GPU resource whose positions
    count."""
    cdef const uint8_t[::1] near = needed
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
                if _eligible(pods, pod, priority, now_ms, near):
                    m += 1
                pod = pods.next[pod]
            start[i + 1] = <int32_t>m
    found = Gathered()
    found.start = starts
    found.pods = carray.clone(INT32, m, False)
    found.masks = carray.clone(MASK, m, False)
    found.unsure = carray.clone(INT32, m, False)
    found.free = carray.clone(MASK, n, False)
    found.unknown = carray.clone(INT32, n, False)
    found.gang = carray.clone(INT32, m, False)
    found.budgets = carray.clone(INT32, m, False)
    found.ask = carray.clone(INT32, m, False)
    found.some_go = False
    found.priority = _int64s(m)
    found.start_ms = _int64s(m)
    found.saved_ms = _int64s(m)
    found.restart_s = _int64s(m)
    found.grace_s = _int64s(m)
    found.gpus = _int64s(m)
    found.going = _int64s(m)
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
    cdef int32_t[::1] gang = found.gang, budgets = found.budgets, ask = found.ask
    cdef bint some_go = False
    cdef int hidden
    cdef mask_t staying
    with nogil:
        for i in range(n):
            row = rows[i]
            free[i] = nodes.healthy[row] & ~nodes.sure[row]
            hidden = __builtin_popcount(nodes.healthy[row]) - <int>nodes.alloc[resource, row]
            unknown[i] = (nodes.unknown[row] + __builtin_popcount(nodes.likely[row] & ~nodes.sure[row])
                          + nodes.claimed(resource, row) + (hidden if hidden > 0 else 0))
            for r in range(nodes.resources):
                short[r, i] = request[r] - nodes.free_count(r, row) if request[r] > 0 else 0
            low = start[i]
            at = low
            staying = 0
            pod = pods.head[row] if row < pods.head_capacity else -1
            while pod >= 0:
                if _eligible(pods, pod, priority, now_ms, near):
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
                # Two pods may be seen on one GPU, and a pod on a GPU that has failed since.
                masks[at] = pods.mask[pod] & ~staying & nodes.healthy[row]
                unsure[at] = pods.unsure[pod]
                prio[at] = pods.priority[pod]
                begun[at] = pods.start[pod]
                saved[at] = pods.saved[pod]
                restart[at] = pods.restart[pod]
                grace[at] = pods.grace[pod]
                gpus[at] = pods.gpus[pod]
                going[at] = 1 if pods.flags[pod] & TERMINATING else 0
                some_go |= going[at]
                gang[at] = pods.gang[pod]
                budgets[at] = pods.budgets[pod]
                ask[at] = pods.ask[pod]
    found.some_go = some_go
    return found


def by_name(NodeTable nodes, const row_t[::1] rows, const row_t[::1] more):
    """The rows of `rows`, and those of `more` that are not cordoned, each once, in the order of their nodes' names; -1
    stands for no node. ValueError: two of them have one place in that order."""
    cdef Py_ssize_t i, n = 0, height = nodes.height, first = rows.shape[0]
    cdef row_t row, rank
    ranked = array("i", [-1]) * height
    cdef row_t[::1] at = ranked
    for i in range(first + more.shape[0]):
        row = rows[i] if i < first else more[i - first]
        if row == -1:
            continue
        if not 0 <= row < height:
            raise IndexError("row outside of the table")
        if i >= first and not nodes.flags[row] & SCHEDULABLE:
            continue
        rank = nodes.order[row]
        if rank >= height or (at[rank] >= 0 and at[rank] != row):
            raise ValueError(f"row {row} has no place of its own in the order of names")
        at[rank] = row
    for i in range(height):
        if at[i] >= 0:
            at[n] = at[i]
            n += 1
    return ranked[:n]


def lost(const int64_t[::1] gpus, const int64_t[::1] start_ms, const int64_t[::1] saved_ms,
         const int64_t[::1] restart_s, const int64_t[::1] going, int64_t now_ms):
    """GPU-seconds that each pod's eviction loses: GPUs x (now - last checkpoint, or start, + restart seconds); 0 for
    one that goes anyway."""
    cdef Py_ssize_t i, m = gpus.shape[0]
    if not m == start_ms.shape[0] == saved_ms.shape[0] == restart_s.shape[0] == going.shape[0]:
        raise ValueError("the columns differ in length")
    made = _int64s(m)
    cdef int64_t[::1] out = made
    with nogil:
        for i in range(m):
            out[i] = 0 if going[i] else work_lost(gpus[i], start_ms[i], saved_ms[i], restart_s[i], now_ms)
    return made


def unless(const int64_t[::1] column, const int64_t[::1] marks, int64_t value):
    """The column, with `value` where it is marked."""
    cdef Py_ssize_t i, m = column.shape[0]
    if marks.shape[0] != m:
        raise ValueError("the columns differ in length")
    made = _int64s(m)
    cdef int64_t[::1] out = made
    with nogil:
        for i in range(m):
            out[i] = value if marks[i] else column[i]
    return made


def distinct(const int32_t[::1] ids, const int64_t[::1] going):
    """The ids above 0 of the pods that do not go anyway, each once, ascending."""
    cdef Py_ssize_t i, m = ids.shape[0]
    cdef int32_t most = 0
    if going.shape[0] != m:
        raise ValueError("the columns differ in length")
    for i in range(m):
        most = max(most, ids[i])
    marks = bytearray(most + 1)
    cdef uint8_t[::1] mark = marks
    for i in range(m):
        if ids[i] > 0 and not going[i]:
            mark[ids[i]] = 1
    return [i for i in range(most + 1) if mark[i]]


def memberships(const int32_t[::1] ids, const int64_t[::1] going, dict groups):
    """(starts int32[m + 1], members): the groups of each pod, `groups[id]` of its id; none for one that goes anyway
    and for id 0."""
    cdef Py_ssize_t i, m = ids.shape[0], n = 0
    cdef int32_t most = 0, e
    if going.shape[0] != m:
        raise ValueError("the columns differ in length")
    starts = array("i", bytes(4 * (m + 1)))
    if not groups:
        if distinct(ids, going):
            raise KeyError("an id without an entry")
        return starts, array("i")
    for known in groups:
        most = max(most, <int32_t>known)
    firsts = array("i", [-1]) * (most + 1)  # where an id's groups begin in `flat`; -1: no entry
    lasts = array("i", [-1]) * (most + 1)
    flat = array("i")
    for known, part in groups.items():
        firsts[known] = len(flat)
        flat.extend(part)
        lasts[known] = len(flat)
    cdef int32_t[::1] start = starts, first = firsts, last = lasts
    for i in range(m):
        if ids[i] > 0 and not going[i]:
            if ids[i] > most or first[ids[i]] < 0:
                raise KeyError(ids[i])
            n += last[ids[i]] - first[ids[i]]
        start[i + 1] = <int32_t>n
    members = array("i", bytes(4 * n))
    if not n:
        return starts, members
    cdef int32_t[::1] out = members, from_flat = flat
    n = 0
    for i in range(m):
        if ids[i] > 0 and not going[i]:
            for e in range(first[ids[i]], last[ids[i]]):
                out[n] = from_flat[e]
                n += 1
    return starts, members


def gangs(PodTable pods, int size, int64_t now_ms):
    """(members, work), int64[size] each, by gang id: how many pods of it run (those that go already do not count), and
    the GPU-seconds that all of them would lose. ValueError: a pod has a gang that is not below `size`."""
    counts, works = array("q", bytes(8 * (size + 1))), array("q", bytes(8 * (size + 1)))
    cdef int64_t[::1] count = counts, work = works
    cdef int pod, gang
    cdef bint wrong = False
    with nogil:
        for pod in range(pods.height):
            gang = pods.gang[pod]
            if pods.node[pod] < 0 or gang <= 0 or pods.flags[pod] & TERMINATING:
                continue
            if gang >= size:
                wrong = True
                break
            count[gang] += 1
            work[gang] += pods.work_lost(pod, now_ms)
    if wrong:
        raise ValueError("a gang beyond `size`")
    return counts[:size], works[:size]


def graphs(NodeTable nodes, const row_t[::1] rows):
    """(kind of each row, kinds): a kind is (shape, healthy mask, resource index or -1) of a row's GPUs."""
    cdef Py_ssize_t i, n = rows.shape[0], last = -1
    cdef row_t row
    kinds = {}
    ids = array("i", bytes(4 * n))
    cdef int32_t[::1] out = ids
    for i in range(n):
        row = rows[i]
        if not 0 <= row < nodes.height:
            raise IndexError("row outside of the table")
        if last >= 0 and (nodes.shape[row] == nodes.shape[rows[last]] and nodes.gpu[row] == nodes.gpu[rows[last]]
                          and nodes.healthy[row] == nodes.healthy[rows[last]]):
            out[i] = out[last]
        else:
            out[i] = kinds.setdefault((nodes.shape[row], nodes.healthy[row], nodes.gpu[row]), len(kinds))
        last = i
    return ids, list(kinds)


def some_free(NodeTable nodes, int resource):
    """Bits, uint64: the rows that are not cordoned and where some of the resource is free; claims count as taken."""
    cdef int row
    if not 0 <= resource < nodes.resources:
        raise ValueError("no such resource")
    made = array("Q", bytes(8 * ((nodes.height + 63) // 64)))
    cdef uint64_t[::1] out = made
    with nogil:
        for row in range(nodes.height):
            if nodes.flags[row] & SCHEDULABLE and nodes.free_count(resource, row) > 0:
                out[row // 64] |= <uint64_t>1 << (row % 64)
    return made


def room(NodeTable nodes, const amount_t[::1] request, const uint64_t[::1] allowed, const uint64_t[::1] free):
    """(how many nodes have room for `request` (R amounts), 2 standing for more; the row of the only one, else -1). Only
    rows whose bits in `allowed` and `free` are set; claims count as taken; links are not looked at."""
    cdef int row, r, w, found = 0, where = -1
    cdef uint64_t word
    if request.shape[0] != nodes.resources:
        raise ValueError("request has one number per resource")
    with nogil:
        for w in range(<int>min(allowed.shape[0], free.shape[0])):
            word = allowed[w] & free[w]
            while word:
                row = 64 * w + __builtin_ctzll(word)
                word &= word - 1
                if row >= nodes.height:
                    break
                for r in range(nodes.resources - 1, -1, -1):  # GPUs are what a full node lacks
                    if request[r] > 0 and request[r] > nodes.free_count(r, row):
                        break
                else:
                    found += 1
                    where = row
                    if found == 2:
                        break
            if found == 2:
                break
    return found, where if found == 1 else -1


def stranded(PodTable pods, const row_t[::1] chosen, const int32_t[::1] ask, const int64_t[::1] going, dict rooms):
    """1 for each of the `chosen` pod rows that has room nowhere but on its own node, `rooms[ask]` as `room` answers; 0
    for one that goes anyway, for ask 0, and for an ask that is not in `rooms`."""
    cdef Py_ssize_t i, m = chosen.shape[0]
    if not ask.shape[0] == going.shape[0] == m:
        raise ValueError("the columns differ in length")
    made = array("q", bytes(8 * m))
    cdef int64_t[::1] out = made
    cdef int32_t last = 0
    cdef int found = 0, where = -1
    for i in range(m):
        if ask[i] > 0 and not going[i]:
            if ask[i] != last:
                last = ask[i]
                found, where = rooms.get(last, (2, -1))
            if not 0 <= chosen[i] < pods.height:
                raise IndexError("pod row outside of the table")
            out[i] = found == 0 or (found == 1 and where == pods.node[chosen[i]])
    return made


cdef inline void _settle(PodTable pods, row_t[::1] chosen, Py_ssize_t low, Py_ssize_t at) noexcept nogil:
    """Insertion: move the newcomer at `at` up to its place."""
    cdef row_t item = chosen[at]
    while at > low and _before(pods, item, chosen[at - 1]):
        chosen[at] = chosen[at - 1]
        at -= 1
    chosen[at] = item
