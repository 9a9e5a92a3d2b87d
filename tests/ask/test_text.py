"""Numbers and names for people."""

from __future__ import annotations

import pytest

from extender.ask.explanation import BETTER
from extender.ask.text import amount, count, lacks, named_gpus, other_amount, proof, short
from extender.policy.costs import COSTS
from extender.policy.labels import LABELS
from extender.policy.scorers import SCORERS


def test_plurals() -> None:
    assert [count(n, "pod") for n in (0, 1, 2, 1234)] == ["0 pods", "1 pod", "2 pods", "1,234 pods"]


def test_bytes_have_a_unit_of_which_there_is_one_or_more() -> None:
    texts = [amount("memory", number) for number in (0, 1 << 10, 3 << 19, 5 << 29, 1 << 46)]
    assert texts == ["0 GiB", "1 KiB", "1.5 MiB", "2.5 GiB", "65,536 GiB"]
    assert other_amount("hugepages-2Mi", 4 << 20) == "4 MiB of hugepages-2Mi"
    missing = {"have": 1 << 40, "need": 1 << 46, "what": "memory", "unit": "bytes"}
    assert lacks([missing, missing | {"have": 0, "need": 4 << 20, "what": "hugepages-2Mi"}]) == (
        "1,024 of 65,536 GiB of memory, 0 of 4 MiB of hugepages-2Mi free"
    )


def test_long_names_lose_their_middle() -> None:
    assert short("a-name") == "a-name"
    assert short("x" * 48) == "x" * 48
    cut = short("begin" + "x" * 100_000 + "end")
    assert (len(cut), cut[:5], cut[-3:], "…" in cut) == (48, "begin", "end", True)
    assert short("red\x1b[31m") == "red?[31m"


def test_gpus_that_are_not_known() -> None:
    assert (named_gpus([3]), named_gpus([0, 1, 3])) == ("GPU 3", "GPUs 0-1,3")


@pytest.mark.parametrize(
    ("proved", "evicts", "said"),
    [
        (True, True, "proved: no other victims cost less (searched: 1 node)"),
        (True, False, "proved: no eviction that is allowed makes room (searched: 1 node)"),
        (False, True, "not proved: other victims may cost less, the search ended at its limit (searched: 1 node)"),
        (False, False, "not proved: an eviction may make room, the search ended at its limit (searched: 1 node)"),
    ],
)
def test_a_proof_states_what_it_proves(proved: bool, evicts: bool, said: str) -> None:
    assert proof({"proved": proved, "nodes_examined": 1}, evicts=evicts) == said


def test_a_search_of_no_node_proves_nothing() -> None:
    assert proof({"proved": True, "nodes_examined": 0}, evicts=False) == "no node is a candidate for an eviction"


def test_each_scorer_has_words_for_people() -> None:
    assert SCORERS.keys() == BETTER.keys()


def test_each_cost_term_has_words_for_people() -> None:
    assert COSTS.keys() <= LABELS.keys()
