"""One line per event on standard error: JSON or logfmt for machines, text for terminals.

Keys as in Kubernetes' JSON logs where it has them: `ts`, `level`, `msg`, `pod` ("namespace/name"), `node`, `err`.
The message is a constant sentence; what varies stands in the keys.

A log that cannot be written stops nothing: a full disk, a closed pipe or one that is not read. A thread writes, so the
event loop never waits for the log; a line that finds no room is dropped and counted. It is the server's only thread.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Final, Literal, cast

import orjson
import structlog

Log = structlog.typing.FilteringBoundLogger
STANDARD_ERROR: Final = 2
WAITING_LINES: Final = 10_000
WAITING_BYTES: Final = 8 << 20
LONGEST_LINE: Final = 64 << 10
GATHER_SECONDS: Final = 0.02
"""What comes so soon after a line is written with it. To wake a thread for each line costs a decision 10 % more CPU."""
BATCH_BYTES: Final = 4 << 10
"""Of one write. A pipe takes so much in one piece."""
FLUSH_SECONDS: Final = 1.0
"""How long the end of the process waits for the last lines."""


def get_log(**bound: Any) -> Log:
    """A logger; it may be made before configure() is called."""
    return cast(Log, structlog.get_logger(**bound))


class LineWriter:
    """Lines to a file descriptor, in order, by a thread. `dropped`: lines that were lost."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: deque[bytes] = deque()
        self._come = threading.Event()
        self._waiting = 0  # bytes put; changed under the lock, and `_taken` by the thread alone
        self._taken = 0
        self._refused = 0  # lines that found no room
        self._failed = 0  # lines that could not be written
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._muted = False

    @property
    def dropped(self) -> int:
        """Lines that were not written: the queue was full, or the write failed."""
        return self._refused + self._failed

    def mute(self) -> None:
        """Drop all lines from now on."""
        self._muted = True

    def line(self, text: bytes) -> None:
        """Queue a line. It waits for nothing and raises nothing."""
        if self._muted:
            return
        if self._thread is None:
            self._start()
        if len(text) > LONGEST_LINE:
            text = text[:LONGEST_LINE] + b" (cut off)"
        with self._lock:
            if len(self._lines) >= WAITING_LINES or self._waiting - self._taken >= WAITING_BYTES:
                self._refused += 1
                return
            self._waiting += len(text) + 1
            self._lines.append(text + b"\n")
        if not self._come.is_set():
            self._come.set()

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until all lines are written; False when that takes too long."""
        until = time.monotonic() + seconds
        while self._taken < self._waiting:
            if time.monotonic() >= until:
                return False
            time.sleep(0.001)
        return True

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="log", daemon=True)
                self._thread.start()

    def _write(self) -> None:
        while True:
            self._come.wait()
            time.sleep(GATHER_SECONDS)
            self._come.clear()  # a line that comes from here on sets it again
            while self._lines:
                batch = [self._lines.popleft()]
                size = len(batch[0])
                while self._lines and size + len(self._lines[0]) <= BATCH_BYTES:
                    batch.append(self._lines.popleft())
                    size += len(batch[-1])
                self._put(batch)
                self._taken += size

    def _put(self, batch: list[bytes]) -> None:
        rest = b"".join(batch)
        size = len(rest)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:  # it is not read, or there is no room: the next lines may fare better
            written = size - len(rest)
            self._failed += sum(end > written for end in accumulate(map(len, batch)))


_writer = LineWriter(STANDARD_ERROR)


_straight: list[Any] = []  # the processors of configure(), where information is logged as JSON


def info(message: str, fields: dict[str, Any]) -> None:
    """An information line of a kind that comes often: a JSON line is made without structlog's processors, which take
    three times as long. It takes `fields` over."""
    if not _straight or _straight[-1] is not _as_json or not structlog.is_configured():  # text, or a test reads along
        get_log().info(message, **fields)
        return
    fields["level"] = "info"
    fields["ts"] = datetime.now(UTC)
    fields["msg"] = message
    _writer.line(_dumps(fields, repr))


def mute() -> None:
    """Log nothing from now on: a fork has no thread that writes, and may have its lock."""
    _writer.mute()


def dropped_lines() -> int:
    """Lines of this process that were not written."""
    return _writer.dropped


class _Logger:
    """What structlog hands finished lines to."""

    def msg(self, line: bytes | str) -> None:
        _writer.line(line if isinstance(line, bytes) else line.encode("utf-8", "replace"))

    log = debug = info = warn = warning = error = err = fatal = critical = failure = exception = msg


structlog.configure(logger_factory=lambda *args: structlog.PrintLogger(sys.stderr or io.StringIO()))
"""Until configure() is called, so that a command that does not call it prints its answer alone to standard output."""


def configure(
    form: Literal["auto", "json", "logfmt", "text"] = "auto", level: int = logging.INFO, libraries: int | None = None
) -> None:
    """Called once, by the command line. `auto` is text when standard error is a terminal; `libraries`: the level of
    what comes through `logging`, None: as `level`."""
    global _straight
    _open_standard_streams()
    terminal = os.isatty(STANDARD_ERROR)
    text = form == "text" or (form == "auto" and terminal)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
    ]
    if text:
        last: list[Any] = [
            _printable,
            structlog.dev.ConsoleRenderer(
                colors=terminal, timestamp_key="ts", exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    else:
        rendered = _as_logfmt if form == "logfmt" else _as_json
        last = [structlog.processors.format_exc_info, structlog.processors.EventRenamer("msg"), rendered]
    processors = [*shared, *last]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *args: _Logger(),
        cache_logger_on_first_use=False,  # a test may configure another
    )
    _straight = [] if text or level > logging.INFO else processors
    root = logging.getLogger()
    root.handlers[:] = [_FromStandardLibrary()]
    root.setLevel(level if libraries is None else libraries)
    atexit.unregister(_writer.flush)
    atexit.register(_writer.flush)


def _open_standard_streams() -> None:
    """A standard stream that is closed leads nowhere. Else the next file or socket would get its number, and whatever
    prints there would write into that."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False))  # None where it was closed at the start
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False))


class Allowance:
    """How often something is done that others cause, as a line of the log: `burst` times at once, and `per_second` on
    average."""

    def __init__(self, burst: float = 20.0, per_second: float = 0.2) -> None:
        self._burst, self._per_second = burst, per_second
        self._left = burst
        self._at: float | None = None
        self._left_out = 0

    def take(self, now: float) -> int | None:
        """None where it is not to be done; else how many were left out since the last one. `now`: seconds."""
        earned = 0.0 if self._at is None else max(0.0, now - self._at) * self._per_second
        self._left, self._at = min(self._burst, self._left + earned), now
        if self._left < 1.0:
            self._left_out += 1
            return None
        self._left -= 1.0
        left_out, self._left_out = self._left_out, 0
        return left_out


class _FromStandardLibrary(logging.Handler):
    """What libraries log through `logging` comes out in our form; `logger` names the library."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            get_log().log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info or None)
        except Exception:
            self.handleError(record)


def _dumps(value: Any, default: Any) -> bytes:
    try:
        return orjson.dumps(value, default=default, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z)
    except (TypeError, ValueError):  # half a surrogate pair, or an integer of more than 64 bits
        return json.dumps(value, default=_text, skipkeys=True).encode()


def _text(value: Any) -> str:
    """Of what JSON has no form for; a time as orjson writes it."""
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else repr(value)


_as_json = structlog.processors.JSONRenderer(serializer=_dumps)


def _printable(log: Any, name: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """No text that others write moves the cursor of a terminal, or sets its title."""
    return {key: _escaped(value) if isinstance(value, str) else value for key, value in fields.items()}


def _escaped(text: str) -> str:
    """White space stays: the renderer quotes it."""
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() or char in "\t\n\r" else ascii(char)[1:-1] for char in text])


def _as_logfmt(log: Any, name: str, fields: structlog.typing.EventDict) -> str:
    """`key=value` pairs, `ts`, `level` and `msg` first. What is no text is JSON; what is absent is left out."""
    order = ("ts", "level", "msg")
    named = [*[key for key in order if key in fields], *[key for key in fields if key not in order]]
    return " ".join(f"{key}={_logfmt_value(fields[key])}" for key in named if fields[key] is not None)


def _logfmt_value(value: Any) -> str:
    text = value if isinstance(value, str) else _dumps(value, repr).decode()
    bare = text and text.isprintable() and not any(char in text for char in ' ="\\')
    return text if bare else _dumps(text, repr).decode()
