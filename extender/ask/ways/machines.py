"""Machines that are there and may not be used, and machines that are not there.

- uncordon: one node; there is no smaller change.
- add-nodes: one more machine like one that the cluster has, empty. The smaller machine has fewer GPUs.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

import msgspec

from ext_core import fit, survey
from extender.ask.admission import is_choosy, ready, rejected, tells_apart
from extender.ask.judge import Judge
from extender.ask.nodes import UNUSABLE, JudgedNodes
from extender.ask.text import count
from extender.ask.ways import Way, term
from extender.cluster.device_plugins import Division
from extender.objects.records import NodeRecord
from extender.policy.contracts import Class
from extender.policy.reasons import LINKS_NEVER, PLUGIN_LOST_GPU, REASONS, TOO_FEW_GPUS
from extender.preemption.search import Preemptor

HOSTNAME: Final = "kubernetes.io/hostname"
OF_THE_NODE: Final = UNUSABLE | {PLUGIN_LOST_GPU.code}
"""Codes of what is wrong with a node, whatever runs there."""
MOST_BITS: Final = 8
"""GPUs of a machine whose sets are all looked at: a larger one counts as one that may fit."""


class Empty(NamedTuple):
    """What the cluster's machines could hold if they were empty."""

    like: str = ""
    """The smallest machine of which one more, with its labels and taints, would take the pod; "" = none."""
    fits: bool = False
    """Whether the pod may fit on a node that exists, after pods there end and what keeps it off for a time has
    passed."""


def uncordon(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> Way | None:
    """Whether the pod fits on a node that only a cordon keeps it off: the best of these."""
    node = judge.place(asked, nodes.cordoned)
    if not node or not judge.fits(asked, node):
        return None
    return Way("uncordon", f"uncordon {node}", {"node": node}, (term("nodes", 1, "nodes"),))


def empty(judge: Judge, asked: Preemptor) -> Empty:
    """What the machines could hold if they were empty. Equal machines are looked at once."""
    cluster = judge.cluster
    like: tuple[int, str] | None = None
    fits = False
    for example in _kinds(judge, asked):
        row = cluster.row(example.name)
        code = _code(judge, asked, example.name, row)
        fits = fits or (example.here and _may_fit(judge, asked, row, code))
        size = sum(cluster.nodes[example.name].gpus.values()), example.name
        if example.new and not code and (like is None or size < like):
            like = size
    return Empty("" if like is None else like[1], fits)


class _Example(NamedTuple):
    """The first node of a kind, by name."""

    name: str
    here: bool
    """Whether it admits the pod."""
    new: bool
    """Whether one more like it admits the pod."""


def _kinds(judge: Judge, asked: Preemptor) -> list[_Example]:
    """Of the kinds of nodes, by what decides whether the pod fits on an empty one, those that admit it."""
    cluster, choosy = judge.cluster, is_choosy(asked.pod)
    each, restricted = tells_apart(asked.pod, cluster), cluster.restricted
    names = sorted(cluster.nodes)
    rows = judge.rows(names)
    states = judge.policy.judge(cluster.tables, asked.request, rows)
    wrong = bytes(state if state in OF_THE_NODE else 0 for state in range(256))
    admitted = [(True, True)] * len(names)
    for at, name in enumerate(names):
        if each or name in restricted:
            node = cluster.nodes[name]
            here = not rejected(asked.pod, ready(node))
            # A copy differs in its name and label alone.
            admitted[at] = here, not rejected(asked.pod, copy(node)) if choosy else here
    machines, parts = survey.machines(cluster.tables.nodes, rows), map(_parts, map(cluster.gpus.divisions.get, names))
    kinds = list(zip(admitted, machines, parts, map(wrong.__getitem__, states), strict=True))
    first = dict(zip(reversed(kinds), reversed(names), strict=True))
    return [_Example(name, *kind[0]) for kind, name in first.items() if any(kind[0])]


def _parts(division: Division | None) -> tuple[int, int, str] | None:
    return None if division is None else (division.units, division.gpus, division.detail)


def add_nodes(judge: Judge, on_empty: Empty) -> Way | None:
    """One more machine of the smallest kind that takes the pod."""
    node = judge.cluster.nodes.get(on_empty.like)
    if node is None:
        return None
    gpus = sum(node.gpus.values())
    return Way(
        "add-nodes",
        f"add a node like {node.name} ({count(gpus, 'GPU')})",
        {"count": 1, "like": node.name},
        (term("nodes", 1, "nodes"), term("gpus", gpus, "GPUs")),
    )


def copy(node: NodeRecord, number: int = 0) -> NodeRecord:
    """One more machine with the labels and taints of a node, once it is ready. `number`: of several the how many-th."""
    name = f"{node.name}-copy{f'-{number}' if number else ''}"
    labels = {**node.labels, HOSTNAME: name} if HOSTNAME in node.labels else node.labels
    return msgspec.structs.replace(ready(node), name=name, labels=labels)


def _code(judge: Judge, asked: Preemptor, name: str, row: int) -> int:
    """Why the pod does not fit on the machine without its pods and without the claims of others, 0 = it does."""
    cluster = judge.cluster
    with cluster.without({pod.uid for pod in cluster.pods_on(name)}, name):
        if judge.short(asked, row):
            return TOO_FEW_GPUS.code
        return judge.policy.judge(cluster.tables, asked.request, array("i", [row]))[0]


def _may_fit(judge: Judge, asked: Preemptor, row: int, code: int) -> bool:
    """Whether the pod fits on the machine in some state. Where fewer GPUs are free, a device plugin that may choose any
    of them is more certain to hand out linked ones."""
    if not code or REASONS[code].cls is Class.TRANSIENT:
        return True
    shape, healthy, _ = judge.cluster.tables.nodes.graph_of(row)
    return code == LINKS_NEVER.code and shape > 0 and some_linked(judge, asked, shape, healthy)


def some_linked(judge: Judge, asked: Preemptor, shape: int, healthy: int) -> bool:
    """Whether there are free GPUs of which the machine is certain to hand out linked ones. A large machine counts as
    one that has some."""
    bits, request = healthy.bit_length(), asked.request
    return bits > MOST_BITS or any(
        fit.link_table(judge.cluster.tables.shapes, shape, bits, request.wanted, request.containers, request.planned)
    )
