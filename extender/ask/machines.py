"""The nodes that count, by GPU model; the usual machine of each model, without its pods but for those that run on every
node; the pod that asks for nothing but GPUs; and which machines take a pod once they are empty."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median_low
from typing import Final, NamedTuple

import msgspec

from ext_core import fit, survey
from extender.ask.judge import Judge
from extender.ask.nodes import UNUSABLE, is_choosy, kept_off, ready, tells_apart
from extender.cluster.device_plugins import Division, partial
from extender.cluster.nodes import model_of
from extender.objects import records
from extender.objects.records import NodeRecord, PodRecord
from extender.policy.contracts import Class, PodRequest
from extender.policy.reasons import LINKS_NEVER, PLUGIN_LOST_GPU, REASONS, TOO_FEW_GPUS
from extender.preemption.search import Preemptor

LOWEST: Final = -(2**31)
"""The priority of the pod: the claims of all others count."""


@dataclass(slots=True)
class Fleet:
    """The nodes that offer GPUs, by GPU model."""

    models: dict[str, list[str]] = field(default_factory=dict)
    """Names of the nodes of each model, by name."""
    resource: dict[str, str] = field(default_factory=dict)
    """The GPU resource of each model."""
    gpus: dict[str, int] = field(default_factory=dict)
    """How many GPUs each of these nodes offers."""
    closed: set[str] = field(default_factory=set)
    """Nodes that take no pod now: a cordon, or a taint of Kubernetes' own."""
    divided: int = 0
    """How many nodes hand out parts of GPUs; they do not count."""

    def open(self, model: str) -> list[str]:
        """The nodes of a model that take pods now."""
        return [name for name in self.models[model] if name not in self.closed]


def read(judge: Judge) -> Fleet:
    """The nodes that offer whole GPUs."""
    cluster, fleet = judge.cluster, Fleet()
    labels, restricted = cluster.settings.mix.model_labels, cluster.restricted
    for name in sorted(cluster.nodes):
        node, division = cluster.nodes[name], cluster.gpus.divisions.get(name)
        resource = cluster.gpus.resource_of(node)
        if resource is None or partial(resource) or division is None or not division.whole:
            fleet.divided += division is not None and not division.whole
            fleet.closed.add(name)
            continue
        model = model_of(node, labels)
        if model not in fleet.models:
            fleet.models[model], fleet.resource[model] = [], resource
        fleet.models[model].append(name)
        fleet.gpus[name] = node.gpus.get(fleet.resource[model], 0)
        if name in restricted and node.closed:
            fleet.closed.add(name)
    return fleet


def probe(judge: Judge, resource: str, gpus: int, links: str = "preferred") -> tuple[PodRecord, PodRequest]:
    """A pod that asks for GPUs and nothing else, that tolerates every taint, and that comes after all others."""
    amounts = {resource: str(gpus)}
    pod = records.pod(
        {
            "metadata": {"name": "capacity", "annotations": {"gpu-extender.io/links": links}},
            "spec": {
                "containers": [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}],
                "tolerations": [{"operator": "Exists"}],
                "priority": LOWEST,
            },
        },
        judge.cluster.gpu_names,
    )
    return pod, judge.claims.alone(pod)


class Look(NamedTuple):
    """What an answer rests on."""

    judge: Judge
    fleet: Fleet
    now: float
    """By the server's clock."""


MOST_ALIKE: Final = 256
"""Nodes of one kind, the first by name, whose daemons are looked at."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of machine, as the nodes of one model state it."""

    model: str
    resource: str
    like: str
    """The first node of the kind, by name."""
    nodes: int
    """How many there are."""
    gpus: int
    """How many of `resource`."""
    shape: int
    """The shape of its links, 0 where they are not known."""
    healthy: int
    left: tuple[int, ...]
    """CPU, memory and pod slots: what daemons usually leave of them."""


def takes(judge: Judge, machine: Machine, request: PodRequest) -> bool:
    """Whether the empty machine takes a pod of this request: CPU, memory, pod slots, other resources, GPUs, links, and
    the faults of its device plugin."""
    cluster = judge.cluster
    others = cluster.nodes[machine.like].others
    if any(asked > amount for asked, amount in zip(request.amounts, machine.left, strict=False)):
        return False
    if any(asked > others.get(name, 0) for name, asked in request.others):
        return False
    with cluster.without({pod.uid for pod in cluster.pods_on(machine.like)}, machine.like):
        return not judge.policy.judge(cluster.tables, request, array("i", [cluster.row(machine.like)]))[0]


def usual(judge: Judge, fleet: Fleet) -> list[Machine]:
    """The machine of each model of which there are most, of equals with the most GPUs, then the first by name; by
    model."""
    machines = (_usual(judge, fleet, model) for model in sorted(fleet.models))
    return [machine for machine in machines if machine is not None]


def _usual(judge: Judge, fleet: Fleet, model: str) -> Machine | None:
    cluster, resource = judge.cluster, fleet.resource[model]
    index = cluster.resources.index(resource)
    kinds: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    nodes = cluster.tables.nodes
    rows, known = judge.rows(fleet.models[model]), dict[int, list[str]]()
    for row, number in zip(rows, survey.machines(nodes, rows), strict=True):
        if number not in known:
            known[number] = kinds[nodes.alloc_of(row)[index], *nodes.graph_of(row)[:2]]
        known[number].append(cluster.names[row])
    kind = min(kinds, key=lambda key: (-len(kinds[key]), -key[0], min(kinds[key])))
    gpus, shape, healthy = kind
    if not gpus:
        return None
    names = kinds[kind][:MOST_ALIKE]
    amounts = map(median_low, zip(*(_left(judge, name) for name in names), strict=True))
    return Machine(model, resource, min(names), len(kinds[kind]), gpus, shape, healthy, tuple(amounts))


def _left(judge: Judge, name: str) -> tuple[int, ...]:
    """CPU, memory and pod slots that daemons leave of a node."""
    alloc = judge.cluster.tables.nodes.alloc_of(judge.cluster.row(name))
    daemons = [judge.cluster.amounts(pod) for pod in judge.cluster.pods_on(name) if pod.daemon or pod.mirror]
    return tuple([alloc[r] - sum(daemon[r] for daemon in daemons) for r in range(3)])


# -- one more machine like one that the cluster has, and each machine as if it were empty

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


def empty(judge: Judge, asked: Preemptor) -> Empty:
    """What the machines could hold if they were empty. Equal machines are looked at once."""
    cluster = judge.cluster
    like: tuple[int, str] | None = None
    fits = False
    for example in _kinds(judge, asked):
        row = cluster.row(example.name)
        code = _code_when_empty(judge, asked, example.name, row)
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
            here = not kept_off(asked.pod, ready(node))
            # A copy differs in its name and label alone.
            admitted[at] = here, not kept_off(asked.pod, copy(node)) if choosy else here
    machines, parts = survey.machines(cluster.tables.nodes, rows), map(_parts, map(cluster.gpus.divisions.get, names))
    kinds = list(zip(admitted, machines, parts, map(wrong.__getitem__, states), strict=True))
    first = dict(zip(reversed(kinds), reversed(names), strict=True))
    return [_Example(name, *kind[0]) for kind, name in first.items() if any(kind[0])]


def _parts(division: Division | None) -> tuple[int, int, str] | None:
    return None if division is None else (division.units, division.gpus, division.detail)


def copy(node: NodeRecord, number: int = 0) -> NodeRecord:
    """One more machine with the labels and taints of a node, once it is ready. `number`: of several the how many-th."""
    name = f"{node.name}-copy{f'-{number}' if number else ''}"
    labels = {**node.labels, HOSTNAME: name} if HOSTNAME in node.labels else node.labels
    return msgspec.structs.replace(ready(node), name=name, labels=labels)


def _code_when_empty(judge: Judge, asked: Preemptor, name: str, row: int) -> int:
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
