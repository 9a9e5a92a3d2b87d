"""Which GPUs of one machine a job gets, and the ring bandwidth that it has on them: policies on the same job mix.

    python -m benchmarks.nvlink [--machines dgx1v-2-5 ...] [--jobs 300] [--seeds 20] [-o table|json|plot]

The mix is that of MAPA (SC'21): one machine, jobs of uniformly random size and a service time of 5 to 24, first come
first served, the head of the line waits until enough GPUs are free. All jobs are there from the beginning, so that
the machine is as full as it can be; the policy decides which free GPUs a job gets, never when it starts.

A job of two or more GPUs counts with the best ring bandwidth of its set (links only; ext_core.links) as a share of
the machine's best for that size; sizes without any ring on the empty machine do not count. In brackets: the share of
multi-GPU jobs without a ring over links.

The policies see the free GPUs and the size, nothing of the future. `ours, enforced` is the set that
`LinkShapes.choice` plans. `ours, stock plugin` is what NVIDIA's or AMD's plugin hands out when nobody tells it
better: on one machine nothing can be chosen, so it is the expectation over the plugin's own ties and no merit of ours.
MAPA's policies are re-implemented from its published rules; links of 2 and more count as its "double" ones.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, pairwise, permutations
from typing import Any

import orjson
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ext_core.links import LinkShapes
from extender.topologies.catalogue import entries
from extender.topologies.topology import Topology

SERVICE = (5, 24)
WIDTH = 140
PCIE_GBPS = 10.0  # what MAPA counts for a pair without links
SENSITIVE = 4 / 6  # of MAPA's six networks four are bandwidth-sensitive

Links = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Machine:
    """`sizes`: least and most GPUs of a job; `socket`: GPUs of one socket, ids in order."""

    name: str
    title: str
    topology: Topology
    sizes: tuple[int, int]
    socket: int
    published: dict[str, float]
    """Means of an earlier build of this mix, by policy: what `ours` must reach ("goal"), and to compare with."""


def _bridged(size: int, count: int, links: int) -> Topology:
    """`count` GPUs, fully linked within groups of `size`; their PCIe paths cross no switch."""
    ids = range(count)
    rows = tuple(tuple(links * (i != j and i // size == j // size) for j in ids) for i in ids)
    return Topology(count, rows, kind="nvlink", gbps=25.0, pcie=_sockets(count, 4))


def _sockets(count: int, socket: int) -> tuple[tuple[str, ...], ...]:
    """PCIe paths of GPUs that hang on their CPU, `socket` of them on each."""
    ids = range(count)
    return tuple(tuple("X" if i == j else "NODE" if i // socket == j // socket else "SYS" for j in ids) for i in ids)


def machines() -> dict[str, Machine]:
    known = {entry.id: entry.topology for entry in entries()}
    summit = replace(known["power9-ac922-6gpu"], pcie=_sockets(6, 3))  # nobody printed them; 3 GPUs hang on each CPU
    found = [
        Machine("dgx1v-2-5", "DGX-1V, 2-5", known["dgx1-v100"], (2, 5), 4, {"goal": 0.833, "exact": 0.833}),
        Machine("dgx1v-1-8", "DGX-1V, 1-8", known["dgx1-v100"], (1, 8), 4, {"goal": 0.950, "exact": 0.950}),
        Machine("dgx1p-2-5", "DGX-1P, 2-5", known["dgx1-p100"], (2, 5), 4, {"goal": 0.840, "exact": 0.840}),
        Machine("mi250x-1-8", "MI250X, 1-8", known["mi250x-8gcd"], (1, 8), 4, {"goal": 0.940, "exact": 0.940}),
        Machine("summit-1-6", "Summit, 1-6", summit, (1, 6), 3, {"goal": 0.975, "exact": 0.975}),
        Machine("h200nvl-1-4", "H200 NVL, 1-4", _bridged(4, 8, 6), (1, 4), 4, {"goal": 0.809, "exact": 0.809}),
        Machine("a100pairs-1-4", "A100 pairs, 1-4", _bridged(2, 8, 12), (1, 4), 4, {"goal": 0.904, "exact": 0.888}),
    ]
    return {machine.name: machine for machine in found}


# ---- one machine, its graph interned; what policies may ask


class Board:
    """A machine's shape. Sets of GPUs are masks."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.links = machine, machine.topology.links or ()
        self.gpus, self.full = machine.topology.gpus, (1 << machine.topology.gpus) - 1
        self.shapes = LinkShapes()
        self.shape = machine.topology.intern(self.shapes, "amd" if machine.topology.kind == "xgmi" else "nvidia")
        self.ring = cache(lambda gpus: (self.shapes.ring(self.shape, gpus) or 0) / 1000)
        self.best = [0.0] * (self.gpus + 1)
        for size in range(2, self.gpus + 1):
            self.best[size] = (self.shapes.top(self.shape, self.full, size) or 0) / 1000

    def share(self, gpus: int) -> float:
        """Ring bandwidth of the set / the machine's best of that size."""
        return self.ring(gpus) / self.best[gpus.bit_count()]


def ids(gpus: int) -> list[int]:
    return [i for i in range(gpus.bit_length()) if gpus >> i & 1]


def mask(gpus: Sequence[int]) -> int:
    return sum(1 << i for i in gpus)


def of_size(free: int, size: int) -> Iterator[int]:
    """All sets of that size, in the order of their ids."""
    return map(mask, combinations(ids(free), size))


Choose = Callable[[int, int, bool, random.Random], int]
"""(free GPUs, size, bandwidth-sensitive, dice) -> the GPUs."""


def random_set(board: Board) -> Choose:
    return lambda free, size, sensitive, dice: mask(dice.sample(ids(free), size))


def lowest_id(board: Board) -> Choose:
    return lambda free, size, sensitive, dice: mask(ids(free)[:size])


def topology_aware(board: Board) -> Choose:
    """The lowest ids of the first socket with enough free GPUs, else of all."""

    def choose(free: int, size: int, sensitive: bool, dice: random.Random) -> int:
        step = board.machine.socket
        for first in range(0, board.gpus, step):
            here = [gpu for gpu in ids(free) if first <= gpu < first + step]
            if len(here) >= size:
                return mask(here[:size])
        return mask(ids(free)[:size])

    return choose


def gpuallocator(board: Board) -> Choose:
    """NVIDIA's rule with ties by ids and without its crash: the best complete set of the best split of all free."""
    points = cache(lambda gpus: sum(_pair_points(board.machine.topology, a, b) for a, b in combinations(ids(gpus), 2)))

    @cache
    def split(free: int, size: int) -> tuple[int, tuple[int, ...]]:
        """(points, sets) of the best split; where `size` does not divide, one set is smaller."""
        if not free:
            return 0, ()
        first = free & -free
        best: tuple[int, tuple[int, ...]] = (-1, ())
        for count in sorted({size, free.bit_count() % size or size}, reverse=True):
            for others in of_size(free ^ first, count - 1):
                total, sets = split(free ^ first ^ others, size)
                if total + points(first | others) > best[0]:
                    best = total + points(first | others), (first | others, *sets)
        return best

    @cache
    def choose(free: int, size: int) -> int:
        return max((s for s in split(free, size)[1] if s.bit_count() == size), key=points)

    return lambda free, size, sensitive, dice: choose(free, size)


def _pair_points(topology: Topology, a: int, b: int) -> int:
    assert topology.links is not None
    path = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}
    near = 10 if topology.pcie is None else path[topology.pcie[a][b]]
    return near + 100 * min(topology.links[a][b], 18)


def _best_walk(board: Board, worth: Callable[[list[int]], float]) -> Callable[[int], float]:
    """The highest worth of all rings through a set; `worth` judges the links on the ring's pairs."""

    @cache
    def best(gpus: int) -> float:
        first, *others = ids(gpus)
        if not others:
            return 0.0
        walks = (pairwise((first, *order, first)) for order in permutations(others) if order[0] <= order[-1])
        return max(worth([board.links[a][b] for a, b in walk]) for walk in walks)

    return best


def mapa_greedy(board: Board) -> Choose:
    """The set whose best ring has the highest sum of bandwidth, PCIe counted."""
    ring_sum = _best_walk(board, lambda edges: sum(board.machine.topology.gbps * n or PCIE_GBPS for n in edges))

    @cache
    def choose(free: int, size: int) -> int:
        return max(of_size(free, size), key=ring_sum)

    return lambda free, size, sensitive, dice: choose(free, size)


def mapa_preserve(board: Board) -> Choose:
    """A sensitive job: the highest predicted bandwidth; any other: the set that leaves the highest sum of links."""
    predicted = _best_walk(board, _predicted)

    @cache
    def left(gpus: int) -> float:
        return sum(board.machine.topology.gbps * board.links[a][b] or PCIE_GBPS for a, b in combinations(ids(gpus), 2))

    @cache
    def choose(free: int, size: int, sensitive: bool) -> int:
        return max(of_size(free, size), key=predicted if sensitive else lambda gpus: left(free ^ gpus))

    return lambda free, size, sensitive, dice: choose(free, size, sensitive)


def _predicted(edges: list[int]) -> float:
    """MAPA's fitted formula; x, y, z: double links, single links and PCIe paths on the ring."""
    x, y, z = sum(n >= 2 for n in edges), edges.count(1), edges.count(0)
    return (
        16.39670455 * x + 4.536821878 * y + 1.55623404 * z
        - 20.69484581 / (x + 1) - 9.467461958 / (y + 1) + 7.615106783 / (z + 1)
        - 7.973335727 * x * y + 12.73323772 * y * z - 4.195655221 * x * z
        - 8.413419363 / (x * y + 1) + 62.85125807 / (y * z + 1) + 27.41832588 / (x * z + 1)
        - 5.114108079 * x * y * z - 46.97390071 / (x * y * z + 1)
    )  # fmt: skip


def exact(board: Board) -> Choose:
    """The best ring now, then the best rings of each size that stay, then the smallest ids."""

    @cache
    def choose(free: int, size: int) -> int:
        return max(of_size(free, size), key=lambda s: (board.ring(s), board.shapes.left(board.shape, free ^ s)))

    return lambda free, size, sensitive, dice: choose(free, size)


def enforced(board: Board) -> Choose:
    """What the extender plans, and a relay on the node makes kubelet take."""

    @cache
    def choose(free: int, size: int) -> int:
        chosen = board.shapes.choice(board.shape, free, size)
        assert chosen is not None
        return chosen.gpus

    return lambda free, size, sensitive, dice: choose(free, size)


def stock(board: Board) -> Choose:
    """One of the plugin's possible answers, by their probability; 0 where it crashes."""
    answers = cache(lambda free, size: board.shapes.handed_out(board.shape, free, size))

    def choose(free: int, size: int, sensitive: bool, dice: random.Random) -> int:
        shares = answers(free, size)
        if shares is None:
            raise Unpredictable
        at = dice.random()
        for gpus, share in shares:
            at -= share
            if at < 0:
                return int(gpus)
        crashed = sum(share for _, share in shares) < 1 - 1e-6
        return 0 if crashed or not shares else int(shares[-1][0])

    return choose


class Unpredictable(Exception):
    """The plugin's answer cannot be told: the machine's PCIe paths are unknown."""


POLICIES: dict[str, Callable[[Board], Choose]] = {
    "random": random_set,
    "lowest id": lowest_id,
    "topology-aware": topology_aware,
    "go-gpuallocator": gpuallocator,
    "MAPA greedy": mapa_greedy,
    "MAPA preserve": mapa_preserve,
    "exact, ring then rings left": exact,
    "ours, stock plugin": stock,
    "ours, enforced": enforced,
}


# ---- the mix


@dataclass(frozen=True)
class Job:
    size: int
    service: int
    sensitive: bool


def mix(count: int, sizes: tuple[int, int], seed: int) -> list[Job]:
    dice = random.Random(seed)
    return [Job(dice.randint(*sizes), dice.randint(*SERVICE), dice.random() < SENSITIVE) for _ in range(count)]


def play(board: Board, jobs: Sequence[Job], choose: Choose, dice: random.Random) -> Iterator[tuple[Job, int]]:
    """Each job with the GPUs that it got, in order; 0 where the plugin crashed and it got none."""
    free, now, running = board.full, 0, list[tuple[int, int]]()
    for job in jobs:
        while free.bit_count() < job.size:
            now = min(end for end, _ in running)
            free |= mask_of([gpus for end, gpus in running if end == now])
            running = [one for one in running if one[0] > now]
        gpus = choose(free, job.size, job.sensitive, dice)
        yield job, gpus
        held = gpus or mask(ids(free)[: job.size])  # after a crash: as if it were tried again and got any
        free ^= held
        running.append((now + job.service, held))


def mask_of(sets: Sequence[int]) -> int:
    joined = 0
    for gpus in sets:
        joined |= gpus
    return joined


@dataclass
class Row:
    """One policy on one machine. `share`: mean of ring / best, `sd`: of the seeds' means; `no_ring_percent`: of the
    multi-GPU jobs; `gbps`: mean ring bandwidth of the jobs that count; `crashes`: jobs that met the plugin's crash."""

    machine: str
    policy: str
    seeds: int
    jobs: int
    share: float | None = None
    sd: float | None = None
    no_ring_percent: float | None = None
    ring_gbps: float | None = None
    crashes: int = 0
    note: str = ""


def measure(machine: Machine, policy: str, jobs: int, seeds: int) -> Row:
    board = Board(machine)
    choose = POLICIES[policy](board)
    row = Row(machine.name, policy, seeds, jobs)
    means: list[float] = []
    shares: list[float] = []
    rings: list[float] = []
    multi = none = 0
    try:
        for seed in range(seeds):
            these: list[float] = []
            for job, gpus in play(board, mix(jobs, machine.sizes, seed), choose, random.Random(1_000_000 + seed)):
                row.crashes += gpus == 0
                if job.size < 2:
                    continue
                multi += 1
                none += board.ring(gpus) == 0
                if board.best[job.size]:
                    these.append(board.share(gpus) if gpus else 0.0)
                    rings.append(board.ring(gpus))
            means.append(sum(these) / len(these))
            shares += these
    except Unpredictable:
        row.note = "the plugin's answer cannot be told: PCIe paths unknown"
        return row
    row.share = sum(shares) / len(shares)
    mean = sum(means) / seeds
    row.sd = math.sqrt(sum((one - mean) ** 2 for one in means) / (seeds - 1)) if seeds > 1 else 0.0
    row.no_ring_percent = 100 * none / multi
    row.ring_gbps = machine.topology.gbps * sum(rings) / len(rings)
    return row


def losses(rows: Sequence[Row]) -> list[str]:
    """Where our enforced line is below another policy or below its goal."""
    said = []
    for name, machine in machines().items():
        of = {row.policy: row for row in rows if row.machine == name and row.share is not None}
        ours = of.get("ours, enforced")
        if ours is None or ours.share is None:
            continue
        for policy, row in of.items():
            if row.share is not None and row.share > ours.share + 1e-12:
                said.append(f"{machine.title}: {policy} has {row.share:.4f}, ours, enforced {ours.share:.4f}")
        if round(ours.share, 3) < machine.published["goal"]:
            said.append(
                f"{machine.title}: ours, enforced has {ours.share:.4f}, the goal is {machine.published['goal']}"
            )
    return said


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "NvlinkBenchmark",
        "warnings": [{"code": "lost", "message": text} for text in losses(rows)],
        "rows": [
            {
                "machine": row.machine,
                "policy": row.policy,
                "seeds": row.seeds,
                "jobs": row.jobs,
                "ring_share_of_best": _round(row.share),
                "sd": _round(row.sd),
                "no_ring_percent": _round(row.no_ring_percent, 2),
                "mean_ring_gbps": _round(row.ring_gbps, 3),
                "plugin_crashes": row.crashes,
                "goal": machines()[row.machine].published["goal"],
                "note": row.note,
            }
            for row in rows
        ],
    }


def _round(value: float | None, digits: int = 5) -> float | None:
    return None if value is None else round(value, digits)


def table(rows: Sequence[Row], console: Console) -> None:
    chosen = list(dict.fromkeys(row.machine for row in rows))
    shown = Table(title="ring bandwidth / best, mean (in brackets: % of multi-GPU jobs without a ring)")
    shown.add_column("policy", no_wrap=True)
    for name in chosen:
        shown.add_column(machines()[name].title.replace(", ", "\n"), justify="right", no_wrap=True)
    for policy in POLICIES:
        cells = []
        for name in chosen:
            row = next((row for row in rows if row.machine == name and row.policy == policy), None)
            if row is None or row.share is None or row.no_ring_percent is None:
                cells.append("unknown")
            else:
                cells.append(f"{row.share:.3f} ({row.no_ring_percent:.1f})")
        shown.add_row(policy, *cells)
    shown.add_row("goal", *(f"{machines()[name].published['goal']:.3f}" for name in chosen))
    console.print(shown)
    for text in losses(rows) or ["nothing lost: ours, enforced is the best or as good on every machine"]:
        console.print(text)
    for row in rows:
        if row.crashes:
            console.print(f"{machines()[row.machine].title}: {row.crashes} jobs met the plugin's crash ({row.policy})")
    console.print("ours, stock plugin: one machine leaves nothing to choose; this is what its plugin does by itself")


def plot(rows: Sequence[Row], console: Console) -> None:
    """Bars for a terminal."""
    width = max(map(len, POLICIES))
    for name in dict.fromkeys(row.machine for row in rows):
        console.print(f"\n{machines()[name].title}", style="bold")
        for row in rows:
            if row.machine == name:
                bar = "unknown" if row.share is None else "█" * round(50 * row.share) + f" {row.share:.3f}"
                console.print(f"{row.policy:{width}} {bar}", highlight=False)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.nvlink", description=__doc__.splitlines()[0])
    parser.add_argument("--machines", nargs="+", choices=list(machines()), default=list(machines()), metavar="NAME")
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("-o", "--output", choices=("table", "json", "plot"), default="table")
    options = parser.parse_args(arguments)
    if options.jobs < 1 or options.seeds < 1:
        parser.error("--jobs and --seeds are at least 1")
    todo = [(machines()[name], policy) for name in options.machines for policy in POLICIES]
    progress = Console(stderr=True)
    rows = [
        measure(machine, policy, options.jobs, options.seeds)
        for machine, policy in track(todo, "machines x policies", console=progress, disable=not progress.is_terminal)
    ]
    console = Console()
    console.width = max(console.width, WIDTH)  # a table that is cut tells nothing
    if options.output == "json":
        print(orjson.dumps(as_json(rows)).decode())
    elif options.output == "plot":
        plot(rows, console)
    else:
        table(rows, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
