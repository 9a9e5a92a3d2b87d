"""Which sets of GPUs the vendor's device plugin hands out from a free set, and how likely each of them is.

Source of the rules: NVIDIA/go-gpuallocator (best-effort policy), ROCm/k8s-device-plugin.
"""
cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free as c_free

from ext_core.ints cimport mask_t
from ext_core.masks cimport first_of, lowest, lowest_of, popcount
from ext_core.shape cimport AMD, CERTAIN, FIRST, IMPOSSIBLE, NVIDIA, POSSIBLE, RELAY, Shape

cdef enum:
    PATIENCE = 25000000      # steps for one prediction of NVIDIA's choice; beyond, it is unknown
    SAFE_SETS = 6            # sets of a split up to which NVIDIA's plugin keeps it intact
    KEPT_SETS = 5            # the first sets of a larger split, which it keeps intact too


cdef int pair_points(const Shape *s, int level, int links, bint same_numa) noexcept nogil:
    if s.plugin == NVIDIA:   # SYS 10 .. PIX 50, one board 60, and 100 a link
        return 10 + 10 * level + 100 * min(links, 18)
    if s.plugin == AMD:      # other device 20, XGMI 10 or other 40, the same NUMA node 10 or another 20; less is better
        return 20 + (10 if links else 40) + (10 if same_numa else 20)
    return 0


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
    cdef int size = popcount(gpus), least = smaller(size, k), count, most = 0
    if gpus == 0:
        return 0
    if known[0] == 0:
        if size > k:
            low = lowest(gpus)
            others = gpus ^ low
            sub = others
            while True:
                count = popcount(sub) + 1
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
    cdef int size = popcount(gpus), least = smaller(size, k), count, peak = 0
    if gpus == 0:
        return -1
    if known[0] == 0:
        if size > k:
            low = lowest(gpus)
            others = gpus ^ low
            sub = others
            while True:
                count = popcount(sub) + 1
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
    """Adds to the shares what follows from a random order of `rest`; False when that is not predictable.

    The plugin walks the splits in the order in which kubelet named the GPUs and keeps the first of the best; its
    answer is the first of the best sets in that. So the split's next set has the first GPU of `rest`, and then
    each further GPU with which some best split can still be completed. `best` with its `points`: so far.
    """
    cdef Shape *s = t.s
    cdef int n = popcount(rest), least = smaller(n, t.k), count, i, bit
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
            count = popcount(packed)
            if (count == t.k or count == least) and s.points[gpus] + most_points(s, rest ^ gpus, t.k) == most:
                cover[packed] = packed
            with cython.overflowcheck(False):      # wraps
                gpus = (gpus - rest) & rest      # the next subset, ascending
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
            count = popcount(more)
            if count:                            # whichever of them comes first is taken
                while more:
                    bit = first_of(more)
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
    if (popcount(free) + k - 1) // k > SAFE_SETS:
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


cdef bint splits(const Shape *s, int n, int k) noexcept nogil:
    return s.plugin == NVIDIA and 1 < k < n


cdef bint predictable(const Shape *s, int n, int k) noexcept nogil:
    return k == 1 or k == n or s.points_known


cdef bint foresee(Shape *s, mask_t free, int k, Outlook *out) noexcept nogil:
    cdef mask_t sub = free
    cdef int least = -1, n = popcount(free)
    cdef int64_t sum = 0, total = 0
    cdef double *shares
    cdef bint some = False, all_of_them = True
    out.expected = out.crash = 0.0
    if not predictable(s, n, k):
        return False
    if s.plugin == RELAY or s.plugin == FIRST:
        sub = out.planned if s.plugin == RELAY else lowest_of(free, k)
        out.expected = out.worth[sub]
        out.handed = CERTAIN if out.worth[sub] >= out.enough else IMPOSSIBLE
        return True
    if splits(s, n, k):
        shares = draw_all(s, free, k)
        if shares is NULL:
            return False
        while sub:
            if shares[sub] > 0.0 and popcount(sub) != k:   # an empty place crashes the plugin
                out.crash += shares[sub]
                all_of_them = False
            elif shares[sub] > 0.0:
                out.expected += shares[sub] * out.worth[sub]
                if out.worth[sub] >= out.enough:
                    some = True
                else:
                    all_of_them = False
            sub = (sub - 1) & free
        c_free(shares)
    else:                                        # the lightest sets, at random
        while sub:
            if popcount(sub) == k and (least < 0 or s.points[sub] <= least):
                if least < 0 or s.points[sub] < least:
                    least = s.points[sub]
                    sum = total = 0
                    some = False
                    all_of_them = True
                total += 1
                sum += out.worth[sub]
                if out.worth[sub] >= out.enough:
                    some = True
                else:
                    all_of_them = False
            sub = (sub - 1) & free
        out.expected = <double>sum / <double>total
    out.handed = IMPOSSIBLE if not some else CERTAIN if all_of_them else POSSIBLE
    return True
