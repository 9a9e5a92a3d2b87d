"""The cheapest sufficient victims on each candidate node, exactly.

Theory of operation. On one candidate the search decides pod after pod, taken before spared, in the order of their
*rank*: what a pod costs when it is the only victim, then the larger index (`start` lists pods by importance, so of
equals the less important is evicted first). Every form of cost but "mask" can only grow with the set, so the cost of
what is taken bounds all sets below; each term sharpens that bound in its own way (`bound`). Four facts keep the tree
small:

- *cover*: the pods still undecided must be able to free what is still short, and a good mask must be in reach;
- *enough is enough*: below a set that suffices no set costs less, unless a mask price could fall;
- *the order of terms*: once a set can at best equal the best one in the terms before, a pod that would exceed it in
  this term is out of use, and cover is asked again;
- *dominance*: a pod that frees as much as a later one, holds the same GPUs and costs no more in any term is taken
  first: where it is spared, so is the other.

Ties in all terms: fewest pods; then the set whose ranks, in ascending order, come first lexicographically. In the order
of the walk that is the set that is met first, so proving the tie-break costs nothing.
"""

from array import array
from collections import namedtuple

from libc.stdint cimport INT64_MAX, INT64_MIN
from posix.time cimport CLOCK_THREAD_CPUTIME_ID, clock_gettime, timespec

from ext_core.candidates cimport Candidates
from ext_core.ints cimport amount_t, int8_t, int32_t, int64_t, mask_t, uint8_t
from ext_core.ratio cimport part_up, ratio_less
from ext_core.terms cimport GANG, GROUP, MASK, MAX, SUM, Table, Term, _Terms, bytes_of, int32s, int64s

cdef int64_t clock() noexcept nogil:
    """Nanoseconds of CPU that this thread has used: another process on the machine does not make an answer worse."""
    cdef timespec now
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now)
    return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef enum:
    NONE = 0       # no set suffices
    PROVED = 1     # found, and proved cheapest
    FOUND = 2      # found; the budget ended before the proof
    UNDECIDED = 3  # the budget ended before a set was found
    NOT_LOWER = 4  # no set costs less than those of two candidates before

cdef enum:
    LEAST = 2_000  # search nodes that a candidate may have even if that leaves those behind it less than a fair share

Victims = namedtuple("Victims", "chosen cost status examined stopped", defaults=(0,))


cdef class _Search:
    """The columns of one call, and the scratch space that its candidates use one after another."""

    cdef list kept                    # owns what the pointers point to
    cdef _Terms checked               # and this
    cdef Py_ssize_t n, pods
    cdef int resources, terms         # `terms` counts the last, implicit one: the number of pods
    cdef int64_t left                 # search nodes for this and all further candidates
    cdef int64_t budget               # of the candidate at hand
    cdef int64_t deadline             # on `clock`; the search stops there
    cdef int64_t stop                 # the look at the clock at which it stops instead, 0 = none
    cdef int64_t looks                # at the clock so far
    cdef int64_t stopped              # the look at which it stopped, 0 = none
    cdef bint late                    # it has been reached
    cdef bint skip                    # only the two cheapest candidates matter
    cdef int ahead                    # candidates found so far, at most 2
    cdef int64_t* lead                # [2, term] their values, the lowest first
    cdef bint cut                     # the candidate at hand must cost less than the second of them
    cdef bint priced                  # some term is a MASK
    cdef bint capped                  # some term has a ceiling
    cdef Candidates of
    cdef Term* term
    cdef Table* known
    # what the call answers
    cdef uint8_t[::1] chosen
    cdef int64_t[::1] cost, examined
    cdef int8_t[::1] status
    # the candidate at hand: `m` pods to decide, by rank; `rows` resources that are short; depth d = d pods decided
    cdef int first, last, m, rows, at
    cdef const uint8_t* ok
    cdef const uint8_t* above
    cdef bint monotone, masked, found, own
    cdef int32_t* row                 # [rows] resource; -1 = GPUs at unknown positions
    cdef int32_t* pod                 # [m]
    cdef mask_t* gain                 # [m] GPUs that the pod adds to those free
    cdef amount_t* frees              # [m, rows] at most what is short
    cdef int32_t* blocked             # [m] how many of the pods that dominate it are spared
    cdef uint8_t* dominates           # [m, m]
    cdef int32_t* order               # [term, row, m] SUM, GANG with a column: pods by cost per amount
    cdef int32_t* ordered             # [term, row] length of the above (pods that free nothing are left out)
    cdef amount_t* need               # [depth, rows]
    cdef int64_t* value               # [depth, term]
    cdef mask_t* mask                 # [depth] GPUs free after the eviction
    cdef uint8_t* taken               # [m] decision
    cdef uint8_t* usable              # [m]
    cdef int64_t* alone               # [pod of the candidate, term]
    cdef uint8_t* inside              # [pod of the candidate] is in the set at hand
    cdef uint8_t* best                # [pod of the candidate]
    cdef int64_t* best_value          # [term]
    cdef int64_t* here                # [term]

    # --- what one more victim costs -------------------------------------------------------------------------------

    cdef inline int64_t column_of(self, Term* t, int p) noexcept nogil:
        """What the pod costs; of a GANG while it is whole."""
        return t.kind != GANG if t.column == NULL else t.column[p]

    cdef int64_t single(self, Term* t, int p) noexcept nogil:
        """The term's value when `p` is the only victim; 0 for MASK. The rank's key."""
        cdef int64_t total = 0
        cdef int e, g
        if t.kind == SUM or t.kind == MAX:
            return self.column_of(t, p)
        if t.kind == MASK:
            return 0
        for e in range(t.start[p], t.start[p + 1]):
            g = t.member[e]
            if t.allowance[g] < 1:
                if t.kind == GANG:
                    return t.price[t.member[t.start[p]]]
                total = max(total, t.price[g])
        return self.column_of(t, p) if t.kind == GANG else total

    cdef int64_t with_pod(self, Term* t, int p, int64_t value) noexcept nogil:
        """The term's value when `p` joins the set at hand, whose value is `value`; a lower bound of it where the
        term is a GROUP that is not simple, exact otherwise. Not for MASK."""
        cdef int e, g
        if t.kind == SUM:
            return value + self.column_of(t, p)
        if t.kind == MAX:
            return max(value, t.column[p])
        if t.kind == GROUP:
            if t.simple and t.start[p] < t.start[p + 1]:
                g = t.member[t.start[p]]
                if t.count[g] + 1 > t.allowance[g]:
                    return value + t.price[g]
            return value
        if self.free(t, p):
            return value
        for e in range(t.start[p], t.start[p + 1]):
            if t.count[t.member[e]] + 1 > t.allowance[t.member[e]]:
                g = t.member[t.start[p]]
                return value + t.price[g] - t.taken[g]
        return value + self.column_of(t, p)

    cdef inline bint free(self, Term* t, int p) noexcept nogil:
        """The GANG of `p` is broken."""
        return t.start[p] < t.start[p + 1] and t.over[t.member[t.start[p]]] > 0

    cdef inline void count(self, Term* t, int p, int by) noexcept nogil:
        """`p` joins (1) or leaves (-1) the set at hand, in its groups. Without an allowance the first pod is one too
        many."""
        cdef int e, g, past
        for e in range(t.start[p], t.start[p + 1]):
            g = t.member[e]
            past = t.count[g] > max(t.allowance[g], 0)
            t.count[g] += by
            if t.kind == GANG:
                t.over[t.member[t.start[p]]] += (t.count[g] > max(t.allowance[g], 0)) - past
        if t.column != NULL and t.start[p] < t.start[p + 1]:
            t.taken[t.member[t.start[p]]] += by * t.column[p]

    cdef int64_t walked(self, Term* t) noexcept nogil:
        """A GROUP's value of the set at hand by kube-scheduler's walk: a pod violates when one of its groups is then
        below zero; it pays the highest price among those."""
        cdef int64_t total = 0, price
        cdef int p, e, g
        for p in range(self.first, self.last):
            if self.inside[p - self.first]:
                price = 0
                for e in range(t.start[p], t.start[p + 1]):
                    g = t.member[e]
                    t.count[g] += 1
                    if t.count[g] > t.allowance[g]:
                        price = max(price, t.price[g])
                total += price
        for p in range(self.first, self.last):
            for e in range(t.start[p], t.start[p + 1]):
                t.count[t.member[e]] = 0
        return total

    # --- taking and giving back -----------------------------------------------------------------------------------

    cdef void enter(self, int p, const int64_t* before, int64_t* after) noexcept nogil:
        cdef int i
        cdef Term* t
        self.inside[p - self.first] = 1
        for i in range(self.terms):
            t = &self.term[i]
            if t.kind == MASK:
                after[i] = 0
            elif t.kind == GROUP and not t.simple:
                after[i] = self.walked(t)
            else:
                after[i] = self.with_pod(t, p, before[i])
                if t.kind == GROUP or t.kind == GANG:
                    self.count(t, p, 1)

    cdef void leave(self, int p) noexcept nogil:
        cdef int i
        cdef Term* t
        self.inside[p - self.first] = 0
        for i in range(self.terms):
            t = &self.term[i]
            if t.kind == GANG or (t.kind == GROUP and t.simple):
                self.count(t, p, -1)

    cdef void take(self, int d) noexcept nogil:
        cdef int a
        self.taken[d] = 1
        self.enter(self.pod[d], &self.value[d * self.terms], &self.value[(d + 1) * self.terms])
        for a in range(self.rows):
            self.need[(d + 1) * self.rows + a] = max(
                self.need[d * self.rows + a] - self.frees[d * self.rows + a], 0)
        self.mask[d + 1] = self.mask[d] | self.gain[d]

    cdef void spare(self, int d) noexcept nogil:
        cdef int a
        self.taken[d] = 0
        for a in range(self.terms):
            self.value[(d + 1) * self.terms + a] = self.value[d * self.terms + a]
        for a in range(self.rows):
            self.need[(d + 1) * self.rows + a] = self.need[d * self.rows + a]
        self.mask[d + 1] = self.mask[d]
        self.block(d, 1)

    cdef void block(self, int d, int by) noexcept nogil:
        cdef int j
        cdef const uint8_t* under = &self.dominates[<Py_ssize_t>d * self.m]
        for j in range(d + 1, self.m):
            self.blocked[j] += by * under[j]

    # --- bounds ---------------------------------------------------------------------------------------------------

    cdef bint suffices(self, int d) noexcept nogil:
        cdef int a
        for a in range(self.rows):
            if self.need[d * self.rows + a] > 0:
                return False
        return self.ok == NULL or self.ok[self.mask[d]] != 0

    cdef bint covered(self, int d, uint8_t level) noexcept nogil:
        """Could the undecided pods with usable >= `level` free what is short? "No" is certain."""
        cdef int a, j
        cdef amount_t left
        cdef mask_t reach = self.mask[d]
        for a in range(self.rows):
            left = self.need[d * self.rows + a]
            j = d
            while left > 0 and j < self.m:
                if self.usable[j] >= level:
                    left -= self.frees[j * self.rows + a]
                j += 1
            if left > 0:
                return False
        if self.ok == NULL:
            return True
        if not self.monotone:
            return self.above[reach] != 0
        for j in range(d, self.m):
            if self.usable[j] >= level:
                reach |= self.gain[j]
        return self.ok[reach] != 0

    cdef int64_t least_sum(self, int i, int d) noexcept nogil:
        """What covering costs at least in term `i` (a SUM or a GANG with a column) if pods could be cut in parts: per
        resource by cost per amount; the resource with the highest cost counts. Members of a broken gang cost nothing
        more."""
        cdef Term* t = &self.term[i]
        cdef int64_t total, most = 0
        cdef amount_t left
        cdef int a, k, j, p
        cdef const int32_t* order
        for a in range(self.rows):
            left = self.need[d * self.rows + a]
            if t.kind == GANG:
                for j in range(d, self.m):
                    p = self.pod[j]
                    if self.usable[j] and self.free(t, p):
                        left -= min(left, self.frees[j * self.rows + a])
            total = 0
            order = &self.order[(i * self.rows + a) * self.m]
            k = 0
            while left > 0 and k < self.ordered[i * self.rows + a]:
                j = order[k]
                k += 1
                if j < d or not self.usable[j]:
                    continue
                p = self.pod[j]
                if t.kind == GANG and self.free(t, p):
                    continue
                if self.frees[j * self.rows + a] >= left:
                    total += part_up(self.column_of(t, p), left, self.frees[j * self.rows + a])
                    left = 0
                else:
                    total += self.column_of(t, p)
                    left -= self.frees[j * self.rows + a]
            most = max(most, total)
        return most

    cdef int64_t least_violations(self, int i, int d, int64_t value) noexcept nogil:
        """A simple GROUP only grows faster as the set grows; so covering costs at least the least positive price now,
        as often as pods with a price are needed beside all pods without."""
        cdef Term* t = &self.term[i]
        cdef int64_t price, least = INT64_MAX, most = 0
        cdef amount_t left
        cdef int a, k, j, needed, last = self.terms - 1
        for j in range(d, self.m):
            if self.usable[j]:
                price = self.with_pod(t, self.pod[j], value) - value
                if 0 < price < least:
                    least = price
        if least == INT64_MAX:
            return 0
        for a in range(self.rows):
            left = self.need[d * self.rows + a]
            for j in range(d, self.m):
                if self.usable[j] and self.with_pod(t, self.pod[j], value) == value:
                    left -= min(left, self.frees[j * self.rows + a])
            needed = 0
            k = 0
            while left > 0 and k < self.ordered[last * self.rows + a]:
                j = self.order[(last * self.rows + a) * self.m + k]  # by the number of pods: the largest first
                k += 1
                if j >= d and self.usable[j] and self.with_pod(t, self.pod[j], value) > value:
                    left -= self.frees[j * self.rows + a]
                    needed += 1
            most = max(most, needed * least)
        return most

    cdef int bound(self, int i, int d) noexcept nogil:
        """Sets below, in term `i`, against the best: 1 all above it; 0 none below it; -1 perhaps below it. Takes the
        pods that would lift it above out of `usable`: right as long as no set below beats the best in a term before."""
        cdef Term* t = &self.term[i]
        cdef int64_t best = self.best_value[i], value = self.value[d * self.terms + i], lower, other
        cdef bint fewer = False
        cdef int j
        if t.kind == MASK:
            if self.at < 0:  # 0 here for every set; the best may be another candidate's
                return 1 if best < 0 else -1 if best > 0 else 0
            lower = t.floors[self.at][self.mask[d]]
        else:
            lower = value
        if lower > best:
            return 1
        for j in range(d, self.m):
            if self.usable[j]:
                if t.kind == MASK:
                    other = t.floors[self.at][self.mask[d] | self.gain[j]]
                else:
                    other = self.with_pod(t, self.pod[j], value)
                if other > best:
                    self.usable[j] = 0
                    fewer = True
                else:
                    self.usable[j] = 2 if other < best else 1
        if fewer and not self.covered(d, 1):
            return 1
        if lower == best:
            return 0
        if t.kind == MASK:
            return -1
        if t.kind == SUM or (t.kind == GANG and t.column != NULL):
            lower = value + self.least_sum(i, d)
        elif t.kind == GROUP and t.simple:
            lower = value + self.least_violations(i, d, value)
        if lower > best:
            return 1
        # each set below holds a pod that alone lifts the term to the best one's value
        if lower == best or not self.covered(d, 2):
            return 0
        return -1

    cdef bint exceeds(self, int d) noexcept nogil:
        """Every set at or below this node exceeds the ceiling of a term. Takes the pods that alone would lift it there
        out of `usable`."""
        cdef int i, j
        cdef int64_t value
        cdef Term* t
        for i in range(self.terms):
            t = &self.term[i]
            if t.most < INT64_MAX:
                value = self.value[d * self.terms + i]
                if value > t.most:
                    return True
                for j in range(d, self.m):
                    if self.usable[j] and self.with_pod(t, self.pod[j], value) > t.most:
                        self.usable[j] = 0
                if t.kind == SUM or (t.kind == GANG and t.column != NULL):
                    if value + self.least_sum(i, d) > t.most:
                        return True
        return False

    cdef bint hopeless(self, int d) noexcept nogil:
        """No set at or below this node is better than the best (or, when nothing is found yet, suffices)."""
        cdef int i, j, said
        for j in range(d, self.m):
            self.usable[j] = self.blocked[j] == 0
        if self.capped and self.exceeds(d):
            return True
        if not self.covered(d, 1):
            return True
        if not self.found and not self.cut:
            return False
        for i in range(self.terms):
            said = self.bound(i, d)
            if said:
                return said > 0
        return self.own  # an equal that the walk met first wins; one that greed found does not

    # --- one candidate --------------------------------------------------------------------------------------------

    cdef void consider(self, int d, bint own) noexcept nogil:
        """Keep the set at hand, which suffices, if it is better than the best."""
        cdef int i
        cdef bint better = not self.found and not self.cut
        for i in range(self.terms):
            self.here[i] = self.value[d * self.terms + i]
            if self.term[i].kind == MASK and self.at >= 0:
                self.here[i] = self.term[i].tables[self.at][self.mask[d]]
            if self.here[i] > self.term[i].most:
                return
        if not better:
            better = own and not self.own
            for i in range(self.terms):
                if self.here[i] != self.best_value[i]:
                    better = self.here[i] < self.best_value[i]
                    break
        if better:
            self.found = True
            self.own = own
            for i in range(self.terms):
                self.best_value[i] = self.here[i]
            for i in range(self.last - self.first):
                self.best[i] = self.inside[i]

    cdef bint before(self, int p, int q) noexcept nogil:
        """Rank: is `p` before `q`?"""
        cdef int i
        cdef const int64_t* x = &self.alone[<Py_ssize_t>(p - self.first) * self.terms]
        cdef const int64_t* y = &self.alone[<Py_ssize_t>(q - self.first) * self.terms]
        for i in range(self.terms):
            if x[i] != y[i]:
                return x[i] < y[i]
        return p > q

    cdef bint dominated(self, int j, int k) noexcept nogil:
        """Pod j may stand in for pod k, which is after it, in every set: it frees as much, and the cost does not rise.
        Terms after a SUM in which j costs less do not matter, unless they have a ceiling."""
        cdef int a, i, e, f, p = self.pod[j], q = self.pod[k], few, many
        cdef Term* t
        cdef bint among, less = False
        if self.gain[j] != self.gain[k]:
            return False
        for a in range(self.rows):
            if self.frees[j * self.rows + a] < self.frees[k * self.rows + a]:
                return False
        for i in range(self.terms):
            t = &self.term[i]
            if less:
                if not self.capped:
                    return True
                if t.most == INT64_MAX:
                    continue
            if t.kind == SUM:
                if self.column_of(t, p) > self.column_of(t, q):
                    return False
                less |= self.column_of(t, p) < self.column_of(t, q)
            elif t.kind == MAX:
                if t.column[p] > t.column[q]:
                    return False
            elif t.kind != MASK:
                few = t.start[p + 1] - t.start[p]
                many = t.start[q + 1] - t.start[q]
                for e in range(t.start[p], t.start[p + 1]):
                    among = False
                    for f in range(t.start[q], t.start[q + 1]):
                        among |= t.member[e] == t.member[f]
                    if not among:
                        return False
                if t.kind == GROUP:
                    # beside pods of several groups, the place of a pod in the walk decides which others violate
                    if not t.simple and few and (few > 1 or many > 1 or p > q):
                        return False
                elif t.column != NULL:
                    if few == many == 0:
                        if t.column[p] > t.column[q]:
                            return False
                        less |= t.column[p] < t.column[q]
                    elif t.column[p] > (t.column[q] if few else 0):
                        return False  # beside a broken gang, its members come free and others do not
        return True

    cdef void prepare(self, Py_ssize_t i) noexcept nogil:
        """Fill the candidate's columns; depth 0 holds the forced pods."""
        cdef int t, at = self.of.tables[i]
        self.first = self.of.starts[i]
        self.last = self.of.starts[i + 1]
        self.at = at
        self.ok = self.above = NULL
        self.monotone = True
        if at >= 0:
            self.ok = self.known[at].ok
            self.above = self.known[at].above
            self.monotone = self.known[at].monotone
        self.masked = self.priced and at >= 0
        self.found = self.own = False
        self.cut = self.skip and self.ahead == 2
        if self.cut:
            for t in range(self.terms - 1):
                self.best_value[t] = self.lead[self.terms + t]
            self.best_value[self.terms - 1] = INT64_MIN  # of equals the candidate that came first wins
        self.fill_costs(i)
        self.list_short(i)
        self.rank_pods()

    cdef void fill_costs(self, Py_ssize_t i) noexcept nogil:
        """What each pod costs as the only victim, and what the forced pods cost together."""
        cdef int first = self.first, last = self.last, at = self.at, p, t
        cdef Term* term
        self.mask[0] = 0 if at < 0 else self.of.free_gpus[i]
        for t in range(self.terms):
            term = &self.term[t]
            self.value[t] = INT64_MIN if term.kind == MAX else 0
            if term.kind == SUM and term.lacking != NULL:
                self.value[t] = -term.lacking[i]
            term.simple = True
            for p in range(first, last):
                if term.kind == GROUP and term.start[p + 1] - term.start[p] > 1:
                    term.simple = False
                self.alone[<Py_ssize_t>(p - first) * self.terms + t] = self.single(term, p)
        for p in range(first, last):
            self.inside[p - first] = 0
        for p in range(first, last):
            if self.of.must[p]:
                self.enter(p, self.value, self.value)
                if at >= 0:
                    self.mask[0] |= self.of.gpu_masks[p]

    cdef void list_short(self, Py_ssize_t i) noexcept nogil:
        """The resources that are short once the forced pods are evicted."""
        cdef int first = self.first, last = self.last, at = self.at, p, r
        cdef amount_t left
        self.rows = 0
        for r in range(-1, self.resources):
            if r >= 0:
                left = self.of.lack[r, i]
            else:
                left = self.of.unknown_gpus[i] if at >= 0 else 0
            for p in range(first, last):
                if self.of.must[p] and left > 0:
                    left -= min(left, self.frees_of(r, p))
            if left > 0:
                self.row[self.rows] = r
                self.need[self.rows] = left
                self.rows += 1

    cdef void rank_pods(self) noexcept nogil:
        """The pods that free something, by rank."""
        cdef int first = self.first, last = self.last, at = self.at, p, a, j, t
        cdef bint useful
        self.m = 0
        for p in range(first, last):
            if self.of.must[p]:
                continue
            useful = at >= 0 and (self.of.gpu_masks[p] & ~self.mask[0]) != 0
            for a in range(self.rows):
                useful |= self.frees_of(self.row[a], p) > 0
            if useful:
                j = self.m
                while j > 0 and self.before(p, self.pod[j - 1]):
                    self.pod[j] = self.pod[j - 1]
                    j -= 1
                self.pod[j] = p
                self.m += 1
        for j in range(self.m):
            p = self.pod[j]
            self.blocked[j] = 0
            self.gain[j] = 0 if at < 0 else self.of.gpu_masks[p] & ~self.mask[0]
            for a in range(self.rows):
                self.frees[j * self.rows + a] = min(self.frees_of(self.row[a], p), self.need[a])
        for t in range(self.terms):
            if self.term[t].kind == SUM or (self.term[t].kind == GANG and self.term[t].column != NULL):
                for a in range(self.rows):
                    self.sort(t, a)

    cdef void compare(self) noexcept nogil:
        cdef int j, k
        for j in range(self.m):
            for k in range(j + 1, self.m):
                self.dominates[<Py_ssize_t>j * self.m + k] = self.dominated(j, k)

    cdef inline amount_t frees_of(self, int r, int p) noexcept nogil:
        return self.of.unsure_gpus[p] if r < 0 else self.of.freed[r, p]

    cdef void sort(self, int t, int a) noexcept nogil:
        """Pods by cost per amount of resource row `a`, the lowest first."""
        cdef int32_t* order = &self.order[(t * self.rows + a) * self.m]
        cdef int length = 0, j, k
        cdef int64_t cost
        cdef amount_t frees
        for j in range(self.m):
            frees = self.frees[j * self.rows + a]
            if frees > 0:
                cost = self.column_of(&self.term[t], self.pod[j])
                k = length
                while k > 0 and ratio_less(cost, frees, self.column_of(&self.term[t], self.pod[order[k - 1]]),
                                           self.frees[order[k - 1] * self.rows + a]):
                    order[k] = order[k - 1]
                    k -= 1
                order[k] = j
                length += 1
        self.ordered[t * self.rows + a] = length

    cdef void greed(self) noexcept nogil:
        """A first set to beat: all pods, less, from the highest cost on, each that the rest does not need."""
        cdef int j, k, a
        cdef amount_t left
        cdef bint enough
        cdef mask_t mask
        for j in range(self.m):
            self.usable[j] = 1
        j = self.m  # the pod that is tried; m = none yet
        while j >= 0:
            if j < self.m:
                self.usable[j] = 0
            enough = True
            for a in range(self.rows):
                left = self.need[a]
                for k in range(self.m):
                    if self.usable[k] and left > 0:
                        left -= self.frees[k * self.rows + a]
                enough &= left <= 0
            if self.ok != NULL:
                mask = self.mask[0]
                for k in range(self.m):
                    if self.usable[k]:
                        mask |= self.gain[k]
                enough &= self.ok[mask] != 0
            if not enough:
                if j == self.m:
                    return
                self.usable[j] = 1
            j -= 1
        for j in range(self.m):
            if self.usable[j]:
                self.take(j)
            else:
                self.spare(j)
        self.consider(self.m, False)
        for j in range(self.m - 1, -1, -1):
            if self.taken[j]:
                self.leave(self.pod[j])
            else:
                self.block(j, -1)

    cdef bint walk(self, int64_t* examined) noexcept nogil:
        """Depth first, taken before spared. False when the budget ends before the walk."""
        cdef int d = 0
        cdef bint down
        while True:
            if examined[0] >= self.budget or self.late:
                return False
            examined[0] += 1
            if examined[0] & 255 == 0 and self.is_over():
                self.late = True
                return False
            down = True
            if self.suffices(d):
                self.consider(d, True)
                down = self.masked
            if down and not self.hopeless(d):
                while d < self.m and self.blocked[d]:
                    self.spare(d)
                    d += 1
                if d < self.m:
                    self.take(d)
                    d += 1
                    continue
            while d > 0 and not self.taken[d - 1]:
                d -= 1
                self.block(d, -1)
            if d == 0:
                return True
            self.leave(self.pod[d - 1])
            self.spare(d - 1)

    cdef bint is_over(self) noexcept nogil:
        """A look at the clock."""
        if not self.deadline and not self.stop:
            return False
        self.looks += 1
        if self.looks < self.stop or (not self.stop and clock() <= self.deadline):
            return False
        if not self.stopped:
            self.stopped = self.looks
        return True

    cdef void solve(self, Py_ssize_t i) noexcept nogil:
        cdef int64_t examined = 0
        cdef bint finished
        cdef int j, t
        cdef Py_ssize_t width
        self.prepare(i)
        self.budget = max(self.left // (self.n - i), min(self.left, LEAST))
        if self.cut and not self.suffices(0) and self.hopeless(0):
            examined = 1
            finished = True
        else:
            self.compare()
            self.greed()
            finished = self.walk(&examined)
        self.examined[i] = examined
        self.left = max(self.left - examined, 0)
        if self.found:
            self.status[i] = PROVED if finished else FOUND
            self.rank_candidate()
            for j in range(self.last - self.first):
                self.chosen[self.first + j] = self.best[j]
            for t in range(self.terms - 1):
                self.cost[t * self.n + i] = self.best_value[t]
        elif finished:
            self.status[i] = NOT_LOWER if self.cut else NONE
        else:
            self.status[i] = UNDECIDED
        if i & 15 == 15 and not self.late and self.is_over():  # a clock costs a system call
            self.late = True
        for t in range(self.terms):  # the group counts serve the next candidate
            if self.term[t].kind == GROUP or self.term[t].kind == GANG:
                for width in range(self.term[t].start[self.first], self.term[t].start[self.last]):
                    self.term[t].count[self.term[t].member[width]] = 0
                    self.term[t].taken[self.term[t].member[width]] = 0
                    self.term[t].over[self.term[t].member[width]] = 0

    cdef void rank_candidate(self) noexcept nogil:
        """Keep the value found as the first or the second of all so far, where it is that. The empty set is not an
        eviction, so it does not count."""
        cdef int at, t, place = self.ahead
        cdef bint some = False
        for at in range(self.last - self.first):
            some |= self.best[at] != 0
        if not some:
            return
        for at in range(self.ahead):
            t = 0
            while t < self.terms - 1 and self.best_value[t] == self.lead[at * self.terms + t]:
                t += 1
            if t < self.terms - 1 and self.best_value[t] < self.lead[at * self.terms + t]:
                place = at
                break
        if place > 1:
            return
        if place == 0 and self.ahead:
            for t in range(self.terms):
                self.lead[self.terms + t] = self.lead[t]
        for t in range(self.terms):
            self.lead[place * self.terms + t] = self.best_value[t]
        self.ahead = min(self.ahead + 1, 2)

    cdef prepare_call(self, Candidates of, list terms):
        """Check what was passed, and take scratch space for the candidate with the most pods."""
        cdef Py_ssize_t i, widest = 0, cells
        self.kept = []
        self.of = of
        self.n, self.pods, self.resources = of.nodes, of.eligible, of.resources
        self.checked = _Terms()
        self.checked.read(of, terms)
        self.terms = self.checked.count
        self.term = self.checked.term
        self.known = self.checked.known
        self.priced = self.checked.priced
        self.capped = self.checked.capped
        for i in range(self.n):
            widest = max(widest, self.of.starts[i + 1] - self.of.starts[i])
        cells = (widest + 1) * (self.resources + 1)
        self.row = int32s(self.kept, self.resources + 1)
        self.pod = int32s(self.kept, widest)
        self.gain = <mask_t*>int32s(self.kept, widest)
        self.frees = int64s(self.kept, cells)
        self.need = int64s(self.kept, cells)
        self.blocked = int32s(self.kept, widest)
        self.dominates = bytes_of(self.kept, widest * widest)
        self.order = int32s(self.kept, cells * self.terms)
        self.ordered = int32s(self.kept, self.terms * (self.resources + 1))
        self.value = int64s(self.kept, (widest + 1) * self.terms)
        self.mask = <mask_t*>int32s(self.kept, widest + 1)
        self.taken = bytes_of(self.kept, widest)
        self.usable = bytes_of(self.kept, widest)
        self.alone = int64s(self.kept, widest * self.terms)
        self.inside = bytes_of(self.kept, widest)
        self.best = bytes_of(self.kept, widest)
        self.best_value = int64s(self.kept, self.terms)
        self.here = int64s(self.kept, self.terms)
        self.lead = int64s(self.kept, 2 * self.terms)

    cdef search(self, int64_t budget, bint skip, int64_t nanoseconds, int64_t stop):
        cdef Py_ssize_t i
        if budget < 1:
            raise ValueError("cheapest: the budget is at least one search node")
        if nanoseconds < 0 or stop < 0:
            raise ValueError("cheapest: negative time")
        self.left = budget
        self.skip = skip
        self.deadline = clock() + nanoseconds if nanoseconds else 0
        self.stop = stop
        self.looks = self.stopped = 0
        self.late = False
        self.ahead = 0
        chosen = array("B", bytes(self.pods))
        cost = array("q", bytes(8 * (self.terms - 1) * self.n))
        status = array("b", bytes(self.n))
        examined = array("q", bytes(8 * self.n))
        self.chosen = chosen
        self.cost = cost
        self.status = status
        self.examined = examined
        with nogil:
            for i in range(self.n):
                self.solve(i)
        return Victims(chosen, cost, status, examined, self.stopped)


def cheapest(Candidates candidates, terms, int64_t budget, bint skip=False, int64_t nanoseconds=0, int64_t stop=0):
    """The cheapest sufficient set of victims on each candidate node. See `victims.pyi`."""
    cdef _Search search = _Search()
    search.prepare_call(candidates, list(terms))
    return search.search(budget, skip, nanoseconds, stop)


def kube_pdb_violations(order, memberships, allowance):
    """NumPDBViolations of a list of victims, counted as kube-scheduler counts. See `victims.pyi`."""
    left = list(allowance)
    violating = 0
    for pod in order:
        violates = False
        for group in memberships[pod]:
            left[group] -= 1
            violates = violates or left[group] < 0
        violating += violates
    return violating
