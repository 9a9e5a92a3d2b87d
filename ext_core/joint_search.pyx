"""The cheapest placement of all pods of a gang on some nodes: fewest nodes, then the lowest price.

Exact, node by node: for each number of pods of each role that may be placed by then, the lowest cost of placing them on
the nodes so far. Costs are whole numbers, so that the order of the nodes changes no sum. Of equal placements the one
on the first nodes is found. In steps, since the work is nodes x states x ways.

Where the pods may take a limited number of GPUs of some nodes together, these nodes are searched for themselves: the
pods that are placed there state what they take. `Union` puts such searches together.
"""

from libc.stdlib cimport free as c_free, malloc
from libc.string cimport memcpy, memset

from ext_core.ints cimport int16_t, int32_t, int64_t, uint8_t, uint16_t
from ext_core.joint cimport MOST_ROLES, PRICE_BITS, Joint, _Ways

cdef enum:
    MOST_STATES = 0x10000
    MOST_CHOICES = 0x4000000   # nodes x states: two bytes each
    WAY_WORK = 512             # a way is priced in the time of so many steps
    MOST_SIZE = 0x40000000     # GPUs of a pod

cdef int64_t NONE = <int64_t>1 << 62


def states(Joint joint not None):
    """How many sets of pods there are, equal pods not told apart; 0: more than a search can hold."""
    cdef int c
    cdef int64_t made = 1
    for c in range(joint.roles_count):
        made *= joint.role[c].count + 1
        if made > MOST_STATES:
            return 0
    return made


cdef class Search:
    """One search. `at`: the nodes, by index of `joint`; `partial`: place as many pods as fit, not all of them; `most`:
    the GPUs that all pods may take of these nodes together, -1: any number; `sizes`: the GPUs of a pod of each role,
    where `most` is a limit."""

    cdef Joint joint
    cdef int height, states, next
    cdef bint partial
    cdef uint8_t* over         # [state] whether its pods take more than they may; NULL: none does
    cdef int32_t* at
    cdef int32_t[MOST_ROLES] stride
    cdef int16_t* placed       # [state, C]
    cdef int64_t* cost         # [state] of the nodes so far
    cdef int64_t* before
    cdef uint16_t* choice      # [node, state] 1 + the way that leads there; 0 = none of its own
    cdef int64_t* coming       # [node, C] pods of each role that it and those after it take

    def __cinit__(self, Joint joint not None, const int32_t[::1] at, bint partial=False, sizes=(), int64_t most=-1):
        cdef int i, c, s, rest, size = states(joint)
        cdef int roles = joint.roles_count
        if size == 0 or <int64_t>size * max(at.shape[0], 1) > MOST_CHOICES:
            raise ValueError("too large for an exact search")
        self.joint, self.states, self.height, self.partial = joint, size, <int>at.shape[0], partial
        self.at = <int32_t*>malloc((self.height + 1) * sizeof(int32_t))
        self.placed = <int16_t*>malloc(<size_t>size * roles * sizeof(int16_t))
        self.cost = <int64_t*>malloc(size * sizeof(int64_t))
        self.before = <int64_t*>malloc(size * sizeof(int64_t))
        self.choice = <uint16_t*>malloc(<size_t>size * (self.height + 1) * sizeof(uint16_t))
        self.coming = <int64_t*>malloc(<size_t>(self.height + 1) * roles * sizeof(int64_t))
        if (self.at == NULL or self.placed == NULL or self.cost == NULL or self.before == NULL
                or self.choice == NULL or self.coming == NULL):
            raise MemoryError()
        rest = 1
        for c in range(roles):
            self.stride[c] = rest
            rest *= joint.role[c].count + 1
        for s in range(size):
            self.cost[s] = NONE
            for c in range(roles):
                self.placed[s * roles + c] = <int16_t>(s // self.stride[c] % (joint.role[c].count + 1))
        self.cost[0] = 0
        if most >= 0:
            self._limit(sizes, most)
        memset(&self.coming[self.height * roles], 0, roles * sizeof(int64_t))
        for i in range(self.height - 1, -1, -1):
            joint._check(at[i])
            self.at[i] = at[i]
            for c in range(roles):
                self.coming[i * roles + c] = (self.coming[(i + 1) * roles + c]
                                              + <int>joint.most[<int>joint.kind[at[i]] * roles + c])

    cdef int _limit(self, sizes, int64_t most) except -1:
        """Which states take more GPUs than `most`."""
        cdef int64_t[MOST_ROLES] size
        cdef int64_t sum
        cdef int s, c, roles = self.joint.roles_count
        if len(sizes) != roles or min(sizes) < 0 or max(sizes) > MOST_SIZE:
            raise ValueError("one number of GPUs a role")
        for c in range(roles):
            size[c] = sizes[c]
        self.over = <uint8_t*>malloc(self.states)
        if self.over == NULL:
            raise MemoryError()
        for s in range(self.states):
            sum = 0
            for c in range(roles):
                sum += size[c] * self.placed[s * roles + c]
            self.over[s] = sum > most
        return 0

    def __dealloc__(self):
        c_free(self.over)
        c_free(self.at)
        c_free(self.placed)
        c_free(self.cost)
        c_free(self.before)
        c_free(self.choice)
        c_free(self.coming)

    def advance(self, int64_t steps):
        """Go on for about so many steps; whether the search has ended."""
        cdef _Ways ways
        cdef int kind
        while self.next < self.height and steps > 0:
            kind = self.joint.kind[self.at[self.next]]
            if kind not in self.joint.taken:
                steps -= WAY_WORK * self.joint.ways_of(kind).count
            ways = self.joint.ways_of(kind)
            if ways.many:
                raise ValueError("too large for an exact search")
            steps -= self._node(ways)
            self.next += 1
        return self.next == self.height

    cdef int64_t _node(self, _Ways ways) noexcept nogil:
        """Take one more node; the steps that it took."""
        cdef int s, w, c, to, roles = ways.roles
        cdef int64_t cost, steps = self.states // 8
        cdef const int16_t* placed
        cdef const int16_t* x
        cdef const int64_t* coming = self.coming + self.next * roles
        cdef uint16_t* choice = self.choice + <size_t>self.next * self.states
        memset(choice, 0, self.states * sizeof(uint16_t))
        memcpy(self.before, self.cost, self.states * sizeof(int64_t))
        for s in range(self.states):
            if self.before[s] == NONE:
                continue
            placed = self.placed + <size_t>s * roles
            if not self.partial and not self._enough(placed, coming):
                continue
            steps += ways.count
            for w in range(ways.count):
                x = ways.x + w * roles
                to = s
                for c in range(roles):
                    if placed[c] + x[c] > self.joint.role[c].count:
                        break
                    to += x[c] * self.stride[c]
                else:
                    if self.over != NULL and self.over[to]:
                        continue
                    cost = self.before[s] + ways.cost[w]
                    if cost < self.cost[to]:
                        self.cost[to] = cost
                        choice[to] = <uint16_t>(w + 1)
        return steps

    cdef bint _enough(self, const int16_t* placed, const int64_t* coming) noexcept nogil:
        """Whether all pods may still be placed."""
        cdef int c
        for c in range(self.joint.roles_count):
            if placed[c] + coming[c] < self.joint.role[c].count:
                return False
        return True

    cdef int _ended(self) except -1:
        if self.next < self.height:
            raise ValueError("the search has not ended")
        return 0

    def cost_of(self):
        """(nodes, price in millionths) of the cheapest placement of all pods; None where they do not fit."""
        self._ended()
        return _split(self.cost[self.states - 1])

    def placement(self):
        """[(index of a node, pods of each role)] of the cheapest placement of the most pods, in the order of the
        nodes."""
        self._ended()
        return self._chosen(_best(self, self.cost))

    cdef list _chosen(self, int s):
        """As `placement`, of a state."""
        cdef int i, c, roles = self.joint.roles_count
        cdef uint16_t way
        cdef _Ways ways
        made = []
        for i in range(self.height - 1, -1, -1):
            way = self.choice[<size_t>i * self.states + s]
            if way == 0:
                continue
            ways = self.joint.ways_of(self.joint.kind[self.at[i]])
            made.append((self.at[i], tuple([ways.x[(way - 1) * roles + c] for c in range(roles)])))
            for c in range(roles):
                s -= ways.x[(way - 1) * roles + c] * self.stride[c]
        return made[::-1]


cdef class Union:
    """The cheapest placement on the nodes of several searches, which have ended. Their nodes differ; each was made with
    `partial`, since some of the pods are on nodes of the others."""

    cdef list searches
    cdef int states, next, state
    cdef int64_t* cost         # [state] of the searches so far
    cdef int64_t* before
    cdef int32_t* choice       # [search, state] what the search places of it

    def __cinit__(self, list searches not None):
        cdef Search search, first
        cdef int s
        if not searches:
            raise ValueError("no search")
        first = searches[0]
        for search in searches:
            search._ended()
            if search.joint is not first.joint or not search.partial:
                raise ValueError("not parts of one search")
        self.searches, self.states = list(searches), first.states
        self.cost = <int64_t*>malloc(self.states * sizeof(int64_t))
        self.before = <int64_t*>malloc(self.states * sizeof(int64_t))
        self.choice = <int32_t*>malloc(len(searches) * self.states * sizeof(int32_t))
        if self.cost == NULL or self.before == NULL or self.choice == NULL:
            raise MemoryError()
        memcpy(self.cost, first.cost, self.states * sizeof(int64_t))
        for s in range(self.states):
            self.choice[s] = s
        self.next = 1
        if len(searches) > 1:
            self._begin()

    def __dealloc__(self):
        c_free(self.cost)
        c_free(self.before)
        c_free(self.choice)

    cdef void _begin(self):
        """Take one more search."""
        cdef int s
        memcpy(self.before, self.cost, self.states * sizeof(int64_t))
        for s in range(self.states):
            self.cost[s] = NONE
        self.state = 0

    def advance(self, int64_t steps):
        """Go on for about so many steps; whether the search has ended."""
        while self.next < len(self.searches) and steps > 0:
            steps -= 1 + self._add(self.searches[self.next], self.choice + <size_t>self.next * self.states)
            self.state += 1
            if self.state == self.states:
                self.next += 1
                if self.next < len(self.searches):
                    self._begin()
        return self.next == len(self.searches)

    cdef int64_t _add(self, Search search, int32_t* choice) noexcept:
        """Put all that the search may place to what the others place in one state; the steps that it took."""
        cdef int t, c, s = self.state, roles = search.joint.roles_count
        cdef const int16_t* placed = search.placed + <size_t>s * roles
        cdef const int16_t* more
        cdef int64_t cost
        if self.before[s] == NONE:
            return 0
        for t in range(self.states - s):  # the sum of the two is a state
            if search.cost[t] == NONE:
                continue
            more = search.placed + <size_t>t * roles
            for c in range(roles):
                if placed[c] + more[c] > search.joint.role[c].count:
                    break
            else:
                cost = self.before[s] + search.cost[t]
                if cost < self.cost[s + t]:
                    self.cost[s + t] = cost
                    choice[s + t] = t
        return self.states - s

    cdef int _ended(self) except -1:
        if self.next < len(self.searches):
            raise ValueError("the search has not ended")
        return 0

    def cost_of(self):
        """As of `Search`."""
        self._ended()
        return _split(self.cost[self.states - 1])

    def placement(self):
        """As of `Search`, the searches one after the other."""
        cdef int i, t, s
        cdef Search search
        self._ended()
        s = _best(self.searches[0], self.cost)
        made = []
        for i in range(len(self.searches) - 1, -1, -1):
            search = self.searches[i]
            t = self.choice[<size_t>i * self.states + s]
            made = search._chosen(t) + made
            s -= t
        return made


cdef _split(int64_t cost):
    return None if cost == NONE else (cost >> PRICE_BITS, cost & ((<int64_t>1 << PRICE_BITS) - 1))


cdef int _best(Search search, const int64_t* cost):
    """The state of the most pods; of these the cheapest, then the first."""
    cdef int s, c, best = 0, most = 0, pods, roles = search.joint.roles_count
    for s in range(search.states):
        if cost[s] == NONE:
            continue
        pods = 0
        for c in range(roles):
            pods += search.placed[s * roles + c]
        if pods > most or (pods == most and cost[s] < cost[best]):
            best, most = s, pods
    return best
