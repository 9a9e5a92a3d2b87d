"""The tables of one shape: a node's GPU graph and what is computed of its sets of GPUs."""
from ext_core.ints cimport int64_t, int8_t, mask_t, milli_t

cdef enum:                  # device plugins
    NVIDIA = 0
    AMD = 1
    ARBITRARY = 2           # any free GPUs
    RELAY = 3               # ours, in the place of any vendor's: it hands out what choice() returns
    FIRST = 4               # kube-scheduler's allocator (DRA), over slices that list the GPUs in the order of their ids
    UNORDERED = 5           # the same allocator, over slices in another order: any free GPUs

cdef enum:                  # what a pod asks of the NICs of its GPUs
    NICS_IGNORED = 0
    NICS_PREFERRED = 1      # of sets with equal links the one where more GPUs have a NIC of their own
    NICS_REQUIRED = 2       # each GPU has one

cdef enum:
    MOST_NICS = 64

cdef enum:
    UNKNOWN_LINKS = -1      # what certainty() answers
    IMPOSSIBLE = 0
    POSSIBLE = 1
    CERTAIN = 2

cdef struct Choice:
    mask_t gpus             # the best free set of that size
    milli_t ring            # its ring_links x 1000
    milli_t ring_best       # the highest ring_links x 1000 of that size were the whole node free
    milli_t left            # sum over sizes 2..N of the best ring x 1000 in what stays free
    milli_t left_before     # the same before the choice
    milli_t expected_ring   # mean ring x 1000 of what the device plugin hands out; -1 = not predictable

cdef struct Cell:           # one (free set, size) of a shape; filled when first asked for
    Choice choice
    milli_t worst           # the lowest ring x 1000 of all free sets of that size
    int crash               # how likely the plugin crashes over it, millionths, rounded up; -1 = not predictable
    int8_t handed           # IMPOSSIBLE, POSSIBLE, CERTAIN from the plugin's rule; UNKNOWN_LINKS = not predictable
    int8_t filled

cdef struct NicCell:        # one (free set, size) as pods see it that look at NICs; filled when first asked for
    mask_t preferred        # the set for NICS_PREFERRED
    mask_t required         # the set for NICS_REQUIRED: all its GPUs have NICs of their own, where there is such a set
    int expected            # mean part of the GPUs that get one by the plugin's rule, millionths; -1 = not predictable
    int8_t handed           # IMPOSSIBLE, POSSIBLE, CERTAIN that all get one by the plugin's rule; UNKNOWN_LINKS
    int8_t sets             # the same of all free sets of that size: none, some or each of them
    int8_t filled

cdef struct Splits:         # NVIDIA's splits into sets of one size; filled as they are asked for
    int *most               # [set] 1 + the highest sum of points of its splits; 0 = not known yet
    int *peak               # [set] 1 + the most points of one set in those that reach it; 0 = not known yet

cdef struct Shape:          # 2^N entries in each table, indexed by a set of GPUs
    int gpus
    int plugin
    bint points_known       # `points` is what the plugin really computes
    double gbps
    milli_t *ring           # [set] ring_links x 1000
    int8_t *proved          # [set] 0 = `ring` is a lower bound
    milli_t *top            # [set, size 0..N] highest ring of the subsets of that size
    milli_t *left           # [set] sum of `top` over sizes 2..N
    int64_t *ways           # [set] sum of `ring` over all subsets
    int *future             # [set] what pods of random sizes get out of it (fill_future); 0 above 12 GPUs
    int *near               # [set] PCIe or NUMA locality: the sum over its pairs
    int *points             # [set] what the device plugin's rule computes for it
    mask_t *adjacent        # [gpu] GPUs with a link to it
    Cell *cells             # [set, size 0..N]
    milli_t *nics           # [set] how many of its GPUs can have a NIC of their own (fill_nics); NULL = NICs unknown
    NicCell *nic_cells      # [set, size 0..N]; NULL likewise
    Splits splits[17]       # [size]
