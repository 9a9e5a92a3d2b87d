"""How many more machines of which model would start how many waiting pods.

Pods that fit now, that a quota holds back, or whose gang has to be in one domain, are left out. What is left is packed
into new, empty machines alone, the largest pods first; a gang whole or not at all. A pod that requires linked GPUs
shares its machine only where any GPUs of it are linked. So the machines are enough; fewer may do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ext_core import fit
from extender.ask.admission import rejected, sorted_out
from extender.ask.capacity.machines import Look, Machine, Takes
from extender.ask.capacity.unblock import ask_of
from extender.ask.judge import Judge, blocks
from extender.ask.text import count, short
from extender.ask.ways.machines import copy
from extender.cluster.tables import FIRST_GPU
from extender.objects.records import NodeRecord, PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.pod_request import wants_of
from extender.preemption.candidates import Preemptor
from extender.queue.report import QueueReport

HELD_BY_QUEUE: Final = ("quota", "incomplete")
MOST_KINDS: Final = 16
"""Kinds of single pods that are judged."""
MOST_PODS: Final = 4_000
"""Pods that are packed."""
MOST_OF_GANG: Final = 1_000
"""Pods of a gang that is packed."""
MOST_STATES: Final = 64
"""Different states of new machines that are filled on: beyond them the fullest are left as they are."""
Left = tuple[int, ...]
"""What is left of a machine: CPU, memory, pod slots, GPUs."""


@dataclass(slots=True)
class WaitingUnit:
    """Pods that start together."""

    pods: Sequence[PodRecord]
    gang: bool = False


@dataclass(slots=True)
class _Packed:
    """The new machines of one model, and what starts there."""

    nodes: int = 0
    open: Counter[Left] = field(default_factory=Counter)
    """How many machines have these amounts left."""
    pods: int = 0
    gpus: int = 0
    gangs: int = 0

    def put(self, asked: Left, empty: Left, *, alone: bool) -> None:
        """Into the machine with the fewest GPUs left that has room, else into a new one. `alone`: with no others."""
        room = [state for state in self.open if all(a <= b for a, b in zip(asked, state, strict=True))]
        was = empty if alone or not room else min(room, key=lambda state: (state[-1], state))
        if was in room and not alone:
            self._take(was)
        else:
            self.nodes += 1
        remaining = tuple([b - a for a, b in zip(asked, was, strict=True)])
        if not alone and remaining[-1]:
            self.open[remaining] += 1
            if len(self.open) > MOST_STATES:
                del self.open[min(self.open, key=lambda state: (state[-1], state))]

    def _take(self, state: Left) -> None:
        self.open[state] -= 1
        if not self.open[state]:
            del self.open[state]


def waiting(look: Look, report: QueueReport | None, wall: float) -> list[WaitingUnit]:
    """The pods and gangs that wait for room. `wall`: seconds since 1970."""
    judge, units = look.judge, list[WaitingUnit]()
    for entry in () if report is None else report.waiting:
        domain = entry.gang.domain
        if entry.code not in HELD_BY_QUEUE and not (domain is not None and domain.required):
            units.append(WaitingUnit(entry.gang.pods, len(entry.gang.pods) > 1))
    fits: dict[Hashable, bool] = {}
    admitting: dict[Hashable, list[str]] = {}
    for uid in list(judge.cluster.placements.waiting):
        pod = judge.cluster.pods.get(uid)
        if pod is None or pod.node:
            continue
        kind = ask_of(pod)
        if kind not in fits and len(fits) < MOST_KINDS:
            asked = Preemptor(judge.claims.request(pod, look.now), pod, look.now, wall)
            choice = pod.node_selector, pod.node_terms, pod.tolerations
            if choice not in admitting:
                admitting[choice] = _admitting(judge, pod)
            fits[kind] = _fits(judge, asked, admitting[choice])
        if not fits.get(kind, True):
            units.append(WaitingUnit((pod,)))
    return units


def growth(look: Look, machines: Iterable[Machine], units: Sequence[WaitingUnit]) -> list[dict[str, Any]]:
    """For each model that would start some of them: how many machines start how many pods; by model."""
    takes, entries = Takes(look), []
    for machine in machines:
        packed = _pack(look, takes, machine, units)
        if packed.pods:
            entries.append(
                {
                    "model": machine.model,
                    "like": machine.like,
                    "nodes": packed.nodes,
                    "pods": packed.pods,
                    "gpus": packed.gpus,
                    "gangs": packed.gangs,
                }
            )
    return entries


def _admitting(judge: Judge, pod: PodRecord) -> list[str]:
    """The nodes that admit the pod."""
    node_rows: list[str] = []
    for block in blocks(list(judge.cluster.nodes)):
        node_rows += sorted_out(pod, judge.cluster, [name for name in block if name in judge.cluster.nodes])[0]
    return node_rows


def _fits(judge: Judge, asked: Preemptor, names: list[str]) -> bool:
    """Whether the pod fits on one of the nodes now."""
    for block in blocks(names):
        rows = judge.rows(block)
        with judge.claims.of(asked.request, asked.now):
            codes, _ = judge.codes(asked, rows)
            if judge.some_roomy(asked, fit.passed(rows, codes)):
                return True
    return False


@dataclass(frozen=True, slots=True)
class _Ask:
    """What one pod takes of an empty machine."""

    asked: Left
    fits: bool
    """Whether it fits there."""
    alone: bool
    """Whether it needs the machine without other pods."""


def _pack(look: Look, takes: Takes, machine: Machine, units: Sequence[WaitingUnit]) -> _Packed:
    """The units that machines of this kind start."""
    like = look.judge.cluster.nodes.get(machine.like)
    if like is None:
        return _Packed()
    node, known, pods = copy(like), dict[Hashable, _Ask](), 0
    possible: list[tuple[WaitingUnit, list[_Ask]]] = []
    for unit in units:
        if len(unit.pods) > MOST_OF_GANG or pods + len(unit.pods) > MOST_PODS:
            continue
        asks: list[_Ask] = []
        for pod in unit.pods:
            pods += 1
            key = wants_of(pod), pod.node_selector, pod.node_terms, pod.tolerations
            if key not in known:
                known[key] = _ask(look, takes, machine, pod, node)
            asks.append(known[key])
        if all(ask.fits for ask in asks):
            possible.append((unit, sorted(asks, key=lambda ask: -ask.asked[-1])))
    possible.sort(key=lambda unit_asks: -unit_asks[1][0].asked[-1])
    packed, empty = _Packed(), (*_amounts(machine), machine.gpus)
    for unit, asks in possible:
        for ask in asks:
            packed.put(ask.asked, empty, alone=ask.alone)
        packed.pods += len(unit.pods)
        packed.gpus += sum(count for pod in unit.pods for _, count in pod.gpus)
        packed.gangs += unit.gang
    return packed


def _ask(look: Look, takes: Takes, machine: Machine, pod: PodRecord, node: NodeRecord) -> _Ask:
    """`node`: the new machine."""
    request = look.judge.claims.alone(pod)
    fits = not rejected(pod, node) and _room(machine, request) and takes.one(machine, request)
    asked = (*request.amounts[:FIRST_GPU], request.wanted)
    return _Ask(asked, fits, _needs_all(look.judge, machine, request))


def _room(machine: Machine, request: PodRequest) -> bool:
    """Whether CPU, memory and pod slots of the empty machine are enough."""
    return all(asked <= available for asked, available in zip(request.amounts, _amounts(machine), strict=False))


def _amounts(machine: Machine) -> tuple[int, int, int]:
    return machine.cpu_milli, machine.memory, machine.pods


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
    return (
        f"{count(more['nodes'], 'more node')} like {more['like']} (model {short(more['model'])}) would start "
        f"{count(more['pods'], 'waiting pod')} with {count(more['gpus'], 'GPU')}{gangs}"
    )
