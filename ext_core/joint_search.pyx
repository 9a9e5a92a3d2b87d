"""The cheapest placement of all pods of a gang on some nodes: fewest nodes, then the lowest price.

Exact, node by node: for each number of pods of each role that may be placed by then, the lowest cost of placing them on
the nodes so far. Costs are whole numbers, so that the order of the nodes changes no sum. Of equal placements the one
on the first nodes is found. In steps, since the work is nodes x states x ways.
"""

from libc.stdlib cimport free as c_free, malloc
from libc.string cimport memcpy, memset

from ext_core.ints cimport int16_t, int32_t, int64_t, uint16_t
from ext_core.joint cimport MOST_ROLES, PRICE_BITS, Joint, _Ways

cdef enum:
    MOST_STATES = 0x10000
    MOST_CHOICES = 0x4000000   # nodes x states: two bytes each
    WAY_WORK = 512             # a way is priced in the time of so many steps

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
    """One search. `at`: the nodes, by index of `joint`; `partial`: place as many pods as fit, not all of them."""

    cdef Joint joint
    cdef int height, states, next
    cdef bint partial
    cdef int32_t* at
    cdef int32_t[MOST_ROLES] stride
    cdef int16_t* placed       # [state, C]
    cdef int64_t* cost         # [state] of the nodes so far
    cdef int64_t* before
    cdef uint16_t* choice      # [node, state] 1 + the way that leads there; 0 = none of its own
    cdef int64_t* coming       # [node, C] pods of each role that it and those after it take

    def __cinit__(self, Joint joint not None, const int32_t[::1] at, bint partial=False):
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
        memset(&self.coming[self.height * roles], 0, roles * sizeof(int64_t))
        for i in range(self.height - 1, -1, -1):
            joint._check(at[i])
            self.at[i] = at[i]
            for c in range(roles):
                self.coming[i * roles + c] = (self.coming[(i + 1) * roles + c]
                                              + <int>joint.most[<int>joint.kind[at[i]] * roles + c])

    def __dealloc__(self):
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

    cdef int _best(self):
        """The state of the most pods; of these the cheapest, then the first."""
        cdef int s, c, best = 0, most = 0, pods
        for s in range(self.states):
            if self.cost[s] == NONE:
                continue
            pods = 0
            for c in range(self.joint.roles_count):
                pods += self.placed[s * self.joint.roles_count + c]
            if pods > most or (pods == most and self.cost[s] < self.cost[best]):
                best, most = s, pods
        return best

    def cost_of(self):
        """(nodes, price in millionths) of the cheapest placement of all pods; None where they do not fit."""
        cdef int64_t cost = self.cost[self.states - 1]
        if self.next < self.height:
            raise ValueError("the search has not ended")
        if cost == NONE:
            return None
        return cost >> PRICE_BITS, cost & ((<int64_t>1 << PRICE_BITS) - 1)

    def placement(self):
        """[(index of a node, pods of each role)] of the cheapest placement of the most pods, in the order of the
        nodes."""
        cdef int s = self._best(), i, c, roles = self.joint.roles_count
        cdef uint16_t way
        cdef _Ways ways
        if self.next < self.height:
            raise ValueError("the search has not ended")
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
