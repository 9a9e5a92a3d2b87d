"""ReservationStore that outlive a restart: written before the reply, read back before Ready, released for a cause."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from extender.act.reservations import ReservationStore, fields
from extender.kube.client import ApiServer
from extender.kube.own_objects import ConfigMap, StoredTexts, VersionConflict
from extender.reservations.reservations import Reservation
from extender.server import calls
from extender.settings import Settings
from extender.times import Clock
from tests.kube.api_server import Request, Script, client_of, no_headers
from tests.kube.objects import Objects
from tests.waiting import eventually
from tests.world import GPU, World, logged

PATH = "/api/v1/namespaces/kube-system/configmaps/gpu-extender-reservations"
Wait = Callable[[], Awaitable[None]]


def world(store: str = "configmap", deadline: float = 5.0, *, evicts: bool = False) -> World:
    """A full node, another one, and a preemptor that waits."""
    kept = {"store": store, "deadline_seconds": deadline}
    made = World(Settings.model_validate({"reservations": kept, "evictions": {"enabled": evicts}}))
    made.node("n1", 8)
    for i in range(4):
        made.pod(f"w{i}", 2, "n1", priority=1, held=(2 * i, 2 * i + 1))
    made.pod("urgent", 4, priority=9)
    return made


def store(made: World, server: ApiServer | None = None, clock: Clock | None = None) -> ReservationStore:
    """The store of the world's reservations. Without `server` it reads and writes nothing."""
    server = server or ApiServer("http://127.0.0.1:1", headers=no_headers)
    wanted = made.settings.reservations
    kept = ConfigMap(server, "kube-system", wanted.name) if wanted.store == "configmap" else None
    clock = clock or Clock(lambda: made.now, lambda: made.wall + made.now - 1000.0)
    return ReservationStore(made.verbs, made.metrics, kept, clock=clock)


def keeper(made: World, server: ApiServer | None = None, clock: Clock | None = None) -> ReservationStore:
    """The same, which the world's server asks before it answers preempt."""
    reservations = store(made, server, clock)
    made.connect(keeper=reservations)
    return reservations


@asynccontextmanager
async def connected(objects: Objects) -> AsyncIterator[ApiServer]:
    async with client_of(Script([objects.answer]), timeout=5) as server:
        yield server


async def ask(made: World, offered: Mapping[str, list[str]], name: str = "urgent", gpus: int = 4) -> dict[str, Any]:
    """The preempt verb, through the server's own path, on a running loop."""
    pod = next(pod for pod in made.cluster.pods.values() if pod.name == name)
    wire = {
        "metadata": {"name": name, "namespace": "default", "uid": pod.uid},
        "spec": {
            "priority": pod.priority,
            "containers": [{"name": "c", "resources": {"requests": {GPU: gpus}, "limits": {GPU: gpus}}}],
        },
        "status": {},
    }
    body = {
        "Pod": wire,
        "NodeNameToMetaVictims": {
            node: {"Pods": [{"UID": f"uid-{one}"} for one in names], "NumPDBViolations": 0}
            for node, names in offered.items()
        },
    }
    answer = await made.answered("preempt", json.dumps(body).encode())
    said: dict[str, Any] = json.loads(answer.body)["NodeNameToMetaVictims"] or {}
    return said


@asynccontextmanager
async def served(objects: Objects, made: World) -> AsyncIterator[ReservationStore]:
    """The reservations of a server over this API server, once they are read."""
    async with connected(objects) as server:
        reservations = keeper(made, server)
        task = asyncio.create_task(reservations.run())
        try:
            await eventually(lambda: not reservations.missing())
            yield reservations
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def entries(objects: Objects) -> dict[str, Any]:
    stored = objects.stored.get(PATH, {"data": {}})
    return {uid: json.loads(text) for uid, text in (stored["data"] or {}).items()}


OFFER = {"n1": ["w0", "w1"]}


async def test_the_plan_is_written_before_the_reply() -> None:
    objects, made = Objects(), world()
    async with served(objects, made):
        assert entries(objects) == {}
        answer = await ask(made, OFFER)
        assert list(answer) == ["n1"]
        kept = entries(objects)["uid-urgent"]
        assert kept["victims"] == [one["UID"] for one in answer["n1"]["Pods"]]
        assert kept | {"victims": 0} == {
            "format": 1, "pod": "default/urgent", "node": "n1", "victims": 0, "priority": 9,
            "amounts": {"pods": 1, GPU: 4}, "at": made.wall, "grace": 30.0,
        }  # fmt: skip
    assert made.metric("reservation_writes_total", result="ok") == 1


@pytest.mark.parametrize(("status", "result"), [(403, "forbidden"), (500, "failed"), (503, "failed"), (413, "failed")])
async def test_a_write_that_fails_evicts_nobody_and_reserves_nothing(status: int, result: str) -> None:
    objects, made = Objects(), world()
    objects.fail = lambda request: 0 if request.method == "GET" else status
    with logged() as lines:
        async with served(objects, made):
            assert await ask(made, OFFER) == {}
            assert made.verbs.reservations.all() == []
            latest = next(made.verbs.decisions.latest())
            assert (latest.result, "not kept" in latest.error) == ("not-reserved", True)
    assert made.metric("reservation_writes_total", result=result) == 1
    assert len([line for line in lines if "reservations" in line["event"]]) == 1


async def test_a_slow_write_is_waited_for_and_after_a_wait_in_vain_no_longer_than_the_deadline() -> None:
    """A preemptor that is refused is parked by kube-scheduler for up to 5 minutes."""
    objects, made = Objects(), world(deadline=0.05)
    made.pod("vip", 4, priority=90)
    async with served(objects, made):
        objects.delay = 0.4  # as just after an outage
        assert list(await ask(made, OFFER)) == ["n1"]
        assert list(entries(objects)) == ["uid-urgent"]
        objects.delay = 60.0
        call = asyncio.create_task(ask(made, OFFER, "vip"))
        while not call.done():
            await asyncio.sleep(0.01)
            made.now += 0.01
        assert call.result() == {}
        assert await ask(made, OFFER, "vip") == {}
        assert "not written within 0.05 s" in next(made.verbs.decisions.latest()).error
    assert made.metric("reservation_writes_total", result="late") == 2


async def test_a_late_write_evicts_nobody_and_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "ANSWER_SECONDS", 0.0)
    objects, made = Objects(), world(deadline=0.05)
    async with served(objects, made) as reservations:
        objects.delay = 0.3
        assert await ask(made, OFFER) == {}
        assert made.verbs.reservations.all() == []
        objects.delay = 0.0
        await eventually(lambda: entries(objects))  # the write lands after all
        made.now += 10
        await eventually(lambda: objects.said[-1][0] in ("PATCH", "GET"))
        await reservations.refresh()
        assert entries(objects) == {}
        assert made.verbs.reservations.all() == []
    assert made.metric("reservation_writes_total", result="late") == 1


async def test_a_request_that_hangs_holds_up_no_preemptor_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that died while the API server was away: what follows it gets another one."""
    monkeypatch.setattr("extender.act.reservations.REFRESH_SECONDS", 0.3)
    monkeypatch.setattr("extender.act.reservations.REREAD_SECONDS", 0.0)
    monkeypatch.setattr(calls, "ANSWER_SECONDS", 0.0)
    objects, made = Objects(), world(deadline=0.2)
    async with served(objects, made):
        objects.delay, asked = 60.0, len(objects.said)
        await eventually(lambda: len(objects.said) > asked)  # it has the lock, and hangs
        assert await ask(made, OFFER) == {}
        objects.delay = 0.0
        tries = 0
        while await ask(made, OFFER) == {}:
            await asyncio.sleep(0.05)  # as kube-scheduler, which asks again and again
            made.now += 0.05
            tries += 1
        assert tries < 20  # the hanging request is given up after 0.3 s, not after 60 s
        assert list(entries(objects)) == ["uid-urgent"]


async def test_the_map_is_read_again_seconds_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it was: the delays between the tries do not grow beyond two seconds."""
    delays: list[float] = []
    objects, made = Objects(), world()
    sleep = asyncio.sleep

    async def nap(seconds: float) -> None:
        delays.append(seconds)
        await sleep(min(seconds, 0.001))

    monkeypatch.setattr("extender.act.reservations.REREAD_SECONDS", 0.0)

    async def until_(what: Callable[[], Any]) -> None:
        for _ in range(2000):
            if what():
                return
            await sleep(0.005)
        raise AssertionError("it did not come")

    async with served(objects, made):
        objects.fail = lambda request: 503
        monkeypatch.setattr("extender.act.reservations.asyncio.sleep", nap)
        await until_(lambda: len(delays) >= 30)
        objects.fail = lambda request: 0
        await until_(lambda: made.metric("reservations_kept") == 1)
        monkeypatch.undo()
    assert 1.0 <= max(delays) <= 2.0
    assert len({delay for delay in delays if delay != 1.0}) > 20  # jittered


async def test_a_restart_reads_them_back_before_it_is_ready() -> None:
    objects, before = Objects(), world()
    async with served(objects, before):
        await ask(before, OFFER)
    plan = before.verbs.reservations.all()[0]

    after = world()
    after.now = 50.0  # another process, another clock
    after.wall += 100.0 + 950.0
    for name in plan.victims:
        after.pod(name.removeprefix("uid-"), 2, "n1", priority=1, terminating=after.wall)
    reservations = keeper(after)
    assert reservations.missing() == ["reservations: not read yet"]

    assert not reservations.read_back
    async with served(objects, after) as reservations:
        assert reservations.read_back
        [again] = after.verbs.reservations.all()
        assert (again.uid, again.node, again.victims, again.amounts) == (
            plan.uid,
            plan.node,
            plan.victims,
            plan.amounts,
        )
        assert (again.pod, again.priority, again.id) == (plan.pod, 9, plan.id)
        # its freed GPUs are filtered off for equal and lower priorities, though nobody is nominated
        for one in plan.victims:
            after.gone(one.removeprefix("uid-"))
        for priority, passes in ((5, []), (9, []), (10, ["n1"])):
            rival = after.pod(f"rival{priority}", 4, priority=priority)
            assert after.filter(rival)["NodeNames"] == passes
            after.drop("Pod", rival)
            after.verbs.reservations.drop(f"uid-rival{priority}")


@pytest.mark.parametrize("grace", [2**40, 2**62, 2**63 - 1])
async def test_a_grace_period_beyond_any_time_is_read_back(grace: int) -> None:
    """A tenant may ask for it: what is written can be read, by this version and from the one before, which wrote it."""
    objects, before = Objects(), world()
    for i in range(4):
        before.pod(f"w{i}", 2, "n1", priority=1, held=(2 * i, 2 * i + 1), grace=grace)
    async with served(objects, before):
        await ask(before, OFFER)
    [plan] = before.verbs.reservations.all()
    assert plan.grace == 10**9
    kept = json.loads(entries_raw(objects)["uid-urgent"])
    assert kept["grace"] == 10**9

    for written in (kept["grace"], float(grace)):
        objects.stored[PATH]["data"]["uid-urgent"] = json.dumps(kept | {"grace": written})
        after = world()
        for i in range(4):
            after.pod(f"w{i}", 2, "n1", priority=1, held=(2 * i, 2 * i + 1), grace=grace)
        async with served(objects, after):
            [again] = after.verbs.reservations.all()
            assert (again.id, again.grace) == (plan.id, 10**9)
        assert after.metric("reservations_damaged_total") == 0


async def test_a_preemptor_that_went_while_we_were_away_is_forgotten_at_once() -> None:
    """Its plan is seconds old, so it is not the slack for a watch that lags: the lists are newer."""
    objects, before = Objects(), world()
    async with served(objects, before):
        await ask(before, OFFER)
    after = world()
    after.gone("urgent")
    async with served(objects, after):
        assert after.verbs.reservations.all() == []
    assert after.metric("reservations_released_total", cause="deleted") == 1


async def test_while_the_server_was_away_the_preemptor_could_not_come() -> None:
    """The minute ends while nobody answers: the preemptor is tried again within ten seconds of our start."""
    objects, before = Objects(), world()
    async with served(objects, before) as reservations:
        await ask(before, OFFER)
        before.gone("w2", "w3")
        before.verbs.releases.sweep(before.now)
        await reservations.refresh()
        assert "emptied" in entries(objects)["uid-urgent"]
    after = world()
    after.gone("w2", "w3")
    after.now += 70.0
    async with served(objects, after):
        after.now += 11.0
        after.verbs.releases.sweep(after.now)
        assert len(after.verbs.reservations.all()) == 1
        after.now += 2.0
        assert released(after) == ["not-used"]


async def test_what_is_damaged_is_dropped_and_the_rest_stays() -> None:
    made = world()
    good = {"format": 1, "node": "n1", "victims": ["uid-w0"], "amounts": {GPU: 4}, "priority": 9, "at": made.wall}
    damaged = {
        "a": "{",
        "b": "[]",
        "c": json.dumps(good | {"format": 0}),
        "d": json.dumps(good | {"victims": []}),
        "e": json.dumps(good | {"victims": [3]}),
        "f": json.dumps(good | {"amounts": {"other/gpu": 1}}),
        "g": json.dumps(good | {"amounts": {GPU: -1}}),
        "h": json.dumps(good | {"priority": "high"}),
        "i": json.dumps(good | {"at": "yesterday"}),
        "j": json.dumps(good | {"node": ""}),
        "k": json.dumps(good | {"emptied": None}),
        "l": json.dumps(good | {"pod": 7}),
        "m": json.dumps(good | {"grace": -1}),
        "n": json.dumps(good | {"grace": "long"}),
        "o": json.dumps(good | {"victims": ["uid-w0", "uid-w0"]}),
        "p": json.dumps(good | {"victims": [f"v{i}" for i in range(1_001)]}),
        "q": json.dumps(good | {"pod": "x" * 100_000}),
        "r": json.dumps(good | {"at": made.wall + 301}),
    }
    objects = Objects()
    objects.put(PATH, {"metadata": {}, "data": damaged | {"uid-urgent": json.dumps(good)}})
    with logged() as lines:
        async with served(objects, made):
            assert [plan.uid for plan in made.verbs.reservations.all()] == ["uid-urgent"]
            await eventually(lambda: list(entries_raw(objects)) == ["uid-urgent"])
    assert made.metric("reservations_damaged_total") == len(damaged)
    assert sum(line["event"] == "a reservation cannot be read, and is dropped" for line in lines) == len(damaged)


def newer_entry(made: World, **fields: Any) -> str:
    """As a version to come may write it: nothing but `format` is what it is here."""
    return json.dumps({"format": 2, "places": [{"node": "n1"}], "since": made.wall, **fields})


async def test_an_entry_of_a_newer_version_is_left_as_it_is() -> None:
    made, objects = world(), Objects()
    theirs = newer_entry(made)
    objects.put(PATH, {"metadata": {}, "data": {"uid-urgent": theirs}})
    made.pod("other", 4, priority=9)
    with logged() as lines:
        async with served(objects, made) as reservations:
            assert made.verbs.reservations.all() == []
            assert await ask(made, OFFER) == {}, "others may be terminating for this pod"
            assert list(await ask(made, OFFER, "other")) == ["n1"]
            for _ in range(3):
                made.now += 6.0  # the map is read again
                await reservations.refresh()
            assert entries_raw(objects)["uid-urgent"] == theirs
            assert entries(objects)["uid-other"]["format"] == 1
    events = [line["event"] for line in lines]
    assert events.count("a reservation of a newer version is left as it is") == 1
    assert made.metric("reservations_damaged_total") == 0


async def test_a_newer_version_that_writes_beside_this_one_is_not_written_over() -> None:
    made, objects = world(), Objects()
    async with served(objects, made) as reservations:
        assert list(await ask(made, OFFER)) == ["n1"]
        theirs = newer_entry(made)
        objects.put(PATH, {"metadata": {}, "data": {"uid-urgent": theirs}})
        for _ in range(3):
            made.now += 6.0
            await reservations.refresh()
            assert entries_raw(objects) == {"uid-urgent": theirs}
        assert [plan.uid for plan in made.verbs.reservations.all()] == ["uid-urgent"], "the GPUs stay reserved"
        ours = json.dumps({"format": 1, "pod": "default/urgent", "node": "n1", "victims": ["uid-w2", "uid-w3"],
                           "amounts": {"pods": 1, GPU: 4}, "priority": 9, "at": made.wall, "grace": 30.0})  # fmt: skip
        objects.put(PATH, {"metadata": {}, "data": {"uid-urgent": ours}})
        made.now += 6.0
        await reservations.refresh()
        [plan] = made.verbs.reservations.all()
        assert plan.victims == ("uid-w2", "uid-w3"), "a version that is read again counts again"


async def test_an_entry_of_a_newer_version_for_a_pod_that_the_watch_has_not_brought_stays_for_a_minute() -> None:
    made, objects = world(), Objects()
    objects.put(PATH, {"metadata": {}, "data": {"uid-late": newer_entry(made)}})
    async with served(objects, made) as reservations:
        for _ in range(9):
            made.now += 6.0
            await reservations.refresh()
            assert list(entries_raw(objects)) == ["uid-late"]
        made.now += 6.0
        await reservations.refresh()
        assert not entries_raw(objects)


def of_a_deleted_pod(made: World) -> None:
    made.gone("urgent")


def of_a_bound_pod(made: World) -> None:
    made.pod("urgent", 4, "n2", priority=9, held=(0, 1, 2, 3))


def of_long_ago(made: World) -> None:
    made.now += 600.0


@pytest.mark.parametrize("over", [of_a_deleted_pod, of_a_bound_pod, of_long_ago])
async def test_an_entry_of_a_newer_version_that_is_over_leaves_the_map(over: Callable[[World], None]) -> None:
    made, objects = world(), Objects()
    made.node("n2", 8)
    objects.put(PATH, {"metadata": {}, "data": {"uid-urgent": newer_entry(made)}})
    async with served(objects, made) as reservations:
        made.now += 500.0
        await reservations.refresh()
        assert list(entries_raw(objects)) == ["uid-urgent"]
        over(made)
        await reservations.refresh()
        assert not entries_raw(objects)
        if over is of_long_ago:
            assert list(await ask(made, OFFER)) == ["n1"]


def entries_raw(objects: Objects) -> dict[str, str]:
    return dict(objects.stored[PATH]["data"])


FORGED: dict[str, tuple[dict[str, Any], str]] = {
    "more GPUs than the pod asks for": ({"amounts": {GPU: 8, "pods": 1}}, "asks for other GPUs"),
    "no GPUs": ({"amounts": {"pods": 1}}, "asks for other GPUs"),
    "a higher priority": ({"priority": 1_000_000}, "has priority 9, not 1,000,000"),
    "a lower priority": ({"priority": 2}, "has priority 9, not 2"),
    "another pod's name": ({"pod": "kube-system/dns"}, "its pod is default/urgent"),
    "victims of its own priority": ({"victims": ["uid-w0", "uid-equal"]}, "victim default/equal has priority 9"),
    "a victim elsewhere": ({"victims": ["uid-w0", "uid-far"]}, "victim default/far is on node n2"),
    "a victim that waits": ({"victims": ["uid-waits"]}, "victim default/waits is on no node"),
    "a DaemonSet's pod": ({"victims": ["uid-daemon"]}, "is never a victim"),
}


@pytest.mark.parametrize("late", [False, True], ids=["before the lists", "later"])
@pytest.mark.parametrize(("change", "why"), FORGED.values(), ids=FORGED)
async def test_a_plan_that_contradicts_the_cluster_is_dropped_and_reported(
    change: dict[str, Any], why: str, late: bool
) -> None:
    objects, made = Objects(), world()
    made.node("n2", 8)
    made.pod("equal", 1, "n1", priority=9)
    made.pod("far", 1, "n2", priority=1)
    made.pod("waits", 1, priority=1)
    made.pod("daemon", 0, "n1", priority=1, owner="DaemonSet")
    good = {
        "format": 1, "pod": "default/urgent", "node": "n1", "victims": ["uid-w0", "uid-w1"], "priority": 9,
        "amounts": {GPU: 4, "pods": 1}, "at": made.wall, "grace": 30.0,
    }  # fmt: skip
    if not late:
        objects.put(PATH, {"metadata": {}, "data": {"uid-urgent": json.dumps(good | change)}})
    with logged() as lines:
        async with served(objects, made) as reservations:
            if late:
                objects.put(PATH, {"metadata": {}, "data": {"uid-urgent": json.dumps(good | change)}})
                made.now += 6.0
                await reservations.refresh()
            assert made.verbs.reservations.all() == []
            await eventually(lambda: not entries_raw(objects))
    assert made.metric("reservations_damaged_total") == 1
    [line] = [line for line in lines if "contradicts the cluster" in line["event"]]
    assert (line["pod"], why in line["err"]) == ("default/urgent", True)


async def test_what_a_plan_says_of_itself_keeps_it_no_longer() -> None:
    """CPU, memory and grace are those that we see, and the minute of places that are free does not begin anew."""
    objects, made = Objects(), world()
    entry = {
        "format": 1, "pod": "default/urgent", "node": "n1", "victims": ["uid-w0", "uid-w1"], "priority": 9,
        "amounts": {GPU: 4, "pods": 1, "cpu": 10**12, "memory": 10**15}, "at": made.wall, "grace": 1e9,
    }  # fmt: skip
    objects.put(PATH, {"metadata": {}, "data": {"uid-urgent": json.dumps(entry)}})
    async with served(objects, made) as reservations:
        [plan] = made.verbs.reservations.all()
        assert plan.amounts == made.cluster.amounts(made.cluster.pods["uid-urgent"])
        assert plan.grace == 30
        made.gone("w0", "w1")
        made.verbs.releases.sweep(made.now)
        first = made.now
        for turn in range(9):
            entry["victims"] = [f"made-up-{turn}"]
            stored = objects.stored[PATH]
            version = str(int(stored["metadata"]["resourceVersion"]) + 1)
            objects.put(PATH, {"metadata": {"resourceVersion": version}, "data": {"uid-urgent": json.dumps(entry)}})
            made.now += 6.0
            await reservations.refresh()
            assert [plan.emptied for plan in made.verbs.reservations.all()] == [first]
        made.now = first + 61.0
        assert released(made) == ["not-used"]


async def test_another_instance_wrote_meanwhile() -> None:
    """Its entry is taken over, ours is written with it; what it removed is gone for us too."""
    objects, made = Objects(), world()
    made.node("n2", 8)
    made.pod("theirs", 2, priority=7)
    async with served(objects, made):
        await ask(made, OFFER)
        other = json.loads(entries_raw(objects)["uid-urgent"]) | {
            "node": "n2", "victims": ["x"], "priority": 7, "pod": "default/theirs", "amounts": {"pods": 1, GPU: 2},
        }  # fmt: skip
        objects.put(PATH, {"metadata": {}, "data": {"uid-theirs": json.dumps(other)}})  # ours is removed by them
        made.pod("second", 2, priority=9)
        answer = await ask(made, {"n1": ["w2"]}, "second", 2)
        assert list(answer) == ["n1"]
        assert set(entries(objects)) == {"uid-theirs", "uid-second"}
        assert {plan.uid for plan in made.verbs.reservations.all()} == {"uid-theirs", "uid-second"}


@pytest.mark.parametrize(
    ("victims", "priority", "kept"),
    [(["w2", "w3"], 9, False), (["w1", "w2"], 9, False), (["w2", "w3"], 10, False), (["w0", "w1"], 9, True),
     (["w2", "w3"], 8, True)],
)  # fmt: skip
async def test_no_victim_is_planned_for_two_pods_by_two_instances(
    victims: list[str], priority: int, kept: bool
) -> None:
    """The plan that is written first stands, unless its pod has a lower priority. The node is full; w2 and w3 are the
    cheapest."""
    objects, made = Objects(), world(evicts=True)
    made.pod("theirs", 4, priority=priority)
    async with served(objects, made):
        objects.put(PATH, of_theirs(made, victims, priority))
        answer = await ask(made, OFFER)
        assert bool(answer) is kept
        assert ("uid-urgent" in entries(objects)) is kept
        assert "uid-theirs" in entries(objects)


async def test_an_instance_whose_watch_is_late_ends_no_plan_of_another() -> None:
    """It reads the plan half a minute before its watch brings the preemptor."""
    objects, made, late = Objects(), world(), world()
    late.gone("urgent")
    async with served(objects, made) as ours, served(objects, late) as theirs:
        assert await ask(made, OFFER)
        [plan] = made.verbs.reservations.all()
        for number in (2, 3):  # the victims are evicted
            made.pod(f"w{number}", 2, "n1", priority=1, held=(2 * number, 2 * number + 1), terminating=made.wall + 30)
        for _ in range(10):
            for one, instance in ((made, ours), (late, theirs)):
                one.now += 3.0
                await instance.refresh()
                one.verbs.releases.sweep(one.now)
        assert made.verbs.reservations.get(plan.uid) is not None
        assert entries(objects)[plan.uid]["begun"]


@pytest.mark.parametrize("gpus", [4, 2])
async def test_no_pod_gets_two_plans_by_two_instances(gpus: int) -> None:
    """The one that is written first stands; one that contradicts the cluster does not."""
    objects, made = Objects(), world(evicts=True)
    async with served(objects, made):
        entry = json.loads(of_theirs(made, ["w0", "w1"])["data"]["uid-theirs"])
        theirs = entry | {"pod": "default/urgent", "amounts": {"pods": 1, GPU: gpus}}
        objects.put(PATH, {"metadata": {}, "data": {"uid-urgent": json.dumps(theirs)}})
        assert bool(await ask(made, OFFER)) is (gpus != 4)
        plan = made.verbs.reservations.get("uid-urgent")
        assert plan is not None
        assert plan.victims == (("uid-w0", "uid-w1") if gpus == 4 else ("uid-w2", "uid-w3"))
        assert entries(objects)["uid-urgent"]["victims"] == list(plan.victims)


def of_theirs(made: World, victims: list[str], priority: int = 9) -> dict[str, Any]:
    """The map with a plan of another instance for 4 GPUs."""
    entry = {
        "format": 1, "pod": "default/theirs", "node": "n1", "victims": [f"uid-{name}" for name in victims],
        "amounts": {"pods": 1, GPU: 4}, "priority": priority, "at": made.wall, "own": True, "wait": 60,
    }  # fmt: skip
    return {"metadata": {}, "data": {"uid-theirs": json.dumps(entry)}}


async def test_the_plan_of_a_pod_that_the_watch_has_not_brought_counts() -> None:
    objects, made = Objects(), world(evicts=True)
    async with served(objects, made):
        objects.put(PATH, of_theirs(made, ["w2", "w3"]))
        assert await ask(made, OFFER) == {}


@pytest.mark.parametrize("by", ["a reply", "the round"])
async def test_a_plan_that_waits_beside_another_write_is_compared_too(by: str) -> None:
    objects, made = Objects(), world(evicts=True)
    made.pod("theirs", 4, priority=9)
    made.node("n2", 8)
    for i in range(4):
        made.pod(f"x{i}", 2, "n2", priority=1, held=(2 * i, 2 * i + 1))
    made.pod("beside", 4, priority=9)
    async with served(objects, made) as reservations:
        objects.put(PATH, of_theirs(made, ["w2", "w3"]))
        objects.delay = 0.05
        if by == "the round":
            amounts = tuple(4 if name == GPU else 0 for name in made.cluster.resources)
            made.verbs.reservations.add(
                Reservation("uid-beside", "n2", ("uid-x0", "uid-x1"), amounts, 9, made.now, pod="default/beside")
            )
            first: asyncio.Task[Any] = asyncio.create_task(reservations.refresh())
            await asyncio.sleep(0.02)
        else:
            first = asyncio.create_task(ask(made, {"n2": ["x0", "x1"]}, "beside"))
        assert await ask(made, OFFER) == {}
        await first
        assert set(entries(objects)) == {"uid-theirs", "uid-beside"}


async def test_a_plan_that_another_instance_replaced_is_taken_over() -> None:
    """Else both would write their own again and again, and a restart might read the one that is over."""
    objects, made = Objects(), world()
    made.node("n2", 8)
    async with served(objects, made) as reservations:
        assert await ask(made, OFFER)
        stored = objects.stored[PATH]
        entry = json.loads(stored["data"]["uid-urgent"]) | {"node": "n2", "victims": ["uid-other"]}
        stored["data"]["uid-urgent"] = json.dumps(entry)
        stored["metadata"]["resourceVersion"] = str(int(stored["metadata"]["resourceVersion"]) + 1)
        made.now += 5.0
        await reservations.refresh()
        assert [plan.node for plan in made.verbs.reservations.all()] == ["n2"]
        assert entries(objects)["uid-urgent"]["node"] == "n2"


def rewritten(objects: Objects, change: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """Another instance writes the entry anew. The text."""
    stored = objects.stored[PATH]
    text = json.dumps(change(json.loads(stored["data"]["uid-urgent"])))
    stored["data"]["uid-urgent"] = text
    stored["metadata"]["resourceVersion"] = str(int(stored["metadata"]["resourceVersion"]) + 1)
    return text


async def test_a_field_of_a_version_to_come_stays() -> None:
    """Each version wrote the entry anew without the fields of the other, in turns."""
    objects, made = Objects(), world()
    async with served(objects, made) as reservations:
        assert await ask(made, OFFER)
        text = rewritten(objects, lambda entry: {"later": {"a": [1]}} | entry)
        for _ in range(3):
            made.now += 5.0
            await reservations.refresh()
            assert entries_raw(objects) == {"uid-urgent": text}
        made.pod("w2", 2, "n1", priority=1, terminating=made.wall + 30)
        await reservations.refresh()
        entry = entries(objects)["uid-urgent"]
        assert (entry["begun"], entry["later"]) == (True, {"a": [1]})
        plan = reservations._entries.plan("uid-urgent", entries_raw(objects)["uid-urgent"], made.now)
        assert fields(reservations._entries.text(plan)) == entry


async def test_what_an_older_version_leaves_out_is_written_once() -> None:
    objects, made = Objects(), world()
    async with served(objects, made) as reservations:
        assert await ask(made, OFFER)
        made.pod("w2", 2, "n1", priority=1, terminating=made.wall + 30)
        await reservations.refresh()
        assert entries(objects)["uid-urgent"]["begun"]
        text = rewritten(objects, lambda entry: {name: value for name, value in entry.items() if name != "begun"})
        for _ in range(3):
            made.now += 5.0
            await reservations.refresh()
            assert entries_raw(objects) == {"uid-urgent": text}
        [plan] = made.verbs.reservations.all()
        assert plan.begun
        rewritten(objects, lambda entry: entry | {"victims": ["uid-w0", "uid-w1"]})
        made.now += 5.0
        await reservations.refresh()
        [plan] = made.verbs.reservations.all()
        assert plan.victims == ("uid-w0", "uid-w1"), "what another version changes counts all the same"


async def test_a_map_that_was_deleted_is_made_anew() -> None:
    """What it had is not over: the victims are gone, and their GPUs are the preemptor's."""
    objects, made = Objects(), world()
    made.pod("second", 2, priority=9)
    async with served(objects, made) as reservations:
        await ask(made, OFFER)
        del objects.stored[PATH]
        made.now += 6.0
        await reservations.refresh()
        assert list(entries(objects)) == ["uid-urgent"]
        del objects.stored[PATH]
        assert list(await ask(made, {"n1": ["w2"]}, "second", 2)) == ["n1"]
        await reservations.refresh()
        assert sorted(entries(objects)) == ["uid-second", "uid-urgent"]


async def test_no_right_to_read_is_said_once_and_does_not_stop_the_scheduling() -> None:
    objects, made = Objects(fail=lambda request: 403), world()
    with logged() as lines:
        async with served(objects, made) as reservations:
            assert reservations.missing() == []
            for _ in range(3):
                assert await ask(made, OFFER) == {}
    said = [line for line in lines if line["log_level"] == "error"]
    assert len(said) == 1
    assert "reservations.store" in said[0]["event"]
    assert made.metric("reservations_kept") == 0


async def test_memory_asks_nobody() -> None:
    objects, made = Objects(), world("memory")
    async with served(objects, made):
        assert list(await ask(made, OFFER)) == ["n1"]
        assert objects.said == []


async def test_one_patch_a_reply_and_nothing_is_read_before_it() -> None:
    objects, made = Objects(), world()
    made.pod("vip", 4, priority=90)
    async with served(objects, made):
        assert list(await ask(made, OFFER)) == ["n1"]  # makes the map
        asked = len(objects.said)
        assert list(await ask(made, OFFER, "vip")) == ["n1"]
        assert objects.said[asked:] == [("PATCH", PATH)]
    [patch] = objects.patched
    assert list(patch) == ["metadata", "data"]
    assert list(patch["data"]) == ["uid-vip"]


async def test_after_a_write_that_failed_the_next_reply_reads_nothing() -> None:
    """The version that is known stays: the late write would be rejected."""
    objects, made = Objects(), world(deadline=0.2)
    made.pod("vip", 4, priority=90)
    async with served(objects, made):
        await ask(made, OFFER)
        objects.fail = lambda request: 502 if request.method == "PATCH" else 0
        assert await ask(made, OFFER, "vip") == {}
        assert made.verbs.reservations.get("uid-vip") is None
        objects.fail = lambda request: 0
        asked = len(objects.said)
        assert list(await ask(made, OFFER, "vip")) == ["n1"]
        assert [method for method, _ in objects.said[asked:]] == ["PATCH"]
        assert sorted(entries(objects)) == ["uid-urgent", "uid-vip"]


async def test_a_write_whose_answer_is_lost_is_sent_again_and_its_conflict_leads_to_a_read() -> None:
    objects, made = Objects(), world()
    made.pod("vip", 4, priority=90)
    async with served(objects, made):
        await ask(made, OFFER)
        objects.lost, asked = True, len(objects.said)
        assert list(await ask(made, OFFER, "vip")) == ["n1"]
        assert [method for method, _ in objects.said[asked:]] == ["PATCH", "PATCH", "GET"]
        assert sorted(entries(objects)) == ["uid-urgent", "uid-vip"]


async def test_replies_that_wait_are_written_together() -> None:
    objects, made = Objects(), world()
    for i in range(3):
        made.pod(f"vip{i}", 1, priority=90 + i)
    amounts = tuple(int(name == GPU) for name in made.cluster.resources)
    plans = [Reservation(f"uid-vip{i}", "n1", (f"uid-w{i}",), amounts, 90 + i, made.now, own=True) for i in range(3)]
    async with served(objects, made) as reservations:
        await ask(made, OFFER)
        asked, objects.delay = len(objects.said), 0.1
        for plan in plans:
            made.verbs.reservations.add(plan)
        assert await asyncio.gather(*map(reservations.reserve, plans)) == ["", "", ""]
        assert len(objects.said) - asked <= 2
        assert len(entries(objects)) == 4


async def test_entries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.act.reservations.MOST_ENTRIES", 2)
    objects, made = Objects(), world()
    for i in range(2):
        made.pod(f"other{i}", 1, priority=9)
        amounts = tuple(int(name == GPU) for name in made.cluster.resources)
        made.verbs.reservations.add(Reservation(f"uid-other{i}", "n1", ("uid-w3",), amounts, 9, made.now, own=True))
    async with served(objects, made):
        assert await ask(made, OFFER) == {}
        assert next(made.verbs.decisions.latest()).error.endswith("there are 2 reservations already")


# -- what releases -----------------------------------------------------------------------------------------------------


def planned(made: World) -> Reservation:
    amounts = tuple(4 if name == GPU else 0 for name in made.cluster.resources)
    plan = Reservation("uid-urgent", "n1", ("uid-w0", "uid-w1"), amounts, 9, made.now, pod="default/urgent")
    made.verbs.reservations.add(plan)
    return plan


def released(made: World) -> list[str]:
    """The causes that were counted."""
    made.verbs.releases.sweep(made.now)
    made.verbs.releases.sweep_plans(made.now)
    family = next(f for f in made.metrics.registry.collect() if f.name == "gpu_extender_reservations_released")
    return [sample.labels["cause"] for sample in family.samples if sample.name.endswith("_total") and sample.value]


def carried_out(made: World) -> None:
    for name in ("w0", "w1"):
        made.pod(name, 2, "n1", priority=1, terminating=made.wall + 30)


def test_a_cleared_nomination_releases_nothing() -> None:
    made = world()
    keeper(made)
    planned(made)
    carried_out(made)
    made.pod("urgent", 4, priority=9, nominated="n1")
    assert released(made) == []
    made.pod("urgent", 4, priority=9)
    made.now += 60
    assert released(made) == []
    assert len(made.verbs.reservations.all()) == 1


def bound(made: World) -> None:
    carried_out(made)
    made.gone("w0", "w1")
    made.pod("urgent", 4, "n1", priority=9)


def deleted(made: World) -> None:
    carried_out(made)
    made.gone("urgent")


def outbid(made: World) -> None:
    carried_out(made)
    made.gone("w0", "w1")
    made.pod("boss", 2, "n1", priority=10)


def unused(made: World) -> None:
    carried_out(made)
    made.gone("w0", "w1")
    assert released(made) == []
    made.now += 59
    assert released(made) == []
    made.now += 2


def slowly(made: World) -> None:
    """The latest victim counts: an hour of grace is waited for."""
    planned(made).grace = 3600.0
    carried_out(made)
    made.gone("w0")
    made.now += 3600
    assert released(made) == []
    made.gone("w1")
    assert released(made) == []
    made.now += 61


def thrown_away(made: World) -> None:
    made.now += 11


def node_lost(made: World) -> None:
    carried_out(made)
    made.drop("Node", {"metadata": {"name": "n1", "uid": "uid-n1"}})


def hangs(made: World) -> None:
    carried_out(made)
    made.now += 631


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        (bound, "bound"),
        (deleted, "deleted"),
        (outbid, "outbid"),
        (unused, "not-used"),
        (slowly, "not-used"),
        (thrown_away, "not-carried-out"),
        (node_lost, "node-lost"),
        (hangs, "victims-stay"),
    ],
)
def test_what_releases(what: Callable[[World], None], cause: str) -> None:
    made = world()
    keeper(made)
    plan = planned(made)
    plan.grace = 30.0
    assert released(made) == []
    what(made)
    assert released(made) == [cause]
    assert made.verbs.reservations.all() == []


def test_a_plan_that_a_higher_one_covers_stays_unless_another_takes_its_place() -> None:
    """The higher pod may land elsewhere: then what was freed is still the lower one's."""
    made = world()
    made.gone("w2", "w3")
    for i in range(2, 4):
        made.pod(f"k{i}", 2, "n1", priority=50)
    reservations = store(made)
    plan = planned(made)
    carried_out(made)
    boss = made.pod("boss", 4, priority=20)
    made.verbs.reservations.add(Reservation("uid-boss", "n1", plan.victims, plan.amounts, 20, made.now))
    urgent = made.pod("urgent", 4, priority=9)
    assert made.preempt(urgent, {"n1": ["w0", "w1"]}) == {}  # nobody else could go
    assert made.verbs.reservations.of("uid-urgent", made.now) is plan
    # Now there is another node where it can evict.
    made.node("n2", 8)
    made.pod("x", 8, "n2", priority=1)
    assert made.preempt(urgent, {"n1": ["w0", "w1"], "n2": ["x"]}) == {"n2": ["x"]}
    assert released(made) == ["replaced"]
    assert made.verbs.reservations.of("uid-urgent", made.now) is not plan
    assert boss["metadata"]["name"] == "boss"
    assert reservations.missing()


def own(made: World, name: str, victims: list[str], priority: int = 9, at: float = 0.0) -> Reservation:
    """A plan of our own for 4 GPUs of the node."""
    amounts = tuple(4 if resource == GPU else 0 for resource in made.cluster.resources)
    uids = tuple(f"uid-{victim}" for victim in victims)
    plan = Reservation(
        f"uid-{name}", "n1", uids, amounts, priority, made.now + at, pod=f"default/{name}", own=True, wait=60.0
    )
    made.verbs.reservations.add(plan)
    return plan


@pytest.mark.parametrize(
    ("victims", "priority", "ends"),
    [(["w0", "w1"], 9, "second"), (["w2", "w3"], 9, ""), (["w1", "w2"], 9, "second"), (["w0", "w1"], 10, "urgent")],
)
def test_of_two_plans_that_one_node_cannot_hold_the_later_one_ends(
    victims: list[str], priority: int, ends: str
) -> None:
    """Unless its pod has a higher priority; and none ends once its victims are evicted."""
    for touched in (False, True):
        made = world()
        made.pod("second", 4, priority=priority)
        own(made, "urgent", ["w0", "w1"])
        own(made, "second", victims, priority, at=1.0)
        for name in {*victims, "w0", "w1"} if touched else ():
            made.pod(name, 2, "n1", priority=1, terminating=made.wall + 30)
        assert released(made) == (["outbid"] if ends and not touched else [])
        left = {"urgent", "second"} - {ends if not touched else ""}
        assert {plan.uid for plan in made.verbs.reservations.all()} == {f"uid-{name}" for name in left}


@pytest.mark.parametrize("evicted", [False, True])
def test_a_plan_whose_free_gpus_another_pod_has_taken_ends_at_once(evicted: bool) -> None:
    """Another instance had not read it. Nothing is evicted in vain, and the next plan counts the other pod."""
    made = world()
    made.gone("w2", "w3")
    urgent = made.pod("urgent", 8, priority=9)
    amounts = tuple(8 if name == GPU else 0 for name in made.cluster.resources)
    made.verbs.reservations.add(
        Reservation("uid-urgent", "n1", ("uid-w0", "uid-w1"), amounts, 9, made.now, own=True, wait=60.0)
    )
    assert released(made) == []
    made.pod("low", 4, "n1", priority=1)
    if evicted:
        made.gone("w0", "w1")
    assert released(made) == ["outbid"]
    offer = ["low"] if evicted else ["low", "w0", "w1"]
    assert sorted(made.preempt(urgent, {"n1": offer})["n1"]) == offer


def test_a_pod_that_does_not_fit_where_its_victims_are_gone_is_answered_others() -> None:
    """More than a count of GPUs may decide, as here the plan's count."""
    made = world()
    urgent = made.pod("urgent", 4, priority=9)
    plan = own(made, "urgent", ["w0"])
    plan.amounts = tuple(amount // 2 for amount in plan.amounts)
    made.gone("w0")
    assert made.preempt(urgent, {"n1": ["w1"]}) == {}
    made.now += 6
    assert made.preempt(urgent, {"n1": ["w1"]}) == {"n1": ["w3"]}


def test_a_gpu_that_is_away_for_a_moment_ends_no_plan() -> None:
    made = world()
    made.pod("second", 4, priority=9)
    own(made, "urgent", ["w0", "w1"])
    own(made, "second", ["w2", "w3"], at=1.0)
    made.node("n1", 7, capacity=8)
    assert released(made) == []
    for name in ("w2", "w3"):
        made.pod(name, 2, "n1", priority=9)
    made.verbs.reservations.drop("uid-second")
    made.gone("w0", "w1")
    assert released(made) == []
    made.node("n1", 0, capacity=0)
    assert released(made) == []


def test_a_plan_in_place_of_an_older_one_counts_what_was_reserved_meanwhile() -> None:
    """A pod of a lower priority came in between: its end is needed, and what was freed for the other pod is not."""
    made = World(Settings.model_validate({"reservations": {"store": "memory"}}))
    made.node("n1", 8)
    for i in range(4):
        made.pod(f"w{i}", 2, "n1", priority=1, held=(2 * i, 2 * i + 1))
    urgent = made.pod("urgent", 4, priority=9)
    made.pod("other", 2, priority=9)
    plan = planned(made)
    plan.amounts = tuple(amount // 2 for amount in plan.amounts)  # else it ends at once
    amounts = tuple(2 if name == GPU else 0 for name in made.cluster.resources)
    made.verbs.reservations.add(Reservation("uid-other", "n1", ("uid-w2",), amounts, 9, made.now + 1))
    made.gone("w0", "w1", "w2")
    made.pod("late", 4, "n1", priority=5, held=(0, 1, 2, 3))
    assert released(made) == []
    made.now += 6
    victims = made.preempt(urgent, {"n1": ["late", "w3"]})
    assert released(made) == ["replaced"]
    made.gone(*(uid.removeprefix("uid-") for uid in victims["n1"]))
    assert made.filter(urgent)["NodeNames"] == ["n1"]


def test_two_pods_whose_victims_were_the_same_do_not_wait_for_each_other() -> None:
    """However it came to that: the older plan is fulfilled, and then the other one is over."""
    made = world()
    second = made.pod("second", 4, priority=9)
    own(made, "second", ["w0", "w1"], at=1.0)
    own(made, "urgent", ["w0", "w1"])
    carried_out(made)
    made.gone("w0", "w1")
    assert made.filter(second)["Error"]
    assert made.filter(made.pod("urgent", 4, priority=9))["NodeNames"] == ["n1"]
    made.pod("urgent", 4, "n1", priority=9)
    assert sorted(released(made)) == ["bound", "outbid"]


def test_a_pod_does_not_wait_for_the_victims_of_a_later_plan() -> None:
    made = world()
    own(made, "urgent", ["w0", "w1"])
    made.pod("second", 4, priority=9)
    own(made, "second", ["w2", "w3"], at=1.0)
    carried_out(made)
    made.gone("w0", "w1")
    assert made.filter(made.pod("urgent", 4, priority=9))["NodeNames"] == ["n1"]


def test_a_node_whose_victims_still_terminate_is_evictable_for_its_preemptor() -> None:
    made = world()
    planned(made)
    carried_out(made)
    pod = made.pod("urgent", 4, priority=9, nominated="n1")
    answer = made.filter(pod)
    assert list(answer["FailedNodes"]) == ["n1"]  # never unresolvable: it would preempt elsewhere
    pod = made.pod("urgent", 4, priority=9)  # the nomination is cleared
    made.filter(pod)
    assert made.decision()["nodes"][0]["class"] == "evictable"


# -- the client --------------------------------------------------------------------------------------------------------


async def test_a_change_writes_its_keys_alone_and_loses_no_update() -> None:
    objects = Objects()
    async with connected(objects) as server:
        one, other = (ConfigMap(server, "kube-system", "gpu-extender-reservations") for _ in range(2))
        assert await one.read() == StoredTexts({}, "")
        first = await one.change({"a": "1", "gone": None}, "")  # it does not exist yet
        assert objects.stored[PATH]["data"] == {"a": "1"}
        second = await other.change({"b": "2"}, first)
        with pytest.raises(VersionConflict):
            await one.change({"a": None}, first)
        third = await one.change({"a": None, "c": "3"}, second)
        assert await one.read() == StoredTexts({"b": "2", "c": "3"}, third)
        with pytest.raises(VersionConflict):
            await one.change({"d": "4"}, "")  # it exists
        del objects.stored[PATH]
        with pytest.raises(VersionConflict):
            await one.change({"d": "4"}, third)
    [patch, *_] = objects.patched
    assert patch == {"metadata": {"resourceVersion": "2", "managedFields": [{}]}, "data": {"b": "2"}}


async def test_requests_say_what_they_are() -> None:
    kinds: list[str] = []

    def note(request: Request) -> int:
        kinds.append(request.headers.get("content-type", ""))
        return 0

    async with connected(Objects(stored={"/x": {"metadata": {"resourceVersion": "1"}}}, fail=note)) as server:
        await server.patch("/x", b'{"a":1}')
        await server.put("/x", b'{"metadata":{"resourceVersion":"2"}}')
    assert kinds == ["application/merge-patch+json", "application/json"]


async def test_after_a_write_that_failed_it_tries_to_write_until_that_succeeds() -> None:
    """The right to read the map is not the right to write it."""
    objects, made = Objects(), world()
    async with served(objects, made) as reservations:
        assert reservations.is_writable
        objects.fail = lambda request: 0 if request.method == "GET" else 403
        assert await ask(made, OFFER) == {}
        asked = len(objects.said)
        await eventually(lambda: [one[0] for one in objects.said[asked:]].count("GET") >= 2)
        assert not reservations.is_writable
        assert made.metric("reservations_kept") == 0
        objects.fail = lambda request: 0
        await eventually(lambda: reservations.is_writable)
        assert made.metric("reservations_kept") == 1
        assert entries(objects) == {}
