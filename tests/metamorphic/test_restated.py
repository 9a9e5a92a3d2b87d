"""Other names, another order in the file, unused labels and later times change no answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import pytest

from tests.metamorphic.answers import difference, known, offline, verbs
from tests.metamorphic.changes import Restated, labelled, renamed, restated, shifted, shuffled
from tests.metamorphic.clusters import CASES, Stated

Change = Callable[[Stated, Random], Restated]
NODES, PODS, SPACES = (partial(renamed, kinds=(kind,)) for kind in ("Node", "Pod", "Namespace"))
CHANGES: dict[str, Sequence[Change]] = {
    "nodes renamed": (NODES,),
    "pods and gangs renamed": (PODS,),
    "namespaces renamed": (SPACES,),
    "another order": (shuffled,),
    "unused labels": (labelled,),
    "later": (shifted,),
    "all": (NODES, PODS, SPACES, shuffled, labelled, shifted),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_states_the_same_gets_the_same_answers(name: str) -> None:
    """Ties are decided by name, and the new names keep the order of the old: so every answer is equal, word by word."""
    for seed in range(CASES):
        stated, commands, answers = known(seed, claims=seed % 4 == 1)
        other = restated(stated, Random(seed), CHANGES[name])
        assert not difference(commands, other.read(offline(other.stated))), seed
        assert not difference(answers, other.read(verbs(other.stated))), seed
