"""What is done to the nodes of the copy before any pod is placed: nodes are added, cordoned, drained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from extender.ask.whatif.drains import evicted_by_drain
from extender.ask.whatif.group_ways import copies
from extender.ask.whatif.question import MOST_ADDED, Added, Changes
from extender.ask.whatif.snapshot import WhatIfSnapshot
from extender.cluster.tables import MOST_AMOUNT
from extender.errors import BadInput, ExtenderError, NotFound
from extender.objects.records import NodeRecord
from extender.topologies import annotation, catalogue, load
from extender.topologies.topology import Topology

PODS: Final = 110
"""Pod slots of an added machine: kubelet's default."""
ROOM: Final = MOST_AMOUNT // 1024
"""CPU and memory of an added machine of which only the GPUs are known: enough for whatever it runs."""
ASSUMED: Final = {
    "code": "added-by-topology",
    "message": "of the nodes added by a topology only the GPUs are known: CPU and memory count as enough, and they "
    "have no labels but the GPU product's",
}


def apply(snapshot: WhatIfSnapshot, changes: Changes) -> list[Mapping[str, str]]:
    """Change the copy. Gives warnings. NotFound: a node does not exist. BadInput: a topology cannot be used."""
    warnings: list[Mapping[str, str]] = []
    nodes = snapshot.cluster.nodes
    if sum(max(0, addition.nodes) for addition in changes.add) > MOST_ADDED:
        raise BadInput(f"more than {MOST_ADDED} nodes", path="--add")
    for addition in changes.add:
        like = nodes.get(addition.what)
        if like is None:
            like, warnings = _machine(snapshot, addition), [ASSUMED]
        snapshot.add_nodes(like, copies(like, addition.nodes, nodes))
    for name in (*changes.cordon, *changes.drain):
        node = nodes.get(name)
        if node is None:
            raise NotFound("the cluster has no such node", path=f"node {name}")
        snapshot.set_nodes([msgspec.structs.replace(node, unschedulable=True)])
    for name in changes.drain:
        snapshot.evict(evicted_by_drain(snapshot.cluster, name))
    return warnings


def _machine(snapshot: WhatIfSnapshot, added: Added) -> NodeRecord:
    """A machine of which only the GPUs are known."""
    like = added.what
    if not like.startswith((load.PREFIX, "{")):
        raise NotFound(
            "no node has this name; catalogue:ID names a machine of the catalogue", path=f"--add {like[:80]}"
        )
    try:
        topology, entry = _topology(like)
    except (ExtenderError, annotation.TopologyError) as error:
        raise BadInput(error.message, path="--add") from None
    vendor = entry.vendor if entry is not None else "amd" if topology.kind == "xgmi" else "nvidia"
    names = [resource.name for resource in snapshot.settings.resources]
    resource = next((name for name in names if name.startswith(f"{vendor}.com/")), names[0])
    labels: dict[str, str] = {}
    if entry is not None and entry.products:
        labels[catalogue.PRODUCT_LABELS[vendor]] = min(entry.products)
    name = like.removeprefix(load.PREFIX) if entry is not None else "added"
    return NodeRecord(
        uid="",
        name=name,
        resource_version="",
        labels=labels,
        annotations={annotation.KEY: annotation.encode(topology)},
        unschedulable=False,
        taints=(),
        cpu_milli=ROOM,
        memory=ROOM,
        pods=PODS,
        gpus={resource: topology.gpus},
        gpu_capacity={resource: topology.gpus},
    )


def _topology(like: str) -> tuple[Topology, catalogue.Entry | None]:
    if like.startswith(load.PREFIX):
        name = like.removeprefix(load.PREFIX)
        load.from_catalogue(name)
        entry = next(entry for entry in catalogue.entries() if entry.id == name)
        return entry.topology, entry
    return annotation.decode(like), None
