"""The domains of a node and how pods fared there: columns that few rows fill, and the kernels that read them.

Domains: the rack, block or NVLink domain that a node is in, one number a level, the closest level first. A level at
which no node has a domain does not count. Doubt: how badly GPU pods fared on the node lately. What counts for the pods
of one namespace only is a short list of rows of that namespace; most namespaces have none.
"""

from array import array

cimport cython
from cython cimport view
from libc.stdlib cimport calloc, free as c_free

from ext_core.ask cimport Ask
from ext_core.checks cimport check_ask
from ext_core.ints cimport amount_t, code_t, row_t, score_t, int32_t, int64_t, uint8_t
from ext_core.reasons cimport FailingCodes
from ext_core.rows import PlaceRow
from ext_core.table cimport SCHEDULABLE, NodeTable


cdef int32_t[:, ::1] _matrix(int levels, int rows, int32_t[:, ::1] old, int kept):
    cdef int32_t[:, ::1] made = view.array((levels, rows), sizeof(int32_t), "i")
    cdef int level, i
    for level in range(levels):
        for i in range(rows):
            made[level, i] = old[level, i] if i < kept else 0
    return made


cdef class Places:
    """Columns over nodes, with the rows of NodeTable. `levels`: how many topology levels there are. The model of a
    node's GPUs is kept as the domain of a further level, which no kernel takes for one of the topology."""

    def __cinit__(self, int levels=0):
        if levels < 0:
            raise ValueError("negative number of levels")
        self.levels = levels
        self.height = 0
        self.capacity = 0
        self.owned = {}
        self.own = {}
        self.members = array("i", bytes(4 * (levels + 1)))
        self.most = array("i", bytes(4 * (levels + 1)))
        self.grow(64)

    @cython.initializedcheck(False)  # the first time no column exists
    cdef int grow(self, int rows) except -1:
        cdef int kept = self.height
        self.domain = _matrix(self.levels + 1, rows, self.domain, kept)
        new = {"doubt": array("d", bytes(8 * rows)), "failing": array("B", bytes(rows)),
               "split": array("B", bytes(rows))}
        for name, column in self.owned.items():
            new[name][:kept] = column[:kept]
        self.doubt = new["doubt"]
        self.failing = new["failing"]
        self.split = new["split"]
        self.owned = new
        self.capacity = rows
        return 0

    def _check(self, int row):
        if row < 0 or row >= self.height:
            raise IndexError(f"row {row} of {self.height}")

    def add(self, int row):
        """Make `row` usable and empty."""
        if row < 0:
            raise ValueError("negative row")
        if row >= self.capacity:
            self.grow(max(row + 1, self.capacity * 2))
        self.height = max(self.height, row + 1)
        self.clear(row)

    def clear(self, int row):
        """Write a row without domains, failures, parts of GPUs and a model."""
        self._check(row)
        self.set_domains(row, (0,) * self.levels)
        self._set(self.levels, row, 0)
        self.count(row, -1)
        self.doubt[row] = 0.0
        self.failing[row] = self.split[row] = 0

    cdef void count(self, int row, int sign) noexcept:
        """Count the row in, or out: how many rows have what few rows have."""
        self.doubted += sign if self.doubt[row] > 0.0 else 0
        self.rejected += sign if self.failing[row] else 0
        self.divided += sign if self.split[row] else 0

    def set_health(self, int row, double doubt, bint failing):
        """Write how badly GPU pods fared on the node. `doubt` >= 0; `failing`: the node is rejected for it."""
        self._check(row)
        if not doubt >= 0.0:
            raise ValueError("doubt is not negative")
        self.count(row, -1)
        self.doubt[row] = doubt
        self.failing[row] = failing
        self.count(row, 1)

    def set_own(self, str namespace, rows, doubts, failing):
        """Write what also counts for the pods of one namespace: rows in ascending order, a doubt >= 0 and 0 or 1 =
        failing for each. No rows: nothing. `clear` does not change it: the writer writes the namespace again."""
        if not len(rows) == len(doubts) == len(failing):
            raise ValueError("set_own: one doubt and one mark a row")
        cdef row_t last = -1
        cdef row_t row
        for row in rows:
            if row <= last:
                raise ValueError("set_own: rows ascend from 0")
            last = row
        for doubt in doubts:
            if not doubt >= 0.0:
                raise ValueError("doubt is not negative")
        if len(rows):
            self.own[namespace] = (array("i", rows), array("d", doubts), array("B", failing))
        else:
            self.own.pop(namespace, None)

    def namespaces(self):
        """The namespaces that have a list of their own, in the order of their names."""
        return sorted(self.own)

    def set_split(self, int row, bint split):
        """Write whether the node hands out parts of GPUs."""
        self._check(row)
        self.count(row, -1)
        self.split[row] = split
        self.count(row, 1)

    def set_domains(self, int row, tuple domains):
        """Write the domains of the node: L numbers from 1, 0 = in none."""
        self._check(row)
        if len(domains) != self.levels or (domains and min(domains) < 0):
            raise ValueError("set_domains: one number a level, none of them negative")
        cdef int level
        for level in range(self.levels):
            self._set(level, row, domains[level])

    def set_model(self, int row, int model):
        """Write the model of the node's GPUs: a number from 1, 0 = it has none."""
        self._check(row)
        if model < 0:
            raise ValueError("a model is not negative")
        self._set(self.levels, row, model)

    cdef void _set(self, int level, int row, int32_t domain) noexcept:
        self.members[level] += (1 if domain else 0) - (1 if self.domain[level, row] else 0)
        self.domain[level, row] = domain
        self.most[level] = max(self.most[level], domain)

    def doubts(self, str namespace not None):
        """Whether any node is doubted for pods of the namespace; else `trusted` gives 1 everywhere."""
        return self.doubted > 0 or namespace in self.own

    def fails(self, str namespace not None):
        """Whether `failing` may reject a node for pods of the namespace."""
        return self.rejected > 0 or namespace in self.own

    def splits(self):
        """Whether any node hands out parts of GPUs; else `whole` gives 1 everywhere."""
        return self.divided > 0

    def active(self):
        """The levels at which some node has a domain, the closest first."""
        cdef int level
        return [level for level in range(self.levels) if self.members[level] > 0]

    def models(self):
        """The largest number of a model so far; below 2 all nodes with GPUs are of one model."""
        return self.most[self.levels]

    def numbered(self, int level, const row_t[::1] rows):
        """(int32: the domain of each row at a level, -1 = none; how many there are): numbers from 0, in the order in
        which `rows` come to them. Level L: the models."""
        cdef Py_ssize_t i
        cdef int32_t* number
        cdef int32_t domain, count = 0
        if not 0 <= level <= self.levels:
            raise IndexError("no such level")
        _check(rows, rows.shape[0])
        made = array("i", bytes(4 * rows.shape[0]))
        if not rows.shape[0]:
            return made, 0
        cdef int32_t[::1] out = made
        number = _scratch(self.most[level] + 1)
        try:
            for i in range(rows.shape[0]):
                domain = self.at(level, rows[i])
                if domain and not number[domain]:
                    count += 1
                    number[domain] = count
                out[i] = number[domain] - 1
        finally:
            c_free(number)
        return made, count

    def place(self, int row):
        """One row, for people and tests."""
        self._check(row)
        domains = tuple([self.domain[level, row] for level in range(self.levels)])
        model = self.domain[self.levels, row]
        return PlaceRow(self.doubt[row], bool(self.failing[row]), bool(self.split[row]), domains, model)


cdef int _check(const row_t[::1] rows, Py_ssize_t out) except -1:
    cdef Py_ssize_t i
    if out != rows.shape[0]:
        raise ValueError("rows and out differ in length")
    for i in range(rows.shape[0]):
        if rows[i] < 0:
            raise IndexError("negative row")
    return 0


cdef inline Py_ssize_t _find(const row_t[::1] own, row_t row) noexcept nogil:
    """Where `row` is among the ascending rows of a namespace, -1 = nowhere."""
    cdef Py_ssize_t low = 0, high = own.shape[0], middle
    while low < high:
        middle = (low + high) // 2
        if own[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low if low < own.shape[0] and own[low] == row else -1


def trusted(Places places, Ask ask, const row_t[::1] rows, score_t[::1] out):
    """1 / (1 + doubt), with the doubt that counts for pods of the request's namespace only."""
    _check(rows, out.shape[0])
    cdef Py_ssize_t i, at
    cdef const row_t[::1] own
    cdef const score_t[::1] doubts
    cdef tuple held = places.own.get(ask.namespace)
    with nogil:
        for i in range(rows.shape[0]):
            out[i] = 1.0 / (1.0 + places.doubt[rows[i]]) if rows[i] < places.height else 1.0
    if held is None:
        return
    own, doubts = held[0], held[1]
    with nogil:
        for i in range(rows.shape[0]):
            at = _find(own, rows[i])
            if at >= 0:
                out[i] = 1.0 / (1.0 + ((places.doubt[rows[i]] if rows[i] < places.height else 0.0) + doubts[at]))


def whole(Places places, const row_t[::1] rows, score_t[::1] out):
    """0 where GPUs are handed out in parts, else 1."""
    _check(rows, out.shape[0])
    cdef Py_ssize_t i
    with nogil:
        for i in range(rows.shape[0]):
            out[i] = 0.0 if rows[i] < places.height and places.split[rows[i]] else 1.0


def failing(Places places, Ask ask, const row_t[::1] rows, code_t[::1] out, FailingCodes codes not None):
    """Reject the nodes that are marked as failing, for every pod or for pods of the request's namespace."""
    _check(rows, out.shape[0])
    cdef Py_ssize_t i, at
    cdef const row_t[::1] own
    cdef const uint8_t[::1] marks
    cdef tuple held = places.own.get(ask.namespace)
    with nogil:
        for i in range(rows.shape[0]):
            if out[i] == 0 and rows[i] < places.height and places.failing[rows[i]]:
                out[i] = codes.node
    if held is None:
        return
    own, marks = held[0], held[2]
    with nogil:
        for i in range(rows.shape[0]):
            if out[i] == 0:
                at = _find(own, rows[i])
                if at >= 0 and marks[at]:
                    out[i] = codes.namespace


def split(Places places, const row_t[::1] rows, code_t[::1] out, code_t code):
    """Reject the nodes that hand out parts of GPUs."""
    _check(rows, out.shape[0])
    cdef Py_ssize_t i
    with nogil:
        for i in range(rows.shape[0]):
            if out[i] == 0 and rows[i] < places.height and places.split[rows[i]]:
                out[i] = code


cdef int32_t* _scratch(Py_ssize_t size) except NULL:
    cdef int32_t* made = <int32_t*>calloc(size if size > 0 else 1, sizeof(int32_t))
    if made == NULL:
        raise MemoryError()
    return made


def spread(Places places, const row_t[::1] rows, const row_t[::1] siblings, score_t[::1] out):
    """How few siblings are near: on the node, then in the node's closest domain.

    1 - (s + d / (D + 1)) / (S + 1): s siblings on the node, d in its domain; S, D: the most that any candidate has.
    `siblings`: the row of each sibling, repeated where several are on one node; negative rows are left out.
    """
    _check(rows, out.shape[0])
    cdef list active = places.active()
    cdef int level = active[0] if active else -1
    cdef Py_ssize_t i, width = places.height
    for i in range(rows.shape[0]):
        width = max(width, rows[i] + 1)
    cdef int32_t* here = _scratch(width)
    cdef int32_t* near = NULL
    cdef int32_t most_here = 0, most_near = 0, of
    cdef row_t row
    try:
        near = _scratch(places.most[level] + 1 if level >= 0 else 1)
        with nogil:
            for i in range(siblings.shape[0]):
                row = siblings[i]
                if row < 0:
                    continue
                if row < width:
                    here[row] += 1
                if level >= 0 and places.at(level, row):
                    near[places.at(level, row)] += 1
            for i in range(rows.shape[0]):
                row = rows[i]
                most_here = max(most_here, here[row])
                if level >= 0:
                    most_near = max(most_near, near[places.at(level, row)])
            for i in range(rows.shape[0]):
                row = rows[i]
                of = near[places.at(level, row)] if level >= 0 else 0
                out[i] = 1.0 - (here[row] + <double>of / (most_near + 1)) / (most_here + 1)
    finally:
        c_free(here)
        c_free(near)


def together(Places places, const row_t[::1] rows, const row_t[::1] kin, score_t[::1] out):
    """How close the node is to the group's other pods: the mean share of them on the node, then in each level's
    domain.

    `kin`: the row of each of them, repeated where several are on one node. 0 where there is none.
    """
    _check(rows, out.shape[0])
    cdef list active = places.active()
    cdef Py_ssize_t i, width = places.height, known = 0
    for i in range(rows.shape[0]):
        width = max(width, rows[i] + 1)
        out[i] = 0.0
    for i in range(kin.shape[0]):
        known += kin[i] >= 0
    if known == 0:
        return
    cdef int level
    cdef double whole = <double>known * (len(active) + 1)
    cdef int32_t* shared = _scratch(width)
    try:
        with nogil:
            for i in range(kin.shape[0]):
                if 0 <= kin[i] < width:
                    shared[kin[i]] += 1
            for i in range(rows.shape[0]):
                out[i] += shared[rows[i]]
        for level in active:
            c_free(shared)
            shared = NULL
            shared = _scratch(places.most[level] + 1)
            with nogil:
                for i in range(kin.shape[0]):
                    if kin[i] >= 0:
                        shared[places.at(level, kin[i])] += 1
                shared[0] = 0  # in no domain: no pod is near
                for i in range(rows.shape[0]):
                    out[i] += shared[places.at(level, rows[i])]
        with nogil:
            for i in range(rows.shape[0]):
                out[i] /= whole
    finally:
        c_free(shared)


def alike(Places places, const row_t[::1] rows, const row_t[::1] kin, score_t[::1] out):
    """The share of the group's other pods that are on nodes of the row's model. `kin`: the row of each of them; those
    on nodes without a model do not count. 1 where none counts."""
    _check(rows, out.shape[0])
    cdef Py_ssize_t i, known = 0
    cdef int model = places.levels, number, models = places.most[model] + 1
    cdef double* share = <double*>calloc(models, sizeof(double))
    if share == NULL:
        raise MemoryError()
    try:
        with nogil:
            for i in range(kin.shape[0]):
                if kin[i] >= 0 and places.at(model, kin[i]):
                    share[places.at(model, kin[i])] += 1.0
                    known += 1
            for number in range(models):
                share[number] = share[number] / known if known else 1.0
            for i in range(rows.shape[0]):
                out[i] = share[places.at(model, rows[i])]
    finally:
        c_free(share)


NONE, NO_MARKS = array("i"), array("B")


cdef inline int64_t _slots(NodeTable nodes, Places places, Ask ask, row_t row, const row_t[::1] own,
                           const uint8_t[::1] marks) noexcept nogil:
    """How many pods like the request the node can take now. `own`, `marks`: the namespace's rows, and which fail."""
    cdef amount_t wanted = ask.amount[ask.resource], free = nodes.free_count(ask.resource, row)
    cdef Py_ssize_t at
    if free < wanted or not nodes.flags[row] & SCHEDULABLE or (row < places.height and places.failing[row]):
        return 0
    if own.shape[0]:
        at = _find(own, row)
        if at >= 0 and marks[at]:
            return 0
    return free // wanted


cdef int _check_group(
    str asking, NodeTable nodes, Ask ask, int64_t left, const row_t[::1] rows, Py_ssize_t out
) except -1:
    """`asking`: the function that is asked about a group of `left` pods."""
    cdef Py_ssize_t i
    _check(rows, out)
    check_ask(nodes, ask)
    if ask.resource < 0 or left < 1:
        raise ValueError(f"{asking}: a request without GPUs, or a group of no pods")
    for i in range(rows.shape[0]):
        if rows[i] >= nodes.height:
            raise IndexError("row outside of the table")
    return 0


def best_fit(NodeTable nodes, Places places, Ask ask, int64_t left, const row_t[::1] rows, score_t[::1] out):
    """Where a group should begin of which `left` pods like the request have no node yet.

    The node, then each level's domain, either has room for all of them now or does not. With A levels, the f-th of
    them (the node is 0) the first that has, room for c pods there and for b at the level before:
    (A + 1 - f + left / (c + 1) + b / (left + 1) / 1024) / (A + 2). So the closest domain that holds the group comes
    first; then the one that it fills best; then, in it, where most of them fit near each other. Without any such
    level: room at the last level / (left + 1) / (A + 2).
    """
    _check_group("best_fit", nodes, ask, left, rows, out.shape[0])
    cdef Py_ssize_t i
    cdef tuple held = places.own.get(ask.namespace, (NONE, None, NO_MARKS))
    cdef const row_t[::1] own = held[0]
    cdef const uint8_t[::1] marks = held[2]
    cdef object array_of = array("i", places.active())
    cdef int32_t[::1] active = array_of
    cdef int count = len(array_of), a, first
    cdef Py_ssize_t width = 1
    for a in range(count):
        width = max(width, places.most[active[a]] + 1)
    cdef int64_t* room = <int64_t*>calloc(width * max(count, 1), sizeof(int64_t))
    if room == NULL:
        raise MemoryError()
    cdef row_t row
    cdef int64_t fits, before
    try:
        with nogil:
            for row in range(nodes.height):
                fits = _slots(nodes, places, ask, row, own, marks)
                for a in range(count):
                    room[a * width + places.at(active[a], row)] += fits
            for a in range(count):
                room[a * width] = 0  # in no domain
            for i in range(rows.shape[0]):
                row = rows[i]
                before = 0
                fits = _slots(nodes, places, ask, row, own, marks)
                first = 0
                while fits < left and first < count:
                    before = fits
                    fits = room[first * width + places.at(active[first], row)]
                    first += 1
                if fits >= left:
                    out[i] = (count + 1 - first + <double>left / (fits + 1)
                              + <double>before / (left + 1) / 1024) / (count + 2)
                else:
                    out[i] = <double>fits / (left + 1) / (count + 2)
    finally:
        c_free(room)


def holds(NodeTable nodes, Places places, Ask ask, int64_t left, const row_t[::1] rows, score_t[::1] out):
    """Whether the nodes of the row's model have room for the `left` pods like the request of which none has a node yet:
    1 where they have, else room / (left + 1)."""
    _check_group("holds", nodes, ask, left, rows, out.shape[0])
    cdef Py_ssize_t i
    cdef tuple held = places.own.get(ask.namespace, (NONE, None, NO_MARKS))
    cdef const row_t[::1] own = held[0]
    cdef const uint8_t[::1] marks = held[2]
    cdef int model = places.levels, number, models = places.most[model] + 1
    cdef double* room = <double*>calloc(models, sizeof(double))
    if room == NULL:
        raise MemoryError()
    cdef row_t row
    try:
        with nogil:
            for row in range(nodes.height):
                room[places.at(model, row)] += _slots(nodes, places, ask, row, own, marks)
            for number in range(models):
                room[number] = 1.0 if room[number] >= left else room[number] / (left + 1)
            for i in range(rows.shape[0]):
                out[i] = room[places.at(model, rows[i])]
    finally:
        c_free(room)
