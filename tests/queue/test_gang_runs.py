"""Which gangs hold GPUs, since when, and of which class they are."""

from __future__ import annotations

from math import inf

from extender.cluster.slices import finish
from extender.objects.records import PodRecord
from extender.queue.gang_runs import GangRun, GangRuns
from extender.queue.runtimes import RunClass, RunTimes, class_of
from tests.world import WALL, World

GANG = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2"}


def world() -> World:
    made = World()
    for name in ("n1", "n2"):
        made.node(name, 8)
    return made


def runs_of(made: World) -> GangRuns:
    return GangRuns(made.cluster, made.verbs.claims.seats, RunTimes())


def kind(made: World, *pods: PodRecord) -> RunClass:
    return class_of(pods, made.cluster.gangs.objects)


def test_a_gang_and_a_single_pod() -> None:
    made = world()
    notes = {**GANG, "gpu-extender.io/duration": "1h"}
    made.pod("g-0", 4, "n1", start=WALL - 60, annotations=notes)
    made.pod("g-1", 2, "n2", start=WALL - 90, annotations=notes | {"gpu-extender.io/duration": "2h"})
    made.pod("alone", 2, "n1")
    made.pod("cpu", 0, "n1", start=WALL)
    made.pod("waits", 1)
    one, two = sorted(finish(runs_of(made).read(WALL)), key=lambda gang: gang.name, reverse=True)
    pods = [made.cluster.pods[f"uid-{name}"] for name in ("g-0", "g-1", "alone")]
    uids = ("uid-g-0", "uid-g-1")
    begun, gpus = WALL - 90, {"n1": 4, "n2": 2}
    assert one == GangRun("default/g", kind(made, *pods[:2]), begun, 7200.0, inf, begun + 7200, gpus, "default", uids)
    alone = kind(made, pods[2])
    assert two == GangRun("default/alone", alone, WALL, None, inf, inf, {"n1": 2}, "default", ("uid-alone",))
    assert one.kind.gpus == 6


def test_the_end_of_what_terminates_is_known() -> None:
    made = world()
    made.pod("a", 4, "n1", start=WALL - 60, terminating=WALL + 30)
    (gang,) = finish(runs_of(made).read(WALL))
    assert gang.most == 90.0


def test_what_is_the_same_is_not_read_again() -> None:
    made = world()
    made.pod("a", 4, "n1", start=WALL - 60)
    made.pod("b", 4, "n1", start=WALL - 60)
    runs = runs_of(made)
    before = {gang.name: gang for gang in finish(runs.read(WALL))}
    made.pod("b", 4, "n1", start=WALL - 60, annotations={"gpu-extender.io/duration": "1h"})
    after = {gang.name: gang for gang in finish(runs.read(WALL))}
    assert after["default/a"] is before["default/a"]
    assert (before["default/b"].declared, after["default/b"].declared) == (None, 3600.0)
    made.gone("a")
    assert [gang.name for gang in finish(runs.read(WALL))] == ["default/b"]
