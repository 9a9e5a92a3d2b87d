"""Pods whose GPUs each have a NIC of their own: by the stock device plugin, planned by links alone, and with NICs.

    python -m benchmarks.nics [--pods 4000] [--seed 1] [-o json]

One machine of eight GPUs at a time, always full: pods of 1, 2, 4 and 8 GPUs (4 : 3 : 2 : 1) come one after the other,
and random pods end until the next one fits. Every second pod is one of a gang; only these ask for NICs. `could`: the
most that any choice gives, as the machine has too few NICs for large pods. Status 1 where planning with NICs gives
gangs fewer NICs than planning by links alone, or less ring bandwidth.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ext_core.links import LinkShapes
from extender.sim.machines import machine
from extender.topologies.topology import LEVELS

SIZES: Final = (1, 1, 1, 1, 2, 2, 2, 4, 4, 8)
PAIRS: Final = (0b11, 0b1100, 0b110000, 0b11000000)
MACHINES: Final = {
    "p4d": ("p4d", PAIRS),  # A100, one NIC a PCIe switch
    "dgx-a100": ("dgx-a100", PAIRS * 2),
    "dgx1-v100": ("dgx1-v100", PAIRS),
    "hgx-h200-8": ("hgx-h200-8", tuple(1 << gpu for gpu in range(8))),
    "hgx-h200-8, NIC 3 lost": ("hgx-h200-8", tuple(1 << gpu for gpu in range(8) if gpu != 3)),
}
"""By name: a machine of the catalogue, and the GPUs under the PCIe switch of each NIC."""
HOW: Final = ("device plugin", "planned", "planned with NICs")


class Row(NamedTuple):
    """What one way gives on one machine. `gangs`, `others`: parts of 1, as of Sums; `could`: of the pods of gangs."""

    gangs: dict[str, float]
    others: dict[str, float]
    could: float


@dataclass(slots=True)
class Sums:
    """Of pods of one kind. `aligned`: those where each GPU has a NIC; `ring`: parts of the best ring of their size."""

    pods: int = 0
    aligned: int = 0
    ring: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, float]:
        """Parts of 1."""
        ring = sum(self.ring) / len(self.ring) if self.ring else 0.0
        return {"aligned": round(self.aligned / self.pods, 4), "ring": round(ring, 4)}


class Board:
    """One machine."""

    def __init__(self, name: str) -> None:
        what, nics = MACHINES[name]
        found = machine(what)
        pcie = None if found.pcie is None else [[LEVELS.index(level) for level in row] for row in found.pcie]
        self.shapes, self.count = LinkShapes(), found.gpus
        self.shape = self.shapes.intern_with_nics(
            nics, found.links, gpu_total=found.scope == "gpu-total", pcie=pcie, numa=None, plugin="nvidia",
            gbps=found.gbps or 0.0,
        )  # fmt: skip
        self.most = [0, *(self.best(size) for size in range(1, self.count + 1))]

    def best(self, size: int) -> int:
        """The most GPUs with NICs of their own that a pod of this size can have."""
        chosen = self.shapes.with_nics(self.shape, (1 << self.count) - 1, size, "required")
        return self.shapes.nics(self.shape, chosen or 0) or 0

    def choose(self, how: str, free: int, size: int, *, gang: bool, rng: random.Random) -> int:
        """The set that a pod gets; 0 where the device plugin crashes."""
        if how == "device plugin":
            answers = self.shapes.handed_out(self.shape, free, size) or []
            lost = 1.0 - sum(share for _, share in answers)
            return rng.choices([*(gpus for gpus, _ in answers), 0], [*(share for _, share in answers), max(0.0, lost)])[
                0
            ]
        nics = "preferred" if gang and how == "planned with NICs" else "ignore"
        return self.shapes.with_nics(self.shape, free, size, nics) or 0

    def ring(self, gpus: int) -> float:
        """Its ring bandwidth as a part of the machine's best of that size."""
        best = self.shapes.top(self.shape, (1 << self.count) - 1, gpus.bit_count()) or 0
        return (self.shapes.ring(self.shape, gpus) or 0) / best if best else 1.0


def run(board: Board, how: str, pods: int, seed: int) -> tuple[Sums, Sums, float]:
    """(pods of gangs, the others, the part of the gangs' pods that could have NICs)."""
    rng, draws = random.Random(seed), random.Random(seed + 1)
    gangs, others, could = Sums(), Sums(), 0
    running: list[int] = []
    for number in range(pods):
        size, gang = rng.choice(SIZES), number % 2 == 0
        ending = rng.random()
        free = (1 << board.count) - 1 - sum(running)
        while free.bit_count() < size:
            free += running.pop(int(ending * len(running)))
        gpus = board.choose(how, free, size, gang=gang, rng=draws)
        if not gpus:
            continue
        running.append(gpus)
        sums = gangs if gang else others
        sums.pods += 1
        sums.aligned += board.shapes.nics(board.shape, gpus) == size
        if size > 1:
            sums.ring.append(board.ring(gpus))
        could += gang and board.most[size] == size
    return gangs, others, could / gangs.pods


def measure(pods: int, seed: int) -> dict[str, dict[str, Row]]:
    """By machine: what each way gives."""
    found: dict[str, dict[str, Row]] = {}
    for name in MACHINES:
        board = Board(name)
        found[name] = {}
        for how in HOW:
            gangs, others, could = run(board, how, pods, seed)
            found[name][how] = Row(gangs.as_json(), others.as_json(), round(could, 4))
    return found


def main(words: list[str] | None = None) -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nics", description=__doc__)
    parser.add_argument("--pods", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    options = parser.parse_args(words)
    found = measure(options.pods, options.seed)
    if options.output == "json":
        print(json.dumps({name: {how: row._asdict() for how, row in ways.items()} for name, ways in found.items()}))
    else:
        print("| machine | chosen by | gangs: a NIC each | could | gangs: ring | others: a NIC each | others: ring |")
        print("|---|---|--:|--:|--:|--:|--:|")
        for name, ways in found.items():
            for how, (gangs, others, could) in ways.items():
                values = gangs["aligned"], could, gangs["ring"], others["aligned"], others["ring"]
                print(f"| {name} | {how} | " + " | ".join(f"{value:.1%}" for value in values) + " |")
    return int(any(_loses(ways) for ways in found.values()))


def _loses(ways: dict[str, Row]) -> bool:
    before, after = (ways[how].gangs for how in HOW[1:])
    return after["aligned"] < before["aligned"] or after["ring"] < before["ring"] - 0.005


if __name__ == "__main__":
    sys.exit(main())
