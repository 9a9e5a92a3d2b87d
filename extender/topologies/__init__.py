"""Where a node's GPU graph comes from: one short file a source, asked in order of trust.

A source answers with a Topology, or None when it has nothing to say about the node. The first that knows the links is
believed. One that cannot be read, or that is about other GPUs than the node has, leaves a warning, and the next is
asked. What a less trusted one says otherwise is kept as a disagreement: it is reported, and changes nothing. Nothing
here guesses; what no source knows is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations

from extender.topologies import annotation, catalogue
from extender.topologies.topology import Topology, unknown

__all__ = ["SOURCES", "Source", "Topology", "resolve", "unknown"]

SHOWN_PAIRS = 4  # of a disagreement


Source = Callable[[Mapping[str, str], Mapping[str, str], int], Topology | None]
"""The GPU graph of a node with these annotations, these labels and so many GPUs. Pure: the same arguments, the same
answer; it never raises for what a node states."""

SOURCES: tuple[Source, ...] = (
    annotation.read,  # what the node's agent saw
    annotation.read_stated,  # what an administrator states about this very node
    catalogue.read,  # what is known about machines of this kind
)


def resolve(annotations: Mapping[str, str], labels: Mapping[str, str], gpu_count: int) -> Topology:
    """The node's GPU graph as the most trusted source that knows it has it, with what others say otherwise, and the
    NICs near its GPUs."""
    graph = _graph(annotations, labels, gpu_count)
    return graph if graph.links is None else annotation.with_nics(annotations, graph)


def _graph(annotations: Mapping[str, str], labels: Mapping[str, str], gpu_count: int) -> Topology:
    answers = [answer for source in SOURCES if (answer := source(annotations, labels, gpu_count)) is not None]
    believed = next((answer for answer in answers if answer.links is not None), None)
    if believed is None:
        if not answers:
            return unknown(gpu_count, "no topology annotation, and no label that names the GPU product")
        warnings = [text for answer in answers for text in answer.warnings]
        return unknown(gpu_count, answers[0].detail, *warnings)
    more_trusted = answers[: answers.index(believed)]
    warnings = [text for answer in (*more_trusted, believed) for text in answer.warnings]
    later = [answer for answer in answers[len(more_trusted) + 1 :] if answer.links is not None]
    disagreements = tuple(text for answer in later if (text := _otherwise(believed, answer)))
    if warnings == list(believed.warnings) and not disagreements:
        return believed
    return replace(believed, warnings=tuple(warnings), disagreements=disagreements)


def _otherwise(believed: Topology, other: Topology) -> str:
    """What the other source says otherwise of the links, in one sentence; "" where it agrees."""
    assert believed.links is not None
    assert other.links is not None
    differences = []
    if other.kind != believed.kind:
        differences.append(f"kind {other.kind or 'none'} instead of {believed.kind or 'none'}")
    elif other.kind is not None and other.gpu_total != believed.gpu_total:
        differences.append("links into a switch" if other.gpu_total else "links from GPU to GPU")
    pairs = [
        f"{a}-{b}: {other.links[a][b]} instead of {believed.links[a][b]}"
        for a, b in combinations(range(believed.gpus), 2)
        if other.links[a][b] != believed.links[a][b]
    ]
    more = [f"and {len(pairs) - SHOWN_PAIRS} more pairs"] if len(pairs) > SHOWN_PAIRS else []
    differences += [*pairs[:SHOWN_PAIRS], *more]
    if other.gbps and believed.gbps and other.kind == believed.kind and abs(other.gbps / believed.gbps - 1) > 0.1:
        differences.append(f"{other.gbps:g} GB/s a link instead of {believed.gbps:g}")  # 25.781 is sold as 25
    return f"{other.detail} has {', '.join(differences)}" if differences else ""
