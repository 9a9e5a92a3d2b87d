"""The reflector against a server that misbehaves. Time is simulated: a sleep moves the clock, and is written down."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from extender.kube.lists import DEVICE_CLASSES, DRA, GROUPS, NODES, PODS, WATCHED_KINDS, WatchedKind
from extender.kube.reflector import Reflector
from extender.kube.watching import WatchPace, WatchTiming
from extender.objects.records import Event, GroupRecord, PodRecord
from extender.times import Backoff
from tests.kube.api_server import (
    Answer,
    Request,
    Script,
    Writer,
    client_of,
    failed,
    hung_up,
    line,
    listed,
    watched,
    whole,
)
from tests.waiting import eventually, run_bounded


def pod(name: str, version: int = 1, uid: str = "", **spec: Any) -> dict[str, Any]:
    """A pod of namespace "ns"; its uid is its name unless given."""
    meta = {"name": name, "namespace": "ns", "uid": uid or name, "resourceVersion": str(version)}
    return {"metadata": meta, "spec": spec}


class Seen:
    """A sink that remembers, and a clock that only sleeps move."""

    def __init__(self, naps: int) -> None:
        self.batches: list[list[Event]] = []
        self.syncs = 0
        self.absences: list[str] = []
        self.returns = 0
        self.delays: list[float] = []
        self.now = 0.0
        self._naps = naps
        self.done = asyncio.Event()

    def apply(self, batch: Sequence[Event]) -> None:
        assert batch, "an empty batch"
        self.batches.append(list(batch))

    def synced(self, kind: str) -> None:
        self.syncs += 1

    def absent(self, kind: str) -> None:
        self.absences.append(kind)

    def returned(self) -> None:
        self.returns += 1

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        """The run ends when the reflector wants to sleep for the last time."""
        self.delays.append(seconds)
        self.now += seconds
        if len(self.delays) >= self._naps:
            self.done.set()
            await asyncio.Event().wait()

    @property
    def changes(self) -> list[tuple[str, str]]:
        """(change, name/version) in order."""
        return [(e.change, f"{e.record.name}/{e.record.resource_version}") for batch in self.batches for e in batch]


def reflect(
    *answers: Answer,
    naps: int = 1,
    source: WatchedKind = PODS,
    pace: WatchPace | None = None,
    seed: int = 1,
    proof: Answer | None = None,
) -> tuple[Seen, Script, Reflector]:
    """Runs a reflector until it wants to sleep for the ``naps``-th time."""
    script = Script(answers, proof=proof)

    async def headers() -> Mapping[str, str]:
        return {"Authorization": "Bearer t"}

    async def run() -> tuple[Seen, Script, Reflector]:
        seen = Seen(naps)
        async with client_of(script, headers=headers) as server:
            reflector = Reflector(
                server, source, seen, frozenset({"nvidia.com/gpu"}), pace,
                WatchTiming(seen.clock, seen.sleep, random.Random(seed)),
            )  # fmt: skip
            task = asyncio.create_task(reflector.run())
            waiting = asyncio.create_task(seen.done.wait())
            await asyncio.wait({task, waiting}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
            ended = task.done()
            for one in (task, waiting):
                one.cancel()
            await asyncio.gather(task, waiting, return_exceptions=True)
            if ended:
                task.result()
            assert seen.done.is_set(), f"no sleep: {script.requests}"
            return seen, script, reflector

    return run_bounded(run())


def lists(script: Script) -> int:
    """How often a list was begun."""
    return sum(not one.watches and "continue" not in one.params for one in script.requests)


def watches(script: Script) -> list[str]:
    """The versions that were watched from."""
    return [one.params["resourceVersion"] for one in script.requests if one.watches]


def test_lists_in_pages_then_watches_from_the_list_on() -> None:
    seen, script, reflector = reflect(
        listed(pod("a"), pod("b"), token="more"),
        listed(pod("c"), version="10"),
        watched(
            line("ADDED", pod("d", 11)),
            line("MODIFIED", pod("a", 12, nodeName="n")),
            line("DELETED", pod("b", 13)),
            line("BOOKMARK", {"metadata": {"resourceVersion": "20"}}),
        ),
    )
    assert seen.changes == [
        ("set", "a/1"), ("set", "b/1"), ("set", "c/1"), ("set", "d/11"), ("set", "a/12"), ("delete", "b/13"),
    ]  # fmt: skip
    assert seen.syncs == 1
    first, second, watch = script.requests
    assert first.params == {"limit": "250", "fieldSelector": PODS.field_selector}
    assert second.params == {**first.params, "continue": "more"}
    assert watch.params["resourceVersion"] == "10"
    assert watch.params["allowWatchBookmarks"] == "true"
    assert 300 <= int(watch.params["timeoutSeconds"]) < 600
    assert watch.params["fieldSelector"] == PODS.field_selector
    assert first.headers["authorization"] == "Bearer t"
    counters = reflector.state.counters
    assert (lists(script), counters.pages, counters.watches, len(seen.changes)) == (1, 2, 1, 6)
    assert (counters.reasons, counters.defects) == ({}, 0)


def test_a_watch_that_ends_goes_on_from_its_last_version() -> None:
    """Also from a bookmark's; without another list."""
    _, script, _ = reflect(
        listed(version="10"),
        watched(line("ADDED", pod("a", 11))),
        watched(line("BOOKMARK", {"metadata": {"resourceVersion": "25"}})),
        watched(),
        naps=3,
    )
    assert watches(script) == ["10", "11", "25"]
    assert len(script.requests) == 4


def test_a_server_that_closes_every_watch_meets_growing_delays() -> None:
    """The whole point of a backoff: 8 tries take minutes, not milliseconds."""
    seen, script, reflector = reflect(listed(), watched(), naps=8)
    assert len(script.requests) == 1 + 8
    for failures, delay in enumerate(seen.delays):
        top = min(0.5 * 2**failures, 60.0)  # 0.5, 1, 2, 4, 8, 16, 32, 60
        assert top / 2 <= delay <= top
    assert sum(seen.delays) > 60
    assert reflector.state.counters.watches == 8


@pytest.mark.parametrize(
    ("answer", "longest"),
    [
        # no answer, or one of a server that may be back at any moment: the next try must come soon after that
        (failed(429), 2.0),
        (failed(500), 2.0),
        (failed(503), 2.0),
        (failed(504), 2.0),
        (hung_up(), 2.0),
        (hung_up(b"HTTP/1.1 200 OK\r\nContent-Le"), 2.0),
        # useless answers: the same one is likely to come again
        (failed(401), 60.0),
        (failed(403), 60.0),
        (whole(200, b"{"), 60.0),
    ],
)
def test_lists_that_fail_meet_growing_delays(answer: Answer, longest: float) -> None:
    seen, script, reflector = reflect(answer, naps=6)
    # The HTTP client asks once more when a connection breaks before the answer, as keep-alive needs it.
    assert len(script.requests) in (6, 12)
    for failures, delay in enumerate(seen.delays):
        top = min(0.5 * 2**failures, longest)
        assert top / 2 <= delay <= top
    assert len(set(seen.delays)) == 6  # jittered
    assert not reflector.state.synced
    assert reflector.missing().startswith("Pod: ")
    assert seen.syncs == 0
    assert seen.changes == []


def test_two_instances_do_not_come_back_together() -> None:
    assert reflect(failed(500), naps=3, seed=1)[0].delays != reflect(failed(500), naps=3, seed=2)[0].delays
    assert reflect(failed(500), naps=3, seed=1)[0].delays == reflect(failed(500), naps=3, seed=1)[0].delays


def test_a_busy_server_says_how_long_to_wait() -> None:
    seen, _, _ = reflect(failed(429, headers={"Retry-After": "17"}))
    assert seen.delays == [17.0]


@pytest.mark.parametrize(("pace", "delay"), [(WatchPace(), 30.0), (WatchPace.prompt(10.0), 5.0)])
def test_a_busy_server_is_asked_again_before_the_state_is_too_old(pace: WatchPace, delay: float) -> None:
    seen, _, _ = reflect(failed(503, headers={"Retry-After": "3600"}), pace=pace)
    assert seen.delays == [delay]


def test_what_happened_during_an_outage_is_known_seconds_after_it() -> None:
    """40 s without an answer, then a useless one: the delays of the outage do not count for what comes after it."""
    seen, _, _ = reflect(*[failed(503)] * 30, failed(403), listed(), watched(), naps=32)
    assert 20 < sum(seen.delays[:30]) < 60
    assert max(seen.delays[:30]) <= 2.0
    assert seen.delays[30] <= 0.5  # a server that starts may not know yet what is allowed
    assert seen.syncs == 1


async def test_a_watch_that_lived_ends_the_row_of_failures() -> None:
    """Two failures, then a watch of 6 s, which is resumed at once: no delay between the last two watches."""

    def lived(answer: Answer) -> Answer:
        async def wait(request: Request, writer: Writer) -> None:
            clock.now += 6.0
            await answer(request, writer)

        return wait

    clock = Seen(3)
    script = Script([failed(500), failed(500), listed(), lived(watched(end="close")), watched()])
    async with client_of(script) as server:
        reflector = Reflector(
            server, PODS, clock, frozenset(), None, WatchTiming(clock.clock, clock.sleep, random.Random(1))
        )
        task = asyncio.create_task(reflector.run())
        await asyncio.wait_for(clock.done.wait(), 20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(script.requests) == 5
    assert len(clock.delays) == 3  # after each 500, and after the last watch; none between the two watches
    assert clock.delays[2] <= 0.5  # the row began anew


@pytest.mark.parametrize(
    "gone",
    [failed(410, "too old"), watched(line("ERROR", {"kind": "Status", "code": 410, "message": "too old"}))],
    ids=["HTTP", "ERROR event"],
)
def test_an_expired_version_leads_to_a_new_list_that_tells_differences_only(gone: Answer) -> None:
    seen, script, reflector = reflect(
        listed(pod("same"), pod("changed"), pod("vanished"), pod("reborn"), version="10"),
        gone,
        listed(pod("same"), pod("changed", 15), pod("reborn", 16, uid="other"), pod("new", 17), version="30"),
        watched(),
        naps=1,  # none before the list: nothing is wrong
    )
    assert seen.changes[4:] == [
        ("set", "changed/15"),
        ("delete", "reborn/1"),  # the name belongs to another pod now: the old one goes first
        ("set", "reborn/16"),
        ("set", "new/17"),
        ("delete", "vanished/1"),
    ]
    assert watches(script) == ["10", "30"]
    assert seen.syncs == 2
    assert reflector.state.synced


def test_a_server_that_is_behind_the_version_is_listed_anew_and_each_object_is_told() -> None:
    """Its etcd was restored from a backup: it would accept a watch from the version, and send nothing for long."""
    behind = failed(504, "Timeout: Too large resource version: 14, current: 12", {"Retry-After": "1"})
    seen, script, _ = reflect(
        listed(pod("same"), pod("other", 11), pod("later", 14), version="14"),
        watched(end="abort"),
        listed(pod("same"), pod("other", 11, nodeName="n"), version="12"),
        watched(),
        naps=3,
        proof=behind,
    )
    assert seen.changes[3:] == [("set", "same/1"), ("set", "other/11"), ("delete", "later/14")]
    assert watches(script) == ["14", "12"]
    [asked] = script.proofs
    assert asked.params == {"limit": "1", "resourceVersion": "14", "resourceVersionMatch": "NotOlderThan"}
    assert seen.delays[1] == 1.0


def test_a_server_is_asked_for_the_version_once_after_a_loss_alone() -> None:
    _, script, _ = reflect(listed(), watched(), failed(503), watched(line("ADDED", pod("a", 11))), naps=3)
    assert [one.params["resourceVersion"] for one in script.proofs] == ["10", "10"]
    _, script, _ = reflect(listed(), failed(410), listed(), watched())
    assert script.proofs == []


def test_a_continue_token_that_expired_begins_a_new_list_and_deletes_nothing() -> None:
    seen, script, _ = reflect(
        listed(pod("a"), pod("b"), version="10"),
        failed(410),  # the watch
        listed(pod("a"), token="old", version="20"),
        failed(410, "the token expired"),
        listed(pod("a"), version="30"),
        watched(),
        naps=3,
    )
    assert seen.changes == [("set", "a/1"), ("set", "b/1"), ("delete", "b/1")]
    assert [one.params.get("continue") for one in script.requests if not one.watches] == [None, None, "old", None]


def test_a_broken_line_is_read_again_not_guessed() -> None:
    """The connection breaks inside a line: what was whole counts, and the watch goes on behind it."""
    whole_line, half = line("ADDED", pod("a", 11)), line("ADDED", pod("b", 12))[:-20]
    seen, script, reflector = reflect(
        listed(version="10"),
        watched(whole_line + half, end="abort"),
        watched(line("ADDED", pod("b", 12))),
        naps=2,
    )
    assert seen.changes == [("set", "a/11"), ("set", "b/12")]
    assert watches(script) == ["10", "11"]
    assert lists(script) == 1
    assert reflector.state.lost_at is not None


def test_lines_may_come_in_any_pieces() -> None:
    stream = b"".join(line("ADDED", pod(f"p{n}", 11 + n)) for n in range(20))
    seen, _, _ = reflect(listed(), watched(*[stream[at : at + 37] for at in range(0, len(stream), 37)]))
    assert seen.changes == [("set", f"p{n}/{11 + n}") for n in range(20)]


@pytest.mark.parametrize(
    "sent",
    [
        b"garbage\n",
        b'{"type":"ADDED"}\n',
        b'{"type":"SHRUNK","object":{"metadata":{"name":"a"}}}\n',
        b'{"type":"ADDED","object":7}\n',
        b'{"type":"BOOKMARK","object":[]}\n',
        line("ERROR", {"code": 500, "message": "etcd"}),
    ],
)
def test_a_line_that_makes_no_sense_leads_to_a_new_list(sent: bytes) -> None:
    seen, script, reflector = reflect(
        listed(), watched(line("ADDED", pod("a", 11)) + sent), listed(), watched(), naps=2
    )
    assert [one.watches for one in script.requests] == [False, True, False, True]
    assert reflector.state.counters.defects == 0
    assert seen.changes == [("set", "a/11"), ("delete", "a/11")]


def test_a_watch_that_is_refused_for_a_while_is_not_listed_anew() -> None:
    _, script, _ = reflect(listed(version="10"), failed(500), failed(503), failed(429), watched(), naps=4)
    assert watches(script) == ["10"] * 4
    assert lists(script) == 1


# ---- how current the state is: the server's word, turns, losses


class Live(Seen):
    """A sink, and a clock that runs by itself."""

    def __init__(self) -> None:
        super().__init__(1_000_000)
        self.ahead: Callable[[], float] = lambda: 0.0

    def clock(self) -> float:
        return time.monotonic() + self.ahead()


@contextlib.asynccontextmanager
async def living(
    *answers: Answer, pace: WatchPace, source: WatchedKind = PODS
) -> AsyncIterator[tuple[Reflector, Script, Live]]:
    """A reflector in real time, until the end of the block."""
    script, seen = Script(answers), Live()

    async with client_of(script) as server:
        reflector = Reflector(
            server, source, seen, frozenset({"nvidia.com/gpu"}), pace, WatchTiming(seen.clock, chance=random.Random(1))
        )
        task = asyncio.create_task(reflector.run())
        try:
            yield reflector, script, seen
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def turned(*pieces: bytes) -> Answer:
    """A watch that sends these, and is ended on the time that it was asked for."""

    async def answer(request: Request, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()
        await asyncio.sleep(float(request.params["timeoutSeconds"]))
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    return answer


QUICK = replace(WatchPace.prompt(5.0), inactivity=2.5)  # turns of 1 s: so much may a busy machine add to one
SLOWLY = replace(QUICK, unanswered=Backoff(first=0.1, most=0.1))


def test_a_prompt_pace_says_something_before_the_state_is_too_old() -> None:
    for staleness in (5.0, 7.5, 10.0, 60.0):
        pace = WatchPace.prompt(staleness)
        assert 1.0 <= pace.watch_for < 0.8 * pace.inactivity < pace.inactivity < staleness / 1.9
    assert [source.name for source in WATCHED_KINDS if source.prompt] == ["Pod", "Node", "PodDisruptionBudget"]


def test_a_turn_that_ends_on_time_is_resumed_at_once_and_is_no_loss() -> None:
    """Three turns: one connection, no list, no error, no dark time, and each end is a word of the server."""
    losses: set[float | None] = set()

    async def run() -> None:
        async with living(listed(version="10"), turned(line("ADDED", pod("a", 11))), turned(), pace=QUICK) as (
            reflector,
            script,
            _,
        ):
            words: dict[int, float] = {}  # after each turn: when the server was heard last

            def turned_thrice() -> bool:
                losses.add(reflector.state.lost_at)
                words.setdefault(reflector.state.counters.turns, reflector.state.last_event or 0.0)
                return reflector.state.counters.turns >= 3

            await eventually(turned_thrice)
            counters = reflector.state.counters
            assert (lists(script), counters.watches - counters.turns) in ((1, 0), (1, 1))
            assert watches(script)[:3] == ["10", "11", "11"]
            assert [request.params["timeoutSeconds"] for request in script.requests if request.watches][:3] == ["1"] * 3
            assert sorted(words.values()) == list(words.values())
            assert len(set(words.values())) == len(words)  # each turn says something

    run_bounded(run())
    assert losses == {None}


async def test_a_turn_whose_acceptance_is_heard_late_is_no_loss() -> None:
    """The server counts the time from the request; our own loop may hear of the acceptance 0.3 s later."""

    async def late(request: Request, writer: Writer) -> None:
        await asyncio.sleep(0.3)
        await turned()(replace(request, params={"timeoutSeconds": "0.7"}), writer)

    async with living(listed(version="10"), late, pace=QUICK) as (reflector, _, _):
        await eventually(lambda: reflector.state.counters.watches == 3)
        assert (reflector.state.counters.turns, reflector.state.lost_at) == (2, None)


@pytest.mark.parametrize("how", ["silence", "abort", "close"])
async def test_a_loss_is_measured_from_the_last_word_or_from_the_break(how: str) -> None:
    """And it ends only with the end of a short watch, by which the server has told what happened meanwhile."""
    answers = (
        listed(version="10"),
        watched(line("ADDED", pod("a", 11)), end=how),
        failed(503),
        turned(line("ADDED", pod("b", 12))),
    )
    async with living(*answers, pace=SLOWLY) as (reflector, script, seen):
        state = reflector.state
        await eventually(lambda: state.lost_at is not None)
        assert state.lost_at is not None
        assert state.last_event is not None
        lost_at, silent = state.lost_at, seen.clock() - state.last_event
        if how == "silence":
            assert lost_at == state.last_event
            assert silent >= QUICK.inactivity - 0.01  # the loop's clock stands still for a turn
        else:
            assert 0.0 <= lost_at - state.last_event < QUICK.inactivity / 2
        assert not state.watching
        await eventually(lambda: state.watching)
        assert state.lost_at == lost_at  # accepting a watch shows nothing yet
        await eventually(lambda: seen.changes[-1:] == [("set", "b/12")])
        assert state.lost_at == lost_at
        await eventually(lambda: state.lost_at is None)
        assert script.requests[-1].params["timeoutSeconds"] == "1"
        assert lists(script) == 1
        assert seen.returns == (how == "silence")


@pytest.mark.parametrize(("takes", "current"), [(0.0, True), (2.5, False)])
async def test_a_list_after_a_loss_shows_at_once_what_happened_if_it_took_a_moment(takes: float, current: bool) -> None:
    """An API server that was started anew has no old versions. A list of a minute is a minute old at its end."""
    later = 0.0

    async def slowly(request: Request, writer: Writer) -> None:
        nonlocal later
        later += takes
        await listed(pod("a"), version="30")(request, writer)

    answers = (listed(version="10"), watched(end="abort"), failed(410), slowly, watched(end="silence"))
    async with living(*answers, pace=SLOWLY) as (reflector, script, seen):
        seen.ahead = lambda: later
        await eventually(lambda: reflector.state.lost_at is not None)
        await eventually(lambda: len(watches(script)) == 3)
        await eventually(lambda: reflector.state.watching)
        assert (reflector.state.lost_at is None) == current
        assert reflector.state.last_event is not None
        assert seen.clock() - reflector.state.last_event >= takes


async def test_a_server_that_accepts_watches_and_never_says_anything_stays_lost() -> None:
    async with living(listed(version="10"), watched(end="silence"), pace=SLOWLY) as (reflector, script, seen):
        await eventually(lambda: len(watches(script)) == 3)
        assert reflector.state.last_event is not None
        assert reflector.state.lost_at is not None
        assert seen.clock() - reflector.state.lost_at > 2 * QUICK.inactivity


async def test_a_watch_that_is_renewed_goes_on_from_its_version_on_a_new_connection() -> None:
    """A watch that may stay silent for minutes does not wait for that on a connection that died in the outage."""
    patient = WatchPace(unanswered=Backoff(first=0.1, most=0.1))
    async with living(listed(version="10"), watched(end="silence"), pace=patient) as (reflector, script, _):
        await eventually(lambda: reflector.state.watching)
        reflector.renew()
        await eventually(lambda: len(watches(script)) == 2)
        await eventually(lambda: reflector.state.watching)
        assert watches(script) == ["10", "10"]
        assert lists(script) == 1


async def test_the_next_try_can_be_hurried_but_not_against_the_servers_wish() -> None:
    pace = replace(QUICK, unanswered=Backoff(first=60.0, most=60.0), longest_retry_after=60.0)
    answers = (failed(503), listed(version="10"), failed(429, headers={"Retry-After": "60"}), watched())
    async with living(*answers, pace=pace) as (reflector, script, _):
        await eventually(lambda: reflector.state.lost_at is not None)
        await asyncio.sleep(0.05)  # in this time there must be no request
        assert len(script.requests) == 1
        reflector.hurry()
        await eventually(lambda: len(script.requests) == 3)
        await eventually(lambda: reflector.state.lost_at is not None)
        reflector.hurry()
        await asyncio.sleep(0.1)  # in this time there must be no request
        assert len(script.requests) == 3


def test_silence_is_a_dead_connection() -> None:
    seen, script, reflector = reflect(
        listed(),
        watched(line("ADDED", pod("a", 11)), end="silence"),
        watched(),
        naps=2,
        pace=WatchPace(inactivity=0.1),
    )
    assert watches(script) == ["10", "11"]
    assert lists(script) == 1
    assert reflector.state.lost_at is not None
    assert seen.syncs == 1


def test_a_huge_page_is_given_in_slices() -> None:
    """2,000 pods, at most 100 a slice: other tasks have had their turn in between."""
    pace = WatchPace(slice_events=100)
    seen, _, _ = reflect(listed(*[pod(f"p{n}") for n in range(2000)]), watched(), pace=pace)
    assert [len(batch) for batch in seen.batches] == [100] * 20


def test_a_page_of_large_objects_is_asked_for_again_with_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """250 pods of 1.4 MB are 350 MB: no page is held that is larger than it may be, but for a single object."""
    monkeypatch.setattr("extender.kube.lists.LARGEST_PAGE", 5_000)
    sizes = [2_000] * 10 + [9_000] + [10] * 300
    items = [pod(f"p{i:03}", padding="x" * size) for i, size in enumerate(sizes)]
    limits: list[int] = []

    async def paged(request: Request, writer: Writer) -> None:
        if request.watches:
            await watched()(request, writer)
            return
        start, limit = int(request.params.get("continue", "0")), int(request.params["limit"])
        limits.append(limit)
        end = start + limit
        await listed(*items[start:end], token=str(end) if end < len(items) else "")(request, writer)

    seen, _, _ = reflect(paged)
    assert seen.changes == [("set", f"p{i:03}/1") for i in range(len(items))]
    assert seen.syncs == 1
    assert limits[:3] == [250, 31, 3]
    assert 1 in limits  # the largest comes alone
    assert limits[-1] >= 16  # small objects come in larger pages again


def test_forbidden_is_said_to_be_what_is_missing() -> None:
    _, _, reflector = reflect(failed(403, 'pods is forbidden: User "x" cannot list'), naps=2)
    assert "cannot list" in reflector.state.forbidden
    assert reflector.missing() == 'Pod: forbidden: 403: pods is forbidden: User "x" cannot list'
    assert reflector.state.last_event is None


def test_an_api_that_is_not_served_has_no_objects_and_is_asked_for_again() -> None:
    """Soon at first, as the server may still be starting; later every five minutes."""
    seen, script, reflector = reflect(failed(404), source=DEVICE_CLASSES, naps=10)
    assert (seen.syncs, seen.absences, len(script.requests)) == (0, ["DeviceClass"], 10)
    assert reflector.state.synced
    assert reflector.state.absent
    assert reflector.state.lost_at is None
    assert reflector.missing() == ""
    for times, delay in enumerate(seen.delays):
        usual = min(5.0 * 2**times, 300.0)
        assert usual / 2 <= delay <= usual * 1.5
    assert reflector.state.problem == ""


@pytest.mark.parametrize("status", [403, 404])
@pytest.mark.parametrize("source", [DEVICE_CLASSES, *DRA], ids=lambda source: source.kind)
def test_dra_that_is_not_served_or_not_allowed_is_not_watched(source: WatchedKind, status: int) -> None:
    seen, script, reflector = reflect(failed(status), source=source, naps=4)
    assert (seen.absences, reflector.missing(), reflector.state.absent) == ([source.kind], "", True)
    assert not [request for request in script.requests if "watch" in str(request)]


@pytest.mark.parametrize("status", [403, 404])
def test_an_api_that_was_served_is_absent_only_if_that_lasts(status: int) -> None:
    """A server that starts may not know its extensions, or what is allowed, for some seconds: nothing is forgotten."""
    volcano = next(source for source in GROUPS if source.group == ("scheduling.volcano.sh", "PodGroup"))
    made = {"metadata": {"name": "g", "uid": "u", "resourceVersion": "1"}, "spec": {"minMember": 3}}
    there = listed(made, kind="PodGroup")
    seen, _, reflector = reflect(there, failed(status), failed(status), there, watched(), source=volcano, naps=3)
    assert seen.changes == [("set", "g/1")]
    assert seen.syncs == 2
    assert not reflector.state.absent
    seen, _, reflector = reflect(there, failed(status), source=volcano, naps=8)
    assert seen.changes == [("set", "g/1"), ("delete", "g/1")]
    assert reflector.state.absent
    assert sum(seen.delays[:6]) < 30.0 <= sum(seen.delays[:7])  # of the eight naps the last is that of an absent API
    assert seen.delays[7] <= 7.5


def test_an_api_that_is_gone_has_no_invalid_objects() -> None:
    """They are gone with it, and /readyz names them no longer."""
    volcano = next(source for source in GROUPS if source.group == ("scheduling.volcano.sh", "PodGroup"))
    made = {"metadata": {"name": "g", "namespace": "ns", "uid": "u", "resourceVersion": "1"}, "spec": "x"}
    for naps, named in ((1, ["ns/g"]), (8, [])):
        _, _, reflector = reflect(listed(made, kind="PodGroup"), failed(404), source=volcano, naps=naps)
        assert list(reflector.state.rejected) == named


def test_what_says_how_many_must_run_is_read_where_it_is_installed_and_allowed() -> None:
    volcano = next(source for source in GROUPS if source.group == ("scheduling.volcano.sh", "PodGroup"))
    made = {"metadata": {"name": "g", "uid": "u", "resourceVersion": "1"}, "spec": {"minMember": 3}}
    seen, _, reflector = reflect(
        failed(403, "forbidden"), listed(made, kind="PodGroup"), failed(404), source=volcano, naps=9
    )
    assert reflector.missing() == ""
    assert seen.changes == [("set", "g/1"), ("delete", "g/1")]
    record = seen.batches[0][0].record
    assert isinstance(record, GroupRecord)
    assert (record.api, record.kind, record.minimum) == ("scheduling.volcano.sh", "PodGroup", 3)
    assert reflector.watched.name == "PodGroup.scheduling.volcano.sh"


def test_a_kind_that_must_be_served_is_missing() -> None:
    _, _, reflector = reflect(failed(404, "not found"), source=NODES)
    assert reflector.missing() == "Node: 404: not found"


def test_an_object_that_cannot_be_read_stops_nothing_and_is_named() -> None:
    """The version of it before stays, since it may hold GPUs; a readable version or its end clears the matter."""
    bad = {**pod("bad", 11), "spec": {"containers": [{"resources": {"requests": {"cpu": "-1"}}}]}}
    seen, script, reflector = reflect(
        listed(pod("bad"), pod("good")),
        watched(line("MODIFIED", bad), line("ADDED", pod("next", 12))),
        failed(410),
        listed(bad, version="20"),
        watched(),
        naps=3,
    )
    assert seen.changes == [("set", "bad/1"), ("set", "good/1"), ("set", "next/12"), ("delete", "good/1"),
                            ("delete", "next/12")]  # fmt: skip
    assert watches(script) == ["10", "12", "20"]
    assert list(reflector.state.rejected) == ["ns/bad"]
    assert "negative" in reflector.state.rejected["ns/bad"]
    assert reflector.state.counters.reasons.total() == 2
    cured = reflect(listed(bad), watched(line("MODIFIED", pod("bad", 12))))[2]
    assert cured.state.rejected == {}


def test_a_deletion_of_what_was_never_told_is_not_told() -> None:
    """And one of a known pod brings its last state."""
    last = {**pod("a", 12, nodeName="n"), "status": {"phase": "Succeeded"}}
    seen, _, _ = reflect(listed(pod("a")), watched(line("DELETED", pod("stranger", 11)), line("DELETED", last)))
    assert seen.changes == [("set", "a/1"), ("delete", "a/12")]
    record = seen.batches[-1][-1].record
    assert isinstance(record, PodRecord)
    assert (record.phase, record.node) == ("Succeeded", "n")


async def test_state_while_the_watch_is_open() -> None:
    """Watching and without a problem while it lives; the age of the last word is known."""
    states: list[tuple[bool, bool, str]] = []

    class Noting(Seen):
        def apply(self, batch: Sequence[Event]) -> None:
            super().apply(batch)
            states.append((holder[0].state.synced, holder[0].state.watching, holder[0].state.problem))

    holder: list[Reflector] = []
    script = Script([listed(pod("a")), watched(line("ADDED", pod("b", 11)))])
    seen = Noting(1)
    async with client_of(script) as server:
        holder.append(
            Reflector(server, PODS, seen, frozenset(), None, WatchTiming(seen.clock, seen.sleep, random.Random(1)))
        )
        task = asyncio.create_task(holder[0].run())
        await asyncio.wait_for(seen.done.wait(), 20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert states == [(False, False, "not listed yet"), (True, True, "")]
    assert holder[0].state.last_event == 0.0
    assert holder[0].state.problem == "the watch ended"


def test_backoff_never_passes_its_end() -> None:
    backoff = Backoff(first=1.0, most=8.0)
    delays = [backoff.delay(failures, random.Random(failures)) for failures in range(1, 2000)]
    assert max(delays) <= 8.0
    assert min(delays[3:]) >= 4.0
