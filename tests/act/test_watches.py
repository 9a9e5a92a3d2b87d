"""How current the view is: measured by the reflectors, from the loss itself; who asks, and when, does not matter."""

from __future__ import annotations

import pytest

from extender.act.watches import Watches
from extender.cluster.cluster import Cluster
from extender.kube.client import ApiServer
from extender.kube.lists import WATCHED_KINDS
from extender.kube.watching import State
from extender.objects.records import Event, PriorityClassRecord
from extender.server import calls
from extender.settings import Settings
from extender.times import Clock
from tests.kube.api_server import no_headers
from tests.world import World, logged, workload


class Now:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def live(clock: Now, staleness: float = 10.0) -> tuple[Watches, dict[str, State]]:
    """All listed and watched a moment ago."""
    server = ApiServer("http://127.0.0.1:1", headers=no_headers)  # it is never asked
    made = Watches(server, Cluster(Settings()), staleness=staleness, clock=Clock(clock))
    for _, state in made.states:
        state.synced, state.watching, state.problem, state.last_event = True, True, "", clock.now
    return made, dict(made.states)


def watched(clock: Now) -> tuple[World, dict[str, State]]:
    made, states = live(clock)
    made._ready_at = 0.0
    world = World(source=made)
    world.node("n", 8)
    world.pod("v", 8, "n")
    return world, states


@pytest.fixture(autouse=True)
def _no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SETTLES_PER_SECOND", 0.0)  # a rejection would wait, and there is no loop here
    monkeypatch.setattr(calls, "LOOK_SECONDS", 0.0)  # nor does a dark view look around


@pytest.fixture
def clock() -> Now:
    return Now()


def test_the_first_request_comes_11_seconds_after_the_loss(clock: Now) -> None:
    """And finds that nobody may be evicted: nobody needs to have asked before."""
    world, states = watched(clock)
    states["Node"].watching, states["Node"].lost_at = False, clock.now
    clock.now += 11.0
    assert world.preempt(workload("p", 8, priority=100), {"n": ["v"]}) == {}
    assert world.metric("decisions_total", verb="preempt", reason="dark") == 1


def test_readiness_ends_a_minute_after_the_loss_though_nobody_asked(clock: Now) -> None:
    world, states = watched(clock)
    states["Pod"].watching, states["Pod"].lost_at = False, clock.now
    clock.now += 59.9
    assert world.call("/readyz", method="GET").status == 200
    clock.now += 0.1
    page = world.call("/readyz", method="GET")
    assert page.status == 503
    assert page.json["missing"] == ["pods or nodes have not been watched for 60 s: the API server is silent or away"]
    assert "gpu_extender_dark_seconds 60.0" in world.call("/metrics", method="GET").body.decode()
    states["Pod"].watching, states["Pod"].lost_at = True, None
    states["Node"].last_event = states["Pod"].last_event = clock.now
    assert world.call("/readyz", method="GET").status == 200


@pytest.mark.parametrize("kind", ["Pod", "Node", "PodDisruptionBudget"])
def test_silence_counts_from_the_last_word_once_it_is_too_long(clock: Now, kind: str) -> None:
    """Below that a stream that is fine says nothing either, and there is no dark time."""
    made, states = live(clock)
    silent_since = clock.now
    for _ in range(99):
        clock.now += 0.1
        for name, state in states.items():
            if name != kind:
                state.last_event = clock.now
        assert (made.dark(), made.dark(evicting=True)) == (0.0, 0.0)
    clock.now = silent_since + 10.0
    decides = kind != "PodDisruptionBudget"
    assert (made.dark(), made.dark(evicting=True)) == (10.0 * decides, 10.0)
    assert made.ages()[kind] == 10.0


def test_other_kinds_may_be_silent_for_minutes(clock: Now) -> None:
    made, states = live(clock)
    clock.now += 140.0
    for name in ("Pod", "Node", "PodDisruptionBudget"):
        states[name].last_event = clock.now
    states["Job.batch"].lost_at = clock.now - 100.0
    assert made.dark(evicting=True) == 0.0


def test_what_is_known_of_pods_ends_with_their_loss(clock: Now) -> None:
    made, states = live(clock)
    assert made.known_at() == clock.now
    states["Pod"].lost_at = lost = clock.now - 3.0
    states["Pod"].last_event = clock.now  # events of what happened meanwhile come in, but not all have yet
    assert made.known_at() == lost
    states["Pod"].lost_at = states["Pod"].last_event = None  # nothing is listed yet
    assert made.known_at() is None


def test_the_server_is_returning_once_it_has_answered_about_all_that_was_lost(clock: Now) -> None:
    made, states = live(clock)
    assert not made.returning()
    states["Pod"].lost_at = states["Node"].lost_at = clock.now
    states["Pod"].reached_at = clock.now + 20.0
    clock.now += 20.0
    assert not made.returning()
    states["Node"].reached_at = clock.now
    assert made.returning()
    clock.now += 3.1
    assert not made.returning()


def test_turns_that_end_as_agreed_are_no_restarts(clock: Now) -> None:
    made, states = live(clock)
    states["Pod"].counters.watches, states["Pod"].counters.turns = 1000, 997
    assert made.restarts()["Pod"] == 2
    assert set(made.restarts().values()) == {0, 2}


def test_the_prompt_kinds_have_the_pace_of_the_settings_and_renew_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = live(Now(), staleness=20.0)
    paces = {one.watched.name: (one._pace.watch_for, one._pace.inactivity) for one in made._reflectors}
    assert paces["Pod"] == paces["Node"] == paces["PodDisruptionBudget"] == (6.0, 10.0)
    assert paces["Job.batch"] == (300.0, 150.0)
    renewed: list[str] = []
    for one in made._reflectors:
        monkeypatch.setattr(one, "_drop", lambda name=one.watched.name: renewed.append(name))
    made.returned()
    assert sorted([*renewed, "Pod", "Node", "PodDisruptionBudget"]) == sorted(watched.name for watched in WATCHED_KINDS)


def test_what_was_listed_is_frozen_once_however_often_an_api_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that is not served is asked for every five minutes; a 403 is no list."""
    made, states = live(Now())
    frozen: list[int] = []
    monkeypatch.setattr("extender.act.watches.gc.freeze", lambda: frozen.append(1))
    states["Job.batch"].synced = states["DeviceClass"].synced = False
    with logged() as lines:
        made.synced("Pod")
        assert frozen == []
        assert made.ready_at() is None
        for kind in ("Job.batch", "DeviceClass"):
            states[kind].synced = True
            made.absent(kind)
        assert made.ready_at() is not None
        for _ in range(3):
            made.absent("Job.batch")
    assert len(frozen) == 1
    assert [line["kind"] for line in lines if line["event"] == "listed"] == ["Pod"]


def test_a_list_that_brings_little_collects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API that can be listed and not watched is listed anew at each retry."""
    made, _ = live(Now())
    frozen: list[int] = []
    monkeypatch.setattr("extender.act.watches.gc.freeze", lambda: frozen.append(1))
    made.synced("Pod")
    for _ in range(20):
        made.synced("Job.batch")
        made.absent("Job.batch")
    assert len(frozen) == 1
    name = PriorityClassRecord(uid="u", name="c", resource_version="1", value=1, global_default=False, never=False)
    made.apply([Event("PriorityClass", "set", name)] * 1000)
    made.synced("PriorityClass")
    made.synced("Job.batch")
    assert len(frozen) == 2


def test_kinds_that_may_not_be_read_degrade(clock: Now) -> None:
    world, states = watched(clock)
    assert world.call("/readyz", method="GET").json["degraded"] == []
    states["Job.batch"].forbidden = states["ResourceClaim"].forbidden = "403: jobs is forbidden"
    page = world.call("/readyz", method="GET")
    assert (page.status, page.json["degraded"]) == (
        200,
        [{"part": "rights", "problem": "ResourceClaim: 403: jobs is forbidden; Job.batch: 403: jobs is forbidden"}],
    )
    assert world.metric("degraded", part="rights") == 1
    states["Job.batch"].forbidden = states["ResourceClaim"].forbidden = ""
    assert world.metric("degraded", part="rights") == 0
