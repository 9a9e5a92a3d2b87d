"""The price of slots: what placing a pod takes away from the pods to come.

A placement costs the slots that it uses up, each at its type's price: slots of a plentiful type cost next to nothing,
those of a type that is scarce and asked for cost much. So whole nodes are kept for large pods, rare machines for the
pods that need them, and CPU beside GPUs.

What a request would take of a row is kept until the row's version changes. Rows that lose the same slots share one
list, whose price is summed once a call.
"""

from array import array

cimport cython
from cpython cimport array as c_array
from libc.math cimport pow as c_pow
from libc.stdlib cimport free as c_free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from ext_core.ask cimport Ask
from ext_core.checks cimport check_ask, checked_rows, scores_of
from ext_core.ints cimport MOST_GPUS, amount_t, int32_t, int64_t, mask_t, row_t, score_t, uint32_t, uint64_t
from ext_core.shape cimport NICS_IGNORED, Choice
from ext_core.slot_counts cimport ALL_TYPES, SlotCounts, State, read_state
from ext_core.table cimport CPU, MEMORY, NodeTable

cdef enum:
    MOST_KEPT = 0x2000000  # bytes of what is kept of requests; one is kept always
    MOST_NEEDS = 256       # requests of which it is kept: tenants choose what their pods ask for
    MOST_SEEN = 512        # rows of one call that are remembered, for those like them
    MOST_LISTS = 0x40000   # different lists of losses kept
    MOST_ENTRIES = 0x800000

cdef c_array.array EMPTY_MASKS = array("I")
cdef c_array.array EMPTY_SCORES = array("d")

cdef struct Entry:
    int32_t column
    int32_t lost

cdef struct Need:          # a request, as far as slots are concerned
    int resource           # -1: no GPUs
    int devices
    int nics               # what it asks of the NICs of its GPUs
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
    cdef double *left       # [row] as `Slots._left` states it
    cdef double most_cpu, most_gpus  # of the largest node, of which `left` is a part

    def __cinit__(self, int width):
        self.width = width

    def __dealloc__(self):
        c_free(self.version)
        c_free(self.edition)
        c_free(self.lists)
        c_free(self.gpus)
        c_free(self.left)

    cdef int64_t bytes(self, int rows):
        return <int64_t>rows * (2 * sizeof(int64_t) + sizeof(double) + self.width * (sizeof(int32_t) + sizeof(mask_t)))

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
        made = realloc(self.left, rows * sizeof(double))
        if made == NULL:
            raise MemoryError()
        self.left = <double*>made
        memset(self.version + self.rows, 0, (rows - self.rows) * sizeof(int64_t))
        self.rows = rows
        return 0


cdef class Slots(SlotCounts):
    """What requests take of the slots, and what that costs. `most`: types at most."""

    cdef double *price        # [column] in this call
    cdef int32_t *after       # [column] scratch
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
        self.price = <double*>malloc(most * sizeof(double))
        self.after = <int32_t*>malloc(most * sizeof(int32_t))
        self.table_size = 1 << 12
        self.table = <int32_t*>malloc(self.table_size * sizeof(int32_t))
        self.seen = <State*>malloc(MOST_SEEN * sizeof(State))
        self.seen_call = <int64_t*>malloc(MOST_SEEN * sizeof(int64_t))
        self.seen_row = <row_t*>malloc(MOST_SEEN * sizeof(row_t))
        if (self.price == NULL or self.after == NULL or self.table == NULL or self.seen == NULL
                or self.seen_call == NULL or self.seen_row == NULL):
            raise MemoryError()
        memset(self.seen_call, 0, MOST_SEEN * sizeof(int64_t))
        self.kept = {}
        self._drop_lists()

    def __dealloc__(self):
        c_free(self.price)
        c_free(self.after)
        c_free(self.entries)
        c_free(self.start)
        c_free(self.table)
        c_free(self.digest)
        c_free(self.cost)
        c_free(self.stamp)
        c_free(self.seen)
        c_free(self.seen_call)
        c_free(self.seen_row)

    cdef void forget(self) noexcept:
        SlotCounts.forget(self)
        self._drop_lists()

    cdef void _drop_lists(self) noexcept:
        self.kept.clear()
        self.entry_count = 0
        self.list_count = 0
        memset(self.table, 0, self.table_size * sizeof(int32_t))

    def fill(self, NodeTable nodes, Ask ask, c_array.array rows, c_array.array prices, double fullness,
             c_array.array out):
        """The value of each of `rows` for the request, 1 / (1 + cost), with the cheapest choice of its GPUs. The cost:
        the sum over types of price x slots lost, and `fullness` x the mean of the node's CPU and GPUs that are left
        then, each as a part of the largest node's with GPUs. `prices`: one number a type.
        """
        cdef Need need = self._need(nodes, ask, prices)
        cdef score_t* value = scores_of(out)
        cdef const row_t* row_at = checked_rows(nodes, rows, len(out))
        cdef Py_ssize_t i, n = len(rows)
        cdef row_t row
        cdef int which
        cdef _Kept kept = self._begin(nodes, need, prices)
        cdef double cost
        with nogil:
            for i in range(n):
                row = row_at[i]
                if kept.version[row] != nodes.version[row] or kept.edition[row] != self.edition:
                    self._lose(kept, row, need)
                which = kept.lists[row] if kept.width == 1 else -1
                if which >= 0 and self.stamp[which] == self.call:  # nearly always: few lists are different
                    cost = self.cost[which]
                else:
                    cost = self._cheapest(kept, row, NULL)
                if fullness > 0.0:
                    cost += fullness * (0.5 * kept.left[row])
                value[i] = 1.0 / (1.0 + (cost if cost > 0.0 else 0.0))

    def placed(self, NodeTable nodes, Ask ask, c_array.array rows, c_array.array prices, int priced, int most):
        """(masks, costs). masks: uint32, the GPUs that the cheapest placement takes on each of `rows`; 0: positions not
        modelled, or none fit. costs: of each of the first `priced` rows float64: the cost of the slots that this
        placement loses; then of the `most` types that cost most (type, slots lost, their cost), the highest first, then
        in the order of the types."""
        cdef Need need = self._need(nodes, ask, prices)
        cdef const row_t* row_at = checked_rows(nodes, rows, len(rows))
        cdef Py_ssize_t i, n = len(rows)
        cdef int way
        cdef double cost
        cdef size_t at
        if most < 0:
            raise ValueError("fewer than no types")
        cdef _Kept kept = self._begin(nodes, need, prices)
        cdef c_array.array masks = c_array.clone(EMPTY_MASKS, n, zero=False)
        cdef list costs = []
        for i in range(n):
            way = 0
            self._lose(kept, row_at[i], need)
            cost = self._cheapest(kept, row_at[i], &way)
            at = <size_t>row_at[i] * kept.width + way
            masks.data.as_uints[i] = kept.gpus[at]
            if i < priced:
                costs.append(self._priciest(kept.lists[at], cost, most))
        return masks, costs

    cdef c_array.array _priciest(self, int which, double whole, int most):
        """As of `placed`, of one list of losses."""
        cdef int kind, size = 0, at, i, room = <int>min(most, self.start[which + 1] - self.start[which])
        cdef int64_t e
        cdef double cost
        cdef c_array.array made = c_array.clone(EMPTY_SCORES, 1 + 3 * room, zero=False)
        cdef score_t* out = made.data.as_doubles
        out[0] = whole
        for e in range(self.start[which], self.start[which + 1]):
            cost = self.price[self.entries[e].column] * self.entries[e].lost
            kind = self.place[self.entries[e].column]
            if cost <= 0.0:
                continue
            at = size
            while at > 0 and (cost > out[3 * at] or (cost == out[3 * at] and kind < out[3 * at - 2])):
                at -= 1
                if at + 1 < room:
                    for i in range(1, 4):
                        out[3 * at + 3 + i] = out[3 * at + i]
            if at < room:
                out[3 * at + 1], out[3 * at + 2], out[3 * at + 3] = kind, self.entries[e].lost, cost
                size = min(size + 1, room)
        c_array.resize(made, 1 + 3 * size)
        return made

    cdef _Kept _begin(self, NodeTable nodes, Need need, c_array.array prices):
        """A call begins: what is kept of the request, to be brought up to date row by row."""
        self.update(nodes)
        cdef _Kept kept = self._kept(need)
        self.call += 1
        kept.used = self.call
        if kept.most_cpu != self.most_cpu or kept.most_gpus != self.most_gpus:
            kept.most_cpu, kept.most_gpus = self.most_cpu, self.most_gpus
            memset(kept.version, 0, kept.rows * sizeof(int64_t))
        self._pay(prices.data.as_doubles)
        return kept

    cdef Need _need(self, NodeTable nodes, Ask ask, c_array.array prices) except *:
        cdef Need made
        scores_of(prices)
        if len(prices) != self.kinds:
            raise ValueError("one price a type")
        check_ask(nodes, ask)
        if ask.share >= 2**31 or ask.amount[CPU] < 0 or ask.amount[MEMORY] < 0:
            raise ValueError("no such request")
        made.resource = ask.resource if ask.wanted else -1
        made.devices = ask.wanted
        made.nics = ask.nic_mode if nodes.shapes.nics_known else NICS_IGNORED
        made.share = ask.share
        made.cpu = ask.amount[CPU]
        made.memory = ask.amount[MEMORY]
        return made

    cdef _Kept _kept(self, Need need):
        """What is kept of the request; the one not used for the longest time makes room."""
        key = (need.resource, need.devices, need.share, need.cpu, need.memory, need.nics)
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
            while len(self.kept) > 1 and (len(self.kept) > MOST_NEEDS
                                          or self._kept_bytes() + kept.bytes(self.rows) > MOST_KEPT):
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

    cdef void _pay(self, const score_t* prices) noexcept:
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

    cdef double _left(self, row_t row, Need need) noexcept nogil:
        """The node's CPU and GPUs that are left with the request on it, each as a part of the largest node's. Kept: the
        divisions would take longer than all else in `fill`."""
        cdef double left = 0.0, gpus
        cdef int gpu = self.nodes.gpu[row]
        if self.most_cpu > 0.0:
            left += <double>(self.nodes.free_count(CPU, row) - need.cpu) / self.most_cpu
        if self.most_gpus > 0.0 and gpu >= 0:
            gpus = <double>(self.nodes.free_count(gpu, row)
                            - (need.devices * need.share if need.resource == gpu else 0))
            left += gpus / self.nodes.units[row] / self.most_gpus
        return left

    cdef int _lose(self, _Kept kept, row_t row, Need need) except -1 nogil:
        """Bring what the request would take of a row up to date, in each way that may be the cheapest."""
        cdef State state
        cdef row_t like
        cdef int way
        cdef size_t at = <size_t>row * kept.width
        cdef bint same = kept.version[row] == self.nodes.version[row]
        if same and kept.edition[row] == self.edition:
            return 0
        read_state(self.nodes, row, &state)
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
        kept.left[row] = self._left(row, need)
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
        cdef mask_t rest, taken = 0
        cdef int _i, gpu, best
        if need.devices == 0 or need.resource != s.gpu or not s.modelled or need.share > s.units:
            return 0
        if need.share == s.units and s.shape:
            return self.shapes.pick(s.shape, s.whole, need.devices, need.nics)
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
        self.fill_counts(&s, self.after, since)
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


cdef inline bint _same(const State *a, const State *b) noexcept nogil:
    """Whether two rows have the same slots and lose the same ones."""
    return not a.mixed and memcmp(a, b, sizeof(State)) == 0


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
                out[t] = weights[t] * c_pow(sizes[t], size)
                out[t] /= <double>totals[t] if scarcity == 1.0 else c_pow(<double>totals[t], scarcity)
            total += out[t]
        if total > 0.0:
            for t in range(n):
                out[t] /= total
