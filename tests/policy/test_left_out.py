"""What is not run for a request could not have changed anything: rules that are idle, scorers that are constant."""

from __future__ import annotations

from array import array
from collections import Counter

import pytest

from ext_core import score as kernels
from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest
from extender.policy.policy import Column, Policy
from tests.replay import player

RECORDINGS = ("plugin-faults-1", "shares-1", "spread-1", "cliques-1")


@pytest.mark.parametrize("name", RECORDINGS)
def test_idle_rules_reject_nothing_and_constant_scorers_give_one_value(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over recorded requests: each is asked both ways."""
    judge, score = Policy.judge, Policy.score
    left_out: Counter[str] = Counter()

    def judged(self: Policy, tables: Tables, request: PodRequest, rows: array[int]) -> array[int]:
        for rule in self.rules:
            if rule.idle(tables, request):
                left_out[rule.name] += 1
                codes = array("B", bytes(len(rows)))
                rule.fill(tables, request, rows, codes)
                assert not any(codes)
        return judge(self, tables, request, rows)

    def scored(
        self: Policy, tables: Tables, request: PodRequest, rows: array[int]
    ) -> tuple[array[float], dict[str, Column]]:
        for scorer, _ in self.scorers:
            constant = scorer.constant(tables, request)
            if constant is not None:
                left_out[scorer.name] += 1
                column = array("d", bytes(8 * len(rows)))
                scorer.fill(tables, request, rows, column)
                assert column.tolist() == [constant] * len(rows)
        return score(self, tables, request, rows)

    monkeypatch.setattr(Policy, "judge", judged)
    monkeypatch.setattr(Policy, "score", scored)
    player.differences(*player.read(name), lambda step, now: None)
    assert {"failing", "bad_nodes", "links", "topology_level"} <= left_out.keys()


@pytest.mark.parametrize(("name", "most"), [("shares-1", 1), ("mixed-1", 1), ("spread-1", 3), ("many-nodes-1", 3)])
def test_the_best_are_the_same_when_the_last_scorer_sees_few_rows(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over recorded requests: their rows, scores and columns, to the last bit."""
    best, left_out = Policy.best, 0

    def both(
        self: Policy, tables: Tables, request: PodRequest, rows: array[int], asked: int
    ) -> tuple[array[int], array[float], dict[str, Column]]:
        nonlocal left_out
        few, total, columns = best(self, tables, request, rows, most)
        left_out += len(rows) - len(few)
        whole, all_columns = self.score(tables, request, rows)
        found, expected = kernels.top(tables.nodes, few, total, most), kernels.top(tables.nodes, rows, whole, most)
        assert [few[i] for i in found] == [rows[i] for i in expected]
        assert [total[i] for i in found] == [whole[i] for i in expected]
        assert columns.keys() == all_columns.keys()
        for key, column in columns.items():
            other = all_columns[key]
            if isinstance(column, float) or isinstance(other, float):
                assert column == other
            else:
                assert [column[i] for i in found] == [other[i] for i in expected]
        return best(self, tables, request, rows, asked)

    monkeypatch.setattr("extender.policy.policy.MANY_ROWS", 2)
    monkeypatch.setattr(Policy, "best", both)
    player.differences(*player.read(name), lambda step, now: None)
    assert left_out
