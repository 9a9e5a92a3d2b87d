"""What would let a pod or a gang start, one file for each kind of change; each way is verified by our own filter."""

from __future__ import annotations

from collections.abc import Callable

from extender.ask.judge import Judge
from extender.ask.nodes import JudgedNodes
from extender.ask.ways import machines, request, wait
from extender.ask.ways.way import Way, in_order
from extender.preemption.candidates import Preemptor


def of_pod(
    judge: Judge,
    asked: Preemptor,
    nodes: JudgedNodes,
    on_empty: machines.Empty,
    eviction: Way | None,
    over: Callable[[], bool] = bool,
) -> list[Way]:
    """The ways out of a single pod that fits nowhere, the cheapest first: no eviction while pods are evicted for it.
    `over`: whether the time for them is up."""
    waits = None if over() else wait.wait(judge, asked, nodes)
    under_way = waits is not None and any(passing["what"] == "victim" for passing in waits.spec["for"])
    ways = [None if under_way else eviction, machines.add_nodes(judge, on_empty), waits]
    for steps in (machines.uncordon, request.relax_links):
        if not over():
            ways.append(steps(judge, asked, nodes))
    if not over():
        ways += request.smaller(judge, asked, nodes)
    return in_order([way for way in ways if way is not None])
