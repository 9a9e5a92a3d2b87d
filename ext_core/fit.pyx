"""Does it fit? Each kernel walks the candidate rows that no earlier rule refused and writes its reason's code.

The codes are the caller's (see `extender/rules`): the core knows numbers only. `out[i] == 0` means "not refused yet".
"""

from array import array

from ext_core.ints cimport amount_t, code_t, mask_t, row_t, int32_t, uint8_t
from ext_core.links cimport LinkShapes
from ext_core.table cimport AWAY, TERMINATING, NodeTable, PodTable


cdef extern from *:
    int __builtin_popcount(unsigned int) noexcept nogil


cdef inline void _free_gpus(PodTable pods, row_t row, int resource, int priority,
                            amount_t* releasing, amount_t* lower) noexcept nogil:
    """What terminating pods, and those that may be victims of one of `priority`, hold of `resource` on a node."""
    cdef row_t pod = pods.head[row] if row < pods.head_capacity else -1
    releasing[0] = 0
    lower[0] = 0
    while pod >= 0:
        if pods.flags[pod] & TERMINATING:
            releasing[0] += pods.amounts[resource, pod]
        elif pods.may_go(pod, priority, pods.now):
            lower[0] += pods.amounts[resource, pod]
        pod = pods.next[pod]


cdef int _check(NodeTable nodes, const row_t[::1] rows, code_t[::1] out, int resource) except -1:
    cdef Py_ssize_t i
    if out.shape[0] != rows.shape[0]:
        raise ValueError("rows and out differ in length")
    if not 0 <= resource < nodes.resources:
        raise ValueError("no such resource index")
    for i in range(rows.shape[0]):
        if not 0 <= rows[i] < nodes.height:
            raise IndexError("row outside of the table")
    return 0


def resource(NodeTable nodes, const row_t[::1] rows, int resource, code_t[::1] out, code_t none, code_t away):
    """Refuse nodes without the GPU resource: `none`, or `away` where its plugin may be back soon.

    A node that a DeviceClass (DRA) may serve is not refused here or below.
    """
    _check(nodes, rows, out, resource)
    cdef Py_ssize_t i
    cdef row_t row
    with nogil:
        for i in range(rows.shape[0]):
            row = rows[i]
            if out[i] or nodes.alloc[resource, row] > 0 or nodes.served(resource, row):
                continue
            out[i] = away if nodes.flags[row] & AWAY and nodes.gpu[row] == resource else none


def count(NodeTable nodes, PodTable pods, const row_t[::1] rows, int resource, amount_t wanted, int priority,
          code_t[::1] out, code_t few, code_t promised, code_t reserved, code_t releasing, code_t busy, code_t held):
    """Refuse nodes with fewer than `wanted` free GPUs.

    few: the node has not that many. promised: it would fit but for pods in flight. reserved: but for nominated pods.
    releasing: it will fit when terminating pods are gone. busy: when pods that may go (PodTable.may_go) did too.
    held: not even then.
    """
    _check(nodes, rows, out, resource)
    cdef Py_ssize_t i
    cdef row_t row
    cdef amount_t free, going = 0, lower = 0
    with nogil:
        for i in range(rows.shape[0]):
            row = rows[i]
            if out[i] or nodes.served(resource, row):
                continue
            free = nodes.free_count(resource, row)
            if free >= wanted:
                continue
            if nodes.alloc[resource, row] < wanted:
                out[i] = few
                continue
            if free + nodes.tentative[resource, row] >= wanted:
                out[i] = promised
                continue
            if free + nodes.claim[resource, row] >= wanted:
                out[i] = reserved
                continue
            _free_gpus(pods, row, resource, priority, &going, &lower)
            if free + going >= wanted:
                out[i] = releasing
            elif free + going + lower >= wanted:
                out[i] = busy
            else:
                out[i] = held


def shares(NodeTable nodes, PodTable pods, const row_t[::1] rows, int resource, int devices, amount_t share,
           int priority, code_t[::1] out, code_t few, code_t promised, code_t reserved, code_t releasing, code_t busy,
           code_t held):
    """Refuse nodes where fewer than `devices` GPUs have `share` units left each, though the count of units suffices.

    The codes are those of `count`, which comes first. One unit fits on any GPU that has one: nothing to refuse. Units
    at positions that nobody knows are not held against a GPU; evicting pods frees what they are known to hold.
    """
    _check(nodes, rows, out, resource)
    cdef Py_ssize_t i
    cdef int gpu, there
    cdef row_t row
    cdef mask_t gone
    cdef amount_t[16] going
    cdef amount_t[16] lower
    if share <= 1:
        return
    with nogil:
        for i in range(rows.shape[0]):
            row = rows[i]
            if out[i] or nodes.gpu[row] != resource or nodes.healthy[row] == 0 or nodes.served(resource, row):
                continue
            there = __builtin_popcount(nodes.healthy[row] & 0xFFFF)
            if share > nodes.units[row] or there < devices:
                out[i] = few
                continue
            if _roomy(nodes, row, share, nodes.open_gpus(row), NULL, True) >= devices:
                continue
            gone = nodes.healthy[row] & ~(nodes.sure[row] | nodes.likely[row]) & 0xFFFF
            if _roomy(nodes, row, share, gone, NULL, False) >= devices:
                out[i] = promised if nodes.tentative[resource, row] > 0 else reserved
                continue
            _freed_parts(nodes, pods, row, resource, priority, &going[0], &lower[0])
            gone = nodes.healthy[row] & ~nodes.likely[row] & 0xFFFF
            if _roomy(nodes, row, share, gone, &going[0], False) >= devices:
                out[i] = releasing
                continue
            for gpu in range(16):
                going[gpu] += lower[gpu]
            out[i] = busy if _roomy(nodes, row, share, gone, &going[0], False) >= devices else held


cdef inline int _roomy(NodeTable nodes, row_t row, amount_t share, mask_t gpus, const amount_t* more,
                       bint asked) noexcept nogil:
    """How many of `gpus` have `share` units left; `more`: units that come free on each, or NULL."""
    cdef int gpu, found = 0
    cdef amount_t left
    for gpu in range(16):
        if not gpus >> gpu & 1:
            continue
        left = 0 if nodes.sure[row] >> gpu & 1 else nodes.units[row] - nodes.part[gpu, row]
        if asked:
            left -= nodes.asked[gpu, row]
        if more != NULL:
            left += more[gpu]
        if left >= share:
            found += 1
    return found


cdef inline void _freed_parts(NodeTable nodes, PodTable pods, row_t row, int resource, int priority, amount_t* going,
                              amount_t* lower) noexcept nogil:
    """Units of each GPU that terminating pods, and those that may be victims of one of `priority`, surely hold."""
    cdef row_t pod = pods.head[row] if row < pods.head_capacity else -1
    cdef amount_t each
    cdef int gpu
    for gpu in range(16):
        going[gpu] = lower[gpu] = 0
    while pod >= 0:
        if pods.mask[pod] and (pods.flags[pod] & TERMINATING or pods.may_go(pod, priority, pods.now)):
            each = pods.amounts[resource, pod] // __builtin_popcount(pods.mask[pod])
            for gpu in range(16):
                if pods.mask[pod] >> gpu & 1:
                    if pods.flags[pod] & TERMINATING:
                        going[gpu] += each
                    else:
                        lower[gpu] += each
        pod = pods.next[pod]


cdef inline int _hidden(NodeTable nodes, row_t row, int resource) noexcept nogil:
    """GPUs that the graph has and kubelet does not offer: unhealthy ones at positions nobody told us."""
    cdef int hidden = __builtin_popcount(nodes.healthy[row]) - <int>nodes.alloc[resource, row]
    return hidden if hidden > 0 else 0


def links(NodeTable nodes, PodTable pods, LinkShapes shapes, const row_t[::1] rows, int resource, int wanted,
          int containers, int priority, code_t[::1] out, code_t graph, code_t never, code_t pending, code_t busy,
          code_t held):
    """Refuse nodes that may hand out `wanted` GPUs which are not linked (the pod says links: required).

    graph: the node's link graph is unknown. never: not even the empty node is certain to give linked ones.
    pending: an admission under way hides positions for now. busy: evicting all that may go (PodTable.may_go) would
    make it certain. held: not even that.
    """
    _check(nodes, rows, out, resource)
    cdef Py_ssize_t i
    cdef row_t row, pod
    cdef mask_t free, freed, staying
    cdef int unknown, hidden, left
    if wanted < 2:
        return
    with nogil:
        for i in range(rows.shape[0]):
            row = rows[i]
            if out[i]:
                continue
            if nodes.gpu[row] != resource or nodes.shape[row] == 0:
                out[i] = graph
                continue
            hidden = _hidden(nodes, row, resource)
            free = nodes.healthy[row] & ~nodes.sure[row]
            unknown = (nodes.unknown[row] + __builtin_popcount(nodes.likely[row] & ~nodes.sure[row])
                       + nodes.claimed(resource, row) + hidden)
            if shapes.certainty(nodes.shape[row], free, wanted, unknown, containers) == 2:
                continue
            if shapes.certainty(nodes.shape[row], nodes.healthy[row], wanted, hidden, containers) != 2:
                out[i] = never
                continue
            if nodes.pending[row] > 0 or nodes.tentative[resource, row] > 0:
                out[i] = pending
                continue
            freed = free
            staying = 0
            left = unknown
            pod = pods.head[row] if row < pods.head_capacity else -1
            while pod >= 0:
                if pods.flags[pod] & TERMINATING or pods.may_go(pod, priority, pods.now):
                    freed |= pods.mask[pod]
                    left -= pods.unsure[pod]
                else:
                    staying |= pods.mask[pod]
                pod = pods.next[pod]
            freed = freed & ~staying & nodes.healthy[row]  # two pods may be seen on one GPU
            if shapes.certainty(nodes.shape[row], freed, wanted, left if left > 0 else 0, containers) == 2:
                out[i] = busy
            else:
                out[i] = held


def link_table(LinkShapes shapes, int shape, int gpus, int wanted, int containers):
    """For the victim search: for each mask of free GPUs (1 << gpus), 1 when `wanted` of them are sure to be linked.
    `containers` 0: whoever chooses them, any `wanted` are."""
    if not 0 <= gpus <= 16:
        raise ValueError("a node has at most 16 GPUs")
    cdef bytearray made = bytearray(1 << gpus)
    cdef uint8_t[::1] view = made
    cdef mask_t mask
    for mask in range(<mask_t>(1 << gpus)):
        if __builtin_popcount(mask) >= wanted:
            if containers == 0:
                view[mask] = wanted < 2 or shapes.all_linked(shape, mask, wanted)
            else:
                view[mask] = wanted < 2 or shapes.certainty(shape, mask, wanted, 0, containers) == 2
    return bytes(made)


def monotone(const uint8_t[::1] table):
    """Whether every set of GPUs that will do still does with more GPUs in it; `table` as of link_table."""
    cdef Py_ssize_t mask, size = table.shape[0], bit = 1
    cdef bint made = True
    if size == 0 or size & (size - 1):
        raise ValueError("a table has one mark for each set of GPUs")
    with nogil:
        while bit < size:
            for mask in range(size):
                made &= mask & bit != 0 or table[mask] <= table[mask | bit]
            bit <<= 1
    return made


def uniform(LinkShapes shapes, int shape, unsigned int healthy, int wanted):
    """Whether any `wanted` of the healthy GPUs are linked, so that counting them is enough."""
    return wanted < 2 or shapes.all_linked(shape, healthy, wanted)


def passed(const row_t[::1] rows, const code_t[::1] codes):
    """The rows that no rule refused, in the order they came."""
    if rows.shape[0] != codes.shape[0]:
        raise ValueError("rows and codes differ in length")
    cdef Py_ssize_t i, kept = 0
    made = array("i", bytes(4 * rows.shape[0]))
    cdef row_t[::1] out = made
    with nogil:
        for i in range(rows.shape[0]):
            if codes[i] == 0:
                out[kept] = rows[i]
                kept += 1
    return made[:kept]


def refused(const row_t[::1] rows, const code_t[::1] codes, const uint8_t[::1] chosen):
    """(rows, codes) of those whose code is marked in `chosen` (one byte a code, 256 of them)."""
    if rows.shape[0] != codes.shape[0] or chosen.shape[0] != 256:
        raise ValueError("rows and codes differ in length, or chosen has not 256 marks")
    cdef Py_ssize_t i, kept = 0
    found = array("i", bytes(4 * rows.shape[0]))
    why = array("B", bytes(rows.shape[0]))
    cdef row_t[::1] out = found
    cdef code_t[::1] out_codes = why
    with nogil:
        for i in range(rows.shape[0]):
            if codes[i] and chosen[codes[i]]:
                out[kept] = rows[i]
                out_codes[kept] = codes[i]
                kept += 1
    return found[:kept], why[:kept]


def counts(const code_t[::1] codes):
    """How often each code occurs, without 0: {code: count}, ascending."""
    cdef int32_t[256] seen
    cdef Py_ssize_t i
    cdef int code
    with nogil:
        for code in range(256):
            seen[code] = 0
        for i in range(codes.shape[0]):
            seen[codes[i]] += 1
    return {code: seen[code] for code in range(1, 256) if seen[code]}
