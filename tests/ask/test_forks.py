"""Questions in forks: what they see, what they raise, how many are made, and what they leave behind."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import mmap
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from extender.ask import forks
from extender.ask.forks import ClientLeft, Forks
from extender.errors import BadRequest, Busy, NotAnswered, NotFound
from tests.waiting import run_bounded


def run(steps: Any) -> Any:
    async def within() -> Any:
        async with asyncio.timeout(60):
            return await steps

    return run_bounded(within())


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def over(asked: Forks) -> None:
    """Until no process of it is left."""
    asked.close()
    while asked._ended:
        await asyncio.sleep(0.01)
        asked.close()


def one(question: Any, rest: float = 0.0) -> Forks:
    return Forks({"q": question}, rest=rest, saved=0.0, nice=0)


def pid() -> bytes:
    return b"%d" % os.getppid()  # of the keeper


def sleeping() -> bytes:
    time.sleep(60)
    return b"late"


def endless() -> bytes:
    while True:
        pass


async def test_a_question_changes_nothing_here() -> None:
    """The fork has the state as it was, and its changes end with it."""
    state = {"drained": 0}

    def question(node: str) -> bytes:
        state["drained"] += 1
        return f"drained {node} {state['drained']}".encode()

    asked, files = one(question, rest=1e9), open_files()
    assert await asked.whole("q", "n1") == b"drained n1 1"
    assert await asked.whole("q", "n2") == b"drained n2 1"
    await over(asked)
    assert state == {"drained": 0}
    assert open_files() == files


async def test_answers_leave_the_processor_to_the_server() -> None:
    asked = Forks({"q": lambda: b"%d" % os.nice(0)})
    assert int(await asked.whole("q")) == min(19, os.nice(0) + forks.NICE)
    await over(asked)


async def test_errors_come_as_they_were_raised() -> None:
    def question(which: str) -> bytes:
        if which == "bad":
            raise BadRequest("expected a list", path="add", code="finer")
        raise {"no pod": NotFound("no such pod", path="default/a"), "defect": KeyError("defect of ours")}[which]

    asked = one(question)
    with pytest.raises(NotFound, match="no such pod") as caught:
        await asked.whole("q", "no pod")
    assert caught.value.as_json() == {"error": {"code": "not-found", "path": "default/a", "message": "no such pod"}}
    with pytest.raises(BadRequest) as refused:
        await asked.whole("q", "bad")
    assert (refused.value.code, refused.value.status, refused.value.path) == ("finer", 400, "add")
    with pytest.raises(RuntimeError, match="KeyError: 'defect of ours'"):
        await asked.whole("q", "defect")
    await over(asked)


async def test_a_moment_serves_until_the_rest_is_over() -> None:
    """Questions about what has just changed wait for the next one."""
    asked = one(pid, rest=1e9)
    first = await asked.whole("q")
    assert first == await asked.whole("q") != b"%d" % os.getpid()
    waits = asyncio.create_task(asked.whole("q", fresh=True))
    await asyncio.sleep(0.5)
    assert not waits.done()
    assert await asked.whole("q") == first
    asked._rested = 0.0
    second = await waits
    assert second != first
    await over(asked)


async def test_rests_left_over_are_for_fresh_questions() -> None:
    """Then such a question waits until a rest is over; and an hour without questions is no more than SAVED_REST."""
    at = 0.0
    asked = Forks({"q": pid}, rest=1e9, saved=2 * forks.MOST_REST, clock=lambda: at)
    for hour in range(2):
        at = 3600.0 * (hour + 1)
        moments = set()
        for _ in range(3):
            at += 0.001
            moments.add(await asked.whole("q", fresh=True))
        assert len(moments) == 3
        at += 0.001
        waits = asyncio.create_task(asked.whole("q", fresh=True))
        await asyncio.sleep(0.5)
        assert not waits.done()
        at += forks.MOST_REST
        assert await waits not in moments
    await over(asked)


async def test_a_moment_is_not_kept_for_long() -> None:
    """Else the pages that the server writes would be there twice."""
    asked = one(pid, rest=1.0)
    await asked.whole("q")
    while asked._keeper is not None:
        await asyncio.sleep(0.01)
    await over(asked)


async def test_a_slow_reader_holds_up_no_other_question() -> None:
    asked = one(lambda size: b"x" * size, rest=1e9)
    slow = await asked.ask("q", 4 << 20)
    assert await asked.whole("q", 3) == b"xxx"
    assert len(await slow.whole()) == 4 << 20
    await over(asked)


async def test_slow_readers_hold_up_no_other_question() -> None:
    """Even as many as a keeper makes answers at once."""
    asked = one(lambda size: b"x" * size, rest=1e9)
    slow = [await asked.ask("q", 4 << 20) for _ in range(forks.MOST_ANSWERS)]
    assert await asked.whole("q", 3) == b"xxx"
    for answer in slow:
        answer.close()
    await over(asked)


async def test_a_keeper_that_takes_no_questions_holds_up_nothing() -> None:
    """Clients that leave their questions do not count as asked, but the questions wait in its socket."""
    asked = one(pid, rest=1e9)
    await asked.whole("q")
    assert asked._keeper is not None
    os.kill(asked._keeper.pid, signal.SIGSTOP)
    keeper = asked._keeper

    def leave() -> None:
        for _ in range(10_000):
            forks._given(keeper).close()

    with pytest.raises(Busy):
        leave()
    os.kill(asked._keeper.pid, signal.SIGKILL)
    await over(asked)


async def test_a_keeper_that_dies_with_questions_is_counted_out() -> None:
    """A reset, and not the end of a stream: the questions were not read."""
    asked = one(pid, rest=1e9)
    await asked.whole("q")
    assert asked._keeper is not None
    os.kill(asked._keeper.pid, signal.SIGSTOP)
    tasks = [asyncio.create_task(asked.whole("q")) for _ in range(3)]
    await asyncio.sleep(0.1)
    os.kill(asked._keeper.pid, signal.SIGKILL)
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in found] == [NotAnswered] * 3
    assert asked._asked == 0
    await over(asked)


@pytest.mark.parametrize("where", ["server", "keeper"])
async def test_no_process_can_be_made(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server, fork = os.getpid(), os.fork

    def failing() -> int:
        if (os.getpid() == server) == (where == "server"):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return fork()

    asked, files = one(pid, rest=1e9), open_files()
    monkeypatch.setattr(os, "fork", failing)
    for _ in range(2):
        with pytest.raises(NotAnswered, match="no process can be made") as caught:
            await asked.whole("q")
        assert caught.value.status == 503
    await over(asked)
    await asyncio.sleep(0)
    assert (asked._asked, open_files()) == (0, files)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGINT, signal.SIGTERM}


@pytest.mark.parametrize("rest", [0.0, 1e9])
def test_who_started_the_server_ignores_the_ends_of_children(rest: float) -> None:
    """Such as a shell after `trap '' CHLD`: the kernel forgets children that have ended."""

    async def steps() -> None:
        asked = one(pid, rest=rest)
        for _ in range(forks.MOST_ANSWERS + 2):
            await asked.whole("q")
            await asyncio.sleep(0.05)
        await over(asked)

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        run(steps())
    finally:
        signal.signal(signal.SIGCHLD, before)


async def test_too_many_questions_are_busy() -> None:
    asked = one(sleeping, rest=1e9)
    tasks = [asyncio.create_task(asked.whole("q")) for _ in range(forks.MOST_ASKED)]
    await asyncio.sleep(0.01)
    with pytest.raises(Busy):
        await asked.whole("q")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert asked._asked == 0
    await over(asked)


async def test_an_answer_ends_when_its_client_leaves() -> None:
    asked, files = one(endless), open_files()
    until = time.monotonic() + 0.3
    with pytest.raises(ClientLeft):
        await asked.whole("q", lost=lambda: time.monotonic() > until)
    await over(asked)
    await asyncio.sleep(0)
    assert open_files() == files


async def test_a_process_that_dies_is_an_answer() -> None:
    asked = one(lambda: os._exit(3), rest=1e9)
    with pytest.raises(NotAnswered) as caught:
        await asked.whole("q")
    assert (caught.value.code, caught.value.status) == ("too-much-work", 503)
    assert asked._keeper is not None
    os.kill(asked._keeper.pid, signal.SIGKILL)
    while not os.waitid(os.P_PID, asked._keeper.pid, os.WEXITED | os.WNOWAIT):
        pass
    with pytest.raises(NotAnswered):
        await asked.whole("q")
    await over(asked)


async def test_an_answer_that_ends_in_its_middle_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of its process is none of a survey or a view."""
    monkeypatch.setattr(forks, "WALL_SECONDS", 1.0)
    asked = one(lambda: b"x" * (8 << 20), rest=1e9)
    slow = await asked.ask("q")
    await over(asked)
    with pytest.raises(NotAnswered):
        await slow.whole()
    assert asked._asked == 0


async def test_an_answer_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "WALL_SECONDS", 0.2)
    asked = one(endless)
    with pytest.raises(NotAnswered, match="too long"):
        await asked.whole("q")
    await over(asked)


async def test_an_answer_ends_before_the_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    server = os.getpid()
    monkeypatch.setattr(forks, "memory_left", lambda *_: None if os.getpid() == server else forks.LEAST_MEMORY - 1)
    monkeypatch.setattr(forks, "most_data", lambda *_: None)
    asked = one(endless)
    with pytest.raises(NotAnswered) as caught:
        await asked.whole("q")
    assert caught.value.code == "no-memory"
    await over(asked)


async def test_no_fork_without_memory_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "memory_lacking", lambda: "100 MiB are needed")
    asked = one(pid)
    with pytest.raises(NotAnswered, match="100 MiB") as caught:
        await asked.whole("q")
    assert caught.value.code == "no-memory"
    assert asked._keeper is None
    assert asked._asked == 0


# -- huge pages


def on_huge_pages(address: int) -> int:
    """Bytes of the mapping at this address."""
    begin = end = 0
    for line in forks.SMAPS.read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            begin, end = (int(word, 16) for word in words[0].split("-"))
        elif words[0] == "AnonHugePages:" and begin <= address < end:
            return int(words[1]) * 1024
    raise AssertionError("no mapping")


def test_memory_is_put_on_huge_pages_and_keeps_what_it_holds() -> None:
    with mmap.mmap(-1, 8 * forks.HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = at // mmap.PAGESIZE % 251
        address = ctypes.addressof(whole := ctypes.c_char.from_buffer(memory))
        del whole  # it would keep the memory from being closed
        if on_huge_pages(address):
            pytest.skip("this kernel gives huge pages unasked")
        steps = list(forks.use_huge_pages())
        assert len([step for step in steps if address <= step < address + len(memory)]) >= 7
        assert on_huge_pages(address) >= 7 * forks.HUGE_PAGE
        assert all(memory[at] == at // mmap.PAGESIZE % 251 for at in range(0, len(memory), mmap.PAGESIZE))
        assert set(forks.use_huge_pages()) >= {step for step in steps if address <= step < address + len(memory)}


def test_only_memory_of_this_process_that_is_nearly_all_there_is_gathered(tmp_path: Path) -> None:
    """A stack of which little was used would grow to its full size; a file is not ours alone."""
    smaps = tmp_path / "smaps"
    mappings = [
        ("7f0000000000-7f0000800000", "rw-p", 0, 8192),
        ("7f0001000000-7f0001800000", "rw-p", 0, 7168),
        ("7f0002000000-7f0002800000", "rw-p", 0, 7164),  # a page is missing
        ("7f0003000000-7f0003800000", "r--p", 0, 8192),
        ("7f0004000000-7f0004800000", "rw-s", 0, 8192),
        ("7f0005000000-7f0005800000", "rw-p", 1234, 8192),  # a file
        ("7f0006000000-7f0006800000", "rw-p", 0, 0),
    ]
    smaps.write_text(
        "".join(
            f"{range} {flags} 00000000 00:00 {inode} \nSize: 8192 kB\nRss: {rss} kB\nVmFlags: rd wr\n"
            for range, flags, inode, rss in mappings
        )
    )
    assert list(forks._dense(smaps)) == [(0x7F0000000000, 0x7F0000800000), (0x7F0001000000, 0x7F0001800000)]
    pages = [begin + page * forks.HUGE_PAGE for begin in (0x7F0000000000, 0x7F0001000000) for page in range(4)]
    assert list(forks.use_huge_pages(smaps)) == pages  # the last ones too
    assert list(forks.use_huge_pages(tmp_path / "not Linux")) == []
