"""Where we would have placed a pod that kube-scheduler placed, by the tables as they stand."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final, Literal

from ext_core import fit, score
from extender.ask.nodes import SHORT
from extender.ask.shadow.effect import Effect, Effects
from extender.cluster.statements import gpus_of
from extender.cluster.tables import FIRST_GPU
from extender.decide.verbs import Verbs
from extender.policy.contracts import PodRequest
from extender.policy.rules import REASONS
from extender.preemption.search import amounts_short

Outcome = Literal["same", "equal", "other", "wait"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("same", "equal", "other", "wait")
NOT_OFFERED: Final = "not-offered"
"""The node was not among those that filter was asked about, or does not admit the pod by what we model."""


@dataclass(frozen=True, slots=True)
class Side:
    """One placement of a pod."""

    node: str
    gpus: tuple[int, ...] | None
    """The GPUs that we would plan there, None where positions are not modelled."""
    effect: Effect | None
    """None where it is not known."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The placements of a pod by kube-scheduler and by us."""

    outcome: Outcome
    """"same" node; "equal": another node of the same score; "other"; "wait": we would reject all nodes."""
    rejected: str
    """Why we would reject the node of kube-scheduler, "" where we would not."""
    theirs: Side
    ours: Side | None
    """None with "wait"."""


class Chooser:
    """Compares placements over one cluster."""

    def __init__(self, verbs: Verbs, effects: Effects) -> None:
        self._verbs, self._cluster, self._policy, self._effects = verbs, verbs.cluster, verbs.policy, effects

    def compare(self, request: PodRequest, rows: array[int], node: str, now: float) -> Comparison | None:
        """The choice of kube-scheduler beside ours. `rows`: the candidates; `node`: the one that the pod is bound to.
        None: it is not known."""
        cluster, policy = self._cluster, self._policy
        chosen = cluster.row(node)
        if chosen < 0:
            return None
        with self._verbs.claims.of(request, now):
            codes = policy.judge(cluster.tables, request, rows)
            rejected = self._why_not(request, rows, codes, chosen)
            passed = fit.passed(rows, codes)
            total, _ = policy.score(cluster.tables, request, passed)
            best = self._first_with_room(request, passed, total)
            theirs = self._side(request, chosen)
            if best < 0:
                return Comparison("wait", rejected, theirs, None)
            if passed[best] == chosen:
                return Comparison("same", rejected, theirs, theirs)
            ours = self._side(request, passed[best])
        same = not rejected and total[passed.index(chosen)] == total[best]
        return Comparison("equal" if same else "other", rejected, theirs, ours)

    def _why_not(self, request: PodRequest, rows: array[int], codes: array[int], chosen: int) -> str:
        if chosen not in rows:
            return NOT_OFFERED
        if code := codes[rows.index(chosen)]:
            return REASONS[code].key
        short = self._short(request, chosen)
        return SHORT[short[0]] if short else ""

    def _first_with_room(self, request: PodRequest, passed: array[int], total: array[float]) -> int:
        """The place in `passed` of the best row that has enough CPU, memory and pod slots; -1: there is none."""
        nodes = self._cluster.tables.nodes
        order = score.top(nodes, passed, total, 0)
        return next((at for at in order if not self._short(request, passed[at])), -1)

    def _short(self, request: PodRequest, row: int) -> tuple[int, ...]:
        return tuple([r for r in amounts_short(self._cluster, request, row) if r < FIRST_GPU])

    def _side(self, request: PodRequest, row: int) -> Side:
        mask = self._policy.planned(self._cluster.tables, request, row)
        return Side(self._cluster.names[row], gpus_of(mask) if mask else None, self._effects.of(request, row))
