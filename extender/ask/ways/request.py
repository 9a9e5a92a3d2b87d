"""What the pod itself may ask for instead.

- relax-links: `links: preferred` instead of `required`. There is no smaller step.
- smaller: less of one resource, all else as it is. The smaller change keeps more of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from ext_core import survey
from extender.ask.judge import Judge
from extender.ask.nodes import JudgedNodes
from extender.ask.text import amount
from extender.ask.ways import Way, term
from extender.cluster.demand import LINKS
from extender.cluster.gpus import MOST_GPUS
from extender.objects.records import PodRecord
from extender.preemption.search import Preemptor

UNITS: Final = {"cpu": "millicores", "memory": "bytes"}
FIELDS: Final = {"cpu": "cpu_milli", "memory": "memory"}


def changed(judge: Judge, asked: Preemptor, pod: PodRecord) -> Preemptor:
    """The question for the pod with another specification."""
    return asked._replace(pod=pod, request=judge.claims.request(pod, asked.now))


def with_gpus(pod: PodRecord, count: int) -> PodRecord | None:
    """The pod with other GPUs; None where more than one container asks for them: which one is to have fewer?"""
    if len(pod.gpus) != 1 or len(pod.gpu_containers) != 1:
        return None
    ((resource, _),), ((container, _, _),) = pod.gpus, pod.gpu_containers
    return msgspec.structs.replace(pod, gpus=((resource, count),), gpu_containers=((container, resource, count),))


def with_links(pod: PodRecord) -> PodRecord:
    """The pod that only prefers links."""
    return msgspec.structs.replace(pod, annotations={**pod.annotations, LINKS: "preferred"})


def relax_links(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> Way | None:
    """Whether the pod fits where links are only preferred."""
    if asked.request.links != "required" or asked.request.wanted < 2:
        return None
    relaxed = changed(judge, asked, with_links(asked.pod))
    node = judge.place(relaxed, nodes.open)
    if not node or not judge.fits(relaxed, node):
        return None
    return Way(
        "relax-links",
        f"set {LINKS}: preferred (it fits on {node})",
        {"annotation": LINKS, "value": "preferred", "node": node},
    )


def smaller(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> list[Way]:
    """The most GPUs, CPU or memory with which the pod fits, of each where less of it alone helps."""
    ways = []
    gpus = _fewer_gpus(judge, asked, nodes)
    if gpus is not None:
        ways.append(gpus)
    for r, resource in enumerate(FIELDS):
        less = _less(judge, asked, nodes, r, resource)
        if less is not None:
            ways.append(less)
    return ways


def _fewer_gpus(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> Way | None:
    if with_gpus(asked.pod, 1) is None:
        return None
    ((resource, was),) = asked.pod.gpus
    most = _most_free(judge, asked, nodes)
    if asked.request.links == "required":
        most = min(most, MOST_GPUS)  # of more GPUs no links are known

    def fits(count: int) -> Way | None:
        pod = with_gpus(asked.pod, count)
        assert pod is not None
        fewer = changed(judge, asked, pod)
        node = judge.place(fewer, nodes.open)
        if not node or not judge.fits(fewer, node):
            return None
        return Way(
            "smaller",
            f"ask for {amount(resource, count)} instead of {was:,} (it fits on {node})",
            {"resource": resource, "was": was, "is": count, "unit": "GPUs", "node": node},
            (term("given_up", was - count, "GPUs"),),
            (0.0, (was - count) / was),
        )

    return most_gpus(min(was - 1, most), fits)


def most_gpus(most: int, fits: Callable[[int], Way | None]) -> Way | None:
    """The way with the most GPUs, `most` or fewer. `fits`: the way with this many, None where they do not fit.

    Of more than MOST_GPUS no links are known: what fits with more of them fits with fewer, so they are bisected. A node
    may state a million GPUs."""
    best, low, high = None, MOST_GPUS, most
    while low < high:
        middle = (low + high + 1) // 2
        way = fits(middle)
        if way is None:
            high = middle - 1
        else:
            best, low = way, middle
    for count in range(min(most, MOST_GPUS), 0, -1):
        if best is not None:
            break
        best = fits(count)
    return best


def _most_free(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> int:
    """The most GPUs that are free on one node: with more it fits nowhere."""
    free = survey.free(judge.cluster.tables.nodes, asked.request.resource, judge.rows(nodes.open))
    return max(free, default=0)


def _less(judge: Judge, asked: Preemptor, nodes: JudgedNodes, r: int, resource: str) -> Way | None:
    """Less CPU or memory, where it is all that is missing."""
    names = [name for name, short in nodes.short.items() if short == (r,) and name not in nodes.repelled]
    rows = judge.rows(names)
    with judge.claims.of(asked.request, asked.now):
        free = survey.free(judge.cluster.tables.nodes, r, rows)
    best, was = max(free, default=0), asked.request.amounts[r]
    if not 0 < best < was:
        return None
    where = judge.cluster.names[rows[free.index(best)]]
    less = changed(judge, asked, msgspec.structs.replace(asked.pod, **{FIELDS[resource]: best}))
    if not judge.fits(less, where):
        return None
    return Way(
        "smaller",
        f"ask for {amount(resource, best)} instead of {amount(resource, was)} (it fits on {where})",
        {"resource": resource, "was": was, "is": best, "unit": UNITS[resource], "node": where},
        (term("given_up", was - best, UNITS[resource]),),
        (1.0 + r, (was - best) / was),
    )
