"""Gather, for each candidate node, the pods that may be victims and what the preemptor lacks there.

`ext_core.victims.cheapest` reads the result. Within a node the most important pod comes first, as kube-scheduler orders
them: higher priority, then earlier start; at last the name.
"""

from array import array

from cpython cimport array as carray

from ext_core.ask cimport Ask
from ext_core.candidates cimport Candidates
from ext_core.checks cimport check_search
from ext_core.ints cimport amount_t, as_count, mask_t, row_t, int32_t, int64_t, uint8_t, uint64_t
from ext_core.links cimport LinkShapes
from ext_core.masks cimport popcount
from ext_core.table cimport SCHEDULABLE, TERMINATING, NodeTable, PodTable, work_lost


cdef extern from *:
    int __builtin_ctzll(unsigned long long) noexcept nogil


cdef object INT32 = array("i"), INT64 = array("q")


cdef inline object _int64s(Py_ssize_t n):
    """Not zeroed: the caller fills all of it."""
    return carray.clone(INT64, n, False)


cdef inline object _zeros(Py_ssize_t n):
    return carray.clone(INT64, n, True)


cdef class Gathered(Candidates):
    """Candidates, and what the cost terms read of their pods. See `gather.pyi`."""

    cdef readonly object pods, priority, start_ms, saved_ms, restart_s, saves_s, ignores, grace_s, gpus, terminating
    cdef readonly object gang, budgets, ask
    cdef readonly bint some_terminating
    cdef readonly int most_wait
    cdef row_t[::1] rows                # [m]
    cdef int64_t[::1] priorities, starts_ms, saves_ms, restarts_s, saving_s, ignored, graces_s, gpu_counts, terminate
    cdef int32_t[::1] gangs, budget_sets, asks

    def __cinit__(self, start, int resources):
        cdef Py_ssize_t m = self.eligible
        self.pods = carray.clone(INT32, m, True)
        self.priority, self.start_ms, self.saved_ms = _zeros(m), _zeros(m), _zeros(m)
        self.restart_s, self.saves_s, self.ignores, self.grace_s = _zeros(m), _zeros(m), _zeros(m), _zeros(m)
        self.gpus, self.terminating = _zeros(m), _zeros(m)
        self.gang, self.budgets, self.ask = (
            carray.clone(INT32, m, True), carray.clone(INT32, m, True), carray.clone(INT32, m, True))
        self.rows = self.pods
        self.priorities = self.priority
        self.starts_ms = self.start_ms
        self.saves_ms = self.saved_ms
        self.restarts_s = self.restart_s
        self.saving_s = self.saves_s
        self.ignored = self.ignores
        self.graces_s = self.grace_s
        self.gpu_counts = self.gpus
        self.terminate = self.terminating
        self.gangs = self.gang
        self.budget_sets = self.budgets
        self.asks = self.ask


cdef inline bint _before(PodTable pods, row_t a, row_t b, bint named) noexcept nogil:
    """Whether `a` comes first, which stands after `b` in the list of their node: names descend there."""
    if pods.priority[a] != pods.priority[b]:
        return pods.priority[a] > pods.priority[b]
    if pods.start[a] != pods.start[b]:
        return pods.start[a] < pods.start[b]
    return named or a < b


cdef inline void _settle(PodTable pods, row_t[::1] chosen, Py_ssize_t low, Py_ssize_t at, bint named) noexcept nogil:
    """Insertion: move the newcomer at `at` up to its place."""
    cdef row_t item = chosen[at]
    while at > low and _before(pods, item, chosen[at - 1], named):
        chosen[at] = chosen[at - 1]
        at -= 1
    chosen[at] = item


cdef inline bint _eligible(
    PodTable pods, row_t pod, int priority, int64_t now_ms, const uint8_t[::1] needed
) noexcept nogil:
    return pods.may_go(pod, priority, now_ms) and (pod >= needed.shape[0] or not needed[pod])


def victims(NodeTable nodes, PodTable pods, Ask ask, const row_t[::1] rows, int64_t now_ms=0, needed=b""):
    """The possible victims on each of `rows`, and what `ask` lacks there. See `gather.pyi`."""
    cdef const uint8_t[::1] near = needed
    cdef Py_ssize_t n = rows.shape[0], i, at, m = 0
    cdef row_t row, pod
    cdef mask_t staying
    cdef bint named = pods.names is not None
    check_search(nodes, pods, ask, rows)
    starts = array("i", bytes(4 * (n + 1)))
    cdef int32_t[::1] start = starts
    with nogil:
        for i in range(n):
            pod = pods.head[rows[i]] if rows[i] < pods.head_capacity else -1
            while pod >= 0:
                if _eligible(pods, pod, ask.priority, now_ms, near):
                    m += 1
                pod = pods.next[pod]
            start[i + 1] = <int32_t>m
    cdef Gathered found = Gathered(starts, nodes.resources)
    found.most_wait = ask.most_wait
    cdef LinkShapes shapes = nodes.shapes
    with nogil:
        for i in range(n):
            row = rows[i]
            _fill_node(found, nodes, shapes, ask, row, i)
            at = start[i]
            staying = 0
            pod = pods.head[row] if row < pods.head_capacity else -1
            while pod >= 0:
                if _eligible(pods, pod, ask.priority, now_ms, near):
                    found.rows[at] = pod
                    _settle(pods, found.rows, start[i], at, named)
                    at += 1
                else:
                    staying |= pods.mask[pod]
                pod = pods.next[pod]
            _fill_pods(found, pods, nodes.healthy[row] & ~staying, i)
    return found


cdef void _fill_node(
    Gathered found, NodeTable nodes, LinkShapes shapes, Ask ask, row_t row, Py_ssize_t i
) noexcept nogil:
    cdef int r, hidden = popcount(nodes.healthy[row]) - as_count(nodes.alloc[ask.resource, row])
    cdef mask_t named = nodes.named(shapes, ask.resource, row)
    found.free_gpus[i] = nodes.healthy[row] & ~(nodes.sure[row] | named)
    found.unknown_gpus[i] = (nodes.unknown[row] + popcount(nodes.likely[row] & ~nodes.sure[row])
                             + nodes.claimed(ask.resource, row) - popcount(named) + (hidden if hidden > 0 else 0))
    for r in range(nodes.resources):
        found.lack[r, i] = ask.amount[r] - nodes.free_count(r, row) if ask.amount[r] > 0 else 0


cdef void _fill_pods(Gathered found, PodTable pods, mask_t freeable, Py_ssize_t i) noexcept nogil:
    """`freeable`: GPUs that are healthy, and that none of the node's other pods holds: two pods may be seen on one."""
    cdef Py_ssize_t at
    cdef row_t pod
    cdef int r
    for at in range(found.starts[i], found.starts[i + 1]):
        pod = found.rows[at]
        for r in range(found.resources):
            found.freed[r, at] = pods.amounts[r, pod]
        found.gpu_masks[at] = pods.mask[pod] & freeable
        found.unsure_gpus[at] = pods.unsure[pod]
        found.priorities[at] = pods.priority[pod]
        found.starts_ms[at] = pods.start[pod]
        found.saves_ms[at] = pods.saved[pod]
        found.restarts_s[at] = pods.restart[pod]
        found.saving_s[at] = pods.saves_in(pod, found.most_wait)
        found.ignored[at] = pods.ignores[pod]
        found.graces_s[at] = pods.grace[pod]
        found.gpu_counts[at] = pods.gpus[pod]
        found.terminate[at] = 1 if pods.flags[pod] & TERMINATING else 0
        found.some_terminating |= found.terminate[at] != 0
        found.gangs[at] = pods.gang[pod]
        found.budget_sets[at] = pods.budgets[pod]
        found.asks[at] = pods.ask[pod]


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


def lost(tuple columns, int64_t now_ms):
    """GPU-seconds that each pod's eviction loses. See `gather.pyi`."""
    cdef const int64_t[::1] gpus, start_ms, saved_ms, restart_s, saves_s, ignores
    gpus, start_ms, saved_ms, restart_s, saves_s, ignores = columns
    cdef Py_ssize_t i, m = gpus.shape[0]
    if any([len(column) != m for column in columns]):
        raise ValueError("the columns differ in length")
    made = _int64s(m)
    cdef int64_t[::1] out = made
    with nogil:
        for i in range(m):
            out[i] = work_lost(gpus[i], start_ms[i], saved_ms[i], restart_s[i], saves_s[i], ignores[i], now_ms)
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


def lacking(Gathered of, int first, int end):
    """GPUs that the preemptor lacks on each candidate once the pods that are terminating are gone. See `gather.pyi`."""
    cdef Py_ssize_t i, p
    cdef int r
    cdef amount_t left
    if first < 0 or end > of.resources:
        raise ValueError("no such resource")
    made = _zeros(of.nodes)
    cdef int64_t[::1] out = made
    with nogil:
        for i in range(of.nodes):
            for r in range(first, end):
                left = of.lack[r, i]
                for p in range(of.starts[i], of.starts[i + 1]):
                    if left <= 0:
                        break
                    if of.terminate[p]:
                        left -= min(left, of.freed[r, p])
                out[i] += max(left, 0)
    return made


def distinct(const int32_t[::1] ids, const int64_t[::1] terminating):
    """The ids above 0 of the pods that are not terminating, each once, ascending."""
    cdef Py_ssize_t i, m = ids.shape[0]
    cdef int32_t most = 0
    if terminating.shape[0] != m:
        raise ValueError("the columns differ in length")
    for i in range(m):
        most = max(most, ids[i])
    marks = bytearray(most + 1)
    cdef uint8_t[::1] mark = marks
    for i in range(m):
        if ids[i] > 0 and not terminating[i]:
            mark[ids[i]] = 1
    return [i for i in range(most + 1) if mark[i]]


def memberships(const int32_t[::1] ids, const int64_t[::1] terminating, dict groups):
    """(starts int32[m + 1], members): the groups of each pod, `groups[id]` of its id; none for a terminating pod and
    for id 0."""
    cdef Py_ssize_t i, m = ids.shape[0], n = 0
    cdef int32_t most = 0, e
    if terminating.shape[0] != m:
        raise ValueError("the columns differ in length")
    starts = array("i", bytes(4 * (m + 1)))
    if not groups:
        if distinct(ids, terminating):
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
        if ids[i] > 0 and not terminating[i]:
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
        if ids[i] > 0 and not terminating[i]:
            for e in range(first[ids[i]], last[ids[i]]):
                out[n] = from_flat[e]
                n += 1
    return starts, members


def gangs(PodTable pods, int size, int64_t now_ms, int most_wait=0):
    """(members, work), int64[size] each, by gang id: how many pods of it run (terminating ones do not count), and the
    GPU-seconds that all of them would lose. ValueError: a pod has a gang that is not below `size`."""
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
            work[gang] += pods.work_lost(pod, now_ms, most_wait)
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
    rows whose bits in `allowed` and `free` are set; claims count as taken; links do not count."""
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


def stranded(PodTable pods, const row_t[::1] chosen, const int32_t[::1] ask, const int64_t[::1] terminating,
             dict rooms):
    """1 for each of the `chosen` pod rows that has room nowhere but on its own node, `rooms[ask]` as `room` answers; 0
    for a terminating pod, for ask 0, and for an ask that is not in `rooms`."""
    cdef Py_ssize_t i, m = chosen.shape[0]
    if not ask.shape[0] == terminating.shape[0] == m:
        raise ValueError("the columns differ in length")
    made = array("q", bytes(8 * m))
    cdef int64_t[::1] out = made
    cdef int32_t last = 0
    cdef int found = 0, where = -1
    for i in range(m):
        if ask[i] > 0 and not terminating[i]:
            if ask[i] != last:
                last = ask[i]
                found, where = rooms.get(last, (2, -1))
            if not 0 <= chosen[i] < pods.height:
                raise IndexError("pod row outside of the table")
            out[i] = found == 0 or (found == 1 and where == pods.node[chosen[i]])
    return made
