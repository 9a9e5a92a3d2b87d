"""What a text says about one node's GPUs, with everything it does not say left open.

A `Topology` is what the server places by; a `Reading` is what people look at first: links may be unknown for some
pairs only, PCIe paths are hidden behind NVLink, a NUMA cell may be a list, and there are warnings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

from ext_core.links import LinkShapes
from extender.errors import BadTopology
from extender.topologies import catalogue
from extender.topologies.annotation import MOST_GPUS, near_nics
from extender.topologies.topology import Topology

MOST_NVLINKS = 18
"""No GPU so far has more NVLinks (NVLink 4 and 5): pairs that would need more share a switch's links."""

Links = tuple[tuple[int | None, ...], ...]
Paths = tuple[tuple[str | None, ...], ...]
Numa = int | tuple[int, ...] | None


class Warned(NamedTuple):
    """Something that a reader of the answer must know: a constant code, a sentence."""

    code: str
    message: str


class Nic(NamedTuple):
    """A network device. `nearest`: the GPUs that share the shortest path to it; `same_switch`: those under its PCIe
    switch; None when not all paths are known."""

    name: str
    nearest: tuple[int, ...] | None
    same_switch: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The GPU graph of one node as far as a text states it."""

    links: Links  # N x N, diagonal 0; None where unknown
    kind: str | None  # "nvlink", "xgmi"; None = no links, or unknown ones
    scope: Literal["pair", "gpu-total"] | None  # None = unknown links
    pcie: Paths  # N x N of LEVELS
    numa: tuple[Numa, ...]
    uuids: tuple[str | None, ...]
    source_format: str
    nics: tuple[Nic, ...] = ()
    gbps: float | None = None  # GB/s per link and direction
    health: tuple[bool, ...] | None = None
    product: str | None = None  # as the product label spells it; None = unknown, or several
    warnings: tuple[Warned, ...] = ()

    @property
    def gpus(self) -> int:
        """How many there are."""
        return len(self.links)

    @property
    def linked(self) -> bool:
        """Whether a link is known."""
        return any(map(any, self.links))

    def known_links(self) -> tuple[tuple[int, ...], ...] | None:
        """The links when those of every pair are known."""
        rows = tuple(tuple(n for n in row if n is not None) for row in self.links)
        return rows if all(len(row) == self.gpus for row in rows) else None

    def known_pcie(self) -> tuple[tuple[str, ...], ...] | None:
        """The PCIe paths when those of every pair are known."""
        rows = tuple(tuple(path for path in row if path is not None) for row in self.pcie)
        return rows if all(len(row) == self.gpus for row in rows) else None

    def known_numa(self) -> tuple[int | None, ...] | None:
        """One NUMA node a GPU: the first of a list, as the others are memory-only; None when nothing is stated.

        One list of several nodes for all GPUs states nothing (a virtual machine that hides them).
        """
        if all(node is None for node in self.numa) or (len(set(self.numa)) == 1 and type(self.numa[0]) is tuple):
            return None
        return tuple(node[0] if isinstance(node, tuple) else node for node in self.numa)

    def topology(self) -> Topology:
        """For LinkShapes and for the annotation: only what is known of all GPUs. ``gbps`` 0 = unknown."""
        uuids = tuple(uuid for uuid in self.uuids if uuid is not None)
        return Topology(
            self.gpus,
            self.known_links(),
            gpu_total=self.scope == "gpu-total",
            kind=self.kind,
            gbps=self.gbps or 0.0,
            numa=self.known_numa(),
            pcie=self.known_pcie(),
            uuids=uuids if len(uuids) == self.gpus else None,
            health=self.health,
            nics=near_nics(known) if (known := self._near()) else None,
        )

    def _near(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(nic.name, nic.same_switch) for nic in self.nics if nic.same_switch is not None]

    def groups(self) -> tuple[list[list[int]] | None, list[list[int]] | None]:
        """Islands and components, by the server's own code; None when not all links are known."""
        shapes = LinkShapes()
        shape = self.topology().intern(shapes, "arbitrary")
        islands, components = shapes.islands(shape), shapes.components(shape)
        if islands is None or components is None:
            return None, None
        return [ids(mask) for mask in islands], [ids(mask) for mask in components]

    def as_json(self) -> dict[str, Any]:
        """`kind: Topology`, as `gpu-extender topo -o json` prints it."""
        islands, components = self.groups()
        return {
            "apiVersion": "gpu-extender.io/v1",
            "kind": "Topology",
            "warnings": [warned._asdict() for warned in self.warnings],
            "source_format": self.source_format,
            "gpus": list(range(self.gpus)),
            "links": self.links,
            "link_kind": self.kind,
            "link_scope": self.scope,
            "gbps_per_link_per_direction": self.gbps,
            "pcie": self.pcie,
            "numa": self.numa,
            "nics": [nic._asdict() for nic in self.nics],
            "uuids": self.uuids,
            "islands": islands,
            "components": components,
        }

    def warn(self, *more: Warned) -> Reading:
        """The same with more warnings."""
        return replace(self, warnings=(*self.warnings, *more))


def ids(mask: int) -> list[int]:
    """The GPUs of a set, ascending."""
    return [gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1]


def of_topology(topology: Topology, source_format: str) -> Reading:
    """A stated topology (annotation, catalogue) as a Reading."""
    size = range(topology.gpus)
    nothing = tuple(tuple(0 if i == j else None for j in size) for i in size)
    hidden = tuple(tuple("X" if i == j else None for j in size) for i in size)
    return Reading(
        nothing if topology.links is None else topology.links,
        topology.kind,
        None if topology.links is None else "gpu-total" if topology.gpu_total else "pair",
        topology.pcie or hidden,
        topology.numa or (None,) * topology.gpus,
        topology.uuids or (None,) * topology.gpus,
        source_format,
        nics=tuple(Nic(nic.name, nic.gpus, nic.gpus) for nic in topology.nics or ()),
        gbps=topology.gbps or None,
        health=topology.health,
        warnings=tuple(Warned("stated", text) for text in topology.warnings),
    )


def with_product(reading: Reading, product: str | None, gbps: float | None = None) -> Reading:
    """The reading with what the catalogue knows of its product: a link's speed, how many links a GPU has.

    ``product``: as the label `nvidia.com/gpu.product` or `amd.com/gpu.product-name` has it (spaces may stand for
    dashes); None: what the text itself names. ``gbps`` overrides the speed. BadTopology for a product that the
    catalogue does not have, when it was asked for; one that only the text names is then left aside.
    """
    entries = _entries(product or reading.product or "")
    if product is not None and not entries:
        labels = sorted({label for entry in catalogue.entries() for label in entry.products})
        near = get_close_matches(_label(product), labels, n=3, cutoff=0.3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise BadTopology(f"{product!r} is no product of the catalogue{hint}", path="--product")
    if entries:
        reading = _fitted(reading, entries)
        reading = replace(reading, product=(product and _label(product)) or reading.product)
    speeds = {entry.topology.gbps for entry in entries if entry.topology.gbps}
    if gbps is None and len(speeds) == 1 and reading.gbps is None:
        (gbps,) = speeds
    return replace(reading, gbps=gbps) if gbps and reading.linked else reading


def _label(product: str) -> str:
    return "-".join(product.split())


def _entries(product: str) -> list[catalogue.Entry]:
    wanted = _label(product).replace("_", "-").casefold()
    return [
        entry
        for entry in catalogue.entries()
        if any(label.replace("_", "-").casefold() == wanted for label in entry.products)
    ]


def _fitted(reading: Reading, entries: Iterable[catalogue.Entry]) -> Reading:
    """What the product's machines state about the meaning of the numbers."""
    machines = [entry.topology for entry in entries]
    links = reading.known_links()
    if links is None:
        return reading
    if not reading.linked:
        if all(machine.kind for machine in machines):
            message = "this product has GPU links, and the text shows none: they are down, or hidden"
            return reading.warn(Warned("links-down", message))
        return reading
    if reading.kind == "xgmi":
        same = {m.links for m in machines if m.links and _edges(m.links) == _edges(links)}
        warnings = tuple(warned for warned in reading.warnings if warned.code != "link-count-unknown")
        if len(same) != 1 or warnings == reading.warnings:  # counted ones stand: a link may be down
            return reading
        return replace(reading, links=same.pop(), warnings=warnings)
    most = max(max(map(max if m.gpu_total else sum, m.links)) for m in machines if m.links)
    if reading.scope == "pair" and most and max(map(sum, links)) > most and whole_fabric(links):
        warnings = tuple(warned for warned in reading.warnings if warned.code != "link-scope-assumed")
        return replace(reading, scope="gpu-total", warnings=warnings)
    return replace(reading, warnings=tuple(w for w in reading.warnings if w.code != "link-scope-assumed"))


def whole_fabric(links: Sequence[Sequence[int | None]]) -> bool:
    """Whether all GPUs that have links see each other, and there are at least three of them."""
    on = [gpu for gpu, row in enumerate(links) if any(row)]
    return len(on) > 2 and all(links[a][b] != 0 for a in on for b in on if a != b)


def _edges(links: tuple[tuple[int, ...], ...]) -> list[list[bool]]:
    return [[bool(n) for n in row] for row in links]


def check_count(names: list[int], path: str) -> None:
    """BadTopology unless these are GPUs 0..N-1 in any order, 16 at most."""
    for number in range(len(names)):
        if number not in names:
            raise BadTopology(f"GPU{number} is missing among {len(names)} GPUs", path=path)
    if not 1 <= len(names) <= MOST_GPUS:
        raise BadTopology(f"{len(names)} GPUs; from 1 to {MOST_GPUS} are read", path=path)
