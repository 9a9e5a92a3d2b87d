"""The policy: rules in order, scorers with their weights, cost terms in order; built from the settings by name."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from ext_core import score
from ext_core.links import LinkShapes
from extender.cluster.tables import Tables
from extender.policy.contracts import CostTerm, PodRequest, Rule, Scorer
from extender.policy.costs import COSTS, prices
from extender.policy.rules import RULES
from extender.policy.scorers import SCORERS, Fragmentation, Packing
from extender.settings import Known, Settings

MOST_PRICES: Final = 4_096  # tables of 2 kB at most
MANY_ROWS: Final = 256
"""From so many rows on it is cheaper to find the best ones first."""
_ZERO: Final = array("d", (0.0,))
Column: TypeAlias = "array[float] | float"
"""A value for each row; one where all have the same."""


@dataclass(slots=True)
class Policy:
    """The rules, the scorers with their weights and the cost terms that the settings name. Scorers and cost terms
    change when settings are loaded: what works in slices takes `now` first."""

    rules: tuple[Rule, ...]
    scorers: tuple[tuple[Scorer, float], ...]
    costs: tuple[CostTerm, ...]
    weights: list[float] = field(default_factory=list)  # of the scorers
    prices: dict[tuple[int, int, int], array[int]] = field(default_factory=dict, compare=False)
    fragmentation: Fragmentation = field(default_factory=Fragmentation)  # it chooses the GPUs, scored by or not

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        """The policy of the settings."""
        policy = cls(tuple(rule() for rule in RULES), (), ())
        policy.take(settings)
        return policy

    def take(self, settings: Settings) -> None:
        """Score and price by these settings from now on."""
        weights = settings.packing_weights
        scorers: list[tuple[Scorer, float]] = []
        for entry in settings.scorers:
            scorer: Scorer = self.fragmentation if entry.name == Fragmentation.name else SCORERS[entry.name]()
            if entry.name == Packing.name:
                scorer = Packing(weights.gpu, weights.cpu, weights.memory)
            scorers.append((scorer, entry.weight))
        self.scorers = tuple(scorers)
        self.weights = [weight for _, weight in scorers]
        self.costs = tuple(COSTS[name] for name in settings.costs)

    def now(self) -> Policy:
        """As it is now; what is loaded later does not change it."""
        return replace(self)

    def leftover(self, shapes: LinkShapes, shape: int, gpus: int, wanted: int) -> array[int]:
        """What each set of free GPUs of a shape leaves broken up; computed once, and again after MOST_PRICES others."""
        key = (shape, gpus, wanted)
        if key not in self.prices:
            if len(self.prices) >= MOST_PRICES:
                self.prices.clear()
            self.prices[key] = prices(shapes, *key)
        return self.prices[key]

    def judge(self, tables: Tables, request: PodRequest, rows: array[int]) -> array[int]:
        """A reason code per row, 0 = the pod fits there."""
        codes = array("B", bytes(len(rows)))
        for rule in self.rules:
            if not rule.idle(tables, request):
                rule.fill(tables, request, rows, codes)
        return codes

    def score(self, tables: Tables, request: PodRequest, rows: array[int]) -> tuple[array[float], dict[str, Column]]:
        """(the weighted sum, each scorer's column) over rows. The order of the scorers is part of the policy: it
        decides the last bit of the sum."""
        return _sum(self.scorers, self.weights, tables, request, rows)

    def best(
        self, tables: Tables, request: PodRequest, rows: array[int], most: int
    ) -> tuple[array[int], array[float], dict[str, Column]]:
        """(rows, as `score` over these): those of `rows` that may be among the best `most` (0: all), in their order.
        Of many rows the last scorer decides between few, and is called for no others."""
        if len(rows) < MANY_ROWS or not 0 < most < len(rows) or len(self.scorers) < 2:
            return rows, *self.score(tables, request, rows)
        scorer, weight = self.scorers[-1]
        if not scorer.by_row or scorer.constant(tables, request) is not None:
            return rows, *self.score(tables, request, rows)
        before, columns = _sum(self.scorers[:-1], self.weights[:-1], tables, request, rows)
        among = score.contenders(before, most, weight)
        for name, column in columns.items():
            if not isinstance(column, float):
                columns[name] = score.ranked(rows, column, among)[1]
        rows, before = score.ranked(rows, before, among)
        last = columns[scorer.name] = _ZERO * len(rows)
        scorer.fill(tables, request, rows, last)
        # To add to 0.0, and to multiply by 1.0, changes no bit: the sum is that of `score`.
        return rows, score.weigh(tables.nodes, request.ask, rows, [before, last], [1.0, weight]), columns

    def gpus(self, tables: Tables, request: PodRequest, rows: array[int]) -> array[int]:
        """The mask of GPUs that we would take now on each row; 0 where positions are not modelled."""
        return self.fragmentation.placed(tables, request, rows)[0]

    def planned(self, tables: Tables, request: PodRequest, row: int) -> int:
        """The mask of GPUs that bind plans on a node now; 0 where positions are not modelled, or where it is not known
        which GPUs are held there: any that we name could be one of them."""
        if tables.nodes.unknown_of(row):
            return 0
        return self.gpus(tables, request, array("i", [row]))[0]


def _sum(
    scorers: tuple[tuple[Scorer, float], ...],
    weights: list[float],
    tables: Tables,
    request: PodRequest,
    rows: array[int],
) -> tuple[array[float], dict[str, Column]]:
    columns: dict[str, Column] = {}
    for scorer, _ in scorers:
        column: Column | None = scorer.constant(tables, request)
        if column is None:
            column = _ZERO * len(rows)
            scorer.fill(tables, request, rows, column)
        columns[scorer.name] = column
    return score.weigh(tables.nodes, request.ask, rows, list(columns.values()), weights), columns


def known() -> Known:
    """Those of the scorers and of the cost terms."""
    return Known(scorers=SCORERS.keys(), costs=COSTS.keys())
