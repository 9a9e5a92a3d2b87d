"""The price of slots: what placing a pod takes away from the pods to come.

A *type* is a request that is known to come: GPUs, units of each, CPU, memory, the kinds of machine that it may run on.
A *slot* of a type is room for one pod of it; a node has so many slots of each type as pods of that type alone would
fit there now. A placement costs the slots that it uses up, each at its type's price: slots of something plentiful cost
next to nothing, those of something scarce and asked for cost much. So whole nodes are kept for large pods, rare
machines for those that need them, and CPU beside GPUs.

The vector of slots of a row is kept until the row's version changes, and so is what a request would take of it. Rows
that lose the same slots share one list, whose price is summed once a call. A type that is new among the others leaves
what is kept of them as it is: only its own slots are counted.
"""

from array import array

cimport cython
from libc.math cimport pow as c_pow
from libc.stdlib cimport free as c_free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from ext_core.ask cimport Ask
from ext_core.checks cimport check_ask, check_rows
from ext_core.ints cimport MOST_GPUS, amount_t, int8_t, int32_t, int64_t, mask_t, row_t, score_t, uint32_t, uint64_t
from ext_core.links cimport LinkShapes
from ext_core.masks cimport popcount
from ext_core.shape cimport Choice
from ext_core.table cimport CPU, MEMORY, FIRST_GPU, SCHEDULABLE, SLOTS, NodeTable

cdef enum:
    MOST_TYPES = 1024
    MOST_KEPT = 0x4000000  # bytes of what is kept of requests; one is kept always
    MOST_SEEN = 512        # rows of one call that are remembered, for those like them
    MOST_LISTS = 0x40000   # different lists of losses kept
    MOST_ENTRIES = 0x800000
    UNBOUNDED = 0x40000000  # slots of a type without GPUs, before CPU and memory are looked at
    ALL_TYPES = 0          # older than any edition

cdef struct Type:
    int resource           # index of its GPU resource; unused when devices is 0
    int devices
    int linked             # 0 links do not matter, 1 linked where the node can, 2 linked or nothing
    int family             # types of one family differ in CPU, memory and models only
    int64_t edition        # of the types, when it came
    amount_t share         # units of each GPU
    amount_t cpu
    amount_t memory
    uint64_t models        # bit m: nodes of model m are allowed

cdef struct State:         # a node as it is, or would be
    row_t row
    int gpu
    int shape
    amount_t units
    amount_t cpu, memory, slots
    amount_t spare         # units of the node's GPU resource
    amount_t other         # units that are taken of resource `taken`, another one
    int taken
    bint modelled          # positions are known
    mask_t open            # GPUs that nobody holds as a whole
    mask_t whole           # GPUs that nobody holds anything of
    amount_t[16] left      # units left on each open GPU
    int model
    int flags
    bint offered           # there are GPUs of the node's resource
    bint mixed             # it offers another GPU resource too

cdef struct Entry:
    int32_t column
    int32_t lost

cdef struct Need:          # a request, as far as slots are concerned
    int resource           # -1: no GPUs
    int devices
    amount_t share, cpu, memory


cdef class _Kept:
    """What one request would take of each row: lists of losses, one for each way to place it."""
    cdef int width          # 1, or 16: one for each GPU
    cdef int rows
    cdef int64_t used       # the call that used it last
    cdef int64_t *version   # [row] of which the lists are; 0 none
    cdef int64_t *edition   # [row] of the types that the lists speak of
    cdef int32_t *lists     # [row, width] -1 = no such way
    cdef mask_t *gpus       # [row, width] what it would take

    def __cinit__(self, int width):
        self.width = width

    def __dealloc__(self):
        c_free(self.version)
        c_free(self.edition)
        c_free(self.lists)
        c_free(self.gpus)

    cdef int64_t bytes(self, int rows):
        return <int64_t>rows * (2 * sizeof(int64_t) + self.width * (sizeof(int32_t) + sizeof(mask_t)))

    cdef int reach(self, int rows) except -1:
        cdef void *made
        if rows <= self.rows:
            return 0
        made = realloc(self.version, rows * sizeof(int64_t))
        if made == NULL:
            raise MemoryError()
        self.version = <int64_t*>made
        made = realloc(self.edition, rows * sizeof(int64_t))
        if made == NULL:
            raise MemoryError()
        self.edition = <int64_t*>made
        made = realloc(self.lists, <size_t>rows * self.width * sizeof(int32_t))
        if made == NULL:
            raise MemoryError()
        self.lists = <int32_t*>made
        made = realloc(self.gpus, <size_t>rows * self.width * sizeof(mask_t))
        if made == NULL:
            raise MemoryError()
        self.gpus = <mask_t*>made
        memset(self.version + self.rows, 0, (rows - self.rows) * sizeof(int64_t))
        self.rows = rows
        return 0


cdef class Slots:
    """Slots by row and type, what requests take of them, and what that costs. `most`: types at most.

    A type has the same column as long as it stays; its place is where the caller names it.
    """
    cdef readonly int most
    cdef Type *types          # [column]
    cdef int kinds            # types in use
    cdef dict columns         # type, as the caller names it -> column
    cdef int *column          # [place]
    cdef int *place           # [column]
    cdef double *price        # [column] in this call
    cdef int64_t edition      # rises when types come
    cdef int families
    cdef int *first           # [family] one of its types
    cdef int64_t *newest      # [family] edition of the youngest of its types
    cdef NodeTable nodes      # of which the slots are
    cdef LinkShapes shapes
    cdef int rows, height
    cdef int64_t clock, known  # of the table and the types at the last sync
    cdef int64_t *version     # [row] of which the counts are
    cdef int64_t *counted     # [row] edition of the types that are counted
    cdef int32_t *count       # [row, column]
    cdef int64_t *total       # [column]
    cdef int32_t *after       # [column] scratch
    cdef int32_t *room        # [family] scratch
    cdef double most_cpu, most_gpus, all_gpus, free_gpus
    cdef amount_t most_units
    cdef int8_t **packs       # [shape * 17 + size] -> [free set] disjoint linked sets; NULL, or -1 within: not known
    cdef int packs_size
    # lists of losses, each once
    cdef Entry *entries
    cdef int64_t entry_count, entry_room
    cdef int64_t *start       # [list] and one more
    cdef int list_count, list_room
    cdef int32_t *table       # open addressing: list + 1
    cdef uint32_t *digest     # [list]
    cdef int table_size
    cdef double *cost         # [list] in this call
    cdef int64_t *stamp       # [list] the call that `cost` is of
    cdef int64_t call
    cdef dict kept
    cdef State *seen          # rows that this call has worked out
    cdef int64_t *seen_call
    cdef row_t *seen_row

    def __cinit__(self, int most=256):
        if not 1 <= most <= MOST_TYPES:
            raise ValueError("1 to 1024 types")
        self.most = most
        self.types = <Type*>malloc(most * sizeof(Type))
        self.column = <int*>malloc(most * sizeof(int))
        self.place = <int*>malloc(most * sizeof(int))
        self.price = <double*>malloc(most * sizeof(double))
        self.first = <int*>malloc(most * sizeof(int))
        self.newest = <int64_t*>malloc(most * sizeof(int64_t))
        self.total = <int64_t*>malloc(most * sizeof(int64_t))
        self.after = <int32_t*>malloc(most * sizeof(int32_t))
        self.room = <int32_t*>malloc(most * sizeof(int32_t))
        self.table_size = 1 << 12
        self.table = <int32_t*>malloc(self.table_size * sizeof(int32_t))
        self.seen = <State*>malloc(MOST_SEEN * sizeof(State))
        self.seen_call = <int64_t*>malloc(MOST_SEEN * sizeof(int64_t))
        self.seen_row = <row_t*>malloc(MOST_SEEN * sizeof(row_t))
        if self.seen == NULL or self.seen_call == NULL or self.seen_row == NULL:
            raise MemoryError()
        memset(self.seen_call, 0, MOST_SEEN * sizeof(int64_t))
        if (self.types == NULL or self.first == NULL or self.total == NULL or self.after == NULL or self.room == NULL
                or self.table == NULL or self.column == NULL or self.place == NULL or self.price == NULL
                or self.newest == NULL):
            raise MemoryError()
        self.kept = {}
        self.columns = {}
        self.edition = 1
        self._forget()

    def __dealloc__(self):
        cdef int i
        for i in range(self.packs_size):
            c_free(self.packs[i])
        c_free(self.packs)
        c_free(self.types)
        c_free(self.column)
        c_free(self.place)
        c_free(self.price)
        c_free(self.first)
        c_free(self.newest)
        c_free(self.total)
        c_free(self.after)
        c_free(self.room)
        c_free(self.version)
        c_free(self.counted)
        c_free(self.count)
        c_free(self.entries)
        c_free(self.start)
        c_free(self.table)
        c_free(self.digest)
        c_free(self.cost)
        c_free(self.stamp)
        c_free(self.seen)
        c_free(self.seen_call)
        c_free(self.seen_row)

    cdef void _drop_lists(self) noexcept:
        self.kept.clear()
        self.entry_count = 0
        self.list_count = 0
        memset(self.table, 0, self.table_size * sizeof(int32_t))

    cdef void _forget(self) noexcept:
        """All that was computed from types and tables."""
        self._drop_lists()
        if self.rows:
            memset(self.version, 0, self.rows * sizeof(int64_t))
            memset(self.count, 0, <size_t>self.rows * self.most * sizeof(int32_t))
        memset(self.total, 0, self.most * sizeof(int64_t))
        self.clock = -1
        self.height = 0
        self.most_cpu = self.most_gpus = self.all_gpus = self.free_gpus = 0.0
        self.most_units = 1

    # ---- types

    def set_types(self, list types):
        """The types, each (resource, devices, share, cpu, memory, models, linked), in place of those before.

        `devices`: 0 for a pod without GPUs; `share`: units of each GPU; `cpu`: milli; `memory`: bytes; `models`: bit
        m for model m of `NodeTable.set_node`; `linked`: 0 links do not matter, 1 linked where the machine has linked
        sets of that size, 2 linked always. While all those before stay, in their order, what was computed is kept.
        """
        if len(types) > self.most:
            raise ValueError(f"{len(types)} types, {self.most} at most")
        cdef int t, column
        cdef dict met = {}
        cdef list keys = []
        for t, (resource, devices, share, cpu, memory, models, linked) in enumerate(types):
            if not (0 <= devices <= 100_000 and 1 <= share < 2**31 and 0 <= cpu <= 2**50 and 0 <= memory <= 2**50
                    and 0 <= models < 2**64 and 0 <= linked <= 2 and 0 <= resource < 2**15):
                self._no_types()
                raise ValueError(f"type {t} is out of range")
            met[types[t]] = met.get(types[t], 0) + 1
            keys.append((types[t], met[types[t]]))
        if [self.columns[key] for key in keys if key in self.columns] != [self.column[t] for t in range(self.kinds)]:
            self._no_types()
        self.edition += 1
        for t, key in enumerate(keys):
            if key not in self.columns:
                self.columns[key] = self._new_type(*key[0])
            column = self.columns[key]
            self.column[t] = column
            self.place[column] = t

    cdef void _no_types(self):
        self.kinds = self.families = 0
        self.columns.clear()
        self._forget()

    def _new_type(self, int resource, int devices, amount_t share, amount_t cpu, amount_t memory, uint64_t models,
                  int linked):
        """The column of a type that has come."""
        cdef int f
        cdef Type *made = &self.types[self.kinds]
        made.resource = resource
        made.devices = devices
        made.share = share
        made.cpu = cpu
        made.memory = memory
        made.models = models
        made.linked = linked if devices > 1 else 0
        made.edition = self.edition
        for f in range(self.families):
            if _alike(made, &self.types[self.first[f]]):
                break
        else:
            f = self.families
            self.first[f] = self.kinds
            self.families += 1
        made.family = f
        self.newest[f] = self.edition
        self.kinds += 1
        return self.kinds - 1

    # ---- slots

    def sync(self, NodeTable nodes):
        """Count again the slots of rows that have changed. Everything below does this first."""
        cdef int row, t, width = self.most
        cdef void *made
        cdef State state
        cdef int32_t *count
        cdef double gpus
        cdef bint changed = False
        cdef int64_t since
        if nodes is self.nodes and nodes.clock == self.clock and self.known == self.edition:
            return
        if nodes is not self.nodes:
            for t in range(self.packs_size):
                c_free(self.packs[t])
                self.packs[t] = NULL
            self._forget()
            self.nodes = nodes
            self.shapes = nodes.shapes
        for t in range(self.kinds):
            if self.types[t].devices and self.types[t].resource >= nodes.resources:
                raise ValueError("a type's resource is not in the table")
        if nodes.height > self.rows:
            row = max(nodes.height, 2 * self.rows)
            made = realloc(self.version, row * sizeof(int64_t))
            if made == NULL:
                raise MemoryError()
            self.version = <int64_t*>made
            made = realloc(self.counted, row * sizeof(int64_t))
            if made == NULL:
                raise MemoryError()
            self.counted = <int64_t*>made
            made = realloc(self.count, <size_t>row * width * sizeof(int32_t))
            if made == NULL:
                raise MemoryError()
            self.count = <int32_t*>made
            memset(self.version + self.rows, 0, (row - self.rows) * sizeof(int64_t))
            memset(self.count + <size_t>self.rows * width, 0, <size_t>(row - self.rows) * width * sizeof(int32_t))
            self.rows = row
        t = 17 * (<int>len(self.shapes) + 1)
        if t > self.packs_size:
            made = realloc(self.packs, t * sizeof(int8_t*))
            if made == NULL:
                raise MemoryError()
            self.packs = <int8_t**>made
            memset(self.packs + self.packs_size, 0, (t - self.packs_size) * sizeof(int8_t*))
            self.packs_size = t
        with nogil:
            for row in range(nodes.height):
                since = self.counted[row] if self.version[row] == nodes.version[row] else ALL_TYPES
                if since == self.edition:
                    continue
                count = self.count + <size_t>row * width
                for t in range(self.kinds):
                    if self.types[t].edition > since:
                        self.total[t] -= count[t]
                _read(nodes, row, &state)
                self._count(&state, count, since)
                for t in range(self.kinds):
                    if self.types[t].edition > since:
                        self.total[t] += count[t]
                changed = changed or since == ALL_TYPES
                self.version[row] = nodes.version[row]
                self.counted[row] = self.edition
            self.height = nodes.height
            self.clock = nodes.clock
            self.known = self.edition
            if changed:
                self.most_cpu = self.most_gpus = self.all_gpus = self.free_gpus = 0.0
                self.most_units = 1
                for row in range(nodes.height):
                    if nodes.units[row] > self.most_units:
                        self.most_units = nodes.units[row]
                    if nodes.alloc[CPU, row] > self.most_cpu:
                        self.most_cpu = <double>nodes.alloc[CPU, row]
                    if nodes.gpu[row] >= 0:
                        gpus = <double>nodes.alloc[nodes.gpu[row], row] / nodes.units[row]
                        self.all_gpus += gpus
                        self.free_gpus += <double>nodes.free_count(nodes.gpu[row], row) / nodes.units[row]
                        if gpus > self.most_gpus:
                            self.most_gpus = gpus

    def totals(self):
        """int64[types]: slots of each type in the whole cluster, as of the last sync."""
        made = array("q", bytes(8 * self.kinds))
        cdef int64_t[::1] view
        cdef int t
        if self.kinds:
            view = made
            for t in range(self.kinds):
                view[t] = self.total[self.column[t]]
        return made

    def filled(self):
        """The part of all GPUs that is in use or claimed, 0.0 to 1.0, as of the last sync."""
        if self.all_gpus <= 0.0:
            return 0.0
        return min(1.0, max(0.0, 1.0 - self.free_gpus / self.all_gpus))

    def counts(self, int row):
        """int32[types]: the slots of one row, as of the last sync."""
        if not 0 <= row < self.height:
            raise IndexError("row outside of the table")
        made = array("i", bytes(4 * self.kinds))
        cdef int32_t[::1] view
        cdef int t
        if self.kinds:
            view = made
            for t in range(self.kinds):
                view[t] = self.count[<size_t>row * self.most + self.column[t]]
        return made

    cdef void _count(self, const State *s, int32_t *out, int64_t since) noexcept nogil:
        """How many pods of each type alone the node could take; of the types that came after edition `since`."""
        cdef int t, f
        cdef amount_t n
        cdef const Type *one
        cdef int32_t[16] lefts
        cdef int32_t[16] many
        cdef int kinds = 0, gpu, i
        cdef bint usable = s.flags & SCHEDULABLE and s.cpu >= 0 and s.memory >= 0 and s.slots > 0
        if not usable:
            for t in range(self.kinds):
                if self.types[t].edition > since:
                    out[t] = 0
            return
        for gpu in range(MOST_GPUS):  # GPUs with as much left count together
            if s.open >> gpu & 1 and s.left[gpu] > 0:
                for i in range(kinds):
                    if lefts[i] == s.left[gpu]:
                        many[i] += 1
                        break
                else:
                    lefts[kinds] = <int32_t>s.left[gpu]
                    many[kinds] = 1
                    kinds += 1
        for f in range(self.families):
            if self.newest[f] > since:
                self.room[f] = self._room(s, &self.types[self.first[f]], &lefts[0], &many[0], kinds)
        for t in range(self.kinds):
            one = &self.types[t]
            if one.edition <= since:
                continue
            n = self.room[one.family]
            if n == 0 or not one.models >> s.model & 1:
                out[t] = 0
                continue
            if n > s.slots:
                n = s.slots
            if <double>n * one.cpu > s.cpu:
                n = s.cpu // one.cpu
            if <double>n * one.memory > s.memory:
                n = s.memory // one.memory
            out[t] = <int32_t>n

    cdef int32_t _room(self, const State *s, const Type *one, const int32_t *lefts, const int32_t *many,
                       int kinds) noexcept nogil:
        """How many pods of a family the node's GPUs could take. `many[i]` open GPUs have `lefts[i]` units left."""
        cdef amount_t free, n, units
        cdef int i, packed
        if one.devices == 0:
            return UNBOUNDED
        if one.resource == s.gpu:
            if not s.offered:
                return 0
            free = s.spare
            units = s.units
        else:
            if not s.mixed or self.nodes.alloc[one.resource, s.row] <= 0:
                return 0
            free = self.nodes.free_count(one.resource, s.row)
            if one.resource == s.taken:
                free -= s.other
            units = 1
        if free <= 0 or one.share > units:
            return 0
        n = free // one.share
        if one.resource != s.gpu or not s.modelled:
            n = 0 if one.linked == 2 else n // one.devices
            return <int32_t>(n if n < UNBOUNDED else UNBOUNDED)
        if one.share < units:
            free = 0
            for i in range(kinds):
                free += many[i] * (lefts[i] // <int32_t>one.share)
            n = (free if free < n else n) // one.devices
            return <int32_t>(n if n < UNBOUNDED else UNBOUNDED)
        if popcount(s.whole) < n:
            n = popcount(s.whole)
        n = n // one.devices
        if n == 0 or one.linked == 0:
            return <int32_t>n
        if s.shape == 0:
            return 0 if one.linked == 2 else <int32_t>n
        if one.linked == 1 and self.shapes.top_of(s.shape, <mask_t>0xFFFF, one.devices) <= 0:
            return <int32_t>n
        packed = self._packed(s.shape, s.whole, one.devices)
        return packed if packed < n else <int32_t>n

    cdef int _packed(self, int shape, mask_t free, int size) noexcept nogil:
        """The most linked sets of `size` that fit into `free` side by side."""
        cdef int8_t *known
        cdef int gpus, best, most
        cdef mask_t low
        if size > MOST_GPUS or popcount(free) < size or self.shapes.top_of(shape, free, size) <= 0:
            return 0
        gpus = self.shapes.shapes[shape].gpus
        free &= (<mask_t>1 << gpus) - 1
        known = self.packs[shape * 17 + size]
        if known == NULL:
            known = <int8_t*>malloc(<size_t>1 << gpus)
            if known == NULL:
                return popcount(free) // size
            memset(known, -1, <size_t>1 << gpus)
            self.packs[shape * 17 + size] = known
        if known[free] >= 0:
            return known[free]
        most = popcount(free) // size
        low = free & -free
        best = self._packed_with(shape, free, low, free ^ low, size, most)
        if best < most:
            most = self._packed(shape, free ^ low, size)
            if most > best:
                best = most
        known[free] = <int8_t>best
        return best

    cdef int _packed_with(self, int shape, mask_t free, mask_t chosen, mask_t others, int size,
                          int most) noexcept nogil:
        """The same, with one of the sets being `chosen` and more of `others`."""
        cdef int best = 0, found
        cdef mask_t low
        if popcount(chosen) == size:
            return 1 + self._packed(shape, free & ~chosen, size) if self.shapes.ring_of(shape, chosen) > 0 else 0
        while popcount(chosen) + popcount(others) >= size:
            low = others & -others
            others ^= low
            found = self._packed_with(shape, free, chosen | low, others, size, most)
            if found > best:
                best = found
                if best == most:
                    break
        return best

    # ---- requests

    def fill(self, NodeTable nodes, Ask ask, const row_t[::1] rows, const score_t[::1] prices, double fullness,
             score_t[::1] out):
        """What placing the request on each of `rows` costs, with the cheapest choice of its GPUs.

        The sum over types of price x slots lost, and `fullness` x the mean of the node's CPU and GPUs that are left
        then, each as a part of the largest node's. `prices`: one number a type.
        """
        cdef Py_ssize_t i, n = rows.shape[0]
        cdef Need need = self._need(nodes, ask, prices)
        cdef row_t row
        cdef _Kept kept
        cdef double left
        check_rows(nodes, rows, out.shape[0])
        self.sync(nodes)
        kept = self._kept(need)
        self.call += 1
        kept.used = self.call
        self._pay(prices)
        with nogil:
            for i in range(n):
                row = rows[i]
                self._lose(kept, row, need)
                out[i] = self._cheapest(kept, row, NULL)
                if fullness > 0.0:
                    left = 0.0
                    if self.most_cpu > 0.0:
                        left += <double>(nodes.free_count(CPU, row) - need.cpu) / self.most_cpu
                    if self.most_gpus > 0.0 and nodes.gpu[row] >= 0:
                        left += (<double>(nodes.free_count(nodes.gpu[row], row)
                                          - (need.devices * need.share if need.resource == nodes.gpu[row] else 0))
                                 / nodes.units[row] / self.most_gpus)
                    out[i] += fullness * (0.5 * left)

    def choose(self, NodeTable nodes, Ask ask, int row, const score_t[::1] prices):
        """The mask of GPUs that the cheapest placement takes on one row; 0: positions not modelled, or none fit."""
        return self._one(nodes, ask, row, prices)[0]

    def losses(self, NodeTable nodes, Ask ask, int row, const score_t[::1] prices):
        """[(type, slots lost)] of the cheapest placement on one row, in the order of the types."""
        cdef int which = self._one(nodes, ask, row, prices)[1]
        cdef int64_t e
        return [(self.place[self.entries[e].column], self.entries[e].lost)
                for e in range(self.start[which], self.start[which + 1])]

    cdef tuple _one(self, NodeTable nodes, Ask ask, int row, const score_t[::1] prices):
        cdef Need need = self._need(nodes, ask, prices)
        cdef _Kept kept
        cdef int way = 0
        if not 0 <= row < nodes.height:
            raise IndexError("row outside of the table")
        self.sync(nodes)
        kept = self._kept(need)
        self.call += 1
        kept.used = self.call
        self._pay(prices)
        self._lose(kept, row, need)
        self._cheapest(kept, row, &way)
        return kept.gpus[row * kept.width + way], kept.lists[row * kept.width + way]

    cdef Need _need(self, NodeTable nodes, Ask ask, const score_t[::1] prices) except *:
        cdef Need made
        if prices.shape[0] != self.kinds:
            raise ValueError("one price a type")
        check_ask(nodes, ask)
        if ask.share >= 2**31 or ask.amount[CPU] < 0 or ask.amount[MEMORY] < 0:
            raise ValueError("no such request")
        made.resource = ask.resource if ask.wanted else -1
        made.devices = ask.wanted
        made.share = ask.share
        made.cpu = ask.amount[CPU]
        made.memory = ask.amount[MEMORY]
        return made

    cdef _Kept _kept(self, Need need):
        """What is kept of the request; the one not used for the longest time makes room."""
        key = (need.resource, need.devices, need.share, need.cpu, need.memory)
        cdef _Kept kept
        cdef int width = MOST_GPUS if need.devices == 1 and need.share < self.most_units else 1
        if self.list_count > MOST_LISTS or self.entry_count > MOST_ENTRIES:
            self._drop_lists()
        kept = self.kept.get(key)
        if kept is None or kept.width != width:
            kept = _Kept(width)
            self.kept[key] = kept
        if kept.rows < self.rows:
            kept.used = self.call + 1
            while len(self.kept) > 1 and self._kept_bytes() + kept.bytes(self.rows) > MOST_KEPT:
                del self.kept[min(self.kept, key=self._used)]
            kept.reach(self.rows)
        return kept

    cdef int64_t _kept_bytes(self):
        cdef _Kept kept
        cdef int64_t bytes = 0
        for kept in self.kept.values():
            bytes += kept.bytes(kept.rows)
        return bytes

    def _used(self, key):
        cdef _Kept kept = self.kept[key]
        return kept.used

    cdef void _pay(self, const score_t[::1] prices) noexcept:
        cdef int t
        for t in range(self.kinds):
            self.price[self.column[t]] = prices[t]

    cdef double _cheapest(self, _Kept kept, row_t row, int *way) noexcept nogil:
        """The lowest cost of all ways; among equals the first: the smallest ids."""
        cdef int w, which
        cdef int64_t e
        cdef double sum, best = 0.0
        cdef bint any = False
        for w in range(kept.width):
            which = kept.lists[<size_t>row * kept.width + w]
            if which < 0:
                continue
            if self.stamp[which] != self.call:
                sum = 0.0
                for e in range(self.start[which], self.start[which + 1]):
                    sum += self.price[self.entries[e].column] * self.entries[e].lost
                self.cost[which] = sum
                self.stamp[which] = self.call
            if not any or self.cost[which] < best:
                any = True
                best = self.cost[which]
                if way != NULL:
                    way[0] = w
        return best

    cdef int _lose(self, _Kept kept, row_t row, Need need) except -1 nogil:
        """Bring what the request would take of a row up to date, in each way that may be the cheapest."""
        cdef State state
        cdef row_t like
        cdef int way
        cdef size_t at = <size_t>row * kept.width
        cdef bint same = kept.version[row] == self.nodes.version[row]
        if same and kept.edition[row] == self.edition:
            return 0
        _read(self.nodes, row, &state)
        like = self._like(&state, row)
        if like != row:
            memcpy(kept.lists + at, kept.lists + <size_t>like * kept.width, kept.width * sizeof(int32_t))
            memcpy(kept.gpus + at, kept.gpus + <size_t>like * kept.width, kept.width * sizeof(mask_t))
        elif same:  # types have come: the ways are the same
            for way in range(kept.width):
                if kept.lists[at + way] >= 0:
                    self._way(kept, at + way, &state, need, kept.gpus[at + way], kept.edition[row])
        else:
            self._ways(kept, at, &state, need)
        kept.version[row] = self.nodes.version[row]
        kept.edition[row] = self.edition
        return 0

    cdef row_t _like(self, State *s, row_t row) noexcept nogil:
        """A row with the same slots that this call has brought up to date; else the row itself."""
        cdef uint64_t digest
        cdef int i
        s.row = 0
        with cython.overflowcheck(False):  # a hash wraps
            digest = <uint64_t>s.cpu * 1540483477 + <uint64_t>s.memory
            digest = (digest ^ digest >> 29) * 1597334677 + <uint64_t>s.spare
            digest = (digest ^ digest >> 31) * 1000003 + s.open
        i = <int>((digest ^ digest >> 23) & (MOST_SEEN - 1))
        if self.seen_call[i] == self.call and _same(&self.seen[i], s):
            s.row = row
            return self.seen_row[i]
        memcpy(&self.seen[i], s, sizeof(State))
        self.seen_call[i] = self.call
        self.seen_row[i] = row
        s.row = row
        return row

    cdef int _ways(self, _Kept kept, size_t at, const State *state, Need need) except -1 nogil:
        cdef mask_t rest
        cdef int gpu, other
        cdef const Choice *choice
        cdef bint any = False
        for gpu in range(kept.width):
            kept.lists[at + gpu] = -1
            kept.gpus[at + gpu] = 0
        if need.devices == 1 and need.resource == state.gpu and state.modelled and need.share < state.units:
            rest = state.open
            if state.shape:  # which of several free GPUs: the one that leaves the best links
                choice = self.shapes.best(state.shape, state.whole, 1)
                if choice != NULL:
                    rest = (state.open & ~state.whole) | choice.gpus
            for gpu in range(MOST_GPUS):
                if not rest >> gpu & 1 or state.left[gpu] < need.share:
                    continue
                for other in range(gpu):  # one of several with as much left is as good
                    if rest >> other & 1 and state.left[other] == state.left[gpu]:
                        break
                else:
                    self._way(kept, at + gpu, state, need, <mask_t>1 << gpu, ALL_TYPES)
                    any = True
        if not any:
            self._way(kept, at, state, need, self._take(state, need), ALL_TYPES)
        return 0

    cdef mask_t _take(self, const State *s, const Need need) noexcept nogil:
        """The GPUs for a request that has no choice to price: whole ones, or shares of several."""
        cdef const Choice *choice
        cdef mask_t rest, taken = 0
        cdef int _i, gpu, best
        if need.devices == 0 or need.resource != s.gpu or not s.modelled or need.share > s.units:
            return 0
        if need.share == s.units and s.shape:
            choice = self.shapes.best(s.shape, s.whole, need.devices)
            return 0 if choice == NULL else choice.gpus
        rest = s.whole if need.share == s.units else s.open
        for _i in range(need.devices):
            best = -1
            for gpu in range(MOST_GPUS):
                if rest >> gpu & 1 and s.left[gpu] >= need.share and (best < 0 or s.left[gpu] < s.left[best]):
                    best = gpu
            if best < 0:
                return 0
            taken |= <mask_t>1 << best
            rest &= ~(<mask_t>1 << best)
        return taken

    cdef int _way(self, _Kept kept, size_t at, const State *before, Need need, mask_t gpus,
                  int64_t since) except -1 nogil:
        """What one choice of GPUs takes; of types up to edition `since` what is kept already."""
        cdef State s
        cdef int gpu
        memcpy(&s, before, sizeof(State))
        s.cpu -= need.cpu
        s.memory -= need.memory
        s.slots -= 1
        if need.devices:
            if need.resource == s.gpu:
                s.spare -= need.devices * need.share
            else:
                s.taken = need.resource
                s.other = need.devices * need.share
        for gpu in range(MOST_GPUS):
            if gpus >> gpu & 1:
                s.left[gpu] -= need.share
        s.whole &= ~gpus
        self._count(&s, self.after, since)
        kept.gpus[at] = gpus
        kept.lists[at] = self._intern(self.count + <size_t>s.row * self.most, self.after, since, kept.lists[at])
        return 0

    cdef int _intern(self, const int32_t *before, const int32_t *after, int64_t since, int known) except -1 nogil:
        """The list of what is lost between two vectors of slots; of types up to edition `since` as list `known` has it.
        """
        cdef int t, c, which, place
        cdef int64_t e, length
        cdef int64_t old = self.start[known] if since != ALL_TYPES else 0
        cdef int64_t end = self.start[known + 1] if since != ALL_TYPES else 0
        cdef uint32_t digest = 2166136261
        cdef Entry *made
        if self.entry_count + self.kinds > self.entry_room:
            self._more_entries()
        if self.list_count + 2 > self.list_room:
            self._more_lists()
        e = self.entry_count
        for t in range(self.kinds):
            c = self.column[t]
            if self.types[c].edition > since:
                if before[c] == after[c]:
                    continue
                self.entries[e].lost = before[c] - after[c]
            elif old < end and self.entries[old].column == c:
                self.entries[e].lost = self.entries[old].lost
                old += 1
            else:
                continue
            self.entries[e].column = c
            with cython.overflowcheck(False):  # a hash wraps
                digest = (digest ^ <uint32_t>c) * 16777619
                digest = (digest ^ <uint32_t>self.entries[e].lost) * 16777619
            e += 1
        digest ^= digest >> 15
        length = e - self.entry_count
        made = self.entries + self.entry_count
        place = digest & (self.table_size - 1)
        while self.table[place]:
            which = self.table[place] - 1
            if (self.digest[which] == digest and self.start[which + 1] - self.start[which] == length
                    and memcmp(self.entries + self.start[which], made, length * sizeof(Entry)) == 0):
                return which
            place = (place + 1) & (self.table_size - 1)
        which = self.list_count
        self.list_count += 1
        self.start[which] = self.entry_count
        self.start[which + 1] = e
        self.entry_count = e
        self.digest[which] = digest
        self.stamp[which] = 0
        self.table[place] = which + 1
        if 2 * self.list_count > self.table_size:
            self._more_table()
        return which

    cdef int _more_entries(self) except -1 nogil:
        cdef int64_t room = 2 * self.entry_room + self.most + 1024
        cdef void *made = realloc(self.entries, room * sizeof(Entry))
        if made == NULL:
            with gil:
                raise MemoryError()
        self.entries = <Entry*>made
        self.entry_room = room
        return 0

    cdef int _more_lists(self) except -1 nogil:
        cdef int room = 2 * self.list_room + 1024
        cdef void *start = realloc(self.start, (room + 1) * sizeof(int64_t))
        if start != NULL:
            self.start = <int64_t*>start
        cdef void *digest = realloc(self.digest, room * sizeof(uint32_t))
        if digest != NULL:
            self.digest = <uint32_t*>digest
        cdef void *cost = realloc(self.cost, room * sizeof(double))
        if cost != NULL:
            self.cost = <double*>cost
        cdef void *stamp = realloc(self.stamp, room * sizeof(int64_t))
        if stamp != NULL:
            self.stamp = <int64_t*>stamp
        if start == NULL or digest == NULL or cost == NULL or stamp == NULL:
            with gil:
                raise MemoryError()
        self.list_room = room
        return 0

    cdef int _more_table(self) except -1 nogil:
        cdef int size = 2 * self.table_size, which, place
        cdef int32_t *made = <int32_t*>malloc(size * sizeof(int32_t))
        if made == NULL:
            with gil:
                raise MemoryError()
        memset(made, 0, size * sizeof(int32_t))
        for which in range(self.list_count):
            place = self.digest[which] & (size - 1)
            while made[place]:
                place = (place + 1) & (size - 1)
            made[place] = which + 1
        c_free(self.table)
        self.table = made
        self.table_size = size
        return 0


cdef inline bint _alike(const Type *a, const Type *b) noexcept nogil:
    return (a.resource == b.resource and a.devices == b.devices and a.share == b.share and a.linked == b.linked)


cdef inline bint _same(const State *a, const State *b) noexcept nogil:
    """Whether two rows have the same slots and lose the same ones."""
    return not a.mixed and memcmp(a, b, sizeof(State)) == 0


cdef inline void _read(NodeTable nodes, row_t row, State *s) noexcept nogil:
    """A row as it is now, claims counted."""
    cdef int gpu, r
    memset(s, 0, sizeof(State))
    s.row = row
    s.model = nodes.model[row]
    s.flags = nodes.flags[row] & SCHEDULABLE
    for r in range(FIRST_GPU, nodes.resources):
        if r != nodes.gpu[row] and nodes.alloc[r, row] != 0:
            s.mixed = True
    s.gpu = nodes.gpu[row]
    s.shape = nodes.shape[row]
    s.units = nodes.units[row]
    s.cpu = nodes.free_count(CPU, row)
    s.memory = nodes.free_count(MEMORY, row)
    s.slots = nodes.free_count(SLOTS, row)
    s.spare = nodes.free_count(s.gpu, row) if s.gpu >= 0 else 0
    s.offered = s.gpu >= 0 and nodes.alloc[s.gpu, row] > 0
    s.taken = -1
    s.other = 0
    s.modelled = nodes.healthy[row] != 0
    s.open = nodes.open_gpus(row)
    s.whole = nodes.whole_gpus(row)
    for gpu in range(MOST_GPUS):
        s.left[gpu] = nodes.left_on(row, gpu) if nodes.begun[row] >> gpu & 1 else s.units


def prices(const score_t[::1] weights, const score_t[::1] sizes, const int64_t[::1] totals, double size,
           double scarcity, score_t[::1] out):
    """A slot's price by type: weight x GPUs^size / slots^scarcity, all of them divided by their sum.

    `weights`: how much the type is asked for; `sizes`: its GPUs (a share counts as such); `totals`: its slots in the
    cluster: of what has none, none can be lost, and it has no price. A cost is then a mean number of slots, weighted
    by price. All 0 where nothing is asked for.
    """
    cdef Py_ssize_t t, n = out.shape[0]
    cdef double total = 0.0
    if weights.shape[0] != n or sizes.shape[0] != n or totals.shape[0] != n:
        raise ValueError("weights, sizes, totals and out differ in length")
    with nogil:
        for t in range(n):
            out[t] = 0.0
            if weights[t] > 0.0 and sizes[t] > 0.0 and totals[t] > 0:
                out[t] = weights[t] * c_pow(sizes[t], size) / c_pow(<double>totals[t], scarcity)
            total += out[t]
        if total > 0.0:
            for t in range(n):
                out[t] /= total


def values(score_t[::1] costs):
    """Costs (0 or more) as a scorer's values in place: 1 / (1 + cost), which keeps their order."""
    cdef Py_ssize_t i
    with nogil:
        for i in range(costs.shape[0]):
            costs[i] = 1.0 / (1.0 + (costs[i] if costs[i] > 0.0 else 0.0))
