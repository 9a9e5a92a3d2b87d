"""ring_links of sets of GPUs: how many rings fit into the links of a set at once.

**ring_links(set)** is the most directed Hamiltonian cycles that fit into the set's links at once, as a linear
program: max sum x_c, where the cycles through the directed pair (i, j) add up to at most links[i][j].
Each cycle may be reversed, so this equals max sum y_c over undirected cycles with at most 2 links[i][j] on an
edge. That form is solved here. Two GPUs: their links. One GPU: 0, though it counts as linked.
With `gpu_total` (NVSwitch) a number is the GPU's total into the fabric: the lowest total in the set.
"""
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.math cimport floor
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from ext_core.ints cimport MOST_GPUS, int8_t, mask_t, milli_t
from ext_core.masks cimport first_of, lowest, popcount
from ext_core.shape cimport Shape

cdef enum:
    MOST_EDGES = 120         # 16 * 15 / 2
    MOST_CYCLES = 20000      # of one set; up to 8 GPUs there are at most 7! / 2 = 2520
    MOST_PIVOTS = 5000       # of one program

# Work allowed for the programs of one shape (about half a second). Beyond it a set gets one cycle instead of the
# optimum and is marked as a lower bound; no machine in the catalogue comes near it.
cdef int64_t BUDGET = 400_000_000


cdef struct Program:             # the graph, and scratch for the linear program of one set; allocated once a graph
    const int *links             # [gpu, gpu] links of a pair
    int gpus
    const mask_t *adjacent       # [gpu] GPUs with a link to it
    const mask_t *reach          # [set] what fill_reach() computes
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
            if reach[group ^ end] & adjacent[first_of(end)]:
                reach[group] |= end


cdef bint list_cycles(Program *p, mask_t left, int end, int depth, int last, int most) noexcept nogil:
    """Adds the undirected cycles that close a path through `left` ending at `end`; False when `most` are there.

    `reach` prunes every branch that cannot be completed. The rows of the edges behind `end` are in the next free
    column. A cycle is kept in the one direction where its second GPU is below its last; with `last` above all
    GPUs, in both.
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
        uses[depth] = p.row[first_of(low)][end]
        p.columns += 1
        if p.columns == most:
            return False
        for i in range(p.size):
            uses[MOST_GPUS + i] = uses[i]
        return True
    nexts = p.reach[rest] & p.adjacent[end] & ~low
    if not (rest ^ low) & ((<mask_t>1 << last) - 1):
        return True                              # no GPU below `last` is left to be the second
    while nexts:
        other = first_of(nexts)
        nexts &= nexts - 1
        p.uses[p.columns * MOST_GPUS + depth] = p.row[end][other]
        if not list_cycles(p, rest, other, depth + 1, last, most):
            return False
    return True


cdef double solve(Program *p, double bound, bint *proved) noexcept nogil:
    """max sum y over the listed cycles, the cycles on an edge at most p.value[edge]; stops at `bound`.

    Revised simplex from y = 0, largest reduced cost first; after a row of pivots that gain nothing, smallest
    index first (Bland), which cannot cycle.
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
        if leave < 0:                            # unbounded: impossible, every cycle uses edges
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


cdef milli_t ring_of_set(Program *p, mask_t group, int8_t *proved) noexcept nogil:
    """ring_links x 1000, rounded half up, of a set of two or more GPUs."""
    cdef const int *links = p.links
    cdef int gpus = p.gpus
    cdef int size = popcount(group)
    cdef int first = first_of(group)
    cdef int a, b, last, one = 0, degree, least = 0
    cdef mask_t rest, others, ends
    cdef bint uniform = True, optimal, complete = True
    cdef double total
    proved[0] = 1
    if size == 2:
        return 1000 * links[first * gpus + first_of(group & (group - 1))]
    ends = p.reach[group] & p.adjacent[first]
    if not ends:
        return 0
    p.size = size
    p.rows = 0
    p.columns = 0
    rest = group
    while rest:
        a = first_of(rest)
        rest &= rest - 1
        degree = 0
        others = group ^ (<mask_t>1 << a)
        while others:
            b = first_of(others)
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
        last = first_of(rest)
        rest &= rest - 1
        p.uses[p.columns * MOST_GPUS] = p.row[first][last]
        if not list_cycles(p, group, last, 1, last, MOST_CYCLES):
            complete = False
            break
    if p.columns == 0:                           # any one cycle: `reach` leads straight to it
        complete = False
        p.patience = p.effort + MOST_GPUS
        p.uses[0] = p.row[first][first_of(ends)]
        list_cycles(p, group, first_of(ends), 1, MOST_GPUS, 1)
    # Each cycle takes two links of each of its GPUs, of 2 x degree: the lowest degree bounds the sum.
    total = solve(p, least, &optimal)
    proved[0] = (complete and optimal) or total >= least - 1e-9
    return <milli_t>floor(1000.0 * total + 0.5 + 1e-6)


cdef void fill_totals(Shape *s, const int *links) noexcept nogil:
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
            a = first_of(others)
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
        p.links = links
        p.gpus = s.gpus
        p.adjacent = s.adjacent
        p.reach = reach
        with nogil:
            fill_reach(s.adjacent, s.gpus, reach)
            for size in range(1, s.gpus + 1):
                for group in range(1, <mask_t>1 << s.gpus):
                    if popcount(group) != size:
                        continue
                    if size == 1:
                        s.proved[group] = 1
                    else:
                        s.ring[group] = ring_of_set(p, group, &s.proved[group])
    finally:
        if p is not NULL:
            PyMem_Free(p.uses)
            PyMem_Free(p.inverse)
        PyMem_Free(p)
        PyMem_Free(reach)
    return 0
