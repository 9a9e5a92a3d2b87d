"""GPU machines of the catalogue, as the simulated nodes need them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any, Literal

import extender.topologies

CATALOGUE = Path(extender.topologies.__file__).parent / "catalogue.json"
_GPU_IDS = uuid.UUID("6f2f0d3e-5d7c-4a86-9a51-0c2a6c1f7d10")
_KINDS: Mapping[str, Literal["nvlink", "xgmi"]] = {
    "nvlink": "nvlink",
    "nvlink-bridge": "nvlink",
    "xgmi": "xgmi",
}


@dataclass(frozen=True)
class Machine:
    """The GPUs of one node type. ``gbps`` is GB/s per link and direction; unknown is None."""

    links: tuple[tuple[int, ...], ...]
    pcie: tuple[tuple[str, ...], ...] | None = None
    numa: tuple[int, ...] | None = None
    scope: Literal["pair", "gpu-total"] = "pair"
    kind: Literal["nvlink", "xgmi"] | None = None
    gbps: float | None = None
    product: str = ""

    @property
    def gpus(self) -> int:
        """How many there are."""
        return len(self.links)


def machine(topology: str | Mapping[str, Any] | None, count: int | None = None) -> Machine:
    """A machine by catalogue id, from an entry of the catalogue's form, or (None) GPUs without links.

    ``count`` keeps the first so many GPUs. ``None`` without a count has eight.
    """
    if topology is None:
        size = 8 if count is None else count
        return Machine(links=((0,) * size,) * size)
    entry = _catalogue()[topology] if isinstance(topology, str) else topology
    size = entry["gpus"] if count is None else count
    if size > entry["gpus"]:
        raise ValueError(f"{entry.get('id', 'the topology')} has {entry['gpus']} GPUs, not {size}")
    pcie, numa = entry.get("pcie"), entry.get("numa")
    where = {gpu: int(number) for number, gpus in numa.items() for gpu in gpus} if numa else {}
    return Machine(
        links=tuple(tuple(row[:size]) for row in entry["links"][:size]),
        pcie=tuple(tuple(row[:size]) for row in pcie[:size]) if pcie else None,
        numa=tuple(where[gpu] for gpu in range(size)) if where else None,
        scope="gpu-total" if entry.get("nvswitch") else "pair",
        kind=_KINDS.get(entry.get("link_kind", "")),
        gbps=entry.get("gbps_link_dir"),
        product=(entry.get("product_label") or [""])[0],
    )


def gpu_uuid(node: str, index: int) -> str:
    """The id of a GPU, the same in every run."""
    return f"GPU-{uuid.uuid5(_GPU_IDS, f'{node}/{index}')}"


def linked(gpus: Iterable[int], topology: str) -> bool:
    """Whether a ring over links joins these GPUs of a catalogue machine; by trying every ring."""
    links = machine(topology).links
    order = sorted(gpus)
    if len(order) < 2:
        return True
    first, *rest = order
    return any(all(links[a][b] for a, b in pairwise((first, *ring, first))) for ring in permutations(rest))


@cache
def _catalogue() -> dict[str, Any]:
    return {entry["id"]: entry for entry in json.loads(CATALOGUE.read_text())["topologies"]}
