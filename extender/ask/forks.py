"""Answers questions from a cluster that stands still: a fork of the server.

A question is a plain function. It runs in a process of its own, which has all that the server knows at one moment, and
may change it ("suppose n1 is drained"): nothing else reads it. So it needs no pauses and no undo, and no verb waits.

    server ──fork──► keeper, at one moment ──fork──► answer ──► socket of the question
                                           ──fork──► answer ──► ...

A fork makes the server stand still while its page tables are copied: 14 ms where it has 500 MiB, and 3 ms where most
of this lies on huge pages (`use_huge_pages`). The next call takes 2 ms longer, as it copies the pages that it writes.
So the server forks a *keeper* now and then, and the keeper forks once for each question. After a fork the server rests
REST times as long as this fork took. Until then questions are answered from the same moment. A question about what has
just changed (`fresh`) needs a keeper of its own: a server that was asked little has rests left over for a few of them
(SAVED_REST), and else they wait.

In a fork only the thread that forked goes on. A lock that another thread (of the log, of a record) held at that moment
stays locked. So nothing is logged or recorded there (`begin`), and nothing of the event loop is used.

An answer ends itself when its time is over, when no client reads it, or when little is left of the container's memory:
the kernel would end the container, and the server with it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import pickle
import resource
import select
import signal
import socket
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from extender.errors import Busy, ExtenderError, NotAnswered

REST: Final = 1249.0
"""Forks of up to 4 ms take a 1,250th of the time at most, longer ones more (MOST_REST): so few calls queue behind one,
or come after it, that the 99th percentile of filter stays within 1.1 x (benchmarks.debug_pages)."""
SAVED_REST: Final = 20.0
"""Seconds of rest that count in advance: who goes from page to page does not wait, and a burst of questions stops the
server for as long as the forks of so many rests take."""
MOST_REST: Final = 5.0
"""Seconds: the age of the oldest answer."""
MOST_ANSWERS: Final = 4
"""Answers that a keeper makes at once."""
MOST_ASKED: Final = 16
"""Questions that wait or are answered."""
RETRY_SECONDS: Final = 2
NICE: Final = 10
CPU_SECONDS: Final = 60
"""Of an answer."""
WALL_SECONDS: Final = 110.0
"""Of an answer, the pauses of its reader included."""
LOOK_SECONDS: Final = 0.1
"""How often an answer looks at its time, at its reader, and at the memory that is left."""
END_SECONDS: Final = 5.0
"""For what is still done when its time is over."""
LEFT_SECONDS: Final = 0.25
"""How often the server looks whether a client is still there."""
CGROUP: Final = Path("/sys/fs/cgroup")
PROC_STATUS: Final = Path("/proc/self/status")
SPARE_MEMORY: Final = 64 << 20
"""Bytes that are left when a fork is made, beside COPIED_SHARE."""
COPIED_SHARE: Final = 4
"""Of the pages that a fork and the server share they copy one in COPIED_SHARE (benchmarks.debug_pages)."""
LEAST_MEMORY: Final = 32 << 20
"""Bytes: a fork that finds less left ends itself."""
CHUNK: Final = 64 << 10
TOO_LONG: Final = "the answer takes too long: ask about less"
NO_MEMORY: Final = "the answer needs more memory than is left: ask about less"
ENDED: Final = "the process of the answer has ended: it needed too much time or memory, or has failed"
T = TypeVar("T")
Question = Callable[..., bytes]
"""Returns the answer, or raises an ExtenderError."""


class ClientLeft(Exception):
    """No client waits for the answer any more."""


@dataclass(frozen=True, slots=True)
class MomentKeeper:
    """A fork that keeps a moment."""

    pid: int
    control: socket.socket
    """Takes the sockets of questions; the keeper ends when this is closed."""
    at: float
    """The moment."""


class Forks:
    """The forks of one server."""

    def __init__(
        self,
        questions: Mapping[str, Question] | None = None,
        begin: Callable[[], None] = lambda: None,
        *,
        rest: float = REST,
        saved: float = SAVED_REST,
        nice: int = NICE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`questions`: by name; `begin`: called first in each keeper, stops what may not go on there; `nice`: how much
        of the processor keepers leave to others, as nice(2) counts; `clock`: seconds."""
        self.questions = dict(questions or {})
        self.begin = begin
        self._rest, self._saved, self._nice, self._clock = rest, saved, nice, clock
        self._keeper: MomentKeeper | None = None
        self._rested = 0.0  # when the rests of all forks are over
        self._ended: list[int] = []  # process ids of keepers that end
        self._asked = 0

    def add(self, question: Question) -> str:
        """The name of a question that keepers answer from now on."""
        name = f"{getattr(question, '__qualname__', 'question')} {len(self.questions)}"
        self.questions[name] = question
        return name

    async def ask(self, name: str, *asked: Any, fresh: bool = False, lost: Callable[[], bool] = bool) -> StreamedAnswer:
        """The answer to a question, once it begins; the caller closes it. `asked`: the arguments of the question;
        `fresh`: it is of no moment before this one; `lost`: whether its client has left. Raises what the question
        raises; Busy: too many are being answered; NotAnswered: it took too much time or memory; ClientLeft."""
        if self._asked >= MOST_ASKED:
            raise Busy(f"{self._asked} questions are being answered; try again in {RETRY_SECONDS} s")
        self._asked += 1
        try:
            ours = _given(await self._moment(self._clock() if fresh else 0.0, lost))
            answer = StreamedAnswer(*await asyncio.open_unix_connection(sock=ours, limit=CHUNK), self._answered)
        except BaseException:
            self._answered()
            raise
        try:
            await answer.begin(pickle.dumps((name, asked)), lost)
        except BaseException:
            answer.close()
            raise
        return answer

    async def whole(self, name: str, *asked: Any, fresh: bool = False, lost: Callable[[], bool] = bool) -> bytes:
        """All of the answer; raises as `ask`."""
        return await (await self.ask(name, *asked, fresh=fresh, lost=lost)).whole()

    def close(self) -> None:
        """No moment is kept any more. Answers that are being made go on."""
        if self._keeper is not None:
            self._keeper.control.close()
            self._ended.append(self._keeper.pid)
            self._keeper = None
        # A keeper ends once its answers have.
        self._ended = [pid for pid in self._ended if not _is_over(pid)]

    async def _moment(self, since: float, lost: Callable[[], bool]) -> MomentKeeper:
        """A keeper that may be asked: of a moment `since` or later."""
        while True:
            if self._keeper is not None and self._keeper.at >= since:
                return self._keeper
            if (wait := self._rested - self._saved - self._clock()) <= 0:
                return self._fork()
            await asyncio.sleep(min(wait, LEFT_SECONDS))
            if lost():
                raise ClientLeft

    def _fork(self) -> MomentKeeper:
        """A new keeper. NotAnswered: there is no memory for one, or no process may be made."""
        self.close()
        if lacking := memory_lacking():
            raise NotAnswered(lacking, code="no-memory")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # clients that leave may fill it: a full socket must not stop the event loop
        began, cpu = self._clock(), time.thread_time()
        # Until the child has its own handlers, a signal would run those of the server.
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            if not (pid := os.fork()):
                _keep(theirs, self.questions, self.begin, self._nice)
        except OSError as error:
            ours.close()
            theirs.close()
            raise _no_process(error) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        # Its CPU time: a machine that is busy makes the fork take longer, and not a keeper last longer.
        rest = min(MOST_REST, self._rest * (time.thread_time() - cpu))
        self._rested = max(self._rested, self._clock()) + rest
        theirs.close()
        self._keeper = keeper = MomentKeeper(pid, ours, began)
        loop = asyncio.get_running_loop()
        loop.call_later(rest, self._drop, keeper)
        return keeper

    def _drop(self, old: MomentKeeper) -> None:
        """No question is answered from this moment any more."""
        if self._keeper is old:
            self.close()

    def _answered(self) -> None:
        self._asked -= 1


def _no_process(error: OSError) -> NotAnswered:
    return NotAnswered(f"no process can be made for the answer: {error.strerror}", code="no-memory")


def _is_over(pid: int) -> bool:
    """Whether a child has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # the parent of the server made it ignore SIGCHLD
        return True


def _given(keeper: MomentKeeper) -> socket.socket:
    """The socket of a question, whose other end the keeper has. NotAnswered: it has ended; Busy: it has enough to
    do."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            socket.send_fds(keeper.control, [b"q"], [theirs.fileno()])
        except BlockingIOError:
            ours.close()
            raise Busy(f"too many questions wait; try again in {RETRY_SECONDS} s") from None
        except OSError:
            ours.close()
            raise NotAnswered(ENDED) from None
    return ours


class StreamedAnswer:
    """An answer while it is read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, closed: Callable[[], None]) -> None:
        self._reader, self._writer, self._closed = reader, writer, closed
        self.size = self._rest = 0
        self._is_open = True

    async def begin(self, question: bytes, lost: Callable[[], bool]) -> None:
        """Ask, and wait for the first bytes; raises as `Forks.ask`."""
        self._writer.write(question)
        self._writer.write_eof()
        head = asyncio.ensure_future(self._reader.readline())
        try:
            while not (await asyncio.wait([head], timeout=LEFT_SECONDS))[0]:
                if lost():
                    raise ClientLeft
        finally:
            head.cancel()
        try:
            kind, _, size = head.result().partition(b" ")
        except OSError:
            size = b""
        if not size:
            raise NotAnswered(ENDED)
        self.size = self._rest = int(size)
        if kind != b"ok":
            raise pickle.loads(await self.whole())

    async def pieces(self) -> AsyncIterator[bytes]:
        """The answer as it comes; closed at its end."""
        try:
            while self._rest:
                piece = await self._reader.read(CHUNK)
                if not piece:
                    raise TimeoutError(f"an answer was not read within {WALL_SECONDS:.0f} s")
                self._rest -= len(piece)
                yield piece
        finally:
            self.close()

    async def whole(self) -> bytes:
        """All of the answer; closed. NotAnswered: it ends in its middle."""
        try:
            return b"".join([piece async for piece in self.pieces()])
        except OSError:  # a TimeoutError, or a reset
            raise NotAnswered(ENDED) from None

    def close(self) -> None:
        """It is not read any further."""
        if self._is_open:  # the transport itself closes when the process has ended
            self._is_open = False
            self._writer.close()
            self._closed()


# -- in the forks ------------------------------------------------------------------------------------------------------


def _keep(control: socket.socket, questions: Mapping[str, Question], begin: Callable[[], None], nice: int) -> NoReturn:
    """The keeper. Nothing of the server's may run here: no handler, no finaliser, no descriptor."""
    try:
        begin()
        gc.freeze()  # to look at the server's objects would copy their pages
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
        os.closerange(3, control.fileno())
        os.closerange(control.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        os.nice(nice)
        with suppress(OSError, AttributeError):  # Linux alone has these
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            Path("/proc/self/oom_score_adj").write_text("1000")
        making: list[int] = []  # the pipes of answers that are being made; each closes once its answer is made
        while (question := socket.recv_fds(control, 1, 1))[0]:
            with socket.socket(fileno=question[1][0]) as client:
                while len(making) >= MOST_ANSWERS:
                    for pipe in select.select(making, (), ())[0]:
                        making.remove(pipe)
                        os.close(pipe)
                with suppress(ChildProcessError):
                    while os.waitpid(-1, os.WNOHANG)[0]:
                        pass
                pipe, making_it = os.pipe()
                try:
                    if not os.fork():
                        control.close()
                        _answer(client, questions, making_it)
                    making.append(pipe)
                except OSError as error:
                    os.close(pipe)
                    _refuse(client, _no_process(error))
                os.close(making_it)
        with suppress(ChildProcessError):
            while True:  # without a parent they would never be forgotten
                os.wait()
    finally:
        os._exit(0)


def _refuse(client: socket.socket, error: ExtenderError) -> None:
    """Reads a question and does not answer it."""
    with suppress(OSError):
        client.settimeout(LOOK_SECONDS)
        while client.recv(CHUNK):
            pass
        client.sendall(_refusal(error))


def _answer(client: socket.socket, questions: Mapping[str, Question], making: int) -> NoReturn:
    """Reads a question and answers it. `making`: closed once the answer is made; its reader may be slow."""
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        if (most := most_data()) is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        with client.makefile("rb") as file:
            name, asked = pickle.load(file)
        _look_out(client)
        text = _made(questions[name], asked)
        os.close(making)
        client.sendall(text)
    finally:
        os._exit(0)


def _look_out(client: socket.socket) -> None:
    """End this process when its time is over, its reader has left, or too little memory is left."""
    until = time.monotonic() + WALL_SECONDS
    reader = select.poll()
    reader.register(client, 0)  # POLLHUP alone: the other end is closed

    def look(number: int, frame: Any) -> None:
        over, available = time.monotonic() > until, memory_left()
        if reader.poll(0):
            os._exit(0)
        if over or (available is not None and available < LEAST_MEMORY):
            signal.signal(number, lambda number, frame: os._exit(1))
            signal.setitimer(signal.ITIMER_REAL, END_SECONDS)
            raise TimeoutError if over else MemoryError

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)


def _made(question: Question, asked: Sequence[Any]) -> bytes:
    """A line with the kind and the length of the answer, then the answer."""
    error: Exception
    try:
        text = question(*asked)
        return b"ok %d\n" % len(text) + text
    except ExtenderError as refused:
        error = refused
    except MemoryError:
        error = NotAnswered(NO_MEMORY, code="no-memory")
    except TimeoutError:
        error = NotAnswered(TOO_LONG)
    except Exception:
        error = RuntimeError(traceback.format_exc())
    return _refusal(error)


def _refusal(error: Exception) -> bytes:
    pickled = pickle.dumps(error)
    return b"error %d\n%b" % (len(pickled), pickled)


# -- how much memory is left for a fork: it shares that of the server, and copies the pages that either writes


def memory_left(group: Path = CGROUP) -> int | None:
    """Bytes that are left of the memory limit; None where there is no limit, or it is not known."""
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((group / "memory.current").read_text()) - _number(group / "memory.stat", "inactive_file")
        return int(limit) - used
    except (OSError, ValueError):
        return None  # no cgroup v2, or not Linux


def memory_lacking(group: Path = CGROUP, status: Path = PROC_STATUS) -> str:
    """Why there is not enough for a fork, "" where there is or it is not known."""
    free = memory_left(group)
    try:
        needed = _number(status, "VmRSS:") * 1024 // COPIED_SHARE + SPARE_MEMORY
    except (OSError, ValueError):
        return ""
    if free is None or free >= needed:
        return ""
    return f"an answer may need {needed >> 20} MiB, and {free >> 20} MiB are left of the memory limit"


def most_data(group: Path = CGROUP, status: Path = PROC_STATUS) -> int | None:
    """Bytes of data that this process may have, as RLIMIT_DATA counts them: what it has, and what is left."""
    free = memory_left(group)
    try:
        return None if free is None else _number(status, "VmData:") * 1024 + max(0, free)
    except (OSError, ValueError):
        return None


def _number(file: Path, name: str) -> int:
    """A number of a file with a name and a number on each line."""
    for line in file.read_text().splitlines():
        words = line.split()
        if words and words[0] == name:
            return int(words[1])
    return 0


# -- huge pages: a fork copies one entry of the page tables for 2 MiB, and not 512

MADV_COLLAPSE: Final = 25
"""Linux 6.1 and later: put these bytes on a huge page now."""
HUGE_PAGE: Final = 2 << 20
SMAPS: Final = Path("/proc/self/smaps")
DENSE: Final = 7 / 8
"""A mapping of which so much is in memory: what is missing in a huge page would be added to it."""


def use_huge_pages(smaps: Path = SMAPS) -> Iterator[int]:
    """Put the memory of this process on huge pages, one in each step, of some 3 ms where it lies on small ones. Their
    addresses. A kernel that refuses one leaves it as it is."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for begin, end in list(_dense(smaps)):
        for address in range(-(-begin // HUGE_PAGE) * HUGE_PAGE, end - HUGE_PAGE + 1, HUGE_PAGE):
            madvise(address, HUGE_PAGE, MADV_COLLAPSE)
            yield address


def _dense(smaps: Path) -> Iterator[tuple[int, int]]:
    """Where the private memory begins and ends that is no file, and nearly all there. None where the system has no
    such list."""
    begin = end = 0
    with suppress(OSError):
        for line in smaps.read_text().splitlines():
            words = line.split()
            if words[0].endswith(":"):
                if words[0] == "Rss:" and int(words[1]) * 1024 >= DENSE * (end - begin) > 0:
                    yield begin, end
            else:
                is_ours = words[1] == "rw-p" and words[4] == "0"
                begin, end = (int(word, 16) for word in words[0].split("-")) if is_ours else (0, 0)
