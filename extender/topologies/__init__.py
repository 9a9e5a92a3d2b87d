"""Where a node's GPU graph comes from: one short file a source, asked in order of trust.

A source answers with a Topology, or None when it has nothing to say about the node. The first answer counts,
also when it is "unknown": a statement that cannot be read, or that contradicts the node, is never papered over
by a less trusted source. Nothing here guesses; what no source knows is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from extender.topologies import annotation, catalogue
from extender.topologies.topology import Topology, unknown

__all__ = ["SOURCES", "Source", "Topology", "resolve", "unknown"]


class Source(Protocol):
    """Pure: the same arguments, the same answer; never raises for what a node says."""

    def __call__(self, annotations: Mapping[str, str], labels: Mapping[str, str], gpu_count: int) -> Topology | None:
        """The GPU graph of a node with these annotations, labels and ``gpu_count`` GPUs."""
        ...


SOURCES: tuple[Source, ...] = (
    annotation.read,  # what the node's agent or an administrator states about this very node
    catalogue.read,  # what is known about machines of this kind
)


def resolve(annotations: Mapping[str, str], labels: Mapping[str, str], gpu_count: int) -> Topology:
    """The node's GPU graph as the most trusted source that speaks has it."""
    for source in SOURCES:
        found = source(annotations, labels, gpu_count)
        if found is not None:
            return found
    return unknown(gpu_count, "no topology annotation, and no label that names the GPU product")
