"""`python -m extender.topologies` writes docs/machines.md and the pictures in docs/machines/.

The machines of the catalogue: how their GPUs are linked, what the extender takes of the empty machine, and what the
stock device plugin would hand out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from ext_core.links import LinkShapes
from extender.topologies.catalogue import Entry, entries
from extender.topologies.picture import picture
from extender.topologies.topology import Plugin

MOST_SIZE = 8
SHOWN_SETS = 4
HEAD = """# Machines

The machines of the catalogue (`extender/topologies/catalogue.json`), as `python -m extender.topologies` draws them:
GPUs on a circle, lines as wide as there are links between two GPUs, a hub where links go into a switch, a coloured arc
for each NUMA node (its number as the sampled host had it), a grey band for GPUs behind one PCIe switch (a wider,
lighter one where several switches lie between them). What an agent or an administrator says of a node goes before this
page. Two entries are not here, Gaudi 2 and 3: their links are Ethernet, which no text that we read shows.

The tables are about the empty machine. *takes*: the set that the extender plans for a pod of that many GPUs; *ring*:
what the rings over links that fit into it carry, in GB/s and direction, `0` where the links make no ring (then it talks
over PCIe as well); *left*: the best ring of each size, in GB/s, that stays in the rest; *stock plugin*: what the
vendor's device plugin would hand out without a relay, with probabilities, and what ring is to be expected. A model that
knows no PCIe paths (NVIDIA) or NUMA nodes (AMD) says unknown.
"""


def page() -> str:
    """docs/machines.md."""
    sections = ["\n".join(_section(entry)) for entry in entries()]
    contents = "\n".join(f"- [{entry.id}](#{_anchor(entry.id)}): {entry.topology.detail}" for entry in entries())
    return "\n\n".join([HEAD.rstrip(), contents, *sections]) + "\n"


def _anchor(title: str) -> str:
    """As GitHub makes them of headings."""
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")


def _section(entry: Entry) -> Iterator[str]:
    topology = entry.topology
    yield f"## {entry.id}\n"
    labels = ", ".join(f"`{label}`" for label in sorted(entry.products))
    yield f"{topology.detail}. Product label: {labels}. Status: {entry.status}.\n"
    yield f"![{entry.id}](machines/{entry.id}.svg)\n"
    yield "| GPUs | takes | ring | left | stock plugin |"
    yield "|--:|---|--:|---|---|"
    shapes = LinkShapes()
    plugin: Plugin = "amd" if entry.vendor == "amd" else "nvidia"
    shape = topology.intern(shapes, plugin)
    free = (1 << topology.gpus) - 1
    for size in range(1, min(topology.gpus, MOST_SIZE) + 1):
        choice = shapes.choice(shape, free, size)
        assert choice is not None
        ring = f"{_gbps(choice.ring, topology.gbps)}" if size > 1 else ""
        rest = free ^ choice.gpus
        tops = [(k, shapes.top(shape, rest, k) or 0) for k in range(2, rest.bit_count() + 1)]
        if topology.gpu_total:
            remainder = f"any 2 to {tops[-1][0]}: {_gbps(tops[-1][1], topology.gbps)}" if tops else ""
        else:
            remainder = ", ".join(f"{k}: {_gbps(top, topology.gbps)}" for k, top in tops if top)
        handed = _handed(shapes, shape, free, size, topology.gbps)
        yield f"| {size} | {_ids(choice.gpus)} | {ring} | {remainder or 'nothing linked'} | {handed} |"


def _handed(shapes: LinkShapes, shape: int, free: int, size: int, gbps: float) -> str:
    answers = shapes.handed_out(shape, free, size)
    if answers is None:
        return "unknown"
    likely = sorted(answers, key=lambda answer: -answer[1])  # equal ones stay in the order of their ids
    alike = likely[0][1] - likely[-1][1] < 1e-6
    if len(likely) == 1:
        text = _ids(likely[0][0])
    elif len(likely) == sum(1 for _ in _all_sets(free, size)) and alike:
        text = f"any, all {len(likely)} alike"
    else:
        text = "; ".join(f"{_ids(some)} {share:.0%}" for some, share in likely[:SHOWN_SETS])
        if len(likely) > SHOWN_SETS:
            text = f"one of {len(likely)}{' alike' if alike else ''}: {text}; …"
    if size == 1:
        return text
    expected = sum(share * (shapes.ring(shape, some) or 0) for some, share in answers)
    return f"{text} → {_gbps(expected, gbps)}"


def _all_sets(free: int, size: int) -> Iterator[int]:
    return (some for some in range(free + 1) if some & ~free == 0 and some.bit_count() == size)


def _ids(gpus: int) -> str:
    """0-3,6: the ids, ascending."""
    ids = [i for i in range(gpus.bit_length()) if gpus >> i & 1]
    runs: list[list[int]] = []
    for gpu in ids:
        if runs and runs[-1][-1] == gpu - 1:
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def _gbps(ring: float, gbps: float) -> str:
    return f"{round(ring * gbps / 1000, 1):g}"


def write(folder: Path) -> None:
    """docs/machines.md and docs/machines/*.svg below ``folder``; pictures of machines that are gone go too."""
    pictures = folder / "machines"
    pictures.mkdir(parents=True, exist_ok=True)
    for old in pictures.glob("*.svg"):
        old.unlink()
    for entry in entries():
        (pictures / f"{entry.id}.svg").write_text(picture(entry.topology))
    (folder / "machines.md").write_text(page())


def main() -> int:
    """Writes the page and the pictures into the folder."""
    parser = argparse.ArgumentParser(prog="extender.topologies", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs"), help="default: docs")
    write(parser.parse_args().folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
