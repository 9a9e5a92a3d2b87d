"""What counts of the claims that tenants make in annotations: the bounds, where they are applied and how they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from extender.cli import main
from extender.cli.decisions import lines
from extender.cluster.annotation_limits import AnnotationLimits, Bounds
from extender.objects import progress
from extender.objects.gangs import Gang, Ref
from extender.objects.progress import duration_text
from extender.settings import ClaimBounds, Settings
from extender.settings import ClaimSettings as Wanted
from tests.ask.test_whatif import asked, files
from tests.objects.test_gangs import obj
from tests.queue.gangs import waiting
from tests.world import JSON, WALL, World, machine, rfc3339, workload

OURS = "gpu-extender.io/"
CHEATS: dict[str, JSON] = {
    "an old checkpoint": {"annotations": {OURS + "last-checkpoint": "1970-01-02T00:00:00Z"}},
    "a long restart": {"annotations": {OURS + "restart-seconds": "604800"}},
    "a gang of one": {"labels": {OURS + "gang": "g", OURS + "gang-min": "1"}},
    "one of five": {"labels": {OURS + "gang": "g", OURS + "gang-min": "5"}},
    "a gang of one without a minimum": {"annotations": {OURS + "gang": "g"}},
    "a pod group of one": {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
    "a JobSet of one": {"labels": {"jobset.sigs.k8s.io/jobset-name": "g"}},
    "a short time to save, and no grace": {"annotations": {OURS + "saves-on-termination": "1h"}},
    "a long protection": {"annotations": {OURS + "protect-for": "876000h"}},
}


def two(cheat: JSON) -> World:
    """Two full nodes. The cheating pod has run for two hours, the honest one for four."""
    world = World()
    for name, made, hours in (("cheat", cheat, 2), ("honest", {}, 4)):
        world.node(name, 4)
        world.pod(name, 4, name, priority=1, phase="Running", start=WALL - 3600 * hours, **made)
    return world


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
def test_a_claim_does_not_move_the_eviction_to_an_honest_tenant(cheat: JSON) -> None:
    """Without claims the younger pod is evicted. No claim changes that, except for an hour of a restart at most."""
    world = two(cheat)
    answer = world.preempt(workload("p", 4, priority=9), {"cheat": ["cheat"], "honest": ["honest"]})
    assert answer == {"cheat": ["cheat"]}
    cost = {term["term"]: term["value"] for term in world.decision()["cost"]}
    restart = 3600 * (cheat is CHEATS["a long restart"])
    assert (cost["gangs_broken"], cost["work_lost_gpu_seconds"]) == (0, 4 * (7200 + restart))


def bounded(decision: JSON) -> list[tuple[str, str]]:
    found = [one for one in decision["warnings"] if one["code"] == "claim-bounded"]
    assert all(one["message"].startswith(one["path"].partition(":")[0]) for one in found)
    return [(one["path"], one["message"].partition(": ")[2]) for one in found]


def test_the_decision_shows_what_does_not_count() -> None:
    notes = {
        OURS + "last-checkpoint": "1970-01-02T00:00:00Z",
        OURS + "restart-seconds": "604800",
        OURS + "protect-for": "876000h",
    }
    world = two({"annotations": notes, "labels": {OURS + "gang": "g", OURS + "gang-min": "7"}})
    world.preempt(workload("p", 4, priority=9), {"cheat": ["cheat"]})
    start = rfc3339(WALL - 7200)
    shown = bounded(world.decision())
    path = "pod default/cheat: metadata.annotations[gpu-extender.io/"
    assert shown == [
        (f"{path}protect-for]",
         "gpu-extender.io/protect-for '876000h' counts as 1h0m0s (settings: claims.protectForSeconds)"),
        (f"{path}restart-seconds]",
         "gpu-extender.io/restart-seconds '604800' counts as 3600 (settings: claims.restartSeconds)"),
        (f"{path}last-checkpoint]",
         f"gpu-extender.io/last-checkpoint '1970-01-02T00:00:00Z' counts as {start}, the pod's start"),
        (f"{path}gang-min]",
         "gpu-extender.io/gang-min '7' does not count: one pod of the gang runs, and one pod is no gang"),
    ]  # fmt: skip
    said = "\n".join(lines(world.decision()))
    assert all(message in said for _, message in shown)


def test_the_warnings_are_bounded(world: World) -> None:
    """An annotation may have 256 KiB, and a node a hundred pods."""
    world.node("n", 64, pods="300")
    for i in range(64):
        notes = {OURS + "protect-for": "876000h", OURS + "restart-seconds": "9" * 9}
        world.pod(f"p{i}", 1, "n", priority=1, phase="Running", start=WALL - 7200, annotations=notes)
    world.preempt(workload("p", 64, priority=9), {"n": [f"p{i}" for i in range(64)]})
    assert len(bounded(world.decision())) == 20
    notes = {OURS + "last-checkpoint": " " * 100_000 + "1970-01-02T00:00:00Z"}
    pod = _record(workload("p", 1, node="n", start=WALL, annotations=notes))
    (found,) = AnnotationLimits(Settings()).bounded(pod)
    assert len(found.warning(pod)["message"]) < 300


def test_a_duration_of_a_hundred_thousand_letters_is_none(world: World) -> None:
    """It would be read again with each change of the node."""
    world.node("n", 1)
    world.pod("p0", 1, "n", priority=1, start=WALL - 9, annotations={OURS + "protect-for": "1h" * 50_000})
    assert world.preempt(workload("p", 1, priority=9), {"n": ["p0"]}) == {"n": ["p0"]}


def test_what_if_and_check_apply_the_bounds_and_show_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def pod(name: str, **facts: Any) -> JSON:
        start = WALL - 7200 if name == "cheat" else WALL - 14400
        made = workload(name, 4, node=name, phase="Running", start=start, priority=1, **facts)
        return {"apiVersion": "v1", "kind": "Pod"} | made

    notes = {OURS + "protect-for": "876000h", OURS + "restart-seconds": "604800"}
    items = [{"kind": "Node"} | machine(name, 4) for name in ("cheat", "honest")]
    items += [pod("cheat", annotations=notes), pod("honest")]
    answer = asked(items, workload("p", 4, priority=5))
    assert [victim["name"] for victim in answer["results"][0]["victims"]] == ["cheat"]
    assert [message.split(" ")[0] for _, message in bounded(answer)] == [OURS + "protect-for", OURS + "restart-seconds"]
    assert main(["whatif", *files(tmp_path, items, [workload("p", 4, priority=5)])]) == 10
    said = capsys.readouterr()
    assert "counts as 1h0m0s (settings: claims.protectForSeconds)" in said.out + said.err
    main(["check", "--cluster", str(tmp_path / "cluster.json"), "-o", "json"])
    assert capsys.readouterr().out.count("claim-bounded") == 2


def test_a_pod_whose_protection_is_bounded_is_not_spared() -> None:
    items: list[JSON] = [{"kind": "Node"} | machine("n", 4)]
    for hours, verdict in ((0.9, "cannot"), (1.1, "evict")):
        made = workload(
            "low", 4, node="n", phase="Running", start=WALL - 3600 * hours, priority=1,
            annotations={OURS + "protect-for": "48h"},
        )  # fmt: skip
        answer = asked([*items, {"kind": "Pod"} | made], workload("p", 4, priority=5))
        assert answer["results"][0]["verdict"] == verdict
        if verdict == "cannot":
            assert answer["results"][0]["spared"][0]["until"] == rfc3339(WALL + 360)


# -- gangs -------------------------------------------------------------------------------------------------------------


def broken(world: World, offer: list[str], gpus: int) -> int:
    world.preempt(workload("p", gpus, priority=9), {"n": offer})
    return int(next(term["value"] for term in world.decision()["cost"] if term["term"] == "gangs_broken"))


def test_a_minimum_that_can_not_be_met_counts_as_all_members() -> None:
    """Two pods that name a minimum of a million are as any gang of two: not safer, and not without protection."""
    for minimum, price in (("2", 1), ("1000000", 1), ("1", 0)):
        world = World()
        world.node("n", 2)
        for i in range(2):
            labels = {OURS + "gang": "g", OURS + "gang-min": minimum}
            world.pod(f"p{i}", 1, "n", priority=1, start=WALL - 100, labels=labels)
        assert broken(world, ["p0"], 1) == price


def test_what_is_left_of_a_gang_is_none(world: World) -> None:
    """The honest loses nothing by it: the other four of its gang are gone, or have not come."""
    world.node("n", 5)
    for i in range(5):
        world.pod(f"p{i}", 1, "n", priority=1, start=WALL - 100, labels={OURS + "gang": "g", OURS + "gang-min": "5"})
    assert broken(world, ["p0", "p1", "p2", "p3", "p4"], 5) == 1
    world.verbs.reservations.drop("uid-p")
    world.gone("p1", "p2", "p3", "p4")
    world.pod("other", 4, "n", priority=99)
    assert broken(world, ["p0"], 1) == 0
    assert world.decision()["victims"][0]["gang"] == "default/g"


def test_a_group_of_one_by_its_object_is_no_gang(world: World) -> None:
    """Whoever states the minimum, and however many pods it wants."""
    world.node("n", 1)
    world.set("Group", obj("scheduling.x-k8s.io/v1alpha1", "PodGroup", "g", {"minMember": 4}))
    world.pod("p0", 1, "n", priority=1, start=WALL - 100, labels={"scheduling.x-k8s.io/pod-group": "g"})
    assert broken(world, ["p0"], 1) == 0


def test_the_settings_bound_gangs() -> None:
    for most, price in ((1_000_000, 1), (3, 1), (2, 0), (0, 0)):
        world = World(Settings(claims=Wanted(by_namespace={"default": ClaimBounds(gang_min=most)})))
        world.node("n", 3)
        for i in range(3):
            labels = {OURS + "gang": "g", OURS + "gang-min": "3"}
            world.pod(f"p{i}", 1, "n", priority=1, start=WALL - 100, labels=labels)
        assert broken(world, ["p0"], 1) == price
        if most < 3:
            (_, message) = bounded(world.decision())[0]
            setting = "(settings: claims.byNamespace.default.gangMin)"
            assert message.endswith(f"counts as 2 {setting}" if most else f"does not count {setting}")


# -- the gang of another team ------------------------------------------------------------------------------------------

TEAMS: list[tuple[str, JSON, bool]] = [
    ("namespace", {"serviceAccountName": "other"}, True),
    ("serviceAccount", {"serviceAccountName": "other"}, False),
    ("serviceAccount", {"serviceAccountName": "ours"}, True),
    ("owner", {"serviceAccountName": "ours"}, False),
]


def member(world: World, name: str, account: JSON, owner: str, start: float) -> JSON:
    """A pod of the gang `g` with one GPU on `n`."""
    return world.pod(
        name, 1, "n", priority=1, start=start, phase="Running", labels={OURS + "gang": "g", OURS + "gang-min": "2"},
        spec=account, owner=owner,
    )  # fmt: skip


def gang_of(world: World, name: str) -> Gang:
    """Of a pod that has one."""
    found = world.cluster.gangs.of(world.cluster.pods[f"uid-{name}"])
    assert found is not None
    return found


@pytest.mark.parametrize(("team", "account", "one_gang"), TEAMS)
def test_a_pod_that_names_the_gang_of_another_team(team: Any, account: JSON, one_gang: bool) -> None:
    """The gang of two needs both pods. A third one lets one of them be evicted as if it were to spare. Where its team
    has gangs of its own, it is one pod, and no gang."""
    world = World(Settings(claims=Wanted(by_namespace={"default": ClaimBounds(gang_team=team)})))
    world.node("n", 3)
    for name in ("a", "b"):
        member(world, name, {"serviceAccountName": "ours"}, "ours", WALL - 100)
    cheat = member(world, "cheat", account, "other", WALL - 7200)
    (victim,) = world.preempt(workload("p", 1, priority=9), {"n": ["a", "b", "cheat"]})["n"]
    assert (victim == "cheat") is not one_gang
    (honest,) = {gang_of(world, name) for name in ("a", "b")}
    assert honest.running == (3 if one_gang else 2)
    shown = world.call("/debug/explain?pod=default/cheat", method="GET").json["warnings"]
    found = [one["message"] for one in shown if one["code"] == "claim-bounded" and " gang 'g' " in one["message"]]
    of = "service account" if team == "serviceAccount" else "owner and service account"
    assert found == (
        []
        if one_gang
        else [
            f"pod default/cheat: gang 'g' counts among the pods of its own {of} alone, which others name too "
            "(settings: claims.byNamespace.default.gangTeam)"
        ]
    )
    cheat["metadata"]["labels"] = {}
    world.set("Pod", cheat)
    assert gang_of(world, "a").running == 2


@pytest.mark.parametrize(
    ("common", "by_class", "by_namespace", "counts"),
    [
        ("namespace", None, None, "namespace"),
        ("serviceAccount", None, None, "serviceAccount"),
        ("serviceAccount", None, "namespace", "namespace"),  # what names the pod counts before what is for all
        ("namespace", "owner", "serviceAccount", "owner"),  # of two the one that keeps more apart
        ("namespace", "namespace", "serviceAccount", "serviceAccount"),
    ],
)
def test_of_class_and_namespace_the_narrower_team_counts(
    common: Any, by_class: Any, by_namespace: Any, counts: str
) -> None:
    wanted = Wanted(
        gang_team=common,
        by_priority_class={"train": ClaimBounds(gang_team=by_class)},
        by_namespace={"default": ClaimBounds(gang_team=by_namespace)},
    )
    pod = _record(workload("p", 1, spec={"priorityClassName": "train"}))
    assert AnnotationLimits(Settings(claims=wanted)).of(pod).gang_team == counts


def test_a_gated_gang_waits_without_the_pods_of_another_team() -> None:
    """Nor does the name make the gang of another team wait for a pod, or be placed with one."""
    for team, gangs in (("namespace", [3]), ("serviceAccount", [1, 2])):
        world = World(Settings(claims=Wanted(gang_team=team)))  # type: ignore[arg-type]
        for name, account in (("a", "ours"), ("b", "ours"), ("cheat", "x/%y")):
            spec = {"serviceAccountName": account, "schedulingGates": [{"name": OURS + "queue"}]}
            world.pod(name, 1, labels={OURS + "gang": "g", OURS + "gang-min": "2"}, spec=spec)
        found = waiting(world.cluster)
        assert sorted(len(one.pods) for one in found) == gangs
        assert [Ref.of(one.ref.text) for one in found] == [one.ref for one in found]


def test_explain_shows_the_bounds_of_the_pod_itself() -> None:
    notes = {OURS + "last-checkpoint": rfc3339(WALL + 3600), OURS + "restart-seconds": "604800"}
    world = two({"annotations": notes})
    shown = world.call("/debug/explain?pod=default/cheat", method="GET").json
    assert [message for _, message in bounded(shown)] == [
        "gpu-extender.io/restart-seconds '604800' counts as 3600 (settings: claims.restartSeconds)",
        f"gpu-extender.io/last-checkpoint '{rfc3339(WALL + 3600)}' counts as {rfc3339(WALL)}, now: it is in the future",
    ]
    world.preempt(workload("p", 4, priority=9), {"cheat": ["cheat"], "honest": ["honest"]})
    lost = {term["term"]: term["value"] for term in world.decision()["cost"]}["work_lost_gpu_seconds"]
    assert lost == 4 * 3600  # the restart alone: what it saved in the future is saved now, and no more than all


# -- which bound counts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by_class", "by_namespace", "counts"),
    [
        (None, None, 3600),
        (7200, None, 7200),
        (None, 7200, 7200),
        (7200, 60, 60),  # a tenant chooses its class
        (60, 7200, 60),  # what is there to be evicted stays so
        (0, None, 0),
        (None, 0, 0),
    ],
)
def test_of_class_and_namespace_the_lower_bound_counts(
    by_class: int | None, by_namespace: int | None, counts: int
) -> None:
    wanted = Wanted(
        by_priority_class={"train": ClaimBounds(protect_for_seconds=by_class, restart_seconds=1)},
        by_namespace={"default": ClaimBounds(protect_for_seconds=by_namespace)},
    )
    notes = {OURS + "protect-for": "999h"}
    made = workload("p", 1, node="n", start=WALL, annotations=notes, spec={"priorityClassName": "train"})
    pod = _record(made)
    claims = AnnotationLimits(Settings(claims=wanted))
    assert claims.of(pod) == Bounds(counts, 1, 1_000_000, 3600, 3600)
    assert claims.protected_ms(pod) == (int((WALL + counts) * 1000) if counts else 0)
    (found,) = claims.bounded(pod)
    part = "claims.protectForSeconds"
    if by_class is not None or by_namespace is not None:
        lower = by_namespace is not None and by_namespace == counts
        part = f"claims.by{'Namespace.default' if lower else 'PriorityClass.train'}.protectForSeconds"
    assert found.counts.endswith(f"(settings: {part})")
    assert found.counts.startswith("counts as" if counts else "does not count")


@pytest.mark.parametrize(
    ("stated", "grace", "bound", "counts"),
    [
        ("90s", 90, 3600, 90),
        ("90s", 89, 3600, -1),  # killed before
        ("0s", 0, 3600, 0),
        ("90s", 600, 89, -1),
        ("0s", 30, 0, -1),
        ("soon", 30, 3600, -1),
        ("-5s", 30, 3600, -1),
        ("9" * 70, 10**9, 3600, -1),
    ],
)
def test_in_how_many_seconds_a_pod_saves_its_work(stated: str, grace: int, bound: int, counts: int) -> None:
    notes = {OURS + "saves-on-termination": stated, OURS + "saves-on-request": stated}
    pod = _record(workload("p", 1, node="n", start=WALL, annotations=notes, grace=grace))
    wanted = Wanted(saves_on_termination_seconds=bound, saves_on_request_seconds=bound)
    limits = AnnotationLimits(Settings(claims=wanted))
    on_request = counts if grace != 89 else 90  # its grace does not matter then
    assert limits.saving(pod) == (counts, on_request, 0)
    assert limits.saving(pod).within(0) == counts
    assert limits.saving(pod).within(90) == on_request
    beyond = [claim.annotation.partition("/")[2] for claim in limits.bounded(pod)]
    too_long = stated == "90s" and bound < 90
    assert beyond == (["saves-on-termination", "saves-on-request"] if too_long or not bound else [])


def test_who_asks_is_who_waits() -> None:
    assert progress.Saving(60, 30).within(29) == 60
    assert progress.Saving(60, 30).within(30) == 30
    assert progress.Saving(30, 60).within(600) == 30  # it saves when it is told to end: it need not be asked
    assert progress.Saving(-1, 0).within(0) == -1


def _record(made: JSON) -> Any:
    world = World()
    world.set("Pod", made)
    return world.cluster.pods[made["metadata"]["uid"]]


def test_the_administrators_minimum_run_has_no_bound() -> None:
    preemption = Settings().preemption.model_copy(update={"minimum_run_seconds": {"train": 86_400.0}})
    made = workload("p", 1, node="n", start=WALL, spec={"priorityClassName": "train"})
    claims = AnnotationLimits(Settings(preemption=preemption))
    assert claims.protected_ms(_record(made)) == int((WALL + 86_400) * 1000)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (60, "1m0s"), (3600, "1h0m0s"), (5400, "1h30m0s"), (86_461, "24h1m1s")],
)
def test_durations_are_written_as_go_writes_them(seconds: int, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_claim_that_changes_counts_from_then_on(world: World) -> None:
    """Annotations may change while the pod runs: the bounds hold for what they say now, from the same start."""
    world.node("n", 1)
    made = world.pod("p0", 1, "n", priority=1, start=WALL - 3000)
    asks = workload("p", 1, priority=9)
    made["metadata"]["annotations"][OURS + "protect-for"] = "999h"
    world.set("Pod", made)
    assert world.preempt(asks, {"n": ["p0"]}) == {}
    world.wall += 601
    assert world.preempt(asks, {"n": ["p0"]}) == {"n": ["p0"]}
