"""What is remembered of who ignores requests to save: how it counts, ends, is bounded, stored and read again."""

from __future__ import annotations

import json
import random

import pytest

from ext_core.rows import NOT_ASKED
from extender.act.document import MOST_BYTES, LearnedStore
from extender.act.saving import (
    ANSWERS_FORMAT,
    ANSWERS_KEY,
    HALF_LIFE_SECONDS,
    MOST_NAMESPACES,
    MOST_OWNERS,
    SaveHistory,
    SaveHistoryStore,
)
from extender.ask.fleet import MOST_IGNORING
from extender.cli.top import _lines as top_lines
from extender.cluster.saved import restore, save
from extender.journal import entries
from extender.objects.gangs import top_owner
from extender.objects.stored_texts import (
    MIX_BYTES,
    RUN_TIMES_BYTES,
    SAVE_ANSWERS_BYTES,
    START_WINDOWS_BYTES,
    Damaged,
    is_newer,
)
from extender.preemption.cost_inputs import work_lost
from extender.settings import Settings
from extender.times import Clock
from tests.act.test_learned import map_of
from tests.act.test_reservations import connected
from tests.kube.objects import Objects
from tests.world import JSON, WALL, World, machine, workload

ASKS = {"evictions": {"enabled": True}, "preemption": {"mostWaitSeconds": {"prod": 600}}}


class Case:
    """A node with pods of owners that save within 60 s, and have run for 1000 s."""

    def __init__(self) -> None:
        self.world = World(Settings.model_validate(ASKS))
        self.world.set("Node", machine("n0", 8))
        self.history = SaveHistory(self.world.cluster, Clock(lambda: self.world.now, lambda: self.world.wall))

    def pod(self, name: str, owner: str, namespace: str = "default") -> JSON:
        notes = {"gpu-extender.io/saves-on-request": "60s"}
        pod = workload(
            name, 1, node="n0", phase="Running", start=WALL - 1000, annotations=notes, namespace=namespace, held=(0,)
        )
        pod["metadata"]["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Training", "name": owner, "uid": f"uid-{owner}", "controller": True}
        ]
        return self.world.set("Pod", pod)

    def note(self, owner: str, namespace: str = "default", *, saved: bool = False) -> None:
        self.history.note(namespace, f"Training/{owner}", self.world.wall, saved=saved)

    def passes(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.wall += seconds

    def price(self, name: str) -> int:
        """GPU-seconds, where the preemptor waits, as of WALL; in Python and in the tables."""
        cluster = self.world.cluster
        pod = cluster.pods[f"uid-{name}"]
        at = cluster._pods.rows.get(pod.uid)
        assert at is not None
        row = cluster.tables.pods.row(at)
        assert (row.saves, row.asked, row.ignores) == tuple(cluster.limits.saving(pod))
        return work_lost(cluster, pod, int(WALL * 1000), 600)


@pytest.fixture
def case() -> Case:
    return Case()


def test_who_ignores_requests_is_believed_less_and_then_not_asked_until_it_is_long_ago(case: Case) -> None:
    case.pod("a", "liar")
    case.pod("b", "other")
    case.pod("c", "far", "elsewhere")
    assert case.price("a") == case.price("b") == 60
    case.note("liar")
    # One of one and of half an answer that is saved to four fifths: (1 + 0.1) / 1.5; of a new owner 1 / 5.
    assert (case.price("a"), case.price("b"), case.price("c")) == (60 + 940 * 730 // 1000, 60 + 940 // 5, 60)
    case.passes(3600)
    case.note("liar")
    assert case.price("a") == 1000  # it is not asked any more
    case.passes(3 * HALF_LIFE_SECONDS)
    case.history.refresh()
    assert 60 < case.price("a") < 700
    case.passes(20 * HALF_LIFE_SECONDS)
    case.history.refresh()
    assert (case.price("a"), case.price("b"), json.loads(case.history.dump())["namespaces"]) == (60, 60, {})


def test_a_clock_that_steps_back_delays_no_refresh(case: Case) -> None:
    case.pod("a", "liar")
    case.note("liar")
    case.passes(3600)
    case.note("liar")
    case.world.wall += 3 * HALF_LIFE_SECONDS
    case.history.refresh()
    assert case.price("a") < 700
    case.world.wall -= 3 * HALF_LIFE_SECONDS
    case.history.refresh()
    assert case.price("a") == 1000


def test_who_saves_is_believed_whatever_its_namespace_does(case: Case) -> None:
    case.pod("a", "honest")
    for number in range(20):
        case.passes(100)
        case.note("honest", saved=True)
        case.note(f"liar-{number}")
    assert case.price("a") < 100


def test_a_new_name_is_worth_no_more_than_its_namespace(case: Case) -> None:
    prices = []
    for number in range(13):
        case.pod("a", f"name-{number}")
        prices.append(case.price("a"))
        case.passes(100)
        case.note(f"name-{number}")
    assert prices == sorted(prices)
    assert prices[12] == 1000  # after twelve of them no new name is asked


def test_members_of_a_gang_are_one_answer(case: Case) -> None:
    for _ in range(100):
        case.note("gang")
        case.passes(0.3)
    assert case.world.cluster.save_answers["default"].owners == {"Training/gang": 730}


def test_all_that_is_learned_has_room_in_one_configmap() -> None:
    assert MIX_BYTES + SAVE_ANSWERS_BYTES + RUN_TIMES_BYTES + START_WINDOWS_BYTES <= MOST_BYTES


def test_a_tenant_displaces_its_own_alone_and_the_text_is_bounded() -> None:
    case, chance = Case(), random.Random(7)
    case.note("victim", "quiet")
    for number in range(2000):
        case.passes(100)
        case.note(f"{number}-{'x' * chance.randrange(300)}"[:119], f"ns-{number % 3}")
    before = dict(case.world.cluster.save_answers)
    for number in range(MOST_NAMESPACES + 50):
        for _ in range(9):
            case.passes(100)
            case.note("one", f"other-{number}")
    assert len(case.world.cluster.save_answers) == MOST_NAMESPACES
    assert all(case.world.cluster.save_answers[name] == record for name, record in before.items())
    owners = {name: len(record.owners) for name, record in case.world.cluster.save_answers.items()}
    assert max(owners.values()) == MOST_OWNERS
    assert len(json.loads(case.history.dump())["namespaces"]) == MOST_NAMESPACES

    longest = Case()
    for number in range(MOST_NAMESPACES * MOST_OWNERS):
        longest.passes(1 / 3)
        longest.note(f"{number}-".ljust(91, "x"), f"{number % MOST_NAMESPACES}-".ljust(63, "x"))
    assert sum(len(record.owners) for record in longest.world.cluster.save_answers.values()) == 3200
    text = longest.history.dump()
    stored = json.loads(text)["namespaces"]
    assert len(text.encode()) <= SAVE_ANSWERS_BYTES
    assert len(stored) == MOST_NAMESPACES
    assert {len(of["owners"]) for of in stored.values()} == {4}
    numbers = [int(owner.partition("/")[2].partition("-")[0]) for of in stored.values() for owner in of["owners"]]
    assert min(numbers) == (MOST_OWNERS - 4) * MOST_NAMESPACES  # the latest ones count most


def test_an_owner_has_a_short_text_whatever_it_is_called(case: Case) -> None:
    case.pod("a", "\u0001\u00e9" * 200)
    case.pod("b", "plain")
    pods, objects = case.world.cluster.pods, case.world.cluster.gangs.objects
    text = top_owner(pods["uid-a"], objects)
    assert (len(text), text.isprintable(), text.isascii()) == (100, True, True)
    assert top_owner(pods["uid-b"], objects) == "Training/plain"


async def test_an_instance_that_learns_nothing_lets_time_pass_too() -> None:
    objects, case = Objects(), Case()
    async with connected(objects) as server:
        store = SaveHistoryStore(map_of(server), case.history)
        case.note("liar")
        await store.save()
        case.passes(20 * HALF_LIFE_SECONDS)
        await store.save()
    assert not case.world.cluster.save_answers


async def test_two_servers_store_it_beside_the_demand_mix_and_take_over_what_the_other_has_learned() -> None:
    objects, first, second = Objects(), Case(), Case()
    async with connected(objects) as server:
        stores = [SaveHistoryStore(map_of(server), case.history) for case in (first, second)]
        await LearnedStore(map_of(server), lambda: "mix", lambda text: None).save()
        for store in stores:
            await store.begin()
        first.note("liar")
        second.note("other", "elsewhere")
        for store in (*stores, *stores):
            await store.save()
        await LearnedStore(map_of(server), lambda: "mix 2", lambda text: None).save()  # of an older version too
    assert first.history.dump() == second.history.dump()
    assert sorted(second.world.cluster.save_answers) == ["default", "elsewhere"]
    (stored,) = [made for path, made in objects.stored.items() if path.endswith("gpu-extender-mix")]
    assert stored["data"] == {"document": "mix 2", "save-answers": first.history.dump()}


def test_it_survives_a_restart_and_two_instances_keep_the_latest() -> None:
    first, second = Case(), Case()
    first.note("liar")
    second.history.load(first.history.dump())
    second.pod("a", "liar")
    assert second.price("a") == 60 + 940 * 730 // 1000
    second.passes(100)
    second.note("liar")
    first.passes(200)
    first.note("else")
    first.history.load(second.history.dump())
    assert json.loads(first.history.dump())["namespaces"]["default"]["owners"]["Training/liar"]["ignored"] > 1.9


def test_a_clock_that_was_ahead_stops_no_learning() -> None:
    first, second = Case(), Case()
    first.passes(365 * 86_400.0)
    first.note("liar")
    first.passes(-365 * 86_400.0)
    second.history.load(first.history.dump())
    for case in (first, second):
        case.passes(100)
        case.note("liar")
        assert json.loads(case.history.dump())["namespaces"]["default"]["owners"]["Training/liar"]["ignored"] > 1.9
    first.history.load(second.history.dump())
    first.passes(100)
    first.note("liar")
    second.passes(100)
    second.history.load(first.history.dump())
    assert json.loads(second.history.dump())["namespaces"]["default"]["owners"]["Training/liar"]["ignored"] > 2.9


@pytest.mark.parametrize("text", ["", "{}", '{"format":1}', '{"format":1,"namespaces":{"a":{"ignored":-1}}}', "[" * 9])
def test_a_damaged_text_is_none(text: str) -> None:
    with pytest.raises(Damaged):
        Case().history.load(text)
    assert not is_newer(text, ANSWERS_FORMAT)


async def test_a_text_of_a_version_to_come_stays() -> None:
    objects, case, text = Objects(), Case(), '{"format":2,"what":3}'
    assert is_newer(text, ANSWERS_FORMAT)
    async with connected(objects) as server:
        await LearnedStore(map_of(server), lambda: text, lambda text: None, key=ANSWERS_KEY).save()
        store = SaveHistoryStore(map_of(server), case.history)
        await store.begin()
        case.note("liar")
        await store.save()
    (stored,) = [made for path, made in objects.stored.items() if path.endswith("gpu-extender-mix")]
    assert stored["data"] == {ANSWERS_KEY: text}


def test_a_record_of_the_cluster_has_it(case: Case) -> None:
    case.pod("a", "liar")
    case.note("liar")
    saved, objects = save(case.world.cluster, case.world.now)()
    again = Case()
    events = [entries.event(entries.Change(entries.kind_of(one), "set", entries.written(one))) for one in objects]
    restore(again.world.cluster, saved, events)
    assert again.price("a") == case.price("a") == 60 + 940 * 730 // 1000


def test_explain_states_it(case: Case) -> None:
    case.pod("a", "liar")
    case.note("liar")
    limits, pod = case.world.cluster.limits, case.world.cluster.pods["uid-a"]
    why = "pods of its owner, or of its namespace, were asked to save lately and did not in time"
    assert [one.counts for one in limits.bounded(pod)] == [f"counts to 27 %: {why}"]
    case.passes(100)
    case.note("liar")
    assert [one.counts for one in limits.bounded(pod)] == [f"does not count: {why}"]
    assert case.world.cluster.save_answers["default"].owners["Training/liar"] >= NOT_ASKED


def test_top_and_the_page_name_those_that_ignore_most(case: Case) -> None:
    for number in range(MOST_IGNORING + 2):
        case.note(f"liar-{number:02}", f"ns-{number:02}")
    case.passes(100)
    case.note("liar-03", "ns-03")
    case.note("honest", "well", saved=True)
    top = case.world.call("/debug/top", method="GET").json
    first, *_ = listed = top["ignores_requests"]
    why = "pods of its owner, or of its namespace, were asked to save lately and did not in time"
    ignored = {"ignored_percent": 87.0, "text": f"does not count: {why}"}
    assert first == {"namespace": "ns-03", "owner": "Training/liar-03"} | ignored
    assert {one["namespace"] for one in listed[1:]} == {f"ns-{n:02}" for n in range(MOST_IGNORING) if n != 3}
    assert (len(listed), top["ignores_requests_left_out"]) == (MOST_IGNORING, 2 * (MOST_IGNORING + 2) - MOST_IGNORING)
    page = case.world.call("/preemptions.json", method="GET").json
    assert page["ignores_requests"] == listed
    html = case.world.call("/preemptions", method="GET", accept="text/html").body.decode()
    assert f"<b>ns-03</b>, Training/liar-03: <code>saves-on-request</code> does not count: {why}" in html
    text = "\n".join(map(str, top_lines(top)))
    assert f"ns-03      Training/liar-03                     does not count: {why}" in text
    assert text.endswith("\nand 24 more owners")
    assert "ignores" not in "\n".join(map(str, top_lines(top | {"ignores_requests": None})))
