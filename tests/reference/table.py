"""Twin of `ext_core.table`: tables as lists of numbers, one list per column."""

from __future__ import annotations

from collections.abc import Sequence

from ext_core.ask import Ask
from ext_core.links import LinkShapes
from ext_core.rows import NodeFacts, NodeRow, NodeUse, PodRow

CPU, MEMORY, SLOTS, FIRST_GPU = 0, 1, 2, 3
AWAY, SCHEDULABLE = 2, 4
TERMINATING, SPARED, DEVICES, LINKED = 1, 2, 16, 32
EVERY = 2**31 - 1

_EMPTY = {"gpu": -1, "shape": 0, "healthy": 0, "sure": 0, "likely": 0, "wanted": 0}
_EMPTY |= {"unknown": 0, "pending": 0, "order": 0, "flags": 0, "units": 1, "model": 0}
MOST_GPUS = 16
LARGEST = 2**61


def check(nodes: NodeTable, rows: Sequence[int], out: Sequence[float]) -> None:
    """What a kernel checks of its columns and rows."""
    if len(rows) != len(out):
        raise ValueError("rows and out differ in length")
    if any(not 0 <= row < nodes.height for row in rows):
        raise IndexError("row outside of the table")


def check_ask(nodes: NodeTable, ask: Ask) -> None:
    """What a kernel checks of the request."""
    if len(ask.amounts) != nodes.resources:
        raise ValueError("the request and the table differ in resources")


def asked(ask: Ask) -> list[tuple[int, int]]:
    """(index, units) of the GPU resources that the pod asks for."""
    return [(r, units) for r, units in enumerate(ask.amounts) if r >= FIRST_GPU and units > 0]


class NodeTable:
    """`alloc`, `used` and `claim` are one list per row of `resources` amounts; `columns` has the single numbers."""

    def __init__(self, resources: int, shapes: LinkShapes | None = None) -> None:
        if resources < FIRST_GPU:
            raise ValueError("a NodeTable has at least CPU, memory and pod slots")
        self.resources = resources
        self.shapes = LinkShapes() if shapes is None else shapes
        self.alloc: list[list[int]] = []
        self.used: list[list[int]] = []
        self.claim: list[list[int]] = []
        self.tentative: list[list[int]] = []
        self.evictable: list[list[int]] = []
        self.parts: list[list[int]] = []
        self.asked: list[list[int]] = []
        self.columns: dict[str, list[int]] = {name: [] for name in _EMPTY}
        self.versions: list[int] = []
        self._clock = 0
        self._touched: list[int] = []

    @property
    def height(self) -> int:
        return len(self.alloc)

    def add(self, row: int) -> None:
        if row < 0:
            raise ValueError("negative row")
        while self.height <= row:
            for amounts in (self.alloc, self.used, self.claim, self.tentative, self.evictable):
                amounts.append([0] * self.resources)
            for devices in (self.parts, self.asked):
                devices.append([0] * MOST_GPUS)
            self.versions.append(0)
            for name, value in _EMPTY.items():
                self.columns[name].append(value)
            self.clear(self.height - 1)
        self.clear(row)

    def clear(self, row: int) -> None:
        self._check(row)
        for amounts in (self.alloc, self.used, self.claim, self.tentative, self.evictable):
            amounts[row] = [0] * self.resources
        for name, value in _EMPTY.items():
            self.columns[name][row] = value
        for devices in (self.parts, self.asked):
            devices[row] = [0] * MOST_GPUS
        self._touch(row)

    def _touch(self, row: int) -> None:
        self._clock += 1
        self.versions[row] = self._clock

    def version_of(self, row: int) -> int:
        self._check(row)
        return self.versions[row]

    def _check(self, row: int) -> None:
        if not 0 <= row < self.height:
            raise IndexError(f"row {row} of {self.height}")

    def set_node(self, row: int, facts: NodeFacts) -> None:
        self._check(row)
        if len(facts.alloc) != self.resources or not -1 <= facts.gpu < self.resources:
            raise ValueError("set_node: amounts or resource index do not fit the table")
        if facts.units < 1 or not 0 <= facts.model < 64:
            raise ValueError("set_node: a GPU is one unit or more, and models are 0 to 63")
        columns = facts._asdict()
        self.alloc[row] = list(columns.pop("alloc"))
        self._write(row, **columns)
        self._touch(row)

    def set_held(self, row: int, use: NodeUse) -> None:
        self._check(row)
        if len(use.used) != self.resources:
            raise ValueError("set_held: amounts do not fit the table")
        if len(use.parts) > MOST_GPUS or any(units < 0 for units in use.parts):
            raise ValueError("set_held: parts are at most 16 numbers, none of them negative")
        columns = use._asdict()
        self.used[row] = list(columns.pop("used"))
        self.parts[row] = [*use.parts, *[0] * (MOST_GPUS - len(columns.pop("parts")))]
        self._write(row, **columns)
        self._touch(row)

    def _write(self, row: int, **values: int) -> None:
        for name, value in values.items():
            self.columns[name][row] = value

    def set_served(self, rows: Sequence[int], bits: int) -> None:
        if bits & ~0xF8:
            raise ValueError("set_served: bits 3 to 7 stand for resources")
        for row in rows:
            self._check(row)
            self._write(row, flags=self.columns["flags"][row] & 7 | bits)
            self._touch(row)

    def set_used(self, row: int, used: tuple[int, ...]) -> None:
        self._check(row)
        if len(used) != self.resources:
            raise ValueError("set_used: amounts do not fit the table")
        if self.used[row] != list(used):
            self.used[row] = list(used)
            self._touch(row)

    def set_order(self, rows: Sequence[int], first: int = 0) -> None:
        if first < 0:
            raise ValueError("set_order: negative place")
        for rank, row in list(enumerate(rows))[first:]:
            self._check(row)
            self.columns["order"][row] = rank

    def add_claim(
        self, row: int, amounts: Sequence[int], wanted: int, tentative: bool, evictable: bool = False
    ) -> None:
        self._check(row)
        if len(amounts) != self.resources:
            raise ValueError("add_claim: amounts do not fit the table")
        columns = [self.claim, *[self.tentative] * tentative, *[self.evictable] * (tentative and evictable)]
        for column in columns:
            column[row] = [min(a + b, LARGEST) for a, b in zip(column[row], amounts, strict=True)]
        gpu = self.columns["gpu"][row]
        units = self.columns["units"][row]
        each = amounts[gpu] // wanted.bit_count() if wanted and gpu >= 0 and units > 1 else 0
        if 0 < each < units:
            self.asked[row] = [have + each * (wanted >> i & 1) for i, have in enumerate(self.asked[row])]
        else:
            self.columns["wanted"][row] |= wanted
        self._touched.append(row)
        self._touch(row)

    def add_claims(
        self,
        rows: Sequence[int],
        priorities: Sequence[int],
        amounts: Sequence[int],
        least: int,
        skipped: Sequence[int],
    ) -> None:
        if len(priorities) != len(rows) or len(amounts) != len(rows) * self.resources:
            raise ValueError("add_claims: the columns do not fit each other")
        for row in rows:
            if row >= 0:
                self._check(row)
        for i, row in enumerate(rows):
            if row >= 0 and priorities[i] >= least and i not in skipped:
                self.add_claim(row, amounts[i * self.resources : (i + 1) * self.resources], 0, False)

    def claimed_rows(self) -> set[int]:
        return set(self._touched)

    def drop_claims(self) -> None:
        for row in self._touched:
            self.claim[row] = [0] * self.resources
            self.tentative[row] = [0] * self.resources
            self.evictable[row] = [0] * self.resources
            self.asked[row] = [0] * MOST_GPUS
            self._write(row, wanted=0)
            self._touch(row)
        self._touched.clear()

    def node(self, row: int) -> NodeRow:
        self._check(row)
        return NodeRow(
            tuple(self.alloc[row]),
            tuple(self.used[row]),
            tuple(self.claim[row]),
            tuple(self.tentative[row]),
            tuple(self.evictable[row]),
            parts=tuple(self.parts[row]),
            asked=tuple(self.asked[row]),
            **{name: column[row] for name, column in self.columns.items()},
        )

    def alloc_of(self, row: int) -> tuple[int, ...]:
        return self.node(row).alloc

    def used_of(self, row: int) -> tuple[int, ...]:
        return self.node(row).used

    def free_of(self, row: int) -> tuple[int, ...]:
        at = self.node(row)
        return tuple(a - b - c for a, b, c in zip(at.alloc, at.used, at.claim, strict=True))

    def healthy_of(self, row: int) -> int:
        return self.node(row).healthy

    def unknown_of(self, row: int) -> int:
        return self.node(row).unknown

    def graph_of(self, row: int) -> tuple[int, int, int]:
        at = self.node(row)
        return at.shape, at.healthy, at.gpu

    def left(self, row: int) -> dict[int, int]:
        """For each GPU that no pod holds or will probably take as a whole: units that are left of it."""
        at = {name: column[row] for name, column in self.columns.items()}
        free = at["healthy"] & ~at["sure"] & ~at["likely"] & ~at["wanted"]
        return {
            gpu: at["units"] - self.parts[row][gpu] - self.asked[row][gpu]
            for gpu in range(MOST_GPUS)
            if free >> gpu & 1
        }

    def named(self, resource: int, row: int) -> int:
        """Mask of the GPUs of the claims, where each names its own and nothing else is unknown, and where the node
        hands out what bind writes; else 0."""
        at = {name: column[row] for name, column in self.columns.items()}
        free = at["healthy"] & ~at["sure"]
        known = at["wanted"] & free
        whole = at["gpu"] == resource and at["units"] == 1 and self.claim[row][resource] == known.bit_count()
        seen = at["unknown"] == 0 and not at["likely"] & free
        offered = at["healthy"].bit_count() <= self.alloc[row][resource]
        return known if whole and seen and offered and self.shapes.follows_plans(at["shape"]) else 0

    def free_count(self, resource: int, row: int) -> int:
        return self.alloc[row][resource] - self.used[row][resource] - self.claim[row][resource]


class PodTable:
    """`rows[pod]` is what stands in the row, where something does."""

    def __init__(self, resources: int) -> None:
        if resources < FIRST_GPU:
            raise ValueError("a PodTable has at least CPU, memory and pod slots")
        self.resources = resources
        self.height = 0
        self.now = 0
        self.names: Sequence[tuple[str, str]] | None = None
        self.rows: dict[int, PodRow] = {}
        self._marks: dict[int, tuple[int, int, int]] = {}

    def name_rows(self, names: list[tuple[str, str]] | None) -> None:
        self.names = names

    def put(self, pod: int, row: PodRow) -> None:
        if pod < 0 or row.node < 0 or len(row.amounts) != self.resources:
            raise ValueError("put: bad row, node or amounts")
        self.height = max(self.height, pod + 1)
        self.rows[pod] = row

    def mark(self, pod: int, gang: int, budgets: int, ask: int = 0) -> None:
        if not 0 <= pod < self.height or min(gang, budgets, ask) < 0:
            raise ValueError("mark: bad row or id")
        self._marks[pod] = (gang, budgets, ask)

    def believe(self, pod: int, ignores: int) -> None:
        if not 0 <= pod < self.height:
            raise ValueError("believe: bad row")
        if pod in self.rows:
            self.rows[pod] = self.rows[pod]._replace(ignores=ignores)

    def hold(self, pod: int, mask: int, unsure: int) -> None:
        if not 0 <= pod < self.height:
            raise ValueError("hold: bad row")
        if pod in self.rows:
            self.rows[pod] = self.rows[pod]._replace(mask=mask, unsure=unsure)

    def holds(self, pod: int) -> tuple[int, int]:
        if not 0 <= pod < self.height:
            raise ValueError("holds: bad row")
        return (self.rows[pod].mask, self.rows[pod].unsure) if pod in self.rows else (0, 0)

    def row(self, pod: int) -> PodRow:
        if not 0 <= pod < self.height:
            raise ValueError("row: bad row")
        return self.rows[pod]

    def marks(self, pod: int) -> tuple[int, int, int]:
        if not 0 <= pod < self.height:
            raise ValueError("marks: bad row")
        return self._marks.get(pod, (0, 0, 0))

    def used(self, node: int) -> tuple[int, ...]:
        there = [pod.amounts for pod in self.rows.values() if pod.node == node]
        return tuple(min(sum(amounts[r] for amounts in there), LARGEST) for r in range(self.resources))

    def drop(self, pod: int) -> None:
        self.rows.pop(pod, None)
        self._marks.pop(pod, None)

    def on(self, node: int) -> list[int]:
        return sorted(row for row, pod in self.rows.items() if pod.node == node)
