"""Slots: room for pods of the types that are known to come, counted on every row.

A *type* is a request that is known to come: GPUs, units of each, CPU, memory, the kinds of machine that it may run on.
A *slot* of a type is room for one pod of it; a node has so many slots of each type as pods of that type alone would
fit there now. The vector of slots of a row is kept until the row's version changes. A type that is new among the
others leaves what is kept of them as it is: only its own slots are counted.
"""

from array import array

from libc.stdlib cimport free as c_free, malloc, realloc
from libc.string cimport memset

from ext_core.ints cimport MOST_GPUS, amount_t, int8_t, int32_t, int64_t, mask_t, row_t, uint64_t
from ext_core.masks cimport popcount
from ext_core.table cimport CPU, MEMORY, FIRST_GPU, RECENT, SCHEDULABLE, SLOTS, NodeTable

cdef enum:
    MOST_TYPES = 1024
    UNBOUNDED = 0x40000000  # slots of a type without GPUs, before CPU and memory are looked at


cdef class SlotCounts:
    """Slots by row and type. `most`: types at most.

    A type has the same column as long as it stays; its place is where the caller names it.
    """

    def __cinit__(self, int most=256):
        if not 1 <= most <= MOST_TYPES:
            raise ValueError("1 to 1024 types")
        self.most = most
        self.types = <Type*>malloc(most * sizeof(Type))
        self.column = <int*>malloc(most * sizeof(int))
        self.place = <int*>malloc(most * sizeof(int))
        self.first = <int*>malloc(most * sizeof(int))
        self.newest = <int64_t*>malloc(most * sizeof(int64_t))
        self.total = <int64_t*>malloc(most * sizeof(int64_t))
        self.room = <int32_t*>malloc(most * sizeof(int32_t))
        if (self.types == NULL or self.column == NULL or self.place == NULL or self.first == NULL
                or self.newest == NULL or self.total == NULL or self.room == NULL):
            raise MemoryError()
        self.columns = {}
        self.edition = 1
        self.forget()

    def __dealloc__(self):
        cdef int i
        for i in range(self.packs_size):
            c_free(self.packs[i])
        c_free(self.packs)
        c_free(self.types)
        c_free(self.column)
        c_free(self.place)
        c_free(self.first)
        c_free(self.newest)
        c_free(self.total)
        c_free(self.room)
        c_free(self.version)
        c_free(self.counted)
        c_free(self.count)
        c_free(self.spare)

    cdef void forget(self) noexcept:
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
        self.forget()

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

    def sync(self, NodeTable nodes not None):
        """Count the slots of rows that have changed. Everything below does this first. Returns a number that rises when
        anything was counted anew: while it stays, so does all that follows from the slots."""
        self.update(nodes)
        return self.syncs

    cdef int update(self, NodeTable nodes) except -1:
        cdef int row, t
        cdef int64_t version
        cdef bint changed = False
        if nodes is self.nodes and nodes.clock == self.clock and self.known == self.edition:
            return 0
        self.syncs += 1
        if nodes is not self.nodes:
            for t in range(self.packs_size):
                c_free(self.packs[t])
                self.packs[t] = NULL
            self.forget()
            self.nodes = nodes
            self.shapes = nodes.shapes
        for t in range(self.kinds):
            if self.types[t].devices and self.types[t].resource >= nodes.resources:
                raise ValueError("a type's resource is not in the table")
        self._widen(nodes)
        # Nothing but rows has changed, and which ones is remembered.
        cdef bint few = (self.known == self.edition and self.height == nodes.height and self.clock >= 0
                         and nodes.clock - self.clock <= RECENT)
        with nogil:
            if few:
                for version in range(self.clock + 1, nodes.clock + 1):
                    changed = self._recount(nodes, nodes.recent[version & (RECENT - 1)]) or changed
            else:
                for row in range(nodes.height):
                    changed = self._recount(nodes, row) or changed
            self.height = nodes.height
            self.clock = nodes.clock
            self.known = self.edition
            # Whole GPUs are added up exactly in whatever order; shares are added in the order of the rows.
            if changed and not (few and self.measured == nodes.stated and self.most_units == 1):
                self._measure(nodes)
        return 0

    cdef bint _recount(self, NodeTable nodes, row_t row) noexcept nogil:
        """Count the slots of a row again, if it or the types have changed; whether it has."""
        cdef int t
        cdef State state
        cdef double spare
        cdef int32_t *count = self.count + <size_t>row * self.most
        cdef int64_t since = self.counted[row] if self.version[row] == nodes.version[row] else ALL_TYPES
        if since == self.edition:
            return False
        for t in range(self.kinds):
            if self.types[t].edition > since:
                self.total[t] -= count[t]
        read_state(nodes, row, &state)
        self.fill_counts(&state, count, since)
        for t in range(self.kinds):
            if self.types[t].edition > since:
                self.total[t] += count[t]
        spare = <double>state.spare / state.units if state.gpu >= 0 else 0.0
        self.free_gpus += spare - self.spare[row]
        self.spare[row] = spare
        self.version[row] = nodes.version[row]
        self.counted[row] = self.edition
        return since == ALL_TYPES

    cdef int _widen(self, NodeTable nodes) except -1:
        """Make room for every row and shape of the table."""
        cdef int row, t, width = self.most
        cdef void *made
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
            made = realloc(self.spare, row * sizeof(double))
            if made == NULL:
                raise MemoryError()
            self.spare = <double*>made
            memset(self.spare + self.rows, 0, (row - self.rows) * sizeof(double))
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
        return 0

    cdef void _measure(self, NodeTable nodes) noexcept nogil:
        """The largest node with GPUs, and all GPUs."""
        cdef int row
        cdef double gpus
        self.most_cpu = self.most_gpus = self.all_gpus = self.free_gpus = 0.0
        self.most_units = 1
        self.measured = nodes.stated
        for row in range(nodes.height):
            if nodes.units[row] > self.most_units:
                self.most_units = nodes.units[row]
            if nodes.gpu[row] >= 0:
                if nodes.alloc[CPU, row] > self.most_cpu:
                    self.most_cpu = <double>nodes.alloc[CPU, row]
                gpus = <double>nodes.alloc[nodes.gpu[row], row]
                if nodes.units[row] != 1:  # a division takes longer than all else here
                    gpus /= nodes.units[row]
                self.all_gpus += gpus
                self.free_gpus += self.spare[row]
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

    cdef void fill_counts(self, const State *s, int32_t *out, int64_t since) noexcept nogil:
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


cdef inline bint _alike(const Type *a, const Type *b) noexcept nogil:
    return (a.resource == b.resource and a.devices == b.devices and a.share == b.share and a.linked == b.linked)


cdef void read_state(NodeTable nodes, row_t row, State *s) noexcept nogil:
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
