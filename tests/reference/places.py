"""Twin of `ext_core.places`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ext_core.ask import Ask
from ext_core.reasons import FailingCodes
from ext_core.rows import PlaceRow
from tests.reference.table import NodeTable, check_ask

SCHEDULABLE = 4
CLEAN: tuple[float, bool, bool] = (0.0, False, False)


class Places:
    """Rows that were never written are healthy nodes in no domain."""

    def __init__(self, levels: int = 0) -> None:
        if levels < 0:
            raise ValueError("negative number of levels")
        self.levels = levels
        self.height = 0
        self.facts: dict[int, tuple[float, bool, bool]] = {}  # row -> (doubt, failing, split)
        self.domains: dict[int, tuple[int, ...]] = {}
        self.model: dict[int, int] = {}
        self.largest = 0  # number of a model so far
        self.own: dict[str, dict[int, tuple[float, int]]] = {}  # namespace -> row -> (doubt, failing)

    def _check(self, row: int) -> None:
        if not 0 <= row < self.height:
            raise IndexError(f"row {row} of {self.height}")

    def add(self, row: int) -> None:
        if row < 0:
            raise ValueError("negative row")
        self.height = max(self.height, row + 1)
        self.clear(row)

    def clear(self, row: int) -> None:
        self._check(row)
        self.facts[row] = CLEAN
        self.domains[row] = (0,) * self.levels
        self.model[row] = 0

    def set_health(self, row: int, doubt: float, failing: bool) -> None:
        self._check(row)
        if not doubt >= 0.0:
            raise ValueError("doubt is not negative")
        self.facts[row] = (doubt, failing, self.facts.get(row, CLEAN)[2])

    def set_own(self, namespace: str, rows: Sequence[int], doubts: Sequence[float], failing: Sequence[int]) -> None:
        if not len(rows) == len(doubts) == len(failing):
            raise ValueError("set_own: one doubt and one mark a row")
        if list(rows) != sorted(set(rows)) or any(row < 0 for row in rows):
            raise ValueError("set_own: rows ascend from 0")
        if not all(doubt >= 0.0 for doubt in doubts):
            raise ValueError("doubt is not negative")
        self.own.pop(namespace, None)
        if rows:
            self.own[namespace] = dict(zip(rows, zip(doubts, failing, strict=True), strict=True))

    def namespaces(self) -> list[str]:
        return sorted(self.own)

    def doubt(self, row: int, namespace: str) -> float:
        return self.facts.get(row, CLEAN)[0] + self.own.get(namespace, {}).get(row, (0.0, 0))[0]

    def rejected(self, row: int, namespace: str) -> bool:
        """For pods of the namespace only."""
        return bool(self.own.get(namespace, {}).get(row, (0.0, 0))[1])

    def set_split(self, row: int, split: bool) -> None:
        self._check(row)
        self.facts[row] = (*self.facts.get(row, CLEAN)[:2], split)

    def set_domains(self, row: int, domains: tuple[int, ...]) -> None:
        self._check(row)
        if len(domains) != self.levels or any(domain < 0 for domain in domains):
            raise ValueError("set_domains: one number a level, none of them negative")
        self.domains[row] = domains

    def set_model(self, row: int, model: int) -> None:
        self._check(row)
        if model < 0:
            raise ValueError("a model is not negative")
        self.model[row] = model
        self.largest = max(self.largest, model)

    def models(self) -> int:
        return self.largest

    def doubts(self, namespace: str) -> bool:
        return namespace in self.own or any(doubt > 0.0 for doubt, _, _ in self.facts.values())

    def fails(self, namespace: str) -> bool:
        return namespace in self.own or any(failing for _, failing, _ in self.facts.values())

    def splits(self) -> bool:
        return any(split for _, _, split in self.facts.values())

    def active(self) -> list[int]:
        return [level for level in range(self.levels) if any(there[level] for there in self.domains.values())]

    def numbered(self, level: int, rows: Sequence[int]) -> tuple[list[int], int]:
        if not 0 <= level <= self.levels:
            raise IndexError("no such level")
        if any(row < 0 for row in rows):
            raise IndexError("negative row")
        there = [(*self.domains.get(row, (0,) * self.levels), self.model.get(row, 0))[level] for row in rows]
        met = [domain for domain in dict.fromkeys(there) if domain]
        return [met.index(domain) if domain else -1 for domain in there], len(met)

    def place(self, row: int) -> PlaceRow:
        self._check(row)
        return PlaceRow(*self.facts.get(row, CLEAN), self.domains.get(row, (0,) * self.levels), self.model.get(row, 0))

    def near(self, row: int) -> list[str]:
        """Names of what the node is in: itself, then its domain at each active level, "" for none."""
        domains = self.domains.get(row, (0,) * self.levels)
        return [f"node {row}", *(f"{level}/{domains[level]}" if domains[level] else "" for level in self.active())]


def _check(rows: list[int], out: list[float] | list[int]) -> None:
    if len(rows) != len(out):
        raise ValueError("rows and out differ in length")
    if any(row < 0 for row in rows):
        raise IndexError("negative row")


def trusted(places: Places, ask: Ask, rows: list[int], out: list[float]) -> None:
    _check(rows, out)
    for i, row in enumerate(rows):
        out[i] = 1.0 / (1.0 + places.doubt(row, ask.namespace))


def whole(places: Places, rows: list[int], out: list[float]) -> None:
    _check(rows, out)
    for i, row in enumerate(rows):
        out[i] = 0.0 if places.facts.get(row, CLEAN)[2] else 1.0


def failing(places: Places, ask: Ask, rows: list[int], out: list[int], codes: FailingCodes) -> None:
    _check(rows, out)
    for i, row in enumerate(rows):
        if not out[i] and places.facts.get(row, CLEAN)[1]:
            out[i] = codes.node
        elif not out[i] and places.rejected(row, ask.namespace):
            out[i] = codes.namespace


def split(places: Places, rows: list[int], out: list[int], code: int) -> None:
    _check(rows, out)
    for i, row in enumerate(rows):
        if not out[i] and places.facts.get(row, CLEAN)[2]:
            out[i] = code


def spread(places: Places, rows: list[int], siblings: list[int], out: list[float]) -> None:
    _check(rows, out)
    there = [places.near(row) for row in siblings if row >= 0]
    counts = []
    for row in rows:
        near = [*places.near(row), ""][:2]
        counts.append([sum(name != "" and name in other[:2] for other in there) for name in near])
    most_here = max((here for here, _ in counts), default=0)
    most_near = max((near for _, near in counts), default=0)
    for i, (here, by) in enumerate(counts):
        out[i] = 1.0 - (here + by / (most_near + 1)) / (most_here + 1)


def together(places: Places, rows: list[int], kin: list[int], out: list[float]) -> None:
    _check(rows, out)
    there = [places.near(row) for row in kin if row >= 0]
    for i, row in enumerate(rows):
        mine = places.near(row)
        shared = sum(name != "" and name in other for other in there for name in mine)
        out[i] = shared / (len(there) * len(mine)) if there else 0.0


def alike(places: Places, rows: list[int], kin: list[int], out: list[float]) -> None:
    _check(rows, out)
    models = [model for row in kin if (model := places.model.get(row, 0))]
    for i, row in enumerate(rows):
        out[i] = models.count(places.model.get(row, 0)) / len(models) if models else 1.0


def _open_slots(nodes: NodeTable, places: Places, ask: Ask, row: int) -> int:
    """How many pods like the request the node takes."""
    resource = ask.resource
    free = nodes.alloc[row][resource] - nodes.used[row][resource] - nodes.claim[row][resource]
    is_open = nodes.columns["flags"][row] & SCHEDULABLE and not places.facts.get(row, CLEAN)[1]
    is_open = is_open and not places.rejected(row, ask.namespace)
    return max(0, free) // ask.amounts[resource] if is_open else 0


def _check_group(asking: str, nodes: NodeTable, ask: Ask, left: int, rows: list[int], out: list[float]) -> None:
    _check(rows, out)
    check_ask(nodes, ask)
    if ask.resource < 0 or left < 1:
        raise ValueError(f"{asking}: a request without GPUs, or a group of no pods")
    if any(row >= nodes.height for row in rows):
        raise IndexError("row outside of the table")


def best_fit(nodes: NodeTable, places: Places, ask: Ask, left: int, rows: list[int], out: list[float]) -> None:
    _check_group("best_fit", nodes, ask, left, rows, out)
    room: dict[str, int] = {}
    for row in range(nodes.height):
        for name in places.near(row):
            room[name] = room.get(name, 0) + _open_slots(nodes, places, ask, row)
    room[""] = 0
    for i, row in enumerate(rows):
        rooms = [room[name] for name in places.near(row)]
        levels = len(rooms) - 1
        holds = [f for f, fits in enumerate(rooms) if fits >= left]
        if holds:
            f = holds[0]
            before = rooms[f - 1] if f else 0
            out[i] = (levels + 1 - f + left / (rooms[f] + 1) + before / (left + 1) / 1024) / (levels + 2)
        else:
            out[i] = rooms[-1] / (left + 1) / (levels + 2)


def holds(nodes: NodeTable, places: Places, ask: Ask, left: int, rows: list[int], out: list[float]) -> None:
    _check_group("holds", nodes, ask, left, rows, out)
    room: Counter[int] = Counter()
    for row in range(nodes.height):
        room[places.model.get(row, 0)] += _open_slots(nodes, places, ask, row)
    for i, row in enumerate(rows):
        fits = room[places.model.get(row, 0)]
        out[i] = 1.0 if fits >= left else fits / (left + 1)
