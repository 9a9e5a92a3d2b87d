"""Packed tables: one column per fact, one row per node or pod.

`extender.cluster.cluster` is the only writer. The writer gives out rows, and gives them out again after `clear`; the
values of a cleared row are zero. Amounts are exact integers: milli-CPU, bytes, pod slots, units of GPUs.

A GPU resource is counted in units: `units[row]` of them are one physical GPU (1: whole GPUs; N: replicas of
time-slicing or MPS; 1000: milli-GPU). Allocatable, used and claimed amounts of it are in units; masks are of GPUs.
"""

from array import array

cimport cython
from cython cimport view

from ext_core.ints cimport amount_t, row_t, int32_t, int64_t, uint32_t
from ext_core.links cimport LinkShapes
from ext_core.masks cimport popcount
from ext_core.rows import NodeRow, PodRow


cdef amount_t LARGEST = 1 << 61  # of a sum of claims, or of pods: with a node's amounts they stay within 64 bits

cdef enum:
    LOW_BITS = 30
    LOW_MASK = 0x3FFFFFFF


cdef object _column(str kind, Py_ssize_t length, old, Py_ssize_t kept):
    """A zeroed array of `length`, its first `kept` items copied from `old`."""
    made = array(kind, bytes(length * array(kind).itemsize))
    if old is not None and kept:
        made[:kept] = array(kind, bytes(memoryview(old).cast("B")[: kept * made.itemsize]))
    return made


cdef int32_t[:, ::1] _devices(int rows, int32_t[:, ::1] old, int kept):
    cdef int32_t[:, ::1] made = view.array((MOST_GPUS, rows), sizeof(int32_t), "i")
    cdef int g, i
    for g in range(MOST_GPUS):
        for i in range(rows):
            made[g, i] = old[g, i] if i < kept else 0
    return made


cdef amount_t[:, ::1] _matrix(int resources, int rows, amount_t[:, ::1] old, int kept):
    cdef amount_t[:, ::1] made = view.array((resources, rows), sizeof(amount_t), "q")
    cdef int r, i
    for r in range(resources):
        for i in range(rows):
            made[r, i] = old[r, i] if i < kept else 0
    return made


cdef inline amount_t _sum(amount_t a, amount_t b) noexcept nogil:
    """Of amounts from 0 on, LARGEST at most: no number of pods makes the sum negative."""
    return LARGEST if a > LARGEST - min(b, LARGEST) else a + b


cdef inline tuple _fields(record):
    """A record of `ext_core.rows`, to be unpacked: Cython unpacks a tuple, and not a kind of tuple, without a call."""
    if not isinstance(record, tuple):
        raise TypeError("a record of ext_core.rows is expected")
    return <tuple>record


cdef tuple _down(amount_t[:, ::1] amounts, int row):
    cdef Py_ssize_t r
    return tuple([amounts[r, row] for r in range(amounts.shape[0])])


cdef class NodeTable:
    """Columns over nodes. `resources`: 3 (CPU, memory, pod slots) + the number of GPU resource names; `shapes`: what
    the link shapes of the rows are ids of."""

    def __cinit__(self, int resources, LinkShapes shapes=None):
        if resources < FIRST_GPU:
            raise ValueError("a NodeTable has at least CPU, memory and pod slots")
        self.resources = resources
        self.shapes = LinkShapes() if shapes is None else shapes
        self.height = 0
        self.capacity = 0
        self.owned = {}
        self.touched = []
        self.grow(64)

    @cython.initializedcheck(False)  # the first time no column exists
    cdef int grow(self, int rows) except -1:
        cdef int kept = self.height
        self.alloc = _matrix(self.resources, rows, self.alloc, kept)
        self.used = _matrix(self.resources, rows, self.used, kept)
        self.claim = _matrix(self.resources, rows, self.claim, kept)
        self.tentative = _matrix(self.resources, rows, self.tentative, kept)
        self.evictable = _matrix(self.resources, rows, self.evictable, kept)
        self.part = _devices(rows, self.part, kept)
        self.asked = _devices(rows, self.asked, kept)
        old = self.owned
        new = {name: _column(kind, rows, old.get(name), kept) for name, kind in (
            ("gpu", "i"), ("shape", "i"), ("healthy", "I"), ("sure", "I"), ("likely", "I"),
            ("wanted", "I"), ("unknown", "i"), ("pending", "i"), ("order", "i"), ("flags", "B"),
            ("units", "i"), ("model", "i"), ("version", "q"), ("begun", "I"))}
        self.gpu = new["gpu"]
        self.shape = new["shape"]
        self.healthy = new["healthy"]
        self.sure = new["sure"]
        self.likely = new["likely"]
        self.wanted = new["wanted"]
        self.unknown = new["unknown"]
        self.pending = new["pending"]
        self.order = new["order"]
        self.flags = new["flags"]
        self.units = new["units"]
        self.model = new["model"]
        self.version = new["version"]
        self.begun = new["begun"]
        self.owned = new
        self.capacity = rows
        return 0

    def add(self, int row):
        """Make `row` usable. Rows come in any order; those that are skipped are empty nodes."""
        if row < 0:
            raise ValueError("negative row")
        if row >= self.capacity:
            self.grow(max(row + 1, self.capacity * 2))
        while self.height <= row:
            self.height += 1
            self.clear(self.height - 1)
        self.clear(row)

    def clear(self, int row):
        """Zero a row: a node without anything, which nothing fits on."""
        self._check(row)
        cdef int r
        for r in range(self.resources):
            self.alloc[r, row] = 0
            self.used[r, row] = 0
            self.claim[r, row] = 0
            self.tentative[r, row] = 0
            self.evictable[r, row] = 0
        self.gpu[row] = -1
        self.shape[row] = 0
        self.healthy[row] = self.sure[row] = self.likely[row] = self.wanted[row] = 0
        self.unknown[row] = self.pending[row] = self.order[row] = 0
        self.flags[row] = 0
        self.units[row] = 1
        self.model[row] = 0
        for r in range(MOST_GPUS):
            self.part[r, row] = self.asked[r, row] = 0
        self.begun[row] = 0
        self.touch(row)
        self.stated = self.clock

    def _check(self, int row):
        if row < 0 or row >= self.height:
            raise IndexError(f"row {row} of {self.height}")

    def set_node(self, int row, facts):
        """Write what the Node object states: a NodeFacts."""
        self._check(row)
        cdef tuple alloc
        cdef int gpu, shape, flags, units, model, r
        cdef unsigned int healthy
        alloc, gpu, shape, healthy, flags, units, model = _fields(facts)
        if len(alloc) != self.resources or not -1 <= gpu < self.resources:
            raise ValueError("set_node: amounts or resource index do not fit the table")
        if units < 1 or not 0 <= model < 64:
            raise ValueError("set_node: a GPU is one unit or more, and models are 0 to 63")
        for r in range(self.resources):
            self.alloc[r, row] = alloc[r]
        self.gpu[row] = gpu
        self.shape[row] = shape
        self.healthy[row] = healthy
        self.flags[row] = flags
        self.units[row] = units
        self.model[row] = model
        self.touch(row)
        self.stated = self.clock

    def set_held(self, int row, use):
        """Write what the pods of the node hold: a NodeUse. A GPU that is held as a whole is in a mask, not in parts."""
        self._check(row)
        cdef tuple used, parts
        cdef unsigned int sure, likely
        cdef int unknown, pending, r
        used, sure, likely, unknown, pending, parts = _fields(use)
        if len(used) != self.resources:
            raise ValueError("set_held: amounts do not fit the table")
        if len(parts) > MOST_GPUS or (parts and min(parts) < 0):
            raise ValueError("set_held: parts are at most 16 numbers, none of them negative")
        for r in range(MOST_GPUS):
            self.part[r, row] = parts[r] if r < len(parts) else 0
        self._begin(row)
        for r in range(self.resources):
            self.used[r, row] = used[r]
        self.sure[row] = sure
        self.likely[row] = likely
        self.unknown[row] = unknown
        self.pending[row] = pending
        self.touch(row)

    def set_served(self, rows, int bits):
        """Write which resources a DeviceClass serves, for `rows`: bit r for resource r = 3..7."""
        if bits & ~0xF8:
            raise ValueError("set_served: bits 3 to 7 stand for resources")
        cdef const row_t[::1] known = rows if isinstance(rows, array) else array("i", rows)
        cdef Py_ssize_t i
        for i in range(known.shape[0]):
            self._check(known[i])
            self.flags[known[i]] = (self.flags[known[i]] & 7) | bits
            self.touch(known[i])

    def set_used(self, int row, tuple used):
        """Write the amounts that the pods of the node hold. The version rises where they are others."""
        self._check(row)
        if len(used) != self.resources:
            raise ValueError("set_used: amounts do not fit the table")
        cdef int r
        cdef amount_t amount
        cdef bint changed = False
        for r in range(self.resources):
            amount = used[r]
            changed = changed or self.used[r, row] != amount
        if changed:
            for r in range(self.resources):
                self.used[r, row] = used[r]
            self.touch(row)

    def set_order(self, rows, int first=0):
        """`rows`: all rows in use, in the order of their nodes' names; those before `first` have kept their places."""
        cdef const row_t[::1] ordered = rows if isinstance(rows, array) else array("i", rows)
        cdef Py_ssize_t rank
        cdef row_t row
        if first < 0:
            raise ValueError("set_order: negative place")
        for rank in range(first, ordered.shape[0]):
            row = ordered[rank]
            if row < 0 or row >= self.height:
                raise IndexError(f"row {row} of {self.height}")
            self.order[row] = <int32_t>rank

    def add_claim(self, int row, tuple amounts, unsigned int wanted, bint tentative, bint evictable=False):
        """Count `amounts` (R) as taken on `row` until `drop_claims`, LARGEST at most.

        `wanted`: the GPUs that it will probably take, in equal parts where it takes less than the whole of each.
        `evictable`, of a tentative claim: the pod that decides may evict its pod once that is on the node.
        """
        self._check(row)
        if len(amounts) != self.resources:
            raise ValueError("add_claim: amounts do not fit the table")
        cdef int r
        cdef amount_t each = 0
        self.touched.append(row)
        for r in range(self.resources):
            self.claim[r, row] = _sum(self.claim[r, row], amounts[r])
            if tentative:
                self.tentative[r, row] = _sum(self.tentative[r, row], amounts[r])
                if evictable:
                    self.evictable[r, row] = _sum(self.evictable[r, row], amounts[r])
        if wanted and self.units[row] > 1 and self.gpu[row] >= 0:
            each = <amount_t>amounts[self.gpu[row]] // popcount(wanted)
        if 0 < each < self.units[row]:
            for r in range(MOST_GPUS):
                if wanted >> r & 1:
                    self.asked[r, row] += <int32_t>each
            self._begin(row)
        else:
            self.wanted[row] |= wanted
        self.touch(row)

    def add_claims(
        self, const row_t[::1] rows, const int64_t[::1] priorities, const amount_t[::1] amounts, int64_t least,
        const int32_t[::1] skipped,
    ):
        """Count the claims of many pods that are not tentative: of those with `least` priority or more whose position
        is not in `skipped` (ascending). `rows`: -1 claims nothing; `amounts`: R of each pod, one after the other."""
        cdef Py_ssize_t i, count = rows.shape[0], at = 0
        cdef int r
        if priorities.shape[0] != count or amounts.shape[0] != count * self.resources:
            raise ValueError("add_claims: the columns do not fit each other")
        for i in range(count):
            if rows[i] >= self.height:
                raise IndexError(f"row {rows[i]} of {self.height}")
        for i in range(count):
            while at < skipped.shape[0] and skipped[at] < i:
                at += 1
            if rows[i] < 0 or priorities[i] < least or (at < skipped.shape[0] and skipped[at] == i):
                continue
            for r in range(self.resources):
                self.claim[r, rows[i]] = _sum(self.claim[r, rows[i]], amounts[i * self.resources + r])
            self.touched.append(rows[i])
            self.touch(rows[i])

    cdef void _begin(self, int row) noexcept:
        cdef int gpu
        self.begun[row] = 0
        for gpu in range(MOST_GPUS):
            if self.part[gpu, row] + self.asked[gpu, row] > 0:
                self.begun[row] |= <uint32_t>1 << gpu

    def claimed_rows(self):
        """The rows with claims."""
        return set(self.touched)

    def drop_claims(self):
        cdef int r, row
        for row in self.touched:
            for r in range(self.resources):
                self.claim[r, row] = 0
                self.tentative[r, row] = 0
                self.evictable[r, row] = 0
            for r in range(MOST_GPUS):
                self.asked[r, row] = 0
            self._begin(row)
            self.wanted[row] = 0
            self.touch(row)
        self.touched.clear()

    def version_of(self, int row):
        """A number that rises with every change of the row, and that no other row and no earlier state had."""
        self._check(row)
        return self.version[row]

    def node(self, int row):
        """One row, for people and tests."""
        self._check(row)
        return NodeRow(
            _down(self.alloc, row), _down(self.used, row), _down(self.claim, row), _down(self.tentative, row),
            _down(self.evictable, row),
            self.gpu[row], self.shape[row], self.healthy[row], self.sure[row], self.likely[row], self.wanted[row],
            self.unknown[row], self.pending[row], self.order[row], self.flags[row], self.units[row], self.model[row],
            tuple([self.part[r, row] for r in range(MOST_GPUS)]),
            tuple([self.asked[r, row] for r in range(MOST_GPUS)]),
        )

    def alloc_of(self, int row):
        """R allocatable amounts of one row."""
        self._check(row)
        return _down(self.alloc, row)

    def used_of(self, int row):
        """R amounts that the pods of one row hold."""
        self._check(row)
        return _down(self.used, row)

    def free_of(self, int row):
        """R amounts that are left of one row, claims taken; a claimed node may have less than nothing left."""
        self._check(row)
        cdef int r
        return tuple([self.free_count(r, row) for r in range(self.resources)])

    def healthy_of(self, int row):
        """Mask of the GPUs of one row that exist and are healthy."""
        self._check(row)
        return self.healthy[row]

    def unknown_of(self, int row):
        """GPUs of one row that are held at unknown positions."""
        self._check(row)
        return self.unknown[row]

    def graph_of(self, int row):
        """(link shape, mask of the healthy GPUs, index of the GPU resource or -1) of one row."""
        self._check(row)
        return self.shape[row], self.healthy[row], self.gpu[row]


cdef class PodTable:
    """Columns over the pods that are bound to a node and hold something there."""

    def __cinit__(self, int resources):
        if resources < FIRST_GPU:
            raise ValueError("a PodTable has at least CPU, memory and pod slots")
        self.resources = resources
        self.height = 0
        self.owned = {}
        self.now = 0
        self.head_capacity = 0
        self.grow(64)
        self.grow_heads(64)

    @cython.initializedcheck(False)  # the first time no column exists
    cdef int grow(self, int pods) except -1:
        cdef int kept = self.height
        self.amounts = _matrix(self.resources, pods, self.amounts, kept)
        old = self.owned
        new = {name: _column(kind, pods, old.get(name), kept) for name, kind in (
            ("gpus", "q"), ("priority", "i"), ("node", "i"), ("mask", "I"), ("unsure", "i"), ("flags", "B"),
            ("start", "q"), ("saved", "q"), ("restart", "i"), ("grace", "i"), ("until", "q"), ("gang", "i"),
            ("saves", "i"), ("asked", "i"), ("ignores", "i"), ("budgets", "i"), ("ask", "i"), ("next", "i"),
            ("prev", "i"))}
        self.gpus = new["gpus"]
        self.priority = new["priority"]
        self.node = new["node"]
        self.mask = new["mask"]
        self.unsure = new["unsure"]
        self.flags = new["flags"]
        self.start = new["start"]
        self.saved = new["saved"]
        self.restart = new["restart"]
        self.grace = new["grace"]
        self.until = new["until"]
        self.saves = new["saves"]
        self.asked = new["asked"]
        self.ignores = new["ignores"]
        self.gang = new["gang"]
        self.budgets = new["budgets"]
        self.ask = new["ask"]
        self.next = new["next"]
        self.prev = new["prev"]
        new["head"] = old.get("head")
        self.owned = new
        self.capacity = pods
        return 0

    @cython.initializedcheck(False)  # the first time no column exists
    cdef int grow_heads(self, int nodes) except -1:
        cdef int kept = self.head_capacity, i
        self.low = _matrix(self.resources, nodes, self.low, kept)
        self.high = _matrix(self.resources, nodes, self.high, kept)
        self.owned["head"] = _column("i", nodes, self.owned.get("head"), kept)
        self.head = self.owned["head"]
        for i in range(kept, nodes):
            self.head[i] = -1
        self.head_capacity = nodes
        return 0

    def put(self, int pod, row):
        """Write pod row `pod`, new or known, from a PodRow. What `mark` wrote stays."""
        cdef int node, priority, unsure, flags, restart, grace, saves, asked, ignores
        cdef tuple amounts
        cdef unsigned int mask
        cdef long long start, saved, until
        (node, priority, amounts, mask, unsure, flags, start, saved, restart, grace, until, saves, asked,
         ignores) = _fields(row)
        if pod < 0 or node < 0 or len(amounts) != self.resources:
            raise ValueError("put: bad row, node or amounts")
        cdef int r
        cdef amount_t _amount
        for r in range(self.resources):
            _amount = amounts[r]  # what is no amount fails before anything is written
        if pod >= self.capacity:
            self.grow(max(pod + 1, self.capacity * 2))
        if node >= self.head_capacity:
            self.grow_heads(max(node + 1, self.head_capacity * 2))
        while self.height <= pod:
            self.node[self.height] = -1
            self.height += 1
        if self.node[pod] == node:
            self._count(pod, node, -1)
        else:
            self._unlink(pod)
            self.node[pod] = node
            self._link(pod, node)
        self.priority[pod] = priority
        self.gpus[pod] = 0
        for r in range(self.resources):
            self.amounts[r, pod] = amounts[r]
            if r >= FIRST_GPU:
                self.gpus[pod] += self.amounts[r, pod]
        self._count(pod, node, 1)
        self.mask[pod] = mask
        self.unsure[pod] = unsure
        flags |= (PROTECTED if until > 0 else 0) | (SAVED if saved > 0 else 0)
        self.flags[pod] = flags | (SAVES if saves >= 0 or asked >= 0 else 0)
        self.start[pod] = start
        self.saved[pod] = saved
        self.restart[pod] = restart
        self.grace[pod] = grace
        self.until[pod] = until
        self.saves[pod] = saves
        self.asked[pod] = asked
        self.ignores[pod] = ignores

    def name_rows(self, list names):
        """See `table.pyi`."""
        cdef int node, pod
        self.names = names
        for node in range(self.head_capacity):
            self.head[node] = -1
        for pod in range(self.height):
            if self.node[pod] >= 0:
                self._link(pod, self.node[pod])

    def _link(self, int pod, int node):
        """Put the pod into the list of its node, which is in descending order of the names, where names are kept."""
        cdef int before = -1, after = self.head[node]
        if self.names is not None:
            name = self.names[pod]
            while after >= 0 and self.names[after] > name:
                before, after = after, self.next[after]
        self.prev[pod] = before
        self.next[pod] = after
        if after >= 0:
            self.prev[after] = pod
        if before >= 0:
            self.next[before] = pod
        else:
            self.head[node] = pod

    def mark(self, int pod, int gang, int budgets, int ask=0):
        """Write the ids of a row that `put` has written: its gang, its set of budgets, what it asks for; 0 = none."""
        if not 0 <= pod < self.height or gang < 0 or budgets < 0 or ask < 0:
            raise ValueError("mark: bad row or id")
        self.gang[pod] = gang
        self.budgets[pod] = budgets
        self.ask[pod] = ask

    def believe(self, int pod, int ignores):
        """Write how likely a pod ignores a request to save. A row that is free stays free."""
        if not 0 <= pod < self.height:
            raise ValueError("believe: bad row")
        if self.node[pod] >= 0:
            self.ignores[pod] = ignores

    def hold(self, int pod, unsigned int mask, int unsure):
        """Write the GPUs that a pod holds. A row that is free stays free."""
        if not 0 <= pod < self.height:
            raise ValueError("hold: bad row")
        if self.node[pod] >= 0:
            self.mask[pod] = mask
            self.unsure[pod] = unsure

    def holds(self, int pod):
        """(mask, unsure) of a row, as `put` or `hold` wrote it; zeros of a free one."""
        if not 0 <= pod < self.height:
            raise ValueError("holds: bad row")
        return self.mask[pod], self.unsure[pod]

    def row(self, int pod):
        """One row as `put` and `hold` wrote it, for people and tests; node -1: it is free."""
        if not 0 <= pod < self.height:
            raise ValueError("row: bad row")
        return PodRow(
            self.node[pod], self.priority[pod], _down(self.amounts, pod), self.mask[pod], self.unsure[pod],
            self.flags[pod] & ~(PROTECTED | SAVED | SAVES), self.start[pod], self.saved[pod], self.restart[pod],
            self.grace[pod], self.until[pod], self.saves[pod], self.asked[pod], self.ignores[pod],
        )

    def marks(self, int pod):
        """(gang, budgets, ask) of a row, for people and tests."""
        if not 0 <= pod < self.height:
            raise ValueError("marks: bad row")
        return self.gang[pod], self.budgets[pod], self.ask[pod]

    cdef void _count(self, row_t pod, row_t node, int times) noexcept:
        """Add the pod's amounts to the sums of a node, `times` 1, or take them away, -1."""
        cdef int r
        for r in range(self.resources):
            self.low[r, node] += times * (self.amounts[r, pod] & LOW_MASK)
            self.high[r, node] += times * (self.amounts[r, pod] >> LOW_BITS)

    def used(self, int node):
        """R sums of the amounts of a node's pods, LARGEST at most each."""
        cdef int r
        cdef amount_t low, high
        found = []
        for r in range(self.resources):
            low = high = 0
            if 0 <= node < self.head_capacity:
                low, high = self.low[r, node], self.high[r, node]
            high += low >> LOW_BITS
            found.append(LARGEST if high >= LARGEST >> LOW_BITS else (high << LOW_BITS) + (low & LOW_MASK))
        return tuple(found)

    def _unlink(self, int pod):
        cdef row_t node = self.node[pod]
        if node < 0:
            return
        self._count(pod, node, -1)
        if self.prev[pod] >= 0:
            self.next[self.prev[pod]] = self.next[pod]
        else:
            self.head[node] = self.next[pod]
        if self.next[pod] >= 0:
            self.prev[self.next[pod]] = self.prev[pod]
        self.node[pod] = -1

    def drop(self, int pod):
        """Take a pod off its node; its row may be used again."""
        if 0 <= pod < self.height:
            self._unlink(pod)
            self.gang[pod] = self.budgets[pod] = self.ask[pod] = 0
            self.mask[pod] = self.unsure[pod] = 0

    def on(self, int node):
        """The pod rows of a node, ascending."""
        found = []
        if 0 <= node < self.head_capacity:
            pod = self.head[node]
            while pod >= 0:
                found.append(pod)
                pod = self.next[pod]
        return sorted(found)
