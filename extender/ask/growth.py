"""How many more machines of which model would start how many waiting pods.

Pods that fit now, for which pods are evicted, that a quota holds back, that cannot be read in full, or whose gang has
to be in one domain, are left out. So is, in the order of the queue, each gang that would exceed the rules of its queue.
What is left is packed into new, empty machines alone, the largest pods first; a gang whole or not at all. A pod that
requires linked GPUs shares its machine only where any GPUs of it are linked. So the machines are enough; fewer may do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ext_core import fit
from extender.ask.admission import rejected
from extender.ask.judge import Judge
from extender.ask.machines import Machine, read, takes, usual
from extender.ask.node_reasons import UNREADABLE
from extender.ask.pending import EVICTING, FITS, SAVING
from extender.ask.text import count, short
from extender.ask.ways.machines import copy
from extender.cluster.tables import FIRST_GPU
from extender.objects.queueing import GATE, queue_of
from extender.objects.records import NodeRecord, PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.pod_request import wants_of
from extender.queue.report import QueueReport, Why
from extender.queue.usage import Quota, add_gpus

HELD_BY_QUEUE: Final = ("quota", "incomplete", "date")
SERVED: Final = (FITS, EVICTING, SAVING, UNREADABLE)
"""Why pods wait that start without more machines, or that no machine helps."""
MOST_PODS: Final = 4_000
"""Pods that are packed."""
MOST_OF_GANG: Final = 1_000
"""Pods of a gang that is packed."""
MOST_STATES: Final = 64
"""Different states of new machines that are filled on: beyond them the fullest are left as they are."""
Left = tuple[int, ...]
"""What is left of a machine: CPU, memory, pod slots, GPUs."""
WaitingUnit = Sequence[PodRecord]
"""A pod, or the pods of a gang, which start together."""


@dataclass(slots=True)
class _Packed:
    """The new machines of one model, and what starts there."""

    nodes: int = 0
    open: Counter[Left] = field(default_factory=Counter)
    """How many machines have these amounts left."""
    pods: int = 0
    gpus: int = 0
    gangs: int = 0
    alone: int = 0
    """How many machines one pod has to itself, which leaves GPUs of it unused."""

    def put(self, asked: Left, empty: Left, *, alone: bool) -> None:
        """Into the machine with the fewest GPUs left that has room, else into a new one. `alone`: with no others."""
        room = [state for state in self.open if all(a <= b for a, b in zip(asked, state, strict=True))]
        was = empty if alone or not room else min(room, key=lambda state: (state[-1], state))
        if was in room and not alone:
            self._take(was)
        else:
            self.nodes += 1
        remaining = tuple([b - a for a, b in zip(asked, was, strict=True)])
        if alone:
            self.alone += remaining[-1] > 0
        elif remaining[-1]:
            self.open[remaining] += 1
            if len(self.open) > MOST_STATES:
                del self.open[min(self.open, key=lambda state: (state[-1], state))]

    def _take(self, state: Left) -> None:
        self.open[state] -= 1
        if not self.open[state]:
            del self.open[state]


def waiting_units(report: QueueReport | None, waiting: Iterable[tuple[PodRecord, Why]]) -> list[WaitingUnit]:
    """The gangs and pods that wait for room. `report`: the latest look at the queue; `waiting`: each pod that waits,
    and why (`pending.reasons`)."""
    units = [
        entry.gang.pods
        for entry in (() if report is None else report.waiting)
        if entry.code not in HELD_BY_QUEUE and not (entry.gang.domain is not None and entry.gang.domain.required)
    ]
    return [*units, *((pod,) for pod, why in waiting if not pod.gated and why.reason not in SERVED)]


def growth(judge: Judge, units: Sequence[WaitingUnit], report: QueueReport | None) -> list[dict[str, Any]]:
    """For each model whose usual machine would start some of them: how many machines start how many pods; by model.
    `report`: states what the queues hold."""
    entries = []
    held = {row["name"]: dict(row["used_gpus"]) for row in (() if report is None else report.queues)}
    for machine in usual(judge, read(judge)) if units else ():
        packed = _pack(judge, machine, units, held)
        if packed.pods:
            entries.append(
                {
                    "model": machine.model,
                    "like": machine.like,
                    "nodes": packed.nodes,
                    "node_gpus": machine.gpus,
                    "pods": packed.pods,
                    "gpus": packed.gpus,
                    "gangs": packed.gangs,
                    "alone": packed.alone,
                }
            )
    return entries


@dataclass(frozen=True, slots=True)
class _Ask:
    """What one pod takes of an empty machine."""

    asked: Left
    fits: bool
    """Whether it fits there."""
    alone: bool
    """Whether it needs the machine without other pods."""


def _pack(judge: Judge, machine: Machine, units: Sequence[WaitingUnit], held: dict[str, dict[str, int]]) -> _Packed:
    """The units that machines of this kind start. `held`: GPUs by queue and model; what the units take is added."""
    # What is kept for other queues that wait is of the nodes that exist: none waits here.
    quota = Quota(judge.cluster.settings.queue.queues, {}, held, {})
    node, known, pods = copy(judge.cluster.nodes[machine.like]), dict[Hashable, _Ask](), 0
    possible: list[tuple[WaitingUnit, list[_Ask]]] = []
    for unit in units:
        if len(unit) > MOST_OF_GANG or pods + len(unit) > MOST_PODS:
            continue
        asks: list[_Ask] = []
        for pod in unit:
            pods += 1
            key = wants_of(pod), pod.node_selector, pod.node_terms, pod.tolerations
            if key not in known:
                known[key] = _ask(judge, machine, pod, node)
            asks.append(known[key])
        if all(ask.fits for ask in asks) and _within_quota(quota, held, unit, machine.model):
            possible.append((unit, sorted(asks, key=lambda ask: -ask.asked[-1])))
    possible.sort(key=lambda unit_asks: -unit_asks[1][0].asked[-1])
    packed, empty = _Packed(), (*machine.left, machine.gpus)
    for unit, asks in possible:
        for ask in asks:
            packed.put(ask.asked, empty, alone=ask.alone)
        packed.pods += len(unit)
        packed.gpus += sum(pod.gpu_count for pod in unit)
        packed.gangs += len(unit) > 1
    return packed


def _within_quota(quota: Quota, held: dict[str, dict[str, int]], unit: WaitingUnit, model: str) -> bool:
    """Whether the queue of the unit may hold its GPUs, of this model; they are added to `held`, which the quota is of.
    Pods without the gate of the queue are in none."""
    queue = next((queue_of(pod) for pod in unit if GATE in pod.gates), None)
    if queue is None:
        return True
    gpus = sum(pod.gpu_count for pod in unit)
    if quota.refused(queue, {model: gpus}) is not None:
        return False
    add_gpus(held, queue, {model: gpus})
    return True


def _ask(judge: Judge, machine: Machine, pod: PodRecord, node: NodeRecord) -> _Ask:
    """`node`: the new machine."""
    request = judge.claims.alone(pod)
    fits = not rejected(pod, node) and takes(judge, machine, request)
    return _Ask((*request.amounts[:FIRST_GPU], request.wanted), fits, _needs_all(judge, machine, request))


def _needs_all(judge: Judge, machine: Machine, request: PodRequest) -> bool:
    """Whether the pod requires links or NICs that other pods of the machine could take from it."""
    if not request.by_position:
        return False
    shapes = judge.cluster.tables.shapes
    if request.nics == "required":
        return True
    return not (machine.shape and fit.uniform(shapes, machine.shape, machine.healthy, request.wanted))


def sentence(more: Mapping[str, Any]) -> str:
    """One of `growth`, for people."""
    gangs = f" ({count(more['gangs'], 'gang')} among them)" if more["gangs"] else ""
    gpus, offered = more["gpus"], more["nodes"] * more.get("node_gpus", 0)  # a server of an older version states none
    used = f"{gpus:,} of their {count(offered, 'GPU')}" if gpus < offered else count(gpus, "GPU")
    alone = more.get("alone", 0)
    each = "requires links or NICs and is" if alone == 1 else "require links or NICs and are"
    why = f"; {alone:,} of these pods {each} counted with a node each: fewer nodes may do" if alone else ""
    return (
        f"{count(more['nodes'], 'more node')} like {more['like']} (model {short(more['model'])}) would start "
        f"{count(more['pods'], 'waiting pod')} with {used}{gangs}{why}"
    )
