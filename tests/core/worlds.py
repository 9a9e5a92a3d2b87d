"""Random tables, built twice: compiled and as lists. What a strategy draws is a list of calls, the same for both."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import strategies as st

from ext_core.ask import Ask
from ext_core.links import LinkShapes
from ext_core.rows import NodeFacts, NodeUse, PodRow
from ext_core.table import NodeTable, PodTable
from tests.reference import table as lists
from tests.reference.table import EVERY

R = 5  # CPU, memory, pod slots, two GPU resources
GPU, OTHER = 3, 4

# The NVLink counts of an 8-GPU DGX-1V, as `nvidia-smi topo -m` prints them.
DGX1V = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)


def _near(a: int, b: int) -> int:
    """PCIe on it: PIX 4 within a pair, PHB 2 within a socket, SYS 0 across."""
    return 5 if a == b else 4 if a // 2 == b // 2 else 2 if a // 4 == b // 4 else 0


PCIE = tuple(tuple(_near(a, b) for b in range(8)) for a in range(8))


NICS = (0b11, 0b1100, 0b110000, 0b1000000)
"""The GPUs near each NIC: one for each of the first three pairs, one that GPU 6 has alone."""


def _intern(
    shapes: LinkShapes, links: Sequence[Sequence[int]], *, switch: bool, plugin: str, known: bool, nics: bool = False
) -> int:
    pcie = PCIE if known else None
    return shapes.intern_with_nics(
        NICS if nics else None, links, gpu_total=switch, pcie=pcie, numa=None, plugin=plugin, gbps=25.0
    )


def _shapes() -> tuple[LinkShapes, dict[str, tuple[int, int]]]:
    """Link shapes, and for each name (shape, GPUs of the node)."""
    shapes = LinkShapes()
    switch = [[0 if a == b else 12 for b in range(8)] for a in range(8)]
    pairs = [[4 if a != b and a // 2 == b // 2 else 0 for b in range(4)] for a in range(4)]
    return shapes, {
        "dgx-1v": (_intern(shapes, DGX1V, switch=False, plugin="nvidia", known=True), 8),
        "dgx-1v, pcie not known": (_intern(shapes, DGX1V, switch=False, plugin="nvidia", known=False), 8),
        "dgx-1v, any plugin": (_intern(shapes, DGX1V, switch=False, plugin="arbitrary", known=True), 8),
        "nvswitch": (_intern(shapes, switch, switch=True, plugin="nvidia", known=False), 8),
        "dgx-1v, nics": (_intern(shapes, DGX1V, switch=False, plugin="nvidia", known=True, nics=True), 8),
        "nvswitch, nics": (_intern(shapes, switch, switch=True, plugin="arbitrary", known=True, nics=True), 8),
        "dgx-1v, relay": (_intern(shapes, DGX1V, switch=False, plugin="relay", known=True, nics=True), 8),
        "dgx-1v, claims": (_intern(shapes, DGX1V, switch=False, plugin="first", known=True), 8),
        "dgx-1v, unordered": (
            _intern(shapes, DGX1V, switch=False, plugin="unordered", known=True, nics=True),
            8,
        ),
        "pairs": (_intern(shapes, pairs, switch=False, plugin="nvidia", known=False), 4),
        "unknown": (0, 8),
        "no gpus": (0, 0),
    }


SHAPES, KINDS = _shapes()
SHAPES.planned = True
Call = tuple[str, tuple[Any, ...]]


@dataclass
class World:
    """The same cluster twice."""

    nodes: NodeTable
    pods: PodTable
    twin_nodes: lists.NodeTable
    twin_pods: lists.PodTable


RECORDS = {"set_node": NodeFacts, "set_held": NodeUse, "put": PodRow}


def call(table: object, drawn: Call) -> None:
    """Make one call. The arguments after the row are the fields of the record that the method takes, if any."""
    method, arguments = drawn
    if method in RECORDS:
        row, *fields = arguments
        arguments = (row, RECORDS[method](*fields))
    getattr(table, method)(*arguments)


def build(node_calls: Sequence[Call], pod_calls: Sequence[Call]) -> World:
    world = World(NodeTable(R, SHAPES), PodTable(R), lists.NodeTable(R, SHAPES), lists.PodTable(R))
    for one in node_calls:
        call(world.nodes, one)
        call(world.twin_nodes, one)
    for one in pod_calls:
        call(world.pods, one)
        call(world.twin_pods, one)
    return world


def ask(
    resource: int,
    gpus: int,
    *,
    share: int = 1,
    containers: int = 1,
    priority: int = 0,
    links: str = "preferred",
    nics: str = "ignore",
    planned: bool = False,
) -> Ask:
    """A request for `share` units of each of `gpus` GPUs of one resource."""
    amounts = (0, 0, 1, *(gpus * share if r == resource else 0 for r in range(GPU, R)))
    made = Ask(amounts, share, containers, priority, links).with_nics(nics)
    return made.as_planned() if planned else made


def masks(gpus: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << gpus) - 1)


priorities = st.integers(-2, 3)


def amounts(gpus: int) -> st.SearchStrategy[tuple[int, int, int, int, int]]:
    return st.tuples(
        st.integers(0, 64_000), st.integers(0, 2**40), st.integers(0, 110), st.integers(0, gpus), st.integers(0, 3)
    )


BEYOND_INT = (2**31, 2**32 - 1, 2**32, 2**32 + 3, 2**40)
"""Amounts that 32 bits do not hold: a device plugin may offer so many."""


def _ask(held: tuple[int, int, int, int, int], priority: int, most_wait: int) -> Ask:
    """At least one GPU: a victim search is for GPUs."""
    return Ask(held if any(held[GPU:]) else (*held[:GPU], 1, 0), priority=priority).waiting(most_wait)


asks = st.builds(_ask, amounts(8), priorities | st.just(EVERY), st.sampled_from([0, 0, 1, 9]))


def worlds() -> st.SearchStrategy[World]:
    """Up to 6 nodes of any kind (names in any order) with up to 4 pods each, claims on some.

    A world follows from one number: hypothesis would take most of a test's time to draw its hundred.
    """
    return st.integers(0, 2**32).map(lambda seed: _world(Random(seed)))


def _amounts(chance: Random, gpus: int) -> tuple[int, int, int, int, int]:
    cpu, memory = chance.choice((0, chance.randint(0, 64_000))), chance.choice((0, chance.randint(0, 2**40)))
    return cpu, memory, chance.randint(0, 110), chance.randint(0, gpus), chance.randint(0, 3)


def _world(chance: Random) -> World:
    """Half of the nodes add up (used and sure are what their pods hold), the others are any numbers at all."""
    node_calls: list[Call] = []
    pod_calls: list[Call] = []
    kinds = [chance.choice(sorted(KINDS)) for _ in range(chance.randint(1, 6))]
    for row, kind in enumerate(kinds):
        shape, gpus = KINDS[kind]
        whole = (1 << gpus) - 1
        gpu = -1 if kind == "no gpus" else chance.choice([GPU, GPU, GPU, OTHER])
        true = chance.random() < 0.5
        used, sure, free = [0] * R, 0, whole
        for _ in range(chance.randint(0, 4)):
            mask = chance.getrandbits(gpus) & (free if true else whole)
            held = _amounts(chance, gpus)
            if true:
                count = mask.bit_count()
                held = (held[0], held[1], held[2], count if gpu == GPU else 0, 0 if gpu == GPU else count)
                used, sure, free = [a + b for a, b in zip(used, held, strict=True)], sure | mask, free & ~mask
            flags = chance.choice([0, 0, 0, 1, 2, 3, 16, 17, 32, 129, 162])
            unsure = 0 if true else chance.randint(0, 2)
            ages = *(chance.randint(0, 9) for _ in range(4)), chance.choice([0, 0, 5])
            ages = *ages, chance.choice([-1, -1, 0, 2, 7]), chance.choice([-1, -1, 0, 1, 5])
            ages = *ages, chance.choice([0, 0, 1, 250, 749, 750, 1000])
            pod_calls.append(("put", (len(pod_calls), row, chance.randint(-2, 3), held, mask, unsure, flags, *ages)))
        if true:
            alloc = (128_000, 2**41, 110, gpus if gpu == GPU else 0, 0 if gpu == GPU else gpus)
            healthy, likely, unknown, pending = whole, 0, 0, chance.choice([0, 0, 1])
        else:
            alloc, healthy, likely = _amounts(chance, gpus), chance.getrandbits(gpus), chance.getrandbits(gpus)
            used, sure = list(_amounts(chance, gpus)), chance.getrandbits(gpus)
            if chance.random() < 0.33:
                cpu, memory, slots, _, other = alloc
                alloc = cpu, memory, slots, chance.choice(BEYOND_INT), other
            unknown, pending = chance.randint(0, 2), chance.randint(0, 1)
        units, parts = 1, tuple[int, ...]()
        if not true and chance.random() < 0.5:  # GPUs that are shared, four units each
            units, parts = 4, tuple(chance.randint(0, 5) for _ in range(chance.randint(0, gpus)))
        node_calls += [
            ("add", (row,)),
            ("set_node", (row, alloc, gpu, shape, healthy, chance.randint(0, 7), units, chance.randint(0, 2))),
            ("set_held", (row, tuple(used), sure, likely, unknown, pending, parts)),
        ]
        if chance.randint(0, 2) == 0:
            counted = chance.random() < 0.5, chance.random() < 0.5  # tentative, evictable
            taken, wanted = _amounts(chance, min(gpus, 2)), chance.getrandbits(gpus)
            if chance.random() < 0.5:  # as bind plans: so many GPUs as it names, and all of them free
                wanted &= free
                named = wanted.bit_count()
                taken = (*taken[:3], named if gpu == GPU else 0, named if gpu == OTHER else 0)
            node_calls.append(("add_claim", (row, taken, wanted, *counted)))
    node_calls.append(("set_order", (chance.sample(range(len(kinds)), len(kinds)),)))
    world = build(node_calls, chance.sample(pod_calls, len(pod_calls)))
    world.pods.now = world.twin_pods.now = chance.choice([0, 5])
    return world


def rows_of(world: World) -> st.SearchStrategy[list[int]]:
    """Candidate rows: any order, some missing, none named twice."""
    return st.permutations(range(world.nodes.height)).flatmap(
        lambda rows: st.integers(0, len(rows)).map(lambda n: list(rows[:n]))
    )


def names_of(world: World) -> st.SearchStrategy[list[tuple[str, str]] | None]:
    """(namespace, name) of each pod row, some of them equal; or none."""
    name = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"))
    return st.none() | st.lists(name, min_size=world.pods.height, max_size=world.pods.height)


def same_error(kernel: Callable[[], object], twin: Callable[[], object]) -> None:
    """Both raise, the same type with the same words; or neither raises."""
    errors: list[tuple[type, str]] = []
    for call in (kernel, twin):
        try:
            call()
        except (ValueError, IndexError) as error:
            errors.append((type(error), str(error)))
        else:
            errors.append((object, ""))
    assert errors[0] == errors[1]


def ints(values: Sequence[int]) -> array[int]:
    return array("i", values)
