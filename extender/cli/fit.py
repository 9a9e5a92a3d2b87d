"""The best GPUs for a pod on one node: by ring bandwidth, then by what stays for later. And the GPUs that the stock
device plugin would hand out instead.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, cast

from ext_core.links import LinkShapes
from extender.cli import topo
from extender.cli.options import add_output, show
from extender.cli.screen import HeaderLine, Line
from extender.errors import BadInput, BadTopology
from extender.topologies.reading import Reading, Warned, ids
from extender.topologies.topology import Plugin

EXAMPLES = (
    "gpu-extender fit --topo catalogue:dgx1-v100 --free 0,2,4,5 --gpus 2",
    "gpu-extender fit --topo topo.txt --gpus 4",
)
LOST = {
    "ring_links": "ring bandwidth",
    "left_ring_links": "ring bandwidth left",
    "future_rings": "ring bandwidth for pods to come",
    "ways": "ways to form rings",
    "locality": "locality",
    "left_locality": "locality left",
}
"""What a set that loses by a term of the objective has less of."""
MOST_FUTURE = 12  # GPUs up to which the core computes `future`


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--topo", metavar="FILE", required=True, help="what the command topo reads, as a file or catalogue:ID"
    )
    parser.add_argument("--free", type=_gpus, metavar="IDS", help="free GPUs, as 0,2,4-7 (default: all)")
    parser.add_argument("--gpus", type=_count, metavar="N", required=True, help="how many the pod asks for")
    parser.add_argument(
        "--plugin",
        choices=("nvidia", "amd", "arbitrary", "relay"),
        help="whose rule hands GPUs out (default: amd for xGMI, else nvidia)",
    )
    add_output(parser)
    topo.add_speed(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the choice; `too-few-free` when there is none."""
    reading = topo.reading_of(options, options.topo)
    free: list[int] = list(range(reading.gpus)) if options.free is None else options.free
    if wrong := [gpu for gpu in free if gpu >= reading.gpus]:
        raise BadInput(f"GPU {wrong[0]} is not one of 0..{reading.gpus - 1}", path="--free")
    if reading.health and (sick := [gpu for gpu in free if not reading.health[gpu]]):
        free = [gpu for gpu in free if gpu not in sick]
        reading = reading.warn(Warned("unhealthy", f"GPUs {sick} are not healthy and do not count as free"))
    if len(free) < options.gpus:
        raise BadInput(f"{options.gpus} GPUs are asked for, {len(free)} are free", path="--free", code="too-few-free")
    if reading.known_links() is None:
        raise BadTopology("not all links are known, so sets cannot be compared", path="links", code="links-unknown")
    fit = Fit(reading, free, options.gpus, options.plugin or ("amd" if reading.kind == "xgmi" else "nvidia"))
    answer = fit.as_json()
    if options.output == "text":
        topo.warn(reading)
    show(answer, options.output, partial(_lines, reading, fit))
    return 0


@dataclass
class Fit:
    """One question to LinkShapes, the code that the server places by. ``free`` are at least ``count`` GPUs."""

    reading: Reading
    free: list[int]
    count: int
    plugin: str

    def __post_init__(self) -> None:
        self.shapes = LinkShapes()
        topology = self.reading.topology()
        self.by_pcie = topology.pcie is not None
        self.shape = topology.intern(self.shapes, cast(Plugin, self.plugin))
        self.mask = sum(1 << gpu for gpu in self.free)

    def as_json(self) -> dict[str, Any]:
        """`kind: Fit`, as `-o json` prints it."""
        choice = self.shapes.choice(self.shape, self.mask, self.count)
        assert choice is not None  # there are enough, and the links are known
        other = self.shapes.runner_up(self.shape, self.mask, self.count)
        chosen = self._set(choice.gpus)
        warnings = [warned._asdict() for warned in self.reading.warnings]
        if self.reading.linked and not self.reading.gbps:
            text = "GB/s of a link are unknown (give --product or --gbps), so bandwidths are null"
            warnings.append({"code": "gbps-unknown", "message": text})
        plugin = self._plugin()
        if plugin["sets"] is None and self.plugin != "arbitrary":
            if self.plugin == "amd":
                why = "that needs all NUMA nodes"
            elif self.by_pcie:
                why = "from seven sets on the plugin overwrites part of its own choice"
            else:
                why = "that needs all PCIe paths (put nvidia-smi topo -mp into the same text)"
            text = f"what the device plugin hands out cannot be predicted: {why}"
            warnings.append({"code": "plugin-unpredictable", "message": text})
        return {
            "apiVersion": "gpu-extender.io/v1",
            "kind": "Fit",
            "warnings": warnings,
            **chosen,
            "runner_up": None if other is None else self._set(other.gpus),
            "plugin": plugin,
        }

    def _gbps(self, ring: int | float | None) -> float | None:
        """GB/s of a ring in thousandths of links; None when the links' speed is unknown."""
        if not ring:
            return None if ring is None else 0.0
        return None if self.reading.gbps is None else round(ring * self.reading.gbps / 1000, 3)

    def _set(self, gpus: int) -> dict[str, Any]:
        remaining = self.mask ^ gpus
        return {
            "chosen": ids(gpus),
            "ring_gbps": self._gbps(self.shapes.ring(self.shape, gpus)),
            "equals": [ids(gpu_set) for gpu_set in self._equals(gpus)],
            "left": {
                "free": ids(remaining),
                "best_ring_gbps_by_size": {
                    str(size): self._gbps(self.shapes.top(self.shape, remaining, size))
                    for size in range(2, remaining.bit_count() + 1)
                },
            },
            "objective": self._objective(gpus),
        }

    def _equals(self, gpus: int) -> list[int]:
        """All sets that differ from this one in their ids only, itself included."""
        goal = self.shapes.objective(self.shape, self.mask, gpus)
        sets = (sum(1 << gpu for gpu in some) for some in combinations(self.free, self.count))
        return [some for some in sets if self.shapes.objective(self.shape, self.mask, some) == goal]

    def _objective(self, gpus: int) -> list[dict[str, Any]]:
        judged = self.shapes.objective(self.shape, self.mask, gpus)
        assert judged is not None
        ring, left_rings, future, ways, near, near_left = judged
        near_by = "PCIe levels" if self.by_pcie else "pairs on one NUMA node"
        return [
            {"term": "ring_links", "value": ring / 1000, "unit": "links"},
            {"term": "left_ring_links", "value": left_rings / 1000, "unit": "links, best ring of each size, summed"},
            {
                "term": "future_rings",
                "value": future / 1_000_000 if self.reading.gpus <= MOST_FUTURE else None,
                "unit": "best rings that pods of random sizes get of what stays, and of the set when it comes back",
            },
            {
                "term": "ways",
                "value": ways / 1000,
                "unit": "links, rings of all sets in what stays and in the set, summed",
            },
            {"term": "locality", "value": near, "unit": near_by},
            {"term": "left_locality", "value": near_left, "unit": near_by},
        ]

    def _plugin(self) -> dict[str, Any]:
        shares = self.shapes.handed_out(self.shape, self.mask, self.count)
        if shares is None:  # then anything may come
            rings = [
                self.shapes.ring(self.shape, sum(1 << gpu for gpu in some)) or 0
                for some in combinations(self.free, self.count)
            ]
            worst = self._gbps(min(rings))
            return _answer(self.plugin, None, None, worst, None)
        panics = sum(share for _, share in shares) < 1 - 1e-9
        rings = [self.shapes.ring(self.shape, some) or 0 for some, _ in shares]
        expected = sum(ring * share for ring, (_, share) in zip(rings, shares, strict=True))
        sets = [{"gpus": ids(some), "probability": round(share, 6)} for some, share in shares]
        worst = self._gbps(0 if panics else min(rings))
        return _answer(self.plugin, sets, self._gbps(expected), worst, panics)


def _answer(
    model: str, sets: list[dict[str, Any]] | None, expected: float | None, worst: float | None, panics: bool | None
) -> dict[str, Any]:
    return {
        "model": model,
        "sets": sets,
        "expected_ring_gbps": expected,
        "worst_ring_gbps": worst,
        "panics": panics,
    }


def _lines(reading: Reading, fit: Fit, answer: Mapping[str, Any]) -> Iterator[Line]:
    from extender.topologies import gpu_map  # here: JSON need not load it

    taken = [gpu for gpu in range(reading.gpus) if gpu not in fit.free]
    if drawn := list(gpu_map.drawing(reading, answer["chosen"], taken)):
        yield from drawn
        yield ""
    equals = len(answer["equals"])
    peers = "no other set is as good" if equals == 1 else f"one of {equals} as good"
    ring = f": ring {_speed(answer['ring_gbps'])}" if len(answer["chosen"]) > 1 else ""
    yield HeaderLine(f"GPUs {_set_of(answer['chosen'])}{ring}; {peers}")
    rings = answer["left"]["best_ring_gbps_by_size"]
    best = ", ".join(f"{size}: {_speed(ring)}" for size, ring in rings.items())
    yield f"left: {_set_of(answer['left']['free']) or 'none'}{f'; best rings {best}' if best else ''}"
    if other := answer["runner_up"]:
        lost = next(
            mine["term"]
            for mine, theirs in zip(answer["objective"], other["objective"], strict=True)
            if mine["value"] != theirs["value"]
        )
        yield f"next best: {_set_of(other['chosen'])}, ring {_speed(other['ring_gbps'])}; it has less {LOST[lost]}"
    plugin = answer["plugin"]
    if plugin["sets"] is None:
        yield f"device plugin ({plugin['model']}): cannot be predicted; at worst {_speed(plugin['worst_ring_gbps'])}"
        return
    sets = "  ".join(f"{_set_of(likely['gpus'])} ({likely['probability']:.0%})" for likely in plugin["sets"][:8])
    more = f"  and {len(plugin['sets']) - 8} more" if len(plugin["sets"]) > 8 else ""
    yield (
        f"device plugin ({plugin['model']}): {sets}{more}; expected {_speed(plugin['expected_ring_gbps'])}, "
        f"worst {_speed(plugin['worst_ring_gbps'])}{'; it may crash' if plugin['panics'] else ''}"
    )


def _set_of(gpus: list[int]) -> str:
    return ",".join(map(str, gpus))


def _speed(value: float | None) -> str:
    return "unknown GB/s" if value is None else f"{value:g} GB/s"


def _gpus(text: str) -> list[int]:
    gpus: list[int] = []
    for part in text.split(",") if text else []:
        ends = re.fullmatch(r"(\d{1,2})(?:-(\d{1,2}))?", part.strip())
        if ends is None:
            raise argparse.ArgumentTypeError(f"{part.strip()!r} is not a GPU index or range, as in 0,2,4-7")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last < first:
            raise argparse.ArgumentTypeError(f"the range {first}-{last} is empty; write {last}-{first}")
        gpus += range(first, last + 1)
    if len(set(gpus)) < len(gpus):
        raise argparse.ArgumentTypeError("a GPU is named twice")
    return sorted(gpus)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)
