"""Does it fit? Each kernel walks the candidate rows that no earlier rule rejected and writes its reason's code.

The codes are the caller's (see `extender.policy.rules`): the core knows numbers only. `out[i] == 0` stands for a row
that is not rejected yet.
"""

from array import array

from cpython cimport array as c_array
from libc.string cimport memcpy

from ext_core.ask cimport LINKS_REQUIRED, Ask
from ext_core.checks cimport check_ask, check_rows, checked_rows, rows_of
from ext_core.ints cimport amount_t, as_count, code_t, mask_t, row_t, int32_t, uint8_t, uint64_t
from ext_core.links cimport LinkShapes
from ext_core.masks cimport popcount
from ext_core.reasons cimport CountCodes, LinkCodes, NicCodes, ResourceCodes
from ext_core.shape cimport CERTAIN, NICS_REQUIRED
from ext_core.table cimport AWAY, FIRST_GPU, TERMINATING, NodeTable, PodTable

cdef c_array.array EMPTY_ROWS = array("i")

cdef mask_t NOT_SEEN = <mask_t>1 << 31
cdef mask_t NOT_MET = <mask_t>1 << 30
UNSEEN, UNMET = NOT_SEEN, NOT_MET


cdef inline void _free_gpus(PodTable pods, row_t row, int resource, int priority,
                            amount_t* releasing, amount_t* lower) noexcept nogil:
    """What terminating pods, and those that may be victims of a pod of `priority`, hold of `resource` on a node."""
    cdef row_t pod = pods.head[row] if row < pods.head_capacity else -1
    releasing[0] = 0
    lower[0] = 0
    while pod >= 0:
        if pods.flags[pod] & TERMINATING:
            releasing[0] += pods.amounts[resource, pod]
        elif pods.may_go(pod, priority, pods.now):
            lower[0] += pods.amounts[resource, pod]
        pod = pods.next[pod]


def resource(NodeTable nodes, Ask ask, c_array.array rows, code_t[::1] out, ResourceCodes codes not None):
    """Reject nodes without a GPU resource that the pod asks for.

    A node that a DeviceClass (DRA) may serve is not rejected here or below.
    """
    cdef const row_t* row_at = checked_rows(nodes, rows, out.shape[0])
    check_ask(nodes, ask)
    cdef Py_ssize_t i, n = len(rows)
    cdef int r
    cdef row_t row
    with nogil:
        for r in range(FIRST_GPU, ask.resources):
            if ask.amount[r] <= 0:
                continue
            for i in range(n):
                row = row_at[i]
                if out[i] or nodes.alloc[r, row] > 0 or nodes.served(r, row):
                    continue
                out[i] = codes.away if nodes.flags[row] & AWAY and nodes.gpu[row] == r else codes.none


def count(NodeTable nodes, PodTable pods, Ask ask, c_array.array rows, code_t[::1] out, CountCodes codes not None):
    """Reject nodes with too few free GPUs, for each GPU resource that the pod asks for.

    Too few units in all; or fewer GPUs with `ask.share` units left each than the pod takes.
    """
    cdef const row_t* row_at = checked_rows(nodes, rows, out.shape[0])
    check_ask(nodes, ask)
    cdef Py_ssize_t i, n = len(rows)
    cdef int r
    cdef row_t row
    with nogil:
        for r in range(FIRST_GPU, ask.resources):
            if ask.amount[r] <= 0:
                continue
            for i in range(n):
                row = row_at[i]
                if out[i] or nodes.served(r, row):
                    continue
                out[i] = _in_all(nodes, pods, ask, r, row, codes)
                if out[i] == 0 and ask.share > 1:  # one unit fits on any GPU that has one
                    out[i] = _on_gpus(nodes, pods, ask, r, row, codes)


cdef inline code_t _in_all(NodeTable nodes, PodTable pods, Ask ask, int resource, row_t row,
                           CountCodes codes) noexcept nogil:
    """Why a node has too few units in all; 0 = it has enough."""
    cdef amount_t wanted = ask.amount[resource], free = nodes.free_count(resource, row), releasing = 0, lower = 0
    if free >= wanted:
        return 0
    if nodes.alloc[resource, row] < wanted:
        return codes.few
    if free + nodes.tentative[resource, row] >= wanted:
        return codes.assumed
    _free_gpus(pods, row, resource, ask.priority, &releasing, &lower)
    if free + releasing >= wanted:  # beside what is reserved: nothing is evicted elsewhere
        return codes.releasing
    if free + nodes.claim[resource, row] >= wanted:
        return codes.reserved
    free += nodes.evictable[resource, row]  # evicting pods helps all the same: an assumed pod is a victim, or expires
    return codes.busy if free + releasing + lower >= wanted else codes.held


cdef inline code_t _on_gpus(NodeTable nodes, PodTable pods, Ask ask, int resource, row_t row,
                            CountCodes codes) noexcept nogil:
    """Why too few GPUs of a node have `ask.share` units left each; 0 = enough of them have.

    Units at unknown positions do not count against a GPU. The eviction of a pod frees what it surely holds.
    """
    cdef amount_t share = ask.share, devices = ask.amount[resource] // share
    cdef mask_t gpus
    cdef amount_t[16] releasing
    cdef amount_t[16] lower
    cdef int gpu
    if nodes.gpu[row] != resource or nodes.healthy[row] == 0:
        return 0
    if share > nodes.units[row] or popcount(nodes.healthy[row] & 0xFFFF) < devices:
        return codes.few
    if _roomy(nodes, row, share, nodes.open_gpus(row), NULL, True) >= devices:
        return 0
    gpus = nodes.healthy[row] & ~(nodes.sure[row] | nodes.likely[row]) & 0xFFFF
    if _roomy(nodes, row, share, gpus, NULL, False) >= devices:
        return codes.assumed if nodes.tentative[resource, row] > 0 else codes.reserved
    _freed_parts(nodes, pods, row, resource, ask.priority, &releasing[0], &lower[0])
    gpus = nodes.healthy[row] & ~nodes.likely[row] & 0xFFFF
    if _roomy(nodes, row, share, gpus, &releasing[0], False) >= devices:
        return codes.releasing
    for gpu in range(16):
        releasing[gpu] += lower[gpu]
    return codes.busy if _roomy(nodes, row, share, gpus, &releasing[0], False) >= devices else codes.held


cdef inline int _roomy(NodeTable nodes, row_t row, amount_t share, mask_t gpus, const amount_t* more,
                       bint asked) noexcept nogil:
    """How many of `gpus` have `share` units left. `more`: units that come free on each, or NULL; `asked`: what claims
    will probably take is not free."""
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


cdef inline void _freed_parts(NodeTable nodes, PodTable pods, row_t row, int resource, int priority,
                              amount_t* releasing, amount_t* lower) noexcept nogil:
    """Units of each GPU that terminating pods, and those that may be victims of a pod of `priority`, surely hold."""
    cdef row_t pod = pods.head[row] if row < pods.head_capacity else -1
    cdef amount_t each
    cdef int gpu
    for gpu in range(16):
        releasing[gpu] = lower[gpu] = 0
    while pod >= 0:
        if pods.mask[pod] and (pods.flags[pod] & TERMINATING or pods.may_go(pod, priority, pods.now)):
            each = pods.amounts[resource, pod] // popcount(pods.mask[pod])
            for gpu in range(16):
                if pods.mask[pod] >> gpu & 1:
                    if pods.flags[pod] & TERMINATING:
                        releasing[gpu] += each
                    else:
                        lower[gpu] += each
        pod = pods.next[pod]


cdef inline int _hidden(NodeTable nodes, row_t row, int resource) noexcept nogil:
    """GPUs that the graph has and kubelet does not offer: unhealthy ones at unknown positions."""
    cdef int hidden = popcount(nodes.healthy[row]) - as_count(nodes.alloc[resource, row])
    return hidden if hidden > 0 else 0


cdef inline int _unknown(NodeTable nodes, row_t row, int resource, int hidden, mask_t named) noexcept nogil:
    """How many of the GPUs that no pod surely holds are held, claimed or `hidden`, at unknown positions. `named`: the
    claimed ones whose positions are known."""
    return (nodes.unknown[row] + popcount(nodes.likely[row] & ~nodes.sure[row])
            + nodes.claimed(resource, row) - popcount(named) + hidden)


def links(NodeTable nodes, PodTable pods, Ask ask, const row_t[::1] rows, code_t[::1] out, LinkCodes codes not None):
    """Reject nodes that may hand out GPUs which are not linked, where the pod requires linked GPUs."""
    check_rows(nodes, rows, out.shape[0])
    check_ask(nodes, ask)
    cdef Py_ssize_t i
    cdef LinkShapes shapes = nodes.shapes
    if ask.mode != LINKS_REQUIRED or ask.wanted < 2:
        return
    with nogil:
        for i in range(rows.shape[0]):
            if out[i] == 0:
                out[i] = _unlinked(nodes, pods, shapes, ask, rows[i], codes)


cdef inline code_t _unlinked(NodeTable nodes, PodTable pods, LinkShapes shapes, Ask ask, row_t row,
                             LinkCodes codes) noexcept nogil:
    """Why a node is not certain to hand out linked GPUs; 0 = it is certain."""
    cdef int resource = ask.resource, wanted = ask.wanted, shape = nodes.shape[row], hidden, unknown, left
    cdef mask_t free, freed, named, staying = 0
    cdef row_t pod
    if nodes.gpu[row] != resource or shape == 0:
        return codes.unknown
    hidden = _hidden(nodes, row, resource)
    named = nodes.named(shapes, resource, row)
    free = nodes.healthy[row] & ~(nodes.sure[row] | named)
    unknown = _unknown(nodes, row, resource, hidden, named)
    if shapes.certainty(shape, free, wanted, unknown, ask.containers, ask.planned) == CERTAIN:
        return 0
    if shapes.certainty(shape, nodes.healthy[row], wanted, hidden, ask.containers, ask.planned) != CERTAIN:
        return codes.never
    if nodes.pending[row] > 0 or nodes.tentative[resource, row] > 0:
        return codes.pending
    freed = free
    left = unknown
    pod = pods.head[row] if row < pods.head_capacity else -1
    while pod >= 0:
        if pods.flags[pod] & TERMINATING or pods.may_go(pod, ask.priority, pods.now):
            freed |= pods.mask[pod]
            left -= pods.unsure[pod]
        else:
            staying |= pods.mask[pod]
        pod = pods.next[pod]
    freed = freed & ~staying & nodes.healthy[row]  # two pods may report one GPU
    left = left if left > 0 else 0
    if shapes.certainty(shape, freed, wanted, left, ask.containers, ask.planned) == CERTAIN:
        return codes.busy
    return codes.held


def nics(NodeTable nodes, Ask ask, const row_t[::1] rows, code_t[::1] out, NicCodes codes not None):
    """Reject nodes that may hand out a GPU without a NIC of its own, where the pod requires one for each."""
    check_rows(nodes, rows, out.shape[0])
    check_ask(nodes, ask)
    cdef Py_ssize_t i
    cdef LinkShapes shapes = nodes.shapes
    if ask.nic_mode != NICS_REQUIRED or ask.wanted < 1:
        return
    with nogil:
        for i in range(rows.shape[0]):
            if out[i] == 0:
                out[i] = _without_nics(nodes, shapes, ask, rows[i], codes)


cdef inline code_t _without_nics(NodeTable nodes, LinkShapes shapes, Ask ask, row_t row, NicCodes codes) noexcept nogil:
    """Why a node is not certain to hand out GPUs with NICs of their own; 0 = it is certain."""
    cdef int resource = ask.resource, shape = nodes.shape[row], hidden
    cdef bint linked = ask.mode == LINKS_REQUIRED
    cdef mask_t named
    if nodes.gpu[row] != resource or shapes.nics_of(shape, 0) < 0:
        return codes.unknown
    hidden = _hidden(nodes, row, resource)
    named = nodes.named(shapes, resource, row)
    if shapes.nics_certainty(shape, nodes.healthy[row] & ~(nodes.sure[row] | named), ask.wanted,
                             _unknown(nodes, row, resource, hidden, named), ask.containers, linked,
                             ask.planned) == CERTAIN:
        return 0
    if shapes.nics_certainty(shape, nodes.healthy[row], ask.wanted, hidden, ask.containers, linked,
                             ask.planned) != CERTAIN:
        return codes.never
    return codes.pending if nodes.pending[row] > 0 or nodes.tentative[resource, row] > 0 else codes.held


def unseen(const row_t[::1] rows, const code_t[::1] codes, const mask_t[::1] given):
    """The rows that no rule rejected and that are UNSEEN in `given`."""
    _check_given(rows, codes.shape[0], given)
    cdef Py_ssize_t i
    return array("i", [rows[i] for i in range(rows.shape[0]) if codes[i] == 0 and given[rows[i]] == NOT_SEEN])


def unmet(const row_t[::1] rows, code_t[::1] out, const mask_t[::1] given, code_t code):
    """Reject nodes that are UNMET in `given`. The index of the first, -1 for none."""
    _check_given(rows, out.shape[0], given)
    cdef Py_ssize_t i, first = -1
    with nogil:
        for i in range(rows.shape[0]):
            if out[i] == 0 and given[rows[i]] == NOT_MET:
                out[i] = code
                first = i if first < 0 else first
    return first


def given_links(NodeTable nodes, int resource, const row_t[::1] rows, code_t[::1] out, const mask_t[::1] given,
                LinkCodes codes not None):
    """Judge again what `links` judged, where it is known which GPUs the pod gets."""
    check_rows(nodes, rows, out.shape[0])
    _check_given(rows, out.shape[0], given)
    _check_resource(nodes, resource)
    cdef Py_ssize_t i
    cdef int shape
    cdef mask_t gpus
    cdef code_t code
    with nogil:
        for i in range(rows.shape[0]):
            code, gpus, shape = out[i], given[rows[i]], nodes.shape[rows[i]]
            if code != 0 and code not in (codes.unknown, codes.never, codes.pending, codes.busy, codes.held):
                continue
            if _is_given(nodes, resource, rows[i], gpus):
                # Of a GPU that the shape does not have no links are known.
                if popcount(gpus) < 2 or (nodes.shapes.ring_of(shape, gpus) > 0
                                          and gpus >> nodes.shapes.shapes[shape].gpus == 0):
                    out[i] = 0
                else:
                    out[i] = codes.never if _is_empty(nodes, rows[i]) else codes.held


def given_nics(NodeTable nodes, int resource, const row_t[::1] rows, code_t[::1] out, const mask_t[::1] given,
               NicCodes codes not None):
    """Judge again what `nics` judged, where it is known which GPUs the pod gets, and the NICs are known."""
    check_rows(nodes, rows, out.shape[0])
    _check_given(rows, out.shape[0], given)
    _check_resource(nodes, resource)
    cdef Py_ssize_t i
    cdef int near
    cdef mask_t gpus
    cdef code_t code
    with nogil:
        for i in range(rows.shape[0]):
            code, gpus = out[i], given[rows[i]]
            if code != 0 and code not in (codes.unknown, codes.never, codes.pending, codes.held):
                continue
            if _is_given(nodes, resource, rows[i], gpus):
                near = nodes.shapes.nics_of(nodes.shape[rows[i]], gpus)
                if near >= popcount(gpus):
                    out[i] = 0
                elif near >= 0:
                    out[i] = codes.never if _is_empty(nodes, rows[i]) else codes.held


cdef inline int _check_given(const row_t[::1] rows, Py_ssize_t length, const mask_t[::1] given) except -1:
    cdef Py_ssize_t i
    if length != rows.shape[0]:
        raise ValueError("rows and codes differ in length")
    for i in range(rows.shape[0]):
        if rows[i] < 0 or rows[i] >= given.shape[0]:
            raise IndexError("row outside of what is given")
    return 0


cdef inline int _check_resource(NodeTable nodes, int resource) except -1:
    if not FIRST_GPU <= resource < nodes.resources:
        raise ValueError("no GPU resource of the table")
    return 0


cdef inline bint _is_given(NodeTable nodes, int resource, row_t row, mask_t gpus) noexcept nogil:
    """Whether the pod gets these GPUs for certain: no other pod is on its way to the node."""
    if gpus == 0 or gpus & (NOT_SEEN | NOT_MET) or nodes.shape[row] == 0:
        return False
    return nodes.gpu[row] == resource and nodes.claim[resource, row] == 0


cdef inline bint _is_empty(NodeTable nodes, row_t row) noexcept nogil:
    """Whether no pod holds a GPU of the node."""
    return nodes.unknown[row] == 0 and nodes.healthy[row] & (nodes.sure[row] | nodes.likely[row]) == 0


def link_table(LinkShapes shapes, int shape, int gpus, int wanted, int containers, bint planned=False):
    """For the victim search: for each mask of free GPUs (1 << gpus), 1 when `wanted` of them are certain to be linked.
    `containers` 0: any `wanted` of it are, whatever the node chooses; `planned`: as of Ask."""
    if not 0 <= gpus <= 16:
        raise ValueError("a node has at most 16 GPUs")
    cdef bytearray made = bytearray(1 << gpus)
    cdef uint8_t[::1] view = made
    cdef mask_t mask
    for mask in range(<mask_t>(1 << gpus)):
        if popcount(mask) >= wanted:
            if containers == 0:
                view[mask] = wanted < 2 or shapes.all_linked(shape, mask, wanted)
            else:
                view[mask] = wanted < 2 or shapes.certainty(shape, mask, wanted, 0, containers, planned) == 2
    return bytes(made)


def monotone(const uint8_t[::1] table):
    """Whether a superset of a sufficient set of GPUs is always sufficient; `table` as of link_table."""
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


def withhold(c_array.array rows, code_t[::1] out, code_t code, row_t but=-1):
    """Reject with `code` the rows that no rule rejected, except for the row `but`. How many."""
    cdef const row_t* row_at = rows_of(rows)
    cdef Py_ssize_t i, n = len(rows), count = 0
    if out.shape[0] != n:
        raise ValueError("rows and codes differ in length")
    with nogil:
        for i in range(n):
            if out[i] == 0 and row_at[i] != but:
                out[i] = code
                count += 1
    return count


def passed(const row_t[::1] rows, const code_t[::1] codes):
    """The rows that no rule rejected, in their order."""
    if rows.shape[0] != codes.shape[0]:
        raise ValueError("rows and codes differ in length")
    cdef Py_ssize_t i, kept = 0, n = rows.shape[0]
    cdef c_array.array made = c_array.clone(EMPTY_ROWS, n, zero=False)
    if n == 0:
        return made
    cdef row_t[::1] out = made
    with nogil:
        for i in range(n):
            out[kept] = rows[i]
            kept += codes[i] == 0
    c_array.resize(made, kept)
    return made


def rejected(const row_t[::1] rows, const code_t[::1] codes, const uint8_t[::1] chosen):
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
    cdef uint64_t eight
    cdef int code
    with nogil:
        for code in range(256):
            seen[code] = 0
        i = 0
        while i < codes.shape[0]:
            if i + 8 <= codes.shape[0]:  # nearly all are 0, which is not counted
                memcpy(&eight, &codes[i], 8)
                if eight == 0:
                    i += 8
                    continue
            seen[codes[i]] += 1
            i += 1
    return {code: seen[code] for code in range(1, 256) if seen[code]}
