from ext_core.ints cimport MOST_GPUS, amount_t, as_count, mask_t, row_t, int32_t, int64_t, uint8_t
from ext_core.links cimport LinkShapes
from ext_core.masks cimport popcount

cdef enum:
    CPU = 0        # milli-CPU
    MEMORY = 1     # bytes
    SLOTS = 2      # pod slots
    FIRST_GPU = 3  # the first GPU resource; the others follow in the order of the settings

cdef enum:
    RECENT = 1024  # changes of rows that are remembered; a power of two

cdef enum:
    AWAY = 2          # flags of a node: the device plugin has offered nothing for a moment only: it may be restarting
    SCHEDULABLE = 4   # not cordoned
    # bit r, for r = FIRST_GPU to 7: a DeviceClass (DRA) may serve resource r here

cdef enum:
    TERMINATING = 1   # flags of a pod: deletionTimestamp is set
    SPARED = 2        # never a victim (DaemonSet, static and mirror pods)
    PROTECTED = 4     # `until` is above 0; with SAVED written by `put`: a scan of many pods does not read those columns
    SAVED = 8         # `saved` is above 0
    SAVES = 64        # `saves` or `asked` is not -1
    DEVICES = 16      # its claims hold devices: a victim only for pods whose devices the queue allocates, by EVERY
    LINKED = 32       # it requires linked GPUs


cdef enum:
    NOT_ASKED = 750   # `ignores` of a pod that is not asked to save its work: rows.NOT_ASKED


cdef enum:
    EVERY = 2147483647  # a priority: the caller sorts the possible victims out itself


cdef class NodeTable:
    cdef readonly int resources     # R, number of rows of `alloc`
    cdef readonly LinkShapes shapes  # what the ids in `shape` stand for
    cdef readonly int height        # rows handed out so far; every row is < height
    cdef int capacity
    cdef object owned               # keeps the memory of the views below alive
    cdef amount_t[:, ::1] alloc     # [R, row] allocatable
    cdef amount_t[:, ::1] used      # [R, row] requested by the pods that are bound to the node
    cdef amount_t[:, ::1] claim     # [R, row] claimed by assumed and nominated pods; set for one decision
    cdef amount_t[:, ::1] tentative  # [R, row] the part of claim that belongs to assumed pods
    cdef amount_t[:, ::1] evictable  # [R, row] the part of tentative whose pods may be victims; set for one decision
    cdef int32_t[::1] gpu           # [row] resource index of the node's GPUs; -1 = none
    cdef int32_t[::1] shape         # [row] link shape of the GPUs; 0 = unknown
    cdef mask_t[::1] healthy        # [row] GPUs that exist and are healthy
    cdef mask_t[::1] sure           # [row] GPUs that are known to be held as a whole
    cdef mask_t[::1] likely         # [row] GPUs that are probably held (planned, inferred)
    cdef mask_t[::1] wanted         # [row] GPUs that claims will probably take; set for one decision
    cdef int32_t[::1] unknown       # [row] GPUs held at unknown positions
    cdef int32_t[::1] pending       # [row] part of likely + unknown that an admission under way will make known
    cdef int32_t[::1] order         # [row] rank of the node's name; the last tie-break
    cdef uint8_t[::1] flags         # [row] AWAY | SCHEDULABLE | 1 << r
    cdef int32_t[::1] units         # [row] units of the node's GPU resource that are one GPU
    cdef int32_t[::1] model         # [row] kind of machine, 0..63
    cdef mask_t[::1] begun          # [row] GPUs of which a part is held or asked
    cdef int32_t[:, ::1] part       # [16, row] units of GPU i held by pods that hold less than the whole of it
    cdef int32_t[:, ::1] asked      # [16, row] units of GPU i that claims will probably take; set for one decision
    cdef int64_t[::1] version       # [row] rises with every change of the row; no two rows and states share one
    cdef int64_t clock              # the version given last
    cdef int64_t stated             # the version that `set_node`, `add` or `clear` gave last
    cdef row_t[RECENT] recent       # [version % RECENT] the row that got it
    cdef list touched               # rows whose claim is not 0

    cdef int grow(self, int rows) except -1
    cdef void _begin(self, int row) noexcept
    cdef inline void touch(self, row_t row) noexcept nogil:
        self.clock += 1
        self.version[row] = self.clock
        self.recent[self.clock & (RECENT - 1)] = row
    cdef inline mask_t open_gpus(self, row_t row) noexcept nogil:
        """GPUs that no pod holds, or will probably take, as a whole; pods may hold parts of them."""
        return (self.healthy[row] & ~(self.sure[row] | self.likely[row] | self.wanted[row])) & 0xFFFF
    cdef inline amount_t left_on(self, row_t row, int gpu) noexcept nogil:
        """Units that are left of an open GPU; negative where pods report more than the GPU has."""
        return <amount_t>self.units[row] - self.part[gpu, row] - self.asked[gpu, row]
    cdef inline mask_t whole_gpus(self, row_t row) noexcept nogil:
        """GPUs that are wholly free."""
        return self.open_gpus(row) & ~self.begun[row]
    cdef inline bint served(self, int resource, row_t row) noexcept nogil:
        """Whether a DeviceClass may serve the resource on a node that offers none itself."""
        return self.alloc[resource, row] == 0 and resource < 8 and self.flags[row] >> resource & 1
    cdef inline int claimed(self, int resource, row_t row) noexcept nogil:
        """GPUs that claims want; a number beyond any node's is cut."""
        return as_count(self.claim[resource, row])
    cdef inline mask_t named(self, LinkShapes shapes, int resource, row_t row) noexcept nogil:
        """The GPUs of the claims, where each names its own, bind writes these, and the node hands out what is written;
        else none: a GPU at an unknown position could be one of them."""
        cdef mask_t free = self.healthy[row] & ~self.sure[row]
        cdef mask_t known = self.wanted[row] & free
        if known == 0:  # nearly always
            return 0
        if self.gpu[row] != resource or self.units[row] > 1 or not shapes.follows(self.shape[row], False):
            return 0
        if self.unknown[row] > 0 or self.likely[row] & free or self.claim[resource, row] != popcount(known):
            return 0
        return known if popcount(self.healthy[row]) <= self.alloc[resource, row] else 0
    cdef inline amount_t free_count(self, int resource, row_t row) noexcept nogil:
        return self.alloc[resource, row] - self.used[resource, row] - self.claim[resource, row]


cdef inline int64_t work_lost(
    int64_t gpus, int64_t start, int64_t saved, int64_t restart, int64_t saves, int64_t ignores, int64_t now
) noexcept nogil:
    """`saves`: seconds in which the work is saved before the end; -1 = it is not; `ignores`: how likely it is lost all
    the same, in thousandths."""
    cdef int64_t since = saved if saved > 0 else start
    cdef int64_t work = gpus * (now - since) // 1000 if now > since else 0
    cdef int64_t more
    if 0 <= saves and gpus * saves < work:
        more = work - gpus * saves
        work = gpus * saves + more // 1000 * ignores + more % 1000 * ignores // 1000
    return work + gpus * restart


cdef class PodTable:
    cdef readonly int resources
    cdef readonly int height
    cdef int capacity
    cdef object owned
    cdef amount_t[:, ::1] amounts   # [R, pod] what the pod holds
    cdef int64_t[::1] gpus          # [pod] of all GPU resources
    cdef int32_t[::1] priority
    cdef row_t[::1] node            # [pod] row of its node; -1 = none, or the pod row is free
    cdef mask_t[::1] mask           # [pod] GPU positions that it surely holds
    cdef int32_t[::1] unsure        # [pod] GPUs that it holds at positions that are not certain
    cdef uint8_t[::1] flags         # TERMINATING | SPARED | DEVICES | LINKED, PROTECTED | SAVED | SAVES
    cdef int64_t[::1] start         # [pod] when it started, milliseconds since 1970; far in the future while it has not
    cdef int64_t[::1] saved         # [pod] last checkpoint, milliseconds since 1970; 0 = none is known
    cdef int32_t[::1] restart       # [pod] seconds that a restart costs
    cdef int32_t[::1] grace         # [pod] seconds of terminationGracePeriodSeconds
    cdef int64_t[::1] until         # [pod] never a victim before then, milliseconds since 1970; 0 = not protected
    cdef int32_t[::1] saves         # [pod] seconds in which it saves its work once it is told to end; -1 = it does not
    cdef int32_t[::1] asked         # [pod] seconds in which it saves its work when it is asked to; -1 = it cannot be
    cdef int32_t[::1] ignores       # [pod] how likely it does not save all the same, in thousandths
    cdef public int64_t now         # the time at which `until` is judged, milliseconds since 1970
    cdef int32_t[::1] gang          # [pod] id of its gang; 0 = none
    cdef int32_t[::1] budgets       # [pod] id of the set of disruption budgets that it is in; 0 = none
    cdef int32_t[::1] ask           # [pod] id of what it asks for and where it may run; 0 = unknown
    cdef row_t[::1] next, prev      # the chain of a node's pods
    cdef row_t[::1] head            # [node row] first pod of the chain; -1 = none
    cdef amount_t[:, ::1] low       # [R, node row] sum of the chain's amounts: of the lowest LOW_BITS of each,
    cdef amount_t[:, ::1] high      # [R, node row] and of the rest. So no number of pods makes a sum wrap
    cdef int head_capacity
    cdef public object names        # [pod] (namespace, name), where the writer keeps them; the last tie-break

    cdef int grow(self, int pods) except -1
    cdef int grow_heads(self, int nodes) except -1
    cdef void _count(self, row_t pod, row_t node, int times) noexcept
    cdef inline bint may_go(self, row_t pod, int priority, int64_t now_ms) noexcept nogil:
        """Whether a preemptor of that priority may evict the pod. A terminating pod is not protected."""
        cdef uint8_t flags = self.flags[pod]
        if self.priority[pod] >= priority or flags & SPARED or (flags & DEVICES and priority != EVERY):
            return False
        return not flags & PROTECTED or flags & TERMINATING or self.until[pod] <= now_ms
    cdef inline int64_t saves_in(self, row_t pod, int most_wait) noexcept nogil:
        """Seconds in which it saves its work before it ends, for a preemptor that waits so long; -1 = it does not."""
        if not self.flags[pod] & SAVES:  # nearly always
            return -1
        cdef int32_t saves = self.saves[pod], asked = self.asked[pod]
        if self.ignores[pod] >= NOT_ASKED:
            return saves
        return asked if 0 <= asked <= most_wait and 0 < most_wait and (saves < 0 or asked < saves) else saves
    cdef inline int64_t work_lost(self, row_t pod, int64_t now_ms, int most_wait) noexcept nogil:
        """GPU-seconds since its last checkpoint, or start, or those in which it saves, and of its restart."""
        cdef int64_t saved = self.saved[pod] if self.flags[pod] & SAVED else 0
        if not self.flags[pod] & SAVES:  # nearly always
            return work_lost(self.gpus[pod], self.start[pod], saved, self.restart[pod], -1, 0, now_ms)
        return work_lost(
            self.gpus[pod], self.start[pod], saved, self.restart[pod], self.saves_in(pod, most_wait), self.ignores[pod],
            now_ms)
