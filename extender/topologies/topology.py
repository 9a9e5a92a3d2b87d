"""What every source answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ext_core.links import LinkShapes

# PCIe paths from far to near, as `nvidia-smi topo` names them; LinkShapes.intern takes their positions.
LEVELS = ("SYS", "NODE", "PHB", "PXB", "PIX", "X")

Plugin = Literal["nvidia", "amd", "arbitrary", "relay", "first", "unordered"]


class NearNic(NamedTuple):
    """A NIC and the GPUs under its PCIe switch, ascending, one or more."""

    name: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """The GPU graph of one node; None wherever something is not known."""

    gpus: int
    links: tuple[tuple[int, ...], ...] | None  # N x N; of each pair, or each GPU's total with gpu_total
    gpu_total: bool = False
    kind: str | None = None  # "nvlink", "xgmi"; None = no links, or unknown ones
    gbps: float = 0.0  # GB/s per link and direction
    numa: tuple[int | None, ...] | None = None
    pcie: tuple[tuple[str, ...], ...] | None = None  # N x N of LEVELS
    uuids: tuple[str, ...] | None = None
    health: tuple[bool, ...] | None = None
    nics: tuple[NearNic, ...] | None = None  # those near a GPU, by name
    source: Literal["annotation", "administrator", "catalogue", "unknown"] = "unknown"
    detail: str = ""  # one sentence: which entry, or why unknown
    warnings: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()  # what other annotations or less trusted sources state otherwise

    def as_json(self) -> dict[str, Any]:
        """What /debug/topologies shows of it."""
        return {
            "gpus": self.gpus,
            "source": self.source,
            "detail": self.detail,
            "links": self.links,
            "link_kind": self.kind,
            "link_scope": None if self.links is None else "gpu-total" if self.gpu_total else "pair",
            "gbps_per_link_per_direction": self.gbps or None,
            "numa": self.numa,
            "pcie": self.pcie,
            "uuids": self.uuids,
            "health": self.health,
            "nics": None if self.nics is None else [{"name": nic.name, "gpus": nic.gpus} for nic in self.nics],
            "warnings": [{"code": "topology", "message": text} for text in self.warnings],
            "disagreements": list(self.disagreements),
        }

    def intern(self, shapes: LinkShapes, plugin: Plugin) -> int:
        """The shape's id in ``shapes``; 0 when the links are unknown. Where there is no room for another shape, that
        without NICs does: the links count more."""
        if self.links is None:
            return 0
        pcie = None if self.pcie is None else [[LEVELS.index(level) for level in row] for row in self.pcie]
        numa = None if self.numa is None else [-1 if node is None else node for node in self.numa]
        nics = None if self.nics is None else [sum(1 << gpu for gpu in nic.gpus) for nic in self.nics]
        for known in (nics, None):
            shape = shapes.intern_with_nics(
                known,
                self.links,
                gpu_total=self.gpu_total,
                pcie=pcie,
                numa=numa,
                plugin=plugin,
                gbps=self.gbps,
            )
            if shape or nics is None:
                break
        return shape


def unknown(gpus: int, detail: str, *warnings: str) -> Topology:
    """A node whose GPU graph is unknown, and why."""
    return Topology(gpus, None, detail=detail, warnings=warnings)
