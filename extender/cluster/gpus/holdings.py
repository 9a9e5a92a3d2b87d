"""What pods hold of one node's GPUs, and what of the node decides how that is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec


class NodeGpus(NamedTuple):
    """The GPUs of one node as far as the ledger needs them."""

    resource: str
    """The resource that the node offers its GPUs as."""
    graph: int = 0
    """Bit mask of the GPUs that the node has; 0 where positions are not modelled (over 16 GPUs)."""
    healthy: int = 0
    """Those of `graph` that work."""
    index_of: Mapping[str, int] = {}
    """Device id -> GPU index; empty where ids are unknown."""
    relayed: bool = False
    """Whether the node's relay hands out the planned GPUs."""
    units: int = 1
    """Units of the resource per GPU: 1 whole GPUs, 0 parts of unknown size."""


class Holding(msgspec.Struct, frozen=True, gc=False):
    """One pod's GPUs on a node. `gpus`: indices in ascending order, None where unknown; `count`: how many it holds,
    in units of the resource; `mask`: those (of which it holds any part) whose positions are sure; `unsure`: how many
    units are held at positions that are not sure."""

    uid: str
    gpus: tuple[int, ...] | None
    how: str
    count: int
    mask: int = 0
    unsure: int = 0


class NodeLedger(msgspec.Struct, frozen=True, gc=False):
    """All holdings of a node, by pod uid, and their sums as the table's columns take them. `parts`: units of each GPU
    held by pods that hold less than the whole of it; () where GPUs are handed out whole."""

    holdings: tuple[Holding, ...] = ()
    sure: int = 0
    likely: int = 0
    unknown: int = 0
    pending: int = 0
    doubled: int = 0  # GPUs (or units of one) that two pods are seen to hold
    parts: tuple[int, ...] = ()
