"""A node's GPU graph, interned once as a *shape*, and what can be asked about its sets of GPUs.

Everything that costs time is computed when a shape is interned (ring_links of every set, the best ring of
every size inside every set) or when a (free set, size) is first asked for; later every answer is one lookup.
A cluster has a handful of shapes and thousands of nodes.

Threads: interning needs the GIL; best() and certainty() fill cells, so one caller at a time.
"""
from collections import namedtuple
from itertools import combinations
from math import isfinite

from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from libc.math cimport ceil, floor
from libc.stdint cimport int64_t
from libc.stdlib cimport free as c_free

from ext_core.device_plugin cimport Outlook, draw_all, foresee, pair_points, predictable, splits
from ext_core.ints cimport MOST_GPUS, int8_t, mask_t, milli_t, uint64_t
from ext_core.masks cimport earlier, first_of, lowest, lowest_of, popcount
from ext_core.nics cimport fill_cell, fill_nics
from ext_core.order cimport compare
from ext_core.rings cimport fill_pairs, fill_totals
from ext_core.shape cimport (
    AMD, ARBITRARY, CERTAIN, FIRST, IMPOSSIBLE, MOST_NICS, NICS_IGNORED, NICS_PREFERRED, NICS_REQUIRED, NVIDIA,
    POSSIBLE, RELAY, UNKNOWN_LINKS, UNORDERED, Cell, Choice, NicCell, Shape,
)

cdef enum:
    MOST_LINKS = 1000        # of one pair; keeps every sum inside milli_t
    MOST_SHAPES = 512        # each takes 0.1 MB with 8 GPUs
    MOST_LARGE = 16          # of more than 8 GPUs; each takes some 10 MB with 16
    MOST_FUTURE = 12         # GPUs up to which `future` is computed: 3^N steps

NIC_MODES = {"ignore": NICS_IGNORED, "preferred": NICS_PREFERRED, "required": NICS_REQUIRED}
PLUGINS = {"nvidia": NVIDIA, "amd": AMD, "arbitrary": ARBITRARY, "relay": RELAY, "first": FIRST,
           "unordered": UNORDERED}

_Graph = namedtuple("_Graph", "links gpu_total pcie numa plugin gbps")
Chosen = namedtuple("Chosen", "gpus ring ring_best left left_before expected_ring")


cdef void describe(const Shape *s, mask_t free, int k, mask_t gpus, Choice *choice) noexcept nogil:
    choice.gpus = gpus
    choice.ring = s.ring[gpus]
    choice.ring_best = s.top[(((<mask_t>1 << s.gpus) - 1)) * (s.gpus + 1) + k]
    choice.left = s.left[free ^ gpus]
    choice.left_before = s.left[free]


cdef void fill(Shape *s, mask_t free, int k, Cell *cell) noexcept nogil:
    cdef mask_t best = 0, sub = free
    cdef int order
    cdef milli_t worst = -1
    cdef Outlook outlook
    while sub:
        if popcount(sub) == k:
            if worst < 0 or s.ring[sub] < worst:
                worst = s.ring[sub]
            order = 1 if best == 0 else compare(s, free, sub, best, NICS_IGNORED)
            if order > 0 or (order == 0 and earlier(sub, best)):
                best = sub
        sub = (sub - 1) & free
    describe(s, free, k, best, &cell.choice)
    cell.worst = worst
    outlook.worth, outlook.enough, outlook.planned = s.ring, 1 if k > 1 else 0, best
    if foresee(s, free, k, &outlook):
        cell.choice.expected_ring = <milli_t>floor(outlook.expected + 0.5 + 1e-6)
        cell.crash = <int>ceil(1e6 * outlook.crash - 1e-6)
        cell.handed = <int8_t>outlook.handed
    else:
        cell.crash = -1 if splits(s, popcount(free), k) else 0
        cell.handed = UNKNOWN_LINKS
        # Where all sets are equally good, the rule of the plugin does not matter.
        cell.choice.expected_ring = worst if worst == cell.choice.ring else -1
    cell.filled = 1


cdef void free_shape(Shape *s) noexcept:
    cdef int k
    if s is not NULL:
        for k in range(s.gpus + 1):
            c_free(s.splits[k].most)
            c_free(s.splits[k].peak)
        PyMem_Free(s.future)
        PyMem_Free(s.ring)
        PyMem_Free(s.proved)
        PyMem_Free(s.top)
        PyMem_Free(s.left)
        PyMem_Free(s.ways)
        PyMem_Free(s.near)
        PyMem_Free(s.points)
        PyMem_Free(s.adjacent)
        PyMem_Free(s.cells)
        PyMem_Free(s.nics)
        PyMem_Free(s.nic_cells)
        PyMem_Free(s)


cdef Shape* new_shape(int gpus) except NULL:
    cdef size_t sets = <size_t>1 << gpus
    cdef Shape *s = <Shape *>PyMem_Calloc(1, sizeof(Shape))
    if s is NULL:
        raise MemoryError
    s.gpus = gpus
    s.ring = <milli_t *>PyMem_Calloc(sets, sizeof(milli_t))
    s.proved = <int8_t *>PyMem_Calloc(sets, sizeof(int8_t))
    s.top = <milli_t *>PyMem_Calloc(sets * (gpus + 1), sizeof(milli_t))
    s.left = <milli_t *>PyMem_Calloc(sets, sizeof(milli_t))
    s.ways = <int64_t *>PyMem_Calloc(sets, sizeof(int64_t))
    s.future = <int *>PyMem_Calloc(sets, sizeof(int))
    s.near = <int *>PyMem_Calloc(sets, sizeof(int))
    s.points = <int *>PyMem_Calloc(sets, sizeof(int))
    s.adjacent = <mask_t *>PyMem_Calloc(gpus, sizeof(mask_t))
    s.cells = <Cell *>PyMem_Calloc(sets * (gpus + 1), sizeof(Cell))   # untouched pages cost nothing
    if (s.ring is NULL or s.proved is NULL or s.top is NULL or s.left is NULL or s.ways is NULL or s.near is NULL
            or s.future is NULL or s.points is NULL or s.adjacent is NULL or s.cells is NULL):
        free_shape(s)
        raise MemoryError
    return s


cdef void fill_sums(Shape *s, const int *near, const int *points) noexcept nogil:
    """What follows from `ring` and from the pairs' locality and points: top, left, ways, near, points."""
    cdef int gpus = s.gpus
    cdef int width = gpus + 1
    cdef int size, k, a
    cdef mask_t group, rest, one
    cdef milli_t *row
    for group in range(1, <mask_t>1 << gpus):
        size = popcount(group)
        row = s.top + group * width
        rest = group
        while rest:
            one = lowest(rest)
            rest ^= one
            for k in range(2, size):
                row[k] = max(row[k], s.top[(group ^ one) * width + k])
        row[size] = s.ring[group]
        for k in range(2, gpus + 1):
            s.left[group] += row[k]
        s.ways[group] = s.ring[group]
        one = lowest(group)
        a = first_of(one)
        rest = group ^ one
        s.near[group] = s.near[rest]
        s.points[group] = s.points[rest]
        while rest:
            s.near[group] += near[a * gpus + first_of(rest)]
            s.points[group] += points[a * gpus + first_of(rest)]
            rest &= rest - 1
    for a in range(gpus):                        # sums over subsets, one GPU at a time
        for group in range(<mask_t>1 << gpus):
            if group >> a & 1:
                s.ways[group] += s.ways[group ^ (<mask_t>1 << a)]


cdef void fill_future(Shape *s) noexcept nogil:
    """future: what pods of random sizes get out of a set, one after the other, until one does not fit.

    Each gets a best ring, and of equal ones that with the most future; it counts as a share (millionths) of the
    machine's best ring of that size. The mean over the sizes 1..N of the next pod.
    """
    cdef int gpus = s.gpus
    cdef int k
    cdef mask_t group, sub
    cdef milli_t ring[MOST_FUTURE + 1]
    cdef int later[MOST_FUTURE + 1]
    cdef const milli_t *best = s.top + ((<mask_t>1 << gpus) - 1) * (gpus + 1)
    cdef int64_t sum
    if gpus > MOST_FUTURE:
        return
    for group in range(1, <mask_t>1 << gpus):
        for k in range(gpus + 1):
            ring[k] = later[k] = -1
        sub = group
        while sub:
            k = popcount(sub)
            if s.ring[sub] > ring[k] or (s.ring[sub] == ring[k] and s.future[group ^ sub] > later[k]):
                ring[k] = s.ring[sub]
                later[k] = s.future[group ^ sub]
            sub = (sub - 1) & group
        sum = 0
        for k in range(1, popcount(group) + 1):
            sum += later[k]
            if best[k]:
                sum += <int64_t>1000000 * ring[k] // best[k]
        s.future[group] = <int>(sum // gpus)


def _matrix(name, rows, int gpus, int most):
    """The rows as tuples; ValueError unless N x N, whole numbers 0..most and symmetric."""
    matrix = tuple(tuple(row) for row in rows)
    if len(matrix) != gpus or any(len(row) != gpus for row in matrix):
        raise ValueError(f"{name}: {gpus} x {gpus} numbers are required")
    for i in range(gpus):
        for j in range(gpus):
            value = matrix[i][j]
            if type(value) is not int or not 0 <= value <= most:
                raise ValueError(f"{name}[{i}][{j}]: {value!r} is not a whole number from 0 to {most}")
            if matrix[j][i] != value:
                raise ValueError(f"{name}[{i}][{j}] is {value!r}, {name}[{j}][{i}] is {matrix[j][i]!r}")
    return matrix


cdef tuple _nic_sets(nics, int gpus):
    """The GPUs near each NIC that has any, sorted: which NIC is which does not matter."""
    for near in nics:
        if type(near) is not int or not 0 <= near < 1 << gpus:
            raise ValueError(f"nics: {near!r} is not a set of {gpus} GPUs")
    found = tuple(sorted([near for near in nics if near]))
    if len(found) > MOST_NICS:
        raise ValueError(f"nics: {len(found)} are more than {MOST_NICS}")
    return found


def _ids(gpus):
    return [i for i in range(MOST_GPUS) if gpus >> i & 1]


cdef class LinkShapes:
    """The shapes of a cluster. A shape is a small integer; 0 is the unknown one and answers None to everything."""

    def __cinit__(self):
        self.ids = {}
        self.count = 1
        self.large = 0
        self.planned = False
        self.shapes = <Shape **>PyMem_Calloc(1, sizeof(Shape *))
        if self.shapes is NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef int i
        if self.shapes is not NULL:
            for i in range(1, self.count):
                free_shape(self.shapes[i])
            PyMem_Free(self.shapes)

    def __len__(self):
        return self.count

    def intern(self, links, *, bint gpu_total, pcie, numa, str plugin, double gbps):
        """The shape's id; see links.pyi."""
        return self._intern(_Graph(links, gpu_total, pcie, numa, plugin, gbps), None)

    def intern_with_nics(self, nics, links, **graph):
        """The shape's id; see links.pyi."""
        return self._intern(_Graph(links, **graph), nics)

    cdef int _intern(self, graph, nics) except -1:
        links, pcie, numa = graph.links, graph.pcie, graph.numa
        cdef bint gpu_total = graph.gpu_total
        cdef str plugin = graph.plugin
        cdef double gbps = graph.gbps
        cdef int gpus
        cdef Shape *s
        cdef Shape **shapes
        cdef int counts[MOST_GPUS * MOST_GPUS]
        cdef int near[MOST_GPUS * MOST_GPUS]
        cdef int points[MOST_GPUS * MOST_GPUS]
        cdef uint64_t rails[MOST_GPUS]
        cdef int i, j, level, seen
        cdef bint same
        if plugin not in PLUGINS:
            raise ValueError(f"plugin: {plugin!r} is not one of {', '.join(PLUGINS)}")
        if not isfinite(gbps) or gbps < 0:
            raise ValueError(f"gbps: {gbps} is not a finite number from 0")
        if links is None:
            return 0
        gpus = <int>len(links)
        if not 1 <= gpus <= MOST_GPUS:
            raise ValueError(f"links: {gpus} GPUs are not from 1 to {MOST_GPUS}")
        links = _matrix("links", links, gpus, MOST_LINKS)
        for i in range(gpus):
            if links[i][i]:
                raise ValueError(f"links[{i}][{i}]: a GPU has no link to itself")
        if pcie is not None:
            pcie = _matrix("pcie", pcie, gpus, 5)
        if numa is not None:
            numa = tuple(numa)
            if len(numa) != gpus or any(type(node) is not int for node in numa):
                raise ValueError(f"numa: {gpus} whole numbers are required, -1 where unknown")
        if nics is not None:
            nics = _nic_sets(nics, gpus)
        key = links, gpu_total, pcie, numa, plugin, gbps, nics
        known = self.ids.get(key)
        if known is not None:
            return known
        if self.count > MOST_SHAPES or (gpus > 8 and self.large >= MOST_LARGE):
            return 0

        shapes = <Shape **>PyMem_Realloc(self.shapes, (self.count + 1) * sizeof(Shape *))
        if shapes is NULL:
            raise MemoryError
        self.shapes = shapes
        s = new_shape(gpus)
        try:
            s.gbps = gbps
            s.plugin = PLUGINS[plugin]
            s.points_known = (s.plugin in (ARBITRARY, RELAY, FIRST, UNORDERED)
                              or (s.plugin == NVIDIA and pcie is not None)
                              or (s.plugin == AMD and numa is not None and min(numa) >= 0))
            for i in range(gpus):
                s.adjacent[i] = 0
                for j in range(gpus):
                    counts[i * gpus + j] = links[i][j]
                    if links[i][j]:
                        s.adjacent[i] |= <mask_t>1 << j
                    level = pcie[i][j] if pcie is not None else 0
                    same = numa is not None and numa[i] == numa[j] and numa[i] >= 0
                    near[i * gpus + j] = level if pcie is not None else same
                    # NVIDIA's plugin does not see links into a switch
                    seen = 0 if gpu_total and s.plugin == NVIDIA else links[i][j]
                    points[i * gpus + j] = pair_points(s, level, seen, same)
            if gpu_total:
                fill_totals(s, counts)
            else:
                fill_pairs(s, counts)
            fill_sums(s, near, points)
            fill_future(s)
            if nics is not None:
                for i in range(gpus):
                    rails[i] = 0
                    for j in range(<int>len(nics)):
                        rails[i] |= <uint64_t>(nics[j] >> i & 1) << j
                fill_nics(s, rails)
        except BaseException:
            free_shape(s)
            raise
        self.shapes[self.count] = s
        self.ids[key] = self.count
        self.count += 1
        self.large += gpus > 8
        self.nics_known |= nics is not None
        return self.count - 1

    # ---- for kernels

    cdef Cell* cell(self, int shape, mask_t free, int k) noexcept nogil:
        cdef Shape *s
        cdef Cell *cell
        if shape <= 0 or shape >= self.count:
            return NULL
        s = self.shapes[shape]
        free &= (<mask_t>1 << s.gpus) - 1
        if k < 1 or k > popcount(free):
            return NULL
        cell = s.cells + free * (s.gpus + 1) + k
        if not cell.filled:
            fill(s, free, k, cell)
        return cell

    cdef const Choice* best(self, int shape, mask_t free, int k) noexcept nogil:
        cdef Cell *cell = self.cell(shape, free, k)
        return NULL if cell is NULL else &cell.choice

    cdef int certainty(self, int shape, mask_t free, int k, int unknown, int containers,
                       bint planned) noexcept nogil:
        cdef Cell *cell
        if 0 < shape < self.count:
            free &= (<mask_t>1 << self.shapes[shape].gpus) - 1
        if k < 1 or k > popcount(free) - unknown:
            return IMPOSSIBLE
        if k == 1:
            return CERTAIN
        if shape <= 0 or shape >= self.count:
            return UNKNOWN_LINKS
        cell = self.cell(shape, free, k)
        # A plugin is asked for one container after the other; a plan names the GPUs of all of them.
        if unknown == 0 and self.follows(shape, planned):
            return CERTAIN if cell.choice.ring > 0 else IMPOSSIBLE
        if unknown == 0 and containers == 1 and cell.handed != UNKNOWN_LINKS:
            return cell.handed
        if cell.worst > 0:
            return CERTAIN
        return POSSIBLE if cell.choice.ring > 0 else IMPOSSIBLE

    cdef mask_t pick(self, int shape, mask_t free, int k, int nics) noexcept nogil:
        cdef Cell *cell = self.cell(shape, free, k)
        cdef NicCell *with_nics
        if cell is NULL:
            return 0
        if nics == NICS_IGNORED or self.shapes[shape].nics is NULL:
            return cell.choice.gpus
        with_nics = self.nic_cell(shape, free, k)
        return with_nics.required if nics == NICS_REQUIRED else with_nics.preferred

    cdef NicCell* nic_cell(self, int shape, mask_t free, int k) noexcept nogil:
        cdef Shape *s
        cdef NicCell *found
        cdef Cell *cell = self.cell(shape, free, k)
        if cell is NULL or self.shapes[shape].nics is NULL:
            return NULL
        s = self.shapes[shape]
        free &= (<mask_t>1 << s.gpus) - 1
        found = s.nic_cells + free * (s.gpus + 1) + k
        if not found.filled:
            fill_cell(s, free, k, cell.choice.gpus, found)
        return found

    cdef int nics_of(self, int shape, mask_t gpus) noexcept nogil:
        cdef Shape *s
        if shape <= 0 or shape >= self.count:
            return -1
        s = self.shapes[shape]
        return -1 if s.nics is NULL else s.nics[gpus & ((<mask_t>1 << s.gpus) - 1)]

    cdef int nics_certainty(self, int shape, mask_t free, int k, int unknown, int containers,
                            bint linked, bint planned) noexcept nogil:
        cdef Shape *s
        cdef NicCell *cell
        if shape <= 0 or shape >= self.count or self.shapes[shape].nics is NULL:
            return UNKNOWN_LINKS
        s = self.shapes[shape]
        free &= (<mask_t>1 << s.gpus) - 1
        if k < 1 or k > popcount(free) - unknown:
            return IMPOSSIBLE
        cell = self.nic_cell(shape, free, k)
        if unknown == 0 and self.follows(shape, planned):
            if s.nics[cell.required] < k or (linked and k > 1 and s.ring[cell.required] == 0):
                return IMPOSSIBLE
            return CERTAIN
        if unknown == 0 and containers == 1 and cell.handed != UNKNOWN_LINKS:
            return cell.handed
        return cell.sets

    cdef double nics_expected(self, int shape, mask_t free, int k, int nics, bint planned) noexcept nogil:
        cdef NicCell *cell = self.nic_cell(shape, free, k)
        if cell is NULL:
            return 0.0
        if cell.expected >= 0 and not self.follows(shape, planned):
            return cell.expected / 1e6
        return <double>self.shapes[shape].nics[cell.required if nics == NICS_REQUIRED else cell.preferred] / k

    cdef bint all_linked(self, int shape, mask_t free, int k) noexcept nogil:
        cdef Cell *cell = self.cell(shape, free, k)
        return k == 1 or (cell is not NULL and cell.worst > 0)

    cdef milli_t ring_of(self, int shape, mask_t gpus) noexcept nogil:
        if shape <= 0 or shape >= self.count:
            return 0
        return self.shapes[shape].ring[gpus & ((<mask_t>1 << self.shapes[shape].gpus) - 1)]

    cdef milli_t left_of(self, int shape, mask_t free) noexcept nogil:
        if shape <= 0 or shape >= self.count:
            return 0
        return self.shapes[shape].left[free & ((<mask_t>1 << self.shapes[shape].gpus) - 1)]

    cdef int64_t ways_of(self, int shape, mask_t free) noexcept nogil:
        if shape <= 0 or shape >= self.count:
            return 0
        return self.shapes[shape].ways[free & ((<mask_t>1 << self.shapes[shape].gpus) - 1)]

    cdef int crash_of(self, int shape, mask_t free, int k) noexcept nogil:
        cdef Cell *cell = self.cell(shape, free, k)
        return 0 if cell is NULL else cell.crash

    cdef milli_t top_of(self, int shape, mask_t free, int k) noexcept nogil:
        cdef Shape *s
        if shape <= 0 or shape >= self.count:
            return 0
        s = self.shapes[shape]
        if k < 0 or k > s.gpus:
            return 0
        return s.top[(free & ((<mask_t>1 << s.gpus) - 1)) * (s.gpus + 1) + k]

    cdef bint prefers(self, int shape, mask_t free, mask_t a, mask_t b, int nics) noexcept nogil:
        cdef Shape *s = self.shapes[shape]
        cdef int order = compare(s, free, a, b, NICS_IGNORED if s.nics is NULL else nics)
        return order > 0 or (order == 0 and a != b and earlier(a, b))

    cdef bint follows(self, int shape, bint planned) noexcept nogil:
        cdef int plugin
        if shape <= 0 or shape >= self.count:
            return False
        plugin = self.shapes[shape].plugin
        return self.planned if plugin == RELAY else planned and (plugin == FIRST or plugin == UNORDERED)

    # ---- for Python; what each answers stands in links.pyi

    cdef Shape* known(self, int shape) except NULL:
        if not 0 < shape < self.count:
            raise KeyError(f"no shape {shape}")
        return self.shapes[shape]

    def gpus(self, int shape):
        return None if shape == 0 else self.known(shape).gpus

    def relay(self, int shape):
        return None if shape == 0 else self.known(shape).plugin == RELAY

    def follows_plans(self, int shape, bint planned=False):
        return self.follows(shape, planned)

    def gbps(self, int shape):
        return None if shape == 0 else self.known(shape).gbps

    def ring(self, int shape, gpus):
        return None if shape == 0 else self.known(shape).ring[self.inside(shape, gpus)]

    def proved(self, int shape, gpus):
        return None if shape == 0 else bool(self.known(shape).proved[self.inside(shape, gpus)])

    def linked(self, int shape, gpus):
        if shape == 0:
            return True if int(gpus).bit_count() == 1 else None
        cdef mask_t group = self.inside(shape, gpus)
        return popcount(group) == 1 or self.known(shape).ring[group] > 0

    def top(self, int shape, gpus, int k):
        return None if shape == 0 else self.top_of(shape, self.inside(shape, gpus), k)

    def left(self, int shape, gpus):
        return None if shape == 0 else self.known(shape).left[self.inside(shape, gpus)]

    def future(self, int shape, gpus):
        return None if shape == 0 else self.known(shape).future[self.inside(shape, gpus)]

    def crash(self, int shape, free, int k):
        if shape == 0:
            return None
        self.known(shape)
        cdef Cell *cell = self.cell(shape, self.inside(shape, free), k)
        return 0 if cell is NULL else None if cell.crash < 0 else cell.crash

    def ways(self, int shape, gpus):
        return None if shape == 0 else self.known(shape).ways[self.inside(shape, gpus)]

    def islands(self, int shape):
        if shape == 0:
            return None
        cdef Shape *s = self.known(shape)
        cdef mask_t group, common, rest
        found = []
        for group in range(1, <mask_t>1 << s.gpus):
            # `common`: the GPUs linked to all of the group, each of its own counted as linked to itself
            common = (<mask_t>1 << s.gpus) - 1
            rest = group
            while rest:
                common &= s.adjacent[first_of(rest)] | lowest(rest)
                rest &= rest - 1
            if common == group and popcount(group) >= 2:
                found.append(group)
        return sorted(found, key=_ids)

    def components(self, int shape):
        if shape == 0:
            return None
        cdef Shape *s = self.known(shape)
        cdef mask_t todo = (<mask_t>1 << s.gpus) - 1
        cdef mask_t group, edge
        found = []
        while todo:
            group = edge = lowest(todo)
            while edge:
                group |= edge
                edge = (edge & (edge - 1)) | (s.adjacent[first_of(edge)] & ~group)
            found.append(group)
            todo &= ~group
        return found

    def objective(self, int shape, free, gpus):
        if shape == 0:
            return None
        cdef Shape *s = self.known(shape)
        cdef mask_t whole = self.inside(shape, free)
        cdef mask_t group = self.inside(shape, gpus)
        if group & ~whole:
            raise ValueError(f"{_ids(group & ~whole)} are not free")
        cdef mask_t stays = whole ^ group
        return (s.ring[group], s.left[stays], s.future[stays] + s.future[group], s.ways[stays] + s.ways[group],
                s.near[group], s.near[stays])

    def choice(self, int shape, free, int k):
        if shape == 0:
            return None
        self.known(shape)
        cdef Cell *cell = self.cell(shape, self.inside(shape, free), k)
        return None if cell is NULL else Chosen(**cell.choice)

    def equals(self, int shape, free, int k):
        if shape == 0:
            return None
        cdef Shape *s = self.known(shape)
        cdef mask_t whole = self.inside(shape, free)
        cdef Cell *cell = self.cell(shape, whole, k)
        if cell is NULL:
            return []
        return sorted(
            [sub for sub in _of_size(whole, k) if compare(s, whole, sub, cell.choice.gpus, NICS_IGNORED) == 0],
            key=_ids,
        )

    def runner_up(self, int shape, free, int k):
        if shape == 0:
            return None
        cdef Shape *s = self.known(shape)
        cdef mask_t whole = self.inside(shape, free)
        cdef mask_t second = 0, sub
        cdef Cell *cell = self.cell(shape, whole, k)
        cdef Choice other
        cdef int order
        if cell is NULL:
            return None
        for sub in _of_size(whole, k):           # in the order of their ids: the first among equals stays
            if compare(s, whole, sub, cell.choice.gpus, NICS_IGNORED) < 0:
                order = 1 if second == 0 else compare(s, whole, sub, second, NICS_IGNORED)
                if order > 0:
                    second = sub
        if second == 0:
            return None
        other = cell.choice
        describe(s, whole, k, second, &other)
        return Chosen(**other)

    def certain(self, int shape, free, int k, int unknown=0, int containers=1, bint planned=False):
        if shape != 0:
            free = self.inside(shape, free)
        return self.certainty(shape, free, k, unknown, containers, planned)

    def nics(self, int shape, gpus):
        if shape == 0 or self.known(shape).nics is NULL:
            return None
        return self.nics_of(shape, self.inside(shape, gpus))

    def with_nics(self, int shape, free, int k, str nics):
        cdef int mode = NIC_MODES[nics]
        if shape == 0:
            return None
        cdef mask_t found = self.pick(shape, self.inside(shape, free), k, mode)
        return found if found else None

    def certain_nics(self, int shape, free, ask, int unknown=0, bint linked=False):
        if shape != 0:
            free = self.inside(shape, free)
        return self.nics_certainty(shape, free, ask.wanted, unknown, ask.containers, linked, ask.planned)

    def expected_nics(self, int shape, free, int k, str nics, bint planned=False):
        cdef int mode = NIC_MODES[nics]
        return 0.0 if shape == 0 else self.nics_expected(shape, self.inside(shape, free), k, mode, planned)

    def handed_out(self, int shape, free, int k):
        if shape == 0:
            return None
        cdef Shape *s = self.known(shape)
        cdef mask_t whole = self.inside(shape, free)
        cdef int n = popcount(whole)
        cdef mask_t i
        cdef double *found
        if not 1 <= k <= n:
            return []
        if s.plugin == RELAY:
            return [(self.cell(shape, whole, k).choice.gpus, 1.0)]
        if s.plugin == FIRST:
            return [(lowest_of(whole, k), 1.0)]
        if not predictable(s, n, k):
            return None
        if splits(s, n, k):
            found = draw_all(s, whole, k)
            if found is NULL:
                return None
            shares = [(i, round(found[i], 9)) for i in _of_size(whole, k) if found[i] > 0.0]
            c_free(found)
            return shares
        sets = list(_of_size(whole, k))
        least = min([s.points[i] for i in sets])
        lightest = [i for i in sets if s.points[i] == least]
        return [(i, round(1.0 / len(lightest), 9)) for i in lightest]

    cdef mask_t inside(self, int shape, object gpus) except? 0:
        """The mask, checked: ValueError for a GPU that the shape does not have."""
        cdef Shape *s = self.known(shape)
        if not 0 <= gpus < 1 << s.gpus:
            raise ValueError(f"{gpus!r} is not a set of {s.gpus} GPUs")
        return gpus


def _of_size(gpus, k):
    """The sets of k among `gpus`, in the order of their ids."""
    return (sum(1 << i for i in ids) for ids in combinations(_ids(gpus), k))
