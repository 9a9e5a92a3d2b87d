"""What a gang may take of each node, as the search over nodes reads it."""
from ext_core.ints cimport amount_t, int16_t, int32_t, int64_t, mask_t, uint64_t
from ext_core.link_sets cimport LinkSets
from ext_core.links cimport LinkShapes
from ext_core.slot_counts cimport SlotCounts, State
from ext_core.table cimport NodeTable

cdef enum:
    MOST_ROLES = 64
    PRICE_BITS = 44        # of a cost: the nodes are above, the price of the slots in millionths below

cdef struct Role:          # equal pods of a gang
    int count
    int resource           # -1: no GPUs
    int wanted, containers
    amount_t share
    bint required          # links
    int nics               # what it asks of the NICs of its GPUs
    bint planned           # the queue allocates the devices of its claims
    uint64_t against       # roles that may not be on the same node; its own bit: one pod a node

cdef struct Room:          # what is left of a node; nodes of which this is the same are one kind
    State state            # as slots are counted; its row is 0 where the row does not matter
    mask_t free            # GPUs that no pod surely holds: what required links are judged on
    int unknown            # GPUs that are held, or claimed, at unknown positions
    bint named             # the free GPUs are known: sets can be planned
    bint planned           # and what is planned is handed out
    bint allocated         # the same, to pods whose claims the queue allocates
    bint panics            # the device plugin is known to crash over some free sets
    uint64_t allowed       # bit c: the rules pass role c
    int refused            # which of the sets of `refusals`; 0 = nothing


cdef class _Ways:
    cdef int roles, count, held
    cdef bint many
    cdef int16_t* x                   # [way, C]
    cdef int64_t* cost                # [way] one node and the price

    cdef int add(self, const int16_t* x, int64_t cost) except -1


cdef class Joint:
    cdef readonly int height          # nodes that were read
    cdef readonly int roles_count
    cdef readonly int kinds           # different nodes among them
    cdef int of_table                 # columns of the node table
    cdef int resources                # R: these, then the other resources
    cdef LinkShapes shapes
    cdef LinkSets sets
    cdef SlotCounts slots
    cdef Role* role                   # [C]
    cdef amount_t* asked              # [C, R]
    cdef dict known                   # bytes of a Room and its amounts -> kind
    cdef list held                    # those bytes, by kind
    cdef list refusals                # sets of counts that some nodes do not take: int16[n, C], as bytes
    cdef dict refused                 # those bytes -> which set
    cdef object rows, kind            # array("i"): by index of a node
    cdef object first                 # `kind` as it was read; None: nothing is refused
    cdef object most                  # array("i"): [kind, C] how many pods of one role alone fit
    cdef dict taken                   # kind -> its ways
    cdef dict whole                   # kind -> what all pods on one such node cost; 0 = they do not fit
    cdef mask_t* scratch
    cdef int pods
    cdef uint64_t cordoned            # roles that may be on cordoned nodes
    cdef double fullness
    cdef double* prices               # [column]
    cdef int64_t edition              # of the types that the prices are of
    cdef int counted                  # kind that `before` is of
    cdef int32_t* before
    cdef int32_t* after

    cdef const Room* room(self, int kind) except NULL
    cdef const amount_t* left(self, int kind) except NULL
    # Whether a node takes x[c] pods of each role; the GPUs of each pod to `scratch`, what is left then to `after`.
    cdef bint put(self, int kind, const int16_t* x, State* after) except -1
    cdef int64_t cost_of(self, int kind, const State* after) except -1
    cdef _Ways ways_of(self, int kind)
    cdef bint _follows(self, const Room* room, const Role* role) noexcept nogil
    cdef bint _aligned(self, const Role* role, int shape, mask_t gpus) noexcept nogil
    cdef mask_t _any(self, const Role* role, const State* s) noexcept nogil
    cdef bint _choose(self, const Room* room, const int16_t* x, amount_t units, uint64_t demand,
                      State* after) except -1
    cdef int _kind_of(self, bytes made) except -1
    cdef bint _is_refused(self, const Room* room, const int16_t* x) except -1
    cdef int _measure(self, int kind) except -1
    cdef int _extend(self, _Ways ways, int kind, int16_t* x, int c) except -1
    cdef int _counts(self, counts, int16_t* x) except -1
    cdef int _check_role(self, int role) except -1
