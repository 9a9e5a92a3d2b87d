"""`explain` of a pod behind the gate of the queue states what what-if does."""

from __future__ import annotations

import pytest

from extender.ask import offline
from extender.settings import Settings
from tests.ask.asking import events
from tests.ask.test_queue import gated
from tests.ask.whatif.asking import ask
from tests.ask.whatif.test_engine import node, running
from tests.world import JSON, WALL

SETTINGS = Settings.model_validate({"queue": {"enabled": True}})


@pytest.mark.parametrize("taken", [0, 4, 8])
def test_it_starts_where_what_if_places_it(taken: int) -> None:
    items: list[JSON] = [node("n1", 8), gated("g", 4)]
    if taken:
        items.append(running("low", "n1", list(range(taken))))
    shown = offline.explain(SETTINGS, events(items), ("default", "g"), WALL)
    (result,) = ask(items, pods=[("default", "g")], settings=SETTINGS)["results"]
    assert shown["verdict"] == "gated"
    assert "reserved for other pods" not in shown["sentence"]
    assert (
        ("the queue starts default/g now, on n1" in shown["sentence"]) == (result["verdict"] == "fits") == (taken < 8)
    )
    assert [way["kind"] for way in shown["ways_out"]] == [way["kind"] for way in result.get("ways_out") or ()]
