"""The cost terms of a victim search, and its tables of GPU sets, checked and packed.

Every index, sign and sum that `victims` relies on is checked here, so its loops need no checks.
"""

from array import array

from libc.stdint cimport INT64_MAX

from ext_core.candidates cimport Candidates
from ext_core.ints cimport int32_t, int64_t, mask_t, uint8_t

cdef int64_t* int64s(list kept, Py_ssize_t length) except NULL:
    made = array("q", bytes(8 * (length + 1)))
    kept.append(made)
    cdef int64_t[::1] view = made
    return &view[0]


cdef int32_t* int32s(list kept, Py_ssize_t length) except NULL:
    made = array("i", bytes(4 * (length + 1)))
    kept.append(made)
    cdef int32_t[::1] view = made
    return &view[0]


cdef uint8_t* bytes_of(list kept, Py_ssize_t length) except NULL:
    made = array("B", bytes(length + 1))
    kept.append(made)
    cdef uint8_t[::1] view = made
    return &view[0]


cdef int _same(str what, Py_ssize_t found, Py_ssize_t wanted) except -1:
    if found != wanted:
        raise ValueError(f"cheapest: {what} has {found} items, not {wanted}")
    return 0


cdef class _Terms:
    """The terms of one call."""

    cdef int read(self, Candidates of, list terms) except -1:
        """ValueError, OverflowError: what the caller passed does not fit together."""
        cdef int i
        self.of = of
        self.kept = []
        self.priced = False
        self.capped = False
        self.check_columns()
        self.read_tables()
        self.check_masks()
        self.count = <int>len(terms) + 1
        self.term = <Term*>int64s(self.kept, self.count * ((sizeof(Term) + 7) // 8))
        for i in range(self.count - 1):
            self.read_term(i, terms[i])
        self.term[self.count - 1].most = INT64_MAX
        self.term[self.count - 1].kind = SUM  # the first tie-break: fewest pods
        return 0

    cdef int check_columns(self) except -1:
        cdef Candidates of = self.of
        cdef Py_ssize_t i, p
        cdef int r
        if of.starts[0] != 0 or of.starts[of.nodes] != of.eligible:
            raise ValueError(f"cheapest: start does not span the {of.eligible} pods")
        for i in range(of.nodes):
            if of.starts[i + 1] < of.starts[i]:
                raise ValueError(f"cheapest: start falls at candidate {i}")
            if of.unknown_gpus[i] < 0:
                raise ValueError(f"cheapest: unknown is negative at candidate {i}")
        for p in range(of.eligible):
            if of.unsure_gpus[p] < 0:
                raise ValueError(f"cheapest: unsure is negative at pod {p}")
        for r in range(of.resources):
            for p in range(of.eligible):
                if of.freed[r, p] < 0:
                    raise ValueError(f"cheapest: amounts is negative at pod {p}")
        return 0

    cdef int read_tables(self) except -1:
        """Fills, per table, what the bounds read."""
        cdef list ok = self.of.ok
        cdef Py_ssize_t size, mask, bit
        cdef const uint8_t[::1] given
        cdef uint8_t* above
        cdef Table* table
        cdef bint monotone
        self.tables = len(ok)
        self.known = <Table*>int64s(self.kept, (self.tables * sizeof(Table)) // 8 + 1)
        for index, column in enumerate(ok):
            given = column
            size = given.shape[0]
            if size < 1 or size > 1 << 16 or size & (size - 1):
                raise ValueError(f"cheapest: ok[{index}] has {size} items, not 1 << GPUs with at most 16 GPUs")
            self.kept.append(memoryview(column))
            table = &self.known[<int>index]
            table.ok = &given[0]
            above = bytes_of(self.kept, size)
            monotone = True
            for mask in range(size):
                if given[mask] > 1:
                    raise ValueError(f"cheapest: ok[{index}][{mask}] is neither 0 nor 1")
                above[mask] = given[mask]
            bit = 1
            with nogil:
                while bit < size:
                    for mask in range(size):
                        if not mask & bit:
                            monotone &= given[mask] <= given[mask | bit]
                            above[mask] |= above[mask | bit]
                    bit <<= 1
            table.above = above
            table.monotone = monotone
        return 0

    cdef int check_masks(self) except -1:
        """Every mask must be an index of its candidate's table."""
        cdef Candidates of = self.of
        cdef Py_ssize_t i, p
        cdef mask_t union_of
        for i in range(of.nodes):
            if of.tables[i] < -1 or of.tables[i] >= self.tables:
                raise ValueError(f"cheapest: candidate {i} has table {of.tables[i]} of {self.tables}")
            if of.tables[i] >= 0:
                union_of = of.free_gpus[i]
                for p in range(of.starts[i], of.starts[i + 1]):
                    union_of |= of.gpu_masks[p]
                if union_of >= <mask_t>len(of.ok[of.tables[i]]):
                    raise ValueError(f"cheapest: candidate {i} has GPUs beyond those of its table")
        return 0

    cdef int read_term(self, int i, tuple term) except -1:
        """Check one cost term and point term `i` at its columns."""
        cdef Term* t = &self.term[i]
        kind = term[0] if term else None
        t.most = INT64_MAX
        if kind == "below":
            if len(term) != 3 or term[2][0] not in ("sum", "max", "gang"):
                raise ValueError(f"cheapest: terms[{i}] has no form that can have a ceiling")
            self.read_term(i, term[2])
            t.most = term[1]
            self.capped = True
            return 0
        sizes = {"sum": (2, 3), "max": (2,), "group": (5,), "gang": (5, 6), "mask": (2,)}
        if kind not in sizes or len(term) not in sizes[kind]:
            raise ValueError(f"cheapest: terms[{i}] is not a cost term of a known form: {kind!r}, {len(term)} items")
        if kind == "sum" or kind == "max":
            t.kind = SUM if kind == "sum" else MAX
            t.column = self.read_column(f"terms[{i}]'s column", term[1], kind == "sum")
            if len(term) == 3:
                t.lacking = self.read_lacking(f"terms[{i}]'s lacking", term[2])
        elif kind == "mask":
            t.kind = MASK
            self.priced = True
            self.read_prices(i, term[1])
        else:
            t.kind = GROUP if kind == "group" else GANG
            self.read_groups(i, term)
        return 0

    cdef const int64_t* read_column(self, str what, column, bint positive) except NULL:
        cdef const int64_t[::1] given = column
        cdef Py_ssize_t i, p
        cdef int64_t total
        _same(what, given.shape[0], self.of.eligible)
        self.kept.append(memoryview(column))
        if positive:
            for i in range(self.of.nodes):
                total = 0
                for p in range(self.of.starts[i], self.of.starts[i + 1]):
                    if given[p] < 0:
                        raise ValueError(f"cheapest: {what} is negative at pod {p}")
                    if given[p] > INT64_MAX - total:
                        raise OverflowError(f"cheapest: {what} adds up to more than 64 bits on candidate {i}")
                    total += given[p]
        return &given[0] if self.of.eligible else int64s(self.kept, 0)

    cdef const int64_t* read_lacking(self, str what, column) except NULL:
        cdef const int64_t[::1] given = column
        cdef Py_ssize_t i
        _same(what, given.shape[0], self.of.nodes)
        for i in range(self.of.nodes):
            if given[i] < 0:
                raise ValueError(f"cheapest: {what} is negative at candidate {i}")
        self.kept.append(memoryview(column))
        return &given[0] if self.of.nodes else int64s(self.kept, 0)

    cdef int read_groups(self, int i, tuple term) except -1:
        cdef Term* t = &self.term[i]
        cdef const int32_t[::1] start = term[1], member = term[2]
        cdef const int64_t[::1] allowance = term[3], price = term[4]
        cdef Py_ssize_t c, e, g, groups = allowance.shape[0]
        cdef int64_t total
        what = f"terms[{i}]"
        self.check_members(what, start, member, groups)
        _same(f"{what}'s price", price.shape[0], groups)
        for g in range(groups):
            if price[g] < 0:
                raise ValueError(f"cheapest: {what} has a negative price at group {g}")
        for c in range(self.of.nodes):
            total = 0
            for e in range(start[self.of.starts[c]], start[self.of.starts[c + 1]]):
                if price[member[e]] > INT64_MAX - total:
                    raise OverflowError(f"cheapest: {what}'s prices add up to more than 64 bits on candidate {c}")
                total += price[member[e]]
        for column in term[1:5]:
            self.kept.append(memoryview(column))
        t.start = &start[0]
        t.member = &member[0] if member.shape[0] else int32s(self.kept, 0)
        t.allowance = &allowance[0] if groups else int64s(self.kept, 0)
        t.price = &price[0] if groups else int64s(self.kept, 0)
        t.count = int32s(self.kept, groups)
        t.taken = int64s(self.kept, groups)
        t.over = int32s(self.kept, groups)
        if t.kind == GANG:
            self.check_gangs(i, groups)
        if len(term) == 6:
            t.column = self.read_column(f"{what}'s column", term[5], True)
            self.check_spans(i)
        return 0

    cdef int check_members(
        self, str what, const int32_t[::1] start, const int32_t[::1] member, Py_ssize_t groups
    ) except -1:
        cdef Py_ssize_t p, e, f, pods = self.of.eligible
        _same(f"{what}'s member_start", start.shape[0], pods + 1)
        if start[0] != 0 or start[pods] != member.shape[0]:
            raise ValueError(f"cheapest: {what}'s member_start does not span its members")
        for p in range(pods):
            if start[p + 1] < start[p]:
                raise ValueError(f"cheapest: {what}'s member_start falls at pod {p}")
        for p in range(pods):
            for e in range(start[p], start[p + 1]):
                if member[e] < 0 or member[e] >= groups:
                    raise ValueError(f"cheapest: {what} puts pod {p} into group {member[e]} of {groups}")
                for f in range(start[p], e):
                    if member[e] == member[f]:
                        raise ValueError(f"cheapest: {what} puts pod {p} into group {member[e]} twice")
        return 0

    cdef int check_gangs(self, int i, Py_ssize_t groups) except -1:
        """A group is of one gang: that of all its pods."""
        cdef Term* t = &self.term[i]
        cdef int32_t* gang = int32s(self.kept, groups)
        cdef int p, e, g
        for p in range(self.of.eligible):
            for e in range(t.start[p], t.start[p + 1]):
                g = t.member[t.start[p]] + 1
                if gang[t.member[e]] not in (0, g):
                    raise ValueError(f"cheapest: terms[{i}] has group {t.member[e]} in more than one gang")
                gang[t.member[e]] = g
        return 0

    cdef int check_spans(self, int i) except -1:
        """A gang's price must cover its members' own costs on each node: breaking it cannot lower the cost of a set."""
        cdef Term* t = &self.term[i]
        cdef Py_ssize_t c
        cdef int p, g
        cdef int64_t alone
        for c in range(self.of.nodes):
            alone = 0
            for p in range(self.of.starts[c], self.of.starts[c + 1]):
                if t.start[p + 1] == t.start[p]:
                    alone += t.column[p]
                    continue
                g = t.member[t.start[p]]
                if t.column[p] > t.price[g] - t.taken[g]:
                    raise ValueError(f"cheapest: terms[{i}]: gang {g} costs less than its members on candidate {c}")
                t.taken[g] += t.column[p]
                t.count[g] = 1
            for p in range(self.of.starts[c], self.of.starts[c + 1]):
                if t.start[p + 1] > t.start[p]:
                    g = t.member[t.start[p]]
                    if t.count[g]:
                        t.taken[g] = t.count[g] = 0
                        if t.price[g] > INT64_MAX - alone:
                            raise OverflowError(f"cheapest: terms[{i}] adds up to more than 64 bits on candidate {c}")
                        alone += t.price[g]
        return 0

    cdef int read_prices(self, int i, list tables) except -1:
        cdef Term* t = &self.term[i]
        cdef const int64_t[::1] given
        cdef int64_t* floor
        cdef Py_ssize_t size, mask, bit
        cdef int index
        _same(f"terms[{i}]'s list of tables", len(tables), self.tables)
        t.tables = <prices_t*>int64s(self.kept, self.tables)
        t.floors = <prices_t*>int64s(self.kept, self.tables)
        for index in range(self.tables):
            given = tables[index]
            size = len(self.of.ok[index])
            _same(f"terms[{i}]'s table {index}", given.shape[0], size)
            self.kept.append(memoryview(tables[index]))
            floor = int64s(self.kept, size)
            with nogil:
                for mask in range(size):
                    floor[mask] = given[mask] if self.known[index].ok[mask] else INT64_MAX
                bit = 1
                while bit < size:
                    for mask in range(size):
                        if not mask & bit:
                            floor[mask] = min(floor[mask], floor[mask | bit])
                    bit <<= 1
            t.tables[index] = &given[0]
            t.floors[index] = floor
        return 0
