"""What a gang may take of each node: a copy of what is free, and the ways to put some of its pods there.

The pods of a gang are given as *roles*: classes of equal pods. A *way* is how many pods of each role a node takes, none
of them included. Nodes with the same left are one *kind*, whose ways are worked out once.

The rules are those of filter, counted on as pods are added. CPU, memory, pod slots and units of GPUs add up, and so do
resources that are no columns of the table. For
`links: required` the other pods of the gang on a node hold GPUs of unknown position, which count as the worst, since
kubelet admits them in any order; only where what is planned is handed out, disjoint linked sets are enough. Where
the device plugin is known to crash over some free sets, the planned sets must avoid them.
"""

from array import array

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.math cimport floor
from libc.stdlib cimport calloc, free as c_free, malloc, realloc
from libc.string cimport memcpy, memset

from ext_core.ask cimport LINKS_REQUIRED, Ask
from ext_core.checks cimport check_ask, check_rows
from ext_core.hazard cimport PANICS_KNOWN, Hazards
from ext_core.ints cimport MOST_GPUS, amount_t, as_count, code_t, int16_t, int32_t, int64_t, mask_t, row_t, uint64_t
from ext_core.link_sets cimport LinkSets, sets_of
from ext_core.masks cimport lowest, popcount
from ext_core.shape cimport CERTAIN, NICS_REQUIRED
from ext_core.slot_counts cimport ALL_TYPES, SlotCounts, State, read_state
from ext_core.table cimport CPU, FIRST_GPU, MEMORY, SCHEDULABLE, NodeTable

cdef enum:
    MOST_PODS = 32000   # of a gang
    MOST_WAYS = 4096    # of one kind that are enumerated
    MOST_TYPES = 1024   # of slots

cdef double MILLIONTHS = 1e6
cdef int64_t MOST_PRICE = <int64_t>1 << 36


cdef class Joint:
    """The nodes that a gang may use. `roles`: largest first."""

    def __cinit__(self, NodeTable nodes not None, SlotCounts slots not None, LinkSets sets not None, list roles,
                  double fullness, list others=None):
        cdef int c, r
        cdef Ask ask
        cdef amount_t amount
        if not 1 <= len(roles) <= MOST_ROLES:
            raise ValueError(f"{len(roles)} roles: 1 to {MOST_ROLES}")
        if sets.shapes is not nodes.shapes:
            raise ValueError("the sets are of other shapes than the table")
        if others is not None and len(others) != len(roles):
            raise ValueError("other resources of another number of roles")
        self.of_table, self.shapes = nodes.resources, nodes.shapes
        self.resources = self.of_table + (<int>len(others[0]) if others else 0)
        self.sets, self.slots, self.fullness = sets, slots, fullness
        self.roles_count = <int>len(roles)
        self.role = <Role*>calloc(self.roles_count, sizeof(Role))
        self.asked = <amount_t*>calloc(self.roles_count * self.resources, sizeof(amount_t))
        self.prices = <double*>calloc(MOST_TYPES, sizeof(double))
        self.before = <int32_t*>calloc(MOST_TYPES, sizeof(int32_t))
        self.after = <int32_t*>calloc(MOST_TYPES, sizeof(int32_t))
        if (self.role == NULL or self.asked == NULL or self.prices == NULL or self.before == NULL
                or self.after == NULL):
            raise MemoryError()
        for c in range(self.roles_count):
            ask, count, against, cordoned = roles[c]
            self.cordoned |= <uint64_t>(1 if cordoned else 0) << c
            check_ask(nodes, ask)
            if not 1 <= count <= MOST_PODS or not 0 <= against < 2**64 or min(ask.amounts) < 0:
                raise ValueError(f"role {c} is out of range")
            self.role[c].count = count
            self.role[c].resource = ask.resource
            self.role[c].wanted = ask.wanted if ask.resource >= 0 else 0
            self.role[c].containers = ask.containers
            self.role[c].share = ask.share
            self.role[c].required = ask.mode == LINKS_REQUIRED and ask.wanted >= 2
            self.role[c].nics = ask.nic_mode if ask.wanted else 0
            self.role[c].planned = ask.planned
            self.role[c].against = against
            self.pods += count
            for r in range(self.of_table):
                self.asked[c * self.resources + r] = ask.amount[r]
            if others and (len(others[c]) != self.resources - self.of_table or min(others[c], default=0) < 0):
                raise ValueError(f"role {c} has other resources than the first, or less than 0 of one")
            for r in range(self.of_table, self.resources):
                amount = others[c][r - self.of_table]
                self.asked[c * self.resources + r] = amount
        if self.pods > MOST_PODS:
            raise ValueError(f"{self.pods} pods, {MOST_PODS} at most")
        self.scratch = <mask_t*>malloc(self.pods * sizeof(mask_t))
        if self.scratch == NULL:
            raise MemoryError()
        self.known, self.held, self.taken, self.whole = {}, [], {}, {}
        self.refusals, self.refused, self.first = [b""], {b"": 0}, None
        self.counted = -1
        self.rows, self.kind, self.most = array("i"), array("i"), array("i")
        self.edition = -1

    def __dealloc__(self):
        c_free(self.role)
        c_free(self.asked)
        c_free(self.prices)
        c_free(self.before)
        c_free(self.after)
        c_free(self.scratch)

    cdef const Room* room(self, int kind) except NULL:
        return <const Room*>PyBytes_AS_STRING(self.held[kind])

    cdef const amount_t* left(self, int kind) except NULL:
        return <const amount_t*>(PyBytes_AS_STRING(self.held[kind]) + sizeof(Room))

    # ---- what is free

    def read(self, NodeTable nodes not None, Hazards hazards not None, const row_t[::1] rows, list judged,
             const amount_t[::1] others=None):
        """Copy what is left of `rows`, claims taken. `judged`: for each role a reason code for each of the rows, and
        one bit a row of the table where it is eligible; `others`: what is left of each other resource, row by row."""
        cdef Py_ssize_t i
        cdef int r, c
        cdef Room room
        cdef bytes made
        cdef amount_t* left
        cdef size_t size = sizeof(Room) + self.resources * sizeof(amount_t)
        cdef int more = self.resources - self.of_table
        if nodes.shapes is not self.shapes or nodes.resources != self.of_table or len(judged) != self.roles_count:
            raise ValueError("another table, or not one judgement a role")
        if (0 if others is None else others.shape[0]) != more * rows.shape[0]:
            raise ValueError("one number a row for each other resource")
        check_rows(nodes, rows, rows.shape[0])
        cdef object marks = array("Q", bytes(8 * rows.shape[0]))
        for c in range(self.roles_count):
            codes, bits = judged[c]
            _allow(marks, rows, codes, bits, c)
        for i in range(rows.shape[0]):
            memset(&room, 0, sizeof(Room))
            made = PyBytes_FromStringAndSize(NULL, size)
            left = <amount_t*>(PyBytes_AS_STRING(made) + sizeof(Room))
            memset(left, 0, self.resources * sizeof(amount_t))
            room.allowed = marks[i]
            if not nodes.flags[rows[i]] & SCHEDULABLE:
                room.allowed &= self.cordoned
            if room.allowed:  # of the others nothing counts: they are of one kind
                _read(nodes, self.shapes, hazards, rows[i], &room)
                for r in range(self.of_table):
                    left[r] = nodes.free_count(r, rows[i])
                for r in range(more):
                    left[self.of_table + r] = others[i * more + r]
            memcpy(PyBytes_AS_STRING(made), &room, sizeof(Room))
            self.rows.append(rows[i])
            self.kind.append(self._kind_of(made))
            self.height += 1

    cdef int _kind_of(self, bytes made) except -1:
        """The kind of a Room and its amounts."""
        kind = self.known.get(made)
        if kind is None:
            kind = self.kinds
            self.known[made] = kind
            self.held.append(made)
            self.kinds += 1
            self._measure(kind)
        return kind

    # ---- what is refused beyond what is counted here

    def refuse(self, const int32_t[::1] at, list refused):
        """These nodes take no way that has as many pods of each role, or more, as one of `refused`."""
        cdef int16_t[MOST_ROLES] x
        cdef Py_ssize_t i
        cdef bytes more = b"", made
        cdef size_t size = sizeof(Room) + self.resources * sizeof(amount_t)
        for counts in refused:
            self._counts(counts, &x[0])
            more += PyBytes_FromStringAndSize(<char*>&x[0], self.roles_count * sizeof(int16_t))
        if self.first is None:
            self.first = self.kind[:]
        changed = {}
        for i in range(at.shape[0]):
            self._check(at[i])
            kind = self.kind[at[i]]
            if kind not in changed:
                vectors = self.refusals[self.room(kind).refused] + more
                which = self.refused.get(vectors)
                if which is None:
                    which = self.refused[vectors] = len(self.refusals)
                    self.refusals.append(vectors)
                made = PyBytes_FromStringAndSize(PyBytes_AS_STRING(self.held[kind]), size)
                (<Room*>PyBytes_AS_STRING(made)).refused = which
                changed[kind] = self._kind_of(made)
            self.kind[at[i]] = changed[kind]

    def refuse_nothing(self):
        """Forget what was refused."""
        if self.first is not None:
            self.kind, self.first = self.first, None

    cdef bint _is_refused(self, const Room* room, const int16_t* x) except -1:
        cdef bytes vectors = self.refusals[room.refused]
        cdef const int16_t* least = <const int16_t*>PyBytes_AS_STRING(vectors)
        cdef Py_ssize_t n
        cdef int c
        for n in range(len(vectors) // <Py_ssize_t>(self.roles_count * sizeof(int16_t))):
            for c in range(self.roles_count):
                if x[c] < least[n * self.roles_count + c]:
                    break
            else:
                return True
        return False

    cdef int _measure(self, int kind) except -1:
        """How many pods of each role alone the kind takes."""
        cdef int16_t[MOST_ROLES] x
        cdef int c, r
        cdef amount_t most, asked
        cdef const amount_t* left = self.left(kind)
        cdef State after
        for c in range(self.roles_count):
            memset(&x[0], 0, sizeof(x))
            most = self.role[c].count
            if self.role[c].against >> c & 1:
                most = 1
            for r in range(self.resources):
                asked = self.asked[c * self.resources + r]
                if asked > 0:
                    most = min(most, left[r] // asked if left[r] > 0 else 0)
            if not self.room(kind).allowed >> c & 1:
                most = 0
            if most > 0 and (self.role[c].required or self.role[c].nics == NICS_REQUIRED or self.role[c].share > 1
                             or self.room(kind).panics or self.room(kind).refused):
                while x[c] < most:
                    x[c] += 1
                    if not self.put(kind, &x[0], &after):
                        most = x[c] - 1
            self.most.append(<int>most)
        return 0

    def row(self, int at):
        """The row of the node with an index: nodes are numbered as they were read."""
        return self.rows[at]

    def most_of(self, int at):
        """How many pods of each role alone fit on a node."""
        self._check(at)
        cdef int kind = self.kind[at]
        return tuple(self.most[kind * self.roles_count:(kind + 1) * self.roles_count])

    def _check(self, int at):
        if not 0 <= at < self.height:
            raise IndexError(f"node {at} of {self.height}")

    cdef int _check_role(self, int role) except -1:
        if not 0 <= role < self.roles_count:
            raise IndexError(f"role {role} of {self.roles_count}")
        return 0

    def sums(self, const int32_t[::1] domain, int domains):
        """int64[domains, C]: how many pods of each role alone fit in each domain. `domain`: of each node, -1 = none."""
        cdef int i, c, roles = self.roles_count
        made = array("q", bytes(8 * domains * roles))
        if domain.shape[0] != self.height:
            raise ValueError("one domain a node")
        if not domains or not self.height:
            return made
        cdef int64_t[::1] out = made
        cdef const int32_t[::1] kind = self.kind
        cdef const int32_t[::1] most = self.most
        for i in range(self.height):
            if domain[i] >= domains:
                raise IndexError("a domain beyond the number of domains")
            if domain[i] >= 0:
                for c in range(roles):
                    out[domain[i] * roles + c] += most[kind[i] * roles + c]
        return made

    def members(self, const int32_t[::1] domain, int which):
        """int32: the nodes of one domain that take at least one pod."""
        cdef int i, c, n = 0, roles = self.roles_count
        if domain.shape[0] != self.height:
            raise ValueError("one domain a node")
        made = array("i", bytes(4 * self.height))
        if not self.height:
            return made
        cdef int32_t[::1] out = made
        cdef const int32_t[::1] kind = self.kind
        cdef const int32_t[::1] most = self.most
        for i in range(self.height):
            if domain[i] != which:
                continue
            for c in range(roles):
                if most[kind[i] * roles + c] > 0:
                    out[n] = i
                    n += 1
                    break
        return made[:n]

    def work(self, const int32_t[::1] at):
        """How many ways the nodes have at most; 0: one of them has too many to be enumerated."""
        cdef int i, c, roles = self.roles_count
        cdef int64_t ways, sum = 1
        if not self.height:
            return sum
        cdef const int32_t[::1] kind = self.kind
        cdef const int32_t[::1] most = self.most
        for i in range(at.shape[0]):
            self._check(at[i])
            ways = 1
            for c in range(roles):
                ways *= most[kind[at[i]] * roles + c] + 1
                if ways > MOST_WAYS:
                    return 0
            sum += ways
        return sum

    # ---- whether some pods fit together

    cdef bint put(self, int kind, const int16_t* x, State* after) except -1:
        cdef const Room* room = self.room(kind)
        cdef const amount_t* left = self.left(kind)
        cdef int c, r, i, n = 0, gpu = room.state.gpu
        cdef amount_t sum, asked, units = 0
        cdef uint64_t present = 0, demand = 0
        cdef Role* role
        for c in range(self.roles_count):
            if x[c]:
                present |= <uint64_t>1 << c
                n += x[c]
        if present & ~room.allowed or n > self.pods:
            return False
        if room.refused and self._is_refused(room, x):
            return False
        for r in range(self.resources):
            sum = 0
            for c in range(self.roles_count):
                asked = self.asked[c * self.resources + r]
                if not x[c] or not asked:
                    continue
                if left[r] <= 0 or asked > left[r] // x[c]:  # tenants choose amounts: no product beyond 64 bits
                    return False
                sum += x[c] * asked
                if sum > left[r]:
                    return False
            if r == gpu:
                units = sum
        for c in range(self.roles_count):
            if not x[c]:
                continue
            role = &self.role[c]
            if role.against & present & ~(<uint64_t>1 << c) or (x[c] > 1 and role.against >> c & 1):
                return False
            if role.nics == NICS_REQUIRED and not self._follows(room, role):
                if self.shapes.nics_certainty(room.state.shape, room.free, role.wanted,
                                              room.unknown + as_count(units - role.wanted),
                                              role.containers, False, role.planned) != CERTAIN:
                    return False
            if not role.required:
                continue
            if self._follows(room, role):
                if x[c] * role.wanted > MOST_GPUS:
                    return False
                demand += sets_of(role.wanted, x[c])
            elif self.shapes.certainty(room.state.shape, room.free, role.wanted,
                                       room.unknown + as_count(units - role.wanted),
                                       role.containers, role.planned) != CERTAIN:
                return False
        if demand and (popcount(room.state.whole) < units
                       or not self.sets.fit(room.state.shape, room.state.whole, demand)):
            return False
        memcpy(after, &room.state, sizeof(State))
        for i in range(n):
            self.scratch[i] = 0
        return self._choose(room, x, units, demand, after)

    cdef bint _choose(self, const Room* room, const int16_t* x, amount_t units, uint64_t demand,
                      State* after) except -1:
        """Choose the GPUs of each pod: linked sets for all where they fit, else for those that require them. False: too
        few GPUs have the units left that a pod takes of each, the device plugin would crash, or not all of the planned
        GPUs of a pod that requires it have NICs of their own: the sets are chosen one after the other."""
        cdef int c, r, at, turn, gpu = after.gpu
        cdef mask_t gpus
        cdef uint64_t every = 0, joined = 0
        cdef Role* role
        cdef bint named = room.named and (after.units > 1 or popcount(after.whole) >= units)
        if named and after.units == 1:
            for c in range(self.roles_count):
                if x[c] and self.role[c].wanted >= 2 and self.role[c].resource == gpu:
                    every += sets_of(self.role[c].wanted, x[c])
            if every and self.sets.fit(after.shape, after.whole, every):
                demand = every
            for c in range(self.roles_count):
                role = &self.role[c]
                if demand and role.wanted >= 2 and (demand == every or (role.required and self._follows(room, role))):
                    joined |= <uint64_t>1 << c
        for turn in range(2):  # linked sets first: any other GPUs do for the rest
            at = 0
            for c in range(self.roles_count):
                role = &self.role[c]
                if not x[c]:
                    continue
                if role.resource != gpu or <bint>(joined >> c & 1) != (turn == 0):
                    at += x[c]
                    continue
                for _i in range(x[c]):
                    if room.panics and role.containers == 1 and role.wanted:
                        if self.shapes.crash_of(after.shape, after.whole, role.wanted) > 0:
                            return False
                    if turn == 0:
                        gpus = self.sets.first(after.shape, after.whole, demand, role.nics)
                        demand -= sets_of(role.wanted, 1)
                    else:
                        gpus = self._any(role, after) if named or role.share > 1 else 0
                        if gpus == 0 and role.share > 1 and after.modelled:
                            return False
                    if role.nics == NICS_REQUIRED and self._follows(room, role):
                        if not self._aligned(role, after.shape, gpus):
                            return False
                    self.scratch[at] = gpus if room.named else 0
                    at += 1
                    _take(after, gpus, role.share)
        for c in range(self.roles_count):
            after.slots -= x[c]
            after.cpu -= x[c] * self.asked[c * self.resources + CPU]
            after.memory -= x[c] * self.asked[c * self.resources + MEMORY]
            if gpu >= 0:
                after.spare -= x[c] * self.asked[c * self.resources + gpu]
            for r in range(FIRST_GPU, self.of_table):
                if r != gpu and x[c] and self.asked[c * self.resources + r] > 0:
                    after.taken = r
                    after.other += x[c] * self.asked[c * self.resources + r]
        return True

    cdef bint _follows(self, const Room* room, const Role* role) noexcept nogil:
        """Whether a pod of the role gets what is planned for it."""
        return room.allocated if role.planned else room.planned

    cdef bint _aligned(self, const Role* role, int shape, mask_t gpus) noexcept nogil:
        """Whether these are as many GPUs as the pod takes, and each can have a NIC of its own."""
        return self.shapes.nics_of(shape, gpus) == role.wanted and popcount(gpus) == role.wanted

    cdef mask_t _any(self, const Role* role, const State* s) noexcept nogil:
        """GPUs for a pod, linked ones where there are; of those that are shared the fullest for one, the emptiest for
        several. 0: there are too few."""
        cdef mask_t rest, gpus = 0
        cdef int _i, gpu, best
        if role.share >= s.units:
            if role.share > s.units or popcount(s.whole) < role.wanted:
                return 0
            gpus = self.shapes.pick(s.shape, s.whole, role.wanted, role.nics)
            if gpus:
                return gpus
            rest = s.whole
            for _i in range(role.wanted):
                gpus |= lowest(rest)
                rest ^= lowest(rest)
            return gpus
        rest = s.open
        for _i in range(role.wanted):
            best = -1
            for gpu in range(MOST_GPUS):
                if rest >> gpu & 1 and s.left[gpu] >= role.share:
                    if best < 0 or (s.left[gpu] < s.left[best] if role.wanted == 1 else s.left[gpu] > s.left[best]):
                        best = gpu
            if best < 0:
                return 0
            gpus |= <mask_t>1 << best
            rest ^= <mask_t>1 << best
        return gpus

    # ---- ways

    def set_prices(self, const double[::1] prices):
        """What a slot of each type costs, in the order of the types that `slots` has now."""
        cdef int t
        if prices.shape[0] != self.slots.kinds:
            raise ValueError("one price a type")
        for t in range(self.slots.kinds):
            self.prices[self.slots.column[t]] = prices[t]
        self.edition = self.slots.edition
        self.counted = -1

    def priced(self):
        """Whether the prices are those of the types that `slots` has now."""
        return self.edition == self.slots.edition

    cdef int64_t cost_of(self, int kind, const State* after) except -1:
        """One node, and the price of what the pods take of it: the slots that are lost, and what is left empty."""
        cdef const Room* room = self.room(kind)
        cdef double sum = 0.0, left = 0.0
        cdef int t, c
        if self.edition != self.slots.edition:
            raise ValueError("the types have changed: set_prices")
        if self.counted != kind:
            self.slots.fill_counts(&room.state, self.before, ALL_TYPES)
            self.counted = kind
        self.slots.fill_counts(after, self.after, ALL_TYPES)
        for t in range(self.slots.kinds):
            c = self.slots.column[t]
            sum += self.prices[c] * (self.before[c] - self.after[c])
        if self.slots.most_cpu > 0.0:
            left += after.cpu / self.slots.most_cpu
        if self.slots.most_gpus > 0.0 and after.gpu >= 0:
            left += <double>after.spare / after.units / self.slots.most_gpus
        sum = floor((sum + self.fullness * (0.5 * left)) * MILLIONTHS + 0.5)
        return (<int64_t>1 << PRICE_BITS) + (<int64_t>min(max(sum, 0.0), <double>MOST_PRICE))

    cdef _Ways ways_of(self, int kind):
        """All ways of a kind, each with its cost; worked out once."""
        cdef int16_t[MOST_ROLES] x
        cdef _Ways ways
        found = self.taken.get(kind)
        if found is not None:
            return found
        ways = _Ways.__new__(_Ways)
        ways.roles = self.roles_count
        memset(&x[0], 0, sizeof(x))
        self._extend(ways, kind, &x[0], 0)
        self.taken[kind] = ways
        return ways

    cdef int _extend(self, _Ways ways, int kind, int16_t* x, int c) except -1:
        """Add the ways that begin with the first `c` numbers of x."""
        cdef State after
        cdef int i
        if c == self.roles_count:
            for i in range(c):
                if x[i]:
                    self.put(kind, x, &after)
                    ways.add(x, self.cost_of(kind, &after))
                    break
            return 0
        while not ways.many:
            self._extend(ways, kind, x, c + 1)
            x[c] += 1
            if x[c] > <int>self.most[kind * self.roles_count + c] or not self.put(kind, x, &after):
                break
        x[c] = 0
        return 0

    def ways(self, int at):
        """[(pods of each role, price)]: all ways of a node; None where there are too many."""
        self._check(at)
        cdef _Ways ways = self.ways_of(self.kind[at])
        cdef int w, c
        if ways.many:
            return None
        return [(tuple([ways.x[w * ways.roles + c] for c in range(ways.roles)]),
                 ways.cost[w] - (<int64_t>1 << PRICE_BITS)) for w in range(ways.count)]

    def alone(self, int first, int last, const int32_t[::1] domain):
        """(node, price) of the first of the cheapest nodes from `first` to `last` that take all pods and whose `domain`
        is not -1; None."""
        cdef int16_t[MOST_ROLES] x
        cdef int at, kind, c, best = -1
        cdef int64_t cost, least = 0
        cdef State after
        if not 0 <= first <= last <= self.height or domain.shape[0] != self.height:
            raise IndexError("nodes outside of those that were read")
        for c in range(self.roles_count):
            x[c] = <int16_t>self.role[c].count
        for at in range(first, last):
            if domain[at] < 0:
                continue
            kind = self.kind[at]
            found = self.whole.get(kind)
            if found is None:
                cost = 0
                for c in range(self.roles_count):
                    if <int>self.most[kind * self.roles_count + c] < self.role[c].count:
                        break
                else:
                    if self.put(kind, &x[0], &after):
                        cost = self.cost_of(kind, &after)
                found = self.whole[kind] = cost
            cost = found
            if cost and (best < 0 or cost < least):
                best, least = at, cost
        return None if best < 0 else (best, least - (<int64_t>1 << PRICE_BITS))

    cdef int _counts(self, counts, int16_t* x) except -1:
        cdef int c
        if len(counts) != self.roles_count:
            raise ValueError("one number a role")
        for c in range(self.roles_count):
            if not 0 <= counts[c] <= self.role[c].count:
                raise ValueError("as many pods of a role at most as there are")
            x[c] = counts[c]
        return 0

    def more(self, int at, counts, int role):
        """How many pods of a role a node takes beside `counts` of each."""
        cdef int16_t[MOST_ROLES] x
        cdef State after
        cdef int found = 0, most
        self._check(at)
        self._counts(counts, &x[0])
        self._check_role(role)
        most = min(<int>self.most[<int>self.kind[at] * self.roles_count + role], self.role[role].count) - x[role]
        while found < most:
            x[role] += 1
            if not self.put(self.kind[at], &x[0], &after):
                break
            found += 1
        return found

    def price(self, int at, counts):
        """What a node's slots cost that these pods take, in millionths; None: it does not take them."""
        cdef int16_t[MOST_ROLES] x
        cdef State after
        self._check(at)
        self._counts(counts, &x[0])
        if not self.put(self.kind[at], &x[0], &after):
            return None
        return self.cost_of(self.kind[at], &after) - (<int64_t>1 << PRICE_BITS)

    def needed(self):
        """R amounts: what all pods ask for together."""
        cdef int c, r
        return tuple([sum([<object>self.asked[c * self.resources + r] * self.role[c].count
                           for c in range(self.roles_count)]) for r in range(self.of_table)])

    def rooms(self, const int32_t[::1] at, int role):
        """int64: how many pods of a role alone fit on each of some nodes."""
        cdef Py_ssize_t i
        self._check_role(role)
        made = array("q", bytes(8 * at.shape[0]))
        for i in range(at.shape[0]):
            self._check(at[i])
            made[i] = self.most[<int>self.kind[at[i]] * self.roles_count + role]
        return made

    def spare(self, const int32_t[::1] at, int resource):
        """int64: the amounts of a resource that were free on each of some nodes; 0 where no role is allowed."""
        cdef Py_ssize_t i
        if not 0 <= resource < self.of_table:
            raise IndexError("no such resource")
        made = array("q", bytes(8 * at.shape[0]))
        for i in range(at.shape[0]):
            self._check(at[i])
            made[i] = self.left(self.kind[at[i]])[resource]
        return made

    def gpus(self, int at, counts):
        """The GPUs of each pod, role by role, where a node takes `counts` of each; 0 = no positions can be planned.
        None: it does not take them."""
        cdef int16_t[MOST_ROLES] x
        cdef State after
        cdef int i
        self._check(at)
        self._counts(counts, &x[0])
        if not self.put(self.kind[at], &x[0], &after):
            return None
        return [self.scratch[i] for i in range(sum(counts))]

    def holds(self, int at, counts, masks):
        """Whether a node takes these pods on these GPUs: they are free, each pod's own, and linked and with NICs
        where that is required. A mask of 0 claims no positions."""
        cdef int16_t[MOST_ROLES] x
        cdef State after
        cdef int c, gpu, n = 0
        cdef mask_t gpus
        cdef bint follows
        cdef Role* role
        self._check(at)
        self._counts(counts, &x[0])
        if len(masks) != sum(counts) or not self.put(self.kind[at], &x[0], &after):
            return False
        memcpy(&after, &self.room(self.kind[at]).state, sizeof(State))
        for c in range(self.roles_count):
            role = &self.role[c]
            follows = self._follows(self.room(self.kind[at]), role)
            for _i in range(x[c]):
                gpus = masks[n]
                n += 1
                if gpus == 0:
                    if follows and (role.required or role.nics == NICS_REQUIRED):
                        return False
                    continue
                if popcount(gpus) != role.wanted or gpus & ~(after.whole if role.share == after.units else after.open):
                    return False
                for gpu in range(MOST_GPUS):
                    if gpus >> gpu & 1 and after.left[gpu] < role.share:
                        return False
                if role.required and follows:
                    if self.shapes.ring_of(after.shape, gpus) <= 0:
                        return False
                if role.nics == NICS_REQUIRED and follows:
                    if not self._aligned(role, after.shape, gpus):
                        return False
                _take(&after, gpus, role.share)
        return True


cdef int _allow(uint64_t[::1] marks, const row_t[::1] rows, const code_t[::1] codes, const uint64_t[::1] bits,
                int role) except -1:
    """Mark the role where no rule rejects the row and its bit is set."""
    cdef Py_ssize_t i
    if codes.shape[0] != rows.shape[0]:
        raise ValueError("rows and codes differ in length")
    for i in range(rows.shape[0]):
        if codes[i] == 0 and rows[i] < 64 * bits.shape[0] and bits[rows[i] // 64] >> (rows[i] % 64) & 1:
            marks[i] |= <uint64_t>1 << role
    return 0


cdef inline bint _more(void** column, size_t bytes) except -1:
    cdef void* made = realloc(column[0], bytes)
    if made == NULL:
        raise MemoryError()
    column[0] = made
    return True


cdef class _Ways:
    """The ways of one kind. `many`: there are more than are enumerated."""

    def __dealloc__(self):
        c_free(self.x)
        c_free(self.cost)

    cdef int add(self, const int16_t* x, int64_t cost) except -1:
        if self.count == MOST_WAYS:
            self.many = True
            return 0
        if self.count == self.held:
            self.held = max(16, 2 * self.held)
            _more(<void**>&self.x, self.held * self.roles * sizeof(int16_t))
            _more(<void**>&self.cost, self.held * sizeof(int64_t))
        memcpy(self.x + self.count * self.roles, x, self.roles * sizeof(int16_t))
        self.cost[self.count] = cost
        self.count += 1
        return 0


cdef inline void _take(State* s, mask_t gpus, amount_t share) noexcept nogil:
    cdef int gpu
    for gpu in range(MOST_GPUS):
        if gpus >> gpu & 1:
            s.left[gpu] -= share
    s.whole &= ~gpus


cdef void _read(NodeTable nodes, LinkShapes shapes, Hazards hazards, row_t row, Room* room) noexcept:
    cdef int gpu = nodes.gpu[row], hidden
    cdef mask_t named
    read_state(nodes, row, &room.state)
    if not room.state.mixed:
        room.state.row = 0
    room.free = nodes.healthy[row] & ~nodes.sure[row]
    if gpu < 0:
        return
    hidden = popcount(nodes.healthy[row]) - as_count(nodes.alloc[gpu, row])
    named = nodes.named(shapes, gpu, row)
    room.free &= ~named
    room.unknown = nodes.unknown[row] + popcount(nodes.likely[row] & ~nodes.sure[row]) + nodes.claimed(gpu, row)
    room.unknown += max(hidden, 0) - popcount(named)
    room.named = room.state.modelled and nodes.unknown[row] == 0
    room.planned = room.named and room.unknown == 0 and shapes.follows(room.state.shape, False)
    room.allocated = room.named and room.unknown == 0 and shapes.follows(room.state.shape, True)
    room.panics = (hazards.at(row) & PANICS_KNOWN and room.named and nodes.claim[gpu, row] == 0
                   and popcount(room.free) == room.state.spare)
