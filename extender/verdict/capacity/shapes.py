"""Requests that leave GPUs of these machines unused: so many GPUs that the rest of a machine is no use to their like,
or so much CPU or memory that it ends before the GPUs do. And what to ask for instead.

It is arithmetic on the usual machine of each model, as if pods of one shape had such machines for themselves. Pods of
other shapes may fill what is left.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ext_core import survey
from ext_core.link_sets import LinkSets
from extender.cluster.demand.kinds import links_of
from extender.cluster.gpus.store import MOST_GPUS
from extender.objects.records import PodRecord
from extender.verdict.admission import rejected
from extender.verdict.capacity.empty import Machine, Takes, most_pods
from extender.verdict.capacity.machines import Look, probe
from extender.verdict.judge import blocks
from extender.verdict.ways.machines import copy

MOST: Final = 10
"""Shapes that are reported: those that leave most GPUs unused."""
PODS: Final = 1024
"""Pods without a node that one slice looks at."""
ROWS: Final = 8192
"""Pod rows that one slice reads."""
MOST_SHAPES: Final = 512
"""Different shapes of one model that are looked at."""


class Shape(NamedTuple):
    """What pods of one shape ask for, each. `linked`: `links: required`."""

    gpus: int
    cpu_milli: int
    memory: int
    linked: bool


@dataclass(slots=True)
class _Pods:
    """The pods of one shape. `example`: (whether it waits, namespace, name) of the first of them."""

    example: tuple[bool, str, str]
    pods: int = 0


@dataclass(frozen=True, slots=True)
class _Fit:
    """How a machine holds pods of a shape. `by_gpus`: how many, by its GPUs alone; `pods`: by all; `because`: what ends
    first."""

    by_gpus: int
    pods: int
    because: str


def shapes(look: Look, machines: list[Machine]) -> list[dict[str, Any]]:
    """The shapes that leave most GPUs unused, and what to ask for instead; most GPUs first."""
    takes, sets = Takes(look), LinkSets(look.judge.cluster.tables.shapes)
    found: list[dict[str, Any]] = []
    asked = _asked(look, machines)
    for machine, pods_of_shapes in zip(machines, asked, strict=True):
        for shape, pods in pods_of_shapes.items():
            if (one := _Advice(look, takes, sets, machine).of(shape, pods)) is not None:
                found.append(one)
    return sorted(found, key=_order)[:MOST]


def _order(one: dict[str, Any]) -> tuple[Any, ...]:
    """By what the shape is."""
    shape = one["gpus"], one["cpu_millicores"], one["memory_bytes"], one["links"]
    return -one["unused_gpus"], one["model"], *shape, one["like"]


def _asked(look: Look, machines: list[Machine]) -> list[dict[Shape, _Pods]]:
    """For each of the machines the pods of each shape that run on machines of its model, or wait and may run there."""
    found = [dict[Shape, _Pods]() for _ in machines]
    _running(look, machines, found)
    _unbound(look, machines, found)
    return found


def _running(look: Look, machines: list[Machine], found: list[dict[Shape, _Pods]]) -> None:
    """Add the pods that run, of each place."""
    cluster = look.judge.cluster
    pods, uids = cluster.tables.pods, cluster.pod_rows.uids
    places = _places(look, machines)
    for start in range(0, pods.height, ROWS):
        for (at, _, _), (row, number) in survey.asking(pods, start, start + ROWS, places).items():
            pod = cluster.pods.get(uids[row])
            if pod is not None and _fits(pod, machines[at]):
                _count(found[at], pod, machines[at], number)


def _unbound(look: Look, machines: list[Machine], found: list[dict[Shape, _Pods]]) -> None:
    """Add the pods without a node, of each place where they may run."""
    cluster = look.judge.cluster
    likes = [cluster.nodes.get(machine.like) for machine in machines]
    new = [None if like is None else copy(like) for like in likes]
    for block in blocks(list(cluster.placements.unbound), PODS):
        for pod in map(cluster.pods.get, block):
            if pod is None or pod.node or not pod.gpus or pod.daemon or pod.mirror or pod.terminating:
                continue
            for place, (machine, like) in enumerate(zip(machines, new, strict=True)):
                if like is not None and _fits(pod, machine) and not rejected(pod, like):
                    _count(found[place], pod, machine)


def _places(look: Look, machines: list[Machine]) -> array[int]:
    """By node row the place of the machine of its model, -1 = none. In one slice: rows may move after it."""
    there = array("i", [-1]) * len(look.judge.cluster.names)
    for place, machine in enumerate(machines):
        for row in look.judge.rows(look.fleet.models[machine.model]):
            there[row] = place
    return there


def _fits(pod: PodRecord, machine: Machine) -> bool:
    """Whether the pod asks for GPUs of the machine, and for no more than it has."""
    return 0 < _gpus(pod, machine) <= machine.gpus


def _gpus(pod: PodRecord, machine: Machine) -> int:
    return next((count for name, count in pod.gpus if name == machine.resource), 0)


def _count(kinds: dict[Shape, _Pods], pod: PodRecord, machine: Machine, number: int = 1) -> None:
    """So many more pods of its shape, unless the shape is one too many."""
    shape = Shape(_gpus(pod, machine), pod.cpu_milli, pod.memory, links_of(pod) == "required")
    known = kinds.get(shape)
    if known is None and len(kinds) < MOST_SHAPES:
        known = kinds[shape] = _Pods(_place(pod))
    if known is not None:
        known.pods += number
        known.example = min(known.example, _place(pod))


def _place(pod: PodRecord) -> tuple[bool, str, str]:
    """Which pod is the example of its shape: the first by name, of those that run where some do."""
    return not pod.node, pod.namespace, pod.name


class _Advice:
    """What is said of shapes on one machine."""

    def __init__(self, look: Look, takes: Takes, sets: LinkSets, machine: Machine) -> None:
        self._look, self._takes, self._sets, self._machine = look, takes, sets, machine

    def of(self, shape: Shape, there: _Pods) -> dict[str, Any] | None:
        """None where the shape leaves nothing unused, no change helps, or no such machine takes it."""
        machine, fit = self._machine, self._fit(shape)
        left = machine.gpus - fit.pods * shape.gpus
        if not fit.pods or left <= 0:
            return None
        instead = list(self._fewer_gpus(shape, there) if fit.because == "gpus" else self._less(shape, fit, there))
        if not instead:
            return None
        return {
            "model": machine.model,
            "like": machine.like,
            "machine_gpus": machine.gpus,
            "gpus": shape.gpus,
            "cpu_millicores": shape.cpu_milli,
            "memory_bytes": shape.memory,
            "links": "required" if shape.linked else "any",
            "pods": there.pods,
            "example": "/".join(there.example[1:]),
            "pods_per_node": fit.pods,
            "because": fit.because,
            "unused_gpus_per_node": left,
            "unused_gpus": left * -(-there.pods // fit.pods),
            "instead": instead,
        }

    def _fit(self, shape: Shape) -> _Fit:
        machine = self._machine
        by_gpus = most_pods(self._sets, machine, shape.gpus, linked=shape.linked)
        most = {"gpus": by_gpus, "pods": machine.pods}
        if shape.cpu_milli:
            most["cpu"] = machine.cpu_milli // shape.cpu_milli
        if shape.memory:
            most["memory"] = machine.memory // shape.memory
        because = min(most, key=lambda what: most[what])  # of equals the GPUs
        return _Fit(by_gpus, max(0, most[because]), because)

    def _fewer_gpus(self, shape: Shape, there: _Pods) -> Iterator[dict[str, Any]]:
        """The next sizes that leave nothing unused: a smaller one, and a larger one."""
        most = min(self._machine.gpus, MOST_GPUS)
        for sizes in (range(min(shape.gpus - 1, MOST_GPUS), 0, -1), range(shape.gpus + 1, most + 1)):
            for gpus in sizes:
                # CPU and memory grow and shrink with the GPUs, as those that ask for them usually do.
                other = Shape(
                    gpus, shape.cpu_milli * gpus // shape.gpus, shape.memory * gpus // shape.gpus, shape.linked
                )
                fit = self._fit(other)
                if fit.pods and fit.pods * gpus == self._machine.gpus and self._taken(other):
                    yield self._change("gpus", gpus, "GPUs", (shape, other), there)
                    break

    def _less(self, shape: Shape, fit: _Fit, there: _Pods) -> Iterator[dict[str, Any]]:
        """So little CPU and memory that the GPUs end first."""
        if fit.because == "pods" or not fit.by_gpus:
            return
        machine = self._machine
        cpu, memory = machine.cpu_milli // fit.by_gpus, machine.memory // fit.by_gpus
        other = shape._replace(cpu_milli=min(shape.cpu_milli, cpu), memory=min(shape.memory, memory))
        if self._fit(other).pods <= fit.pods or not self._taken(other):
            return
        if other.cpu_milli < shape.cpu_milli:
            yield self._change("cpu", other.cpu_milli, "millicores", (shape, other), there)
        if other.memory < shape.memory:
            yield self._change("memory", other.memory, "bytes", (shape, other), there)

    def _taken(self, shape: Shape) -> bool:
        """Whether our own filter passes a pod of so many GPUs on the empty machine."""
        links = "required" if shape.linked else "preferred"
        return self._takes.one(self._machine, probe(self._look.judge, self._machine.resource, shape.gpus, links)[1])

    def _change(self, what: str, value: int, unit: str, shapes: tuple[Shape, Shape], there: _Pods) -> dict[str, Any]:
        """What a change frees, were the pods on machines of their own: machines, and GPUs that they hold."""
        was, then = shapes
        nodes = [-(-there.pods // self._fit(shape).pods) for shape in shapes]
        return {
            "what": what,
            "is": value,
            "unit": unit,
            "pods_per_node": self._fit(then).pods,
            "frees_nodes": nodes[0] - nodes[1],
            "frees_gpus": there.pods * (was.gpus - then.gpus),
        }
