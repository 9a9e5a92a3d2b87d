"""Machines whose GPU graph is published: catalogue.json, looked up by a node's labels.

A node matches an entry by product and number of GPUs; the instance type and the machine label narrow that
down where they name an entry. What is left decides only when all of it is one and the same labelled graph
(8 x V100 alone comes with two numberings): otherwise the node's graph is unknown, and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import orjson

from extender.topologies.topology import Topology, unknown

PRODUCT_LABELS = {"nvidia": "nvidia.com/gpu.product", "amd": "amd.com/gpu.product-name"}
COUNT_LABEL = "nvidia.com/gpu.count"
MACHINE_LABEL = "nvidia.com/gpu.machine"
TYPE_LABEL = "node.kubernetes.io/instance-type"

_KINDS = {"nvlink": "nvlink", "nvlink-bridge": "nvlink", "xgmi": "xgmi", "none": None}


@dataclass(frozen=True, slots=True)
class Entry:
    """One machine of the catalogue."""

    id: str
    vendor: str
    products: frozenset[str]
    machines: frozenset[str]
    types: frozenset[str]  # instance types of clouds, as the node label has them
    topology: Topology
    status: str  # "confirmed", "partly confirmed", "unverified"
    source: tuple[str, ...]  # where the matrix was seen


def read(annotations: Mapping[str, str], labels: Mapping[str, str], gpu_count: int) -> Topology | None:
    """The graph of the machine that the labels name; unknown where they fit none or several; None without labels."""
    if gpu_count == 1:
        return Topology(1, ((0,),), source="catalogue", detail="a single GPU has no peers")
    named = [(vendor, labels[key]) for vendor, key in PRODUCT_LABELS.items() if labels.get(key)]
    if not named or gpu_count < 1:
        return None
    if len(named) > 1:
        return unknown(gpu_count, "the labels name products of two vendors")
    vendor, product = named[0]
    machine = f"{gpu_count} x {product}"
    counted = labels.get(COUNT_LABEL)
    if counted is not None and counted != str(gpu_count):
        warning = f"label {COUNT_LABEL} is {counted}, the node has {gpu_count}"
        return unknown(gpu_count, f"{machine}: the labels count other GPUs", warning)
    fitting = [
        entry
        for entry in entries()
        if entry.vendor == vendor and product in entry.products and entry.topology.gpus == gpu_count
    ]
    if not fitting:
        return unknown(gpu_count, f"{machine}: not in the catalogue")
    fitting = _narrow(fitting, labels.get(TYPE_LABEL), lambda entry: entry.types)
    fitting = _narrow(fitting, labels.get(MACHINE_LABEL), lambda entry: entry.machines)
    if len({_graph(entry.topology) for entry in fitting}) > 1:
        ids = ", ".join(entry.id for entry in fitting)
        return unknown(gpu_count, f"{machine}: the catalogue has different graphs ({ids}) and no label states which")
    return _merged(fitting)


@cache
def entries() -> tuple[Entry, ...]:
    """All machines of catalogue.json whose links this program can use, in the file's order."""
    text = (files("extender.topologies") / "catalogue.json").read_bytes()
    return tuple(_entry(item) for item in orjson.loads(text)["topologies"] if item["link_kind"] in _KINDS)


def _narrow(fitting: list[Entry], value: str | None, names: Callable[[Entry], frozenset[str]]) -> list[Entry]:
    return [entry for entry in fitting if value in names(entry)] or fitting


def _graph(topology: Topology) -> tuple[object, ...]:
    return topology.links, topology.gpu_total, topology.kind, topology.gbps


def _merged(fitting: list[Entry]) -> Topology:
    """One graph; PCIe levels and NUMA nodes only as far as all entries agree on them."""
    first = fitting[0].topology
    ids = ", ".join(entry.id for entry in fitting)
    status = "; ".join(dict.fromkeys(entry.status for entry in fitting))
    unverified = all(entry.status == "unverified" for entry in fitting)
    return Topology(
        first.gpus,
        first.links,
        gpu_total=first.gpu_total,
        kind=first.kind,
        gbps=first.gbps,
        numa=first.numa if all(entry.topology.numa == first.numa for entry in fitting) else None,
        pcie=first.pcie if all(entry.topology.pcie == first.pcie for entry in fitting) else None,
        source="catalogue",
        detail=f"catalogue: {ids} ({status})",
        warnings=(f"catalogue: the output of {ids} is not yet seen",) if unverified else (),
    )


def _entry(item: Mapping[str, Any]) -> Entry:
    gpus = item["gpus"]
    numa: list[int | None] = [None] * gpus
    for node, members in (item["numa"] or {}).items():
        for gpu in members:
            numa[gpu] = int(node)
    topology = Topology(
        gpus,
        tuple(map(tuple, item["links"])),
        gpu_total=item["nvswitch"],
        kind=_KINDS[item["link_kind"]],
        gbps=float(item["gbps_link_dir"]),
        numa=tuple(numa) if item["numa"] else None,
        pcie=tuple(map(tuple, item["pcie"])) if item["pcie"] else None,
        source="catalogue",
        detail=item["name"],
    )
    return Entry(
        item["id"],
        item["vendor"],
        frozenset(item["product_label"]),
        frozenset(item.get("machine_label", ())),
        frozenset(item.get("instance_types", ())),
        topology,
        item["status"],
        tuple(item["source"]),
    )
