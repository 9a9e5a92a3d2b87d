"""What helps a single pod that fits nowhere: its ways out, and the nearest miss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from extender.ask import nearest
from extender.ask.nodes import JudgedNodes
from extender.ask.suppose import SupposedCluster
from extender.ask.ways import Way, evict, in_order, machines, request, wait
from extender.preemption.search import Preemptor, SearchResult


class Help(NamedTuple):
    """What helps."""

    ways: Sequence[Way]
    """The cheapest first."""
    nearest: dict[str, Any] | None
    fits: bool
    """Whether the pod may fit on a node that exists, as of `machines.Empty`."""


def helping(supposed: SupposedCluster, asked: Preemptor, nodes: JudgedNodes, search: SearchResult) -> Help:
    """`search`: for an eviction; none is a way out while pods are evicted for the pod."""
    judge, over = supposed.judge, supposed.over
    on_empty = machines.empty(judge, asked)
    if on_empty.like and not _copy_meets_claims(supposed, asked, on_empty.like):
        on_empty = on_empty._replace(like="")
    waits = None if over() else wait.wait(judge, asked, nodes)
    under_way = waits is not None and any(passing["what"] == "victim" for passing in waits.spec["for"])
    eviction = None if under_way else evict.way(judge, asked, nodes, search)
    ways = [eviction, machines.add_nodes(judge, on_empty), waits]
    for steps in (machines.uncordon, request.relax_links):
        if not over():
            ways.append(steps(judge, asked, nodes))
    if not over():
        ways += request.smaller(judge, asked, nodes)
    known = in_order([way for way in ways if way is not None])
    return Help(known, nearest.nearest(judge, asked, nodes), on_empty.fits)


def _copy_meets_claims(supposed: SupposedCluster, asked: Preemptor, name: str) -> bool:
    """Whether one more node like this one, with all its devices free, meets the claims of the pod, or that is not
    known."""
    fits = supposed.cluster.dra.fits
    claims, like = fits.of(asked.pod), supposed.cluster.nodes[name]
    if claims is None:
        return True
    added = machines.copy(like)
    supposed.add_nodes(like, [added])
    try:
        return not fits.rejects(supposed.cluster.nodes[added.name], claims)
    finally:
        supposed.drop_nodes([added])
