"""A node's GPU graph, interned once as a *shape*, and what can be asked about its sets of GPUs.

Everything that costs time is computed when a shape is interned (ring_links of every set, the best ring of
every size inside every set) or when a (free set, size) is first asked for; later every answer is one lookup.
A cluster has a handful of shapes and thousands of nodes.

**ring_links(set)**: the most directed Hamiltonian cycles that fit into the set's links at once, as a linear
program: max sum x_c, where the cycles through the directed pair (i, j) add up to at most links[i][j].
Turning every cycle round shows that it equals max sum y_c over undirected cycles with at most 2 links[i][j]
on an edge, which is the form solved here. Two GPUs: their links. One GPU: 0, though it counts as linked.
With `gpu_total` (NVSwitch) a number is the GPU's total into the fabric: the lowest total in the set.

Threads: interning needs the GIL; best() and certainty() fill cells, so one caller at a time.
"""
from collections import namedtuple
from itertools import combinations
from math import isfinite

from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from libc.math cimport ceil, floor
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free as c_free
from libc.string cimport memset

from ext_core.ints cimport int8_t, mask_t, milli_t

cdef extern from *:
    int __builtin_popcount(unsigned int bits) noexcept nogil
    int __builtin_ctz(unsigned int bits) noexcept nogil

cdef enum:
    MOST_GPUS = 16
    MOST_LINKS = 1000        # of one pair; keeps every sum inside milli_t
    MOST_EDGES = 120         # 16 * 15 / 2
    MOST_CYCLES = 20000      # of one set; up to 8 GPUs there are at most 7! / 2 = 2520
    MOST_PIVOTS = 5000       # of one program
    MOST_FUTURE = 12         # GPUs up to which `future` is computed: 3^N steps
    PATIENCE = 25000000      # steps for one prediction of NVIDIA's choice; beyond, it is unknown
    SAFE_SETS = 6            # sets of a split up to which NVIDIA's plugin keeps it intact
    KEPT_SETS = 5            # the first sets of a larger split, which it keeps intact too

# Work allowed for the programs of one shape (about half a second). What is left over then gets one cycle
# instead of the optimum and is marked as a lower bound; no machine in the catalogue comes near it.
cdef int64_t BUDGET = 400_000_000

cdef enum:
    NVIDIA = 0
    AMD = 1
    ARBITRARY = 2
    RELAY = 3                # ours, in the place of any vendor's: it hands out what choice() says

PLUGINS = {"nvidia": NVIDIA, "amd": AMD, "arbitrary": ARBITRARY, "relay": RELAY}

Chosen = namedtuple("Chosen", "gpus ring ring_best left left_before expected_ring")


cdef inline mask_t lowest(mask_t gpus) noexcept nogil:
    return gpus & (~gpus + 1)


cdef inline bint earlier(mask_t a, mask_t b) noexcept nogil:
    """Of two different sets of one size: do a's ids, ascending, come before b's?"""
    return (a & lowest(a ^ b)) != 0


# ---- ring_links: cycles, then the program over them

cdef struct Program:             # scratch of one linear program, allocated once an intern()
    int rows, columns, size      # edges of the set, cycles found, GPUs of the set
    int row[MOST_GPUS][MOST_GPUS]
    uint8_t *uses                # [cycle, 0..size): rows of its edges
    double *inverse              # [row, row] of the basis
    double value[MOST_EDGES]     # of the basic variables
    double price[MOST_EDGES]     # of the edges
    double column[MOST_EDGES]    # the entering column in terms of the basis
    int basic[MOST_EDGES]        # a cycle, or ~row for the unused part of an edge
    int64_t effort               # spent on this shape so far
    int64_t patience             # effort at which the search for cycles of one set ends


cdef void fill_reach(const mask_t *adjacent, int gpus, mask_t *reach) noexcept nogil:
    """reach[set] = the GPUs where a path through all of the set can end that begins at its lowest GPU."""
    cdef mask_t group, others, end, low
    reach[0] = 0
    for group in range(1, <mask_t>1 << gpus):
        low = lowest(group)
        reach[group] = low if group == low else 0
        others = group ^ low
        while others:
            end = lowest(others)
            others ^= end
            if reach[group ^ end] & adjacent[__builtin_ctz(end)]:
                reach[group] |= end


cdef bint list_cycles(
    Program *p, const mask_t *adjacent, const mask_t *reach, mask_t left, int end, int depth, int last, int most
) noexcept nogil:
    """Adds the undirected cycles that close a path through `left` ending at `end`; False when `most` are there.

    `reach` prunes every branch that cannot be completed. The rows of the edges behind `end` stand in the
    next free column. A cycle is kept in the one direction where its second GPU is below its last; with `last`
    above all GPUs, in both.
    """
    cdef mask_t low = lowest(left)
    cdef mask_t rest = left ^ (<mask_t>1 << end)
    cdef mask_t nexts
    cdef int other, i
    cdef uint8_t *uses = p.uses + p.columns * MOST_GPUS
    p.effort += 1
    if p.effort > p.patience:
        return False
    if rest == low:
        if end > last:
            return True
        uses[depth] = p.row[__builtin_ctz(low)][end]
        p.columns += 1
        if p.columns == most:
            return False
        for i in range(p.size):
            uses[MOST_GPUS + i] = uses[i]
        return True
    nexts = reach[rest] & adjacent[end] & ~low
    if not (rest ^ low) & ((<mask_t>1 << last) - 1):
        return True                              # nobody below `last` is left to be the second
    while nexts:
        other = __builtin_ctz(nexts)
        nexts &= nexts - 1
        p.uses[p.columns * MOST_GPUS + depth] = p.row[end][other]
        if not list_cycles(p, adjacent, reach, rest, other, depth + 1, last, most):
            return False
    return True


cdef double solve(Program *p, double bound, bint *proved) noexcept nogil:
    """max sum y over the listed cycles, the cycles on an edge at most p.value[edge]; stops at `bound`.

    Revised simplex from y = 0, largest reduced cost first; after a row of pivots that gain nothing, smallest
    index first (Bland), which cannot go round in circles.
    """
    cdef int m = p.rows
    cdef int i, j, e, enter, leave, _pivots, idle = 0
    cdef double gain, most, ratio, step, total = 0.0
    cdef double *pivot
    memset(p.inverse, 0, m * m * sizeof(double))
    for i in range(m):
        p.inverse[i * m + i] = 1.0
        p.price[i] = 0.0
        p.basic[i] = ~i
    proved[0] = True
    for _pivots in range(MOST_PIVOTS):
        if total >= bound - 1e-9:
            return total
        enter = 0
        most = 1e-9
        p.effort += <int64_t>p.columns * p.size + <int64_t>m * m
        for i in range(m):                       # the unused part of an edge: reduced cost -price
            if -p.price[i] > most:
                most = -p.price[i]
                enter = ~i
                if idle > 20:
                    break
        if not (idle > 20 and enter != 0):
            for j in range(p.columns):           # a cycle: 1 - the prices of its edges
                gain = 1.0
                for i in range(p.size):
                    gain -= p.price[p.uses[j * MOST_GPUS + i]]
                if gain > most:
                    most = gain
                    enter = j + 1                # 0 stands for "none"
                    if idle > 20:
                        break
        if enter == 0:
            return total
        for i in range(m):
            p.column[i] = 0.0
            if enter < 0:
                p.column[i] = p.inverse[i * m + ~enter]
            else:
                for e in range(p.size):
                    p.column[i] += p.inverse[i * m + p.uses[(enter - 1) * MOST_GPUS + e]]
        leave = -1
        step = 0.0
        for i in range(m):
            if p.column[i] > 1e-9:
                ratio = p.value[i] / p.column[i]
                if leave < 0 or ratio < step - 1e-12 or (ratio < step + 1e-12 and p.basic[i] < p.basic[leave]):
                    leave = i
                    step = ratio
        if leave < 0:                            # unbounded: cannot be, every cycle uses edges
            break
        idle = idle + 1 if step < 1e-12 else 0
        total += most * step
        pivot = p.inverse + leave * m
        gain = p.column[leave]
        for e in range(m):
            pivot[e] /= gain
        for i in range(m):
            if i != leave and p.column[i] != 0.0:
                p.value[i] -= step * p.column[i]
                gain = p.column[i]
                for e in range(m):
                    p.inverse[i * m + e] -= gain * pivot[e]
        for e in range(m):
            p.price[e] += most * pivot[e]
        p.value[leave] = step
        p.basic[leave] = enter - 1 if enter > 0 else enter
    proved[0] = False
    return total


cdef milli_t ring_of_set(
    Program *p, const int *links, int gpus, const mask_t *adjacent, const mask_t *reach, mask_t group, int8_t *proved
) noexcept nogil:
    """ring_links x 1000, rounded half up, of a set of two or more GPUs; links[i * gpus + j] counts links of a pair."""
    cdef int size = __builtin_popcount(group)
    cdef int first = __builtin_ctz(group)
    cdef int a, b, last, one = 0, degree, least = 0
    cdef mask_t rest, others, ends
    cdef bint uniform = True, optimal, complete = True
    cdef double total
    proved[0] = 1
    if size == 2:
        return 1000 * links[first * gpus + __builtin_ctz(group & (group - 1))]
    ends = reach[group] & adjacent[first]
    if not ends:
        return 0
    p.size = size
    p.rows = 0
    p.columns = 0
    rest = group
    while rest:
        a = __builtin_ctz(rest)
        rest &= rest - 1
        degree = 0
        others = group ^ (<mask_t>1 << a)
        while others:
            b = __builtin_ctz(others)
            others &= others - 1
            degree += links[a * gpus + b]
            if one == 0:
                one = links[a * gpus + b]
            uniform = uniform and links[a * gpus + b] == one and one > 0
            if b > a and links[a * gpus + b] > 0:
                p.row[a][b] = p.row[b][a] = p.rows
                p.value[p.rows] = 2.0 * links[a * gpus + b]
                p.rows += 1
        if least == 0 or degree < least:
            least = degree
    if uniform:    # all cycles equally often fill every pair evenly: x * size = one * size * (size - 1)
        return 1000 * one * (size - 1)
    p.patience = p.effort + 20 * MOST_CYCLES
    rest = ends if p.effort < BUDGET else 0
    while rest:
        last = __builtin_ctz(rest)
        rest &= rest - 1
        p.uses[p.columns * MOST_GPUS] = p.row[first][last]
        if not list_cycles(p, adjacent, reach, group, last, 1, last, MOST_CYCLES):
            complete = False
            break
    if p.columns == 0:                           # any one: `reach` leads straight to it
        complete = False
        p.patience = p.effort + MOST_GPUS
        p.uses[0] = p.row[first][__builtin_ctz(ends)]
        list_cycles(p, adjacent, reach, group, __builtin_ctz(ends), 1, MOST_GPUS, 1)
    # Each cycle takes two links of each of its GPUs, of 2 x degree: the lowest degree bounds the sum.
    total = solve(p, least, &optimal)
    proved[0] = (complete and optimal) or total >= least - 1e-9
    return <milli_t>floor(1000.0 * total + 0.5 + 1e-6)


# ---- what the device plugin hands out

# NVIDIA's rule splits all free GPUs into sets of k. Where k does not divide their number, one set is smaller and
# filled up with empty places; no split spreads them. Whether a set of GPUs that is still to be split will have the
# smaller set shows in its size, so what is known of it holds for every free set that contains it.

cdef inline int smaller(int gpus, int k) noexcept nogil:
    """GPUs of the set with empty places in every split of so many; k where there is none."""
    return gpus % k if gpus % k else k


cdef int most_points(Shape *s, mask_t gpus, int k) noexcept nogil:
    """The highest sum of points over all splits of `gpus` into sets of k."""
    cdef int *known = s.splits[k].most + gpus
    cdef mask_t low, others, sub
    cdef int size = __builtin_popcount(gpus), least = smaller(size, k), count, most = 0
    if gpus == 0:
        return 0
    if known[0] == 0:
        if size > k:
            low = lowest(gpus)
            others = gpus ^ low
            sub = others
            while True:
                count = __builtin_popcount(sub) + 1
                if count == k or count == least:
                    most = max(most, s.points[sub | low] + most_points(s, others ^ sub, k))
                if sub == 0:
                    break
                sub = (sub - 1) & others
        else:
            most = s.points[gpus]
        known[0] = most + 1                      # 0 stands for "not known yet"
    return known[0] - 1


cdef int peak_points(Shape *s, mask_t gpus, int k) noexcept nogil:
    """The most points that one set has in any of the best splits of `gpus` into sets of k; -1 for no GPUs."""
    cdef int *known = s.splits[k].peak + gpus
    cdef mask_t low, others, sub
    cdef int size = __builtin_popcount(gpus), least = smaller(size, k), count, peak = 0
    if gpus == 0:
        return -1
    if known[0] == 0:
        if size > k:
            low = lowest(gpus)
            others = gpus ^ low
            sub = others
            while True:
                count = __builtin_popcount(sub) + 1
                if count == k or count == least:
                    if s.points[sub | low] + most_points(s, others ^ sub, k) == most_points(s, gpus, k):
                        peak = max(peak, max(s.points[sub | low], peak_points(s, others ^ sub, k)))
                if sub == 0:
                    break
                sub = (sub - 1) & others
        else:
            peak = s.points[gpus]
        known[0] = peak + 1
    return known[0] - 1


cdef struct Draw:                # the plugin at work on one free set
    Shape *s
    int k
    int fragile                  # points of the strongest pair where the split that is kept gets spoiled; else -1
    double *share                # [set] probability that it is the answer
    int64_t effort


cdef bint draw(Draw *t, mask_t rest, int depth, int points, mask_t best, double weight) noexcept nogil:
    """Adds to the shares what follows from a random order of `rest`; False when that cannot be told.

    The plugin walks the splits in the order in which kubelet named the GPUs and keeps the first of the best; its
    answer is the first of the best sets in that. So the split's next set has the first GPU of `rest`, and then
    each further GPU with which some best split can still be completed. `best` with its `points`: so far.
    """
    cdef Shape *s = t.s
    cdef int n = __builtin_popcount(rest), least = smaller(n, t.k), count, i, bit
    cdef int most = most_points(s, rest, t.k)
    cdef mask_t end = <mask_t>1 << n, packed, gpus, more
    cdef mask_t *real                            # [packed] the same GPUs as a mask of the node
    cdef mask_t *cover                           # [packed] GPUs of all possible sets that have these
    cdef double *chance                          # [packed] probability that the walk comes by here
    cdef bint fine = True
    if points >= peak_points(s, rest, t.k):      # what is still to come is not better: the first stays
        # From seven sets on, the plugin's recursion writes over the sixth and later ones of the split it keeps.
        if t.fragile >= 0 and (depth > KEPT_SETS or points < t.fragile):
            return False
        t.share[best] += weight
        return True
    t.effort += <int64_t>end * n
    if t.effort > PATIENCE:
        return False
    real = <mask_t *>calloc(end, sizeof(mask_t))
    cover = <mask_t *>calloc(end, sizeof(mask_t))
    chance = <double *>calloc(end, sizeof(double))
    if real is NULL or cover is NULL or chance is NULL:
        fine = False
    else:
        gpus = 0
        for packed in range(end):
            real[packed] = gpus
            count = __builtin_popcount(packed)
            if (count == t.k or count == least) and s.points[gpus] + most_points(s, rest ^ gpus, t.k) == most:
                cover[packed] = packed
            gpus = (gpus - rest) & rest          # the next subset, ascending
        for i in range(n):
            for packed in range(end):
                if not packed >> i & 1:
                    cover[packed] |= cover[packed | <mask_t>1 << i]
        for i in range(n):
            chance[<mask_t>1 << i] = weight / n
        for packed in range(1, end):
            if chance[packed] == 0.0:
                continue
            more = cover[packed] & ~packed
            count = __builtin_popcount(more)
            if count:                            # whichever of them comes first is taken
                while more:
                    bit = __builtin_ctz(more)
                    more &= more - 1
                    chance[packed | <mask_t>1 << bit] += chance[packed] / count
                continue
            gpus = real[packed]
            if s.points[gpus] > points:
                fine = draw(t, rest ^ gpus, depth + 1, s.points[gpus], gpus, chance[packed])
            else:
                fine = draw(t, rest ^ gpus, depth + 1, points, best, chance[packed])
            if not fine:
                break
    c_free(real)
    c_free(cover)
    c_free(chance)
    return fine


cdef double* draw_all(Shape *s, mask_t free, int k) noexcept nogil:
    """[set] the probability that the plugin answers with it, for c_free(); NULL when that cannot be told."""
    cdef Draw t = Draw(s, k, -1, NULL, 0)
    cdef mask_t a, rest = free, others
    cdef size_t sets = <size_t>1 << s.gpus
    if s.splits[k].most is NULL:                 # untouched pages cost nothing
        s.splits[k].most = <int *>calloc(sets, sizeof(int))
    if s.splits[k].peak is NULL:
        s.splits[k].peak = <int *>calloc(sets, sizeof(int))
    t.share = <double *>calloc(sets, sizeof(double))
    if s.splits[k].most is NULL or s.splits[k].peak is NULL or t.share is NULL:
        c_free(t.share)
        return NULL
    if (__builtin_popcount(free) + k - 1) // k > SAFE_SETS:
        while rest and k == 2:                   # seven sets of three are 21 GPUs
            a = lowest(rest)
            rest ^= a
            others = rest
            while others:
                t.fragile = max(t.fragile, s.points[a | lowest(others)])
                others &= others - 1
    if not draw(&t, free, 0, -1, 0, 1.0):
        c_free(t.share)
        return NULL
    return t.share


cdef inline bint splits(const Shape *s, int n, int k) noexcept nogil:
    """Does the plugin split n free GPUs to answer for k of them?"""
    return s.plugin == NVIDIA and 1 < k < n


cdef inline bint predictable(const Shape *s, int n, int k) noexcept nogil:
    return k == 1 or k == n or s.points_known


cdef bint foresee(Shape *s, mask_t free, int k, Cell *cell) noexcept nogil:
    """expected_ring, `handed` and `crash` of a cell; False when the plugin's answer cannot be told."""
    cdef mask_t sub
    cdef int least = -1, n = __builtin_popcount(free)
    cdef int64_t weighted = 0, total = 0
    cdef double expected = 0.0, crash = 0.0
    cdef double *shares
    cdef bint some = False, all_of_them = True
    if not predictable(s, n, k):
        return False
    if s.plugin == RELAY:
        cell.choice.expected_ring = cell.choice.ring
        cell.handed = CERTAIN if k == 1 or cell.choice.ring > 0 else IMPOSSIBLE
        return True
    if splits(s, n, k):
        shares = draw_all(s, free, k)
        if shares is NULL:
            return False
        sub = free
        while sub:
            if shares[sub] > 0.0 and __builtin_popcount(sub) != k:   # an empty place crashes the plugin
                crash += shares[sub]
                all_of_them = False
            elif shares[sub] > 0.0 and s.ring[sub]:
                some = True
                expected += shares[sub] * s.ring[sub]
            elif shares[sub] > 0.0:
                all_of_them = False
            sub = (sub - 1) & free
        c_free(shares)
    else:                                        # the lightest sets, at random
        sub = free
        while sub:
            if __builtin_popcount(sub) == k and (least < 0 or s.points[sub] <= least):
                if least < 0 or s.points[sub] < least:
                    least = s.points[sub]
                    weighted = total = 0
                    some = False
                    all_of_them = True
                total += 1
                weighted += s.ring[sub]
                if k == 1 or s.ring[sub]:
                    some = True
                else:
                    all_of_them = False
            sub = (sub - 1) & free
        expected = <double>weighted / <double>total
    cell.choice.expected_ring = <milli_t>floor(expected + 0.5 + 1e-6)
    cell.crash = <int>ceil(1e6 * crash - 1e-6)
    cell.handed = IMPOSSIBLE if not some else CERTAIN if all_of_them else POSSIBLE
    return True


# ---- the choice

cdef int compare(const Shape *s, mask_t free, mask_t a, mask_t b) noexcept nogil:
    """1: a is the better set to take from `free`, -1: b is, 0: as good."""
    cdef mask_t x = free ^ a, y = free ^ b
    if s.ring[a] != s.ring[b]:
        return 1 if s.ring[a] > s.ring[b] else -1
    if s.left[x] != s.left[y]:
        return 1 if s.left[x] > s.left[y] else -1
    if s.future[x] + s.future[a] != s.future[y] + s.future[b]:
        return 1 if s.future[x] + s.future[a] > s.future[y] + s.future[b] else -1
    if s.ways[x] + s.ways[a] != s.ways[y] + s.ways[b]:
        return 1 if s.ways[x] + s.ways[a] > s.ways[y] + s.ways[b] else -1
    if s.near[a] != s.near[b]:
        return 1 if s.near[a] > s.near[b] else -1
    if s.near[x] != s.near[y]:
        return 1 if s.near[x] > s.near[y] else -1
    return 0


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
    while sub:
        if __builtin_popcount(sub) == k:
            if worst < 0 or s.ring[sub] < worst:
                worst = s.ring[sub]
            order = 1 if best == 0 else compare(s, free, sub, best)
            if order > 0 or (order == 0 and earlier(sub, best)):
                best = sub
        sub = (sub - 1) & free
    describe(s, free, k, best, &cell.choice)
    cell.worst = worst
    if not foresee(s, free, k, cell):
        cell.crash = -1 if splits(s, __builtin_popcount(free), k) else 0
        cell.handed = UNKNOWN_LINKS
        # Whatever comes is as good where all sets are, however the plugin chooses.
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


cdef void fill_totals(Shape *s, const int *links) noexcept nogil:
    """ring for NVSwitch: the lowest total into the fabric, 0 where two of the set do not see each other."""
    cdef int gpus = s.gpus
    cdef int a, b, total
    cdef mask_t group, low, rest, others
    cdef milli_t ring
    for group in range(1, <mask_t>1 << gpus):
        s.proved[group] = 1
        low = lowest(group)
        rest = group ^ low
        if rest == 0:
            continue
        ring = -1
        others = group
        while others:
            a = __builtin_ctz(others)
            others &= others - 1
            total = 0
            for b in range(gpus):
                total = max(total, links[a * gpus + b])
            if ring < 0 or 1000 * total < ring:
                ring = 1000 * total
            if (group ^ (<mask_t>1 << a)) & ~s.adjacent[a]:
                ring = 0
                break
        s.ring[group] = ring


cdef int fill_pairs(Shape *s, const int *links) except -1:
    """ring for links between pairs; small sets first, so that a spent budget hurts the large ones only."""
    cdef Program *p = <Program *>PyMem_Calloc(1, sizeof(Program))
    cdef mask_t *reach = <mask_t *>PyMem_Calloc(<size_t>1 << s.gpus, sizeof(mask_t))
    cdef mask_t group
    cdef int size
    try:
        if p is NULL or reach is NULL:
            raise MemoryError
        p.uses = <uint8_t *>PyMem_Calloc((MOST_CYCLES + 1) * MOST_GPUS, 1)
        p.inverse = <double *>PyMem_Calloc(MOST_EDGES * MOST_EDGES, sizeof(double))
        if p.uses is NULL or p.inverse is NULL:
            raise MemoryError
        with nogil:
            fill_reach(s.adjacent, s.gpus, reach)
            for size in range(1, s.gpus + 1):
                for group in range(1, <mask_t>1 << s.gpus):
                    if __builtin_popcount(group) != size:
                        continue
                    if size == 1:
                        s.proved[group] = 1
                    else:
                        s.ring[group] = ring_of_set(p, links, s.gpus, s.adjacent, reach, group, &s.proved[group])
    finally:
        if p is not NULL:
            PyMem_Free(p.uses)
            PyMem_Free(p.inverse)
        PyMem_Free(p)
        PyMem_Free(reach)
    return 0


cdef void fill_sums(Shape *s, const int *near, const int *points) noexcept nogil:
    """What follows from `ring` and from the pairs' locality and points: top, left, ways, near, points."""
    cdef int gpus = s.gpus
    cdef int width = gpus + 1
    cdef int size, k, a
    cdef mask_t group, rest, one
    cdef milli_t *row
    for group in range(1, <mask_t>1 << gpus):
        size = __builtin_popcount(group)
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
        a = __builtin_ctz(one)
        rest = group ^ one
        s.near[group] = s.near[rest]
        s.points[group] = s.points[rest]
        while rest:
            s.near[group] += near[a * gpus + __builtin_ctz(rest)]
            s.points[group] += points[a * gpus + __builtin_ctz(rest)]
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
            k = __builtin_popcount(sub)
            if s.ring[sub] > ring[k] or (s.ring[sub] == ring[k] and s.future[group ^ sub] > later[k]):
                ring[k] = s.ring[sub]
                later[k] = s.future[group ^ sub]
            sub = (sub - 1) & group
        sum = 0
        for k in range(1, __builtin_popcount(group) + 1):
            sum += later[k]
            if best[k]:
                sum += <int64_t>1000000 * ring[k] // best[k]
        s.future[group] = <int>(sum // gpus)


def _matrix(name, rows, int gpus, int most):
    """The rows as tuples; ValueError unless N x N, whole numbers 0..most and symmetric."""
    matrix = tuple(tuple(row) for row in rows)
    if len(matrix) != gpus or any(len(row) != gpus for row in matrix):
        raise ValueError(f"{name}: {gpus} x {gpus} numbers are wanted")
    for i in range(gpus):
        for j in range(gpus):
            value = matrix[i][j]
            if type(value) is not int or not 0 <= value <= most:
                raise ValueError(f"{name}[{i}][{j}]: {value!r} is not a whole number from 0 to {most}")
            if matrix[j][i] != value:
                raise ValueError(f"{name}[{i}][{j}] is {value!r}, {name}[{j}][{i}] is {matrix[j][i]!r}")
    return matrix


def _ids(gpus):
    return [i for i in range(MOST_GPUS) if gpus >> i & 1]


cdef class LinkShapes:
    """The shapes of a cluster. A shape is a small integer; 0 is the unknown one and answers None to everything."""

    def __cinit__(self):
        self.ids = {}
        self.count = 1
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

    def intern(self, int gpus, links, *, bint gpu_total, pcie, numa, str plugin, double gbps):
        """The shape's id; see links.pyi."""
        cdef Shape *s
        cdef Shape **shapes
        cdef int counts[MOST_GPUS * MOST_GPUS]
        cdef int near[MOST_GPUS * MOST_GPUS]
        cdef int points[MOST_GPUS * MOST_GPUS]
        cdef int i, j, level
        cdef bint same
        if not 1 <= gpus <= MOST_GPUS:
            raise ValueError(f"gpus: {gpus} is not from 1 to {MOST_GPUS}")
        if plugin not in PLUGINS:
            raise ValueError(f"plugin: {plugin!r} is none of {', '.join(PLUGINS)}")
        if not isfinite(gbps) or gbps < 0:
            raise ValueError(f"gbps: {gbps} is not a finite number from 0")
        if links is not None:
            links = _matrix("links", links, gpus, MOST_LINKS)
            for i in range(gpus):
                if links[i][i]:
                    raise ValueError(f"links[{i}][{i}]: a GPU has no link to itself")
        if pcie is not None:
            pcie = _matrix("pcie", pcie, gpus, 5)
        if numa is not None:
            numa = tuple(numa)
            if len(numa) != gpus or any(type(node) is not int for node in numa):
                raise ValueError(f"numa: {gpus} whole numbers are wanted, -1 where unknown")
        if links is None:
            return 0
        key = gpus, links, gpu_total, pcie, numa, plugin, gbps
        known = self.ids.get(key)
        if known is not None:
            return known

        shapes = <Shape **>PyMem_Realloc(self.shapes, (self.count + 1) * sizeof(Shape *))
        if shapes is NULL:
            raise MemoryError
        self.shapes = shapes
        s = new_shape(gpus)
        try:
            s.gbps = gbps
            s.plugin = PLUGINS[plugin]
            s.points_known = (s.plugin == ARBITRARY or s.plugin == RELAY or (s.plugin == NVIDIA and pcie is not None)
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
                    points[i * gpus + j] = 0
                    if s.plugin == NVIDIA:
                        # SYS 10 .. PIX 50, one board 60, and 100 a link; links into a switch are not seen
                        points[i * gpus + j] = 10 + 10 * level + (0 if gpu_total else 100 * min(links[i][j], 18))
                    elif s.plugin == AMD:
                        # other device 20, XGMI 10 or other 40, the same NUMA node 10 or another 20; less is better
                        points[i * gpus + j] = 20 + (10 if links[i][j] else 40) + (10 if same else 20)
            if gpu_total:
                fill_totals(s, counts)
            else:
                fill_pairs(s, counts)
            fill_sums(s, near, points)
            fill_future(s)
        except BaseException:
            free_shape(s)
            raise
        self.shapes[self.count] = s
        self.ids[key] = self.count
        self.count += 1
        return self.count - 1

    # ---- for kernels

    cdef Cell* cell(self, int shape, mask_t free, int k) noexcept nogil:
        cdef Shape *s
        cdef Cell *cell
        if shape <= 0 or shape >= self.count:
            return NULL
        s = self.shapes[shape]
        free &= (<mask_t>1 << s.gpus) - 1
        if k < 1 or k > __builtin_popcount(free):
            return NULL
        cell = s.cells + free * (s.gpus + 1) + k
        if not cell.filled:
            fill(s, free, k, cell)
        return cell

    cdef const Choice* best(self, int shape, mask_t free, int k) noexcept nogil:
        cdef Cell *cell = self.cell(shape, free, k)
        return NULL if cell is NULL else &cell.choice

    cdef int certainty(self, int shape, mask_t free, int k, int unknown, int containers) noexcept nogil:
        cdef Cell *cell
        if 0 < shape < self.count:
            free &= (<mask_t>1 << self.shapes[shape].gpus) - 1
        if k < 1 or k > __builtin_popcount(free) - unknown:
            return IMPOSSIBLE
        if k == 1:
            return CERTAIN
        if shape <= 0 or shape >= self.count:
            return UNKNOWN_LINKS
        cell = self.cell(shape, free, k)
        if unknown == 0 and cell.handed != UNKNOWN_LINKS:
            # A plugin is asked for one container after the other; a plan names the GPUs of all of them.
            if containers == 1 or (self.planned and self.shapes[shape].plugin == RELAY):
                return cell.handed
        if cell.worst > 0:
            return CERTAIN
        return POSSIBLE if cell.choice.ring > 0 else IMPOSSIBLE

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

    # ---- for Python; what each answers stands in links.pyi

    cdef Shape* known(self, int shape) except NULL:
        if not 0 < shape < self.count:
            raise KeyError(f"no shape {shape}")
        return self.shapes[shape]

    def gpus(self, int shape):
        return None if shape == 0 else self.known(shape).gpus

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
        return __builtin_popcount(group) == 1 or self.known(shape).ring[group] > 0

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
            # `common`: who is linked to all of the group, each of its own counted as linked to itself
            common = (<mask_t>1 << s.gpus) - 1
            rest = group
            while rest:
                common &= s.adjacent[__builtin_ctz(rest)] | lowest(rest)
                rest &= rest - 1
            if common == group and __builtin_popcount(group) >= 2:
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
                edge = (edge & (edge - 1)) | (s.adjacent[__builtin_ctz(edge)] & ~group)
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
        return sorted([sub for sub in _of_size(whole, k) if compare(s, whole, sub, cell.choice.gpus) == 0], key=_ids)

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
            if compare(s, whole, sub, cell.choice.gpus) < 0:
                order = 1 if second == 0 else compare(s, whole, sub, second)
                if order > 0:
                    second = sub
        if second == 0:
            return None
        other = cell.choice
        describe(s, whole, k, second, &other)
        return Chosen(**other)

    def certain(self, int shape, free, int k, int unknown=0, int containers=1):
        if shape != 0:
            free = self.inside(shape, free)
        return self.certainty(shape, free, k, unknown, containers)

    def handed_out(self, int shape, free, int k):
        if shape == 0:
            return None
        cdef Shape *s = self.known(shape)
        cdef mask_t whole = self.inside(shape, free)
        cdef int n = __builtin_popcount(whole)
        cdef mask_t i
        cdef double *found
        if not 1 <= k <= n:
            return []
        if s.plugin == RELAY:
            return [(self.cell(shape, whole, k).choice.gpus, 1.0)]
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
