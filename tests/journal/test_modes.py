"""Records of a server whose settings are loaded again, of one in shadow mode, and of one that binds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson

from extender.decide.decisions import Written
from extender.journal import files
from extender.journal.files import Input
from extender.journal.recorder import Recorder
from extender.settings import Settings
from tests.journal import recorded
from tests.replay.player import Binder
from tests.world import World, pairs, workload


def test_loaded_settings_begin_a_file_that_states_them(tmp_path: Path) -> None:
    before = Settings()
    after = Settings.model_validate({"scorers": [{"name": "packing", "weight": 7}]})
    cluster = recorded.cluster(before, tmp_path)
    world = World(before, cluster=cluster)
    for name in ("a", "b"):
        world.node(name, 8)
    world.pod("held", 3, "a")
    world.prioritize(workload("one", 2), ["a", "b"])
    world.verbs.take(after)
    world.pod("other", 1, "b")
    world.prioritize(workload("two", 2), ["a", "b"])
    cluster.recorder.close()
    stated = []
    for path in files.files(tmp_path):
        with Input(path) as file:
            stated.append(file.header.policy_hash)
    assert stated == [before.policy_hash, after.policy_hash]
    found = recorded.report(tmp_path)
    assert (found["requests"], found["identical"], found["warnings"]) == (2, 2, [])


def test_shadow_mode_is_answered_again(tmp_path: Path) -> None:
    settings = Settings(mode="shadow")
    cluster = recorded.cluster(settings, tmp_path)
    world = World(settings, cluster=cluster, binder=Binder())
    world.node("a", 4, links=pairs(4))
    world.node("b", 1)
    for gpu in (0, 2):
        world.pod(f"single{gpu}", 1, "a", held=[gpu])
    two = world.pod("two", 2, links="required", priority=5)
    world.filter(two, ["a", "b"])
    world.preempt(two, {"a": ["single0", "single2"]})
    world.prioritize(two, ["a", "b"])
    meta = two["metadata"]
    body = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": "a"}
    assert world.call("/v1/bind", orjson.dumps(body)).json["Error"] == ""
    world.filter(workload("late", 2), ["a", "b"])
    cluster.recorder.close()
    found = recorded.report(tmp_path)
    assert (found["requests"], found["identical"], found["first_difference"]) == (5, 5, None)


class SlowBinder(Binder):
    """A file of the record begins while the Binding is written."""

    def __init__(self, recorder: Recorder, *outcomes: Written) -> None:
        super().__init__()
        self._recorder, self._outcomes = recorder, list(outcomes)

    async def bind(self, binding: object, annotations: Mapping[str, str]) -> Written:
        """The next outcome."""
        self._recorder.begin_file()
        return self._outcomes.pop(0)


def test_the_outcome_of_a_bind_may_be_in_the_next_file(tmp_path: Path) -> None:
    cluster = recorded.cluster(Settings(), tmp_path)
    binder = SlowBinder(cluster.recorder, Written("bound"), Written("failed", "conflict: no"), Written("unknown", "?"))
    world = World(Settings(), cluster=cluster, binder=binder)
    world.node("a", 8)
    for name in ("bound", "failed", "unknown"):
        meta = world.pod(name, 1)["metadata"]
        body = {"PodName": name, "PodNamespace": "default", "PodUID": meta["uid"], "Node": "a"}
        said = world.call("/v1/bind", orjson.dumps(body)).json["Error"]
        assert bool(said) == (name != "bound")
        world.filter(workload(f"after-{name}", 1), ["a"])
    cluster.recorder.close()
    found = recorded.report(tmp_path)
    assert len(files.files(tmp_path)) == 4
    # An outcome belongs to its bind.
    assert (found["requests"], found["identical"], found["first_difference"]) == (6, 6, None)
