"""What is not run for a request could not have changed anything: rules that are idle, scorers that are constant."""

from __future__ import annotations

from array import array
from collections import Counter

import pytest

from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest
from extender.policy.policy import Policy
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
    ) -> tuple[array[float], dict[str, array[float]]]:
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
