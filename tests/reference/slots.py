"""Twin of `ext_core.slots` and `ext_core.slot_counts`. Nothing is kept: each call counts every slot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

from ext_core.ask import Ask
from ext_core.links import LinkShapes
from tests.reference.table import CPU, MEMORY, SCHEDULABLE, SLOTS, NodeTable, check, check_ask

Type = tuple[int, int, int, int, int, int, int]  # resource, devices, share, cpu, memory, models, linked


@dataclass(frozen=True)
class Room:
    """What a node has left. `spare`: units of each resource; `left`: of each GPU that no pod holds as a whole."""

    cpu: int
    memory: int
    slots: int
    spare: tuple[int, ...]
    left: tuple[tuple[int, int], ...]

    def whole(self, units: int) -> tuple[int, ...]:
        return tuple(gpu for gpu, left in self.left if left >= units)


def _mask(gpus: tuple[int, ...]) -> int:
    return sum(1 << gpu for gpu in gpus)


class Slots:
    def __init__(self, most: int = 256) -> None:
        if not 1 <= most <= 1024:
            raise ValueError("1 to 1024 types")
        self.most = most
        self._syncs = 0
        self._types: list[Type] = []
        self._height = 0
        self._counts: list[list[int]] = []
        self._filled = 0.0
        self._known: dict[tuple[LinkShapes, int, tuple[int, ...], int], int] = {}

    def set_types(self, types: list[Type]) -> None:
        if len(types) > self.most:
            raise ValueError(f"{len(types)} types, {self.most} at most")
        self._types, self._counts, self._filled = [], [], 0.0
        for i, (resource, devices, share, cpu, memory, models, linked) in enumerate(types):
            if not (
                0 <= devices <= 100_000
                and 1 <= share < 2**31
                and 0 <= cpu <= 2**50
                and 0 <= memory <= 2**50
                and 0 <= models < 2**64
                and 0 <= linked <= 2
                and 0 <= resource < 2**15
            ):
                raise ValueError(f"type {i} is out of range")
        self._types = list(types)

    def sync(self, nodes: NodeTable) -> int:
        if any(devices and resource >= nodes.resources for resource, devices, *_ in self._types):
            raise ValueError("a type's resource is not in the table")
        self._counts = [self._count(nodes, row, _room(nodes, row)) for row in range(nodes.height)]
        every = free = 0.0
        for row in range(nodes.height):
            gpu = nodes.columns["gpu"][row]
            if gpu >= 0:
                every += _gpus(nodes, row, nodes.alloc[row])
                free += nodes.free_count(gpu, row) / nodes.columns["units"][row]
        self._filled = min(1.0, max(0.0, 1.0 - free / every)) if every > 0 else 0.0
        self._syncs += 1
        return self._syncs

    def totals(self) -> list[int]:
        return [sum(counts[t] for counts in self._counts) for t in range(len(self._types))]

    def filled(self) -> float:
        return self._filled

    def counts(self, row: int) -> list[int]:
        if not 0 <= row < len(self._counts):
            raise IndexError("row outside of the table")
        return self._counts[row]

    def fill(
        self,
        nodes: NodeTable,
        ask: Ask,
        rows: list[int],
        prices: list[float],
        fullness: float,
        out: list[float],
    ) -> None:
        self._check(nodes, ask, prices)
        resource, devices, share, cpu, *_ = _type(ask)
        check(nodes, rows, out)
        self.sync(nodes)
        with_gpus = [row for row in range(nodes.height) if nodes.columns["gpu"][row] >= 0]
        most_cpu = max((nodes.alloc[row][CPU] for row in with_gpus), default=0)
        most_gpus = max((_gpus(nodes, row, nodes.alloc[row]) for row in with_gpus), default=0.0)
        for i, row in enumerate(rows):
            out[i] = self._cheapest(nodes, row, ask, prices)[0]
            left = 0.0
            if most_cpu > 0:
                left += (nodes.free_count(CPU, row) - cpu) / most_cpu
            gpu = nodes.columns["gpu"][row]
            if gpu >= 0 and most_gpus > 0:
                spare = nodes.free_count(gpu, row) - (devices * share if resource == gpu else 0)
                left += spare / nodes.columns["units"][row] / most_gpus
            if fullness > 0:
                out[i] += fullness * (0.5 * left)
            out[i] = 1.0 / (1.0 + max(out[i], 0.0))

    def placed(
        self, nodes: NodeTable, ask: Ask, rows: list[int], prices: list[float], priced: int, most: int
    ) -> tuple[list[int], list[list[float]]]:
        self._check(nodes, ask, prices)
        check(nodes, rows, rows)
        if most < 0:
            raise ValueError("fewer than no types")
        self.sync(nodes)
        masks, costs = [], []
        for row in rows:
            cost, gpus, lost = self._cheapest(nodes, row, ask, prices)
            parts = sorted((-prices[t] * slots, t, slots) for t, slots in lost if prices[t] * slots > 0)[:most]
            masks.append(gpus)
            costs.append([cost, *(number for part, t, slots in parts for number in (t, slots, -part))])
        return masks, costs[: max(0, priced)]

    def _check(self, nodes: NodeTable, ask: Ask, prices: list[float]) -> None:
        if len(prices) != len(self._types):
            raise ValueError("one price a type")
        check_ask(nodes, ask)
        cpu, memory = ask.amounts[CPU], ask.amounts[MEMORY]
        if ask.share >= 2**31 or cpu < 0 or memory < 0:
            raise ValueError("no such request")

    def _cheapest(
        self, nodes: NodeTable, row: int, ask: Ask, prices: list[float]
    ) -> tuple[float, int, list[tuple[int, int]]]:
        """(cost, GPUs, losses) of the cheapest way; among equals the first."""
        room = _room(nodes, row)
        before = self._counts[row]
        found: list[tuple[float, int, list[tuple[int, int]]]] = []
        for gpus in _ways(nodes, row, room, ask):
            after = self._count(nodes, row, _with(nodes, row, room, _type(ask), gpus))
            lost = [(t, b - a) for t, (b, a) in enumerate(zip(before, after, strict=True)) if a != b]
            cost = 0.0
            for t, slots in lost:
                cost += prices[t] * slots
            found.append((cost, gpus, lost))
        return min(found, key=lambda way: way[0])

    # ---- slots

    def _count(self, nodes: NodeTable, row: int, room: Room) -> list[int]:
        at = {name: column[row] for name, column in nodes.columns.items()}
        if not at["flags"] & SCHEDULABLE or room.cpu < 0 or room.memory < 0 or room.slots <= 0:
            return [0] * len(self._types)
        counts = []
        for one in self._types:
            cpu, memory, models = one[3:6]
            bounds = [self._gpu_room(nodes, row, room, one), room.slots]
            bounds += [room.cpu // cpu] if cpu else []
            bounds += [room.memory // memory] if memory else []
            counts.append(min(bounds) if models >> at["model"] & 1 else 0)
        return counts

    def _gpu_room(self, nodes: NodeTable, row: int, room: Room, one: Type) -> int:
        """How many pods of the type the node's GPUs could take."""
        resource, devices, share, _, _, _, linked = one
        at = {name: column[row] for name, column in nodes.columns.items()}
        if devices == 0:
            return 1 << 30
        units = at["units"] if at["gpu"] == resource else 1
        if nodes.alloc[row][resource] <= 0 or share > units or room.spare[resource] <= 0:
            return 0
        spare = room.spare[resource] // share
        linked = linked if devices > 1 else 0
        if at["gpu"] != resource or at["healthy"] == 0:
            return 0 if linked == 2 else min(1 << 30, spare // devices)
        if share < units:
            on_gpus = sum(max(0, left) // share for _, left in room.left)
            return min(1 << 30, spare, on_gpus) // devices
        free = room.whole(units)
        fit = min(spare, len(free)) // devices
        if linked == 0:
            return fit
        if at["shape"] == 0:
            return 0 if linked == 2 else fit
        every = tuple(range(nodes.shapes.gpus(at["shape"]) or 0))
        known = tuple(gpu for gpu in free if gpu in every)
        if linked == 1 and not self._packed(nodes.shapes, at["shape"], every, devices):
            return fit
        return min(fit, self._packed(nodes.shapes, at["shape"], known, devices))

    def _packed(self, shapes: LinkShapes, shape: int, free: tuple[int, ...], size: int) -> int:
        key = (shapes, shape, free, size)
        if key not in self._known:
            self._known[key] = self._most_packed(shapes, shape, free, size)
        return self._known[key]

    def _most_packed(self, shapes: LinkShapes, shape: int, free: tuple[int, ...], size: int) -> int:
        """The most disjoint linked sets: the first GPU is in one of them, or in none."""
        if len(free) < size:
            return 0
        best = self._packed(shapes, shape, free[1:], size)
        for others in combinations(free[1:], size - 1):
            if best == len(free) // size:
                break
            if shapes.linked(shape, _mask((free[0], *others))):
                rest = tuple(gpu for gpu in free[1:] if gpu not in others)
                best = max(best, 1 + self._packed(shapes, shape, rest, size))
        return best


def _gpus(nodes: NodeTable, row: int, amounts: list[int]) -> float:
    return amounts[nodes.columns["gpu"][row]] / nodes.columns["units"][row]


def _room(nodes: NodeTable, row: int) -> Room:
    spare = tuple(nodes.free_count(r, row) for r in range(nodes.resources))
    return Room(spare[CPU], spare[MEMORY], spare[SLOTS], spare, tuple(nodes.left(row).items()))


def _with(nodes: NodeTable, row: int, room: Room, ask: Type, gpus: int) -> Room:
    """What is left with the request there, on these GPUs."""
    resource, devices, share, cpu, memory, _, _ = ask
    spare = tuple(have - devices * share if r == resource else have for r, have in enumerate(room.spare))
    left = tuple((gpu, have - share if gpus >> gpu & 1 else have) for gpu, have in room.left)
    return replace(room, cpu=room.cpu - cpu, memory=room.memory - memory, slots=room.slots - 1, spare=spare, left=left)


def _type(ask: Ask) -> Type:
    """The request as a type of pods."""
    cpu, memory = ask.amounts[CPU], ask.amounts[MEMORY]
    return (ask.resource if ask.wanted else -1, ask.wanted, ask.share, cpu, memory, 0, 0)


def _ways(nodes: NodeTable, row: int, room: Room, ask: Ask) -> list[int]:
    """Sets of GPUs that may be the cheapest, in the order in which equals are taken."""
    resource, devices, share, _, _, _, _ = _type(ask)
    at = {name: column[row] for name, column in nodes.columns.items()}
    units, shape = at["units"], at["shape"]
    if devices == 0 or at["gpu"] != resource or at["healthy"] == 0 or share > units:
        return [0]
    free = room.whole(units)
    if share == units:
        if shape:
            return [nodes.shapes.with_nics(shape, _mask(free), devices, ask.nics) or 0]
        return [_mask(free[:devices]) if len(free) >= devices else 0]
    fit = [(left, gpu) for gpu, left in room.left if left >= share]
    if devices > 1:
        taken = sorted(fit)[:devices]
        return [_mask(tuple(gpu for _, gpu in taken)) if len(taken) == devices else 0]
    choice = nodes.shapes.choice(shape, _mask(free), 1) if shape else None
    if choice is not None:
        fit = [(left, gpu) for left, gpu in fit if left < units or choice.gpus >> gpu & 1]
    lowest = dict(reversed(fit))  # the last one written wins: the smallest id
    return [1 << gpu for gpu in sorted(lowest.values())] or [0]


def prices(
    weights: list[float],
    sizes: list[float],
    totals: list[int],
    size: float,
    scarcity: float,
    out: list[float],
) -> None:
    if not len(weights) == len(sizes) == len(totals) == len(out):
        raise ValueError("weights, sizes, totals and out differ in length")
    total = 0.0
    for t, (weight, gpus, slots) in enumerate(zip(weights, sizes, totals, strict=True)):
        asked = weight > 0 and gpus > 0 and slots > 0
        out[t] = weight * gpus**size / float(slots) ** scarcity if asked else 0.0
        total += out[t]
    if total > 0:
        for t in range(len(out)):
            out[t] /= total
