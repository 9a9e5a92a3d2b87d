"""What replay reports: of the same policy, of another one, and of a server that decides otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from extender.cli import main
from extender.cluster.node_health import HealthMemory
from extender.cluster.saved import SavedDemand, restore, save
from extender.journal import entries
from extender.objects.records import Event
from extender.objects.selectors import Toleration
from extender.policy.policy import Policy
from extender.reservations.reservations import Reservation
from extender.reservations.seats import Seat
from tests.journal import recorded
from tests.journal.test_recorder import Recorded, hostile
from tests.replay import player
from tests.world import PRODUCT, World, pairs, workload

HEAD = {"apiVersion": "gpu-extender.io/v1", "kind": "GpuExtenderConfiguration"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("record")
    recorded.drive(*player.read("cube-mesh-1"), made, every=40)
    return made


def test_the_same_policy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(folder)]) == 0
    assert "requests have the same answer" in capsys.readouterr().out
    assert main(["replay", str(folder), "-o", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["kind"], report["first_difference"]) == ("Replay", None)
    assert report["identical"] == report["requests"] > 0
    assert "changed" not in report


def test_another_policy(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.yaml"
    same = player.read("cube-mesh-1")[0]
    changes = {"scorers": [{"name": "spread", "weight": 1.0}], "costs": ["victims"]}
    other.write_text(json.dumps(HEAD | same | changes))
    assert main(["replay", str(folder), "--config", str(other), "-o", "json"]) == 10
    report = json.loads(capsys.readouterr().out)
    assert report["changed_count"] == len(report["changed"]) == report["requests"] - report["identical"] > 0
    for one in report["changed"]:
        assert one["was"] != one["is"] or one["verb"] == "prioritize"
    totals = report["totals"]
    assert totals["placements"]["was"] > 0
    assert any(both["was"] != both["is"] for both in totals.values())
    assert "policy" in report["first_difference"]["cause"]
    assert main(["replay", str(folder), "--config", str(other)]) == 10
    assert "work lost gpu seconds" in capsys.readouterr().out


def test_other_resources_cannot_be_replayed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(json.dumps(HEAD | {"resources": [{"name": "example.com/gpu", "devicePlugin": "nvidia"}]}))
    assert main(["replay", str(folder), "--config", str(other)]) == 1
    assert "other resources than the record" in capsys.readouterr().err


@pytest.mark.parametrize("part", [Seat, Toleration, SavedDemand, HealthMemory])
def test_another_field_of_anything_in_a_record_is_another_form(part: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of entries, and of what stands deep in them."""
    before = entries.form()
    monkeypatch.setitem(part.__annotations__, "other", "int")
    assert entries.form() != before


def test_a_difference_is_reported_with_its_cause(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Policy.judge

    def strict(self: Policy, *args: object) -> object:
        codes = judge(self, *args)  # type: ignore[arg-type]
        codes[0] = codes[0] or 1
        return codes

    monkeypatch.setattr(Policy, "judge", strict)
    report = recorded.report(folder)
    first = report["first_difference"]
    assert report["identical"] < report["requests"]
    assert set(first) == {"at", "request", "was", "is", "cause"}
    assert first["cause"].startswith(("the result was", "the nodes were", "the rejected nodes were"))
    assert first["was"] != first["is"]


def test_what_controllers_change_is_repeated(tmp_path: Path) -> None:
    made = Recorded(tmp_path)
    world, verbs = made.world, made.world.verbs
    for name in ("n1", "n2"):
        world.node(name, 4, links=pairs(4))
    names = ["n1", "n2"]
    pod = world.pod("preemptor", 4, priority=10)
    made.ask(workload("one", 4), names)
    world.now += 10
    kept = Reservation("uid-preemptor", "n1", ("uid-gone",), (0, 0, 1, 4, 0, 0), 10, world.now)
    verbs.reservations.add(kept)
    made.ask(workload("two", 4), names)
    verbs.releases.sweep(world.now)
    made.ask(workload("three", 4), names)
    world.now += 70
    verbs.releases.sweep(world.now)  # the victims have been gone for a minute
    made.ask(workload("four", 4), names)
    world.now += 10
    verbs.claims.seats.reserve([Seat("uid-seated", "d/seated", "g", "n2", (0, 0, 1, 4, 0, 0), 15, 50, world.now)])
    assert made.ask(workload("five", 4), names)["NodeNames"] == ["n1"]
    verbs.claims.seats.drop("uid-seated")
    verbs.freshness.started(world.now, yield_seconds=5, settle_seconds=0)
    made.ask(workload("six", 1), names)
    world.cluster.tick(world.now + 1)
    world.cluster.at(world.wall + 1)
    made.ask(pod, names)
    made.close()
    found = recorded.report(tmp_path)
    assert (found["first_difference"], found["identical"]) == (None, found["requests"])
    assert found["requests"] == 7


def test_a_saved_cluster_is_the_same_again(tmp_path: Path) -> None:
    made = Recorded(tmp_path)
    world = made.world
    for i in range(6):
        world.node(f"n{i}", 8)
        for k in range(3):
            world.pod(f"p{i}-{k}", 1, f"n{i}", phase="Pending" if k == 2 else "Running")
    for name in ("n4", "n1"):
        world.drop("Node", {"metadata": {"name": name, "uid": f"uid-{name}"}, "status": {}})
    world.gone("p3-1", "p0-0", "p5-2")
    world.set("Pod", hostile("waits"))
    saved, objects = save(world.cluster, world.now)()
    again = recorded.cluster(recorded.settings_of({}), tmp_path / "again")
    restore(again, saved, [Event(entries.kind_of(one), "set", one) for one in objects])
    for of in (world.cluster, again):
        assert of.names == world.cluster.names
    assert again.pod_rows.uids == world.cluster.pod_rows.uids
    assert dict(again.pods) == dict(world.cluster.pods)
    assert again.gpus.ledgers == world.cluster.gpus.ledgers
    twice = save(again, world.now)()[0]
    assert {
        name: (getattr(twice, name), getattr(saved, name))
        for name in saved.__struct_fields__
        if getattr(twice, name) != getattr(saved, name)
    } == {}
    world.node("n9")
    again.apply([Event("Node", "set", world.cluster.nodes["n9"])], world.now)
    assert again.row("n9") == world.cluster.row("n9") == 1
    again.recorder.close()
    made.close()


def test_restored_nodes_have_their_numbers_of_models() -> None:
    """What pods may run on is a mask of these numbers."""
    world, other = World(), World()
    gone = world.node("a", labels={PRODUCT: "A"})
    world.node("b", labels={PRODUCT: "B"})
    world.drop("Node", gone)
    world.node("c", labels={PRODUCT: "C"})  # in the row of the first
    saved, objects = save(world.cluster, world.now)()
    restore(other.cluster, saved, [Event("Node", "set", node) for node in objects])
    for name in "bc":
        models = [one.cluster.tables.nodes.node(one.cluster.row(name)).model for one in (world, other)]
        assert models[0] == models[1] == other.cluster.demand.models.of({PRODUCT: name.upper()}), name


def test_an_eviction_of_a_pod_whose_node_is_not_seen_yet_is_repeated(tmp_path: Path) -> None:
    made = Recorded(tmp_path)
    world = made.world
    for name in ("n1", "n2"):
        world.node(name, 4)
        world.pod(f"seen-{name}", 2, name, priority=1)
    world.pod("placed", 2, priority=1)
    world.filter(workload("placed", 2, priority=1), ["n1"])
    offered = {"n1": ["seen-n1", "placed"], "n2": ["seen-n2"]}
    assert world.preempt(workload("preemptor", 4, priority=10), offered) == {"n2": ["seen-n2"]}
    assert world.preempt(workload("other", 4, priority=10), offered) == {"n1": ["placed", "seen-n1"]}
    world.filter(workload("low", 2, priority=1), ["n1", "n2"])
    made.close()
    report = recorded.report(tmp_path)
    assert (report["first_difference"], report["identical"]) == (None, report["requests"])
    assert report["requests"] == 4
